//! A link that carries bytes: the model, and the frames on the way.

use crate::config::LinkConfig;
use crate::counters::Counters;
use crate::damage::apply;
use crate::model::{Model, Passage, View};
use base::{Duration, Instant};
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

/// A frame on the way.
#[derive(Debug)]
struct Flight {
    at: Instant,
    /// Number in the order of sending: of frames that arrive at the same time, the one sent first is delivered first.
    number: u64,
    frame: Vec<u8>,
}

impl Flight {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// One direction of a link. Frames enter by [`offer`](Self::offer) and are delivered by [`poll`](Self::poll). Meanwhile they are in buffers
/// that are reused; there are as many as frames were ever on the way at once, so give the queue of a link with a rate a limit.
#[derive(Debug)]
pub struct Link {
    model: Model,
    in_order: VecDeque<Flight>,
    late: BinaryHeap<Reverse<Flight>>,
    spare: Vec<Vec<u8>>,
    /// The frame that `poll` returned last.
    given: Vec<u8>,
    number: u64,
}

impl Link {
    /// An empty link at [`Instant::ZERO`]. The configuration should have passed [`LinkConfig::check`].
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self {
            model: Model::new(config, seed),
            in_order: VecDeque::new(),
            late: BinaryHeap::new(),
            spare: Vec::new(),
            given: Vec::new(),
            number: 0,
        }
    }

    /// The configuration of the link.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        self.model.config()
    }

    /// Changes the configuration from now on. Frames on the way keep their times, and the random sequences go on.
    pub fn change(&mut self, config: LinkConfig) {
        self.model.change(config);
    }

    /// The counters of the link.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.model.counters()
    }

    /// Number of packets in the queue at `now`, including the one being sent.
    #[must_use]
    pub fn queued(&self, now: Instant) -> usize {
        self.model.queued(now)
    }

    /// How long a frame offered at `now` would wait for the queue.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        self.model.wait(now)
    }

    /// Number of frames on the way: in the queue, on the line, or propagating.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_order.len() + self.late.len()
    }

    /// Sends `frame` into the link at `now`, which must not decrease from call to call.
    pub fn offer(&mut self, now: Instant, frame: &[u8]) {
        let fate = self.model.judge(now, &View::of(frame));
        for passage in [fate.first, fate.second].into_iter().flatten() {
            let mut copy = self.spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(frame);
            self.carry(passage, copy);
        }
    }

    /// As [`offer`](Self::offer), without a copy, for callers that also [`take`](Self::take).
    pub fn send(&mut self, now: Instant, frame: Vec<u8>) {
        let fate = self.model.judge(now, &View::of(&frame));
        match (fate.first, fate.second) {
            (Some(first), Some(second)) => {
                self.carry(first, frame.clone());
                self.carry(second, frame);
            }
            (Some(passage), None) | (None, Some(passage)) => self.carry(passage, frame),
            (None, None) => {}
        }
    }

    fn carry(&mut self, passage: Passage, mut frame: Vec<u8>) {
        let len = apply(&passage.damage, &mut frame);
        frame.truncate(len);
        self.number += 1;
        let flight = Flight { at: passage.at, number: self.number, frame };
        if passage.late {
            self.late.push(Reverse(flight));
        } else {
            self.in_order.push_back(flight);
        }
    }

    /// The next frame that has arrived by `now`, valid until the next call; `None` if there is none.
    pub fn poll(&mut self, now: Instant) -> Option<&[u8]> {
        let frame = self.take(now)?;
        let used = std::mem::replace(&mut self.given, frame);
        self.spare.push(used);
        Some(&self.given)
    }

    /// Takes the next frame that has arrived by `now`; `None` if there is none.
    pub fn take(&mut self, now: Instant) -> Option<Vec<u8>> {
        if now < self.next_deadline() {
            return None;
        }
        let late = self.late.peek().map(|Reverse(flight)| flight.key());
        let takes_late = match (self.in_order.front().map(Flight::key), late) {
            (Some(first), Some(late)) => late < first,
            (first, _) => first.is_none(),
        };
        let flight = if takes_late {
            self.late.pop().map(|Reverse(flight)| flight)
        } else {
            self.in_order.pop_front()
        }?;
        self.model.counters_mut().count_delivered(flight.frame.len());
        Some(flight.frame)
    }

    /// When the next frame is delivered; [`Instant::NEVER`] if none is on the way.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let first = self.in_order.front().map_or(Instant::NEVER, |flight| flight.at);
        let late = self.late.peek().map_or(Instant::NEVER, |Reverse(flight)| flight.at);
        first.min(late)
    }
}

#[cfg(test)]
mod tests;
