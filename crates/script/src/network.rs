//! Virtual time around one host: keeps the frames that it sends, with their times, and answers its requests for Ethernet addresses.

use crate::machine::OTHERS;
use crate::segment::Segment;
use crate::syntax::Micros;
use base::{Duration, Instant};
use sim::{Host, neighbour};
use std::collections::VecDeque;

/// The instant of script time 0; not zero, so that no code depends on a start at zero.
const EPOCH: Instant = Instant::from_ns(1_000_000_000_000);
/// Largest number of exchanges between host and network at one instant.
const ROUNDS_MAX: u32 = 10_000;

/// A frame that went to or from the host, for captures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Script time in microseconds.
    pub at: Micros,
    /// True for a frame from the host, false for one to it.
    pub is_sent: bool,
    /// The bytes of the frame.
    pub frame: Vec<u8>,
}

/// A segment that the host has sent and that no event of the script has taken yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Micros,
    pub(crate) segment: Segment,
}

pub(crate) struct Network {
    pub(crate) host: Host,
    now: Instant,
    pub(crate) sent: VecDeque<Sent>,
    /// All frames, if a capture was requested.
    pub(crate) capture: Option<Vec<Passed>>,
}

impl Network {
    pub(crate) fn new(host: impl FnOnce(Instant) -> Host, captures: bool) -> Self {
        let mut network =
            Self { host: host(EPOCH), now: EPOCH, sent: VecDeque::new(), capture: captures.then(Vec::new) };
        network.settle();
        network
    }

    /// The present script time in microseconds.
    pub(crate) fn now(&self) -> Micros {
        (self.now.since(EPOCH).as_ns() / 1000) as Micros
    }

    /// A frame reaches the host; the next [`settle`](Self::settle) handles it.
    pub(crate) fn inject(&mut self, frame: &[u8]) {
        self.note(false, frame);
        self.host.inject(frame);
    }

    /// Runs the host until nothing more happens at this instant.
    pub(crate) fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.host.run(self.now);
            let mut is_quiet = true;
            while let Some(frame) = self.host.next_frame() {
                is_quiet = false;
                self.take(&frame);
            }
            if is_quiet && self.host.next_deadline() > self.now {
                return;
            }
        }
        // A host that does not come to rest at this instant continues at the next microsecond.
        self.now = self.now.plus(Duration::from_us(1));
    }

    /// Advances to the next event, at most to `until`. False when `until` is reached.
    pub(crate) fn step(&mut self, until: Micros) -> bool {
        let until = EPOCH.plus(Duration::from_us(until.max(0) as u64));
        if self.now >= until {
            return false;
        }
        let next = self.host.next_deadline().min(until);
        // The next deadline, in nanoseconds, may lie between two microseconds of the script.
        self.now = next.max(self.now.plus(Duration::from_ns(1)));
        self.settle();
        true
    }

    fn note(&mut self, is_sent: bool, frame: &[u8]) {
        let at = self.now();
        if let Some(capture) = &mut self.capture {
            capture.push(Passed { at, is_sent, frame: frame.to_vec() });
        }
    }

    fn take(&mut self, frame: &[u8]) {
        self.note(true, frame);
        if let Some(segment) = Segment::parse(frame) {
            self.sent.push_back(Sent { at: self.now(), segment });
        } else if let Some(answer) = neighbour(frame, OTHERS) {
            self.note(false, &answer);
            self.host.inject(&answer);
        }
    }
}
