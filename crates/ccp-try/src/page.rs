//! The page of a trial: one HTML text with its styles and plots, which follows the reader's choice of light or dark.

use crate::plot::{self, Curve};
use crate::race::{Flow, Race, Sample};
use crate::text::{Row, bound_line, queue_line, reports_of};
use crate::trial::Outcome;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("page.css");
/// Flows of a run with curves of their own; more would hide each other.
const DRAWN_MAX: usize = 12;
/// Lines of agents' logs at most.
const LOG_MAX: usize = 200;

/// A plot: its caption, and the value of a flow at a look.
type Plot = (&'static str, fn(&Sample) -> f64);

const PLOTS: [Plot; 3] = [
    ("Window (KB)", |sample| f64::from(sample.cwnd) / 1e3),
    ("Rate of the pacer (Mbit/s; 0: not paced)", |sample| sample.rate as f64 * 8.0 / 1e6),
    ("Smoothed round-trip time (ms)", |sample| f64::from(sample.rtt_us) / 1e3),
];

impl Outcome {
    /// The page as HTML.
    ///
    /// # Errors
    /// When a plot cannot be drawn.
    pub fn page(&self) -> Result<String, String> {
        let sections: Vec<Markup> = self.races.iter().map(section).collect::<Result<_, _>>()?;
        let title = format!("Towpath: {}", self.trial.contestant.name);
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (title) }
                    p { (self.heading()) }
                    @for section in &sections { (section) }
                }
            }
        };
        Ok(page.into_string())
    }
}

fn section(race: &Race) -> Result<Markup, String> {
    let seconds = race.setting.time.as_ns() as f64 / 1e9;
    let mut figures: Vec<(&str, String)> = Vec::new();
    let mut draw = |caption, curves: Vec<Curve>| -> Result<(), String> {
        figures.push((caption, plot::curves(&curves, seconds)?));
        Ok(())
    };
    let drawn: Vec<&Flow> = race.flows.iter().take(DRAWN_MAX).collect();
    let curve = |(i, _): (usize, &&Flow), values: Vec<f64>| {
        let points = (1..).map(|look| f64::from(look) * race.every.as_ns() as f64 / 1e9).zip(values);
        Curve { colour: i, points: points.collect() }
    };
    let throughput = drawn
        .iter()
        .enumerate()
        .map(|it| curve(it, race.throughput_curve(it.1).map(|bits| bits / 1e6).collect()));
    draw("Throughput (Mbit/s)", throughput.collect())?;
    for (caption, value) in PLOTS {
        let of_flow = |it: (usize, &&Flow)| curve(it, it.1.samples.iter().map(value).collect());
        draw(caption, drawn.iter().enumerate().map(of_flow).collect())?;
    }
    let queue = (1..).map(|look| f64::from(look) * race.every.as_ns() as f64 / 1e9);
    let points = queue.zip(race.queue.iter().map(|packets| *packets as f64)).collect();
    draw("Queue of the bottleneck (packets)", vec![Curve { colour: 5, points }])?;
    Ok(html! {
        section {
            h2 { (race.title()) }
            (table(race))
            p { (queue_line(race)) }
            p { (bound_line(race)) }
            @if race.flows.len() > DRAWN_MAX {
                p { "Curves of the first " (DRAWN_MAX) " flows of " (race.flows.len()) "." }
            }
            @for (caption, svg) in &figures { figure { figcaption { (caption) } (PreEscaped(svg)) } }
            @if !race.events.is_empty() { (log(race)) }
        }
    })
}

fn table(race: &Race) -> Markup {
    html! {
        table {
            tr { th {} @for head in Row::HEADS { th { (head) } } }
            @for (i, flow) in race.flows.iter().enumerate() {
                @let row = Row::of(race, flow);
                tr {
                    td style={ "color:" (plot::colour(i)) } { (if i < DRAWN_MAX { "\u{25A0}" } else { "" }) }
                    @for (i, cell) in row.cells.iter().enumerate() { td.number[i > 0] { (cell) } }
                }
            }
        }
    }
}

fn log(race: &Race) -> Markup {
    let lines: Vec<String> = race.events.iter().take(LOG_MAX).map(|(_, event)| event.to_string()).collect();
    html! {
        details {
            summary { "Log of the agents: " (reports_of(race)) }
            pre { (lines.join("\n")) }
        }
    }
}
