//! One direction of the fault injector: cuts super-frames, draws the faults of each segment, and stores those that are held back.

use super::{FaultCounts, FaultRates};
use crate::checksum::complete_checksum;
use crate::stats::{DropCause, Drops};
use crate::{Checksum, PacketBuf, Segmenter};
use base::{Instant, Seed};
use wire::{EtherType, EthernetHeader};

/// Largest number of packets held back at once; further ones pass. Two batches: reordering over longer distances looks like loss.
const HELD_MAX: usize = 2 * base::limits::BATCH;

/// Length of the Ethernet header in bytes.
const ETHERNET: usize = 14;

/// The result of `next_unit`: whether there was a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    None,
    Some,
}

#[derive(Debug)]
struct Held {
    packet: PacketBuf,
    /// The packet is due when `counts.seen` reaches this number, or at `until`.
    after: u64,
    until: Instant,
}

/// One direction of the fault injector.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) rates: FaultRates,
    pub(super) counts: FaultCounts,
    pub(super) drops: Drops,
    seed: Seed,
    held: Vec<Held>,
    spare: Vec<PacketBuf>,
    cursor: Cursor,
}

/// The progress within the current frame.
#[derive(Clone, Copy, Debug)]
enum Cursor {
    Begin,
    Cutting(Segmenter),
    End,
}

impl Lane {
    pub(super) fn new(rates: FaultRates, seed: u64) -> Self {
        let holds = !rates.strike_never();
        let spare = if holds { (0..HELD_MAX).map(|_| PacketBuf::new()).collect() } else { Vec::new() };
        let held = Vec::with_capacity(HELD_MAX);
        let (counts, drops, seed) = (FaultCounts::default(), Drops::default(), Seed::new(seed));
        Self { rates, counts, drops, seed, held, spare, cursor: Cursor::Begin }
    }

    /// The next frame given to `next_unit` is a new one.
    pub(super) fn begin(&mut self) {
        self.cursor = Cursor::Begin;
    }

    /// Copies the next segment of `frame` to `slot`; after the last one it returns [`Unit::None`] once.
    pub(super) fn next_unit(&mut self, frame: &PacketBuf, slot: &mut PacketBuf, misfit: DropCause) -> Unit {
        if let (Cursor::Begin, Some(_)) = (self.cursor, frame.meta.gso) {
            match Segmenter::new(frame) {
                Ok(segmenter) => self.cursor = Cursor::Cutting(segmenter),
                Err(_) => return self.refuse(DropCause::Malformed),
            }
        }
        match &mut self.cursor {
            Cursor::Begin => {
                if !slot.copy_from(frame) {
                    return self.refuse(misfit);
                }
                self.cursor = Cursor::End;
                Unit::Some
            }
            Cursor::Cutting(segmenter) if segmenter.remaining(frame) > 0 => {
                if !segmenter.next_into(frame, slot) {
                    return self.refuse(misfit);
                }
                Unit::Some
            }
            Cursor::Cutting(_) | Cursor::End => {
                self.cursor = Cursor::Begin;
                Unit::None
            }
        }
    }

    fn refuse(&mut self, cause: DropCause) -> Unit {
        self.drops.count(cause);
        self.cursor = Cursor::Begin;
        Unit::None
    }

    /// Draws the faults of the packet in `slot` and applies them in place. False when it must not be delivered now.
    pub(super) fn judge(&mut self, slot: &mut PacketBuf, now: Instant) -> bool {
        self.counts.seen += 1;
        let is_too_big = self.rates.mtu > 0 && slot.len() > ETHERNET + usize::from(self.rates.mtu);
        if self.seed.chance(self.rates.loss) || is_too_big {
            self.counts.lost += 1;
            self.drops.count(DropCause::Injected);
            return false;
        }
        if self.seed.chance(self.rates.corrupt) && !slot.is_empty() && !is_arp(slot.frame()) {
            self.counts.corrupted += 1;
            expose(slot);
            let at = self.seed.below(slot.len() as u64) as usize;
            slot.frame_mut()[at] ^= 1 + self.seed.below(255) as u8;
        }
        if self.seed.chance(self.rates.truncate) && slot.len() > 1 {
            self.counts.truncated += 1;
            expose(slot);
            let len = 1 + self.seed.below(slot.len() as u64 - 1) as usize;
            slot.set_len(len);
        }
        if self.seed.chance(self.rates.duplicate) && self.hold(slot, 0, now) {
            self.counts.duplicated += 1;
        }
        if self.seed.chance(self.rates.reorder) {
            let distance = 1 + self.seed.below(u64::from(self.rates.reorder_distance.max(1)));
            let held = self.hold(slot, distance, now);
            self.counts.reordered += u64::from(held);
            return !held;
        }
        true
    }

    fn hold(&mut self, packet: &PacketBuf, distance: u64, now: Instant) -> bool {
        let Some(mut copy) = self.spare.pop() else { return false };
        // The lane's buffers fit any frame, so this does not fail; if it did, the packet would pass without a fault.
        if !copy.copy_from(packet) {
            self.spare.push(copy);
            return false;
        }
        let after = self.counts.seen + distance;
        self.held.push(Held { packet: copy, after, until: now.plus(self.rates.hold_max) });
        true
    }

    fn due(&self, now: Instant) -> Option<usize> {
        self.held.iter().position(|held| held.after <= self.counts.seen || held.until <= now)
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due(now).is_some()
    }

    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn next_deadline(&self) -> Instant {
        self.held.iter().map(|held| held.until).min().unwrap_or(Instant::NEVER)
    }

    /// Copies a held-back packet that is due to `slot`. False when none is due.
    pub(super) fn take_due(&mut self, now: Instant, slot: &mut PacketBuf) -> bool {
        while let Some(at) = self.due(now) {
            let held = self.held.remove(at);
            let fits = slot.copy_from(&held.packet);
            self.spare.push(held.packet);
            if fits {
                return true;
            }
            self.drops.count(DropCause::Oversized);
        }
        false
    }
}

/// True for ARP. It has no checksum, so one changed byte would teach a peer a wrong address for minutes. On a real link the frame's
/// checksum finds the change, and the frame is dropped.
fn is_arp(frame: &[u8]) -> bool {
    EthernetHeader::parse(frame).is_ok_and(|header| header.ethertype == EtherType::ARP)
}

/// Completes the checksum of a frame that is about to be damaged, and marks it as unverified; otherwise the damage would not be noticed.
fn expose(slot: &mut PacketBuf) {
    complete_checksum(slot);
    slot.meta.checksum = Checksum::Unknown;
}
