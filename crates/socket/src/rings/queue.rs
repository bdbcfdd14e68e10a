//! The submission queue of a ring, mapped once more: what the program is about to hand to the kernel.

use core::mem::{offset_of, size_of};
use rustix::fd::RawFd;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringOp, IoringSetupFlags, IoringSqeFlags, io_uring_params,
    io_uring_sqe,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

/// An entry's size; with `IORING_SETUP_SQE128` it would be another.
const ENTRY: usize = size_of::<io_uring_sqe>();

/// Memory of a ring.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; what is in it is read and written as atomics or at once, whoever else does.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(ring: RawFd, offset: u64, len: usize) -> Option<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel likes it.
        let start = unsafe {
            mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, crate::sys::borrow(ring), offset)
        };
        Some(Self { start: NonNull::new(start.ok()?.cast())?, len })
    }

    /// The word at `at`.
    fn word(&self, at: usize) -> Option<&AtomicU32> {
        let is_inside = at.is_multiple_of(size_of::<u32>()) && at.checked_add(4)? <= self.len;
        // SAFETY: it lies in the mapping, which outlives `self`'s loan, at its alignment.
        is_inside.then(|| unsafe { &*self.start.as_ptr().add(at).cast::<AtomicU32>() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped here, and nothing lends from it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// See the module.
#[derive(Debug)]
pub struct Queue {
    words: Mapping,
    entries: Mapping,
    /// Where the head, the tail and the indices of entries lie.
    head: usize,
    tail: usize,
    indices: Option<usize>,
    /// How many entries there are, a power of two.
    len: u32,
}

impl Queue {
    /// Of a ring that was just made.
    #[must_use]
    pub fn of(ring: RawFd, params: &io_uring_params) -> Option<Self> {
        let offsets = &params.sq_off;
        let len = params.sq_entries;
        let has_indices = !params.flags.contains(IoringSetupFlags::NO_SQARRAY);
        let [head, tail, array] = [offsets.head, offsets.tail, offsets.array].map(|at| at as usize);
        let size = if has_indices { array + len as usize * 4 } else { head.max(tail) + 4 };
        let words = Mapping::of(ring, IORING_OFF_SQ_RING, size)?;
        let entries = Mapping::of(ring, IORING_OFF_SQES, len as usize * ENTRY)?;
        let queue = Self { words, entries, head, tail, indices: has_indices.then_some(array), len };
        (len.is_power_of_two() && queue.words.word(head).is_some() && queue.words.word(tail).is_some())
            .then_some(queue)
    }

    /// The entries that wait, `most` at most, the oldest first.
    pub fn waiting(&self, most: u32) -> impl Iterator<Item = Entry<'_>> {
        let word = |at| self.words.word(at).map_or(0, |word| word.load(Ordering::Acquire));
        let (head, tail) = (word(self.head), word(self.tail));
        let count = tail.wrapping_sub(head).min(most).min(self.len);
        (0..count).map_while(move |i| {
            let place = head.wrapping_add(i) & (self.len - 1);
            let index = match self.indices {
                Some(indices) => word(indices + place as usize * 4),
                None => place,
            };
            // The kernel drops what is no index, and stops there.
            (index < self.len).then(|| Entry { queue: self, at: index as usize * ENTRY })
        })
    }
}

/// An entry that the kernel has not seen yet.
#[derive(Debug)]
pub struct Entry<'a> {
    queue: &'a Queue,
    at: usize,
}

impl Entry<'_> {
    fn field<T: Copy>(&self, offset: usize) -> T {
        const { assert!(size_of::<T>() <= 8) };
        // SAFETY: `Queue::waiting` has looked that the entry lies in the mapping; whoever writes meanwhile spoils what is read, which may
        // be any bits.
        unsafe { self.place(offset).cast::<T>().read_volatile() }
    }

    fn place(&self, offset: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.queue.entries.start.as_ptr().add(self.at + offset) }
    }

    /// What is to be done: an `IoringOp`, or what a newer kernel knows.
    #[must_use]
    pub fn operation(&self) -> u8 {
        self.field(offset_of!(io_uring_sqe, opcode))
    }

    fn flags(&self) -> IoringSqeFlags {
        IoringSqeFlags::from_bits_retain(self.field(offset_of!(io_uring_sqe, flags)))
    }

    /// By which descriptor; `None` for a registered file.
    #[must_use]
    pub fn descriptor(&self) -> Option<RawFd> {
        (!self.flags().contains(IoringSqeFlags::FIXED_FILE)).then(|| self.field(offset_of!(io_uring_sqe, fd)))
    }

    /// True when the next one waits for it, or it for those before.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        let bound = IoringSqeFlags::IO_LINK | IoringSqeFlags::IO_HARDLINK | IoringSqeFlags::IO_DRAIN;
        self.flags().intersects(bound)
    }

    /// True for `IORING_OP_CLOSE` of a descriptor, as the kernel takes it.
    #[must_use]
    pub fn is_plain_close(&self) -> bool {
        let priority: u16 = self.field(offset_of!(io_uring_sqe, ioprio));
        let flags: u32 = self.field(offset_of!(io_uring_sqe, op_flags));
        let is_bare = priority == 0 && flags == 0 && self.length() == 0;
        is_bare && self.offset() == 0 && self.address() == 0 && self.second() == 0
    }

    /// `off`.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.field(offset_of!(io_uring_sqe, off_or_addr2))
    }

    /// `addr`.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.field(offset_of!(io_uring_sqe, addr_or_splice_off_in))
    }

    /// `len`.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.field(offset_of!(io_uring_sqe, len))
    }

    /// `splice_fd_in` or `file_index`.
    #[must_use]
    pub fn second(&self) -> i32 {
        self.field(offset_of!(io_uring_sqe, splice_fd_in_or_file_index_or_addr_len))
    }

    /// Of an operation of an epoll set: gives it another set, and another descriptor to act on there.
    pub fn lead_to(&self, set: RawFd, fd: RawFd) {
        let place = self.place(offset_of!(io_uring_sqe, off_or_addr2));
        // SAFETY: as in `field`; the kernel reads it when the program enters, which it does after this.
        unsafe { place.cast::<u64>().write_volatile(fd as u64) };
        self.set_descriptor(set);
    }

    /// Gives it another descriptor.
    pub fn set_descriptor(&self, fd: RawFd) {
        // SAFETY: as in `lead_to`.
        unsafe { self.place(offset_of!(io_uring_sqe, fd)).cast::<RawFd>().write_volatile(fd) };
    }

    /// The kernel does not know it: EINVAL.
    pub fn spoil(&self) {
        // SAFETY: as in `lead_to`.
        unsafe { self.place(offset_of!(io_uring_sqe, opcode)).write_volatile(u8::MAX) };
    }

    /// It is done: the kernel has nothing to do but to say so.
    pub fn finish(&self) {
        let flags = self.flags().bits();
        let word: u64 = self.field(offset_of!(io_uring_sqe, user_data));
        // SAFETY: as in `lead_to`.
        unsafe {
            self.place(0).write_bytes(0, ENTRY);
            self.place(offset_of!(io_uring_sqe, opcode)).write_volatile(IoringOp::Nop as u8);
            self.place(offset_of!(io_uring_sqe, flags)).write_volatile(flags);
            self.place(offset_of!(io_uring_sqe, user_data)).cast::<u64>().write_volatile(word);
        }
    }
}
