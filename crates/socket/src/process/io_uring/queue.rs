//! The submission queue of a program's io_uring, mapped a second time: the entries that the program is about to hand to the kernel.

use core::mem::{offset_of, size_of};
use rustix::fd::RawFd;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringOp, IoringSetupFlags, IoringSqeFlags, io_uring_params,
    io_uring_sqe,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

/// Size of an entry in bytes, without `IORING_SETUP_SQE128`.
const ENTRY: usize = size_of::<io_uring_sqe>();

/// A mapped part of the ring's memory.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, accessed only by atomics or volatile copies, even while the program writes to it.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(ring: RawFd, offset: u64, len: usize) -> Option<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel likes it.
        let start = unsafe {
            mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, session::sys::borrow(ring), offset)
        };
        Some(Self { start: NonNull::new(start.ok()?.cast())?, len })
    }

    /// The 32-bit word at byte offset `at`, if it lies in the mapping.
    fn word(&self, at: usize) -> Option<&AtomicU32> {
        let is_inside = at.is_multiple_of(size_of::<u32>()) && at.checked_add(4)? <= self.len;
        // SAFETY: it lies in the mapping, which outlives `self`'s loan, at its alignment.
        is_inside.then(|| unsafe { &*self.start.as_ptr().add(at).cast::<AtomicU32>() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `Mapping::of` mapped it, and no reference into it is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The mapped submission queue.
#[derive(Debug)]
pub struct Queue {
    words: Mapping,
    entries: Mapping,
    /// Byte offsets of the head, the tail and the array of entry indices in `words`.
    head: usize,
    tail: usize,
    indices: Option<usize>,
    /// Number of entries: a power of two.
    len: u32,
}

impl Queue {
    /// Maps the queue of a ring that was just made. `None`: the kernel refuses, or the offsets make no sense.
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

    /// The entries not yet handed to the kernel, the oldest first, `most` at most.
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
            // The kernel stops at an index that is out of range.
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
        // SAFETY: `Queue::waiting` checked that the entry lies in the mapping; if the program writes meanwhile, the value read may be
        // wrong, and any bits are allowed.
        unsafe { self.place(offset).cast::<T>().read_volatile() }
    }

    fn place(&self, offset: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.queue.entries.start.as_ptr().add(self.at + offset) }
    }

    /// The operation: an `IoringOp`, or a number that only a newer kernel knows.
    #[must_use]
    pub fn operation(&self) -> u8 {
        self.field(offset_of!(io_uring_sqe, opcode))
    }

    fn flags(&self) -> IoringSqeFlags {
        IoringSqeFlags::from_bits_retain(self.field(offset_of!(io_uring_sqe, flags)))
    }

    /// The descriptor that the operation acts on; `None` for a registered file.
    #[must_use]
    pub fn descriptor(&self) -> Option<RawFd> {
        (!self.flags().contains(IoringSqeFlags::FIXED_FILE)).then(|| self.field(offset_of!(io_uring_sqe, fd)))
    }

    /// True when the next entry waits for this one, or this one waits for all before (links and drains).
    #[must_use]
    pub fn is_followed(&self) -> bool {
        let bound = IoringSqeFlags::IO_LINK | IoringSqeFlags::IO_HARDLINK | IoringSqeFlags::IO_DRAIN;
        self.flags().intersects(bound)
    }

    /// True for an `IORING_OP_CLOSE` that the kernel accepts, of a plain descriptor.
    #[must_use]
    pub fn is_plain_close(&self) -> bool {
        let priority: u16 = self.field(offset_of!(io_uring_sqe, ioprio));
        let flags: u32 = self.field(offset_of!(io_uring_sqe, op_flags));
        let is_bare = priority == 0 && flags == 0 && self.length() == 0;
        is_bare && self.offset() == 0 && self.address() == 0 && self.second() == 0
    }

    /// The field `off`; for epoll operations the member's descriptor.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.field(offset_of!(io_uring_sqe, off_or_addr2))
    }

    /// The field `addr`: an address in the program.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.field(offset_of!(io_uring_sqe, addr_or_splice_off_in))
    }

    /// The field `len`; for epoll operations which change it is.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.field(offset_of!(io_uring_sqe, len))
    }

    /// The field `splice_fd_in` or `file_index`, by operation.
    #[must_use]
    pub fn second(&self) -> i32 {
        self.field(offset_of!(io_uring_sqe, splice_fd_in_or_file_index_or_addr_len))
    }

    /// Directs an epoll operation to another set and another member.
    pub fn lead_to(&self, set: RawFd, fd: RawFd) {
        let place = self.place(offset_of!(io_uring_sqe, off_or_addr2));
        // SAFETY: as in `field`; the kernel reads it when the program enters, which it does after this.
        unsafe { place.cast::<u64>().write_volatile(fd as u64) };
        self.set_descriptor(set);
    }

    /// Replaces the descriptor that the operation acts on.
    pub fn set_descriptor(&self, fd: RawFd) {
        // SAFETY: as in `lead_to`.
        unsafe { self.place(offset_of!(io_uring_sqe, fd)).cast::<RawFd>().write_volatile(fd) };
    }

    /// Makes the operation one that the kernel does not know: it answers EINVAL.
    pub fn spoil(&self) {
        // SAFETY: as in `lead_to`.
        unsafe { self.place(offset_of!(io_uring_sqe, opcode)).write_volatile(u8::MAX) };
    }

    /// Turns the entry into a no-op that succeeds: the library has done its work.
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
