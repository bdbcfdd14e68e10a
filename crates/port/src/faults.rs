//! A port that damages traffic as a bad path does: loss, duplication, reordering, corruption, truncation.
//!
//! The same seed and the same packets give the same faults. Super-frames are cut first, so that each fault applies to one
//! segment of the size that a wire carries.

mod lane;

use crate::stats::DropCause;
use crate::{Batch, Capabilities, Lent, PacketBuf, Port, Stats, Wait};
use base::{Duration, Instant, Seed};
use lane::{Lane, Unit};
use std::io;
use std::os::fd::BorrowedFd;

/// Rates of the faults in one direction, in packets per million; each fault is drawn independently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRates {
    /// Packets per million that are lost.
    pub loss: u32,
    /// Packets per million that are delivered twice.
    pub duplicate: u32,
    /// Packets per million that are held back while later packets pass.
    pub reorder: u32,
    /// A packet that is held back lets 1 to this many later packets pass; 0 counts as 1.
    pub reorder_distance: u32,
    /// Longest time that a packet is held back, even if no later packets come.
    pub hold_max: Duration,
    /// Packets per million with one byte changed; ARP, which has no checksum, is spared.
    pub corrupt: u32,
    /// Packets per million that are cut to a random length.
    pub truncate: u32,
    /// IP packets longer than this are lost without an ICMP error (a black hole of path MTU discovery), bytes. 0: none.
    pub mtu: u16,
}

impl Default for FaultRates {
    fn default() -> Self {
        Self::NONE
    }
}

impl FaultRates {
    /// A path without faults.
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

    /// A path with loss as the only fault.
    #[must_use]
    pub const fn losing(per_million: u32) -> Self {
        Self { loss: per_million, ..Self::NONE }
    }

    const fn strike_never(&self) -> bool {
        (self.loss | self.duplicate | self.reorder | self.corrupt | self.truncate) == 0 && self.mtu == 0
    }
}

/// Counts of the faults in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Packets that reached the injector, counted as segments.
    pub seen: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// Packets that were delivered twice.
    pub duplicated: u64,
    /// Packets that were held back.
    pub reordered: u64,
    /// Packets with one byte changed.
    pub corrupted: u64,
    /// Packets that were cut short.
    pub truncated: u64,
}

/// A port around a port, with faults in each direction. In a direction without faults packets pass unchanged.
///
/// The time limit of held-back packets needs [`Port::set_now`]; `receive` and `flush` deliver them.
#[derive(Debug)]
pub struct Faults<P> {
    inner: P,
    now: Instant,
    receive: Lane,
    transmit: Lane,
    /// Packets received from the wrapped port; those from `inbox_next` on have not been processed.
    inbox: Batch,
    inbox_next: usize,
    /// The frame to send, and its state.
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
    /// Adds faults to the packets that `inner` receives and sends.
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

    /// Counts of the faults on received packets.
    #[must_use]
    pub fn receive_counts(&self) -> FaultCounts {
        self.receive.counts
    }

    /// Counts of the faults on sent packets.
    #[must_use]
    pub fn transmit_counts(&self) -> FaultCounts {
        self.transmit.counts
    }

    /// The wrapped port; packets that are held back are lost.
    pub fn into_inner(self) -> P {
        self.inner
    }

    /// Sends held-back packets that are due and the rest of the committed frame, as far as the wrapped port has room.
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

    fn waiting_most(&self) -> usize {
        let held = if self.receive.is_holding() { usize::MAX } else { self.inbox.len() - self.inbox_next };
        self.inner.waiting_most().saturating_add(held)
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
            // A frame that does not fit leaves the buffer empty; the port counts that as unsendable.
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
