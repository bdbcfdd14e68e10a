//! `towpath stat --cycles`: where threads spend their time.

use crate::ask::report;
use crate::table::{align, print, print_json};
use control::{Counting, Report};
use serde_json::Value;
use std::path::Path;

pub const HELP: &str = "Examples:
  towpath stat
  towpath stat --json | jq .accelerated
  towpath stat --cycles on       begin to count cycles, in a sixteenth of the time
  towpath stat --cycles          where they went so far
  towpath stat --cycles off      the same, and no more counting

What stands under a program's name is what that program's own library says.";

/// What is to become of counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Word {
    /// Only show where cycles went
    Show,
    /// Begin anew; count in windows of 20 ms, a sixteenth of the time
    On,
    /// Begin anew; count all the time, which costs a few percent
    Always,
    /// Show the counts, and end counting
    Off,
}

impl From<Word> for Counting {
    fn from(word: Word) -> Self {
        match word {
            Word::Show => Self::AsItIs,
            Word::On => Self::Sampled,
            Word::Always => Self::Always,
            Word::Off => Self::Off,
        }
    }
}

/// Sends the request to the service and prints its answer.
pub fn show(path: &Path, json: bool, word: Word) -> anyhow::Result<()> {
    let all = report(path, Report::Cycles(word.into()))?;
    if json {
        return print_json(all);
    }
    if all["counting"] == "off" {
        return print("cycles are not counted: `towpath stat --cycles on` begins");
    }
    if matches!(word, Word::On | Word::Always) {
        return print(&format!(
            "cycles are counted from now on ({}), in {}",
            said(&all["counting"]),
            counter(&all)
        ));
    }
    print(&head(&all))?;
    for thread in all["service"].as_array().into_iter().flatten() {
        let packets = match (thread["packets_in"].as_u64(), thread["packets_out"].as_u64()) {
            (Some(i), Some(o)) => format!(": {i} packets in, {o} out"),
            _ => String::new(),
        };
        let each = if packets.is_empty() { "each time" } else { "per packet" };
        print(&format!("\n{}{packets}", said(&thread["thread"])))?;
        print(&modules(&thread["modules"], each))?;
    }
    for process in all["applications"].as_array().into_iter().flatten() {
        let (who, threads) = (crate::table::process(process), &process["threads"]);
        print(&format!("\n{who}, as it says itself: {threads} threads that go on"))?;
        print(&modules(&process["modules"], "each time"))?;
    }
    Ok(())
}

fn said(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// The name of the counter that the numbers are from.
fn counter(all: &Value) -> &'static str {
    if all["unit"] == "cycles" {
        "cycles of the processor's time-stamp counter"
    } else {
        "nanoseconds of the system's clock: this processor's counter does not tick evenly"
    }
}

fn head(all: &Value) -> String {
    let (counted, rate) = (&all["counted"], all["ticks_per_second"].as_f64().unwrap_or(0.0));
    let ms = counted.as_f64().unwrap_or(0.0) / rate.max(1.0) * 1e3;
    let rate = if all["unit"] == "cycles" {
        format!(", {:.3} of them in a nanosecond", rate / 1e9)
    } else {
        String::new()
    };
    format!("counted ({}): {ms:.0} ms, in {}{rate}", said(&all["counting"]), counter(all))
}

fn modules(all: &Value, each: &str) -> String {
    let heads = ["Module", "Cycles", "Share", "Times", each];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for module in all.as_array().into_iter().flatten() {
        let number = |key: &str| module[key].as_u64().unwrap_or(0).to_string();
        let share = format!("{:.1} %", module["share"].as_f64().unwrap_or(0.0) * 100.0);
        let each = module["each"].as_f64().map_or_else(|| "-".to_owned(), |each| format!("{each:.0}"));
        rows.push(vec![
            format!("  {}", said(&module["module"])),
            number("cycles"),
            share,
            number("times"),
            each,
        ]);
    }
    align(&rows)
}
