//! One run: flows from a source in one place to a sink in another, and the bytes that arrive in a given time.

use super::carrier;
use super::fairness::Fairness;
use super::sink::{self, Ask, Count, Each, TOLD_MAX};
use super::source::{self, Open};
use crate::cpu::{self, Meter};
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

/// The port at which sinks listen.
const TCP_PORT: u16 = 5001;
/// Seconds allowed for the start of a process, the opening of flows, or an answer.
const PATIENCE: f64 = 10.0;
/// Seconds allowed for the end of a source, which has received the resets by then.
const END: f64 = 1.0;
/// Duration of the warm-up as a share of the measured time: windows grow and buffers are allocated in it.
const WARM_UP: f64 = 0.75;
/// The kernel's congestion control: the service's default. The machine's own default may differ.
const CONGESTION: &str = "cubic";

/// Where an end of the flows runs, and on which TCP.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// On the kernel's TCP, in that network namespace.
    Kernel(&'a Namespace),
    /// On the TCP of a service that has a port.
    Towpath(&'a Service),
    /// A carrier (see [`carrier`]) at that end of a link that no other process uses.
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

    /// Starts a sink that receives at `at`.
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

    /// Starts a source that opens `flows` flows to `to`, with that congestion control of a service.
    fn source(self, to: SocketAddr, flows: u16, congestion: Option<&str>) -> anyhow::Result<Peer> {
        if let Self::Carrier(link, end) = self {
            let source = self.start(carrier::SOURCE)?;
            source.send(&carrier::Orders::new(link, end, to, flows), &[])?;
            return Ok(source);
        }
        let source = self.start(source::ROLE)?;
        let congestion = if self.service().is_some() { congestion } else { Some(CONGESTION) };
        let congestion = congestion.map(str::to_owned);
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

/// The two places of a transfer.
pub struct Way<'a> {
    pub source: Place<'a>,
    pub sink: Place<'a>,
    /// The address at which the sink listens.
    pub address: Ipv4Addr,
    /// The name that a source's sockets ask a service for; `None`: the service's default.
    pub congestion: Option<&'static str>,
    /// Ids of processes that the flows need besides services: what forwards packets between the two places, or decides about them.
    pub between: Vec<u32>,
}

/// The results of one run.
pub struct Outcome {
    /// Goodput in Gbit/s at the receiving program, cores used, and processor time per MiB.
    pub goodput: Sample,
    /// Goodput in Gbit/s during the warm-up.
    pub at_first: f64,
    /// Fairness, computed from the bytes of each of the first [`TOLD_MAX`] flows.
    pub fairness: Fairness,
    /// Processor time of the services per MiB, nanoseconds.
    pub services_ns: f64,
    /// Processor time of the processes of [`Way::between`] per MiB, nanoseconds.
    pub between_ns: f64,
}

impl Way<'_> {
    /// One run with `flows` flows and new processes.
    ///
    /// # Errors
    /// When a process does not start, or connections of a service are not accelerated.
    pub fn run(&self, flows: u16, seconds: f64) -> anyhow::Result<Outcome> {
        let at = SocketAddr::from((self.address, TCP_PORT));
        let sink = self.sink.sink(at)?;
        sink.receive_within::<Count>(PATIENCE).context("the sink does not listen")?;
        let source = self.source.source(at, flows, self.congestion)?;
        source.receive_within::<Open>(PATIENCE).context("the flows did not open")?;
        // A carrier's flows open with their first bytes, which are not sent yet.
        if !matches!(self.source, Place::Carrier(..)) {
            program::until(PATIENCE, "the acceptance of all flows", || {
                let count = ask::<Count>(&sink, Ask::Count).ok()?;
                (u64::from(flows) <= count.connections).then_some(())
            })?;
            let told = ask::<Each>(&sink, Ask::Each)?.bytes.len();
            if told < usize::from(flows).min(TOLD_MAX) {
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

    /// Checks by the services' counters that they carry the flows.
    fn prove(&self, source: &Peer, sink: &Peer, flows: u16) -> anyhow::Result<()> {
        let connected = self.source.service().map(|service| service.connected(Some(source.pid())));
        let accepted = self.sink.service().map(|service| service.accepted(Some(sink.pid())));
        for (told, what) in [(connected, "made"), (accepted, "accepted")] {
            let Some(accelerated) = told.transpose()? else { continue };
            prove(accelerated, flows.into()).with_context(|| format!("where they were {what}"))?;
        }
        Ok(())
    }

    /// Measures for `seconds`. `start_ns`: the time at which the source began to send.
    fn measure(&self, source: &Peer, sink: &Peer, start_ns: u64, seconds: f64) -> anyhow::Result<Outcome> {
        let services: Vec<u32> =
            [self.source, self.sink].into_iter().filter_map(Place::service).map(Service::pid).collect();
        let pids: Vec<u32> = [&[source.pid(), sink.pid()], services.as_slice(), &self.between]
            .into_iter()
            .flatten()
            .copied()
            .collect();
        let used_ns = |pids: &[u32]| pids.iter().filter_map(|pid| cpu::process_ns(*pid)).sum::<u64>();
        let before = [used_ns(&services), used_ns(&self.between)];
        let (meter, metered_ns) = (Meter::start(&pids), clock::now_ns());
        let first: Each = ask(sink, Ask::Each)?;
        pause(seconds)?;
        let last: Each = ask(sink, Ask::Each)?;
        let (cpu_ns, wall_ns) = (meter.used_ns() as f64, (clock::now_ns() - metered_ns) as f64);
        let after = [used_ns(&services), used_ns(&self.between)];
        let pairs = first.bytes.iter().zip(&last.bytes);
        let shares: Vec<f64> = pairs.map(|(first, last)| (last - first) as f64).collect();
        let bytes = (last.total - first.total) as f64;
        let per_operation =
            |part: usize| after[part].saturating_sub(before[part]) as f64 / (bytes / OPERATION);
        let goodput = Sample {
            value: gigabits_per_second(bytes, last.at_ns - first.at_ns),
            cores: Some(cpu_ns / wall_ns),
            cpu_ns: Some(cpu_ns / (bytes / OPERATION)),
        };
        let at_first = gigabits_per_second(first.total as f64, first.at_ns - start_ns);
        let fairness = Fairness::of(&shares).context("most flows brought nothing")?;
        let (services_ns, between_ns) = (per_operation(0), per_operation(1));
        Ok(Outcome { goodput, at_first, fairness, services_ns, between_ns })
    }
}

fn gigabits_per_second(bytes: f64, ns: u64) -> f64 {
    bytes * 8.0 / ns as f64
}

fn ask<T: DeserializeOwned>(sink: &Peer, what: Ask) -> anyhow::Result<T> {
    sink.send(&what, &[])?;
    sink.receive_within(PATIENCE)
}
