//! Many open connections without traffic: their memory, the rate at which they open, and the cost of an RPC on one of them.

use super::Arguments;
use crate::bars::{self, Limit};
use crate::client::protocol::{Protocol, Shape};
use crate::client::{self, Load, Measured, Pace};
use crate::launch::{Port, Service};
use crate::samples::Samples;
use crate::sockets::actor::Answer;
use crate::sockets::acts::memory::bytes;
use crate::sockets::ask;
use crate::sockets::memory::{slab, touch};
use crate::sockets::pair::{Pair, Place};
use crate::sockets::{echo, raise_limit_towards};
use crate::table::number;
use crate::{Report, Row, clock, interrupt};
use anyhow::{Context, bail};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, process};

/// The most connections of one pair of processes: a quarter of the kernel's local ports per address, which is half of the even ports. The
/// kernel tries even ports first, one after the other, and the last free ones take a long search.
const OF_A_PAIR: u32 = 7_000;
/// Descriptors of a process besides its connections.
const BESIDE: u64 = 500;
/// The most memory of the machine that one connection takes, in bytes.
const BYTES_EACH: f64 = 12.0 * 1024.0;
/// Connections opened before the measurement, so that one-time costs are not counted.
const WARM_UP: u32 = 200;
/// Connections in the case with few connections.
const FEW: u32 = 1_000;
/// RPCs under way at once, each on a random connection.
const AT_ONCE: u32 = 16;
const RPC: Shape = Shape { keys: 1, key_bytes: 0, value_bytes: 64 };
/// Runs; each run opens all connections.
const RUNS: usize = 3;

/// The most bytes of library and service together, for each end of a connection.
const BYTES_MOST: f64 = 512.0;
/// The most bytes of the library alone, for each end.
const LIBRARY_MOST: f64 = 128.0;
/// The least connections accepted per second.
const RATE_LEAST: Limit = Limit::Least(100_000.0);
/// If that rate is out of reach: the least share of the rate at which the kernel makes the placeholders alone.
const OF_FLOOR_LEAST: Limit = Limit::Least(1.0 / bars::OF_FLOOR);
/// The largest ratio of the cost of an RPC with many connections to that with few.
const GROWTH_MOST: f64 = 1.3;

/// Runs all cases and adds their samples and notes.
pub fn measure(arguments: &Arguments, samples: &mut Samples, report: &mut Report) -> anyhow::Result<()> {
    let wanted = u64::from(arguments.connections().min(OF_A_PAIR)) + BESIDE;
    let of_a_pair = (raise_limit_towards(wanted)?.saturating_sub(BESIDE)).min(u64::from(OF_A_PAIR)) as u32;
    let seconds = arguments.common.seconds();
    for _ in 0..arguments.common.runs().min(RUNS) {
        for through in [true, false] {
            let service = through.then(|| Service::start(&arguments.common, Port::None)).transpose()?;
            let place = service.as_ref().into();
            rpc(&[open_pair(place, FEW)?], FEW, seconds, samples)?;
            touch(f64::from(arguments.connections()) * BYTES_EACH)?;
            open(place, service.as_ref(), [arguments.connections(), of_a_pair], seconds, samples)?;
            if let Some(service) = service {
                service.stop();
            }
        }
        touch(f64::from(arguments.connections()) * BYTES_EACH)?;
        placeholders([arguments.connections(), of_a_pair], samples)?;
    }
    report.note(format!(
        "idle/open: {} connections on one host, of pairs of processes with at most {} each; bytes of one end: own memory of the \
         service and what all processes share, halved; own memory of a process; growth of the kernel's slabs, halved",
        number(f64::from(arguments.connections())),
        number(f64::from(of_a_pair))
    ));
    report.note(
        "idle/placeholders: what of idle/open nothing can be faster than while a program that connects has a socket of the kernel's for \
         each connection, with a port: one of them, made by as many processes; who accepts has none",
    );
    report.note(format!(
        "idle/rpc: {AT_ONCE} RPCs of 64 bytes under way, each on a connection chosen by chance among those of one pair"
    ));
    Ok(())
}

/// Adds a text to the report for each bar.
pub fn judge(arguments: &Arguments, report: &mut Report) {
    let of_system = |report: &Report, system: &str, case: &str, metric: &str| {
        let is_it = |r: &&Row| r.case == case && r.system == system && r.metric == metric;
        report.rows.iter().find(is_it).map_or(f64::NAN, |r| r.median)
    };
    let of = |report: &Report, case: &str, metric: &str| of_system(report, "towpath", case, metric);
    let open = open_case(arguments.connections());
    let (library, all) = (of(report, &open, "library"), of(report, &open, "library and service"));
    bars::tell(
        report,
        format!("{open}: library {} bytes", number(library)),
        library,
        Limit::Most(LIBRARY_MOST),
    );
    let text = format!("{open}: library and service {} bytes", number(all));
    bars::tell(report, text, all, Limit::Most(BYTES_MOST));
    let rate = of(report, &open, "accepted");
    let floor = of_system(report, "kernel", &placeholders_case(arguments.connections()), "opened");
    let text = format!(
        "{open}: accepted {} per second, {} times the floor's (idle/placeholders)",
        number(rate),
        number(rate / floor)
    );
    if RATE_LEAST.holds(rate) {
        bars::tell(report, text, rate, RATE_LEAST);
    } else {
        bars::tell(report, format!("{text} ({RATE_LEAST}): the share"), rate / floor, OF_FLOOR_LEAST);
    }
    let [few, many] = [FEW, arguments.connections()].map(|n| of(report, &rpc_case(n), "processor time"));
    let text = format!(
        "{}: processor time {} times that with {FEW}",
        rpc_case(arguments.connections()),
        number(many / few)
    );
    bars::tell(report, text, many / few, Limit::Most(GROWTH_MOST));
}

fn open_case(connections: u32) -> String {
    format!("idle/open/n{connections}")
}

fn placeholders_case(connections: u32) -> String {
    format!("idle/placeholders/n{connections}")
}

fn rpc_case(connections: u32) -> String {
    format!("idle/rpc/n{connections}")
}

/// Opens all connections, on as many pairs of processes as needed, `of_a_pair` at most on each.
fn open(
    place: Place<'_>,
    service: Option<&Service>,
    [connections, of_a_pair]: [u32; 2],
    seconds: f64,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let (count, share) = shares([connections, of_a_pair]);
    let warm = WARM_UP.min(connections / count);
    let pairs: Vec<Pair<'_>> = (0..count).map(|_| open_pair(place, warm)).collect::<anyhow::Result<_>>()?;
    let before = Look::at(service, &pairs)?;
    let mut elapsed_ns = 0;
    for (i, pair) in (0..).zip(&pairs) {
        interrupt::check()?;
        let connected = pair.connect(share(i) - warm);
        elapsed_ns += connected.with_context(|| format!("{i} pairs of {count} had all of theirs"))?;
    }
    let opened = f64::from(connections - warm * count);
    let rate = opened * 1e9 / elapsed_ns as f64;
    let after = Look::at(service, &pairs)?;
    let name = pairs.first().context("no pair")?.name;
    let each = |side: fn(&Look) -> f64| (side(&after) - side(&before)) / opened / 2.0;
    let (library, beside) = (each(|look| look.processes), each(|look| look.service + look.shared));
    let case = open_case(connections);
    samples.add(&case, name, "accepted", "1/s", rate);
    samples.add(&case, name, "library", "B", library);
    samples.add(&case, name, "library and service", "B", library + beside);
    samples.add(&case, name, "kernel", "B", each(|look| look.slab));
    rpc(&pairs, connections, seconds, samples)
}

/// The number of pairs, and a function from a pair's index to its number of connections.
fn shares([connections, of_a_pair]: [u32; 2]) -> (u32, impl Fn(u32) -> u32) {
    let count = connections.div_ceil(of_a_pair);
    (count, move |i| connections / count + u32::from(i < connections % count))
}

/// Makes the placeholders alone: the kernel's sockets of the connecting ends, each bound to a port.
fn placeholders(connections: [u32; 2], samples: &mut Samples) -> anyhow::Result<()> {
    let (count, share) = shares(connections);
    let pairs: Vec<Pair<'_>> =
        (0..count).map(|_| Pair::start(Place::Kernel)).collect::<anyhow::Result<_>>()?;
    let start = clock::now_ns();
    for (i, pair) in (0..).zip(&pairs) {
        interrupt::check()?;
        pair.near(&ask::Ask::Bind(address_of_its_own(), share(i)))?;
    }
    let rate = f64::from(connections[0]) * 1e9 / (clock::now_ns() - start) as f64;
    samples.add(&placeholders_case(connections[0]), "kernel", "opened", "1/s", rate);
    Ok(())
}

/// Opens a pair with that many connections.
fn open_pair(place: Place<'_>, connections: u32) -> anyhow::Result<Pair<'_>> {
    let pair = Pair::start(place)?;
    pair.connect(connections.saturating_sub(1))?;
    Ok(pair)
}

/// A loopback address that no other pair has. It depends on the process id, because ports of an earlier run may be in TIME_WAIT.
fn address_of_its_own() -> Ipv4Addr {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let run = process::id() % 200;
    let first = Ipv4Addr::new(127, 1 + run as u8, 1, 1);
    Ipv4Addr::from_bits(first.to_bits() + TAKEN.fetch_add(1, Ordering::Relaxed))
}

/// Measures RPCs on the connections of the last pair, which closes them.
fn rpc(pairs: &[Pair<'_>], connections: u32, seconds: f64, samples: &mut Samples) -> anyhow::Result<()> {
    let pair = pairs.last().context("no pair")?;
    let load = Load {
        protocol: Protocol::Echo,
        shape: RPC,
        skew: 0,
        pace: Pace::Wandering(AT_ONCE),
        milliseconds: (seconds * 1e3) as u32,
        seed: 0,
        pids: pair.pids(),
    };
    let near = ask::Ask::Client(client::Ask::Load(load));
    let (answer, _): (Answer, Answer) = pair.both(&near, &ask::Ask::Echo(echo::Ask::Epoll))?;
    let measured = Measured::new(&answer)?;
    measured.add_rate(&rpc_case(connections), pair.name, samples);
    samples.add(&rpc_case(connections), pair.name, "processor time", "ns", measured.cpu_ns);
    Ok(())
}

/// Bytes of memory in use at one moment.
struct Look {
    service: f64,
    /// Anonymous memory of the processes of all pairs.
    processes: f64,
    /// Shared memory of the whole machine (`Shmem`), which contains the regions.
    shared: f64,
    slab: f64,
}

impl Look {
    fn at(service: Option<&Service>, pairs: &[Pair<'_>]) -> anyhow::Result<Self> {
        let own = |pid: u32| -> anyhow::Result<f64> {
            bytes(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?, "Anonymous")
        };
        let mut processes = 0.0;
        for pair in pairs {
            let [near, far, ..] = pair.pids()[..] else { bail!("a pair has two processes") };
            processes += own(near)? + own(far)?;
        }
        let service = service.map_or(Ok(0.0), |service| own(service.pid()))?;
        let shared = bytes(&fs::read_to_string("/proc/meminfo")?, "Shmem")?;
        Ok(Self { service, processes, shared, slab: slab()? })
    }
}
