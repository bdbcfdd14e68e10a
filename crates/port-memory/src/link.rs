//! The two ends of a link; each is a [`Port`].

use crate::ring::{Consumer, Producer, prefetch_written, ring};
use crate::wake::Bell;
use port::{Batch, Capabilities, DropCause, Lent, Look, PacketBuf, Port, Stats, Wait};
use std::io;
use std::os::fd::BorrowedFd;

/// `reserve` prefetches the buffer this many slots ahead, because the other end read it last and has it in its cache.
const AHEAD: usize = 4;
/// Number of cache lines of a small message with its headers, for any start of its buffer within a line.
const LINES: usize = 3;

/// Configuration of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// Capabilities of both ends; the address in it is the first end's. A frame arrives as it was sent: super-frames are not cut,
    /// partial checksums are not completed.
    pub capabilities: Capabilities,
    /// Ethernet address of the second end.
    pub peer_mac: [u8; 6],
    /// Largest number of frames in flight per direction; rounded up to a power of two.
    pub slots: usize,
    /// True: the ends have descriptors to sleep on. False: they can only be polled, and make no system calls.
    pub wakes: bool,
}

impl Default for LinkOptions {
    /// Plain Ethernet of MTU 1500, 256 slots, polled.
    fn default() -> Self {
        Self {
            capabilities: Capabilities::plain(1500, [0x02, 0, 0, 0, 0, 0x0A]),
            peer_mac: [0x02, 0, 0, 0, 0, 0x0B],
            slots: 256,
            wakes: false,
        }
    }
}

/// One end of a link in memory.
pub struct MemoryPort {
    capabilities: Capabilities,
    tx: Producer<PacketBuf>,
    rx: Consumer<PacketBuf>,
    bells: Option<Bells>,
    reserved: Reserved,
    /// Buffer for frames to a peer that has been dropped, once its ring is full.
    void: PacketBuf,
    /// Number of waiting frames, from the oldest on, that `receive_ahead` has looked at. The next look begins so many frames before their end.
    seen: usize,
    again: usize,
    stats: Stats,
}

struct Bells {
    mine: Bell,
    peer: Bell,
    /// True between `arm` and `disarm`: this end may be announced as sleeping.
    is_armed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reserved {
    Nothing,
    Slot,
    Void,
    /// The last `reserve` found no room.
    Refused,
}

/// Makes a link and returns its two ends.
///
/// # Errors
/// The error of `eventfd`, when `wakes` is set.
pub fn link(options: &LinkOptions) -> io::Result<(MemoryPort, MemoryPort)> {
    let slots = options.slots.next_power_of_two();
    let frame_max = options.capabilities.frame_max;
    let make = || PacketBuf::with_capacity(frame_max);
    let ((a_tx, b_rx), (b_tx, a_rx)) = (ring(slots, make), ring(slots, make));
    let bells = if options.wakes { Some((Bell::new()?, Bell::new()?)) } else { None };
    let end = |mac, tx, rx, bells: Option<(Bell, Bell)>| MemoryPort {
        capabilities: Capabilities { mac, ..options.capabilities },
        tx,
        rx,
        bells: bells.map(|(mine, peer)| Bells { mine, peer, is_armed: false }),
        reserved: Reserved::Nothing,
        void: PacketBuf::with_capacity(frame_max),
        seen: 0,
        again: 0,
        stats: Stats::default(),
    };
    let a = end(options.capabilities.mac, a_tx, a_rx, bells.clone());
    let b = end(options.peer_mac, b_tx, b_rx, bells.map(|(a, b)| (b, a)));
    Ok((a, b))
}

impl Port for MemoryPort {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn waiting_most(&self) -> usize {
        self.rx.waiting()
    }

    #[inline]
    fn receive(&mut self, batch: &mut Batch) -> usize {
        batch.clear();
        while let (Some(slot), Some(packet)) = (batch.slot(), self.rx.slot()) {
            let len = packet.len();
            let fits = exchange(slot, packet);
            self.rx.take();
            if self.seen > 0 {
                self.seen -= 1;
                if len == 0 {
                    // `receive_ahead` has taken the frame: the peer sends no empty ones.
                    continue;
                }
            }
            if fits {
                self.stats.count_received(len);
                batch.push_slot();
            } else {
                self.stats.drops.count(DropCause::Oversized);
            }
        }
        if self.rx.release() && self.rx_must_ring() {
            self.ring();
        }
        batch.len()
    }

    fn receive_ahead(&mut self, batch: &mut Batch, look: &mut dyn FnMut(&[u8]) -> Look) -> usize {
        batch.clear();
        let (mut at, mut later) = (self.seen.saturating_sub(self.again), usize::MAX);
        while let (Some(slot), Some(packet)) = (batch.slot(), self.rx.peek(at)) {
            at += 1;
            let len = packet.len();
            if len == 0 {
                // It was taken before.
                continue;
            }
            match look(packet.frame()) {
                Look::Leave => {}
                Look::Later => later = later.min(at - 1),
                Look::Take if exchange(slot, packet) => {
                    packet.clear();
                    self.stats.count_received(len);
                    batch.push_slot();
                }
                Look::Take => {}
            }
        }
        self.seen = self.seen.max(at);
        self.again = self.seen - later.min(at);
        batch.len()
    }

    #[inline(always)]
    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        if !self.tx.has_room() {
            self.flush();
            if !self.tx.has_room() {
                return self.reserve_none();
            }
        }
        self.reserved = Reserved::Slot;
        if let Some(buf) = self.tx.ahead(AHEAD) {
            prefetch_written(buf.storage().as_ptr(), LINES);
        }
        let buf = self.tx.slot()?;
        buf.clear();
        Some(buf)
    }

    #[inline(always)]
    fn commit_with(&mut self, payload: Lent<'_>) {
        let reserved = std::mem::replace(&mut self.reserved, Reserved::Nothing);
        if reserved != Reserved::Slot {
            return self.commit_none(reserved);
        }
        let Some(buf) = self.tx.slot() else { return };
        // When the payload does not fit, the buffer stays empty, and an empty frame is not sendable.
        let _ = buf.append(payload);
        let len = buf.len();
        if self.capabilities.admits(buf) {
            self.tx.commit();
            self.stats.count_sent(len);
        } else {
            self.stats.drops.count(DropCause::Unsendable);
        }
    }

    #[inline]
    fn flush(&mut self) {
        if self.tx.publish() && self.bells.is_some() && self.tx.must_wake() {
            self.ring();
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.bells.as_ref().map(|bells| bells.mine.fd())
    }

    fn arm(&mut self) -> Wait {
        self.flush();
        let Some(bells) = &mut self.bells else { return Wait::Not };
        bells.is_armed = true;
        let sleeps =
            self.rx.prepare_sleep() && (self.reserved != Reserved::Refused || self.tx.prepare_sleep());
        if sleeps {
            return Wait::Readable;
        }
        self.disarm();
        Wait::Not
    }

    fn disarm(&mut self) {
        let Some(bells) = &mut self.bells else { return };
        if std::mem::take(&mut bells.is_armed) {
            self.rx.cancel_sleep();
            self.tx.cancel_sleep();
            bells.mine.silence();
            self.stats.system_calls += 1;
        }
    }

    fn stats(&self) -> Stats {
        self.stats
    }
}

/// Moves a packet into an empty buffer. False when it does not fit.
#[inline]
fn exchange(slot: &mut PacketBuf, packet: &mut PacketBuf) -> bool {
    if slot.capacity() == packet.capacity() {
        std::mem::swap(slot, packet);
        return true;
    }
    slot.copy_from(packet)
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        if self.rx.abandon() {
            self.ring();
        }
    }
}

impl MemoryPort {
    /// The ring is full: returns `None`, or a buffer that is thrown away if the peer has been dropped.
    #[cold]
    fn reserve_none(&mut self) -> Option<&mut PacketBuf> {
        if !self.tx.is_abandoned() {
            self.reserved = Reserved::Refused;
            self.stats.sent_full += 1;
            return None;
        }
        self.reserved = Reserved::Void;
        self.void.clear();
        Some(&mut self.void)
    }

    /// Handles a `commit` without a slot: counts the frame as dropped if it was in the throw-away buffer.
    #[cold]
    fn commit_none(&mut self, reserved: Reserved) {
        if reserved == Reserved::Void {
            let is_sendable = self.capabilities.admits(&self.void);
            self.stats.drops.count(if is_sendable { DropCause::Device } else { DropCause::Unsendable });
        }
    }

    fn rx_must_ring(&self) -> bool {
        self.bells.is_some() && self.rx.must_wake()
    }

    fn ring(&mut self) {
        if let Some(bells) = &self.bells {
            bells.peer.ring();
            self.stats.system_calls += 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
