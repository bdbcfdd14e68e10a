//! Limits that measured numbers must keep, and the check whether they do.

use crate::table::number;
use crate::{Ratio, Report};
use std::fmt;

/// The number that is compared with a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// The ratio of the system's number to that of another system (named here).
    Over(&'static str),
    /// As [`Over`](Self::Over); if that ratio misses the limit, the ratio to a floor (the second name) counts: at most [`OF_FLOOR`].
    OverOrFloor(&'static str, &'static str),
    /// The system's number itself.
    Alone,
}

/// The limit of a measure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    /// The number must be at most this.
    Most(f64),
    /// The number must be at least this.
    Least(f64),
}

impl Limit {
    /// The limit of the ratio to a floor, in the same direction as this limit.
    fn of_floor(self) -> Self {
        match self {
            Self::Most(_) => Self::Most(OF_FLOOR),
            Self::Least(_) => Self::Least(1.0 / OF_FLOOR),
        }
    }

    /// True if the value keeps the limit.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::Most(limit) => value <= limit,
            Self::Least(limit) => value >= limit,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Most(limit) => write!(f, "at most {}", number(*limit)),
            Self::Least(limit) => write!(f, "at least {}", number(*limit)),
        }
    }
}

/// A requirement on one metric of one case or of several.
pub struct Bar {
    /// The path of a case; with a slash at its end, all cases below it.
    pub cases: &'static str,
    pub metric: &'static str,
    pub measure: Measure,
    pub limit: Limit,
}

/// The largest ratio of a number to its floor that still counts as reached.
pub const OF_FLOOR: f64 = 1.3;

/// Adds a text to the report for each case of each bar: to the notes if `system` keeps the limit, to the failures if it does not or was not
/// measured.
pub fn judge(report: &mut Report, system: &str, bars: &[Bar]) {
    for bar in bars {
        let found = bar.found(report, system);
        if found.is_empty() {
            report.failures.push(format!("{}: {}: nothing to hold against the bar", bar.cases, bar.metric));
        }
        for (case, value) in found {
            let text = format!("{case}: {}", bar.measured(value));
            match bar.measure {
                Measure::OverOrFloor(_, floor) if !bar.limit.holds(value) => {
                    let is_it = |r: &&Ratio| r.case == case && r.metric == bar.metric && r.over == floor;
                    let of_floor = report.ratios.iter().find(is_it).map_or(f64::NAN, |r| r.median);
                    let text = format!("{text} ({}), {} times the {floor}'s", bar.limit, number(of_floor));
                    tell(report, text, of_floor, bar.limit.of_floor());
                }
                _ => tell(report, text, value, bar.limit),
            }
        }
    }
}

/// As [`judge`] for bars that are alternatives to each other, all of the same cases and metric: a case has reached them if it keeps the limit
/// of one of them.
pub fn judge_any(report: &mut Report, system: &str, bars: &[Bar]) {
    let Some(first) = bars.first() else { return };
    let found: Vec<Vec<(String, f64)>> = bars.iter().map(|bar| bar.found(report, system)).collect();
    let mut cases: Vec<&String> = found.iter().flatten().map(|(case, _)| case).collect();
    cases.sort_unstable();
    cases.dedup();
    if cases.is_empty() {
        report.failures.push(format!("{}: {}: nothing to hold against the bar", first.cases, first.metric));
    }
    for case in cases {
        let (mut texts, mut is_reached) = (Vec::new(), false);
        for (bar, found) in bars.iter().zip(&found) {
            let Some((_, value)) = found.iter().find(|(of, _)| of == case) else { continue };
            texts.push(format!("{} ({})", bar.measured(*value), bar.limit));
            is_reached |= bar.limit.holds(*value);
        }
        let text = format!("{case}: {}", texts.join(", or "));
        match is_reached {
            true => report.notes.push(format!("reached: {text}")),
            false => report.failures.push(format!("not reached: {text}")),
        }
    }
}

/// Adds one text to the notes if `value` keeps the limit, otherwise to the failures.
pub fn tell(report: &mut Report, text: String, value: f64, limit: Limit) {
    if limit.holds(value) {
        report.notes.push(format!("reached: {text}, {limit}"));
    } else {
        report.failures.push(format!("not reached: {text}, {limit}"));
    }
}

impl Bar {
    /// The measured number as text.
    fn measured(&self, value: f64) -> String {
        let peer = match self.measure {
            Measure::Over(peer) | Measure::OverOrFloor(peer, _) => format!(" times the {peer}'s"),
            Measure::Alone => String::new(),
        };
        format!("{} {}{peer}", self.metric, number(value))
    }

    /// The cases to which this bar applies, each with its number.
    fn found(&self, report: &Report, system: &str) -> Vec<(String, f64)> {
        let is_under = |case: &str| self.cases.ends_with('/') && case.starts_with(self.cases);
        let is_meant =
            |case: &str, metric: &str| metric == self.metric && (case == self.cases || is_under(case));
        match self.measure {
            Measure::Over(peer) | Measure::OverOrFloor(peer, _) => {
                let ratios = report.ratios.iter().filter(|r| is_meant(&r.case, &r.metric) && r.over == peer);
                ratios.map(|r| (r.case.clone(), r.median)).collect()
            }
            Measure::Alone => {
                let rows = report.rows.iter().filter(|r| is_meant(&r.case, &r.metric) && r.system == system);
                rows.map(|r| (r.case.clone(), r.median)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Samples;

    #[test]
    fn bars_are_of_a_case_or_of_all_below_and_hold_their_limit() {
        let mut samples = Samples::default();
        for (case, rate) in [("short/rpcs1", 3.0), ("short/rpcs16", 1.0)] {
            samples.add(case, "towpath", "connections", "1/s", rate);
        }
        let judged = |cases, limit| {
            let mut report = Report::new("rpc");
            report.rows = samples.rows();
            judge(
                &mut report,
                "towpath",
                &[Bar { cases, metric: "connections", measure: Measure::Alone, limit }],
            );
            (report.notes.len(), report.failures.len())
        };
        assert_eq!(judged("short/rpcs1", Limit::Least(3.0)), (1, 0));
        assert_eq!(judged("short/rpcs1", Limit::Least(3.1)), (0, 1));
        assert_eq!(judged("short/", Limit::Most(2.0)), (1, 1));
        assert_eq!(judged("short/rpcs4", Limit::Most(2.0)), (0, 1));
    }

    #[test]
    fn one_of_several_limits_is_enough() {
        let judged = |us, of_kernel| {
            let mut samples = Samples::default();
            samples.add("isolation/out", "towpath", "p99", "us", us);
            let mut report = Report::new("isolation");
            report.rows = samples.rows();
            let ratio = |over: &str, median| Ratio {
                case: "isolation/out".to_owned(),
                metric: "p99".to_owned(),
                over: over.to_owned(),
                median,
                interval: None,
            };
            report.ratios = vec![ratio("kernel", of_kernel)];
            let bar = |measure, limit| Bar { cases: "isolation/", metric: "p99", measure, limit };
            let bars =
                [bar(Measure::Alone, Limit::Most(1000.0)), bar(Measure::Over("kernel"), Limit::Most(3.0))];
            judge_any(&mut report, "towpath", &bars);
            (report.notes, report.failures)
        };
        assert_eq!(
            judged(900.0, 4.0).0,
            ["reached: isolation/out: p99 900 (at most 1000), or p99 4 times the kernel's (at most 3)"]
        );
        assert_eq!(judged(2000.0, 2.5).1.len(), 0);
        assert_eq!(judged(2000.0, 3.5).0.len(), 0);
        assert_eq!(judged(2000.0, 3.5).1.len(), 1);
        let mut nothing = Report::new("isolation");
        let bar =
            Bar { cases: "isolation/", metric: "p99", measure: Measure::Alone, limit: Limit::Most(1.0) };
        judge_any(&mut nothing, "towpath", &[bar]);
        assert_eq!(nothing.failures, ["isolation/: p99: nothing to hold against the bar"]);
    }

    #[test]
    fn what_is_out_of_reach_is_held_against_its_floor() {
        let judged = |of_kernel, of_floor| {
            let mut report = Report::new("kv");
            let ratio = |over: &str, median| Ratio {
                case: "kv/waiting".to_owned(),
                metric: "p99".to_owned(),
                over: over.to_owned(),
                median,
                interval: None,
            };
            report.ratios = vec![ratio("kernel", of_kernel), ratio("timer", of_floor)];
            let measure = Measure::OverOrFloor("kernel", "timer");
            judge(
                &mut report,
                "towpath",
                &[Bar { cases: "kv/waiting", metric: "p99", measure, limit: Limit::Most(0.5) }],
            );
            (report.notes, report.failures)
        };
        assert_eq!(judged(0.4, 9.0).0, ["reached: kv/waiting: p99 0.400 times the kernel's, at most 0.500"]);
        assert_eq!(judged(0.6, 1.2).1.len(), 0);
        let missed = "not reached: kv/waiting: p99 0.600 times the kernel's (at most 0.500), 1.40 times the timer's, at most 1.30";
        assert_eq!(judged(0.6, 1.4).1, [missed]);
    }
}
