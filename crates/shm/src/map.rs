//! One shared mapping of a memfd, unmapped when dropped. The only `unsafe` of this crate is here and in `region`.

use rustix::fd::BorrowedFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ptr::NonNull;

/// A mapping of `len` bytes, shared with all processes that map the memfd.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory; all access goes through atomics or raw copies that assume other writers.
unsafe impl Send for Mapping {}
// SAFETY: as above: `&Mapping` hands out only atomics and raw copies.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, readable and writable, shared, without reserving swap.
    pub fn new(fd: BorrowedFd<'_>, len: usize) -> rustix::io::Result<Self> {
        Self::with(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `len` bytes of `fd`, readable only, shared: a write through [`at`](Self::at) ends the process.
    pub fn read_only(fd: BorrowedFd<'_>, len: usize) -> rustix::io::Result<Self> {
        Self::with(fd, len, ProtFlags::READ)
    }

    fn with(fd: BorrowedFd<'_>, len: usize, protection: ProtFlags) -> rustix::io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// Makes `[offset, offset + len)` present by a write access in this process, so that its memory control group is charged.
    /// Both must be multiples of a page.
    pub fn populate(&self, offset: usize, len: usize) -> rustix::io::Result<()> {
        assert!(offset <= self.len && len <= self.len - offset, "populate inside the mapping");
        // SAFETY: the range was checked to lie inside the mapping; populating changes no contents.
        unsafe { madvise(self.start.as_ptr().add(offset).cast(), len, Advice::LinuxPopulateWrite) }
    }

    /// Sets bit 0 of each byte of `pages` if that page, from `offset` on, is in memory; a page that was swapped out is not. Takes no lock
    /// of the file, so no other process that has the file open can delay it. `offset` must be a multiple of a page.
    pub fn residency(&self, offset: usize, pages: &mut [u8]) -> rustix::io::Result<()> {
        let len = pages.len() * base::limits::PAGE;
        assert!(offset <= self.len && len <= (self.len - offset).next_multiple_of(base::limits::PAGE));
        // SAFETY: the range lies inside the mapping, up to the end of its last page, and `pages` has a byte for each of its pages.
        let result =
            unsafe { libc::mincore(self.start.as_ptr().add(offset).cast(), len, pages.as_mut_ptr()) };
        if result == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// The address of byte `offset`.
    #[inline]
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "offset inside the mapping");
        // SAFETY: `offset` is at most `len`, so the result is inside the mapping or one past its end.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

fn last_error() -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(rustix::io::Errno::INVAL)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and len are those mmap gave; `Region` lends references only for its own lifetime.
        if let Err(e) = unsafe { munmap(self.start.as_ptr().cast(), self.len) } {
            debug_assert!(false, "munmap of a whole mapping failed: {e}");
        }
    }
}
