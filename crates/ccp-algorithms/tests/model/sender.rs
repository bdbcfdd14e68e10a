//! One flow: what it has sent, what it knows of the path, and its program.

use std::collections::VecDeque;
use std::sync::Arc;

use base::{Duration, Instant};
use ccp::{Changes, Command};
use ccp_vm::{Bounds, Invocation, Machine, Program, REPORTS_MAX, Signals};

pub const MSS: u64 = 1448;
const RTO_MIN: Duration = Duration::from_ms(200);

/// One packet on its way, with what a rate sample needs.
struct Packet {
    number: u64,
    sent_at: Instant,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
}

/// A flow's state each 10 ms.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Instant,
    pub cwnd: u64,
    pub rate: u64,
    /// Bytes delivered since the beginning.
    pub delivered: u64,
    pub queue: Duration,
    pub in_flight: u64,
}

struct Running {
    program: Arc<Program>,
    number: u32,
    machine: Machine,
    bounds: Bounds,
}

pub struct Report {
    pub program: u32,
    pub values: Vec<u64>,
}

pub struct Sender {
    pub cwnd: u64,
    pub rate: u64,
    pub srtt: Duration,
    pub delivered: u64,
    pub lost: u64,
    pub timeouts: u64,
    pub reports: u64,
    pub faults: u32,
    /// Most bytes that the application or the receiver's window lets be in flight.
    pub limit: u64,
    pub samples: Vec<Sample>,
    running: Option<Running>,
    is_accepted: bool,
    packets: VecDeque<Packet>,
    next: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    acked_at: Instant,
    pace_at: Instant,
    wake_at: Instant,
}

impl Sender {
    pub fn new(now: Instant) -> Self {
        Self {
            cwnd: 10 * MSS,
            rate: 0,
            srtt: Duration::ZERO,
            delivered: 0,
            lost: 0,
            timeouts: 0,
            reports: 0,
            faults: 0,
            limit: u64::MAX,
            samples: Vec::new(),
            running: None,
            is_accepted: true,
            packets: VecDeque::new(),
            next: 0,
            delivered_at: now,
            first_sent_at: now,
            acked_at: now,
            pace_at: now,
            wake_at: Instant::ZERO,
        }
    }

    fn in_flight(&self) -> u64 {
        self.packets.len() as u64 * MSS
    }

    pub fn may_send(&self) -> bool {
        self.in_flight() + MSS <= self.cwnd.min(self.limit)
    }

    pub fn paced_until(&self, now: Instant) -> Option<Instant> {
        (self.rate > 0 && self.pace_at > now).then_some(self.pace_at)
    }

    /// True if no wake-up is under way for this time.
    pub fn wakes_at(&mut self, at: Instant) -> bool {
        std::mem::replace(&mut self.wake_at, at) != at
    }

    pub fn send(&mut self, now: Instant) -> u64 {
        if self.packets.is_empty() {
            (self.delivered_at, self.first_sent_at, self.acked_at) = (now, now, now);
        }
        if let Some(gap) = (MSS * 1_000_000_000).checked_div(self.rate) {
            self.pace_at = self.pace_at.max(now).plus(Duration::from_ns(gap));
        }
        let number = self.next;
        self.next += 1;
        let (delivered, delivered_at, first_sent_at) =
            (self.delivered, self.delivered_at, self.first_sent_at);
        self.packets.push_back(Packet { number, sent_at: now, delivered, delivered_at, first_sent_at });
        number
    }

    /// Packets before this one are lost: the path keeps their order.
    pub fn acknowledged(&mut self, now: Instant, number: u64, is_marked: bool) {
        let mut lost = 0;
        while self.packets.front().is_some_and(|packet| packet.number < number) {
            self.packets.pop_front();
            lost += 1;
        }
        if self.packets.front().is_none_or(|packet| packet.number != number) {
            return;
        }
        let Some(packet) = self.packets.pop_front() else { return };
        self.delivered += MSS;
        self.lost += lost;
        self.acked_at = now;
        let rtt = now.since(packet.sent_at);
        let srtt_ns =
            if self.srtt == Duration::ZERO { rtt.as_ns() } else { (7 * self.srtt.as_ns() + rtt.as_ns()) / 8 };
        self.srtt = Duration::from_ns(srtt_ns);
        let bytes = self.delivered - packet.delivered;
        let per_second = |time: Duration| (bytes * 1_000_000_000).checked_div(time.as_ns()).unwrap_or(0);
        let signals = Signals {
            bytes_acked: MSS,
            packets_acked: 1,
            ecn_bytes: if is_marked { MSS } else { 0 },
            ecn_packets: u64::from(is_marked),
            lost_packets: lost,
            rtt_us: rtt.as_us(),
            rate_incoming: per_second(now.since(packet.delivered_at)),
            rate_outgoing: per_second(packet.sent_at.since(packet.first_sent_at)),
            ..Signals::default()
        };
        (self.delivered_at, self.first_sent_at) = (now, packet.sent_at);
        self.run(now, signals);
    }

    /// Without acknowledgements: a timeout, or a run for the program's own timers.
    pub fn tick(&mut self, now: Instant) {
        let timeout = self.srtt.times(2).max(RTO_MIN);
        if !self.packets.is_empty() && now.since(self.acked_at) > timeout {
            let lost = self.packets.len() as u64;
            self.packets.clear();
            self.acked_at = now;
            self.lost += lost;
            self.timeouts += 1;
            self.run(now, Signals { was_timeout: true, lost_packets: lost, ..Signals::default() });
        } else {
            self.run(now, Signals::default());
        }
    }

    fn run(&mut self, now: Instant, mut signals: Signals) {
        signals.now_us = now.as_us();
        signals.bytes_in_flight = self.in_flight();
        signals.packets_in_flight = self.packets.len() as u64;
        signals.bytes_pending = 1 << 20;
        let Some(running) = &mut self.running else { return };
        let input = Invocation { signals: &signals, cwnd: self.cwnd, rate: self.rate };
        if let Ok(decision) = running.machine.run(&running.program, &input) {
            let decision = running.bounds.apply(decision);
            (self.cwnd, self.rate) = (decision.cwnd, decision.rate);
        }
        self.faults = running.machine.faults();
    }

    pub fn take_report(&mut self) -> Option<Report> {
        let running = self.running.as_mut().filter(|_| self.is_accepted)?;
        let mut values = [0; REPORTS_MAX];
        let len = running.machine.take_report(&running.program, &mut values)?;
        self.is_accepted = false;
        self.reports += 1;
        Some(Report { program: running.number, values: values[..len].to_vec() })
    }

    pub fn obey(&mut self, now: Instant, command: Command) {
        match command {
            Command::Program { program, number, changes, bounds, .. } => {
                let machine = Machine::new(&program, now.as_us());
                self.running = Some(Running { program, number, machine, bounds });
                self.change(&changes);
            }
            Command::Change { changes, .. } => self.change(&changes),
            Command::Accept { .. } => self.is_accepted = true,
            Command::Default { reason, .. } => panic!("the agent lives: {reason:?}"),
        }
    }

    fn change(&mut self, changes: &Changes) {
        self.cwnd = changes.cwnd.unwrap_or(self.cwnd);
        self.rate = changes.rate.unwrap_or(self.rate);
        if let Some(running) = &mut self.running {
            running.machine.change(changes);
        }
    }

    pub fn sample(&mut self, at: Instant, queue: Duration) {
        let (cwnd, rate, delivered, in_flight) = (self.cwnd, self.rate, self.delivered, self.in_flight());
        self.samples.push(Sample { at, cwnd, rate, delivered, queue, in_flight });
    }

    fn between(&self, from: Instant, until: Instant) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.at >= from && sample.at <= until)
    }

    /// Mbit/s between two times.
    pub fn mbit(&self, from: Instant, until: Instant) -> f64 {
        let mut samples = self.between(from, until);
        let first = samples.next().expect("a sample");
        let last = samples.last().expect("two samples");
        (last.delivered - first.delivered) as f64 * 8.0 / last.at.since(first.at).as_us() as f64
    }

    /// The mean queueing delay between two times, ms.
    pub fn queue_ms(&self, from: Instant, until: Instant) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for sample in self.between(from, until) {
            sum += sample.queue.as_us() as f64 / 1000.0;
            count += 1.0;
        }
        sum / count
    }

    /// The sample at a time, or the one before.
    pub fn sample_at(&self, at: Instant) -> Sample {
        *self.samples.iter().rev().find(|sample| sample.at <= at).expect("the flow has begun")
    }
}
