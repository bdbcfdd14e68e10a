//! The client of a server. Closed loop: each connection has one request under way. Open loop: requests are sent at times chosen beforehand,
//! whether or not replies have come. A request's latency counts from the time at which it was due, so the time in which it waited for other
//! requests (or for this process) is included (no "coordinated omission").

pub mod chance;
mod measured;
pub mod protocol;
pub mod timer;

use crate::clock;
use crate::cpu::Meter;
use crate::sockets::actor::{Actor, Answer};
use crate::sockets::calls;
use anyhow::{Context, bail};
use base::Seed;
use chance::{Poisson, Zipf};
use hdrhistogram::Histogram;
pub use measured::Measured;
use protocol::{Protocol, Request, Shape};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use timer::Timer;

/// The quantiles of latency in an answer; the longest latency follows them.
pub const QUANTILES: [f64; 6] = [0.5, 0.75, 0.9, 0.99, 0.999, 0.9999];
/// SET requests in 100 requests (TAS: 10).
const SETS: u64 = 10;
/// Number of requests chosen beforehand, used in turn: a power of two.
const CHOSEN: usize = 1 << 16;
/// Events taken by one `epoll_wait`.
const EVENTS: usize = 256;
/// Time without an answer after which the server counts as gone.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest latency of the histogram; longer ones count as this.
const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// The epoll data of the timer; connections have their index.
const TIMER: u64 = u64::MAX;

/// The requests of a run, and their times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    pub protocol: Protocol,
    pub shape: Shape,
    /// Zipf's exponent, in hundredths (TAS: 90).
    pub skew: u32,
    pub pace: Pace,
    pub milliseconds: u32,
    pub seed: u64,
    /// Processes that the processor time includes; this process must be among them.
    pub pids: Vec<u32>,
}

impl Load {
    /// RPCs with a request and a reply of 64 bytes, on each connection when its last one was answered.
    #[must_use]
    pub fn echo(seconds: f64, pids: Vec<u32>) -> Self {
        Self {
            protocol: Protocol::Echo,
            shape: Shape { keys: 1, key_bytes: 0, value_bytes: 64 },
            skew: 0,
            pace: Pace::Closed,
            milliseconds: (seconds * 1e3) as u32,
            seed: 0,
            pids,
        }
    }
}

/// When requests are sent.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Pace {
    /// On each connection when its last request was answered.
    Closed,
    /// That many under way, each on a random connection: the next request is sent when one was answered.
    Wandering(u32),
    /// That many per second, at random times; the client polls all the time, so that requests are sent when they are due.
    Polling(f64),
    /// As [`Polling`](Self::Polling), but the client sleeps until the next request or reply.
    Waiting(f64),
    /// The times of [`Waiting`](Self::Waiting) without requests; the timer is polled. A floor: no client that sleeps on a timer is faster.
    Timer(f64),
}

/// A request to the process of a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Set all keys of the store.
    Fill(Protocol, Shape),
    /// Send requests on all connections, then close them.
    Load(Load),
}

/// In the client's process: executes a request.
pub fn obey(actor: &mut Actor, ask: Ask) -> anyhow::Result<Answer> {
    match ask {
        Ask::Fill(protocol, shape) => fill(actor, protocol, shape).map(|()| Answer::new()),
        Ask::Load(load) => run(actor, load),
    }
}

/// Totals of the measured time of a run.
pub struct Window {
    pub requests: u64,
    pub ns: u64,
    pub cpu_ns: u64,
}

impl Window {
    /// The count of numbers in [`Window::answer`].
    pub const NUMBERS: usize = 3 + QUANTILES.len() + 1;

    /// The answer: requests, nanoseconds, processor time, then latencies in nanoseconds (see [`QUANTILES`]). [`Measured`] reads it.
    pub fn answer(&self, latencies: &Histogram<u64>) -> Answer {
        let shares = QUANTILES.iter().map(|share| latencies.value_at_quantile(*share));
        let numbers = [self.requests, self.ns, self.cpu_ns].into_iter().chain(shares);
        numbers.chain([latencies.max()]).map(|number| number as f64).collect()
    }
}

/// A histogram of latencies in nanoseconds.
pub fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)?)
}

/// Runs a load and returns its results.
fn run(actor: &mut Actor, load: Load) -> anyhow::Result<Answer> {
    let mut client = Client::new(std::mem::take(&mut actor.streams), load)?;
    client.meet()?;
    let meter = Meter::start(&client.load.pids);
    let start = clock::now_ns();
    let end = start + u64::from(client.load.milliseconds) * 1_000_000;
    let window = match client.load.pace {
        Pace::Closed | Pace::Wandering(_) => client.closed(start, end, &meter)?,
        Pace::Polling(rate) => client.open(start, end, rate, None, &meter)?,
        Pace::Waiting(rate) => {
            let timer = Timer::new(&client.set, TIMER)?;
            client.open(start, end, rate, Some(timer), &meter)?
        }
        Pace::Timer(rate) => client.only_timer(start, end, rate, &meter)?,
    };
    Ok(window.answer(&client.latencies))
}

/// Sets every key once.
fn fill(actor: &Actor, protocol: Protocol, shape: Shape) -> anyhow::Result<()> {
    const AT_ONCE: u32 = 64;
    let mut stream = actor.streams.first().context("no connection")?;
    let mut bytes = Vec::new();
    for first in (0..shape.keys).step_by(AT_ONCE as usize) {
        let keys = first..shape.keys.min(first + AT_ONCE);
        bytes.clear();
        keys.clone().for_each(|key| protocol.write(&shape, Request { key, is_set: true }, &mut bytes));
        stream.write_all(&bytes)?;
        let mut replies = vec![0; keys.len() * protocol.reply_bytes(&shape, true) as usize];
        stream.read_exact(&mut replies)?;
    }
    Ok(())
}

/// A request that was sent and not yet answered in full.
struct Due {
    /// The time at which it should have been sent.
    at_ns: u64,
    /// Bytes of the reply that have not arrived.
    left: u32,
    is_set: bool,
}

struct Connection {
    stream: TcpStream,
    under_way: VecDeque<Due>,
    is_new_reply: bool,
}

struct Client {
    load: Load,
    set: OwnedFd,
    connections: Vec<Connection>,
    chosen: Vec<Request>,
    random: Seed,
    next: usize,
    bytes: Vec<u8>,
    latencies: Histogram<u64>,
    answered: u64,
    asked: u64,
}

impl Client {
    fn new(streams: Vec<TcpStream>, load: Load) -> anyhow::Result<Self> {
        let set = calls::epoll_create()?;
        let mut connections = Vec::with_capacity(streams.len());
        for (i, stream) in streams.into_iter().enumerate() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            calls::epoll_add(&set, &stream, i as u64)?;
            connections.push(Connection { stream, under_way: VecDeque::new(), is_new_reply: true });
        }
        Ok(Self {
            set,
            connections,
            chosen: choose(load.shape.keys, load.skew, load.seed),
            random: Seed::new(load.seed),
            next: 0,
            bytes: Vec::new(),
            latencies: histogram()?,
            answered: 0,
            asked: 0,
            load,
        })
    }

    /// Sends one request on each connection, so that the measured time does not include the first use of the server and the connections.
    fn meet(&mut self) -> anyhow::Result<()> {
        self.first()?;
        while self.answered < self.asked {
            self.take(Some(PATIENCE), 0)?;
        }
        (self.answered, self.asked) = (0, 0);
        self.latencies.reset();
        Ok(())
    }

    /// Sends the first requests of a closed loop.
    fn first(&mut self) -> anyhow::Result<()> {
        if let Pace::Wandering(at_once) = self.load.pace {
            return (0..at_once).try_for_each(|_| self.ask_somewhere());
        }
        (0..self.connections.len()).try_for_each(|at| self.ask(at, clock::now_ns()))
    }

    fn ask_somewhere(&mut self) -> anyhow::Result<()> {
        let at = self.random.below(self.connections.len() as u64);
        self.ask(at as usize, clock::now_ns())
    }

    fn closed(&mut self, start: u64, end: u64, meter: &Meter) -> anyhow::Result<Window> {
        self.first()?;
        let mut measured = None;
        while self.answered < self.asked {
            self.take(Some(PATIENCE), end)?;
            let now = clock::now_ns();
            if now >= end && measured.is_none() {
                measured = Some(Window { requests: self.answered, ns: now - start, cpu_ns: meter.used_ns() });
            }
        }
        measured.context("all was answered before the time was over")
    }

    /// The loop of [`open`](Self::open) with requests that cost nothing and are answered at once: take the timer's event, arm it again, and
    /// count the answers.
    fn only_timer(&mut self, start: u64, end: u64, rate: f64, meter: &Meter) -> anyhow::Result<Window> {
        let mut timer = Timer::new(&self.set, TIMER)?;
        let mut times = Poisson::new(self.load.seed, start, rate);
        let (mut now, mut requests, mut due) = (start, 0, Vec::new());
        while now < end {
            while times.next_ns() <= now {
                due.push(times.next_ns());
                times.advance();
            }
            timer.arm(times.next_ns())?;
            now = clock::now_ns();
            requests += due.len() as u64;
            due.drain(..).for_each(|at| self.latencies.saturating_record(now - at));
            while !self.take(Some(Duration::ZERO), 0)? {}
            now = clock::now_ns();
        }
        Ok(Window { requests, ns: now - start, cpu_ns: meter.used_ns() })
    }

    fn open(
        &mut self,
        start: u64,
        end: u64,
        rate: f64,
        mut timer: Option<Timer>,
        meter: &Meter,
    ) -> anyhow::Result<Window> {
        let mut due = Poisson::new(self.load.seed, start, rate);
        let mut heard = start;
        loop {
            let now = clock::now_ns();
            while due.next_ns() <= now && due.next_ns() < end {
                self.ask(self.asked as usize % self.connections.len(), due.next_ns())?;
                due.advance();
            }
            let next = due.next_ns();
            if next >= end && self.answered == self.asked {
                return Ok(Window { requests: self.answered, ns: now - start, cpu_ns: meter.used_ns() });
            }
            let wait = match &mut timer {
                Some(timer) if next < end => {
                    timer.arm(next)?;
                    Some(PATIENCE)
                }
                Some(timer) => {
                    timer.disarm()?;
                    Some(PATIENCE)
                }
                None => Some(Duration::ZERO),
            };
            if self.take(wait, 0)? {
                heard = now;
            } else if now > heard + PATIENCE.as_nanos() as u64 {
                bail!("no answer of the server");
            }
        }
    }

    /// Waits for events and handles replies; with a closed loop sends new requests until the time `until`. True if there was an event.
    fn take(&mut self, wait: Option<Duration>, until: u64) -> anyhow::Result<bool> {
        let mut events = [calls::NO_EVENT; EVENTS];
        let count = calls::epoll_wait(&self.set, &mut events, wait)?;
        if count == 0 && wait == Some(PATIENCE) {
            bail!("no answer of the server");
        }
        for event in &events[..count] {
            // The timer only had to wake this thread; it is armed again later.
            let answered = if event.u64 == TIMER { 0 } else { self.hear(event.u64 as usize)? };
            let now = clock::now_ns();
            match self.load.pace {
                _ if now >= until => {}
                Pace::Closed => (0..answered).try_for_each(|_| self.ask(event.u64 as usize, now))?,
                Pace::Wandering(_) => (0..answered).try_for_each(|_| self.ask_somewhere())?,
                Pace::Polling(_) | Pace::Waiting(_) | Pace::Timer(_) => {}
            }
        }
        Ok(count > 0)
    }

    fn ask(&mut self, at: usize, due_ns: u64) -> anyhow::Result<()> {
        let Load { protocol, shape, .. } = &self.load;
        let request = self.chosen[self.next];
        self.next = (self.next + 1) % CHOSEN;
        self.bytes.clear();
        protocol.write(shape, request, &mut self.bytes);
        let left = protocol.reply_bytes(shape, request.is_set);
        let connection = &mut self.connections[at];
        connection.stream.write_all(&self.bytes).context("asking")?;
        connection.under_way.push_back(Due { at_ns: due_ns, left, is_set: request.is_set });
        self.asked += 1;
        Ok(())
    }

    /// Reads replies of one connection. Returns the number of requests that were answered completely.
    fn hear(&mut self, at: usize) -> anyhow::Result<u32> {
        let connection = &mut self.connections[at];
        let mut buffer = [0; 4096];
        let taken = match connection.stream.read(&mut buffer) {
            Ok(0) => bail!("the server has closed a connection"),
            Ok(taken) => taken,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error).context("a connection of the client"),
        };
        let (now, mut rest, mut answered) = (clock::now_ns(), &buffer[..taken], 0);
        while let Some(first) = rest.first() {
            let due = connection.under_way.front_mut().context("an answer that nobody asked for")?;
            if connection.is_new_reply && *first != self.load.protocol.good(due.is_set) {
                bail!("the server refuses: {}", String::from_utf8_lossy(rest));
            }
            let now_here = due.left.min(rest.len() as u32);
            due.left -= now_here;
            rest = &rest[now_here as usize..];
            connection.is_new_reply = due.left == 0;
            if due.left == 0 {
                self.latencies.saturating_record((now - due.at_ns.min(now)).max(1));
                answered += 1;
                connection.under_way.pop_front();
            }
        }
        self.answered += u64::from(answered);
        Ok(answered)
    }
}

/// Random requests with keys by Zipf's law.
fn choose(keys: u32, skew: u32, seed: u64) -> Vec<Request> {
    let (zipf, mut random) = (Zipf::new(keys, skew), Seed::new(seed));
    let mut one = || Request { key: zipf.pick(&mut random), is_set: random.next_u64() % 100 < SETS };
    (0..CHOSEN).map(|_| one()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_requests_ten_are_set() {
        let chosen = choose(1, 90, 7);
        let sets = chosen.iter().filter(|r| r.is_set).count() as f64 / CHOSEN as f64;
        assert!((sets - 0.1).abs() < 0.01, "{sets}");
        assert!(chosen.iter().all(|r| r.key == 0));
    }
}
