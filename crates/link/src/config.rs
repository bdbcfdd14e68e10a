//! What a link is like.

use crate::parse::ParseError;
use crate::probability::Probability;
use crate::trace::Trace;
use base::{Duration, Instant};

/// Packets that wait at most where a rate is given and no queue: Linux's own default for an interface.
pub(crate) const QUEUE_PACKETS_DEFAULT: u32 = 1_000;
/// Every IPv4 link carries this much (RFC 791 section 3.2).
pub(crate) const MTU_MIN: u32 = 68;

/// An amount of queued traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// So many packets.
    Packets(u32),
    /// So many bytes of frames.
    Bytes(u64),
}

/// Loss in bursts: the model of Gilbert and Elliott, a chain of two states that moves with each packet.
///
/// ```text
///             enter                    mean length of a burst: 1 / leave packets
///    good ------------> bad            share of packets in it: enter / (enter + leave)
///      ^ <------------   |
///   loss_good  leave   loss_bad
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// From good to bad, per packet.
    pub enter: Probability,
    /// From bad to good, per packet.
    pub leave: Probability,
    /// Loss in the bad state.
    pub loss_bad: Probability,
    /// Loss in the good state.
    pub loss_good: Probability,
}

/// Which packets are lost. Loss strikes before the queue: what is lost takes no capacity.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each by itself.
    Random(Probability),
    /// In bursts.
    Burst(Burst),
    /// Packets by number, the first offered being 1: ranges, both ends included, ascending and apart.
    List(Vec<(u64, u64)>),
}

/// Packets that let others pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reorder {
    /// How often.
    pub probability: Probability,
    /// How much later than in order such a packet comes out.
    pub extra: Duration,
}

/// A time in which the link is down, from `from` until just before `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// The link goes down.
    pub from: Instant,
    /// It is up again.
    pub to: Instant,
}

/// A link that goes down again and again: up, then down, from the beginning on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flap {
    /// How long it is up.
    pub up: Duration,
    /// How long it is down then.
    pub down: Duration,
}

/// What one direction of a link is like. The default carries everything at once.
///
/// Text form, for command lines and reports, what [`parse`](Self::parse) reads and `Display` writes:
///
/// ```text
/// rate=10gbit,delay=1ms,jitter=50us,queue=100p/150kb,ecn=65p,loss=1%,reorder=5%/1ms,duplicate=0.1%,corrupt=0.01%,
/// truncate=0.01%,mtu=1400,down=2s-3s,flap=9s/1s      loss=burst:0.1%/30%[/100%[/0%]]   loss=list:1+7-9   trace=FILE
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LinkConfig {
    /// Bits of frames per second; without it, and without a trace, frames take no time to send.
    pub rate_bits_per_second: Option<u64>,
    /// When the line sends: instead of a rate.
    pub trace: Option<Trace>,
    /// Propagation delay.
    pub delay: Duration,
    /// Up to this much is added to the delay, evenly; the order is kept.
    pub jitter: Duration,
    /// Most packets in the queue, the one being sent included; the packet that finds it full is dropped.
    pub queue_packets: Option<u32>,
    /// Most bytes in the queue.
    pub queue_bytes: Option<u64>,
    /// ECN-capable packets are marked when the queue, they included, is longer than this (as RFC 8257 section 3.1 wants).
    pub ecn_threshold: Option<Amount>,
    /// Loss.
    pub loss: Loss,
    /// Reordering.
    pub reorder: Reorder,
    /// Packets that arrive twice.
    pub duplicate: Probability,
    /// Packets of which one byte behind the Ethernet header changes (what a frame check sequence finds is a loss).
    pub corrupt: Probability,
    /// Packets that are cut short behind the Ethernet header.
    pub truncate: Probability,
    /// Longest IP packet; longer ones vanish without a word: a black hole.
    pub mtu: Option<u32>,
    /// Times when the link is down, ascending and apart. What is sent, or would arrive, then is lost.
    pub outages: Vec<Outage>,
    /// Outages that come again and again.
    pub flap: Option<Flap>,
}

impl LinkConfig {
    /// A link that only takes time.
    #[must_use]
    pub fn delayed(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    /// A link with a rate and a delay, and the usual queue of 1000 packets.
    #[must_use]
    pub fn rated(bits_per_second: u64, delay: Duration) -> Self {
        Self {
            rate_bits_per_second: Some(bits_per_second),
            queue_packets: Some(QUEUE_PACKETS_DEFAULT),
            ..Self::delayed(delay)
        }
    }

    /// The same link with another loss.
    #[must_use]
    pub fn with_loss(self, loss: Loss) -> Self {
        Self { loss, ..self }
    }

    /// True when packets can wait: there is a rate or a trace.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        self.rate_bits_per_second.is_some() || self.trace.is_some()
    }

    /// True when the link is down at `at`.
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

    /// What contradicts itself or would be accepted and ignored.
    ///
    /// # Errors
    /// Which key, and what to do.
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
        let is_good = ranges.iter().all(|&(first, last)| 0 < first && first <= last)
            && ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
        if is_good {
            return Ok(());
        }
        Err(ParseError::new("loss", "needs packet numbers from 1 on, ascending, as in loss=list:1+7-9"))
    }
}
