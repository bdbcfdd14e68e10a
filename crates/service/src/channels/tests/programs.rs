//! Programs of a simulated host: each end of a virtual socket writes a stream of its own and checks every byte that it reads. They act on
//! the application's side of a slot, as a process does.

use crate::memory::Memory;
use base::Seed;
use queue::Ring;
use queue::stream::{Sender, consumed, raise, readable, watch};
use shm::Side;
use shm::half_flags::{ERRNO_SHIFT, FAILED, FIN, OPEN, RELEASED, RESET, WANT_SPACE};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Base-two logarithm of the bytes of a program's ring.
const RING_LOG2: u8 = 13;
/// The context on which the engine rings programs. No program sleeps: each has its turn in every step.
const CONTEXT: u32 = 1;

/// The byte at that position of the stream with that key.
fn byte(key: u64, position: u64) -> u8 {
    ((key ^ position).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

fn pattern(key: u64, from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(|position| byte(key, position)).collect()
}

/// What one end of a connection does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Names the stream that this end writes.
    pub key: u64,
    /// Names the stream that this end reads.
    pub peer_key: u64,
    /// Bytes that this end writes.
    pub writes: u64,
    /// Bytes that the peer writes.
    pub reads: u64,
    /// Resets the connection when it has read so many bytes.
    pub aborts_at: Option<u64>,
    /// Closes the connection as soon as it has written everything.
    pub leaves: bool,
    /// Reads nothing.
    pub stops: bool,
}

/// How an end's connection went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Both directions came to their ends, with all bytes.
    Whole,
    /// The connection was reset.
    Reset,
    /// It was not made, for this errno.
    Failed(u32),
}

/// One end of a connection, as its program sees it.
#[derive(Debug)]
pub struct Program {
    memory: Arc<Memory>,
    slot: u32,
    plan: Plan,
    sender: Sender,
    read: u64,
    is_finished: bool,
    /// Set when the end is over; the slot is released then.
    pub outcome: Option<Outcome>,
}

impl Program {
    /// An end at a cleared slot.
    pub fn new(memory: Arc<Memory>, slot: u32, plan: Plan) -> Self {
        if let Some((_, app)) = memory.halves(slot) {
            watch(app, Some(CONTEXT));
        }
        Self { memory, slot, plan, sender: Sender::default(), read: 0, is_finished: false, outcome: None }
    }

    /// Does something, or nothing: writes, reads, ends. True: something was done.
    pub fn turn(&mut self, seed: &mut Seed) -> bool {
        let memory = self.memory.clone();
        let Some((own, _)) = memory.halves(self.slot).filter(|_| self.outcome.is_none()) else {
            return false;
        };
        let flags = own.flags.load(Ordering::Acquire);
        if flags & FAILED != 0 {
            return self.leave(Outcome::Failed(flags >> ERRNO_SHIFT & 0xfff));
        }
        if flags & RESET != 0 {
            return self.leave(Outcome::Reset);
        }
        if flags & OPEN == 0 {
            return false;
        }
        let wrote = seed.chance(800_000) && self.write(seed);
        let read = !self.plan.stops && seed.chance(800_000) && self.read(seed);
        if self.plan.leaves && self.is_finished {
            return self.leave(Outcome::Whole);
        }
        if self.plan.aborts_at.is_some_and(|at| self.read >= at) {
            return self.leave(Outcome::Reset);
        }
        let is_over = self.is_finished && self.read == self.plan.reads && flags & FIN != 0;
        if is_over { self.leave(Outcome::Whole) } else { wrote || read }
    }

    fn leave(&mut self, outcome: Outcome) -> bool {
        self.outcome = Some(outcome);
        if let Some((_, app)) = self.memory.halves(self.slot) {
            raise(app, RELEASED | if outcome == Outcome::Whole { FIN } else { RESET });
        }
        self.ring();
        true
    }

    /// Tells the core that the slot has news.
    fn ring(&self) {
        self.memory.ring_service(self.slot);
    }

    fn write(&mut self, seed: &mut Seed) -> bool {
        let memory = self.memory.clone();
        let Some((own, app)) = memory.halves(self.slot) else { return false };
        if self.sender.ring.is_none() {
            self.sender.lend(app, Ring::new(u64::from(self.slot) << RING_LOG2, RING_LOG2));
        }
        let _ = self.sender.update(own).expect("the engine keeps to the rules");
        let left = self.plan.writes - self.sender.head;
        let len = (1 + seed.below(6_000)).min(left).min(self.sender.space() as u64) as usize;
        if let Some(ring) = self.sender.ring.filter(|_| len > 0) {
            let bytes = pattern(self.plan.key, self.sender.head, len);
            let [(a, an), (b, bn)] = ring.spans(self.sender.head, len);
            memory.region().write(Side::One, a, &bytes[..an]);
            memory.region().write(Side::One, b, &bytes[an..an + bn]);
            self.sender.publish(app, len);
        }
        let is_end = self.sender.head == self.plan.writes && !self.is_finished;
        if is_end {
            raise(app, FIN);
            self.is_finished = true;
        }
        if len > 0 || is_end {
            self.ring();
        } else if left > 0 {
            let _ = self.sender.want_space(app, own, |_| ());
        }
        len > 0 || is_end
    }

    fn read(&mut self, seed: &mut Seed) -> bool {
        let memory = self.memory.clone();
        let Some((own, app)) = memory.halves(self.slot) else { return false };
        let data_len = memory.region().layout().params.data_len;
        let found = readable(own, self.read, data_len).expect("the engine keeps to the rules");
        let Some(found) = found else { return false };
        let mut bytes = vec![0; found.len.min(1 + seed.below(9_000) as usize)];
        let [(a, an), (b, bn)] = found.ring.spans(self.read, bytes.len());
        memory.region().read(Side::Zero, a, &mut bytes[..an]);
        memory.region().read(Side::Zero, b, &mut bytes[an..an + bn]);
        let expected = pattern(self.plan.peer_key, self.read, bytes.len());
        assert!(bytes == expected, "{:?}: wrong bytes from position {}", self.plan, self.read);
        self.read += bytes.len() as u64;
        assert!(self.read <= self.plan.reads, "{:?}: more than was written", self.plan);
        if consumed(app, own, self.read) || own.flags.load(Ordering::Relaxed) & WANT_SPACE != 0 {
            self.ring();
        }
        true
    }
}
