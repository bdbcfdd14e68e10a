//! The memory of one application region, as all threads of the service use it.

use crate::bells::Bells;
use crate::present::Pages;
use flow::{AppRegion, tell};
use queue::pages::Pool;
use queue::{Ring, Violation};
use rustix::fd::{AsFd, OwnedFd};
use shm::{Half, Region, Side};
use std::sync::Arc;

/// An application region: its mapping, and what the service keeps about it out of the application's reach.
#[derive(Debug)]
pub struct Memory {
    /// Its name.
    pub id: u32,
    /// Its index in the threads' tables.
    pub index: u16,
    /// Mapping, lent pages, watermark.
    pub area: Arc<AppRegion>,
    /// The memfd, to ask what is present.
    pub fd: OwnedFd,
}

impl Memory {
    /// A region of which nothing is populated yet.
    pub fn new(id: u32, index: u16, region: Region, fd: OwnedFd) -> Self {
        Self { id, index, area: Arc::new(AppRegion::new(region)), fd }
    }

    /// The mapping.
    pub fn region(&self) -> &Region {
        self.area.region()
    }

    /// Its pages, to ask which are present.
    pub fn pages(&self) -> Pages<'_> {
        Pages { region: self.region(), fd: self.fd.as_fd() }
    }

    /// Lends a ring of the service's side, below the watermark.
    pub fn lend(&self, pool: &mut Pool, class: usize) -> Option<Ring> {
        let pages = (self.area.lendable() / u64::from(base::limits::RING_MIN)) as usize;
        pool.lend(class, pages, |i| self.area.page_word(i))
    }

    /// Takes a ring back.
    pub fn give_back(&self, pool: &mut Pool, ring: Ring) {
        pool.give_back(ring, |i| self.area.page_word(i));
    }

    /// Returns every warm ring.
    pub fn flush(&self, pool: &mut Pool) {
        pool.flush(|i| self.area.page_word(i));
    }

    /// Raises the watermark to `bytes` if the kernel agrees that both sides are present up to there.
    pub fn raise_watermark(&self, bytes: u64) -> bool {
        let fits = bytes <= self.region().layout().params.data_len;
        let present = |side: Side| {
            let start = self.region().layout().data[side.index()] as u64;
            self.pages().is_present(&(start..start + bytes))
        };
        let ok = fits && present(Side::Zero) && present(Side::One);
        if ok && bytes > self.area.lendable() {
            self.area.set_watermark(bytes);
        }
        ok
    }

    /// Checks that a ring of the application's may be read. Above the watermark the kernel is asked: the application may
    /// have populated more and its word for it may still be on the way.
    pub fn check_ring(&self, ring: Ring) -> Result<(), Violation> {
        self.area.check_ring(ring).or_else(|violation| {
            let start = self.region().layout().data[Side::One.index()] as u64 + ring.offset();
            let present = self.pages().is_present(&(start..start + ring.size()));
            if present { Ok(()) } else { Err(violation) }
        })
    }

    /// Both halves of a slot: the service's, the application's.
    pub fn halves(&self, slot: u32) -> Option<(&Half, &Half)> {
        self.area.halves(slot)
    }

    /// Tells the application that `slot` has news.
    pub fn tell(&self, bells: &Bells, slot: u32) {
        if let Some(news) = tell(&self.area, self.index, slot) {
            bells.wake(news.region, news.context);
        }
    }
}
