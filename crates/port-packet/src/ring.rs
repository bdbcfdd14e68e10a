//! What the kernel shows of received frames in memory that it shares with us (`PACKET_RX_RING`, version 2): a slot for each frame, in
//! order. Of a frame that is longer than a slot the beginning stands in its slot, and the socket holds the whole of it (`PACKET_COPY_THRESH`).
//!
//! ```text
//!   slot   |header 32|..|virtio-net 10|frame, or its beginning ...............|     2 KiB
//!           status: KERNEL -> USER (| COPY) -> KERNEL
//! ```
//!
//! Documentation/networking/packet_mmap.rst of Linux.
#![allow(unsafe_code)]

use crate::sys;
use port::VNET_HEADER_LEN;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a slot: a frame of Ethernet's usual size fits.
const SLOT: usize = 2048;
/// Frames that may wait.
const SLOTS: usize = 16_384;
/// Bytes that the kernel allocates as one.
const BLOCK: usize = 64 * 1024;
const BYTES: usize = SLOT * SLOTS;

/// Of a slot's status: ours, and the whole frame waits in the socket.
const USER: u32 = 1;
const COPY: u32 = 2;
const KERNEL: u32 = 0;

/// `struct tpacket2_hdr`: where its fields begin.
mod field {
    pub const STATUS: usize = 0;
    pub const LEN: usize = 4;
    pub const HERE: usize = 8;
    pub const MAC: usize = 12;
}

/// The slots, mapped.
#[derive(Debug)]
pub(crate) struct Ring {
    at: NonNull<u8>,
    next: usize,
}

// SAFETY: the mapping is the ring's alone, and has no ties to a thread.
unsafe impl Send for Ring {}

/// A frame that has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    /// Its virtio-net header.
    pub header: &'a [u8; VNET_HEADER_LEN],
    /// The frame, or its beginning.
    pub bytes: &'a [u8],
    /// Bytes of the frame.
    pub len: usize,
    /// The whole of it is what the socket gives next but for those before.
    pub is_copied: bool,
}

impl Ring {
    /// Has the kernel show what the socket gets from now on; it must not be bound yet.
    pub(crate) fn new(socket: &OwnedFd) -> io::Result<Self> {
        sys::set_ring(socket, SLOT as u32, SLOTS as u32, BLOCK as u32)?;
        match sys::map(socket.as_fd(), BYTES) {
            Ok(at) => Ok(Self { at, next: 0 }),
            Err(error) => {
                // Else the kernel would go on filling it, unseen.
                sys::clear_ring(socket.as_fd())?;
                Err(error)
            }
        }
    }

    /// The kernel shows nothing any more: frames are read from the socket.
    pub(crate) fn close(self, socket: BorrowedFd<'_>) -> io::Result<()> {
        // Not before it is unmapped.
        drop(self);
        sys::clear_ring(socket)
    }

    /// Of the frames that are shown already the socket has no more than that. How many had more.
    pub(crate) fn forget_copies(&self) -> u64 {
        let is_shown = |slot: &usize| self.status_of(*slot).load(Ordering::Acquire) & USER != 0;
        let shown = (0..SLOTS).map(|i| (self.next + i) % SLOTS).take_while(is_shown);
        shown.filter(|slot| self.status_of(*slot).fetch_and(!COPY, Ordering::Relaxed) & COPY != 0).count()
            as u64
    }

    fn status(&self) -> &AtomicU32 {
        self.status_of(self.next)
    }

    fn status_of(&self, slot: usize) -> &AtomicU32 {
        assert!(slot < SLOTS, "a slot of the ring");
        // SAFETY: a slot's first word lies inside the mapping and is aligned, for slots begin at multiples of 2048; the kernel and we
        // exchange slots by it.
        unsafe { AtomicU32::from_ptr(self.at.add(slot * SLOT + field::STATUS).as_ptr().cast()) }
    }

    /// The oldest frame, until [`release`](Self::release). `Err`: the kernel shows one that cannot be.
    pub(crate) fn front(&self) -> Option<Result<Shown<'_>, ()>> {
        // Acquire: what the kernel has written before it gave the slot away is seen.
        let status = self.status().load(Ordering::Acquire);
        if status & USER == 0 {
            return None;
        }
        // SAFETY: the slot lies inside the mapping, and is ours until its status says otherwise.
        let slot = unsafe { std::slice::from_raw_parts(self.at.add(self.next * SLOT).as_ptr(), SLOT) };
        Some(read(slot, status).ok_or(()))
    }

    /// Gives the oldest frame's slot back.
    pub(crate) fn release(&mut self) {
        // Release: we have read all of it.
        self.status().store(KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of that length, and nobody else has borrowed of it.
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
        let good = slot(60_000, 1_972, 76);
        let shown = read(&good, USER | COPY).unwrap();
        assert_eq!((shown.bytes.len(), shown.len, shown.is_copied), (1_972, 60_000, true));
        assert!(read(&slot(60, 1_973, 76), USER).is_none());
        assert!(read(&slot(60, 60, 9), USER).is_none());
        assert!(read(&slot(60, u32::MAX, 76), USER).is_none());
    }
}
