//! The configuration of a link.

use crate::parse::ParseError;
use crate::probability::Probability;
use crate::trace::Trace;
use base::{Duration, Instant};

/// The queue's limit in packets if a rate is given but no queue: Linux's default for an interface.
pub(crate) const QUEUE_PACKETS_DEFAULT: u32 = 1_000;
/// The smallest MTU: every IPv4 link carries packets of 68 bytes (RFC 791 section 3.2).
pub(crate) const MTU_MIN: u32 = 68;

/// An amount of queued traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// A number of packets.
    Packets(u32),
    /// A number of bytes of frames.
    Bytes(u64),
}

/// Loss in bursts: the Gilbert-Elliott model, a Markov chain with two states and a transition per packet.
///
/// ```text
///             enter                    mean length of a burst: 1 / leave packets
///    good ------------> bad            share of packets in it: enter / (enter + leave)
///      ^ <------------   |
///   loss_good  leave   loss_bad
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// Probability of the transition from good to bad, per packet.
    pub enter: Probability,
    /// Probability of the transition from bad to good, per packet.
    pub leave: Probability,
    /// Probability of loss in the bad state.
    pub loss_bad: Probability,
    /// Probability of loss in the good state.
    pub loss_good: Probability,
}

/// The rule that selects lost packets. Loss happens before the queue, so a lost packet takes no capacity.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Loss {
    /// No packet is lost.
    #[default]
    None,
    /// Each packet is lost independently with this probability.
    Random(Probability),
    /// Packets are lost in bursts.
    Burst(Burst),
    /// Packets with these numbers are lost. Ranges are ascending and do not overlap.
    List(Vec<PacketRange>),
}

/// Numbers of successive packets, both ends included; the first packet offered is number 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketRange {
    /// Number of the first packet.
    pub first: u64,
    /// Number of the last packet, at least `first`.
    pub last: u64,
}

/// Reordering: packets that are held back, so that later ones overtake them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reorder {
    /// The probability that a packet is held back.
    pub probability: Probability,
    /// The extra delay of such a packet.
    pub extra: Duration,
}

/// A time in which the link is down: from `from` until just before `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// The first moment at which the link is down.
    pub from: Instant,
    /// The moment at which it is up again.
    pub to: Instant,
}

/// A link that goes down periodically: up, then down, from time 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flap {
    /// How long it is up in each period.
    pub up: Duration,
    /// How long it is down in each period.
    pub down: Duration,
}

/// The properties of one direction of a link. The default delivers every frame unchanged and at once.
///
/// The text form, for command lines and reports, is what [`parse`](Self::parse) reads and `Display` writes:
///
/// ```text
/// rate=10gbit,delay=1ms,jitter=50us,queue=100p/150kb,ecn=65p,loss=1%,reorder=5%/1ms,duplicate=0.1%,corrupt=0.01%,
/// truncate=0.01%,mtu=1400,down=2s-3s,flap=9s/1s      loss=burst:0.1%/30%[/100%[/0%]]   loss=list:1+7-9   trace=FILE
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LinkConfig {
    /// Bits of frames per second. `None`, without a trace: sending a frame takes no time.
    pub rate_bits_per_second: Option<u64>,
    /// The times at which the line sends, instead of a rate.
    pub trace: Option<Trace>,
    /// The propagation delay of every packet.
    pub delay: Duration,
    /// A random delay between 0 and this is added to `delay`, with uniform distribution. The order of packets is kept.
    pub jitter: Duration,
    /// The most packets in the queue, including the one being sent. A packet that finds the queue full is dropped. `None`: no limit.
    pub queue_packets: Option<u32>,
    /// The most bytes in the queue. `None`: no limit.
    pub queue_bytes: Option<u64>,
    /// An ECN-capable packet is marked CE if the queue, including it, is longer than this (as RFC 8257 section 3.1 wants).
    pub ecn_threshold: Option<Amount>,
    /// The loss of packets.
    pub loss: Loss,
    /// The reordering of packets.
    pub reorder: Reorder,
    /// The probability that a packet arrives twice.
    pub duplicate: Probability,
    /// The probability that one byte after the Ethernet header changes. (Damage that a frame check sequence detects counts as loss.)
    pub corrupt: Probability,
    /// The probability that a packet is cut short after the Ethernet header.
    pub truncate: Probability,
    /// The most bytes of an IP packet. Longer packets are dropped silently: a black hole.
    pub mtu: Option<u32>,
    /// Times at which the link is down, ascending and disjoint. A packet sent or due to arrive in such a time is lost.
    pub outages: Vec<Outage>,
    /// Outages at regular intervals.
    pub flap: Option<Flap>,
}

impl LinkConfig {
    /// A link with a delay and no other property.
    #[must_use]
    pub fn delayed(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    /// A link with a rate, a delay, and the usual queue of 1000 packets.
    #[must_use]
    pub fn rated(bits_per_second: u64, delay: Duration) -> Self {
        Self {
            rate_bits_per_second: Some(bits_per_second),
            queue_packets: Some(QUEUE_PACKETS_DEFAULT),
            ..Self::delayed(delay)
        }
    }

    /// The same link with `loss` instead of its loss.
    #[must_use]
    pub fn with_loss(self, loss: Loss) -> Self {
        Self { loss, ..self }
    }

    /// True if packets can wait in a queue: there is a rate or a trace.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        self.rate_bits_per_second.is_some() || self.trace.is_some()
    }

    /// True if the link is down at `at`.
    #[must_use]
    pub fn is_down(&self, at: Instant) -> bool {
        let in_outage = || {
            let next = self.outages.partition_point(|outage| outage.to <= at);
            self.outages.get(next).is_some_and(|outage| outage.from <= at)
        };
        let in_flap = |flap: Flap| {
            let period = flap.up.plus(flap.down).as_ns();
            flap.up.as_ns() <= at.as_ns().checked_rem(period).unwrap_or(0)
        };
        (!self.outages.is_empty() && in_outage()) || self.flap.is_some_and(in_flap)
    }

    /// Checks for values that contradict each other or would have no effect.
    ///
    /// # Errors
    /// The key of the first such value, and what to write instead.
    pub fn check(&self) -> Result<(), ParseError> {
        let bad = |key, what: &str| Err(ParseError::new(key, what));
        if self.rate_bits_per_second == Some(0) {
            return bad("rate", "must be more than 0; leave it out for a link without a limit");
        }
        if self.rate_bits_per_second.is_some_and(|rate| rate > 1_000_000_000_000) {
            return bad("rate", "must be at most 1000gbit; leave it out for a link without a limit");
        }
        if self.rate_bits_per_second.is_some() && self.trace.is_some() {
            return bad("trace", "is itself the rate: give either rate= or trace=");
        }
        let queue = self.queue_packets.is_some() || self.queue_bytes.is_some();
        if queue && !self.has_queue() {
            return bad("queue", "needs a rate= or trace=: without one nothing ever waits");
        }
        if self.ecn_threshold.is_some() && !self.has_queue() {
            return bad("ecn", "needs a rate= or trace=: without one nothing ever waits");
        }
        if self.queue_packets == Some(0) || self.queue_bytes == Some(0) {
            return bad("queue", "must take at least one packet");
        }
        if self.mtu.is_some_and(|mtu| mtu < MTU_MIN) {
            return bad("mtu", "must be at least 68 (RFC 791)");
        }
        if !self.reorder.probability.is_never() && self.reorder.extra == Duration::ZERO {
            return bad("reorder", "needs a time by which such packets are late, as in reorder=5%/1ms");
        }
        if self.flap.is_some_and(|flap| flap.up == Duration::ZERO || flap.down == Duration::ZERO) {
            return bad("flap", "needs two times, up and down, both more than 0, as in flap=9s/1s");
        }
        if self.outages.iter().any(|o| o.to <= o.from)
            || self.outages.windows(2).any(|pair| pair[1].from < pair[0].to)
        {
            return bad(
                "down",
                "needs times that end after they begin, ascending and apart, as in down=2s-3s+7s-8s",
            );
        }
        self.check_loss()
    }

    fn check_loss(&self) -> Result<(), ParseError> {
        let Loss::List(ranges) = &self.loss else { return Ok(()) };
        let is_good = ranges.iter().all(|range| 0 < range.first && range.first <= range.last)
            && ranges.windows(2).all(|pair| pair[0].last < pair[1].first);
        if is_good {
            return Ok(());
        }
        Err(ParseError::new("loss", "needs packet numbers from 1 on, ascending, as in loss=list:1+7-9"))
    }
}
