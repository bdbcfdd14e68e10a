//! The cost of sockets compared with the kernel's: waking, blocking, epoll with many connections, opening and closing, fork, memory.

pub mod actor;
pub mod acts;
pub mod ask;
mod bars;
#[allow(unsafe_code)]
pub mod calls;
pub mod circle;
mod cycle;
pub mod echo;
mod load;
pub mod memory;
pub mod pair;
pub mod peers;
pub mod pipeline;
mod ready;
mod rpc;
#[allow(unsafe_code)]
pub mod uring;
mod wake;

use crate::launch::{Port, Service};
use crate::redis::local;
use crate::samples::Samples;
use crate::{Options, Report};
use anyhow::{Context, bail};
use pair::Pair;
pub use rpc::run as run_rpc;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that one process needs.
const DESCRIPTORS: u64 = 11_000;
/// The most runs that measure blocked calls: each takes a second per way to wait.
const BLOCKED_RUNS: usize = 3;
/// The most runs that measure memory, which varies little.
const MEMORY_RUNS: usize = 3;

/// Repetitions within one run.
struct Amount {
    wakes: u32,
    waits: u32,
    cycles: u32,
    forks: u32,
}

/// Runs the measurement `sockets`.
///
/// # Errors
/// When the service does not start, descriptors are too few, or a process fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("sockets");
    raise_limit()?;
    local::limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let systems = [Some(&service), None];
    let amount = match options.quick {
        true => Amount { wakes: 50, waits: 1_000, cycles: 200, forks: 10 },
        false => Amount { wakes: 200, waits: 2_000, cycles: 500, forks: 30 },
    };
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for system in systems {
            one(system, run, &amount, &mut samples)?;
        }
    }
    many(systems, options.runs(), &amount, &mut samples)?;
    for _ in 0..options.runs().min(MEMORY_RUNS) {
        for system in systems {
            memory::measure_unconnected(&Pair::start(system)?, &mut samples)?;
            memory::measure(&Pair::start(system)?, &mut samples)?;
        }
    }
    service.stop();
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["eventfd", "kernel"]);
    bars::judge(&mut report);
    Ok(report)
}

/// Runs the parts that need few connections.
fn one(system: Option<&Service>, run: usize, amount: &Amount, samples: &mut Samples) -> anyhow::Result<()> {
    let pair = Pair::start(system)?;
    pair.connect(1)?;
    wake::measure(&pair, amount.wakes, samples).context("wake")?;
    if run < BLOCKED_RUNS {
        wake::measure_blocked(&pair, samples).context("blocked")?;
    }
    cycle::measure(&pair, amount.cycles, samples).context("cycle")?;
    drop(pair);
    cycle::measure_fork(&Pair::start(system)?, amount.forks, samples).context("fork")
}

/// Runs the part that needs thousands of connections, which are opened once for all runs.
fn many(
    systems: [Option<&Service>; 2],
    runs: usize,
    amount: &Amount,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let most = acts::ready::READY + ready::IDLE.into_iter().max().unwrap_or(0);
    let pairs = systems.map(|system| {
        let pair = Pair::start(system)?;
        pair.connect(most - 1)?;
        anyhow::Ok(pair)
    });
    for _ in 0..runs {
        for pair in &pairs {
            let Ok(pair) = pair else { continue };
            ready::measure(pair, amount.waits, samples).context("epoll")?;
        }
    }
    pairs.into_iter().try_for_each(|pair| pair.map(|_| ())).context("epoll")
}

/// Raises the limit of descriptors to what most measurements need. Child processes inherit it.
pub fn raise_limit() -> anyhow::Result<()> {
    if raise_limit_towards(DESCRIPTORS)? < DESCRIPTORS {
        bail!("a process needs {DESCRIPTORS} descriptors: raise the limit (ulimit -Hn)");
    }
    Ok(())
}

/// Raises the limit of descriptors to `descriptors`, for which root may raise the hard limit, or else to the hard limit. Returns
/// `descriptors`, or the hard limit if that is all.
pub fn raise_limit_towards(descriptors: u64) -> anyhow::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|now| now >= descriptors) {
        return Ok(descriptors);
    }
    let maximum = limit.maximum.map(|most| most.max(descriptors));
    if setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).is_ok() {
        return Ok(descriptors);
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    Ok(limit.maximum.unwrap_or(descriptors))
}
