//! The behaviour of both ends of a connection, drawn from the run's seed and the connection's number, so that both ends know it.

use super::payload::HEADER;
use base::{Duration, Seed};

/// An end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The end that connects.
    Client,
    /// The end that accepts.
    Server,
}

impl Side {
    /// 0 for the client, 1 for the server.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// When an end may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Whenever the send buffer has room.
    Bulk,
    /// Requests of `up` bytes are answered by `down` bytes; at most `ahead` requests are unanswered.
    Rpc {
        /// Bytes of a request.
        up: u64,
        /// Bytes of a response.
        down: u64,
        /// Largest number of unanswered requests.
        ahead: u64,
    },
}

/// The behaviour of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Manner {
    /// Bytes that it sends in all.
    pub total: u64,
    /// Bytes per call of `send`.
    pub write: usize,
    /// Bytes per call of `recv`.
    pub read: usize,
    /// Pause after each `recv`.
    pub read_pause: Duration,
    /// Pause after each `send`.
    pub write_pause: Duration,
    /// Time between the opening of the connection and its first `recv`.
    pub read_after: Duration,
    /// It shuts its direction only after the other end has.
    pub is_last: bool,
    /// Once it has sent and received this many bytes in all, it closes the socket at once, as when its process dies.
    pub dies_at: Option<u64>,
}

impl Manner {
    /// An end that sends `total` bytes as fast as possible.
    #[must_use]
    pub const fn eager(total: u64) -> Self {
        Self {
            total,
            write: 65_536,
            read: 65_536,
            read_pause: Duration::ZERO,
            write_pause: Duration::ZERO,
            read_after: Duration::ZERO,
            is_last: false,
            dies_at: None,
        }
    }
}

/// The behaviour of both ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// When each end may send.
    pub pattern: Pattern,
    /// The client's and the server's behaviour.
    pub ends: [Manner; 2],
}

impl Plan {
    /// Bytes that `side` may have sent in all once it has received `received` bytes.
    #[must_use]
    pub fn may_send(&self, side: Side, received: u64) -> u64 {
        let total = self.ends[side.index()].total;
        let allowed = match (self.pattern, side) {
            (Pattern::Bulk, _) => total,
            (Pattern::Rpc { up, down, ahead }, Side::Client) => HEADER + (received / down + ahead) * up,
            (Pattern::Rpc { up, down, .. }, Side::Server) => received.saturating_sub(HEADER) / up * down,
        };
        allowed.min(total)
    }

    /// The same plan, in which `side` shuts its direction last.
    #[must_use]
    pub fn with_last(mut self, side: Side) -> Self {
        for (i, end) in self.ends.iter_mut().enumerate() {
            end.is_last = i == side.index();
        }
        self
    }

    /// True when an end dies in this plan.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.ends.iter().any(|end| end.dies_at.is_some())
    }
}

/// The kind of connections in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// The client sends this many bytes, the server 64.
    Bulk(u64),
    /// Both ends send this many bytes.
    Both(u64),
    /// This many requests and responses, one at a time, each of this many bytes.
    PingPong(u64, u64),
    /// This many requests, with request and response sizes in bytes; 16 may be unanswered.
    Pipelined(u64, u64, u64),
    /// The client sends this many bytes to a server that first sleeps for this time, then reads in small pieces.
    SlowReader(u64, Duration),
    /// The client shuts its direction after the header; then the server sends this many bytes.
    HalfClose(u64),
    /// Short connections of several kinds, for churn.
    Short,
    /// All kinds of behaviour, with up to this many bytes per direction.
    Mixed(u64),
}

impl Profile {
    /// The plan of connection `id` in the run with this seed.
    #[must_use]
    pub fn plan(self, seed: u64, id: u64) -> Plan {
        let mut rng = Seed::new(seed ^ id.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        let bulk = |up: u64, down: u64| Plan {
            pattern: Pattern::Bulk,
            ends: [Manner::eager(HEADER + up), Manner::eager(down)],
        };
        match self {
            Self::Bulk(bytes) => bulk(bytes, 64),
            Self::Both(bytes) => bulk(bytes, bytes),
            Self::PingPong(count, size) => rpc(count, size, size, 1),
            Self::Pipelined(count, up, down) => rpc(count, up, down, 16),
            Self::SlowReader(bytes, sleep) => {
                let mut plan = bulk(bytes, 64);
                plan.ends[1].read_after = sleep;
                plan.ends[1].read = 1 + rng.below(3000) as usize;
                plan.ends[1].read_pause = Duration::from_us(200);
                plan
            }
            Self::HalfClose(bytes) => {
                let mut plan = bulk(0, bytes);
                plan.ends[1].is_last = true;
                plan
            }
            Self::Short => short(&mut rng),
            Self::Mixed(most) => mixed(&mut rng, most),
        }
    }
}

fn rpc(count: u64, up: u64, down: u64, ahead: u64) -> Plan {
    Plan {
        pattern: Pattern::Rpc { up, down, ahead },
        ends: [Manner::eager(HEADER + count * up), Manner::eager(count * down)],
    }
}

fn short(rng: &mut Seed) -> Plan {
    let mut plan = match rng.below(4) {
        0 => rpc(1, 1 + rng.below(200), 1 + rng.below(3000), 1),
        1 => rpc(1 + rng.below(4), 1 + rng.below(64), 1 + rng.below(64), 2),
        _ => Plan {
            pattern: Pattern::Bulk,
            ends: [Manner::eager(HEADER + rng.below(4000)), Manner::eager(rng.below(4000))],
        },
    };
    plan.ends[rng.below(2) as usize].is_last = rng.below(2) == 0;
    if rng.chance(30_000) {
        plan.ends[rng.below(2) as usize].dies_at = Some(HEADER + rng.below(3000));
    }
    plan
}

/// A size from 0 to `most`; each number of bits is equally likely.
fn size(rng: &mut Seed, most: u64) -> u64 {
    let bits = 64 - most.leading_zeros();
    let mask = (1u64 << rng.below(u64::from(bits) + 1)) - 1;
    (rng.next_u64() & mask).min(most)
}

fn mixed(rng: &mut Seed, most: u64) -> Plan {
    let mut plan = if rng.below(3) == 0 {
        let (up, down) = (1 + size(rng, 20_000), 1 + size(rng, 20_000));
        let count = 1 + rng.below(1 + (most / (up + down)).min(60));
        rpc(count, up, down, 1 + rng.below(8))
    } else {
        let (up, down) = (size(rng, most), size(rng, most));
        Plan { pattern: Pattern::Bulk, ends: [Manner::eager(HEADER + up), Manner::eager(down)] }
    };
    for end in &mut plan.ends {
        vary(rng, end);
    }
    let last = rng.below(3) as usize;
    if last < 2 {
        plan.ends[last].is_last = true;
    }
    if rng.below(12) == 0 {
        let side = rng.below(2) as usize;
        let whole = plan.ends[0].total + plan.ends[1].total;
        plan.ends[side].dies_at = Some(HEADER + size(rng, whole));
    }
    plan
}

fn vary(rng: &mut Seed, end: &mut Manner) {
    end.write = 1 + size(rng, 200_000) as usize;
    end.read = 1 + size(rng, 200_000) as usize;
    // Limits the number of calls, so that the run stays short.
    let calls = |bytes: usize| (end.total / bytes.max(1) as u64).max(1);
    match rng.below(6) {
        0 if calls(end.write) < 2000 => end.write_pause = Duration::from_us(1 + size(rng, 50_000)),
        1 => {
            end.read = end.read.max(500);
            end.read_pause = Duration::from_us(1 + size(rng, 5_000));
        }
        2 => end.read_after = Duration::from_ms(size(rng, 20_000)),
        _ => {}
    }
    end.write = end.write.max((end.total / 3000) as usize);
    end.read = end.read.max(64);
}
