//! The measurement `bulk`: many bulk flows from one machine to another (TAS, Table 4) over TAP and over veth, with Towpath or the kernel at
//! either end, compared with two kernels over the same kind of link.

pub mod carrier;
pub mod fairness;
pub mod sink;
pub mod source;
pub mod transfer;

use crate::bars::{self, Bar, Limit, Measure};
use crate::launch::{Port, Service, TAP_ADDRESS, TAP_HOST_ADDRESS};
use crate::redis::local::limit_cores;
use crate::samples::Samples;
use crate::sockets::memory::touch;
use crate::tap::link::{INTERFACE, Kind, Link};
use crate::tap::namespace::{self, Namespace};
use crate::{Options, Report};
use transfer::{Outcome, Place, Way};

/// Flows of each run (TAS: 100).
const FLOWS: u16 = 100;
// An [`sink::Each`] reports all flows, so fairness covers all of them.
const _: () = assert!(FLOWS as usize <= sink::TOLD_MAX);

/// The most memory that the windows of both ends and the kernel's buffers take, in bytes.
const MEMORY: f64 = (512 << 20) as f64;

const OURS: &str = "towpath";
const TO: &str = "to-towpath";
const FROM: &str = "from-towpath";
const BOTH: &str = "towpath-to-towpath";

/// Each link with the direction of its flows, in the order of the tables.
const CASES: [Case; 5] = [TAP_TO, TAP_FROM, VETH_TO, VETH_FROM, VETH_BOTH];
const TAP_TO: Case = Case { link: "tap", direction: TO };
const TAP_FROM: Case = Case { link: "tap", direction: FROM };
const VETH_TO: Case = Case { link: "veth", direction: TO };
const VETH_FROM: Case = Case { link: "veth", direction: FROM };
const VETH_BOTH: Case = Case { link: "veth", direction: BOTH };

const GOODPUT: &str = "goodput";
const fn as_good_as(cases: &'static str, peer: &'static str) -> Bar {
    Bar { cases, metric: GOODPUT, measure: Measure::Over(peer), limit: Limit::Least(1.0) }
}
const BARS: &[Bar] = &[
    as_good_as("bulk/tap/", "kernel-tap"),
    as_good_as(OUT, "kernel-veth"),
    Bar { cases: IN, metric: GOODPUT, measure: OR_CARRIER, limit: Limit::Least(1.0) },
    Bar { cases: ACROSS, metric: GOODPUT, measure: OR_CARRIER, limit: Limit::Least(1.0) },
];
const IN: &str = "bulk/veth/to-towpath/flows100";
const OUT: &str = "bulk/veth/from-towpath/flows100";
const ACROSS: &str = "bulk/veth/towpath-to-towpath/flows100";
/// The floor of a packet socket: processes that move the same bytes with the same copies.
const CARRIER: &str = "carrier";
const OR_CARRIER: Measure = Measure::OverOrFloor("kernel-veth", CARRIER);

/// Runs the measurement.
///
/// # Errors
/// When the user is not root, or a service does not start.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    namespace::need_root()?;
    let mut report = Report::new("bulk");
    limit_cores(&mut report)?;
    Namespace::remove_orphans();
    let stage = Stage::new(options)?;
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for turn in stage.turns() {
            touch(MEMORY)?;
            match turn.way.run(FLOWS, options.seconds()) {
                Ok(outcome) => turn.cases.iter().for_each(|case| {
                    add(&mut samples, case, turn.system, &outcome);
                }),
                Err(error) => report.failures.push(format!(
                    "{}, {}, run {}: {error:#}",
                    turn.cases.join(" "),
                    turn.system,
                    run + 1
                )),
            }
        }
    }
    stage.stop();
    report.rows = samples.rows();
    report.rows.sort_by_key(|row| (place(&row.case), row.system != OURS));
    report.ratios = samples.ratios(OURS, &["kernel-tap", "kernel-veth", CARRIER]);
    report.ratios.sort_by_key(|ratio| place(&ratio.case));
    say(&mut report);
    bars::judge(&mut report, OURS, BARS);
    Ok(report)
}

fn say(report: &mut Report) {
    report.note(format!(
        "{FLOWS} flows, counted at the receiving program after a warm-up (`goodput at first` is that of the warm-up), CUBIC at both \
         ends, buffers as both systems have them by default; Jain's index and the first percentile over the median are of the \
         bytes that each flow brought"
    ));
    report.note(
        "checksum and segmentation offload everywhere: the TAPs have both, the packet port passes both through its virtio-net \
         header, and veth is as the kernel makes it, with all its offloads; over TAP it is reported beside",
    );
    report.note(
        "two kernels are measured once in each round, and stand beside every case of it; processor time is per MiB, of both \
         programs, services or forwarder, and ksoftirqd",
    );
}

/// What a case measures: bulk flows in one direction over one kind of link.
#[derive(Clone, Copy)]
struct Case {
    /// `tap` or `veth`.
    link: &'static str,
    /// Which ends of the flows run Towpath: [`TO`], [`FROM`] or [`BOTH`].
    direction: &'static str,
}

impl Case {
    /// The name of the case in the tables.
    fn path(self) -> String {
        format!("bulk/{}/{}/flows{FLOWS}", self.link, self.direction)
    }
}

/// The case's row number in the tables.
fn place(path: &str) -> Option<usize> {
    CASES.into_iter().position(|case| case.path() == path)
}

fn add(samples: &mut Samples, case: &str, system: &str, outcome: &Outcome) {
    let fairness = outcome.fairness;
    samples.add(case, system, GOODPUT, "Gbit/s", outcome.goodput);
    samples.add(case, system, "goodput at first", "Gbit/s", outcome.at_first);
    samples.add(case, system, "Jain's index", "1", fairness.jain);
    samples.add(case, system, "p1 of median", "1", fairness.p1_of_median);
}

/// One run in a round.
struct Turn<'a> {
    system: &'static str,
    way: Way<'a>,
    /// The cases that get the numbers of this run.
    cases: Vec<String>,
}

impl<'a> Turn<'a> {
    fn of_towpath(case: Case, source: Place<'a>, sink: Place<'a>, address: std::net::Ipv4Addr) -> Self {
        let way = Way { source, sink, address, congestion: None, between: Vec::new() };
        Self { system: OURS, way, cases: vec![case.path()] }
    }

    /// Measures the floor of a case: carriers that send to the first end of that link.
    fn of_carriers(case: &str, source: Place<'a>, link: &'a Link) -> Self {
        let (sink, address) = (Place::Carrier(link, 0), link.addresses[0]);
        let way = Way { source, sink, address, congestion: None, between: Vec::new() };
        Self { system: CARRIER, way, cases: vec![case.to_owned()] }
    }

    /// Measures two kernels; the numbers belong to all cases over the links named in `beside`.
    fn of_kernels(kind: Kind, link: &'a Link, beside: &[&str]) -> Self {
        let [sink, source] = link.namespaces.each_ref().map(Place::Kernel);
        let way = Way { source, sink, address: link.addresses[0], congestion: None, between: link.pids() };
        let cases = CASES.into_iter().filter(|case| beside.contains(&case.link)).map(Case::path).collect();
        Self { system: kind.system(), way, cases }
    }
}

/// Services, namespaces and links that all runs use. Services are dropped before the interfaces that they use.
struct Stage {
    tap: Service,
    veth: Service,
    ends: [Service; 2],
    tap_kernel: Namespace,
    veth_link: Link,
    _ends_link: Link,
    carrier_link: Link,
    carriers_link: Link,
    kernels_tap: Link,
    kernels_veth: Link,
}

impl Stage {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let tap_kernel = Namespace::new()?;
        let tap = Service::start(options, Port::Tap { namespace: tap_kernel.name(), offloads: true })?;
        let veth_link = Link::veth_for([true, false])?;
        let ends_link = Link::veth_for([true, true])?;
        Ok(Self {
            tap,
            veth: service_at(options, &veth_link, 0, &[])?,
            ends: [service_at(options, &ends_link, 0, &[])?, service_at(options, &ends_link, 1, &[])?],
            tap_kernel,
            veth_link,
            _ends_link: ends_link,
            carrier_link: Link::veth_for([true, false])?,
            carriers_link: Link::veth_for([true, true])?,
            kernels_tap: Link::new(Kind::TapOffloads)?,
            kernels_veth: Link::new(Kind::Veth)?,
        })
    }

    /// The runs of one round, ordered so that systems to be compared run shortly after each other.
    fn turns(&self) -> [Turn<'_>; 9] {
        let [tap, veth] = [&self.tap, &self.veth].map(Place::Towpath);
        let tap_kernel = Place::Kernel(&self.tap_kernel);
        let veth_kernel = Place::Kernel(&self.veth_link.namespaces[1]);
        let [end, other_end] = self.ends.each_ref().map(Place::Towpath);
        let [service, kernel] = self.veth_link.addresses;
        [
            Turn::of_towpath(TAP_TO, tap_kernel, tap, TAP_ADDRESS),
            Turn::of_kernels(Kind::TapOffloads, &self.kernels_tap, &["tap"]),
            Turn::of_towpath(TAP_FROM, tap, tap_kernel, TAP_HOST_ADDRESS),
            Turn::of_towpath(VETH_TO, veth_kernel, veth, service),
            Turn::of_carriers(IN, Place::Kernel(&self.carrier_link.namespaces[1]), &self.carrier_link),
            Turn::of_kernels(Kind::Veth, &self.kernels_veth, &["tap", "veth"]),
            Turn::of_towpath(VETH_FROM, veth, veth_kernel, kernel),
            Turn::of_towpath(VETH_BOTH, other_end, end, service),
            Turn::of_carriers(ACROSS, Place::Carrier(&self.carriers_link, 1), &self.carriers_link),
        ]
    }

    fn stop(self) {
        let [end, other_end] = self.ends;
        [self.tap, self.veth, end, other_end].into_iter().for_each(Service::stop);
    }
}

/// Starts a service at that end of the link, with more flags of `towpath up`.
///
/// # Errors
/// When it does not start.
pub fn service_at(options: &Options, link: &Link, end: usize, flags: &[&str]) -> anyhow::Result<Service> {
    let (interface, address) = (format!("packet:{INTERFACE}"), format!("{}/24", link.addresses[end]));
    let namespace = link.namespaces[end].name();
    Service::start(options, Port::Packet { interface: &interface, namespace, address: &address, flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_bar_and_a_place() {
        for (number, case) in CASES.into_iter().enumerate() {
            let path = case.path();
            assert_eq!(BARS.iter().filter(|bar| path.starts_with(bar.cases)).count(), 1, "{path}");
            assert_eq!(place(&path), Some(number));
        }
        assert_eq!(CASES[0].path(), "bulk/tap/to-towpath/flows100");
    }
}
