//! The measurement `ring-idle`: connections without traffic, held by rings at both ends. Each process of one side accepts all its connections
//! from one process of the other side, so that a pair of processes shares one pair region, as far as its slots go.

pub mod holder;

use crate::bars::{self, Limit};
use crate::launch::{Port, Service};
use crate::peer::{Peer, own_program};
use crate::samples::Samples;
use crate::sockets::acts::memory::bytes;
use crate::table::number;
use crate::{Options, Report, clock, interrupt};
use clap::Parser;
use holder::{Ask, Told};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::{fs, process};

/// The measurement's name; it takes arguments of its own.
pub const NAME: &str = "ring-idle";

/// Seconds allowed for one step of one pair of processes.
const PATIENCE: f64 = 300.0;
/// Addresses at which each accepting process listens: a connecting one needs a local port of its own for each connection to one address.
const ADDRESSES: u8 = 8;
/// Connections of each pair that are made before the first look, so that one-time costs are not counted.
const WARM_UP: u32 = 256;
/// The most bytes of the library for each end of a connection.
const LIBRARY_MOST: f64 = 256.0;

/// The arguments of the measurement.
#[derive(Parser, Clone, Debug)]
#[command(no_binary_name = true, disable_version_flag = true)]
pub struct Arguments {
    #[command(flatten)]
    pub common: Options,
    /// Processes that accept, each with one ring; as many connect [default: 2, with --quick 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
    processes: Option<u8>,
    /// Connections of each process; a process has 65,536 places for sockets, of which the first is not used [default: 20,000, with --quick 5,000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1_000..=65_535))]
    connections: Option<u32>,
}

/// Runs the measurement with default arguments, for `all`.
///
/// # Errors
/// As [`measure`].
pub fn run(options: &Options) -> anyhow::Result<Report> {
    measure(&Arguments { common: options.clone(), processes: None, connections: None })
}

/// Runs the measurement.
///
/// # Errors
/// When the service does not start, or a process fails.
pub fn measure(arguments: &Arguments) -> anyhow::Result<Report> {
    let quick = arguments.common.quick;
    let processes = arguments.processes.unwrap_or(if quick { 1 } else { 2 });
    let connections = arguments.connections.unwrap_or(if quick { 5_000 } else { 20_000 });
    let service = Service::start(&arguments.common, Port::None)?;
    let pairs: Vec<Pair> = (0..processes).map(|i| Pair::start(&service, i)).collect::<anyhow::Result<_>>()?;
    for pair in &pairs {
        pair.open(WARM_UP)?;
    }
    let (before, start) = (Look::at(&service, &pairs)?, clock::now_ns());
    for pair in &pairs {
        interrupt::check()?;
        pair.open(connections - WARM_UP)?;
    }
    let elapsed_ns = clock::now_ns() - start;
    let after = Look::at(&service, &pairs)?;
    let opened = f64::from(u32::from(processes) * (connections - WARM_UP));
    let each = |side: fn(&Look) -> f64| (side(&after) - side(&before)) / opened;
    let case = format!("ring-idle/p{processes}/n{connections}");
    let mut samples = Samples::default();
    samples.add(&case, "ring", "opened", "1/s", opened * 1e9 / elapsed_ns as f64);
    let accepting = each(|look| look.accepting);
    samples.add(&case, "ring", "accepting end", "B", accepting);
    samples.add(&case, "ring", "connecting end", "B", each(|look| look.connecting));
    samples.add(&case, "ring", "shared", "B", each(|look| look.shared));
    samples.add(&case, "ring", "service", "B", each(|look| look.service));
    let mut report = Report::new(NAME);
    report.rows = samples.rows();
    let all = u32::from(processes) * connections;
    report.note(format!(
        "{} connections in all, {} for each of {processes} rings in processes of their own that accept, from as many rings that connect; bytes \
         of own memory of the processes (Anonymous of /proc/PID/smaps_rollup), of memory that all share, of which each connection has one \
         slot and two socket blocks, and of the service's own",
        number(f64::from(all)),
        number(f64::from(connections))
    ));
    let text = format!("{case}: accepting end {} bytes", number(accepting));
    bars::tell(&mut report, text, accepting, Limit::Most(LIBRARY_MOST));
    service.stop();
    Ok(report)
}

/// A process that accepts, and one that connects to it.
struct Pair {
    accepting: Peer,
    connecting: Peer,
}

impl Pair {
    fn start(service: &Service, number: u8) -> anyhow::Result<Self> {
        let start = || {
            let mut command = Command::new(own_program()?);
            command.env("TOWPATH_CONTROL", service.control());
            Peer::start_by(command, holder::ROLE)
        };
        let (accepting, connecting) = (start()?, start()?);
        // Addresses of an earlier run may still have connections in TIME_WAIT.
        let run = (process::id() % 200) as u8;
        let wanted = (1..=ADDRESSES).map(|i| SocketAddrV4::new(Ipv4Addr::new(127, 1 + run, number, i), 0));
        accepting.send(&Ask::Listen(wanted.collect()), &[])?;
        let Told { addresses } = accepting.receive_within(PATIENCE)?;
        connecting.send(&Ask::Reach(addresses), &[])?;
        connecting.receive_within::<Told>(PATIENCE)?;
        Ok(Self { accepting, connecting })
    }

    /// Opens `count` more connections.
    fn open(&self, count: u32) -> anyhow::Result<()> {
        for peer in [&self.accepting, &self.connecting] {
            peer.send(&Ask::Open(count), &[])?;
        }
        for peer in [&self.connecting, &self.accepting] {
            peer.receive_within::<Told>(PATIENCE)?;
        }
        Ok(())
    }
}

/// Bytes of memory in use at one moment.
struct Look {
    /// Own memory of all accepting processes, and of all connecting ones.
    accepting: f64,
    connecting: f64,
    service: f64,
    /// Shared memory of the whole machine, which contains the regions.
    shared: f64,
}

impl Look {
    fn at(service: &Service, pairs: &[Pair]) -> anyhow::Result<Self> {
        let own = |pid: u32| -> anyhow::Result<f64> {
            bytes(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?, "Anonymous")
        };
        let sum = |side: fn(&Pair) -> &Peer| pairs.iter().map(|pair| own(side(pair).pid())).sum();
        let accepting: anyhow::Result<f64> = sum(|pair| &pair.accepting);
        let connecting: anyhow::Result<f64> = sum(|pair| &pair.connecting);
        Ok(Self {
            accepting: accepting?,
            connecting: connecting?,
            service: own(service.pid())?,
            shared: bytes(&fs::read_to_string("/proc/meminfo")?, "Shmem")?,
        })
    }
}
