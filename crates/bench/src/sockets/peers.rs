//! The measurement `peers`: 64-byte RPCs with sockets on Towpath and on the kernel in all its variants: over loopback and veth, with an
//! epoll set or an io_uring, with busy polling, with both ends scheduled freely or each pinned to a core.

use super::pair::{Pair, Place};
use super::{ask, echo, raise_limit};
use crate::bars::{self, Bar, Limit, Measure};
use crate::client::{self, Load, Measured};
use crate::launch::{Port, Service};
use crate::redis::local;
use crate::samples::Samples;
use crate::tap::link::{Kind, Link};
use crate::{Options, Report, affinity};
use anyhow::Context;

/// Numbers of connections of the cases.
const CONNECTIONS: [u32; 2] = [1, 64];
/// Microseconds of busy polling, as the documentation of `net.core.busy_poll` recommends.
const BUSY_POLL_US: u32 = 50;
/// The best of the kernel's variants in each run: the highest rate and the least processor time.
const BEST: &str = "kernel-best";

const BARS: &[Bar] = &[Bar {
    cases: "peers/64B/n64",
    metric: "processor time",
    measure: Measure::Over(BEST),
    limit: Limit::Most(0.2),
}];

/// A variant: where the processes run, and how the server waits.
#[derive(Clone, Copy)]
struct System<'a> {
    name: &'static str,
    place: Place<'a>,
    server: echo::Ask,
    /// True: each end is pinned to its own core.
    is_pinned: bool,
}

/// All variants; those over veth only if there is a link.
fn systems<'a>(service: &'a Service, veth: Option<&'a Link>) -> Vec<System<'a>> {
    use echo::Ask::{BusyPoll, Epoll, Uring};
    let of = |name, place, server, is_pinned| System { name, place, server, is_pinned };
    let (here, through) = (Place::Kernel, Place::Towpath(service));
    let mut systems = vec![
        of("towpath", through, Epoll, false),
        of("towpath-pinned", through, Epoll, true),
        of("kernel", here, Epoll, false),
        of("kernel-pinned", here, Epoll, true),
        of("kernel-busy-poll", here, BusyPoll(BUSY_POLL_US), false),
        of("kernel-uring", here, Uring, false),
        of("kernel-uring-pinned", here, Uring, true),
    ];
    if let Some(link) = veth {
        let veth = Place::Link(link);
        systems.extend([
            of("veth", veth, Epoll, false),
            of("veth-pinned", veth, Epoll, true),
            of("veth-busy-poll", veth, BusyPoll(BUSY_POLL_US), false),
            of("veth-uring", veth, Uring, false),
            of("veth-uring-pinned", veth, Uring, true),
        ]);
    }
    systems
}

impl System<'_> {
    fn is_towpath(&self) -> bool {
        matches!(self.place, Place::Towpath(_))
    }

    fn measure(&self, connections: u32, seconds: f64) -> anyhow::Result<Measured> {
        let pair = Pair::start(self.place)?;
        pair.connect(connections - 1)?;
        if let ([first, second, ..], true) = (affinity::allowed().as_slice(), self.is_pinned) {
            pair.both(&ask::Ask::Pin(vec![*first]), &ask::Ask::Pin(vec![*second]))?;
        }
        let load = Load::echo(seconds, pair.pids());
        let near = ask::Ask::Client(client::Ask::Load(load));
        let (answer, _) = pair.both(&near, &ask::Ask::Echo(self.server))?;
        Measured::new(&answer)
    }
}

/// Runs the measurement `peers`.
///
/// # Errors
/// When the service does not start, descriptors are too few, or a process fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("peers");
    raise_limit()?;
    local::limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let veth = match rustix::process::geteuid().is_root() {
        true => Some(Link::new(Kind::Veth)?),
        false => {
            report.note("veth: skipped: network namespaces need root");
            None
        }
    };
    let systems = systems(&service, veth.as_ref());
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for connections in CONNECTIONS {
            one(&systems, connections, options.seconds(), &mut samples)
                .with_context(|| format!("run {}", run + 1))?;
        }
    }
    let others = systems.iter().map(|system| system.name).filter(|name| *name != "towpath");
    let peers: Vec<&str> = [BEST].into_iter().chain(others).collect();
    service.stop();
    report.note(format!(
        "busy-poll: SO_BUSY_POLL and EPIOCSPARAMS of {BUSY_POLL_US} us (loopback, and veth without GRO, have nothing to look \
         at); pinned: each end on a core of its own; {BEST}: of each run the highest rate and the least processor time and \
         latencies of all the kernel's"
    ));
    report.note("processor time: both processes, the service and ksoftirqd, per RPC");
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &peers);
    bars::judge(&mut report, "towpath", BARS);
    Ok(report)
}

/// Runs one case once on all systems.
fn one(systems: &[System<'_>], connections: u32, seconds: f64, samples: &mut Samples) -> anyhow::Result<()> {
    let case = format!("peers/64B/n{connections}");
    let mut best: Option<Measured> = None;
    for system in systems {
        let measured =
            system.measure(connections, seconds).with_context(|| format!("{case}, {}", system.name))?;
        add(&measured, &case, system.name, samples);
        if !system.is_towpath() {
            best = Some(best.map_or_else(|| measured.clone(), |best| best.better(&measured)));
        }
    }
    if let Some(best) = best {
        add(&best, &case, BEST, samples);
    }
    Ok(())
}

fn add(measured: &Measured, case: &str, system: &str, samples: &mut Samples) {
    measured.add_rate(case, system, samples);
    samples.add(case, system, "processor time", "ns", measured.cpu_ns);
}
