//! The flow records and their locks: only here does shared access to a record become exclusive access.

use crate::{Addresses, Cold, Config, FlowId, FlowTable, ReceiveLine, Receivers, SendLine};
use base::Instant;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::OnceLock;

/// The two cache lines of a record that every packet touches.
#[repr(C, align(64))]
struct Lines {
    lock: AtomicU32,
    /// Odd while the record is being changed, so that after a crash the records that must not be trusted are known.
    sequence: AtomicU32,
    hot: UnsafeCell<Hot>,
}

#[repr(C)]
#[derive(Default)]
struct Hot {
    rx: ReceiveLine,
    tx: SendLine,
}

const _: () = {
    assert!(size_of::<Lines>() == 128 && align_of::<Lines>() == 64);
    assert!(core::mem::offset_of!(Lines, hot) == 8);
    assert!(8 + core::mem::offset_of!(Hot, tx) == 64);
};

/// Records are made in chunks, by set-up code, when the first flow needs one.
const CHUNK: usize = 1024;

struct Chunk {
    lines: Box<[Lines; CHUNK]>,
    cold: Box<[UnsafeCell<Cold>; CHUNK]>,
    addresses: Box<[UnsafeCell<Addresses>; CHUNK]>,
    /// Region and slot of each flow, for prefetching before the record is in the cache. Only a hint: the record decides.
    slots: Box<[AtomicU64; CHUNK]>,
}

// SAFETY: `cold`, `addresses` and `Lines::hot` are reached only through a `FlowGuard`. The lock admits one guard per record at a
// time (Acquire on taking, Release on leaving); their contents are plain data.
unsafe impl Sync for Chunk {}
// SAFETY: as above: plain data.
unsafe impl Send for Chunk {}

/// All flow records of a service, and the hash table that finds them.
pub struct Flows {
    chunks: Box<[OnceLock<Chunk>]>,
    table: FlowTable,
    config: Config,
    /// When a RST of no known flow was last lost, in nanoseconds; 0: never.
    reset_lost_at: AtomicU64,
    receivers: Receivers,
}

impl core::fmt::Debug for Flows {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Flows").field("flows", &self.config.flows).finish_non_exhaustive()
    }
}

/// Exclusive access to a record, until it is dropped.
pub struct FlowGuard<'a> {
    lines: &'a Lines,
    cold: &'a UnsafeCell<Cold>,
    addresses: &'a UnsafeCell<Addresses>,
}

/// The parts of a locked record.
#[derive(Debug)]
pub struct FlowMut<'a> {
    /// Line 0: fields that receiving needs.
    pub rx: &'a mut ReceiveLine,
    /// Line 1: fields that sending needs.
    pub tx: &'a mut SendLine,
    /// Fields that packets in order seldom touch.
    pub cold: &'a mut Cold,
    /// Addresses of an IPv6 flow.
    pub addresses: &'a mut Addresses,
}

impl Flows {
    /// Makes the records, none in use. `keys`, from the kernel's random numbers, key the table's hash.
    // SETUP: called once when the service starts.
    #[must_use]
    pub fn new(config: Config, keys: [u64; 2]) -> Self {
        let chunks = (config.flows as usize).div_ceil(CHUNK);
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            table: FlowTable::new(config.flows, keys),
            config,
            reset_lost_at: AtomicU64::new(0),
            receivers: Receivers::default(),
        }
    }

    /// The configuration that the service has chosen.
    #[must_use]
    #[inline]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number of applications that receive in bulk.
    #[must_use]
    pub const fn receivers(&self) -> &Receivers {
        &self.receivers
    }

    /// Notes that a RST of no known flow was lost. Its connection's flow may just be being installed: then the slow path makes the peer
    /// send it again. After this call the caller must look the flow up again: it may be installed already.
    pub fn note_reset_lost(&self, now: Instant) {
        // SeqCst: pairs with `reset_lost_at`. Either the flow is found afterwards, or the slow path sees this when it installs the flow.
        self.reset_lost_at.fetch_max(now.as_ns().max(1), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// When a RST of no known flow was last lost. To be asked after a flow was installed.
    #[must_use]
    pub fn reset_lost_at(&self) -> Option<Instant> {
        // Pairs with the fence in `note_reset_lost`.
        fence(Ordering::SeqCst);
        let ns = self.reset_lost_at.load(Ordering::SeqCst);
        (ns > 0).then(|| Instant::from_ns(ns))
    }

    /// The hash table of the flows.
    #[must_use]
    #[inline]
    pub fn table(&self) -> &FlowTable {
        &self.table
    }

    /// Locks record `id`. `None` when its lock is held now, or its memory was never made.
    #[inline]
    pub fn try_lock(&self, id: FlowId) -> Option<FlowGuard<'_>> {
        let (chunk, i) = self.place(id)?;
        let lines = &chunk.lines[i];
        // Acquire: pairs with the Release in `drop`, so that all changes of the last holder are visible.
        lines.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        lines.sequence.store(lines.sequence.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // The odd sequence number becomes visible before any change.
        fence(Ordering::Release);
        Some(FlowGuard { lines, cold: &chunk.cold[i], addresses: &chunk.addresses[i] })
    }

    /// As [`try_lock`](Self::try_lock), tried 200 times: a holder needs a few hundred nanoseconds, unless the scheduler has preempted
    /// its thread.
    #[inline]
    pub fn lock_briefly(&self, id: FlowId) -> Option<FlowGuard<'_>> {
        for _ in 0..200 {
            if let Some(guard) = self.try_lock(id) {
                return Some(guard);
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Hints the processor to fetch the lines of a record.
    #[inline]
    pub fn prefetch(&self, id: FlowId) {
        if let Some((chunk, i)) = self.place(id) {
            let lines: *const i8 = core::ptr::from_ref(&chunk.lines[i]).cast();
            prefetch_at(lines);
            prefetch_at(lines.wrapping_add(64));
            let cold: *const i8 = core::ptr::from_ref(&chunk.cold[i]).cast();
            prefetch_at(cold);
            prefetch_at(cold.wrapping_add(64));
            prefetch_at(cold.wrapping_add(128));
            prefetch(&chunk.slots[i]);
        }
    }

    /// As [`prefetch`](Self::prefetch), and the line of the loss recovery that a check of a flow in flight reads.
    #[inline]
    pub fn prefetch_waiting(&self, id: FlowId) {
        self.prefetch(id);
        if let Some((chunk, i)) = self.place(id) {
            let cold: *const i8 = core::ptr::from_ref(&chunk.cold[i]).cast();
            prefetch_at(cold.wrapping_add(core::mem::offset_of!(Cold, recovery)));
        }
    }

    /// Region and slot of a flow, for prefetching only: they may be out of date.
    #[must_use]
    #[inline]
    pub fn slot_of(&self, id: FlowId) -> (u16, u32) {
        let word = self.place(id).map_or(0, |(chunk, i)| chunk.slots[i].load(Ordering::Relaxed));
        ((word >> 32) as u16, word as u32)
    }

    /// Notes region and slot of a flow for [`slot_of`](Self::slot_of).
    #[cfg(not(loom))]
    pub(crate) fn note_slot(&self, id: FlowId, region: u16, slot: u32) {
        if let Some((chunk, i)) = self.place(id) {
            chunk.slots[i].store(u64::from(region) << 32 | u64::from(slot), Ordering::Relaxed);
        }
    }

    /// Makes the memory of the record's chunk. Not for the packet path.
    // SETUP: the slow path calls it before it installs a flow.
    pub(crate) fn make(&self, id: FlowId) {
        if let Some(chunk) = self.chunks.get(id.0 as usize / CHUNK) {
            chunk.get_or_init(Chunk::new);
        }
    }

    #[inline]
    fn place(&self, id: FlowId) -> Option<(&Chunk, usize)> {
        let chunk = self.chunks.get(id.0 as usize / CHUNK)?.get()?;
        Some((chunk, id.0 as usize % CHUNK))
    }
}

impl Chunk {
    // SETUP: reached through `Flows::make` only.
    fn new() -> Self {
        let window = congestion::Window::new(congestion::Algorithm::default(), 1460, base::Instant::ZERO);
        let line = || Lines {
            lock: AtomicU32::new(0),
            sequence: AtomicU32::new(0),
            hot: UnsafeCell::new(Hot::default()),
        };
        Self {
            lines: array(line),
            cold: array(|| UnsafeCell::new(Cold::new(window, base::Instant::ZERO))),
            addresses: array(|| UnsafeCell::new(Addresses::default())),
            slots: array(|| AtomicU64::new(0)),
        }
    }
}

/// An array of one entry per record of a chunk, made on the heap: the stack would be too small.
fn array<T>(make: impl Fn() -> T) -> Box<[T; CHUNK]> {
    let all: Box<[T]> = (0..CHUNK).map(|_| make()).collect();
    all.try_into().ok().expect("of that length")
}

impl FlowGuard<'_> {
    /// Mutable references to the parts of the record.
    #[must_use]
    #[inline]
    pub fn parts(&mut self) -> FlowMut<'_> {
        // SAFETY: the lock is held by `self` alone, and `self` is borrowed exclusively for as long as the parts live, so
        // no other reference to the contents exists.
        unsafe {
            let hot = &mut *self.lines.hot.get();
            FlowMut {
                rx: &mut hot.rx,
                tx: &mut hot.tx,
                cold: &mut *self.cold.get(),
                addresses: &mut *self.addresses.get(),
            }
        }
    }
}

impl Drop for FlowGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let sequence = self.lines.sequence.load(Ordering::Relaxed).wrapping_add(1);
        // Release, twice: the changes become visible before the even sequence number, and before the next holder's Acquire.
        self.lines.sequence.store(sequence, Ordering::Release);
        self.lines.lock.store(0, Ordering::Release);
    }
}

/// Hints the processor to fetch the first lines of a frame: the headers, and all of a small message. If the frame is shorter, a hint
/// concerns the rest of its buffer or an unused address, which does no harm.
#[inline]
pub fn prefetch_frame(frame: &[u8]) {
    for at in [0, 64, 128] {
        prefetch_at(frame.as_ptr().wrapping_add(at).cast());
    }
}

/// Hints the processor to fetch the first cache line of `place`.
#[inline]
pub fn prefetch<T>(place: &T) {
    prefetch_at(core::ptr::from_ref(place).cast());
}

/// Hints the processor to fetch all cache lines of `place`.
#[inline]
pub fn prefetch_all<T>(place: &T) {
    let first: *const i8 = core::ptr::from_ref(place).cast();
    (0..size_of::<T>().div_ceil(64)).for_each(|line| prefetch_at(first.wrapping_add(64 * line)));
}

#[inline]
fn prefetch_at(address: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching has no architectural effect and faults on no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch(address, core::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
