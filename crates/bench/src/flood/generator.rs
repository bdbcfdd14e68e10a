//! The load of the far end: RPCs at a fixed rate, new connections, and the flood of SYNs.

use super::FLOWS;
use crate::clock;
use crate::rig::{Far, Heard, TCP_AT};
use std::time::Duration;

/// Number of clients for connections opened during a run, after the clients of the flows; reused in turn.
pub const YOUNG: u32 = 10_000;
/// The most SYNs of the flood sent at once.
const BURST: u64 = 512;

/// The load of a run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub rpcs_per_second: f64,
    pub syns_per_second: u64,
    pub opens_per_second: u64,
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub rpcs: u64,
    pub syns: u64,
    /// SYN-ACKs that answer SYNs of the flood.
    pub answers: u64,
    pub opens: u64,
    /// Connections opened during the run that got their first reply.
    pub opened: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Self) {
        self.rpcs += other.rpcs;
        self.syns += other.syns;
        self.answers += other.answers;
        self.opens += other.opens;
        self.opened += other.opened;
    }
}

pub struct Generator {
    far: Far,
    heard: Vec<Heard>,
    /// Whether a flow waits for a reply, by flow.
    is_waiting: Vec<bool>,
    next_young: u32,
    syn: Vec<u8>,
    random: u64,
    seen: Seen,
}

impl Generator {
    pub fn new(far: Far) -> Self {
        Self {
            syn: far.syn(),
            far,
            heard: Vec::new(),
            is_waiting: vec![false; FLOWS as usize],
            next_young: FLOWS,
            random: 0x9E37_79B9_7F4A_7C15,
            seen: Seen::default(),
        }
    }

    /// Opens all flows and waits until they are open.
    pub fn establish(&mut self) -> anyhow::Result<()> {
        self.far.establish(FLOWS, || {})
    }

    /// Measures RPCs per second with one request always under way on each flow.
    pub fn peak(&mut self, time: Duration) -> f64 {
        let start = clock::now_ns();
        let until = start + time.as_nanos() as u64;
        let before = self.seen.rpcs;
        while clock::now_ns() < until {
            (0..FLOWS).for_each(|flow| self.request(flow));
            self.take();
        }
        (self.seen.rpcs - before) as f64 * 1e9 / (clock::now_ns() - start) as f64
    }

    /// Offers `load` for `time` and returns what was seen.
    pub fn run(&mut self, time: Duration, load: Load) -> Seen {
        self.seen = Seen::default();
        let start = clock::now_ns();
        let (mut asked, mut turn) = (0u64, 0u32);
        loop {
            let elapsed = clock::now_ns() - start;
            if elapsed >= time.as_nanos() as u64 {
                return self.seen;
            }
            let due = |per_second: f64| (elapsed as f64 * per_second / 1e9) as u64;
            // Each RPC has its time; it is skipped if the flow still waits for a reply then.
            let owed = due(load.rpcs_per_second).min(asked + u64::from(FLOWS));
            while asked < owed {
                (asked, turn) = (asked + 1, (turn + 1) % FLOWS);
                self.request(turn);
            }
            asked = asked.max(due(load.rpcs_per_second).saturating_sub(u64::from(FLOWS)));
            let syns = due(load.syns_per_second as f64).saturating_sub(self.seen.syns);
            (0..syns.min(BURST)).for_each(|_| self.flood());
            if self.seen.opens < due(load.opens_per_second as f64) {
                self.seen.opens += 1;
                self.far.open(self.next_young);
                self.next_young = FLOWS + (self.next_young - FLOWS + 1) % YOUNG;
            }
            self.take();
        }
    }

    /// Sends a request, unless the flow still waits for a reply.
    fn request(&mut self, flow: u32) {
        if !std::mem::replace(&mut self.is_waiting[flow as usize], true) {
            self.far.request(flow);
        }
    }

    fn flood(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let random = self.random.to_be_bytes();
        // Source 10.1-200.x.y, a port below the clients' ports, a random sequence number. Only the IPv4 header's checksum must be right.
        let is_sent = self.far.inject(&self.syn, |frame| {
            let source = [10, 1 + random[0] % 200, random[1], 1 + random[2] % 250];
            frame[26..30].copy_from_slice(&source);
            frame[TCP_AT..TCP_AT + 2].copy_from_slice(&(1 + u16::from(random[3])).to_be_bytes());
            frame[TCP_AT + 4..TCP_AT + 8].copy_from_slice(&random[4..]);
            frame[24..26].copy_from_slice(&[0, 0]);
            let words = frame[14..34].as_chunks::<2>().0;
            let mut sum: u32 = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
            sum = (sum & 0xFFFF) + (sum >> 16);
            sum = (sum & 0xFFFF) + (sum >> 16);
            frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        });
        self.seen.syns += u64::from(is_sent);
    }

    /// Handles the packets that came from the service.
    fn take(&mut self) {
        let mut heard = std::mem::take(&mut self.heard);
        self.far.round(&mut heard);
        for heard in heard.drain(..) {
            match heard {
                Heard::Opened(client) => self.far.request(client),
                Heard::Bytes { client, .. } if client < FLOWS => {
                    self.is_waiting[client as usize] = false;
                    self.seen.rpcs += 1;
                }
                Heard::Bytes { client, .. } => {
                    self.seen.opened += 1;
                    self.far.reset(client);
                }
                Heard::Stranger => self.seen.answers += 1,
            }
        }
        self.heard = heard;
    }
}
