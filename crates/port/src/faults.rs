//! A port that damages traffic as a bad path would: loss, duplication, reordering, corruption, truncation.
//!
//! The same seed and the same packets give the same faults. Super-frames are cut first, so that every fault strikes one
//! segment of the size a wire would carry.

mod lane;

use crate::stats::DropCause;
use crate::{Batch, Capabilities, Lent, PacketBuf, Port, Stats, Wait};
use base::{Duration, Instant, Seed};
use lane::{Lane, Unit};
use std::io;
use std::os::fd::BorrowedFd;

/// How often each fault strikes one direction, in packets per million; each is decided by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRates {
    /// Lost.
    pub loss: u32,
    /// Delivered twice.
    pub duplicate: u32,
    /// Held back while others pass.
    pub reorder: u32,
    /// A packet held back lets 1 to this many others pass; 0 counts as 1.
    pub reorder_distance: u32,
    /// A packet is held back no longer than this, whether others come or not.
    pub hold_max: Duration,
    /// One byte changed.
    pub corrupt: u32,
    /// Cut short at a random length.
    pub truncate: u32,
    /// IP packets of more bytes are lost without a word: a black hole of path-MTU discovery. 0: none are.
    pub mtu: u16,
}

impl Default for FaultRates {
    fn default() -> Self {
        Self::NONE
    }
}

impl FaultRates {
    /// A perfect path.
    pub const NONE: Self = Self {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        reorder_distance: 3,
        hold_max: Duration::from_ms(1),
        corrupt: 0,
        truncate: 0,
        mtu: 0,
    };

    /// Only loss.
    #[must_use]
    pub const fn losing(per_million: u32) -> Self {
        Self { loss: per_million, ..Self::NONE }
    }

    const fn strike_never(&self) -> bool {
        (self.loss | self.duplicate | self.reorder | self.corrupt | self.truncate) == 0 && self.mtu == 0
    }
}

/// What happened to the packets of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Packets that came to the injector, counted as segments.
    pub seen: u64,
    /// Lost.
    pub lost: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// One byte changed.
    pub corrupted: u64,
    /// Cut short.
    pub truncated: u64,
}

/// A port around a port with faults in each direction. A direction without faults is passed through untouched.
///
/// Held-back packets need [`Port::set_now`] for their time limit, and calls of `receive` or `flush` to come out.
#[derive(Debug)]
pub struct Faults<P> {
    inner: P,
    now: Instant,
    receive: Lane,
    transmit: Lane,
    /// Received from the wrapped port; packets from `inbox_next` on are not yet judged.
    inbox: Batch,
    inbox_next: usize,
    /// The frame to be sent, and whether all of it has gone.
    outgoing: PacketBuf,
    outgoing_state: Outgoing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outgoing {
    Free,
    Reserved,
    Committed,
}

impl<P: Port> Faults<P> {
    /// Puts faults on what `inner` receives and sends.
    pub fn new(inner: P, seed: u64, receive: FaultRates, transmit: FaultRates) -> Self {
        let mut seed = Seed::new(seed);
        let (receive, transmit) = (Lane::new(receive, seed.next_u64()), Lane::new(transmit, seed.next_u64()));
        Self {
            inner,
            now: Instant::ZERO,
            receive,
            transmit,
            inbox: Batch::new(),
            inbox_next: 0,
            outgoing: PacketBuf::new(),
            outgoing_state: Outgoing::Free,
        }
    }

    /// What happened to received packets.
    #[must_use]
    pub fn receive_counts(&self) -> FaultCounts {
        self.receive.counts
    }

    /// What happened to packets to be sent.
    #[must_use]
    pub fn transmit_counts(&self) -> FaultCounts {
        self.transmit.counts
    }

    /// The port without faults; packets held back are lost.
    pub fn into_inner(self) -> P {
        self.inner
    }

    /// Sends what is due, and what is left of the committed frame, as far as the wrapped port has room.
    fn drain(&mut self) {
        while self.transmit.is_due(self.now) || self.outgoing_state == Outgoing::Committed {
            let Some(slot) = self.inner.reserve() else { return };
            if self.transmit.take_due(self.now, slot) {
                self.inner.commit();
                continue;
            }
            if self.outgoing_state != Outgoing::Committed {
                return;
            }
            match self.transmit.next_unit(&self.outgoing, slot, DropCause::Unsendable) {
                Unit::None => self.outgoing_state = Outgoing::Free,
                Unit::Some if self.transmit.judge(slot, self.now) => self.inner.commit(),
                Unit::Some => {}
            }
        }
    }
}

impl<P: Port> Port for Faults<P> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, batch: &mut Batch) -> usize {
        if self.receive.rates.strike_never() {
            return self.inner.receive(batch);
        }
        batch.clear();
        let mut may_receive = true;
        while let Some(slot) = batch.slot() {
            if self.receive.take_due(self.now, slot) {
                batch.push_slot();
            } else if let Some(packet) = self.inbox.packets().get(self.inbox_next) {
                match self.receive.next_unit(packet, slot, DropCause::Oversized) {
                    Unit::None => self.inbox_next += 1,
                    Unit::Some if self.receive.judge(slot, self.now) => batch.push_slot(),
                    Unit::Some => {}
                }
            } else if std::mem::take(&mut may_receive) && self.inner.receive(&mut self.inbox) > 0 {
                self.inbox_next = 0;
            } else {
                break;
            }
        }
        batch.len()
    }

    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        if self.transmit.rates.strike_never() {
            return self.inner.reserve();
        }
        self.drain();
        if self.outgoing_state == Outgoing::Committed || self.inner.reserve().is_none() {
            return None;
        }
        self.outgoing_state = Outgoing::Reserved;
        self.outgoing.clear();
        Some(&mut self.outgoing)
    }

    fn commit_with(&mut self, payload: Lent<'_>) {
        if self.transmit.rates.strike_never() {
            self.inner.commit_with(payload);
        } else if self.outgoing_state == Outgoing::Reserved {
            // A frame that does not fit leaves the buffer empty, which the port counts as unsendable.
            let _ = self.outgoing.append(payload);
            self.outgoing_state = Outgoing::Committed;
            self.transmit.begin();
            self.drain();
        }
    }

    fn flush(&mut self) {
        self.drain();
        self.inner.flush();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }

    fn arm(&mut self) -> Wait {
        let is_busy =
            self.receive.is_holding() || self.transmit.is_holding() || self.inbox_next < self.inbox.len();
        if is_busy { Wait::Not } else { self.inner.arm() }
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.inner.set_now(now);
    }

    fn next_deadline(&self) -> Instant {
        let mine = self.receive.next_deadline().min(self.transmit.next_deadline());
        mine.min(self.inner.next_deadline())
    }

    fn failure(&self) -> Option<io::Error> {
        self.inner.failure()
    }

    fn stats(&self) -> Stats {
        let mut stats = self.inner.stats();
        stats.drops = stats.drops.plus(&self.receive.drops).plus(&self.transmit.drops);
        stats
    }
}

#[cfg(test)]
mod tests;
