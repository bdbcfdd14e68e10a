//! A path in virtual time between two hosts: rate, queue, delay, and a seeded fault process towards the second host.
#![allow(dead_code)] // Each test file uses its own part.

use crate::harness::Host;
use base::{Duration, Instant, Seed};
use port::{Batch, Capabilities, Checksum, Port};
use port_memory::{LinkOptions, MemoryPort, link};
use std::collections::{BTreeMap, VecDeque};

/// What happens to segments on the way there; acknowledgements come back whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Each segment is lost with this probability, in millionths.
    Loss(u32),
    /// As many in all, but in bursts of four on average.
    Bursts(u32),
    /// So many are late by up to half a round trip.
    Reorder(u32),
}

impl Fault {
    pub const ALL: [Self; 9] = [
        Self::Loss(0),
        Self::Loss(1_000),
        Self::Loss(5_000),
        Self::Loss(10_000),
        Self::Loss(20_000),
        Self::Loss(50_000),
        Self::Bursts(10_000),
        Self::Reorder(50_000),
        Self::Reorder(200_000),
    ];

    pub fn name(self) -> String {
        let (what, n) = match self {
            Self::Loss(n) => ("loss", n),
            Self::Bursts(n) => ("bursts", n),
            Self::Reorder(n) => ("reordering", n),
        };
        format!("{what} {} %", f64::from(n) / 10_000.0)
    }
}

struct Way {
    far: MemoryPort,
    free_at: Instant,
    queue: VecDeque<Instant>,
    flying: BTreeMap<(Instant, u64), Vec<u8>>,
}

pub struct Path {
    ports: [MemoryPort; 2],
    ways: [Way; 2],
    batch: Batch,
    rng: Seed,
    fault: Fault,
    is_burst: bool,
    delay: Duration,
    ns_per_byte: u64,
    number: u64,
}

/// Packets that wait at the link at most.
const QUEUE: usize = 256;

impl Path {
    pub fn new(capabilities: Capabilities, mbit: u64, rtt: Duration, fault: Fault, seed: u64) -> Self {
        let options = || LinkOptions { capabilities, slots: 1024, ..LinkOptions::default() };
        let (a, far_a) = link(&options()).unwrap();
        let (b, far_b) = link(&options()).unwrap();
        let way = |far| Way { far, free_at: Instant::ZERO, queue: VecDeque::new(), flying: BTreeMap::new() };
        Self {
            ports: [a, b],
            ways: [way(far_a), way(far_b)],
            batch: Batch::new(),
            rng: Seed::new(seed.wrapping_mul(0x9E37_79B9).wrapping_add(1)),
            fault,
            is_burst: false,
            delay: Duration::from_ns(rtt.as_ns() / 2),
            ns_per_byte: 8_000 / mbit,
            number: 0,
        }
    }

    /// Both hosts have their turns at `now`, and what they sent is on its way. When something happens next.
    pub fn step(&mut self, now: Instant, hosts: [&mut Host; 2]) -> Instant {
        let mut next = Instant::NEVER;
        for (i, host) in hosts.into_iter().enumerate() {
            self.deliver(now, i);
            next = next.min(host.poll(now, &mut self.ports[i]).deadline);
            self.collect(now, i);
        }
        let arrivals = self.ways.iter().filter_map(|way| way.flying.keys().next()).map(|key| key.0);
        arrivals.fold(next, Instant::min)
    }

    /// What has arrived at host `i`.
    fn deliver(&mut self, now: Instant, i: usize) {
        let Self { ways, .. } = self;
        let [a, b] = ways;
        let (from, to) = if i == 0 { (b, a) } else { (a, b) };
        while from.flying.first_key_value().is_some_and(|(key, _)| key.0 <= now) {
            let (_, frame) = from.flying.pop_first().unwrap();
            let Some(buf) = to.far.reserve() else { continue };
            assert!(buf.fill(&frame));
            buf.meta.checksum = Checksum::Valid;
            to.far.commit();
        }
        to.far.flush();
    }

    /// What host `i` has sent.
    fn collect(&mut self, now: Instant, i: usize) {
        loop {
            let n = self.ways[i].far.receive(&mut self.batch);
            if n == 0 {
                return;
            }
            let frames: Vec<Vec<u8>> = self.batch.packets().iter().map(|p| p.frame().to_vec()).collect();
            for frame in frames {
                let (is_lost, late) = if i == 0 { self.fate() } else { (false, Duration::ZERO) };
                let way = &mut self.ways[i];
                while way.queue.front().is_some_and(|at| *at <= now) {
                    way.queue.pop_front();
                }
                if way.queue.len() >= QUEUE {
                    continue;
                }
                let took = Duration::from_ns(frame.len() as u64 * self.ns_per_byte);
                way.free_at = way.free_at.max(now).plus(took);
                way.queue.push_back(way.free_at);
                self.number += 1;
                if !is_lost {
                    way.flying.insert((way.free_at.plus(self.delay).plus(late), self.number), frame);
                }
            }
        }
    }

    fn fate(&mut self) -> (bool, Duration) {
        let lost = |is_lost| (is_lost, Duration::ZERO);
        match self.fault {
            Fault::Loss(p) => lost(self.rng.chance(p)),
            Fault::Bursts(p) => {
                self.is_burst = self.rng.chance(if self.is_burst { 750_000 } else { p / 4 });
                lost(self.is_burst)
            }
            Fault::Reorder(p) if self.rng.chance(p) => {
                (false, Duration::from_ns(self.rng.below(self.delay.as_ns())))
            }
            Fault::Reorder(_) => lost(false),
        }
    }
}
