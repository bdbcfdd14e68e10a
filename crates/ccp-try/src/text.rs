//! A trial in words and numbers: tables for a terminal, and JSON.

use crate::race::{Flow, Race};
use crate::trial::Outcome;
use ccp_agent::{Event, What};
use serde_json::{Value, json};

/// A flow's numbers as people read them.
#[derive(Clone, Debug)]
pub struct Row {
    pub cells: [String; 7],
}

impl Row {
    pub const HEADS: [&str; 7] = ["flow", "Mbit/s", "RTT ms", "95 % ms", "window KB", "again KB", "timeouts"];

    pub fn of(race: &Race, flow: &Flow) -> Self {
        let figures = race.flow_figures(flow);
        Self {
            cells: [
                flow.name.clone(),
                format!("{:.2}", figures.throughput / 1e6),
                format!("{:.1}", figures.rtt_mean_ms),
                format!("{:.1}", figures.rtt_p95_ms),
                format!("{:.1}", figures.cwnd_mean / 1e3),
                format!("{:.1}", flow.sent_again as f64 / 1e3),
                flow.timeouts.to_string(),
            ],
        }
    }
}

/// Queue, losses, fullness and fairness of a run in one line.
pub fn queue_line(race: &Race) -> String {
    let queue = race.queue_figures();
    let mut line = format!(
        "queue {:.1} packets on average, 95 % of the time below {}; {} dropped, {} marked",
        queue.mean, queue.p95, race.dropped, race.marked
    );
    if let Some(share) = race.utilisation() {
        line.push_str(&format!("; payload fills {:.1} % of the link", share * 100.0));
    }
    line.push_str(&format!("; Jain's index {:.3}", race.jain()));
    line
}

/// How often the receiver's window, and no algorithm, decided.
pub fn bound_line(race: &Race) -> String {
    let kib = race.setting.buffer() >> 10;
    format!("bounded by the receiver {:.1} % of the time, with buffers of {kib} KiB", race.bounded() * 100.0)
}

/// How many reports came, and which handlers failed.
pub fn reports_of(race: &Race) -> String {
    let count = |is_it: fn(&Event) -> bool| race.events.iter().filter(|(_, event)| is_it(event)).count();
    let failed = count(|event| matches!(event.what, What::Failed { .. }));
    let programs = count(|event| matches!(event.what, What::Program { .. }));
    let kept = race.events.len();
    format!("{kept} lines kept, {} not; programs given {programs} times, {failed} failures", race.events_lost)
}

impl Race {
    /// Each handler that failed, with its flow and the reason.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        self.events.iter().filter_map(|(_, event)| {
            let What::Failed { algorithm, handler, why } = &event.what else { return None };
            let flow = event.flow.map_or_else(String::new, |flow| flow.to_string());
            let why = why.trim_end().replace('\n', "\n    ");
            Some(format!("{handler} of `{algorithm}` failed for flow {flow}, which goes on with Reno in the datapath:\n    {why}"))
        })
    }

    fn table(&self) -> String {
        let mut rows = vec![Row::HEADS.map(str::to_owned)];
        rows.extend(self.flows.iter().map(|flow| Row::of(self, flow).cells));
        let widths: Vec<usize> = (0..rows[0].len())
            .map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0))
            .collect();
        let line = |row: &[String; 7]| {
            let numbers = row.iter().zip(&widths).skip(1).map(|(cell, width)| format!("{cell:>width$}"));
            let name = format!("  {:<width$}", row[0], width = widths[0]);
            std::iter::once(name).chain(numbers).collect::<Vec<_>>().join("  ")
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn json(&self) -> Value {
        let flows: Vec<Value> = self.flows.iter().map(|flow| self.flow_json(flow)).collect();
        let queue = self.queue_figures();
        json!({
            "title": self.title(), "flows": flows, "jain": self.jain(), "utilisation": self.utilisation(),
            "queue": { "mean": queue.mean, "p95": queue.p95, "packets": self.queue },
            "dropped": self.dropped, "marked": self.marked,
            "bounded": self.bounded(), "buffer": self.setting.buffer(),
            "look_every_us": self.every.as_us(),
            "log": self.events.iter().map(|(_, event)| event.to_string()).collect::<Vec<_>>(),
        })
    }

    fn flow_json(&self, flow: &Flow) -> Value {
        let figures = self.flow_figures(flow);
        let of = |value: fn(&crate::race::Sample) -> u64| flow.samples.iter().map(value).collect::<Vec<_>>();
        json!({
            "name": flow.name, "began_us": flow.began.as_us(),
            "throughput": figures.throughput, "rtt_mean_ms": figures.rtt_mean_ms, "rtt_p95_ms": figures.rtt_p95_ms,
            "cwnd_mean": figures.cwnd_mean, "bounded": figures.bounded,
            "sent_again": flow.sent_again, "timeouts": flow.timeouts,
            "cwnd": of(|sample| u64::from(sample.cwnd)), "rate": of(|sample| sample.rate),
            "rtt_us": of(|sample| u64::from(sample.rtt_us)), "received": of(|sample| sample.received),
        })
    }
}

impl Outcome {
    /// What was run, in one line.
    #[must_use]
    pub fn heading(&self) -> String {
        let trial = &self.trial;
        let flows = if trial.flows == 1 { "1 flow".to_owned() } else { format!("{} flows", trial.flows) };
        format!(
            "{}; {flows} each, {} s of virtual time, agents {} us away, seed {}",
            trial.path,
            trial.time.as_us() as f64 / 1e6,
            trial.staleness.as_us(),
            trial.seed
        )
    }

    /// The numbers as text for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![self.heading()];
        for race in &self.races {
            let (queue, bound) = (queue_line(race), bound_line(race));
            lines.push(format!("\n{}\n{}\n  {queue}\n  {bound}", race.title(), race.table()));
            lines.extend(race.failures().map(|failure| format!("  {failure}")));
        }
        lines.join("\n")
    }

    /// The numbers and all that was seen.
    #[must_use]
    pub fn json(&self) -> Value {
        let trial = &self.trial;
        json!({
            "link": trial.path.link.to_string(), "rtt_us": trial.path.rtt.as_us(), "flows": trial.flows,
            "seconds": trial.time.as_us() as f64 / 1e6, "staleness_us": trial.staleness.as_us(), "seed": trial.seed,
            "races": self.races.iter().map(Race::json).collect::<Vec<_>>(),
        })
    }
}
