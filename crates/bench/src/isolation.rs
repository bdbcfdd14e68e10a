//! The measurement `isolation`: small requests between two machines, alone and beside bulk flows of iperf3 between the same machines. The
//! client is a kernel, the server accelerated; the peers are two kernels over the same kind of link.

pub mod flows;
pub mod mixed;
pub mod pings;
pub mod turn;

use crate::bars::{self, Bar, Limit, Measure};
use crate::bulk;
use crate::launch::{Port, Service, TAP_ADDRESS};
use crate::redis::local::limit_cores;
use crate::samples::Samples;
use crate::served::{self, Host};
use crate::tap::link::{Kind, Link};
use crate::tap::namespace::{self, Namespace};
use crate::{Options, Report};
use flows::{Bulk, By, Direction};
use turn::Outcome;

const OURS: &str = "towpath";
/// Our own numbers without bulk flows, named like a system in ratios.
const ALONE: &str = "towpath-alone";
const PEERS: [&str; 3] = ["kernel-veth", "kernel-tap", ALONE];

/// Requests of one length on some connections at once, and the numbers of bulk flows beside them.
struct Shape {
    bytes: u32,
    connections: u32,
    beside: &'static [(u32, By)],
}

const SHAPES: [Shape; 4] = [
    Shape {
        bytes: 64,
        connections: 1,
        beside: &[(1, By::Iperf), (8, By::Iperf), (32, By::Iperf), (8, By::Sendfile), (8, By::SameProcess)],
    },
    Shape { bytes: 4096, connections: 1, beside: &[(8, By::Iperf), (32, By::Iperf)] },
    Shape { bytes: 64, connections: 8, beside: &[(1, By::Iperf), (8, By::Iperf)] },
    Shape { bytes: 4096, connections: 8, beside: &[(8, By::Iperf)] },
];
/// The only shape of `--quick`.
const QUICK: [Shape; 1] = [Shape { bytes: 64, connections: 1, beside: &[(8, By::Iperf)] }];

/// A requirement on small requests beside 8 bulk flows: one of the two limits must hold.
const fn either(cases: &'static str, metric: &'static str, limits: [(Measure, Limit); 2]) -> [Bar; 2] {
    let [(measure, limit), (other, its_limit)] = limits;
    [Bar { cases, metric, measure, limit }, Bar { cases, metric, measure: other, limit: its_limit }]
}
const fn median(cases: &'static str, kernel: &'static str) -> [Bar; 2] {
    either(
        cases,
        "p50",
        [(Measure::Over(kernel), Limit::Most(8.0)), (Measure::Over(ALONE), Limit::Most(2.0))],
    )
}
const fn late(cases: &'static str, kernel: &'static str) -> [Bar; 2] {
    either(cases, "p99", [(Measure::Alone, Limit::Most(1000.0)), (Measure::Over(kernel), Limit::Most(3.0))])
}
const ON_VETH: &str = "isolation/veth/64B/c1/flows8/";
const ON_TAP: &str = "isolation/tap/64B/c1/flows8/";
const BARS: [[Bar; 2]; 4] = [
    median(ON_VETH, "kernel-veth"),
    late(ON_VETH, "kernel-veth"),
    median(ON_TAP, "kernel-tap"),
    late(ON_TAP, "kernel-tap"),
];

/// Runs the measurement.
///
/// # Errors
/// When a link cannot be made, or a service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("isolation");
    if let Err(error) = namespace::need_root() {
        report.note(format!("skipped: {error}"));
        return Ok(report);
    }
    if served::lacks(&["iperf3"], &mut report) {
        return Ok(report);
    }
    limit_cores(&mut report)?;
    Namespace::remove_orphans();
    let stage = Stage::new(options)?;
    let shapes: &[Shape] = if options.quick { &QUICK } else { &SHAPES };
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for (link, hosts) in stage.links() {
            for shape in shapes {
                let cases = shape.cases();
                let failures = round(&cases, link, &hosts, options.seconds(), &mut samples);
                report.failures.extend(failures.into_iter().map(|text| format!("run {}: {text}", run + 1)));
            }
        }
    }
    stage.stop();
    report.rows = samples.rows();
    report.rows.retain(|row| row.system != ALONE);
    report.ratios = samples.ratios(OURS, &PEERS);
    say(&mut report);
    BARS.iter().for_each(|bars| bars::judge_any(&mut report, OURS, bars));
    Ok(report)
}

fn say(report: &mut Report) {
    report.note(format!(
        "round trips of our own client, {} us between a reply and the next request, TCP_NODELAY at both ends; c1, c8: connections, each with one request \
         at a time; flows8: beside iperf3 -P 8, in: into the server, out: out of it; requests beside bulk flows begin when these have run for 0.2 s, \
         and the last is sent before they end; sendfile: iperf3 -Z; same-process: the two processes of the requests carry the bulk flows too",
        turn::THINK_US
    ));
    report.note(
        "bulk: received by iperf3, per second of its whole run, and per second of processor time of all processes; towpath-alone: our own \
         requests of the same run without bulk flows",
    );
    report.note(
        "processor time: both ends of the requests and of iperf3, service or forwarder, and ksoftirqd; per MiB of the bulk flows, alone per \
         request",
    );
}

/// What one run measures on one system.
#[derive(Clone, Copy)]
pub struct Case {
    /// The length of a request and of its reply.
    bytes: u32,
    /// The number of connections, each with one request at a time.
    connections: u32,
    /// The bulk flows beside the requests.
    bulk: Option<Bulk>,
}

impl Case {
    /// Requests of so many bytes on so many connections, and the bulk flows beside them.
    pub const fn new(bytes: u32, connections: u32, bulk: Option<Bulk>) -> Self {
        Self { bytes, connections, bulk }
    }

    /// The name of the case in the tables.
    fn path(self, link: &str) -> String {
        let beside = match self.bulk {
            None => "alone".to_owned(),
            Some(Bulk { flows, direction, by }) => format!("flows{flows}{}/{}", by.name(), direction.name()),
        };
        format!("isolation/{link}/{}B/c{}/{beside}", self.bytes, self.connections)
    }
}

impl Shape {
    /// The cases of the shape; the first is the one without bulk flows.
    fn cases(&self) -> Vec<Case> {
        let of = |bulk| Case::new(self.bytes, self.connections, bulk);
        let beside = self
            .beside
            .iter()
            .flat_map(|&(flows, by)| Direction::ALL.map(|direction| of(Some(Bulk { flows, direction, by }))));
        [of(None)].into_iter().chain(beside).collect()
    }
}

/// Runs each case once on each system, in turns. Returns a text for each failure.
fn round(cases: &[Case], link: &str, hosts: &[Host<'_>], seconds: f64, samples: &mut Samples) -> Vec<String> {
    let mut failures = Vec::new();
    let mut alone: Option<Outcome> = None;
    for case in cases {
        let path = case.path(link);
        for host in hosts {
            match turn::measure(host, *case, seconds) {
                Ok(outcome) => {
                    add(samples, &path, host.name, &outcome);
                    match &alone {
                        _ if host.name != OURS => {}
                        None if case.bulk.is_none() => alone = Some(outcome),
                        Some(alone) => samples.add(&path, ALONE, "p50", "us", alone.latencies.p50_us),
                        None => {}
                    }
                }
                Err(error) => failures.push(format!("{path}, {}: {error:#}", host.name)),
            }
        }
    }
    failures
}

/// Adds what one run has measured: round trips, and what the bulk flows carried.
pub fn add(samples: &mut Samples, path: &str, system: &str, outcome: &Outcome) {
    let latencies = outcome.latencies;
    for (metric, us) in [("p50", latencies.p50_us), ("p99", latencies.p99_us), ("p99.9", latencies.p999_us)] {
        samples.add(path, system, metric, "us", outcome.sample(us));
    }
    if let Some(carried) = outcome.carried {
        samples.add(path, system, "bulk", "Gbit/s", carried.rate);
        let per_second = outcome.sample(carried.bytes_per_processor_second);
        samples.add(path, system, "bulk per processor-second", "B", per_second);
    }
}

/// Services, namespaces and links that all runs use. Services are dropped before the interfaces that they use.
struct Stage {
    tap: Service,
    veth: Service,
    tap_kernel: Namespace,
    veth_link: Link,
    kernels_tap: Link,
    kernels_veth: Link,
}

impl Stage {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let tap_kernel = Namespace::new()?;
        let tap = Service::start(options, Port::Tap { namespace: tap_kernel.name(), offloads: true })?;
        let veth_link = Link::veth_for([true, false])?;
        Ok(Self {
            tap,
            veth: bulk::service_at(options, &veth_link, 0, &[])?,
            tap_kernel,
            veth_link,
            kernels_tap: Link::new(Kind::TapOffloads)?,
            kernels_veth: Link::new(Kind::Veth)?,
        })
    }

    /// The systems of each kind of link, Towpath first.
    fn links(&self) -> [(&'static str, [Host<'_>; 2]); 2] {
        let [address, _] = self.veth_link.addresses;
        let [_, kernel] = &self.veth_link.namespaces;
        [
            (
                "veth",
                [
                    Host::through(&self.veth, address, kernel),
                    Host::over_link(Kind::Veth.system(), &self.kernels_veth),
                ],
            ),
            (
                "tap",
                [
                    Host::through(&self.tap, TAP_ADDRESS, &self.tap_kernel),
                    Host::over_link(Kind::TapOffloads.system(), &self.kernels_tap),
                ],
            ),
        ]
    }

    fn stop(self) {
        [self.tap, self.veth].into_iter().for_each(Service::stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(shapes: &[Shape]) -> Vec<String> {
        let links = ["veth", "tap"];
        links
            .iter()
            .flat_map(|link| shapes.iter().flat_map(Shape::cases).map(|case| case.path(link)))
            .collect()
    }

    #[test]
    fn every_case_with_a_bar_is_measured_in_the_quick_and_in_the_full_form() {
        let (quick, full) = (paths(&QUICK), paths(&SHAPES));
        assert!(quick.iter().all(|path| full.contains(path)));
        let beside: Vec<_> = quick.iter().filter(|path| !path.ends_with("/alone")).collect();
        assert_eq!(beside.len(), 4);
        for path in beside {
            let metrics: Vec<_> = BARS
                .iter()
                .filter(|[bar, _]| path.starts_with(bar.cases))
                .map(|[bar, _]| bar.metric)
                .collect();
            assert_eq!(metrics, ["p50", "p99"], "{path}");
        }
        assert_eq!(full[4], "isolation/veth/64B/c1/flows8/out");
    }

    #[test]
    fn both_bars_of_a_pair_are_of_the_same_cases_and_metric() {
        for [one, other] in &BARS {
            assert_eq!((one.cases, one.metric), (other.cases, other.metric));
        }
    }
}
