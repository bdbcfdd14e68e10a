//! One Markdown page from results of `towpath bench NAME --json`.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;

const ROW_COLUMNS: [&str; 10] =
    ["case", "system", "metric", "unit", "median", "min", "max", "runs", "cores_used", "cpu_ns_per_op"];
const RATIO_COLUMNS: [&str; 4] = ["case", "metric", "over", "median"];

/// Prints the page for these files on standard output.
pub fn print(files: &[&str]) -> anyhow::Result<ExitCode> {
    let mut page = String::from("# Measurements\n");
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        let result = serde_json::from_str(&text).with_context(|| format!("{file} is not JSON"))?;
        page.push_str(&section(&result).with_context(|| format!("{file} is not a result of towpath bench"))?);
    }
    print!("{page}");
    Ok(ExitCode::SUCCESS)
}

/// One result: its name, the machine, the ratios first, then the rows.
pub fn section(result: &Value) -> anyhow::Result<String> {
    let name = result.get("name").and_then(Value::as_str).context("no name")?;
    let mut out = format!("\n## {name}\n\n`towpath bench {name} --json`");
    if let Some(machine) = result.get("machine") {
        write!(out, ", on {}", cell(machine))?;
    }
    out.push_str(".\n");
    for (key, columns) in [("ratios", RATIO_COLUMNS.as_slice()), ("rows", ROW_COLUMNS.as_slice())] {
        let rows = result.get(key).and_then(Value::as_array).with_context(|| format!("no {key}"))?;
        if !rows.is_empty() {
            out.push('\n');
            out.push_str(&table(columns, rows));
        }
    }
    Ok(out)
}

fn table(columns: &[&str], rows: &[Value]) -> String {
    let mut out = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        let cells: Vec<String> =
            columns.iter().map(|column| row.get(column).map_or_else(String::new, cell)).collect();
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    out
}

/// Four significant digits are more than a noisy machine has.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.replace('|', "\\|"),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), shorten),
        Value::Object(fields) => {
            let pairs: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key} {}", cell(value))).collect();
            pairs.join(", ")
        }
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Bool(flag) => flag.to_string(),
    }
}

fn shorten(number: f64) -> String {
    match number.abs() {
        n if n >= 1000.0 || number.fract() == 0.0 => format!("{number:.0}"),
        n if n >= 100.0 => format!("{number:.1}"),
        n if n >= 10.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}
