//! The bytes that user space and the kernel's programs share: `bpf/flow.h` draws them. Numbers are in the order of this processor.

use std::net::{Ipv6Addr, SocketAddr};

use ccp::Changes;
use ccp_vm::{Bounds, CONTROLS_MAX, REPORTS_MAX};

use crate::rule::{RULE_LEN, RULES_MAX, Rule};

/// Bytes of an algorithm's name, with the zero behind it.
pub const NAME_LEN: usize = 16;
/// Programs in the kernel at most. Number 0 is no program.
pub const PROGRAMS_MAX: u32 = 1024;
/// Flows at most; more stay on the default algorithm.
pub const SLOTS_MAX: u32 = 16_384;
const FIELD_CWND: usize = CONTROLS_MAX;
const FIELD_RATE: usize = FIELD_CWND + 1;
const FIELDS: usize = FIELD_RATE + 1;

/// What all programs know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Until when flows may believe that user space lives, microseconds of the monotonic clock.
    pub alive_until_us: u64,
    /// When the datapath began, microseconds of the same clock.
    pub start_us: u64,
    /// The iterator takes flows back instead of moving them here.
    pub is_returning: bool,
    /// The name of our algorithm.
    pub own_name: String,
    /// The host's default algorithm.
    pub default_name: String,
    /// Which flows are moved here.
    pub rules: Vec<Rule>,
}

impl Settings {
    /// The value of the map `settings`.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.alive_until_us.to_ne_bytes());
        bytes.extend(self.start_us.to_ne_bytes());
        bytes.extend(u32::from(self.is_returning).to_ne_bytes());
        bytes.extend((self.rules.len().min(RULES_MAX) as u32).to_ne_bytes());
        bytes.extend(name_bytes(&self.own_name));
        bytes.extend(name_bytes(&self.default_name));
        self.rules.iter().take(RULES_MAX).for_each(|rule| bytes.extend(rule.encode()));
        bytes.resize(24 + 2 * NAME_LEN + RULES_MAX * RULE_LEN, 0);
        bytes
    }
}

/// A name with zeros behind it, cut where it is too long.
pub fn name_bytes(name: &str) -> [u8; NAME_LEN] {
    let mut bytes = [0; NAME_LEN];
    for (place, byte) in bytes[..NAME_LEN - 1].iter_mut().zip(name.bytes()) {
        *place = byte;
    }
    bytes
}

/// How a flow should stand: the sum of all commands so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    program: u32,
    flow: u64,
    seq: u64,
    program_seq: u64,
    accepted: u64,
    bounds: [u64; 4],
    number: u64,
    field_seq: [u64; FIELDS],
    field: [u64; FIELDS],
}

impl Slot {
    /// The slot of a flow that has had no command.
    pub const fn of(flow: u64) -> Self {
        Self {
            program: 0,
            flow,
            seq: 0,
            program_seq: 0,
            accepted: 0,
            bounds: [0; 4],
            number: 0,
            field_seq: [0; FIELDS],
            field: [0; FIELDS],
        }
    }

    /// The number of the last command.
    pub const fn seq(&self) -> u64 {
        self.seq
    }

    /// The program that the flow should run; 0: none.
    pub const fn program(&self) -> u32 {
        self.program
    }

    /// A program begins; what earlier commands set is over.
    pub fn begin(&mut self, program: u32, number: u32, bounds: &Bounds, changes: &Changes) {
        self.start_anew(program);
        self.number = u64::from(number);
        self.bounds = [bounds.cwnd_min, bounds.cwnd_max, bounds.rate_min, bounds.rate_max];
        self.set(changes);
    }

    /// The flow has no program any more.
    pub fn end_program(&mut self) {
        self.start_anew(0);
    }

    /// Sets what a message of the agent sets.
    pub fn change(&mut self, changes: &Changes) {
        self.seq += 1;
        self.set(changes);
    }

    /// Says how many reports have been taken.
    pub const fn accept(&mut self, reports: u64) {
        self.accepted = reports;
    }

    fn start_anew(&mut self, program: u32) {
        self.seq += 1;
        self.program_seq = self.seq;
        self.program = program;
        self.field_seq = [0; FIELDS];
    }

    fn set(&mut self, changes: &Changes) {
        let ends = [changes.cwnd, changes.rate];
        for (index, value) in changes.controls.iter().chain(&ends).enumerate() {
            if let Some(value) = value {
                self.field[index] = *value;
                self.field_seq[index] = self.seq;
            }
        }
    }

    /// The value of the map `slots`; the kernel keeps its lock in the first word.
    pub fn encode(&self) -> Vec<u8> {
        let words = [self.flow, self.seq, self.program_seq, self.accepted];
        let words =
            words.iter().chain(&self.bounds).chain([&self.number]).chain(&self.field_seq).chain(&self.field);
        let mut bytes = vec![0; 4];
        bytes.extend(self.program.to_ne_bytes());
        bytes.extend(words.flat_map(|word| word.to_ne_bytes()));
        bytes
    }
}

/// How a flow stands, as the kernel's programs write it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The flow in the slot; 0: none.
    pub flow: u64,
    /// The last command that was carried out.
    pub applied: u64,
    /// Runs of its programs.
    pub runs: u64,
    /// Runs that a fault stopped.
    pub faults: u64,
    /// The window, bytes; 0 before the first run.
    pub cwnd: u64,
    /// The rate, bytes per second; 0: the programs have set none.
    pub rate: u64,
    /// Decisions that were moved to a bound.
    pub clamps: u64,
    /// The smoothed round-trip time, microseconds.
    pub rtt_us: u64,
    /// The program in the kernel that it runs; 0: none.
    pub program: u64,
}

impl Progress {
    /// Decodes the value of the map `progress`; `None` if it has another size.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks() else { return None };
        let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let [flow, applied, runs, faults, cwnd, rate, clamps, rtt_us, program] = words[..] else {
            return None;
        };
        Some(Self { flow, applied, runs, faults, cwnd, rate, clamps, rtt_us, program })
    }
}

/// What a flow tells user space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// It has begun, or has come to our algorithm.
    Open(Opened),
    /// Its program reports to the agent.
    Report(Reported),
    /// The flow is over, or has left our algorithm.
    Close {
        /// The flow that is over.
        flow: u64,
    },
}

/// A flow that has begun.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The kernel's number of the flow, never that of an earlier one.
    pub flow: u64,
    /// Its place in `slots` and `progress`.
    pub slot: u32,
    /// `SO_MAX_PACING_RATE`, bytes per second.
    pub rate_max: u64,
    /// The congestion window, bytes.
    pub cwnd: u32,
    /// Bytes of a segment.
    pub mss: u32,
    /// The smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// The user of the socket.
    pub uid: u32,
    /// The host's end of the flow.
    pub own: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
}

/// What the program of a flow reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reported {
    /// The flow that reports.
    pub flow: u64,
    /// The agent's number of the program.
    pub number: u32,
    /// The smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Decisions that were moved to a bound since the last report.
    pub clamps: u32,
    /// The report variables, in order.
    pub values: Vec<u64>,
}

impl Event {
    /// Decodes a record of the ring buffer; `None` for what the programs never write.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (kind, slot, flow) = (reader.word()?, reader.word()?, reader.long()?);
        match kind {
            1 => {
                let (rate_max, cwnd, mss) = (reader.long()?, reader.word()?, reader.word()?);
                let (rtt_us, uid) = (reader.word()?, reader.word()?);
                let (own, peer) = (reader.address()?, reader.address()?);
                let (own_port, peer_port) = (reader.word()? as u16, reader.word()? as u16);
                let own = SocketAddr::new(own.to_canonical(), own_port);
                let peer = SocketAddr::new(peer.to_canonical(), peer_port);
                Some(Self::Open(Opened { flow, slot, rate_max, cwnd, mss, rtt_us, uid, own, peer }))
            }
            2 => {
                let (number, rtt_us, clamps) = (reader.long()? as u32, reader.word()?, reader.word()?);
                let (count, _) = (reader.word()? as usize, reader.word()?);
                let values = (0..count.min(REPORTS_MAX)).map(|_| reader.long()).collect::<Option<_>>()?;
                Some(Self::Report(Reported { flow, number, rtt_us, clamps, values }))
            }
            3 => Some(Self::Close { flow }),
            _ => None,
        }
    }
}

/// Numbers from the front of a record.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn address(&mut self) -> Option<Ipv6Addr> {
        self.take::<16>().map(Ipv6Addr::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(cwnd: u64) -> Changes {
        Changes { cwnd: Some(cwnd), ..Changes::default() }
    }

    #[test]
    fn a_change_behind_a_program_keeps_the_program_and_its_own_number() {
        let mut slot = Slot::of(7);
        slot.begin(3, 11, &Bounds::of(1448, 1_000_000, 1_000_000), &changes(20_000));
        slot.change(&Changes { rate: Some(5), ..Changes::default() });
        assert_eq!((slot.seq, slot.program_seq), (2, 1));
        assert_eq!((slot.field_seq[FIELD_CWND], slot.field_seq[FIELD_RATE]), (1, 2));
        slot.begin(4, 12, &Bounds::of(1448, 1_000_000, 1_000_000), &Changes::default());
        assert_eq!(
            (slot.program_seq, slot.field_seq),
            (3, [0; FIELDS]),
            "fields of the old program are over"
        );
    }

    #[test]
    fn values_have_the_sizes_of_the_maps() {
        assert_eq!(Slot::of(1).encode().len(), 368);
        let settings = Settings {
            alive_until_us: 1,
            start_us: 2,
            is_returning: true,
            own_name: "a_name_that_is_too_long".into(),
            default_name: "cubic".into(),
            rules: vec![Rule::ALL; 20],
        };
        let bytes = settings.encode();
        assert_eq!(bytes.len(), 24 + 32 + 16 * 24);
        assert_eq!(bytes[24..40], *b"a_name_that_is_\0");
    }

    #[test]
    fn no_record_panics_and_short_ones_are_refused() {
        for len in 0..80 {
            for kind in 0..5_u32 {
                let mut bytes = vec![255; len];
                bytes.iter_mut().zip(kind.to_ne_bytes()).for_each(|(place, byte)| *place = byte);
                let is_whole = matches!(kind, 1 if len >= 80) || matches!(kind, 3 if len >= 16);
                assert_eq!(Event::decode(&bytes).is_some(), is_whole, "kind {kind}, {len} bytes");
            }
        }
    }
}
