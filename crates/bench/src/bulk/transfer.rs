//! One run: flows from a source in one place to a sink in another, and what arrived in a while.

use super::carrier;
use super::fairness::Fairness;
use super::sink::{self, Ask, Count, Each};
use super::source::{self, Open};
use crate::cpu::Meter;
use crate::interrupt::pause;
use crate::launch::{Service, prove};
use crate::peer::{self, Peer};
use crate::samples::Sample;
use crate::tap::iperf::OPERATION;
use crate::tap::link::Link;
use crate::tap::namespace::Namespace;
use crate::{clock, program};
use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use std::net::{Ipv4Addr, SocketAddr};

/// Where sinks listen.
const TCP_PORT: u16 = 5001;
/// Seconds that starting, opening, or an answer may take.
const PATIENCE: f64 = 10.0;
/// Seconds that ending may take: the source has the resets by then.
const END: f64 = 1.0;
/// What comes before the measured time, as a share of it: windows grow meanwhile, and buffers come into being.
const WARM_UP: f64 = 0.75;
/// The kernel's congestion control, which is the service's default: the machine's own may be any.
const CONGESTION: &str = "cubic";

/// Where a process runs, and on what.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// On the kernel, there.
    Kernel(&'a Namespace),
    /// Through a service with a port.
    Towpath(&'a Service),
    /// At that end of a link that is nobody's else, by what carries bytes and no more.
    Carrier(&'a Link, usize),
}

impl<'a> Place<'a> {
    fn start(self, role: &str) -> anyhow::Result<Peer> {
        let program = peer::own_program()?;
        match self {
            Self::Kernel(namespace) => Peer::start_by(namespace.command_of(&program)?, role),
            Self::Towpath(service) => Peer::start_by(service.command_of(&program), role),
            Self::Carrier(..) => Peer::start(role),
        }
    }

    /// Starts what receives at `at`.
    fn sink(self, at: SocketAddr) -> anyhow::Result<Peer> {
        if let Self::Carrier(link, end) = self {
            let sink = self.start(carrier::SINK)?;
            sink.send(&carrier::Orders::new(link, end, at, 0), &[])?;
            return Ok(sink);
        }
        let sink = self.start(sink::ROLE)?;
        sink.send(&sink::Orders { at }, &[])?;
        Ok(sink)
    }

    /// Starts what sends to `to`.
    fn source(self, to: SocketAddr, flows: u16) -> anyhow::Result<Peer> {
        if let Self::Carrier(link, end) = self {
            let source = self.start(carrier::SOURCE)?;
            source.send(&carrier::Orders::new(link, end, to, flows), &[])?;
            return Ok(source);
        }
        let source = self.start(source::ROLE)?;
        // A service has an algorithm of its own.
        let congestion = self.service().is_none().then(|| CONGESTION.to_owned());
        source.send(&source::Orders { to, flows, congestion }, &[])?;
        Ok(source)
    }

    fn service(self) -> Option<&'a Service> {
        match self {
            Self::Kernel(_) | Self::Carrier(..) => None,
            Self::Towpath(service) => Some(service),
        }
    }
}

/// From where to where.
pub struct Way<'a> {
    pub source: Place<'a>,
    pub sink: Place<'a>,
    /// The sink's.
    pub address: Ipv4Addr,
    /// Processes between the two, beside services.
    pub between: Vec<u32>,
}

/// What a run gave.
pub struct Outcome {
    /// Gbit/s that the receiving program got, cores, and processor time per MiB of it.
    pub goodput: Sample,
    /// Gbit/s in the warm-up.
    pub at_first: f64,
    /// Of the bytes that each flow brought.
    pub fairness: Fairness,
}

impl Way<'_> {
    /// One run of so many flows, with processes of its own.
    ///
    /// # Errors
    /// When anything does not start, or is not accelerated where it has to be.
    pub fn run(&self, flows: u16, seconds: f64) -> anyhow::Result<Outcome> {
        let at = SocketAddr::from((self.address, TCP_PORT));
        let sink = self.sink.sink(at)?;
        sink.receive_within::<Count>(PATIENCE).context("the sink does not listen")?;
        let source = self.source.source(at, flows)?;
        source.receive_within::<Open>(PATIENCE).context("the flows did not open")?;
        // A carrier's flows begin with their first bytes.
        if !matches!(self.source, Place::Carrier(..)) {
            program::until(PATIENCE, "the acceptance of all flows", || {
                let count = ask::<Count>(&sink, Ask::Count).ok()?;
                (u64::from(flows) <= count.connections).then_some(())
            })?;
            let told = ask::<Each>(&sink, Ask::Each)?.bytes.len();
            if told < usize::from(flows) {
                bail!("the sink tells of {told} of {flows} flows");
            }
        }
        self.prove(&source, &sink, flows)?;
        let start_ns = clock::now_ns();
        source.send(&Open(flows), &[])?;
        pause(WARM_UP * seconds)?;
        let outcome = self.measure(&source, &sink, start_ns, seconds);
        ask::<Count>(&sink, Ask::Reset)?;
        source.wait(END)?;
        outcome
    }

    /// The services' own counters say what carries the flows.
    fn prove(&self, source: &Peer, sink: &Peer, flows: u16) -> anyhow::Result<()> {
        let connected = self.source.service().map(|service| service.connected(source.pid()));
        let accepted = self.sink.service().map(|service| service.accepted(Some(sink.pid())));
        for (told, what) in [(connected, "made"), (accepted, "accepted")] {
            let Some(accelerated) = told.transpose()? else { continue };
            prove(accelerated, flows.into()).with_context(|| format!("where they were {what}"))?;
        }
        Ok(())
    }

    /// `start_ns`: when the bytes began to flow.
    fn measure(&self, source: &Peer, sink: &Peer, start_ns: u64, seconds: f64) -> anyhow::Result<Outcome> {
        let services = [self.source, self.sink].into_iter().filter_map(Place::service).map(Service::pid);
        let pids: Vec<u32> =
            [source.pid(), sink.pid()].into_iter().chain(services).chain(self.between.clone()).collect();
        let (meter, metered_ns) = (Meter::start(&pids), clock::now_ns());
        let first: Each = ask(sink, Ask::Each)?;
        pause(seconds)?;
        let last: Each = ask(sink, Ask::Each)?;
        let (cpu_ns, wall_ns) = (meter.used_ns() as f64, (clock::now_ns() - metered_ns) as f64);
        let pairs = first.bytes.iter().zip(&last.bytes);
        let shares: Vec<f64> = pairs.map(|(first, last)| (last - first) as f64).collect();
        let bytes: f64 = shares.iter().sum();
        let goodput = Sample {
            value: gigabits_per_second(bytes, last.at_ns - first.at_ns),
            cores: Some(cpu_ns / wall_ns),
            cpu_ns: Some(cpu_ns / (bytes / OPERATION)),
        };
        let at_first = gigabits_per_second(first.bytes.iter().sum::<u64>() as f64, first.at_ns - start_ns);
        let fairness = Fairness::of(&shares).context("most flows brought nothing")?;
        Ok(Outcome { goodput, at_first, fairness })
    }
}

fn gigabits_per_second(bytes: f64, ns: u64) -> f64 {
    bytes * 8.0 / ns as f64
}

fn ask<T: DeserializeOwned>(sink: &Peer, what: Ask) -> anyhow::Result<T> {
    sink.send(&what, &[])?;
    sink.receive_within(PATIENCE)
}
