//! Regions: their memory, parties and slots, and what each slot is used for.

use crate::registry::memory::Memory;
use crate::registry::memory::residency::Pages;
use crate::registry::memory::size::Size;
use crate::registry::memory::slots::Slots;
use crate::registry::process::descriptors::Charge;
use crate::registry::tcp::Flow;
use flow::Limits;
use rustix::fd::{AsFd, OwnedFd};
use shm::{Kind, Params, Region, RegionError, SockBlock};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What a slot of an application region is used for.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most slots that are used are connections over the port")]
pub enum Use {
    /// One end of a relayed connection: the relay's id and the end's index.
    Relay(u32, usize),
    /// A connection over the port.
    Flow(Flow),
}

/// An application region, as the control thread knows it.
#[derive(Debug)]
pub struct AppRegion {
    /// The region's memory, which all threads share.
    pub memory: Arc<Memory>,
    /// Id of the process that the region was made for.
    pub owner: u32,
    /// User of that process, which pays for the control thread's work for the region; 0 for the service's own.
    pub uid: u32,
    /// The owner has mapped and sealed it.
    pub sealed: bool,
    /// Bytes that the application was asked to populate (`Push::Grow`) and has not yet; `None`: it was not asked.
    pub growing: Option<u64>,
    /// Uses of the slots. Slot 0 is the control slot.
    pub slots: Slots<Use>,
    /// Eventfds by which the application wakes the service: first the slow path, then each core.
    pub wakers: Vec<Arc<OwnedFd>>,
    /// Connections made, and accepted, without the service that the statistics include.
    pub counted: [u64; 2],
    /// When these were last read.
    pub counted_at: Instant,
    /// For its descriptors, if a user has caused it.
    pub charge: Option<Charge>,
}

impl AppRegion {
    /// Makes a region for the process `owner`, the sending of which `limits` bound. `index` is the region's place in the threads' tables.
    pub fn create(
        id: u32,
        index: u16,
        owner: u32,
        Size { slots, data_len }: Size,
        wakers: Vec<Arc<OwnedFd>>,
        limits: Limits,
        now: Instant,
    ) -> Result<Self, RegionError> {
        let params = Params { kind: Kind::Application, id: u64::from(id), slots, data_len };
        let (region, fd) = Region::create(params)?;
        Ok(Self {
            memory: Arc::new(Memory::new(id, index, region, fd, limits)),
            owner,
            uid: 0,
            sealed: false,
            growing: None,
            slots: Slots::new(1, slots),
            wakers,
            counted: [0; 2],
            counted_at: now,
            charge: None,
        })
    }

    /// True when the page of that socket block is present: no other block can be in use.
    pub fn has_block(&self, index: u32) -> bool {
        let region = self.memory.region();
        let size = size_of::<SockBlock>() as u64;
        let start = region.layout().socks as u64 + u64::from(index) * size;
        self.memory.pages().is_present(&(start..start + size))
    }

    /// The socket blocks in pages that are present; no other block can be in use.
    pub fn sock_blocks(&self) -> impl Iterator<Item = &SockBlock> {
        self.sock_blocks_in(0..self.memory.region().layout().params.slots)
    }

    /// Those with these numbers, and perhaps some that share a page with them.
    pub fn sock_blocks_in(&self, blocks: Range<u32>) -> impl Iterator<Item = &SockBlock> {
        let region = self.memory.region();
        let start = region.layout().socks as u64;
        let size = size_of::<SockBlock>() as u64;
        let range = start + u64::from(blocks.start) * size..start + u64::from(blocks.end) * size;
        Pages { region, fd: self.memory.fd.as_fd() }
            .present_parts(&range)
            .into_iter()
            .flat_map(move |part| (part.start - start) / size..(part.end - start).div_ceil(size))
            .filter_map(|i| region.sock(i as u32))
    }
}
