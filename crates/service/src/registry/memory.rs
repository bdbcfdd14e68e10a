//! The memory of one application region, shared by all threads of the service.

pub(crate) mod connection;
mod grow;
pub(crate) mod pairs;
pub(crate) mod region;
pub(crate) mod residency;
pub(crate) mod size;
pub(crate) mod slot_key;
pub(crate) mod slots;

use crate::registry::memory::residency::Pages;
use flow::{AppRegion, Limits, News, tell};
use queue::pages::Pool;
use queue::stream::watcher;
use queue::{Doorbell, Ring, Violation};
use rustix::fd::{AsFd, OwnedFd};
use shm::{Half, Region, Side};
use std::sync::Arc;

/// An application region: its mapping, and what the service knows of it. The application cannot write to the latter.
#[derive(Debug)]
pub struct Memory {
    /// Id of the region.
    pub id: u32,
    /// Index of the region in the threads' tables.
    pub index: u16,
    /// The mapping with its lent pages and the watermark.
    pub area: Arc<AppRegion>,
    /// The memfd of the region.
    pub fd: OwnedFd,
}

impl Memory {
    /// A region without populated pages; `limits` bound what its application sends.
    pub fn new(id: u32, index: u16, region: Region, fd: OwnedFd, limits: Limits) -> Self {
        Self { id, index, area: Arc::new(AppRegion::with_limits(region, limits)), fd }
    }

    /// The mapping of the region.
    pub fn region(&self) -> &Region {
        self.area.region()
    }

    /// The region with its memfd, to ask which pages are present.
    pub fn pages(&self) -> Pages<'_> {
        Pages { region: self.region(), fd: self.fd.as_fd() }
    }

    /// Lends a ring in the service's data area, below the watermark.
    pub fn lend(&self, pool: &mut Pool, class: usize) -> Option<Ring> {
        let pages = (self.area.lendable() / u64::from(base::limits::RING_MIN)) as usize;
        pool.lend(class, pages, |i| self.area.page_word(i))
    }

    /// Returns a ring to the pool.
    pub fn give_back(&self, pool: &mut Pool, ring: Ring) {
        pool.give_back(ring, |i| self.area.page_word(i));
    }

    /// Returns every ring that the pool keeps warm.
    pub fn flush(&self, pool: &mut Pool) {
        pool.flush(|i| self.area.page_word(i));
    }

    /// Raises the watermark to `bytes` if the kernel confirms that all pages from it on are present on both sides. Below it they were, and stay.
    pub fn raise_watermark(&self, bytes: u64) -> bool {
        let fits = bytes <= self.region().layout().params.data_len;
        let known = self.area.lendable();
        let present = |side: Side| {
            let start = self.region().layout().data[side.index()] as u64;
            self.pages().is_present(&(start + known.min(bytes)..start + bytes))
        };
        let ok = fits && present(Side::Zero) && present(Side::One);
        if ok && bytes > known {
            self.area.set_watermark(bytes);
        }
        ok
    }

    /// Checks that these parts of a ring in the application's data area, `(offset, length)`, may be read. Above the watermark the kernel is
    /// asked about them, and not about the whole ring, which is as long as the application says: it may have populated more pages than it
    /// has reported.
    pub fn check_ring(&self, ring: Ring, parts: &[(usize, usize); 2]) -> Result<(), Violation> {
        self.area.check_ring(ring).or_else(|violation| {
            let start = self.region().layout().data[Side::One.index()];
            let is_there = |(at, len): &(usize, usize)| {
                self.pages().is_present(&((start + at) as u64..(start + at + len) as u64))
            };
            if parts.iter().all(is_there) { Ok(()) } else { Err(violation) }
        })
    }

    /// The two halves of a slot: the service's and the application's.
    pub fn halves(&self, slot: u32) -> Option<(&Half, &Half)> {
        self.area.halves(slot)
    }

    /// Sets the bit of `slot` in the service's doorbell, in the application's place. The thread behind it is to be woken afterwards.
    pub fn ring_service(&self, slot: u32) {
        let Some(context) = self.halves(slot).and_then(|(own, _)| watcher(own)) else { return };
        if let Some(bell) = Doorbell::of(self.region(), Side::Zero, context) {
            let _ = bell.ring(slot);
        }
    }

    /// Rings the application's doorbell for `slot`. `Some`: that context sleeps, and must be woken.
    #[must_use]
    pub fn tell(&self, slot: u32) -> Option<News> {
        tell(&self.area, self.index, slot)
    }
}
