//! Received frames in memory that the kernel shares with us (`PACKET_RX_RING`, version 2): one slot per frame, in order. A frame longer
//! than a slot has its beginning in the slot, and the socket keeps the whole frame (`PACKET_COPY_THRESH`).
//!
//! ```text
//!   slot   |header 32|..|virtio-net 10|frame, or its beginning ...............|     5 KiB
//!           status: KERNEL -> USER (| COPY) -> KERNEL
//! ```
//!
//! See Documentation/networking/packet_mmap.rst of Linux.
#![allow(unsafe_code)]

use crate::sys;
use port::VNET_HEADER_LEN;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Length of a slot in bytes: a frame of the usual Ethernet size fits, and so does a request of 4 KiB that came as one super-frame. Longer
/// frames cannot be taken before their turn, and the kernel copies as much of each into its slot for nothing.
const SLOT: usize = 5120;
/// Number of slots: frames that may wait. No more than the longest rings of network cards have: each slot that is used in turn is a page
/// and three cache lines that no cache has kept.
const SLOTS: usize = 63 * 64;
/// Bytes that the kernel allocates in one piece: whole slots, whole pages, and little less than a power of two, which it takes.
const BLOCK: usize = 12 * SLOT;
const BYTES: usize = SLOT * SLOTS;
const _: () = assert!(BYTES.is_multiple_of(BLOCK) && SLOTS.is_multiple_of(64));

/// Bits of a slot's status: USER: the slot is ours; COPY: the whole frame waits in the socket. KERNEL: the slot is the kernel's.
const USER: u32 = 1;
const COPY: u32 = 2;
const KERNEL: u32 = 0;

/// Offsets of the fields of `struct tpacket2_hdr`.
mod field {
    pub const STATUS: usize = 0;
    pub const LEN: usize = 4;
    pub const HERE: usize = 8;
    pub const MAC: usize = 12;
}

/// The mapped slots of a socket.
#[derive(Debug)]
pub(crate) struct Ring {
    at: NonNull<u8>,
    /// Slot of the oldest frame, or of the next frame that comes.
    next: usize,
    /// Number of slots from `next` on that [`look_ahead`](Self::look_ahead) need not show.
    seen: usize,
    /// One bit for each slot: its frame was taken before its turn.
    taken: Box<[u64]>,
}

// SAFETY: only the ring uses the mapping, and it is not bound to a thread.
unsafe impl Send for Ring {}

/// A received frame in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    /// The virtio-net header of the frame.
    pub header: &'a [u8; VNET_HEADER_LEN],
    /// The frame, or its beginning.
    pub bytes: &'a [u8],
    /// Length of the whole frame in bytes.
    pub len: usize,
    /// True: the socket keeps the whole frame, behind those of earlier slots.
    pub is_copied: bool,
}

impl Ring {
    /// Makes the kernel put the socket's frames into a ring from now on; the socket must not receive yet.
    pub(crate) fn new(socket: &OwnedFd) -> io::Result<Self> {
        sys::set_ring(socket, SLOT as u32, SLOTS as u32, BLOCK as u32)?;
        match sys::map(socket.as_fd(), BYTES) {
            Ok(at) => Ok(Self { at, next: 0, seen: 0, taken: vec![0; SLOTS / 64].into_boxed_slice() }),
            Err(error) => {
                // Without this the kernel would continue to fill the ring.
                sys::clear_ring(socket.as_fd())?;
                Err(error)
            }
        }
    }

    /// Removes the ring: from now on frames are read from the socket.
    pub(crate) fn close(self, socket: BorrowedFd<'_>) -> io::Result<()> {
        // The kernel refuses to remove a mapped ring, so unmap it first.
        drop(self);
        sys::clear_ring(socket)
    }

    /// Clears the COPY bit of all frames in the ring: the socket does not keep them any more. Returns how many had it.
    pub(crate) fn forget_copies(&self) -> u64 {
        let is_shown = |slot: &usize| self.status_of(*slot).load(Ordering::Acquire) & USER != 0;
        let shown = (0..SLOTS).map(|i| (self.next + i) % SLOTS).take_while(is_shown);
        shown.filter(|slot| self.status_of(*slot).fetch_and(!COPY, Ordering::Relaxed) & COPY != 0).count()
            as u64
    }

    /// Number of slots from the oldest frame on that the kernel has filled.
    pub(crate) fn filled(&self) -> usize {
        (0..SLOTS)
            .take_while(|i| self.status_of((self.next + i) % SLOTS).load(Ordering::Relaxed) & USER != 0)
            .count()
    }

    fn status(&self) -> &AtomicU32 {
        self.status_of(self.next)
    }

    fn status_of(&self, slot: usize) -> &AtomicU32 {
        assert!(slot < SLOTS, "a slot of the ring");
        // SAFETY: the first word of a slot lies inside the mapping and is aligned, because slots begin at multiples of `SLOT`; the kernel and
        // this process pass slots to each other by this word.
        unsafe { AtomicU32::from_ptr(self.at.add(slot * SLOT + field::STATUS).as_ptr().cast()) }
    }

    /// The oldest frame, valid until [`release`](Self::release). `Err`: the kernel has written an impossible slot.
    pub(crate) fn front(&self) -> Option<Result<Shown<'_>, ()>> {
        // Acquire: the kernel's writes before it passed the slot to us are visible.
        let status = self.status().load(Ordering::Acquire);
        if status & USER == 0 {
            return None;
        }
        Some(self.shown(self.next, status))
    }

    /// The frame of a slot that is ours.
    fn shown(&self, slot: usize, status: u32) -> Result<Shown<'_>, ()> {
        assert!(slot < SLOTS, "a slot of the ring");
        // SAFETY: the slot lies inside the mapping, and is ours until its status changes.
        let slot = unsafe { std::slice::from_raw_parts(self.at.add(slot * SLOT).as_ptr(), SLOT) };
        read(slot, status).ok_or(())
    }

    /// The oldest frame that was not taken and that this function has not shown before, and its slot. The frame stays in the ring.
    pub(crate) fn look_ahead(&mut self) -> Option<(usize, Result<Shown<'_>, ()>)> {
        loop {
            let slot = (self.next + self.seen) % SLOTS;
            // Acquire: as in `front`.
            let status = self.status_of(slot).load(Ordering::Acquire);
            if status & USER == 0 || self.seen == SLOTS {
                return None;
            }
            self.seen += 1;
            if !self.is_taken(slot) {
                return Some((slot, self.shown(slot, status)));
            }
        }
    }

    /// Shows the frame of that slot, which was shown and waits, once more, and those behind it.
    pub(crate) fn look_again(&mut self, slot: usize) {
        self.seen = (slot + SLOTS - self.next) % SLOTS;
    }

    /// True when the frame of that slot was taken before its turn.
    fn is_taken(&self, slot: usize) -> bool {
        self.taken[slot / 64] >> (slot % 64) & 1 != 0
    }

    /// Notes that the frame of that slot was taken: [`skip_taken`](Self::skip_taken) releases the slot.
    pub(crate) fn take(&mut self, slot: usize) {
        self.taken[slot / 64] |= 1 << (slot % 64);
    }

    /// Gives the slots of the oldest frames back to the kernel that were taken before their turn. The kernel fills slots in their order, so
    /// none is given back before those in front of it.
    pub(crate) fn skip_taken(&mut self) {
        while self.is_taken(self.next) {
            self.taken[self.next / 64] &= !(1 << (self.next % 64));
            self.release();
        }
    }

    /// Gives the slot of the oldest frame back to the kernel.
    pub(crate) fn release(&mut self) {
        // Release: all our reads of the slot come before this store.
        self.status().store(KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        self.seen = self.seen.saturating_sub(1);
    }
}

/// Has a socket get the frames of interface `index` that its filter lets through. Returns its ring; `None`, and frames are read from the socket:
/// the kernel has no memory for one, or the socket has no filter. A frame with an offload that the header cannot express (UDP segments before
/// Linux 6.2, SCTP segments) keeps its slot for ever and so blocks the ring.
pub(crate) fn receive(socket: &OwnedFd, index: i32, is_filtered: bool) -> io::Result<Option<Ring>> {
    let ring = if is_filtered { Ring::new(socket).ok() } else { None };
    sys::bind(socket, index, sys::ALL)?;
    Ok(ring)
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and of that length, and no borrow of it is left.
        unsafe { sys::unmap(self.at, BYTES) };
    }
}

fn read(slot: &[u8], status: u32) -> Option<Shown<'_>> {
    let word = |at| slot.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes);
    let begin = usize::from(u16::from_ne_bytes(slot.get(field::MAC..field::MAC + 2)?.try_into().ok()?));
    let here = word(field::HERE)? as usize;
    Some(Shown {
        header: slot.get(begin.checked_sub(VNET_HEADER_LEN)?..begin)?.try_into().ok()?,
        bytes: slot.get(begin..begin + here)?,
        len: word(field::LEN)? as usize,
        is_copied: status & COPY != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_point_outside_of_themselves_show_nothing() {
        let slot = |len: u32, here: u32, begin: u16| {
            let mut slot = vec![7; SLOT];
            slot[4..8].copy_from_slice(&len.to_ne_bytes());
            slot[8..12].copy_from_slice(&here.to_ne_bytes());
            slot[12..14].copy_from_slice(&begin.to_ne_bytes());
            slot
        };
        let most = SLOT - 76;
        let good = slot(60_000, most as u32, 76);
        let shown = read(&good, USER | COPY).unwrap();
        assert_eq!((shown.bytes.len(), shown.len, shown.is_copied), (most, 60_000, true));
        assert!(read(&slot(60, most as u32 + 1, 76), USER).is_none());
        assert!(read(&slot(60, 60, 9), USER).is_none());
        assert!(read(&slot(60, u32::MAX, 76), USER).is_none());
    }
}
