//! A region: a sealed memfd, mapped, with typed views of its lines and checked copies of its payload.

use crate::layout::{
    ACCOUNTS, CONTEXTS, ContextBlock, Header, Layout, MAGIC, Params, Side, Slot, SockBlock, ThreadAccount,
    Urgent, VERSION,
};
use crate::map::Mapping;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use std::fmt;

/// Why a region could not be made or mapped.
#[derive(Debug)]
pub enum RegionError {
    /// The parameters break a limit of `Layout::new`.
    Params(Params),
    /// The descriptor is no memfd sealed against resizing, or its size is not the one announced.
    NotSealed,
    /// The header's magic or layout version is another; the version found.
    Version(u32),
    /// A system call failed with this error.
    Os(rustix::io::Errno),
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Params(p) => write!(f, "region parameters out of range: {p:?}"),
            Self::NotSealed => f.write_str("the descriptor is not a memfd sealed at the announced size"),
            Self::Version(v) => write!(f, "region layout version {v}, this library speaks {VERSION}"),
            Self::Os(e) => write!(f, "the kernel refused shared memory: {e}"),
        }
    }
}

impl std::error::Error for RegionError {}

impl From<rustix::io::Errno> for RegionError {
    fn from(e: rustix::io::Errno) -> Self {
        Self::Os(e)
    }
}

/// A mapped region with its layout.
#[derive(Debug)]
pub struct Region {
    map: Mapping,
    layout: Layout,
}

impl Region {
    /// Makes a region: a memfd of the right size that can neither shrink nor grow, with its header filled in.
    pub fn create(params: Params) -> Result<(Self, OwnedFd), RegionError> {
        let layout = Layout::new(params).ok_or(RegionError::Params(params))?;
        let fd = memfd_create(c"towpath-region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, layout.total as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let map = Mapping::new(fd.as_fd(), layout.total)?;
        let region = Self { map, layout };
        let h = region.header();
        h.version.store(VERSION, Ordering::Relaxed);
        h.kind.store(params.kind as u32, Ordering::Relaxed);
        h.slots.store(params.slots, Ordering::Relaxed);
        h.data_len.store(params.data_len, Ordering::Relaxed);
        h.id.store(params.id, Ordering::Relaxed);
        h.magic.store(MAGIC, Ordering::Release);
        Ok((region, fd))
    }

    /// Maps a region made by the service. `params` came with the descriptor over the control socket; the file must
    /// be sealed against resizing and have exactly the size they give, so no access can ever fault past its end.
    pub fn open(fd: BorrowedFd<'_>, params: Params) -> Result<Self, RegionError> {
        let layout = Layout::new(params).ok_or(RegionError::Params(params))?;
        let seals = fcntl_get_seals(fd).map_err(|_| RegionError::NotSealed)?;
        let size = fstat(fd)?.st_size;
        if !(seals.contains(SealFlags::SHRINK | SealFlags::GROW) && size == layout.total as i64) {
            return Err(RegionError::NotSealed);
        }
        let region = Self { map: Mapping::new(fd, layout.total)?, layout };
        let h = region.header();
        match (h.magic.load(Ordering::Acquire), h.version.load(Ordering::Relaxed)) {
            (MAGIC, VERSION) => Ok(region),
            (_, v) => Err(RegionError::Version(v)),
        }
    }

    /// Seals the memfd against new writable mappings, and with them hole punching (`fallocate` and `madvise(MADV_REMOVE)` fail with
    /// EPERM).
    /// Existing mappings stay writable. From here on no page can be taken away again. Takes the file's lock, which another process that
    /// has the file open can hold as long as it likes: so the service's control thread leaves this to the application, and checks
    /// afterwards ([`is_sealed`](Self::is_sealed)).
    pub fn seal(fd: BorrowedFd<'_>) -> Result<(), RegionError> {
        match fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
            // EPERM: it was sealed before.
            Err(rustix::io::Errno::PERM) if Self::is_sealed(fd) => Ok(()),
            other => Ok(other?),
        }
    }

    /// True for a memfd that [`seal`](Self::seal) has sealed. Takes no lock.
    #[must_use]
    pub fn is_sealed(fd: BorrowedFd<'_>) -> bool {
        fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::FUTURE_WRITE | SealFlags::SEAL))
    }

    /// Offsets of the region's parts.
    #[must_use]
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The header at offset 0.
    #[must_use]
    pub fn header(&self) -> &Header {
        // SAFETY: offset 0 is page-aligned and the mapping is longer than a header; atomics allow other writers.
        unsafe { &*self.map.at(0).cast::<Header>() }
    }

    /// Context `index` of `side`, or `None` past [`CONTEXTS`].
    #[must_use]
    #[inline]
    pub fn context(&self, side: Side, index: u32) -> Option<&ContextBlock> {
        let index = index as usize;
        if index >= CONTEXTS {
            return None;
        }
        let offset = self.layout.contexts + (side.index() * CONTEXTS + index) * size_of::<ContextBlock>();
        // SAFETY: index < CONTEXTS keeps the block inside the contexts area (see Layout::new), which is 64-byte
        // aligned; the block consists of atomics.
        Some(unsafe { &*self.map.at(offset).cast::<ContextBlock>() })
    }

    /// Slot `index`, or `None` past the region's slots.
    #[must_use]
    #[inline]
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        if index >= self.layout.params.slots {
            return None;
        }
        let offset = self.layout.slots + index as usize * size_of::<Slot>();
        // SAFETY: index < slots keeps it inside the slots area, 64-byte aligned; a slot consists of atomics.
        Some(unsafe { &*self.map.at(offset).cast::<Slot>() })
    }

    /// Hints the processor to fetch a half of slot `index`, to be written or only read.
    #[inline]
    pub fn prefetch_half(&self, side: Side, index: u32, is_written: bool) {
        let Some(slot) = self.slot(index) else { return };
        prefetch_at(core::ptr::from_ref(&slot.half[side.index()]).cast(), is_written);
    }

    /// The urgent bytes of slot `index`, or `None` past the slots. Words that no flag declares valid are left from an earlier connection.
    #[must_use]
    pub fn urgent(&self, index: u32) -> Option<&Urgent> {
        if index >= self.layout.params.slots {
            return None;
        }
        let offset = self.layout.urgent + index as usize * size_of::<Urgent>();
        // SAFETY: index < slots keeps it inside the table, which is page-aligned; an entry consists of atomics.
        Some(unsafe { &*self.map.at(offset).cast::<Urgent>() })
    }

    /// Socket block `index`, or `None` past the slots or in a pair region.
    #[must_use]
    #[inline]
    pub fn sock(&self, index: u32) -> Option<&SockBlock> {
        let in_range =
            index < self.layout.params.slots && self.layout.params.kind == crate::Kind::Application;
        if !in_range {
            return None;
        }
        let offset = self.layout.socks + index as usize * size_of::<SockBlock>();
        // SAFETY: in range of the socks area, 64-byte aligned; a block consists of atomics.
        Some(unsafe { &*self.map.at(offset).cast::<SockBlock>() })
    }

    /// Thread account `index`, or `None` past [`ACCOUNTS`] or in a pair region.
    #[must_use]
    pub fn account(&self, index: u32) -> Option<&ThreadAccount> {
        let in_range = (index as usize) < ACCOUNTS && self.layout.params.kind == crate::Kind::Application;
        if !in_range {
            return None;
        }
        let offset = self.layout.accounts + index as usize * size_of::<ThreadAccount>();
        // SAFETY: in range of the accounts area, which is page-aligned; an account consists of atomics.
        Some(unsafe { &*self.map.at(offset).cast::<ThreadAccount>() })
    }

    /// Word `index` of `side`'s page bitmap (bit set: that 4 KiB page of the data area is lent), or `None` past it.
    #[must_use]
    #[inline]
    pub fn page_word(&self, side: Side, index: usize) -> Option<&AtomicU64> {
        if index >= self.page_words() {
            return None;
        }
        // SAFETY: index is inside the bitmap, which is page-aligned and consists of u64 words.
        Some(unsafe { &*self.map.at(self.layout.pages[side.index()] + index * 8).cast::<AtomicU64>() })
    }

    /// Number of words of a page bitmap.
    #[must_use]
    #[inline]
    pub fn page_words(&self) -> usize {
        (self.layout.params.data_len as usize / base::limits::RING_MIN as usize).div_ceil(64)
    }

    /// Copies `bytes` to `offset` of `side`'s data area.
    ///
    /// # Panics
    /// When the range leaves the area: callers check ranges that come from the other side with `queue::Ring`.
    #[inline]
    pub fn write(&self, side: Side, offset: usize, bytes: &[u8]) {
        let at = self.data_at(side, offset, bytes.len());
        // SAFETY: data_at checked the range. The other side may read or write the same bytes at once; nothing is
        // assumed of their value, and no reference to them exists.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    /// Copies bytes of shared memory, of this region or another, to `offset` of `side`'s data area.
    ///
    /// # Panics
    /// When the range leaves the area.
    #[inline]
    pub fn write_shared(&self, side: Side, offset: usize, bytes: &[AtomicU8]) {
        let at = self.data_at(side, offset, bytes.len());
        // SAFETY: data_at checked the range, and `bytes` is valid for reads of its length; the two may overlap. As in `write`, either may
        // change meanwhile, and nothing is assumed of the values.
        unsafe { core::ptr::copy(bytes.as_ptr().cast(), at, bytes.len()) };
    }

    /// Copies from `offset` of `side`'s data area into `out`.
    ///
    /// # Panics
    /// When the range leaves the area.
    #[inline]
    pub fn read(&self, side: Side, offset: usize, out: &mut [u8]) {
        let at = self.data_at(side, offset, out.len());
        // SAFETY: data_at checked the range; as in `write`, the bytes may change under us and are only copied.
        unsafe { core::ptr::copy_nonoverlapping(at, out.as_mut_ptr(), out.len()) };
    }

    /// The `len` bytes at `offset` of `side`'s data area, without a copy: for callers that pass them on and do not look at them.
    ///
    /// # Panics
    /// When the range leaves the area.
    #[must_use]
    #[inline]
    pub fn shared(&self, side: Side, offset: usize, len: usize) -> &[AtomicU8] {
        let at = self.data_at(side, offset, len);
        // SAFETY: data_at checked the range, which stays mapped as long as `self`. Others may write it at any time, which atomics allow;
        // copies by `write` and `read` of this process assume nothing of the bytes.
        unsafe { core::slice::from_raw_parts(at.cast(), len) }
    }

    /// Hints the processor to fetch the line at `offset` of `side`'s data area, to be written or only read.
    #[inline]
    pub fn prefetch(&self, side: Side, offset: usize, is_written: bool) {
        let at = self.map.at(0).wrapping_add(self.layout.data[side.index()]).wrapping_add(offset);
        prefetch_at(at, is_written);
    }

    /// Makes `len` bytes at `offset` of `side`'s data area present, charged to this process's control group.
    pub fn populate(&self, side: Side, offset: usize, len: usize) -> Result<(), RegionError> {
        let at = self.layout.data[side.index()] + offset;
        assert!(offset + len <= self.layout.params.data_len as usize, "populate inside the data area");
        Ok(self.map.populate(at, len)?)
    }

    /// Sets bit 0 of each byte of `pages` if that page, from byte `offset` of the region on, is in memory: see `Mapping::residency`.
    ///
    /// # Panics
    /// When the pages leave the region, or `offset` is no multiple of a page.
    pub fn residency(&self, offset: usize, pages: &mut [u8]) -> Result<(), RegionError> {
        Ok(self.map.residency(offset, pages)?)
    }

    #[inline(always)]
    fn data_at(&self, side: Side, offset: usize, len: usize) -> *mut u8 {
        let area = self.layout.params.data_len as usize;
        assert!(offset <= area && len <= area - offset, "payload range inside the data area");
        self.map.at(self.layout.data[side.index()] + offset)
    }
}

/// Hints the processor to fetch the line at `at`.
#[inline(always)]
fn prefetch_at(at: *const u8, is_written: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching has no architectural effect and faults on no address. Where PREFETCHW is not known it is a NOP. Written in
    // assembly, because without the target feature the compiler makes PREFETCHT0 of `_MM_HINT_ET0`, and a write to a line that the
    // other side has read would then wait a second time.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        if is_written {
            core::arch::asm!("prefetchw [{}]", in(reg) at, options(readonly, nostack, preserves_flags));
        } else {
            _mm_prefetch(at.cast(), _MM_HINT_T0);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, is_written);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn params() -> Params {
        Params { kind: Kind::Application, id: 9, slots: 128, data_len: 1 << 20 }
    }

    #[test]
    fn both_sides_see_the_same_bytes() {
        let (a, fd) = Region::create(params()).unwrap();
        let b = Region::open(fd.as_fd(), params()).unwrap();
        a.write(Side::Zero, 4090, b"hello, region");
        let mut out = [0; 13];
        b.read(Side::Zero, 4090, &mut out);
        assert_eq!(&out, b"hello, region");
        a.slot(127).unwrap().half[1].tx_head.store(7, Ordering::Release);
        assert_eq!(b.slot(127).unwrap().half[1].tx_head.load(Ordering::Acquire), 7);
        a.urgent(127).unwrap().seen[1].store(8, Ordering::Release);
        assert_eq!(b.urgent(127).unwrap().seen[1].load(Ordering::Acquire), 8);
        assert_eq!(b.slot(127).unwrap().half[1].rx_tail.load(Ordering::Relaxed), 0);
        assert!(
            b.slot(128).is_none()
                && b.urgent(128).is_none()
                && b.context(Side::One, 256).is_none()
                && b.sock(128).is_none()
        );
    }

    #[test]
    fn a_sealed_region_refuses_new_writers_resizing_and_holes() {
        let (region, fd) = Region::create(params()).unwrap();
        Region::seal(fd.as_fd()).unwrap();
        assert!(Region::open(fd.as_fd(), params()).is_err());
        assert!(ftruncate(&fd, 4096).is_err());
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&fd, punch, 0, 4096), Err(rustix::io::Errno::PERM));
        region.write(Side::One, 0, b"existing mappings still write");
    }

    #[test]
    fn a_descriptor_of_another_size_or_kind_is_refused() {
        let (_, fd) = Region::create(params()).unwrap();
        let bigger = Params { data_len: 2 << 20, ..params() };
        assert!(matches!(Region::open(fd.as_fd(), bigger), Err(RegionError::NotSealed)));
        let (pipe, _w) = rustix::pipe::pipe().unwrap();
        assert!(matches!(Region::open(pipe.as_fd(), params()), Err(RegionError::NotSealed)));
    }

    #[test]
    #[should_panic(expected = "payload range inside the data area")]
    fn a_copy_past_the_area_panics_before_touching_memory() {
        let (a, _fd) = Region::create(params()).unwrap();
        a.write(Side::One, (1 << 20) - 3, b"four");
    }
}
