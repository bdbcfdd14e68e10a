//! Makes one HTML page from results of `towpath bench NAME --json`: the ratios, and a plot and a table for every metric. The page contains
//! its styles and plots and follows the reader's choice of light or dark.

use std::process::ExitCode;

use anyhow::Context;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Deserialize;
use serde_json::Value;

use crate::plot::{self, Bar};

const STYLE: &str = include_str!("report.css");

/// A result in the format that `docs/evaluation.md` describes.
#[derive(Debug, Deserialize)]
pub struct Report {
    name: String,
    #[serde(default)]
    machine: Value,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Deserialize)]
struct Row {
    case: String,
    system: String,
    metric: String,
    unit: String,
    median: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    runs: u64,
    cores_used: Option<f64>,
    cpu_ns_per_op: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Ratio {
    case: String,
    metric: String,
    over: String,
    median: Option<f64>,
}

/// Prints the page for these result files on standard output.
///
/// # Errors
/// When a file cannot be read or is not a result.
pub fn print(files: &[&str]) -> anyhow::Result<ExitCode> {
    let mut reports = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        reports.push(parse(&text).with_context(|| format!("{file} is not a result of towpath bench"))?);
    }
    print!("{}", page(&reports)?.into_string());
    Ok(ExitCode::SUCCESS)
}

/// Parses a result.
///
/// # Errors
/// When the text is not a result.
pub fn parse(text: &str) -> anyhow::Result<Report> {
    Ok(serde_json::from_str(text)?)
}

/// Makes the page for these results.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn page(reports: &[Report]) -> anyhow::Result<Markup> {
    let sections: Vec<Markup> = reports.iter().map(section).collect::<anyhow::Result<_>>()?;
    Ok(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Towpath: measurements" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Towpath: measurements" }
                p {
                    "Systems are measured in the same run, interleaved. A bar is the median of the runs, the line across it their range. "
                    "Absolute times of a shared machine are not results; ratios within one run are."
                }
                nav { @for report in reports { a href={ "#" (report.name) } { (report.name) } " " } }
                @for section in &sections { (section) }
            }
        }
    })
}

fn section(report: &Report) -> anyhow::Result<Markup> {
    let groups: Vec<Markup> =
        groups(report).into_iter().map(|rows| group(&rows)).collect::<anyhow::Result<_>>()?;
    let machine = report.machine.as_object().map(|machine| {
        let fields: Vec<String> =
            machine.iter().map(|(key, value)| format!("{key} {}", plain(value))).collect();
        fields.join(", ")
    });
    Ok(html! {
        section id=(report.name) {
            h2 { (report.name) }
            p { code { "towpath bench " (report.name) " --json" } @if let Some(machine) = machine { ", on " (machine) } "." }
            @if !report.ratios.is_empty() { (ratios(report)) }
            @for group in &groups { (group) }
        }
    })
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The rows of each metric and unit, in the order of their first rows.
fn groups(report: &Report) -> Vec<Vec<&Row>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in &report.rows {
        let is_it = |group: &&mut Vec<&Row>| {
            group.first().is_some_and(|first| first.metric == row.metric && first.unit == row.unit)
        };
        match groups.iter_mut().find(is_it) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

/// True if a smaller number is better: for time, processor time and memory.
fn is_less_better(metric: &str, unit: &str) -> bool {
    metric == "cpu_ns_per_op"
        || matches!(unit, "ns" | "us" | "ms" | "s" | "B" | "KiB")
        || unit.starts_with('%')
}

/// The table of all ratios, better and worse.
fn ratios(report: &Report) -> Markup {
    let unit = |ratio: &Ratio| {
        let row = report.rows.iter().find(|row| row.case == ratio.case && row.metric == ratio.metric);
        row.map_or("", |row| row.unit.as_str())
    };
    let verdict = |ratio: &Ratio| match ratio.median {
        Some(1.0) => ("", "as good"),
        Some(median) if (median < 1.0) == is_less_better(&ratio.metric, unit(ratio)) => ("won", "better"),
        Some(_) => ("lost", "worse"),
        None => ("", ""),
    };
    html! {
        table {
            tr { th { "case" } th { "metric" } th { "over" } th { "ratio" } th {} }
            @for ratio in &report.ratios {
                tr class=(verdict(ratio).0) {
                    td { (ratio.case) } td { (ratio.metric) } td { (ratio.over) }
                    td.number { (number(ratio.median)) } td { (verdict(ratio).1) }
                }
            }
        }
    }
}

/// The plot and the table of one metric.
fn group(rows: &[&Row]) -> anyhow::Result<Markup> {
    let Some(first) = rows.first() else { return Ok(html! {}) };
    let bars: Vec<Bar<'_>> = rows
        .iter()
        .filter_map(|row| {
            let median = row.median?;
            let (min, max) = (row.min.unwrap_or(median), row.max.unwrap_or(median));
            Some(Bar { case: &row.case, system: &row.system, median, min, max })
        })
        .collect();
    let svg = plot::bars(&bars)?;
    Ok(html! {
        figure {
            figcaption { (first.metric) " (" (first.unit) ")" }
            (PreEscaped(svg))
        }
        table {
            tr {
                th { "case" } th { "system" } th { "median" } th { "min" } th { "max" } th { "runs" } th { "cores" } th { "CPU-ns/op" }
            }
            @for row in rows {
                tr {
                    td { (row.case) } td { (row.system) }
                    @for value in [row.median, row.min, row.max] { td.number { (number(value)) } }
                    td.number { (row.runs) }
                    @for value in [row.cores_used, row.cpu_ns_per_op] { td.number { (number(value)) } }
                }
            }
        }
    })
}

/// A number with about four significant digits, which is more than the precision of a noisy machine.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) => match value.abs() {
            n if n >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
            n if n >= 100.0 => format!("{value:.1}"),
            n if n >= 10.0 => format!("{value:.2}"),
            _ => format!("{value:.3}"),
        },
    }
}
