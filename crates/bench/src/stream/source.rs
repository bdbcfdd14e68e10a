//! The source of all tuples, which is also their sink. One thread does both, so that one clock measures a tuple's time, and the check needs
//! no other process.

use super::check::Check;
use super::input::{Came, EVENTS, Input, PATIENCE};
use super::multiplexer::{Batching, Multiplexer};
use super::topics::Topics;
use super::tuple::Tuple;
use crate::client::chance::Poisson;
use crate::client::timer::Timer;
use crate::client::{Window, histogram};
use crate::clock;
use crate::cpu::Meter;
use crate::sockets::actor::Answer;
use crate::sockets::calls::{self, For};
use anyhow::bail;
use hdrhistogram::Histogram;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::net::TcpStream;
use std::time::Duration;

/// The warm-up lasts the measured time divided by this; buffers fill in it.
const WARM_UP: u64 = 8;
/// The most tuples that leave before the source looks for tuples that came back.
const TURN: u32 = 16;
/// The epoll data of the timer; connections have their index.
const TIMER: u64 = u64::MAX;

/// The rate, duration and batching of the source's tuples.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub batching: Batching,
    /// Tuples per second, at random times; `None`: as many as the stages take.
    pub rate: Option<f64>,
    pub milliseconds: u32,
    pub seed: u64,
    /// Processes that the processor time includes.
    pub pids: Vec<u32>,
}

struct Source {
    batching: Batching,
    set: OwnedFd,
    timer: Timer,
    outputs: Multiplexer<TcpStream>,
    /// Which outgoing connections the epoll set watches for writability.
    watched: Vec<bool>,
    inputs: Vec<Input<TcpStream>>,
    living: usize,
    check: Check,
    latencies: Histogram<u64>,
    due: Option<Poisson>,
    sent: u64,
    /// Tuples due from this time on are measured; `late_ns` is the sum of the times from when they were due until they were made.
    measured_from_ns: u64,
    late_ns: u64,
    text: Vec<u8>,
}

/// Sends tuples as planned, receives all of them back, and checks them. The answer is a client's ([`Window::answer`]), then the number of
/// tuples sent, the nanoseconds in sum for which measured tuples were late and for which they waited to be sent, and their mean latency in
/// nanoseconds.
pub fn run(streams: Vec<TcpStream>, plan: &Plan) -> anyhow::Result<Answer> {
    let mut source = Source::new(streams, plan)?;
    let meter = Meter::start(&plan.pids);
    let start = clock::now_ns();
    source.due = plan.rate.map(|rate| Poisson::new(plan.seed, start, rate));
    let length_ns = u64::from(plan.milliseconds) * 1_000_000;
    source.go_on(start + length_ns / WARM_UP)?;
    let (before, cpu_before) = (source.check.arrived(), meter.used_ns());
    let begin = clock::now_ns();
    source.measured_from_ns = begin;
    source.go_on(begin + length_ns)?;
    let window = Window {
        requests: source.check.arrived() - before,
        ns: clock::now_ns() - begin,
        cpu_ns: meter.used_ns() - cpu_before,
    };
    let waited_ns = source.finish()?;
    let mut answer = window.answer(&source.latencies);
    answer.extend([source.sent, source.late_ns, waited_ns].map(|number| number as f64));
    answer.push(source.latencies.mean());
    Ok(answer)
}

impl Source {
    /// Takes the first half of `streams` as outgoing connections, the second half as incoming ones.
    fn new(mut streams: Vec<TcpStream>, plan: &Plan) -> anyhow::Result<Self> {
        let set = calls::epoll_create()?;
        let back = streams.split_off(streams.len() / 2);
        for (i, stream) in back.iter().enumerate() {
            stream.set_nonblocking(true)?;
            calls::epoll_add(&set, stream, i as u64)?;
        }
        for (i, stream) in streams.iter().enumerate() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            calls::epoll_watch(&set, stream, For::Nothing, (back.len() + i) as u64)?;
        }
        Ok(Self {
            batching: plan.batching,
            timer: Timer::new(&set, TIMER)?,
            set,
            watched: vec![false; streams.len()],
            check: Check::new(Topics::new(plan.seed), streams.len()),
            outputs: Multiplexer::new(streams, plan.batching),
            living: back.len(),
            inputs: back.into_iter().map(Input::new).collect(),
            latencies: histogram()?,
            due: None,
            sent: 0,
            measured_from_ns: u64::MAX,
            late_ns: 0,
            text: Vec::new(),
        })
    }

    /// Sends and receives until `end_ns`.
    fn go_on(&mut self, end_ns: u64) -> anyhow::Result<()> {
        loop {
            let now = clock::now_ns();
            if now >= end_ns {
                return Ok(());
            }
            for _ in 0..TURN {
                let due_ns = self.due.as_ref().map_or(now, Poisson::next_ns);
                if due_ns > now || self.outputs.is_any_stuck() {
                    break;
                }
                self.emit(due_ns)?;
            }
            self.outputs.send(clock::now_ns)?;
            self.take(Some(self.wake_ns(now).min(end_ns)))?;
        }
    }

    /// The next time at which the source must act without an event: the next tuple is due or a batch must leave.
    fn wake_ns(&self, now: u64) -> u64 {
        let next = match &self.due {
            _ if self.outputs.is_any_stuck() => u64::MAX,
            Some(due) => due.next_ns(),
            None => now,
        };
        self.outputs.deadline_ns().map_or(next, |deadline| deadline.min(next))
    }

    /// Makes the next tuple; the connections are used in turn.
    fn emit(&mut self, due_ns: u64) -> anyhow::Result<()> {
        let (number, now) = (self.sent, clock::now_ns());
        // Without a rate, a tuple is due when it is made.
        let due_ns = if self.due.is_some() { due_ns } else { now };
        let is_measured = due_ns >= self.measured_from_ns;
        self.text.clear();
        self.check.topics().write_text(number, &mut self.text);
        let tuple = Tuple { number, due_ns, is_measured, count: 0, key: b"", text: &self.text };
        self.outputs.emit(number as usize % self.outputs.len(), &tuple, now);
        self.sent += 1;
        self.late_ns += if is_measured { now - due_ns } else { 0 };
        if let Some(due) = &mut self.due {
            due.advance();
        }
        if self.batching == Batching::None {
            self.outputs.send(clock::now_ns)?;
        }
        Ok(())
    }

    /// Waits for events until `until_ns` (`None`: until an event comes) and handles them.
    fn take(&mut self, until_ns: Option<u64>) -> anyhow::Result<()> {
        let limit = match until_ns {
            Some(until) if until <= clock::now_ns() => Duration::ZERO,
            Some(until) => {
                self.timer.arm(until)?;
                PATIENCE
            }
            None => {
                self.timer.disarm()?;
                PATIENCE
            }
        };
        self.watch()?;
        let mut events = [calls::NO_EVENT; EVENTS];
        let count = calls::epoll_wait(&self.set, &mut events, Some(limit))?;
        if count == 0 && limit == PATIENCE {
            bail!("no tuple came back");
        }
        for event in events[..count].iter().filter(|event| event.u64 != TIMER) {
            let at = event.u64 as usize;
            match at.checked_sub(self.inputs.len()) {
                None => self.hear(at)?,
                Some(output) if self.watched[output] => self.outputs.resume(output, clock::now_ns)?,
                Some(_) => bail!("the first stage has closed a connection"),
            }
        }
        Ok(())
    }

    /// Watches exactly the stuck connections for writability.
    fn watch(&mut self) -> anyhow::Result<()> {
        for (i, stream) in self.outputs.streams().enumerate() {
            let is_stuck = self.outputs.is_stuck(i);
            if self.watched[i] != is_stuck {
                let what = if is_stuck { For::Writing } else { For::Nothing };
                calls::epoll_change(&self.set, stream, what, (self.inputs.len() + i) as u64)?;
                self.watched[i] = is_stuck;
            }
        }
        Ok(())
    }

    /// Reads and checks the tuples that came back on one connection.
    fn hear(&mut self, at: usize) -> anyhow::Result<()> {
        let Self { inputs, check, latencies, .. } = self;
        if inputs[at].read()? == Came::End {
            self.living -= 1;
            return Ok(());
        }
        let now = clock::now_ns();
        inputs[at].tuples(|tuple| {
            if tuple.is_measured {
                latencies.saturating_record(now.saturating_sub(tuple.due_ns).max(1));
            }
            check.take(at, &tuple)
        })
    }

    /// Sends all buffers, closes the outgoing connections, and receives the remaining tuples. Returns the time in sum that measured tuples
    /// waited to be sent.
    fn finish(&mut self) -> anyhow::Result<u64> {
        self.outputs.hurry();
        self.outputs.send(clock::now_ns)?;
        while !self.outputs.is_empty() {
            self.take(None)?;
        }
        let waited_ns = self.outputs.waited_ns();
        // Dropping the connections ends the stages, one after the other.
        self.outputs = Multiplexer::new([], Batching::None);
        self.watched.clear();
        while self.living > 0 {
            self.take(None)?;
        }
        self.check.finish(self.sent)?;
        Ok(waited_ns)
    }
}
