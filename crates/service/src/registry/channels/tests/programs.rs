//! Programs of a simulated host: each end of a virtual socket writes a stream of its own and checks every byte that it reads. They act on
//! the application's side of a slot, as a process does.

use crate::registry::memory::Memory;
use base::{Duration, Instant, Seed};
use queue::Ring;
use queue::stream::{Sender, consumed, raise, readable, watch};
use shm::Side;
use shm::half_flags::{ERRNO_SHIFT, FAILED, FIN, OPEN, RELEASED, RESET, WANT_SPACE};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Base-two logarithm of the bytes of a program's ring: of one that writes a stream, and of one with requests and answers.
const RING_LOG2: [u8; 2] = [13, 16];
/// The context on which the engine rings programs. No program sleeps: each has its turn in every step.
const CONTEXT: u32 = 1;

/// The byte at that position of the stream with that key.
fn byte(key: u64, position: u64) -> u8 {
    ((key ^ position).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

fn pattern(key: u64, from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(|position| byte(key, position)).collect()
}

/// How an end of a connection writes and reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// Both streams at once, in pieces of any length.
    #[default]
    Stream,
    /// A request of so many bytes, an answer as long, a pause of so much at the mean, and again.
    Client(u64, Duration),
    /// An answer for each request.
    Server,
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
    /// How it writes and reads.
    pub role: Role,
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
    /// When a client sends its next request.
    call_at: Instant,
    /// Since when a client waits for an answer.
    called: Option<Instant>,
    /// Where a client's request ends, and its answer.
    call_end: u64,
    /// How long a client's requests took.
    pub calls: Vec<Duration>,
    /// Set when the end is over; the slot is released then.
    pub outcome: Option<Outcome>,
}

impl Program {
    /// An end at a cleared slot.
    pub fn new(memory: Arc<Memory>, slot: u32, plan: Plan) -> Self {
        if let Some((_, app)) = memory.halves(slot) {
            watch(app, Some(CONTEXT));
        }
        Self {
            memory,
            slot,
            plan,
            sender: Sender::default(),
            read: 0,
            is_finished: false,
            call_at: if let Role::Client(..) = plan.role { Instant::ZERO } else { Instant::NEVER },
            called: None,
            call_end: 0,
            calls: Vec::new(),
            outcome: None,
        }
    }

    /// When a client sends its next request.
    pub fn next_call(&self) -> Instant {
        let own = self.memory.halves(self.slot).map(|(own, _)| own.flags.load(Ordering::Acquire));
        if own.is_some_and(|flags| flags & OPEN != 0) { self.call_at } else { Instant::NEVER }
    }

    /// Does something, or nothing: writes, reads, ends. True: something was done.
    pub fn turn(&mut self, now: Instant, seed: &mut Seed) -> bool {
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
        match self.plan.role {
            Role::Stream => {}
            Role::Client(bytes, pause) => return self.call(now, bytes, pause, seed),
            // What does not fit is written with what comes next, or when there is room.
            Role::Server => return self.read(u64::MAX) | self.write(self.read - self.sender.head),
        }
        let wrote = seed.chance(800_000) && self.write(1 + seed.below(6_000));
        let read = !self.plan.stops && seed.chance(800_000) && self.read(1 + seed.below(9_000));
        if self.plan.leaves && self.is_finished {
            return self.leave(Outcome::Whole);
        }
        if self.plan.aborts_at.is_some_and(|at| self.read >= at) {
            return self.leave(Outcome::Reset);
        }
        let is_over = self.is_finished && self.read == self.plan.reads && flags & FIN != 0;
        if is_over { self.leave(Outcome::Whole) } else { wrote || read }
    }

    /// Sends a request, or takes its answer.
    fn call(&mut self, now: Instant, bytes: u64, pause: Duration, seed: &mut Seed) -> bool {
        let called = match self.called {
            None if self.call_at > now => return false,
            None => {
                (self.called, self.call_at) = (Some(now), Instant::NEVER);
                self.call_end += bytes;
                now
            }
            Some(called) => called,
        };
        let is_busy = self.write(self.call_end - self.sender.head) | self.read(u64::MAX);
        if self.read == self.call_end {
            self.calls.push(now.since(called));
            self.called = None;
            self.call_at = now.plus(Duration::from_ns(seed.below(2 * pause.as_ns() + 1)));
        }
        is_busy
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

    fn write(&mut self, most: u64) -> bool {
        let memory = self.memory.clone();
        let Some((own, app)) = memory.halves(self.slot) else { return false };
        if self.sender.ring.is_none() {
            let log2 = RING_LOG2[usize::from(self.plan.role != Role::Stream)];
            self.sender.lend(app, Ring::new(u64::from(self.slot) << log2, log2));
        }
        let _ = self.sender.update(own).expect("the engine keeps to the rules");
        let left = self.plan.writes - self.sender.head;
        let len = most.min(left).min(self.sender.space() as u64) as usize;
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

    fn read(&mut self, most: u64) -> bool {
        let memory = self.memory.clone();
        let Some((own, app)) = memory.halves(self.slot) else { return false };
        let data_len = memory.region().layout().params.data_len;
        let found = readable(own, self.read, data_len).expect("the engine keeps to the rules");
        let Some(found) = found else { return false };
        let mut bytes = vec![0; found.len.min(usize::try_from(most).unwrap_or(usize::MAX))];
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
