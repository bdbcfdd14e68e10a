//! The model's decisions: which packets are delivered, when, and with which damage. It sees lengths, not bytes.

use crate::config::{Amount, LinkConfig};
use crate::counters::{Cause, Counters};
use crate::damage::Damage;
use crate::line::Line;
use crate::loss::LossState;
use base::{Duration, Instant, Seed};
use std::collections::VecDeque;

/// The least length to which a frame is cut: an Ethernet header.
const FRAME_MIN: usize = 14;

/// The properties of a frame that the model needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Length of the frame in bytes.
    pub len: usize,
    /// Length of the Ethernet header in bytes, including a VLAN tag.
    pub header_len: usize,
    /// True for an IP packet with an ECN field that is not zero.
    pub is_ect: bool,
    /// True for ARP, which has no checksum: a link drops what it damages by the frame's, so it is never corrupted here, only cut.
    pub is_arp: bool,
}

/// The delivery of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passage {
    /// When the packet is delivered. Packets that are not `late` are delivered in the order in which they were sent.
    pub at: Instant,
    /// True if the packet is held back so that others may overtake it.
    pub late: bool,
    /// The changes to the packet's bytes.
    pub damage: Damage,
}

/// The fate of a packet; if both fields are `None`, it is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// The delivery of the packet.
    pub first: Option<Passage>,
    /// The delivery of a second copy.
    pub second: Option<Passage>,
}

/// A random sequence for each kind of mishap, so that configuring one kind does not change another.
#[derive(Clone, Debug)]
struct Seeds {
    duplicate: Seed,
    corrupt: Seed,
    truncate: Seed,
    reorder: Seed,
    jitter: Seed,
}

/// The model of one direction, without the frames' bytes.
#[derive(Clone, Debug)]
pub struct Model {
    config: LinkConfig,
    line: Line,
    loss: LossState,
    seeds: Seeds,
    /// For each packet that has not left the line: when it will have left, and its bytes.
    queue: VecDeque<(Instant, u32)>,
    queue_bytes: u64,
    /// The latest arrival of a packet that is not late.
    last: Instant,
    counters: Counters,
}

impl Model {
    /// A model at [`Instant::ZERO`]. The configuration should have passed [`LinkConfig::check`].
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        let mut seed = Seed::new(seed);
        let loss = LossState::new(seed.next_u64());
        let mut next = || Seed::new(seed.next_u64());
        let seeds =
            Seeds { duplicate: next(), corrupt: next(), truncate: next(), reorder: next(), jitter: next() };
        Self {
            line: Line::new(&config),
            config,
            loss,
            seeds,
            queue: VecDeque::new(),
            queue_bytes: 0,
            last: Instant::ZERO,
            counters: Counters::default(),
        }
    }

    /// The configuration of the link.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// The link's counters. Code that carries the bytes counts `delivered`, see [`counters_mut`](Self::counters_mut).
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The link's counters, to count deliveries.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Number of packets that have not left the line at `now`, including the one being sent.
    #[must_use]
    pub fn queued(&self, now: Instant) -> usize {
        self.queue.len() - self.queue.partition_point(|(left, _)| *left <= now)
    }

    /// How long a packet offered at `now` would wait for those that have not left the line.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        self.queue.back().map_or(Duration::ZERO, |(left, _)| left.since(now))
    }

    /// Changes the configuration from now on. Packets on the way keep their times, and the random sequences go on.
    pub fn change(&mut self, config: LinkConfig) {
        if config.trace != self.config.trace
            || config.rate_bits_per_second != self.config.rate_bits_per_second
        {
            self.line = Line::new(&config);
        }
        self.config = config;
    }

    /// Decides the fate of a packet sent at `now`, which must not decrease.
    pub fn judge(&mut self, now: Instant, view: &View) -> Fate {
        self.counters.offered += 1;
        self.counters.offered_bytes += view.len as u64;
        // Draw first, so that the loss of a packet depends on its number alone.
        let is_lost = self.loss.strikes(&self.config.loss, self.counters.offered);
        let is_doubled = self.config.duplicate.strikes(&mut self.seeds.duplicate);
        let damage = self.damage(view);
        if let Some(cause) = self.obstacle(now, view, is_lost) {
            self.counters.drop_for(cause);
            return Fate::default();
        }
        self.counters.corrupted += u64::from(damage.corrupt.is_some());
        self.counters.truncated += u64::from(damage.truncate.is_some());
        let first = self.send(now, view, damage);
        self.counters.duplicated += u64::from(is_doubled);
        let second = if is_doubled { self.send(now, view, damage) } else { None };
        Fate { first, second }
    }

    /// The reason why the packet does not reach the queue, if any.
    fn obstacle(&self, now: Instant, view: &View, is_lost: bool) -> Option<Cause> {
        let is_too_long = |mtu: u32| mtu as usize + view.header_len < view.len;
        if self.config.is_down(now) {
            return Some(Cause::Down);
        }
        if self.config.mtu.is_some_and(is_too_long) {
            return Some(Cause::Mtu);
        }
        is_lost.then_some(Cause::Loss)
    }

    fn damage(&mut self, view: &View) -> Damage {
        let seeds = &mut self.seeds;
        let mut damage = Damage::default();
        if self.config.corrupt.strikes(&mut seeds.corrupt) && view.header_len < view.len && !view.is_arp {
            let at = view.header_len + seeds.corrupt.below((view.len - view.header_len) as u64) as usize;
            damage.corrupt = Some((at, 1 + seeds.corrupt.below(255) as u8));
        }
        if self.config.truncate.strikes(&mut seeds.truncate) && FRAME_MIN < view.len {
            let from = view.header_len.clamp(FRAME_MIN, view.len - 1);
            damage.truncate = Some(from + seeds.truncate.below((view.len - from) as u64) as usize);
        }
        damage
    }

    /// Sends the packet through the queue, the line and the propagation delay. `None` if it is dropped.
    fn send(&mut self, now: Instant, view: &View, mut damage: Damage) -> Option<Passage> {
        let left = if self.config.has_queue() {
            match self.enqueue(now, view) {
                Some((left, mark)) => {
                    damage.mark = mark;
                    left
                }
                None => {
                    self.counters.drop_for(Cause::Queue);
                    return None;
                }
            }
        } else {
            now
        };
        let jitter = match self.config.jitter.as_ns() {
            0 => 0,
            most => self.seeds.jitter.below(most.saturating_add(1)),
        };
        let arrival = left.plus(self.config.delay).plus(Duration::from_ns(jitter));
        let late = self.config.reorder.probability.strikes(&mut self.seeds.reorder);
        let at = if late { arrival.plus(self.config.reorder.extra) } else { arrival.max(self.last) };
        if !late {
            self.last = at;
        }
        if self.config.is_down(at) {
            self.counters.drop_for(Cause::Down);
            return None;
        }
        self.counters.reordered += u64::from(late);
        self.counters.marked += u64::from(damage.mark);
        Some(Passage { at, late, damage })
    }

    /// Puts a packet into the queue. Returns when it will have left the line, and whether it is marked; `None` if the queue is full.
    fn enqueue(&mut self, now: Instant, view: &View) -> Option<(Instant, bool)> {
        while let Some(&(left, bytes)) = self.queue.front()
            && left <= now
        {
            self.queue.pop_front();
            self.queue_bytes -= u64::from(bytes);
        }
        let (packets, bytes) = (self.queue.len() as u64 + 1, self.queue_bytes + view.len as u64);
        // An empty queue takes any packet, even one longer than `queue_bytes`.
        let is_full = self.config.queue_packets.is_some_and(|most| u64::from(most) < packets)
            || self.config.queue_bytes.is_some_and(|most| most < bytes && !self.queue.is_empty());
        if is_full {
            return None;
        }
        let is_long = match self.config.ecn_threshold {
            None => false,
            Some(Amount::Packets(most)) => u64::from(most) < packets,
            Some(Amount::Bytes(most)) => most < bytes,
        };
        let left = self.line.send(now, view.len);
        self.queue.push_back((left, view.len as u32));
        self.queue_bytes = bytes;
        self.counters.queue_packets_max = self.counters.queue_packets_max.max(packets);
        self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(bytes);
        Some((left, is_long && view.is_ect))
    }
}
