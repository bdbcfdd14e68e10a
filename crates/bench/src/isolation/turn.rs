//! One run of one case on one system: a server that echoes, its client, and the bulk flows beside them. Each run has processes of its own.

use super::Case;
use super::flows::{Bulk, By, Carried, Flows};
use super::mixed;
use super::pings::{self, Latencies};
use crate::clock;
use crate::cpu::Meter;
use crate::launch;
use crate::peer::{self, Peer};
use crate::samples::Sample;
use crate::served::{Host, Starter};
use crate::sockets::actor::Answer;
use crate::sockets::ask::{self, Ask};
use crate::sockets::echo;
use crate::tap::iperf::OPERATION;
use anyhow::{Context, bail};
use std::net::SocketAddrV4;

/// Seconds allowed for an answer of a process, besides the time in which it sends requests.
const PATIENCE: f64 = 20.0;
/// The client's pause between a reply and the next request.
pub const THINK_US: u32 = 200;
/// The share of a run's time that the requests get when they are alone: they need not wait for bulk flows to open and to end.
const ALONE: f64 = 0.3;
/// The most tries to open the bulk flows in time, each with a second more of them.
const TRIES: u64 = 4;

/// The results of one run.
pub struct Outcome {
    pub latencies: Latencies,
    /// What the bulk flows carried; `None` when the requests were alone.
    pub carried: Option<Carried>,
    cores: Option<f64>,
    cpu_ns: Option<f64>,
}

impl Outcome {
    /// `value` as a sample, with the cores of this run and its processor time: per MiB of the bulk flows, or per request if there are none.
    pub fn sample(&self, value: f64) -> Sample {
        Sample { value, cores: self.cores, cpu_ns: self.cpu_ns }
    }
}

/// Runs the case once; bulk flows take `seconds`, rounded up to whole ones, and longer where a busy machine opens them too late.
///
/// # Errors
/// When a process does not start or does not answer, connections are not accelerated where they must be, or the bulk flows fail.
pub fn measure(host: &Host<'_>, case: Case, seconds: f64) -> anyhow::Result<Outcome> {
    // iperf3 takes whole seconds only.
    let whole = seconds.ceil().max(1.0);
    let Some(bulk) = case.bulk else { return alone(host, case, whole * ALONE) };
    if bulk.by == By::SameProcess {
        return of_one_process(host, case, bulk, whole);
    }
    for more in 0..TRIES {
        if let Some(outcome) = beside(host, case, bulk, whole as u64 + more)? {
            return Ok(outcome);
        }
    }
    bail!("in {TRIES} tries the bulk flows opened too late to measure anything beside them")
}

fn alone(host: &Host<'_>, case: Case, seconds: f64) -> anyhow::Result<Outcome> {
    let requests = Requests::open(host, case.connections)?;
    let meter = Meter::start(&[&requests.pids(), host.between.as_slice()].concat());
    let since_ns = clock::now_ns();
    let latencies = requests.measure(case.bytes, since_ns + (seconds * 1e9) as u64)?;
    let (cpu_ns, wall_ns) = (meter.used_ns() as f64, (clock::now_ns() - since_ns) as f64);
    let (cores, cpu_ns) = (Some(cpu_ns / wall_ns), Some(cpu_ns / latencies.requests));
    Ok(Outcome { latencies, carried: None, cores, cpu_ns })
}

/// Runs the case beside bulk flows of `seconds`. `None` if they opened too late.
fn beside(host: &Host<'_>, case: Case, bulk: Bulk, seconds: u64) -> anyhow::Result<Option<Outcome>> {
    let requests = Requests::open(host, case.connections)?;
    let flows = Flows::start(host, bulk, seconds, &requests.pids())?;
    let Some(until_ns) = flows.free_until_ns() else { return flows.end().map(|_| None) };
    let latencies = requests.measure(case.bytes, until_ns)?;
    let carried = flows.end()?;
    let Sample { cores, cpu_ns, .. } = carried.rate;
    Ok(Some(Outcome { latencies, carried: Some(carried), cores, cpu_ns }))
}

/// Runs the case with bulk flows of the processes that send and answer the requests, for `seconds`.
fn of_one_process(host: &Host<'_>, case: Case, bulk: Bulk, seconds: f64) -> anyhow::Result<Outcome> {
    let requests = Requests::connect(host, case.connections + bulk.flows)?;
    // Both processes say themselves what their threads have used, which end before they can be asked.
    let meter = Meter::start(&host.between);
    let since_ns = clock::now_ns();
    let Bulk { flows, direction, .. } = bulk;
    let pings =
        pings::Ask { bytes: case.bytes, think_us: THINK_US, end_ns: since_ns + (seconds * 1e9) as u64 };
    let ask = mixed::Ask { flows, direction, pings: None };
    requests.server.send(&Ask::Mixed(ask), &[])?;
    requests.client.send(&Ask::Mixed(mixed::Ask { pings: Some(pings), ..ask }), &[])?;
    let mut said = requests.client.receive_within::<Answer>(seconds + PATIENCE).context("the client")?;
    let wall_ns = (clock::now_ns() - since_ns) as f64;
    let heard = requests.server.receive_within::<Answer>(PATIENCE).context("the server")?;
    let mut cpu_ns = meter.used_ns() as f64 + said.pop().context("no answer of the client")?;
    let at_client = said.pop().context("the client said too little")?;
    let [.., at_server, of_server_ns] = heard[..] else { bail!("the server said too little") };
    let bytes = at_client + at_server;
    cpu_ns += of_server_ns;
    let latencies = Latencies::new(&said)?;
    let (cores, per_mib) = (Some(cpu_ns / wall_ns), Some(cpu_ns / (bytes / OPERATION)));
    let rate = Sample { value: bytes * 8.0 / wall_ns, cores, cpu_ns: per_mib };
    let carried = Carried { rate, bytes_per_processor_second: bytes / (cpu_ns / 1e9) };
    Ok(Outcome { latencies, carried: Some(carried), cores, cpu_ns: per_mib })
}

/// A server that echoes and its client, with connections between them.
pub struct Requests {
    server: Peer,
    /// The process that sends requests.
    pub client: Peer,
}

impl Requests {
    /// Starts both on `host`; the server echoes until the client has closed all connections.
    ///
    /// # Errors
    /// When a process does not start or does not answer, or connections are not accelerated where they must be.
    pub fn open(host: &Host<'_>, connections: u32) -> anyhow::Result<Self> {
        let requests = Self::connect(host, connections)?;
        // It answers when the client has closed all connections.
        requests.server.send(&Ask::Echo(echo::Ask::Epoll), &[])?;
        Ok(requests)
    }

    /// Starts both on `host`; the server does not read.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn connect(host: &Host<'_>, connections: u32) -> anyhow::Result<Self> {
        let requests = Self { server: start(&host.server)?, client: start(&host.client)? };
        let Self { server, client } = &requests;
        let port = *ask(server, &Ask::Listen(host.address))?.first().context("no port of the server")?;
        ask(client, &Ask::Connect(SocketAddrV4::new(host.address, port as u16), connections))?;
        ask(server, &Ask::Accept(connections))?;
        if let Some(service) = host.service {
            launch::prove(service.accepted(Some(server.pid()))?, connections).context("the requests")?;
        }
        Ok(requests)
    }

    /// The ids of both processes.
    pub fn pids(&self) -> Vec<u32> {
        vec![self.server.pid(), self.client.pid()]
    }

    /// Sends requests until the time `end_ns` and waits for their replies.
    fn measure(&self, bytes: u32, end_ns: u64) -> anyhow::Result<Latencies> {
        let pings = pings::Ask { bytes, think_us: THINK_US, end_ns };
        self.client.send(&Ask::Pings(pings), &[])?;
        let seconds = end_ns.saturating_sub(clock::now_ns()) as f64 / 1e9;
        let answer = self.client.receive_within::<Answer>(seconds + PATIENCE).context("the client")?;
        Latencies::new(&answer)
    }
}

fn start(starter: &Starter<'_>) -> anyhow::Result<Peer> {
    let program = peer::own_program()?;
    Peer::start_by(starter(program.to_str().context("this program's own path is no text")?)?, ask::ROLE)
}

/// Sends a request and waits for its answer.
///
/// # Errors
/// When the process does not answer.
pub fn ask(process: &Peer, what: &Ask) -> anyhow::Result<Answer> {
    process.send(what, &[])?;
    process.receive_within(PATIENCE)
}
