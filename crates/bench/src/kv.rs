//! The measurement `kv`: a key-value store that does not scale (TAS, Table 7), and its latency at low load (Figure 9, Table 5).

pub mod server;

use crate::bars::{self, Bar, Limit, Measure};
use crate::client::protocol::{Protocol, Shape};
use crate::client::{self, Load, Measured, Pace};
use crate::exchange::{Kind, on_ring};
use crate::launch::{Port, Service};
use crate::redis::local;
use crate::samples::Samples;
use crate::sockets::ask;
use crate::sockets::pair::{Pair, Place};
use crate::sockets::raise_limit;
use crate::table::number;
use crate::{Options, Report};
use anyhow::Context;
use server::Ask;

/// A store with one key (TAS: a key and a value of 4 bytes, 256 connections).
const HOT: Shape = Shape { keys: 1, key_bytes: 4, value_bytes: 4 };
/// TAS: 100,000 keys of 32 bytes, values of 64 bytes, chosen by Zipf's law with an exponent of 0.9.
const MANY: Shape = Shape { keys: 100_000, key_bytes: 32, value_bytes: 64 };
const SKEW: u32 = 90;
/// Connections at the highest load.
const BUSY: u32 = 256;
/// StackMap, Figure 8: objects of 1,024 bytes.
const OBJECTS: Shape = Shape { keys: 10_000, key_bytes: 32, value_bytes: 1024 };
/// Numbers of connections of that figure.
const OF_OBJECTS: [u32; 3] = [1, 10, 100];
/// Connections at low load.
const CALM: u32 = 64;
/// Numbers of threads of the server.
const THREADS: [u32; 2] = [1, 2];
/// The low load as a share of the kernel's highest rate.
const CALM_SHARE: f64 = 0.15;

const KERNEL: Measure = Measure::Over("kernel");
const THIRD: Limit = Limit::Most(1.0 / 3.0);
const BARS: &[Bar] = &[
    Bar { cases: "kv/hot/best", metric: "rate", measure: KERNEL, limit: Limit::Least(4.0) },
    Bar { cases: "kv/zipf/t1", metric: "rate", measure: KERNEL, limit: Limit::Least(3.0) },
    Bar { cases: "kv/profile-latency/polling", metric: "p50", measure: KERNEL, limit: THIRD },
    Bar { cases: "kv/profile-latency/polling", metric: "p99", measure: KERNEL, limit: THIRD },
    Bar { cases: WAITING, metric: "p50", measure: OR_TIMER, limit: THIRD },
    Bar { cases: WAITING, metric: "p99", measure: OR_TIMER, limit: THIRD },
];
/// A server on rings must serve so much more than one with sockets (TAS, Table 7: 1.48 with two cores and more).
const RING_BARS: &[Bar] = &[Bar {
    cases: "kv/hot/best",
    metric: "rate",
    measure: Measure::Over("towpath"),
    limit: Limit::Least(1.4),
}];
/// The server on rings; named like a system.
const RING: &str = "ring";
const WAITING: &str = "kv/profile-latency/waiting";
/// The floor of a client that sleeps on a timer, which wakes it late whatever carries the requests; named like a system.
const TIMER: &str = "timer";
const OR_TIMER: Measure = Measure::OverOrFloor("kernel", TIMER);

/// One load on the store.
#[derive(Clone, Copy)]
struct Use {
    shape: Shape,
    connections: u32,
    threads: u32,
    pace: Pace,
}

impl Use {
    fn measure<'a>(&self, place: impl Into<Place<'a>>, seconds: f64, seed: u64) -> anyhow::Result<Measured> {
        let pair = Pair::start(place)?;
        pair.connect(self.connections - 1)?;
        let load = self.load(seconds, seed, pair.pids());
        pair.far(&ask::Ask::Kv(Ask::Hold(self.shape)))?;
        let serve = Ask::Serve(self.threads);
        let (answer, _) = pair.both(&ask::Ask::Client(client::Ask::Load(load)), &ask::Ask::Kv(serve))?;
        Measured::new(&answer)
    }

    /// As [`measure`](Self::measure) with a server on rings, as many as it has threads.
    fn on_rings(&self, service: &Service, seconds: f64, seed: u64) -> anyhow::Result<Measured> {
        let connections = self.connections / self.threads;
        let ask = on_ring::Ask {
            kind: Kind::Store(self.shape),
            rings: self.threads,
            connections,
            is_metered: false,
        };
        let load = |client, server| self.load(seconds, seed, vec![client, server, service.pid()]);
        Ok(on_ring::measure(service, ask, load)?.0)
    }

    fn load(&self, seconds: f64, seed: u64, pids: Vec<u32>) -> Load {
        Load {
            protocol: Protocol::Own,
            shape: self.shape,
            skew: SKEW,
            pace: self.pace,
            milliseconds: (seconds * 1e3) as u32,
            seed,
            pids,
        }
    }
}

/// Runs the measurement `kv`.
///
/// # Errors
/// When the service does not start, descriptors are too few, or a process fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("kv");
    raise_limit()?;
    local::limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let mut samples = Samples::default();
    let rate = calm_rate(options)?;
    for run in 0..options.runs() {
        on_rings(&service, run as u64, options.seconds(), &mut samples)
            .with_context(|| format!("rings, run {}", run + 1))?;
        for system in [Some(&service), None] {
            one(system, run as u64, rate, options.seconds(), &mut samples)
                .with_context(|| format!("run {}", run + 1))?;
        }
    }
    service.stop();
    report.note(format!(
        "kv/hot: one key, {BUSY} connections, closed loop, a server of 1 and of 2 threads behind one lock; best: the better of \
         the two in each run; kv/zipf: {} keys of {} bytes, values of {}, {BUSY} connections; kv/1KiB: objects of 1,024 bytes (StackMap, \
         Figure 8); ring: a server on rings, one for each thread, of the same client",
        number(f64::from(MANY.keys)),
        MANY.key_bytes,
        MANY.value_bytes
    ));
    report.note(format!(
        "kv/latency: open loop, {} requests per second on {CALM} connections of both systems ({:.0} % of what the kernel answers \
         at most), from the time at which a request was due; polling: the client looks all the time, waiting: it sleeps by a timer; \
         kv/profile-latency: the same, with `towpath run --profile latency` for both processes of Towpath's: it spends processor time \
         on not sleeping; timer: the waiting client with answers that cost nothing: its timer is late, and takes time to be armed again, whatever carries \
         requests",
        number(rate),
        CALM_SHARE * 100.0
    ));
    report.note("processor time: both processes, the service and ksoftirqd, per request");
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel", TIMER]);
    bars::judge(&mut report, "towpath", BARS);
    report.ratios.extend(samples.ratios(RING, &["towpath"]));
    bars::judge(&mut report, RING, RING_BARS);
    Ok(report)
}

/// The loads at which a store is asked as fast as it answers; `measure` runs one. The better number of threads for one hot key counts as "best".
fn busy(
    name: &str,
    samples: &mut Samples,
    measure: impl Fn(Use) -> anyhow::Result<Measured>,
) -> anyhow::Result<()> {
    let mut best: Option<Measured> = None;
    for threads in THREADS {
        let hot = Use { shape: HOT, connections: BUSY, threads, pace: Pace::Closed };
        let measured = measure(hot).context("kv/hot")?;
        measured.add_rate(&format!("kv/hot/t{threads}"), name, samples);
        best = best.filter(|best| best.rate > measured.rate).or(Some(measured));
    }
    if let Some(best) = best {
        best.add_rate("kv/hot/best", name, samples);
    }
    for threads in THREADS {
        let zipf = Use { shape: MANY, connections: BUSY, threads, pace: Pace::Closed };
        measure(zipf).context("kv/zipf")?.add_rate(&format!("kv/zipf/t{threads}"), name, samples);
    }
    for connections in OF_OBJECTS {
        let objects = Use { shape: OBJECTS, connections, threads: 1, pace: Pace::Closed };
        measure(objects).context("kv/1KiB")?.add_rate(&format!("kv/1KiB/n{connections}"), name, samples);
    }
    Ok(())
}

/// Runs the cases of high load once with a server on rings.
fn on_rings(service: &Service, seed: u64, seconds: f64, samples: &mut Samples) -> anyhow::Result<()> {
    busy(RING, samples, |load| load.on_rings(service, seconds, seed))
}

/// Runs every case once on one system.
fn one(
    system: Option<&Service>,
    seed: u64,
    rate: f64,
    seconds: f64,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let name = if system.is_some() { "towpath" } else { "kernel" };
    busy(name, samples, |load| load.measure(system, seconds, seed))?;
    let profiles = [
        ("latency", Place::from(system)),
        ("profile-latency", system.map_or(Place::Kernel, Place::TowpathForLatency)),
    ];
    for (profile, place) in profiles {
        for (case, pace) in [("polling", Pace::Polling(rate)), ("waiting", Pace::Waiting(rate))] {
            let case = format!("kv/{profile}/{case}");
            let calm = Use { shape: MANY, connections: CALM, threads: 1, pace };
            calm.measure(place, seconds, seed).context(case.clone())?.add_latencies(&case, name, samples);
        }
    }
    if system.is_none() {
        let alone = Use { shape: MANY, connections: CALM, threads: 1, pace: Pace::Timer(rate) };
        alone.measure(Place::Kernel, seconds, seed).context(TIMER)?.add_latencies(WAITING, TIMER, samples);
    }
    Ok(())
}

/// Requests per second at low load, the same for both systems.
fn calm_rate(options: &Options) -> anyhow::Result<f64> {
    let most = Use { shape: MANY, connections: CALM, threads: 1, pace: Pace::Closed };
    Ok(most.measure(Place::Kernel, options.seconds(), 0).context("the kernel's highest rate")?.rate
        * CALM_SHARE)
}
