//! The limits that the numbers of `sockets` must keep, and the check whether they do.

use super::ready::{IDLE, case};
use crate::bars::{self, Bar, Limit, Measure};
use crate::table::number;
use crate::{Report, Row};

const BARS: &[Bar] = &[
    Bar {
        cases: "sockets/wake/",
        metric: "wake",
        measure: Measure::Over("eventfd"),
        limit: Limit::Most(2.0),
    },
    Bar {
        cases: "sockets/blocked/",
        metric: "processor time",
        measure: Measure::Alone,
        limit: Limit::Most(0.1),
    },
    Bar {
        cases: "sockets/epoll/same/idle10000",
        metric: "epoll_wait",
        measure: Measure::Over("kernel"),
        limit: Limit::Most(1.0),
    },
    Bar {
        cases: "sockets/epoll/news/idle10000",
        metric: "epoll_wait",
        measure: Measure::Over("kernel"),
        limit: Limit::Most(1.0),
    },
    Bar {
        cases: "sockets/cycle/socket+close",
        metric: "time",
        measure: Measure::Over("kernel"),
        limit: Limit::Most(2.0),
    },
    Bar {
        cases: "sockets/fork/n1000",
        metric: "back in the parent",
        measure: Measure::Over("kernel"),
        limit: Limit::Most(2.0),
    },
    Bar {
        cases: "sockets/fork/n1000",
        metric: "back in the child",
        measure: Measure::Over("kernel"),
        limit: Limit::Most(2.0),
    },
    Bar {
        cases: "sockets/memory/unconnected",
        metric: "own",
        measure: Measure::Alone,
        limit: Limit::Most(128.0),
    },
    Bar {
        cases: "sockets/memory/connected",
        metric: "own",
        measure: Measure::Alone,
        limit: Limit::Most(128.0),
    },
    Bar {
        cases: "sockets/memory/accepted",
        metric: "own",
        measure: Measure::Alone,
        limit: Limit::Most(128.0),
    },
];

/// Cost must grow with the number of ready sockets only; 100 times as many idle sockets may cost this factor, because caches are finite.
const GROWTH_MOST: f64 = 1.5;

/// Adds a text to the report for each bar and for the growth of cost with idle connections.
pub fn judge(report: &mut Report) {
    bars::judge(report, "towpath", BARS);
    if let Some(growth) = growth(report, "towpath") {
        let kernel = growth_text(report);
        let text =
            format!("sockets/epoll/same: 10,000 idle cost {} times what 100 do{kernel}", number(growth));
        bars::tell(report, text, growth, Limit::Most(GROWTH_MOST));
    }
}

/// The time of a call with the most idle connections over the time with the fewest.
fn growth(report: &Report, system: &str) -> Option<f64> {
    let [few, .., many] = IDLE.map(|idle| {
        let is_it = |r: &&Row| r.case == case("same", idle) && r.system == system;
        report.rows.iter().find(is_it).map(|r| r.median)
    });
    Some(many? / few?)
}

fn growth_text(report: &Report) -> String {
    growth(report, "kernel").map_or_else(String::new, |growth| format!(" (on the kernel {})", number(growth)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Samples;

    fn judged(us: f64, percent: f64, many: f64) -> Report {
        let mut samples = Samples::default();
        for (system, value) in [("towpath", us), ("eventfd", 10.0), ("kernel", 10.0)] {
            samples.add("sockets/wake/one-core/recv", system, "wake", "us", value);
        }
        samples.add("sockets/blocked/recv", "towpath", "processor time", "% of a core", percent);
        samples.add("sockets/blocked/recv", "service", "processor time", "% of a core", 50.0);
        for (idle, us) in IDLE.into_iter().zip([1.0, 1.0, many]) {
            samples.add(&case("same", idle), "towpath", "epoll_wait", "us", us);
            samples.add(&case("same", idle), "kernel", "epoll_wait", "us", 2.0);
        }
        let mut report = Report::new("sockets");
        report.rows = samples.rows();
        report.ratios = samples.ratios("towpath", &["eventfd", "kernel"]);
        judge(&mut report);
        report
    }

    #[test]
    fn a_bar_is_reached_or_fails_the_run() {
        let report = judged(20.0, 0.1, 1.2);
        let reached = |text: &str| report.notes.iter().any(|n| n.starts_with("reached") && n.contains(text));
        assert!(
            reached("wake/one-core") && reached("blocked/recv") && reached("idle10000"),
            "{:?}",
            report.notes
        );
        assert!(reached("sockets/epoll/same: 10,000 idle"));
        for (bad, word) in [
            (judged(20.1, 0.0, 1.0), "wake"),
            (judged(1.0, 0.11, 1.0), "blocked"),
            (judged(1.0, 0.0, 1.6), "10,000 idle"),
        ] {
            let hit: Vec<_> = bad.failures.iter().filter(|f| f.starts_with("not reached")).collect();
            assert!(hit.len() == 1 && hit[0].contains(word), "{hit:?}");
        }
    }

    #[test]
    fn what_was_not_measured_is_not_reached() {
        let missing =
            |report: &Report| report.failures.iter().filter(|f| f.contains("nothing to hold")).count();
        assert_eq!(missing(&judged(1.0, 0.0, 1.0)), BARS.len() - 3);
    }
}
