//! The measurement `pipeline`: one-way messages over many connections, pipelined (TAS, Figure 6). A server with one thread receives or
//! sends them and does some work for each; the peer only moves bytes.

use super::acts::pipeline::{Ask, Part, work};
use super::ask;
use super::pair::Pair;
use super::raise_limit;
use crate::bars::{self, Bar, Limit, Measure};
use crate::clock;
use crate::cpu::Meter;
use crate::launch::{Port, Service};
use crate::redis::local;
use crate::samples::{Sample, Samples};
use crate::{Options, Report};
use anyhow::{Context, bail};

/// Number of connections (TAS: 100).
const CONNECTIONS: u32 = 100;
/// Bytes per call of the peer.
const BULK: u32 = 64 * 1024;

const KERNEL: Measure = Measure::Over("kernel");
const BARS: &[Bar] = &[
    Bar { cases: "pipeline/250c/rx/", metric: "rate", measure: KERNEL, limit: Limit::Least(4.0) },
    Bar { cases: "pipeline/250c/tx/", metric: "rate", measure: KERNEL, limit: Limit::Least(6.0) },
];

/// The server's handling of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    /// Receive messages, each with one call.
    Rx,
    /// Receive all bytes that are there with each call.
    RxGathered,
    /// Send messages, each with one call.
    Tx,
}

/// A case of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    direction: Direction,
    /// Bytes of a message.
    bytes: u32,
    /// Cycles of the server's work for each message.
    cycles: u32,
}

impl Case {
    /// The points of the figure (some of them with `--quick`), and one case with gathered receiving.
    fn all(options: &Options) -> Vec<Self> {
        let (sizes, few): (&[u32], &[u32]) = match options.quick {
            true => (&[32, 128, 2048], &[64]),
            false => (&[32, 64, 128, 256, 512, 1024, 2048], &[32, 64, 128, 256, 512, 1024, 2048]),
        };
        let of = |direction, sizes: &[u32], cycles| -> Vec<Self> {
            sizes.iter().map(|&bytes| Self { direction, bytes, cycles }).collect()
        };
        let mut cases = Vec::new();
        for (sizes, cycles) in [(sizes, 250), (few, 1000)] {
            for direction in [Direction::Rx, Direction::Tx] {
                cases.extend(of(direction, sizes, cycles));
            }
        }
        cases.extend(of(Direction::RxGathered, &[64], 250));
        cases
    }

    /// The case's name in results.
    fn path(self) -> String {
        let direction = match self.direction {
            Direction::Rx => "rx",
            Direction::RxGathered => "rx-gathered",
            Direction::Tx => "tx",
        };
        format!("pipeline/{}c/{direction}/{}B", self.cycles, self.bytes)
    }

    /// Measures the case once on a new pair of processes; the far process is the server.
    fn measure(self, system: Option<&Service>, seconds: f64, samples: &mut Samples) -> anyhow::Result<()> {
        let pair = Pair::start(system)?;
        pair.connect(CONNECTIONS - 1)?;
        let milliseconds = (seconds * 1e3) as u32;
        let gathered = (BULK / self.bytes).max(1);
        let mover = Part { bytes: self.bytes, at_once: gathered, cycles: 0, milliseconds };
        let server = Part { at_once: 1, cycles: self.cycles, ..mover };
        let (near, far) = match self.direction {
            Direction::Rx => (Ask::Send(mover), Ask::Receive(server)),
            Direction::RxGathered => (Ask::Send(mover), Ask::Receive(Part { at_once: gathered, ..server })),
            Direction::Tx => (Ask::Receive(mover), Ask::Send(server)),
        };
        let (start, meter) = (clock::now_ns(), Meter::start(&pair.pids()));
        let (near, far) = pair.both(&ask::Ask::Pipeline(near), &ask::Ask::Pipeline(far))?;
        let (cpu_ns, wall_ns) = (meter.used_ns() as f64, (clock::now_ns() - start) as f64);
        // Only the receiving end answers with numbers.
        let [messages, ns, all] = [near, far].concat()[..] else { bail!("no answer of the receiver") };
        let sample =
            Sample { value: messages * 1e9 / ns, cores: Some(cpu_ns / wall_ns), cpu_ns: Some(cpu_ns / all) };
        samples.add(&self.path(), pair.name, "rate", "messages/s", sample);
        Ok(())
    }
}

/// Runs the measurement `pipeline`.
///
/// # Errors
/// When the service does not start, descriptors are too few, or a process fails.
pub fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("pipeline");
    raise_limit()?;
    local::limit_cores(&mut report)?;
    let service = Service::start(options, Port::None)?;
    let mut samples = Samples::default();
    for run in 0..options.runs() {
        for case in Case::all(options) {
            for system in [Some(&service), None] {
                let measured = case.measure(system, options.seconds(), &mut samples);
                measured.with_context(|| format!("{}, run {}", case.path(), run + 1))?;
            }
        }
    }
    service.stop();
    report.note(format!(
        "{CONNECTIONS} connections; the server moves a message by each call (rx-gathered: what there is, up to {} KiB), the \
         other end {} KiB; 250 and 1,000 cycles of work took {:.0} and {:.0} ns here",
        BULK / 1024,
        BULK / 1024,
        work_ns(250),
        work_ns(1000)
    ));
    report.note("processor time: both processes, the service and ksoftirqd, per message");
    report.rows = samples.rows();
    report.ratios = samples.ratios("towpath", &["kernel"]);
    bars::judge(&mut report, "towpath", BARS);
    Ok(report)
}

/// Nanoseconds that the work for one message takes.
fn work_ns(cycles: u32) -> f64 {
    const TIMES: u32 = 10_000;
    let start = clock::now_ns();
    (0..TIMES).for_each(|_| work(cycles));
    (clock::now_ns() - start) as f64 / f64::from(TIMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_has_cases_in_a_quick_run() {
        let mut options = Options::default_for_demo();
        for quick in [true, false] {
            options.quick = quick;
            let paths: Vec<String> = Case::all(&options).into_iter().map(Case::path).collect();
            for bar in BARS {
                assert!(paths.iter().any(|path| path.starts_with(bar.cases)), "{}", bar.cases);
            }
        }
    }
}
