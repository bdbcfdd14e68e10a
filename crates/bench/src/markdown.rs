//! A report as Markdown, and its place in docs/evaluation.md.

use crate::table::{number, optional};
use crate::{Report, Row};
use anyhow::Context;
use std::fmt::Write as _;
use std::path::Path;

/// All metrics of one system in one case: a row of the table.
struct Line<'a> {
    case: &'a str,
    system: &'a str,
    rows: Vec<&'a Row>,
}

impl Line<'_> {
    /// The head of the table; rows with the same metrics share a table.
    fn head(&self) -> String {
        let mut head = String::from("| case | system |");
        let mut rule = String::from("|---|---|");
        for row in &self.rows {
            let _ = write!(head, " {} ({}) |", row.metric, row.unit);
            rule.push_str("--:|");
        }
        if self.has_cpu() {
            head.push_str(" cores | CPU-ns/op |");
            rule.push_str("--:|--:|");
        }
        format!("\n{head}\n{rule}\n")
    }

    fn has_cpu(&self) -> bool {
        self.rows.iter().any(|row| row.cpu_ns_per_op.is_some())
    }
}

/// The median, and the range if it is not empty.
fn cell(row: &Row) -> String {
    let (median, min, max) = (number(row.median), number(row.min), number(row.max));
    if min == max { median } else { format!("**{median}** ({min} to {max})") }
}

/// The whole report as Markdown.
#[must_use]
pub fn page(report: &Report) -> String {
    let machine = &report.machine;
    let runs = report.rows.iter().map(|row| row.runs).max().unwrap_or(0);
    let mut out = format!(
        "`towpath bench {}`, medians of {runs} interleaved runs, on {} cpus ({}), Linux {}.\n",
        report.name, machine.cpus, machine.model, machine.kernel
    );
    let mut head = String::new();
    for line in lines(report) {
        let own_head = line.head();
        if own_head != head {
            out.push_str(&own_head);
            head = own_head;
        }
        let _ = write!(out, "| {} | {} |", line.case, line.system);
        for row in &line.rows {
            let _ = write!(out, " {} |", cell(row));
        }
        if let Some(row) = line.rows.first().filter(|_| line.has_cpu()) {
            let _ = write!(out, " {} | {} |", optional(row.cores_used), optional(row.cpu_ns_per_op));
        }
        out.push('\n');
    }
    ratios(report, &mut out);
    if !(report.notes.is_empty() && report.failures.is_empty()) {
        out.push('\n');
    }
    for note in &report.notes {
        let _ = writeln!(out, "- {note}");
    }
    for failure in &report.failures {
        let _ = writeln!(out, "- **failed**: {failure}");
    }
    out
}

fn lines(report: &Report) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in &report.rows {
        match lines.iter_mut().find(|l| l.case == row.case && l.system == row.system) {
            Some(line) => line.rows.push(row),
            None => lines.push(Line { case: &row.case, system: &row.system, rows: vec![row] }),
        }
    }
    lines
}

/// Writes a row for each case and peer.
fn ratios(report: &Report, out: &mut String) {
    let groups = report.ratios_by_case();
    if !groups.is_empty() {
        out.push_str("\n| case | over | medians of the ratios of pairs of runs |\n|---|---|---|\n");
    }
    for group in groups {
        let texts: Vec<String> = group.iter().map(|r| r.text("")).collect();
        let _ = writeln!(out, "| {} | {} | {} |", group[0].case, group[0].over, texts.join(", "));
    }
}

/// Replaces the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` in the file.
///
/// # Errors
/// When the file cannot be read or written, or has no such markers.
pub fn put_into(report: &Report, file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let replaced = replace(&text, &report.name, &page(report))
        .with_context(|| format!("{} has no place for {}", file.display(), report.name))?;
    std::fs::write(file, replaced).with_context(|| format!("cannot write {}", file.display()))
}

fn replace(text: &str, name: &str, page: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{page}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Sample, Samples};

    fn report() -> Report {
        let mut samples = Samples::default();
        for (system, value) in [("towpath", 200_000.0), ("kernel", 100_000.0)] {
            let sample = Sample { value, cores: Some(1.5), cpu_ns: Some(4000.0) };
            samples.add("redis/get/c50/p1", system, "requests", "1/s", sample);
            samples.add("redis/get/c50/p1", system, "p50", "us", Sample { value: 100.0, ..sample });
        }
        let mut report = Report::new("redis");
        report.rows = samples.rows();
        report.ratios = samples.ratios("towpath", &["kernel"]);
        report
    }

    #[test]
    fn metrics_become_columns() {
        let page = page(&report());
        assert!(page.contains("| case | system | requests (1/s) | p50 (us) | cores | CPU-ns/op |"), "{page}");
        assert!(page.contains("| redis/get/c50/p1 | towpath | 200 k | 100 | 1.50 | 4000 |"), "{page}");
        assert!(page.contains("| redis/get/c50/p1 | kernel | requests 2.00, p50 1.00, cpu_ns_per_op 1.00 |"));
        assert_eq!(page.matches("| case | system |").count(), 1);
    }

    #[test]
    fn only_the_place_between_the_marks_changes() {
        let text = "a\n<!-- redis:begin -->\nold\n<!-- redis:end -->\nb\n";
        let new = replace(text, "redis", "new").unwrap();
        assert_eq!(new, "a\n<!-- redis:begin -->\nnew\n<!-- redis:end -->\nb\n");
        assert_eq!(replace(&new, "redis", "new").unwrap(), new);
        assert_eq!(replace(text, "idle", "new"), None);
    }
}
