//! Prints reports as tables or as JSON.

use crate::ask::report;
use control::Report;
use serde_json::{Value, json};
use service::report::text;
use std::io::{ErrorKind, Write};
use std::path::Path;
use terminal_size::{Width, terminal_size_of};

/// Replaces characters that would control a terminal or are invisible by their JSON escapes, except newlines and tabs.
fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if !text::is_hidden(c) || matches!(c, '\n' | '\t') {
            shown.push(c);
            continue;
        }
        let units =
            c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
        shown.push_str(&units);
    }
    shown
}

/// Prints text, which may contain strings from other users' programs. It is no error if the reader has closed the pipe (`| head`).
pub fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{}", harmless(text)) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

/// The number of the shape of all JSON reports. It rises when a key goes or changes its meaning; new keys come without.
const SCHEMA: u32 = 1;

/// Prints a report as JSON, with the number of its shape. Its values are null where they are unknown.
pub fn print_json(mut report: Value) -> anyhow::Result<()> {
    if let Some(report) = report.as_object_mut() {
        report.insert("schema".to_owned(), json!(SCHEMA));
    }
    print(&serde_json::to_string_pretty(&report)?)
}

/// Prints a report as JSON, or as `text` tells it.
pub fn print_report(report: Value, json: bool, text: impl FnOnce(&Value) -> String) -> anyhow::Result<()> {
    if json { print_json(report) } else { print(&text(&report)) }
}

/// Columns of a terminal that is not there, as of the oldest ones: a pipe gets no longer lines than a narrow terminal.
const COLUMNS: usize = 80;

/// The most columns of a line: what the variable COLUMNS says, else the terminal's, else 80.
pub fn width() -> usize {
    let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|n| *n > 0);
    let of_terminal = || terminal_size_of(std::io::stdout()).map(|(Width(columns), _)| columns.into());
    named.or_else(of_terminal).unwrap_or(COLUMNS)
}

/// The text with lines of at most `width` columns, as far as its words are no longer. What follows of a line stands two columns further in, behind an
/// arrow three.
pub fn wrapped(text: &str, width: usize) -> String {
    let lines = text.lines().map(|line| {
        let content = line.trim_start();
        let indent = line.len() - content.len() + if content.starts_with("-> ") { 3 } else { 2 };
        flow(&line[..line.len() - content.len()], content.split(' '), " ", indent, width)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Words in lines of at most `width` columns. The first line begins with `start`, the others with `indent` spaces.
fn flow<'a>(
    start: &str,
    words: impl IntoIterator<Item = impl AsRef<str> + 'a>,
    gap: &str,
    indent: usize,
    width: usize,
) -> String {
    let mut text = start.to_owned();
    let (mut used, mut is_first) = (start.chars().count(), true);
    for word in words {
        let word = word.as_ref();
        let len = word.chars().count();
        if !is_first && used + gap.len() + len > width {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            used = indent;
        } else if !is_first {
            text.push_str(gap);
            used += gap.len();
        }
        text.push_str(word);
        used += len;
        is_first = false;
    }
    text
}

/// A table of at most `width` columns. Columns that do not fit stand below each row, with their heads, without those that are a dash.
pub fn fold(
    heads: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    width: usize,
    has_header: bool,
) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let wide = |c: usize| {
        let cells = rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count());
        cells.chain([heads[c].len()]).max().unwrap_or(0)
    };
    let mut used = 0;
    let fits = |c: &usize| {
        used += wide(*c) + if *c > 0 { 2 } else { 0 };
        used <= width
    };
    let beside = (0..heads.len()).take_while(fits).count().max(1);
    let above: Vec<Vec<String>> = std::iter::once(heads.iter().map(|head| (*head).to_owned()).collect())
        .chain(rows.iter().cloned())
        .map(|mut row: Vec<String>| {
            row.truncate(beside);
            row
        })
        .collect();
    let text = align(&above);
    let mut lines: Vec<String> = Vec::new();
    for (i, line) in text.lines().enumerate().skip(usize::from(!has_header)) {
        lines.push(line.to_owned());
        let rest = i
            .checked_sub(1)
            .and_then(|row| rows.get(row))
            .map_or(&[][..], |row| &row[beside.min(row.len())..]);
        let pairs = rest.iter().zip(&heads[beside..]).filter(|(cell, _)| *cell != "-");
        let pairs: Vec<String> = pairs.map(|(cell, head)| format!("{head} {cell}")).collect();
        if !pairs.is_empty() {
            lines.push(flow("    ", pairs, "  ", 4, width));
        }
    }
    lines.join("\n")
}

/// The elements of a list in a report; none where it has no such list.
pub fn rows_of<'a>(all: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    all[key].as_array().into_iter().flatten()
}

/// A value as a cell of a table: text without quotes; `-` where it is not known.
pub fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// The process of a row: its name, and its number if it is known.
pub fn process(row: &Value) -> String {
    format!("{} ({})", cell(&row["process"]), cell(&row["pid"]))
}

/// Aligns the columns of rows: each column is as wide as its widest cell.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell_width = |cell: &String| cell.chars().count();
    let widest = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(cell_width).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(widest).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A table with these heads.
pub fn table(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let heads = heads.iter().map(|head| (*head).to_owned()).collect();
    align(&std::iter::once(heads).chain(rows).collect::<Vec<_>>())
}

/// Prints a text, and wraps its lines at the width of the terminal.
fn tell(text: &str) -> anyhow::Result<()> {
    print(&wrapped(text, width()))
}

/// Prints the tables of `towpath stat`.
pub fn statistics(path: &Path, json: bool) -> anyhow::Result<()> {
    let all = report(path, Report::Statistics)?;
    if json {
        return print_json(all);
    }
    tell(&format!(
        "sockets accelerated {}, left to the kernel {}; applications {}, detached for misbehaviour {}",
        all["accelerated"], all["fallen_back"], all["applications"], all["detached"]
    ))?;
    for (reason, n) in all["by_reason"].as_object().into_iter().flatten() {
        tell(&format!("  {n:>8}  {reason}"))?;
    }
    if all["refused"] != 0 {
        tell(&format!("connects refused, for nobody listened there: {}", all["refused"]))?;
    }
    let traffic = &all["traffic"];
    if traffic["received_packets"] != 0 || traffic["sent_packets"] != 0 {
        tell(&format!(
            "port: {} packets in, {} out; {} bytes sent again",
            traffic["received_packets"], traffic["sent_packets"], traffic["retransmitted_bytes"]
        ))?;
    }
    if traffic["loss_ranges_joined"].as_u64().is_some_and(|n| n > 0) {
        tell(&format!(
            "  {:>8}  ranges of losses recorded together for lack of room",
            traffic["loss_ranges_joined"]
        ))?;
    }
    for (reason, n) in traffic["dropped"].as_object().into_iter().flatten() {
        tell(&format!("  {n:>8}  dropped: {reason}"))?;
    }
    if all["cores"].is_object() {
        tell(&crate::cores::totals(&all["cores"]))?;
    }
    if all["channels"].is_object() {
        tell(&crate::channels::totals(&all["channels"]))?;
    }
    if let Some(agents) = all["agents"].as_object() {
        let told: Vec<String> =
            agents.iter().map(|(name, n)| format!("{} {n}", name.replace('_', " "))).collect();
        tell(&format!("agents of congestion control: {}", told.join(", ")))?;
    }
    let heads =
        ["Pid", "Process", "User", "Alive", "Accelerated", "Connected", "Accepted", "Listeners", "Kernel"];
    let rows = rows_of(&all, "per_process").map(|p| {
        let keys = [
            "pid",
            "process",
            "uid",
            "alive",
            "accelerated",
            "connected",
            "accepted",
            "listeners",
            "fallen_back",
        ];
        keys.iter().map(|key| cell(&p[*key])).collect()
    });
    print(&fold(&heads, rows, width(), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_too_wide_goes_on_below_its_rows() {
        let rows = || {
            [["ESTAB", "127.0.0.1:80", "-", "pair"], ["LISTEN", "[::1]:80", "x", "y"]]
                .map(|row| row.map(String::from).to_vec())
        };
        let heads = ["State", "Local", "Core", "Kind"];
        assert_eq!(
            fold(&heads, rows(), 80, true),
            "State   Local         Core  Kind\nESTAB   127.0.0.1:80  -     pair\nLISTEN  [::1]:80      x     y"
        );
        let narrow =
            "State   Local\nESTAB   127.0.0.1:80\n    Kind pair\nLISTEN  [::1]:80\n    Core x  Kind y";
        assert_eq!(fold(&heads, rows(), 22, true), narrow);
        assert_eq!(fold(&heads, rows(), 22, false), narrow.split_once('\n').unwrap().1);
        assert_eq!(fold(&heads, [], 80, true), "State  Local  Core  Kind");
        for width in 21..60 {
            assert!(fold(&heads, rows(), width, true).lines().all(|line| line.len() <= width), "{width}");
        }
    }

    #[test]
    fn long_lines_are_wrapped_further_in() {
        let text = "redis (1): 2 accelerated\n  limited by its program: 14 kB wait to be read\n    -> read sooner, or more at once";
        let wrapped = wrapped(text, 30);
        assert_eq!(
            wrapped,
            "redis (1): 2 accelerated\n  limited by its program: 14\n    kB wait to be read\n    -> read sooner, or more at\n       once"
        );
        assert_eq!(super::wrapped(text, 80), text);
        assert_eq!(super::wrapped("a-word-that-is-too-long b", 5), "a-word-that-is-too-long\n  b");
    }

    #[test]
    fn nothing_that_a_program_has_said_moves_the_cursor_or_turns_the_text_around() {
        assert_eq!(harmless("a\tb\nc ü"), "a\tb\nc ü");
        assert_eq!(harmless("\u{1b}[2J\u{202e}\r\u{e0041}"), "\\u001b[2J\\u202e\\u000d\\udb40\\udc41");
        let json = serde_json::to_string("evil\u{202e}\u{e0041}").unwrap();
        assert_eq!(serde_json::from_str::<String>(&harmless(&json)).unwrap(), "evil\u{202e}\u{e0041}");
    }
}
