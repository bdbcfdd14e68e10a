//! `towpath cores`: which cores serve flows, which groups of flows they have, what has moved and why; and how many cores are to serve.

use crate::Where;
use crate::ask::report;
use crate::table::{cell, print_report, rows_of, table};
use clap::Args;
use control::{CoresWish, Report};
use serde_json::Value;
use std::str::FromStr;

pub const HELP: &str = "Examples:\n  \
towpath cores                cores, groups of flows, moves, and why\n  \
towpath cores --set 2        two cores serve flows from now on; more than `towpath up --cores` has made are refused\n  \
towpath cores --set auto     as many as the load needs\n\n\
Flows stay connected while they move. The number of threads is fixed when the service starts (`towpath up --cores`): those\n\
that serve no flows sleep.";

#[derive(Debug, Args)]
pub struct Cores {
    #[command(flatten)]
    place: Where,
    /// How many cores serve flows from now on: a number, or auto
    #[arg(long, value_name = "N|auto")]
    set: Option<Wish>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The value of `--set`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wish(CoresWish);

impl FromStr for Wish {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Self(CoresWish::Auto)),
            Ok(cores) if cores > 0 => Ok(Self(CoresWish::Fixed(cores))),
            _ => Err(format!("`{text}` is neither a number of cores nor auto")),
        }
    }
}

impl Cores {
    pub fn execute(self) -> anyhow::Result<()> {
        let wish = self.set.map_or(CoresWish::AsItIs, |wish| wish.0);
        print_report(report(&self.place.path(), Report::Cores(wish))?, self.json, text)
    }
}

/// The sums in one line, for `towpath stat` too.
pub fn totals(all: &Value) -> String {
    let how = if all["is_auto"] == true { "as the load needs" } else { "fixed" };
    let mut line = format!(
        "{} of {} cores serve flows ({how}); {} moves of {} groups of flows, {} given up, {} left",
        all["serving"],
        all["most"],
        all["moves"],
        all["groups_moved"],
        all["moves_given_up"],
        all["moves_left"]
    );
    if let Some(hold) = all["hold"].as_str() {
        line += &format!("\nthe cores are busy and get no help: {hold}");
    }
    line
}

fn text(all: &Value) -> String {
    let heads =
        ["Core", "Serves", "Groups", "Flows", "Busy", "Packets", "Sent", "Moved in", "Moved out", "Lost"];
    let rows = rows_of(all, "cores").map(|core| {
        let busy = format!("{:.1}s", core["busy_ms"].as_f64().unwrap_or(0.0) / 1000.0);
        let serves = match (core["answers"] == true, core["serves"] == true) {
            (false, _) => "does not answer",
            (true, true) => "yes",
            (true, false) => "sleeps",
        };
        let mut row =
            vec![cell(&core["core"]), serves.to_owned(), cell(&core["groups"]), cell(&core["flows"]), busy];
        row.extend(["packets", "segments_out", "moved_in", "moved_out", "lost"].map(|key| cell(&core[key])));
        row
    });
    let mut parts = vec![
        format!("{}\npackets come to cores by {}", totals(all), all["steering"].as_str().unwrap_or("-")),
        table(&heads, rows),
    ];
    let changes: Vec<Vec<String>> = rows_of(all, "changes")
        .map(|change| {
            let ago = format!("{:.1}s ago", change["ago_ms"].as_f64().unwrap_or(0.0) / 1000.0);
            vec![ago, format!("{} cores", change["cores"]), cell(&change["because"])]
        })
        .collect();
    if !changes.is_empty() {
        parts.push(table(&["When", "Then", "Because"], changes));
    }
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_number_of_cores_is_one_at_least() {
        let wish = |text: &str| text.parse::<Wish>().ok().map(|wish| wish.0);
        assert_eq!((wish("auto"), wish("3")), (Some(CoresWish::Auto), Some(CoresWish::Fixed(3))));
        assert_eq!((wish("0"), wish("two"), wish("300")), (None, None, None));
    }

    #[test]
    fn the_text_says_what_serves_and_why() {
        let core = |core, serves, answers| {
            json!({ "core": core, "serves": serves, "answers": answers, "groups": 128, "flows": 3, "busy_ms": 1500,
            "packets": 10, "segments_out": 11, "moved_in": 3, "moved_out": 0, "lost": 0 })
        };
        let all = json!({ "serving": 1, "most": 2, "is_auto": true, "moves": 2, "groups_moved": 128, "moves_given_up": 0,
            "moves_left": 1, "hold": "no processor is idle", "steering": "a program of the TAP",
            "cores": [core(0, true, true), core(1, false, true), core(2, true, false)],
            "changes": [{ "ago_ms": 2500, "cores": 1, "because": "more than 1.25 cores were idle" }] });
        let text = text(&all);
        for part in [
            "1 of 2 cores serve flows (as the load needs); 2 moves of 128 groups of flows, 0 given up, 1 left",
            "the cores are busy and get no help: no processor is idle",
            "packets come to cores by a program of the TAP",
            "1     sleeps",
            "2     does not answer",
            "2.5s ago  1 cores  more than 1.25 cores were idle",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
    }
}
