//! What the two ends of a connection do: drawn from the run's seed and the connection's number, so that both ends know it.

use super::payload::HEADER;
use base::{Duration, Seed};

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// It connects.
    Client,
    /// It accepts.
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
    /// Whenever there is room.
    Bulk,
    /// Requests of `up` bytes answered by `down` bytes, up to `ahead` requests unanswered.
    Rpc {
        /// Bytes of a request.
        up: u64,
        /// Bytes of a response.
        down: u64,
        /// Requests under way at most.
        ahead: u64,
    },
}

/// How an end behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Manner {
    /// Bytes it sends in all.
    pub total: u64,
    /// Bytes of one `send`.
    pub write: usize,
    /// Bytes of one `recv`.
    pub read: usize,
    /// It reads nothing for so long after each `recv`.
    pub read_pause: Duration,
    /// It sends nothing for so long after each `send`.
    pub write_pause: Duration,
    /// It reads nothing at all for so long after the connection is open.
    pub read_after: Duration,
    /// Its FIN waits for the other's.
    pub is_last: bool,
    /// It drops the socket without another word once it has sent and received so many bytes.
    pub dies_at: Option<u64>,
}

impl Manner {
    /// Sends `total` bytes as fast as possible.
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

/// A connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Who sends when.
    pub pattern: Pattern,
    /// Client and server.
    pub ends: [Manner; 2],
}

impl Plan {
    /// Bytes that `side` may have sent in all once it has received `received`.
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

    /// The same in which `side` says that it has finished only after the other.
    #[must_use]
    pub fn with_last(mut self, side: Side) -> Self {
        for (i, end) in self.ends.iter_mut().enumerate() {
            end.is_last = i == side.index();
        }
        self
    }

    /// True when somebody dies in it.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.ends.iter().any(|end| end.dies_at.is_some())
    }
}

/// What connections of a run are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// The client sends so many bytes, the server a word of thanks.
    Bulk(u64),
    /// Both send so many bytes.
    Both(u64),
    /// So many ping-pongs of so many bytes.
    PingPong(u64, u64),
    /// So many requests of these sizes, 16 ahead.
    Pipelined(u64, u64, u64),
    /// Bulk to a reader that sleeps for so long first, then reads a little at a time.
    SlowReader(u64, Duration),
    /// The client says that it has finished and then hears out the server, who sends this much.
    HalfClose(u64),
    /// Short ones of every kind, as for churn.
    Short,
    /// Everything, up to so many bytes.
    Mixed(u64),
}

impl Profile {
    /// The plan of connection `id` of the run `seed`.
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

/// A size between nothing and `most`: small ones are as likely as large ones.
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
    // So many calls that the run stays short.
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
