//! All measurements of Towpath, each with its peers in the same run, and the demo.
//!
//! [`run`] runs a measurement by name: Towpath and its peers in alternating runs. The result is printed as a table, as Markdown or in the
//! common form (`--json`). The service and the library need nothing from this crate; only the command line calls it.
#![deny(unsafe_code)]

mod affinity;
mod bars;
mod bulk;
mod ccp_figures;
mod ccp_kernel;
mod ccp_virtual;
mod channels;
mod client;
mod clock;
mod cores;
mod cpu;
mod crowd;
mod dctcp_rate;
mod demo;
mod echo;
mod exchange;
mod flood;
mod floor;
mod idle;
mod interrupt;
mod iperf;
mod isolation;
mod kv;
mod launch;
mod loss;
mod markdown;
mod memcached;
mod modules;
mod nginx;
mod options;
mod parallel;
mod peer;
mod program;
mod programs;
mod redis;
mod report;
mod rig;
mod ring;
mod ring_idle;
mod roles;
mod samples;
mod served;
mod sockets;
mod sockperf;
mod spikes;
mod stackmap;
mod start;
mod stream;
mod table;
mod tap;

pub use options::Options;
pub use report::{Machine, Ratio, Report, Row};

use anyhow::bail;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

/// A measurement with its name.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(&Options) -> anyhow::Result<Report>,
}

/// All measurements, in the order in which `all` runs them.
const BENCHES: &[Bench] = &[
    Bench { name: "redis", about: "redis on one host: Towpath and kernel loopback", run: redis::local::run },
    Bench { name: "memcached", about: "memcached on one host, asked by our own client", run: memcached::run },
    Bench {
        name: "nginx",
        about: "nginx and wrk on one host: a file of 1 KiB over kept connections",
        run: nginx::run,
    },
    Bench {
        name: "start",
        about: "starts of short programs on one host: curl of one page, and a program without sockets",
        run: start::run,
    },
    Bench {
        name: "sockperf",
        about: "sockperf on one host: one connection, round trips and messages one way",
        run: sockperf::run,
    },
    Bench { name: "iperf", about: "one iperf3 stream on one host, both ways", run: iperf::run },
    Bench {
        name: "redis-tap",
        about: "redis over TAP: kernel client to Towpath, kernel to kernel",
        run: redis::tap::run,
    },
    Bench {
        name: "redis-veth",
        about: "redis over veth: kernel client to Towpath, kernel to kernel",
        run: redis::veth::run,
    },
    Bench {
        name: "programs-veth",
        about: "iperf3, pgbench and ab over veth beside two kernels; redis beside 300 idle programs",
        run: programs::run,
    },
    Bench {
        name: "iperf-tap",
        about: "one iperf3 stream over TAP, both ways, with and without offloads",
        run: tap::towpath::run,
    },
    Bench {
        name: "bulk",
        about: "100 bulk flows over TAP and veth, Towpath or the kernel at either end, beside two kernels",
        run: bulk::run,
    },
    Bench {
        name: "isolation",
        about: "small requests beside iperf3 -P 8 over veth and TAP, into the server and out of it",
        run: isolation::run,
    },
    Bench {
        name: "channels",
        about: "two services over veth: 64-byte RPCs and a stream by channel and by plain TCP, a stopped reader",
        run: channels::run,
    },
    Bench {
        name: "sockets",
        about: "what sockets cost beside the kernel's: waking, epoll with 10,000, making and ending, fork, memory",
        run: sockets::run,
    },
    Bench {
        name: "rpc",
        about: "64-byte RPCs with sockets on one host: connections that stay, and short ones",
        run: sockets::run_rpc,
    },
    Bench {
        name: "pipeline",
        about: "messages one way with sockets on one host, 32 to 2,048 bytes, with work for each",
        run: sockets::pipeline::run,
    },
    Bench {
        name: "peers",
        about: "64-byte RPCs beside every kernel: loopback, veth, epoll, io_uring, busy polling, pinned",
        run: sockets::peers::run,
    },
    Bench {
        name: "ring",
        about: "64-byte RPCs with sockets, answered by a ring, by sockets, by the kernel's epoll and io_uring",
        run: ring::run,
    },
    Bench {
        name: "stackmap",
        about: "HTTP and messages with a head, answered by a ring, by sockets, by the kernel's epoll and io_uring",
        run: stackmap::run,
    },
    Bench {
        name: ring_idle::NAME,
        about: "idle connections held by rings of several processes (--processes, --connections): memory of each",
        run: ring_idle::run,
    },
    Bench {
        name: "kv",
        about: "a key-value store that does not scale, and its latency while little is asked",
        run: kv::run,
    },
    Bench {
        name: "stream",
        about: "stream analytics: tuples through three stages on one host, with and without batching",
        run: stream::run,
    },
    Bench {
        name: idle::NAME,
        about: "connections on which nothing happens: processor time of 1,000, memory of many (--connections)",
        run: idle::run,
    },
    Bench {
        name: "crowd",
        about: "registration of a program, and reports for root, while another user asks the service without end",
        run: crowd::run,
    },
    Bench {
        name: loss::NAME,
        about: "bulk transfer under loss and reordering over an emulated link, beside the kernel; takes an hour",
        run: loss::run,
    },
    Bench {
        name: "echo",
        about: "64-byte RPCs over the memory port, 1 to 64,000 connections: what the fast path costs alone",
        run: echo::run,
    },
    Bench {
        name: "floor",
        about: "the cache lines of a 64-byte RPC between two cores, without TCP: what `echo` cannot do without",
        run: floor::run,
    },
    Bench {
        name: "modules",
        about: "where the cycles of a 64-byte RPC go: by module, on the kernel, with sockets, and with the low-level API",
        run: modules::run,
    },
    Bench {
        name: "dctcp-rate",
        about: "figures 11, 12 and 13 of the TAS paper in the simulator; --seconds 11: 2,560 machines, 15 GB",
        run: dctcp_rate::run,
    },
    Bench {
        name: "ccp",
        about: "table 1 and figures 12 to 14 of the CCP paper: a report and its answer, 1 to 10,000 flows with an agent, late windows; what a trial takes",
        run: ccp_figures::run,
    },
    Bench {
        name: "ccp-virtual",
        about: "figures 3, 5 and 7 to 11 of the CCP paper in the simulator: programs and agents beside the built-in laws",
        run: ccp_virtual::run,
    },
    Bench {
        name: "ccp-kernel",
        about: "figure 13 of the TAS paper with kernel senders, figures 3, 8 and 10 of the CCP paper: the same programs on the kernel and on Towpath",
        run: ccp_kernel::run,
    },
    Bench {
        name: "cores",
        about: "two cores' work beside one's over the memory port; figures 14 and 15 of the TAS paper in the simulator",
        run: cores::run,
    },
    Bench {
        name: "syn-flood",
        about: "64 RPC flows and new connections beside 200,000 SYN/s, over the memory port",
        run: flood::run,
    },
    Bench {
        name: "spike-handover",
        about: "a request over and back between processes: directly, relayed, through the kernel",
        run: spikes::handover::run,
    },
    Bench {
        name: "spike-placeholder",
        about: "what candidate descriptors for an accepted connection cost",
        run: spikes::placeholder::run,
    },
    Bench {
        name: "spike-memory",
        about: "flow records and rings at random, holes punched by an enemy, iperf3 between kernels",
        run: spikes::memory::run,
    },
    Bench {
        name: PART_OF_ANOTHER,
        about: "iperf3 between two kernels over TAP and veth: the last part of spike-memory",
        run: tap::baseline::run,
    },
];

const PART_OF_ANOTHER: &str = "tap-baseline";
const SPIKES: [&str; 3] = ["spike-handover", "spike-placeholder", "spike-memory"];

/// True if `all` runs the measurement. It leaves out `loss`, which takes longer than all others together, and the spikes, which once
/// decided design questions and are not part of the evaluation.
fn is_of_all(name: &str) -> bool {
    name != loss::NAME && name != PART_OF_ANOTHER && !SPIKES.contains(&name)
}

/// The names that [`run`] takes, each with a line about it.
#[must_use]
pub fn names() -> Vec<(&'static str, &'static str)> {
    let all =
        ("all", "every measurement above but loss, one after the other; with --quick under ten minutes");
    let (of_all, others): (Vec<&Bench>, Vec<&Bench>) =
        BENCHES.iter().partition(|bench| bench.name == loss::NAME || is_of_all(bench.name));
    let named = |benches: Vec<&'static Bench>| benches.into_iter().map(|bench| (bench.name, bench.about));
    named(of_all).chain([all]).chain(named(others)).collect()
}

/// Runs the measurement `name` with the arguments that follow it on the command line (see [`Options`]) and prints the result on standard
/// output. The exit code is a failure if the report has failures.
///
/// # Errors
/// An unknown name (the message lists the known ones), wrong arguments, or a program or right that the measurement needs is missing.
pub fn run(name: &str, args: &[String]) -> anyhow::Result<ExitCode> {
    if name == peer::HIDDEN_NAME {
        roles::main(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    if matches!(name, "--help" | "-h" | "help") {
        writeln!(std::io::stdout().lock(), "{}", help())?;
        return Ok(ExitCode::SUCCESS);
    }
    let began = Instant::now();
    if name == loss::NAME {
        return Ok(match options::parse_for::<loss::Arguments>(name, args)? {
            Ok(arguments) => finish(&loss::measure(&arguments)?, &arguments.common, began)?,
            Err(code) => code,
        });
    }
    if name == idle::NAME {
        return Ok(match options::parse_for::<idle::Arguments>(name, args)? {
            Ok(arguments) => finish(&idle::measure(&arguments)?, &arguments.common, began)?,
            Err(code) => code,
        });
    }
    if name == ring_idle::NAME {
        return Ok(match options::parse_for::<ring_idle::Arguments>(name, args)? {
            Ok(arguments) => finish(&ring_idle::measure(&arguments)?, &arguments.common, began)?,
            Err(code) => code,
        });
    }
    let chosen: Vec<&Bench> = BENCHES
        .iter()
        .filter(|bench| name == bench.name || (name == "all" && is_of_all(bench.name)))
        .collect();
    if chosen.is_empty() {
        bail!("{}", unknown(name));
    }
    let options = match options::parse_for::<Options>(name, args)? {
        Ok(options) => options,
        Err(code) => return Ok(code),
    };
    let mut code = ExitCode::SUCCESS;
    for bench in chosen {
        let since = Instant::now();
        let report = match (bench.run)(&options) {
            Ok(report) => report,
            // The other measurements still run.
            Err(error) if name == "all" => {
                let mut failed = Report::new(bench.name);
                failed.failures.push(format!("{error:#}"));
                failed
            }
            Err(error) => return Err(error),
        };
        if finish(&report, &options, since)? == ExitCode::FAILURE {
            code = ExitCode::FAILURE;
        }
    }
    if name == "all" {
        say_time(name, began);
    }
    Ok(code)
}

/// Prints the duration on standard error, apart from the results.
fn say_time(name: &str, since: Instant) {
    eprintln!("towpath bench {name}: took {:.0} s", since.elapsed().as_secs_f64());
}

/// Prints the report. The exit code is a failure if the report has failures.
fn finish(report: &Report, options: &Options, since: Instant) -> anyhow::Result<ExitCode> {
    report.print(options)?;
    say_time(&report.name, since);
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs redis through Towpath and on the kernel in turns, and prints both results. Works without root.
///
/// # Errors
/// One line that says what is missing and how to get it.
pub fn demo() -> anyhow::Result<()> {
    demo::run()
}

fn help() -> String {
    format!(
        "Measures Towpath, with the kernel as peer in the same run.\n\n\
         Usage: towpath bench NAME [OPTIONS]\n\n\
         Measurements:{}\n\n\
         Options of each: towpath bench NAME --help\n\n\
         Examples:\n  towpath bench redis --quick\n  towpath bench all --json\n  \
         towpath bench loss --resume FILE",
        list()
    )
}

fn unknown(name: &str) -> String {
    match name {
        "" => format!("say what to measure:{}", list()),
        _ => format!("no measurement is called {name:?}; there are:{}", list()),
    }
}

fn list() -> String {
    names().iter().map(|(name, about)| format!("\n  {name:<18} {about}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_leaves_out_has_a_name_of_its_own() {
        let left_out: Vec<_> =
            BENCHES.iter().map(|bench| bench.name).filter(|name| !is_of_all(name)).collect();
        let [handover, placeholder, memory] = SPIKES;
        assert_eq!(left_out, [loss::NAME, handover, placeholder, memory, PART_OF_ANOTHER]);
    }
}
