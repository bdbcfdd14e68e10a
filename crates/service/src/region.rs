//! The regions: memory, parties, slots and what each slot is used for.

use crate::present::is_present;
use crate::slots::Slots;
use queue::Ring;
use queue::pages::Pool;
use rustix::fd::{AsFd, OwnedFd};
use shm::{Kind, Params, Region, RegionError, Side};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory of an application region, shared with the threads that move bytes.
#[derive(Debug)]
pub struct Memory {
    /// Its name.
    pub id: u32,
    /// The mapping.
    pub region: Region,
    /// The memfd, to ask what is present.
    pub fd: OwnedFd,
    /// Which pages of the service's own side are lent: the truth is here, where no application can write.
    pages: Box<[AtomicU64]>,
    /// Bytes of both sides that the application has made present, as checked.
    populated: AtomicU64,
}

impl Memory {
    fn new(id: u32, region: Region, fd: OwnedFd) -> Self {
        let pages = (0..region.page_words()).map(|_| AtomicU64::new(0)).collect();
        Self { id, region, fd, pages, populated: AtomicU64::new(0) }
    }

    /// Lends a ring of the service's side, below the watermark.
    pub fn lend(&self, pool: &mut Pool, class: usize) -> Option<Ring> {
        let pages = (self.populated() / u64::from(base::limits::RING_MIN)) as usize;
        pool.lend(class, pages, |i| &self.pages[i])
    }

    /// Takes a ring back.
    pub fn give_back(&self, pool: &mut Pool, ring: Ring) {
        pool.give_back(ring, |i| &self.pages[i]);
    }

    /// The watermark.
    pub fn populated(&self) -> u64 {
        // Relaxed: nothing is read that was published through it; the pages are present for good.
        self.populated.load(Ordering::Relaxed)
    }

    /// Raises the watermark to `bytes` if the kernel agrees that both sides are present up to there.
    pub fn raise_watermark(&self, bytes: u64) -> bool {
        let fits = bytes <= self.region.layout().params.data_len;
        let present = [Side::Zero, Side::One].into_iter().all(|side| self.is_present(side, 0, bytes));
        if fits && present {
            self.populated.fetch_max(bytes, Ordering::Relaxed);
        }
        fits && present
    }

    /// True when `len` bytes at `offset` of a side's data area may be touched. Below the watermark that is one load;
    /// above it the kernel is asked.
    pub fn is_present(&self, side: Side, offset: u64, len: u64) -> bool {
        let start = self.region.layout().data[side.index()] as u64 + offset;
        offset + len <= self.populated() || is_present(self.fd.as_fd(), &(start..start + len))
    }
}

/// What a slot of an application region is used for.
#[derive(Debug)]
pub enum Use {
    /// The accept queue of this listener.
    Queue(u32),
    /// One end of a relayed connection: the relay and the end's index.
    Relay(u32, usize),
}

/// An application region as the control thread knows it.
#[derive(Debug)]
pub struct AppRegion {
    /// Shared with the other threads.
    pub memory: Arc<Memory>,
    /// Whose.
    pub owner: u32,
    /// The owner has mapped it, and it is sealed.
    pub sealed: bool,
    /// Slot 0 is the control slot.
    pub slots: Slots<Use>,
    /// The control thread's warm rings.
    pub pool: Pool,
    /// By these the application wakes the service: first the slow path, then each core.
    pub bells: Vec<Arc<OwnedFd>>,
}

impl AppRegion {
    /// Makes a region for `owner`.
    pub fn create(
        id: u32,
        owner: u32,
        (slots, data_len): (u32, u64),
        bells: Vec<Arc<OwnedFd>>,
    ) -> Result<Self, RegionError> {
        let params = Params { kind: Kind::Application, id: u64::from(id), slots, data_len };
        let (region, fd) = Region::create(params)?;
        Ok(Self {
            memory: Arc::new(Memory::new(id, region, fd)),
            owner,
            sealed: false,
            slots: Slots::new(1, slots),
            pool: Pool::default(),
            bells,
        })
    }
}

/// Where a connection through a pair region stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The accept queue is full; the connector waits.
    Pending,
    /// Established, in the accept queue.
    Queued,
    /// Established and accepted.
    Accepted,
}

/// A connection inside this host.
#[derive(Debug)]
pub struct Connection {
    /// The connector's address, the acceptor's address.
    pub addresses: [SocketAddr; 2],
    /// The connector, the acceptor.
    pub applications: [u32; 2],
    /// Where it stands.
    pub stage: Stage,
}

/// The region of one ordered pair of processes.
#[derive(Debug)]
pub struct PairRegion {
    /// Its name.
    pub id: u32,
    /// The mapping.
    pub region: Arc<Region>,
    /// The memfd.
    pub fd: Arc<OwnedFd>,
    /// The connector, the acceptor.
    pub parties: [u32; 2],
    /// Who has mapped it.
    pub mapped: [bool; 2],
    /// No further mapping, no holes.
    pub sealed: bool,
    /// Nobody of that side lives.
    pub dead: [bool; 2],
    /// Connections.
    pub slots: Slots<Connection>,
    /// Eventfds by which one side wakes a context of the other: (the sleeper's side, its context).
    pub wakers: HashMap<(usize, u32), Arc<OwnedFd>>,
}

impl PairRegion {
    /// Makes a region for two parties.
    pub fn create(id: u32, parties: [u32; 2], (slots, data_len): (u32, u64)) -> Result<Self, RegionError> {
        let params = Params { kind: Kind::Pair, id: u64::from(id), slots, data_len };
        let (region, fd) = Region::create(params)?;
        Ok(Self {
            id,
            region: Arc::new(region),
            fd: Arc::new(fd),
            parties,
            mapped: [false; 2],
            sealed: false,
            dead: [false; 2],
            slots: Slots::new(0, slots),
            wakers: HashMap::new(),
        })
    }
}
