//! A report as text for the terminal: a table with a bar per row.

use crate::{Report, Row};
use std::fmt::Write as _;

/// The length of the longest bar in character cells.
const BAR_CELLS: usize = 20;

/// A number with its magnitude: `98.2 k`, `1.04 M`, `0.237`.
#[must_use]
pub fn number(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v >= 100.0 || (v.fract() == 0.0 && suffix.is_empty()) => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{scaled:.digits$}{suffix}")
}

/// A bar of eighths of cells for `share` (0 to 1).
#[must_use]
pub fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * (BAR_CELLS * 8) as f64).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// As [`number`]; `-` for `None`.
#[must_use]
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// The report for the terminal. Rows of one case and metric share the scale of their bars.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = format!(
        "{}  ({} cpus, {}, Linux {})\n",
        report.name, report.machine.cpus, report.machine.model, report.machine.kernel
    );
    let width = |f: fn(&Row) -> usize, least: usize| report.rows.iter().map(f).max().unwrap_or(0).max(least);
    let (case, system) = (width(|r| r.case.len(), 4), width(|r| r.system.len(), 6));
    let metric = width(|r| r.metric.len() + r.unit.len() + 1, 6);
    let head = ["median", "min", "max", "cores", "cpu ns/op"];
    let _ = write!(out, "{:<case$}  {:<metric$}  {:<system$}", "case", "metric", "system");
    for h in head {
        let _ = write!(out, " {h:>9}");
    }
    out.push('\n');
    let mut before: Option<&Row> = None;
    for row in &report.rows {
        let same = |other: &Row| other.case == row.case && other.metric == row.metric;
        let largest = report.rows.iter().filter(|r| same(r)).map(|r| r.median).fold(0.0, f64::max);
        let shown = if before.is_some_and(|b| b.case == row.case) { "" } else { &row.case };
        let what = format!("{} {}", row.metric, row.unit);
        let _ = writeln!(
            out,
            "{shown:<case$}  {what:<metric$}  {:<system$} {:>9} {:>9} {:>9} {:>9} {:>9}  {}",
            row.system,
            number(row.median),
            number(row.min),
            number(row.max),
            optional(row.cores_used),
            optional(row.cpu_ns_per_op),
            if largest > 0.0 { bar(row.median / largest) } else { String::new() },
        );
        before = Some(row);
    }
    for group in report.ratios_by_case() {
        let texts: Vec<String> = group.iter().map(|r| r.text("x")).collect();
        let _ = writeln!(out, "{:<case$}  over {}: {}", group[0].case, group[0].over, texts.join(", "));
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.2371, 5.0, 23.44, 9_876.0, 98_234.0, 1_043_000.0, 2.5e9].map(number);
        assert_eq!(shown, ["0.237", "5", "23.4", "9876", "98.2 k", "1.04 M", "2.50 G"]);
    }

    #[test]
    fn bars_are_proportional_and_bounded() {
        assert_eq!(bar(0.5).chars().count(), BAR_CELLS / 2);
        assert_eq!(bar(7.0).chars().count(), BAR_CELLS);
        assert_eq!((bar(0.0), bar(f64::NAN)), (String::new(), String::new()));
    }
}
