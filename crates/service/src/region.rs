//! The regions: memory, parties, slots and what each slot is used for.

use crate::listeners::QueueKey;
use crate::memory::Memory;
use crate::present::Pages;
use crate::slots::Slots;
use crate::tcp::Flow;
use queue::pages::Pool;
use rustix::fd::{AsFd, OwnedFd};
use shm::{Half, Kind, Layout, Params, Region, RegionError, SockBlock};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// What a slot of an application region is used for.
#[derive(Debug)]
pub enum Use {
    /// An accept queue.
    Queue,
    /// One end of a relayed connection: the relay and the end's index.
    Relay(u32, usize),
    /// A connection over the port.
    Flow(Flow),
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
    /// `Push::Grow` is on its way: so many bytes are wanted.
    pub growing: Option<u64>,
    /// Slot 0 is the control slot.
    pub slots: Slots<Use>,
    /// The control thread's warm rings.
    pub pool: Pool,
    /// By these the application wakes the service: first the slow path, then each core.
    pub bells: Vec<Arc<OwnedFd>>,
}

/// The smallest region there is.
const LEAST: (u32, u64) = (64, 1 << 20);

/// Slots and bytes of payload of an application region: halved until it takes half of `room` bytes of address space.
pub fn fitting(usual: (u32, u64), room: u64) -> (u32, u64) {
    let (mut slots, mut data_len) = usual;
    let total = |slots, data_len| {
        Layout::new(Params { kind: Kind::Application, id: 0, slots, data_len }).map_or(0, |l| l.total as u64)
    };
    while total(slots, data_len) > room / 2 && (slots, data_len) != LEAST {
        slots = (slots / 2).max(LEAST.0);
        data_len = (data_len / 2).next_multiple_of(LEAST.1);
    }
    (slots, data_len)
}

impl AppRegion {
    /// Makes a region for `owner`.
    pub fn create(
        (id, index): (u32, u16),
        owner: u32,
        (slots, data_len): (u32, u64),
        bells: Vec<Arc<OwnedFd>>,
    ) -> Result<Self, RegionError> {
        let params = Params { kind: Kind::Application, id: u64::from(id), slots, data_len };
        let (region, fd) = Region::create(params)?;
        Ok(Self {
            memory: Arc::new(Memory::new(id, index, region, fd)),
            owner,
            sealed: false,
            growing: None,
            slots: Slots::new(1, slots),
            pool: Pool::default(),
            bells,
        })
    }

    /// The socket blocks that may be in use: those whose pages are present.
    pub fn sock_blocks(&self) -> impl Iterator<Item = &SockBlock> {
        let region = self.memory.region();
        let start = region.layout().socks as u64;
        let size = size_of::<SockBlock>() as u64;
        let end = start + u64::from(region.layout().params.slots) * size;
        Pages { region, fd: self.memory.fd.as_fd() }
            .present_parts(&(start..end))
            .into_iter()
            .flat_map(move |part| (part.start - start) / size..(part.end - start).div_ceil(size))
            .filter_map(|i| region.sock(i as u32))
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
    /// None, or one that the connector has made by itself, and may again and again, always with these addresses.
    Lent,
    /// None: the slot is a line.
    Line,
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

/// By which a connector brings connections to an accept queue by itself.
#[derive(Debug)]
pub struct Line {
    /// Its slot.
    pub slot: u32,
    /// The accept queue that its connections come to.
    pub queue: QueueKey,
    /// The acceptor's address and port.
    pub local: SocketAddr,
    /// The address that they come from.
    pub source: IpAddr,
    /// Connections in it at most.
    pub most: u32,
    /// Positions up to which connections made, and connections taken, are in the statistics.
    pub counted: [u64; 2],
    /// When both sides were last asked how many there were.
    pub asked: Instant,
}

/// A connection that the service copies between two application regions.
#[derive(Debug)]
pub struct Relay {
    /// Region and slot of the connector, of the acceptor.
    pub places: [(u32, u32); 2],
    /// As `Connection` has it.
    pub connection: Connection,
    /// The core has let go of that end's slot.
    pub gone: [bool; 2],
}

/// The region of one ordered pair of processes.
#[derive(Debug)]
pub struct PairRegion {
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
    /// Of these: lines.
    pub lines: Vec<Line>,
    /// Of these: lent ones.
    pub lent: u32,
    /// Eventfds by which one side wakes a context of the other: (the sleeper's side, its context).
    pub wakers: HashMap<(usize, u32), Arc<OwnedFd>>,
}

impl PairRegion {
    /// Makes a region for two parties.
    pub fn create(id: u32, parties: [u32; 2], (slots, data_len): (u32, u64)) -> Result<Self, RegionError> {
        let params = Params { kind: Kind::Pair, id: u64::from(id), slots, data_len };
        let (region, fd) = Region::create(params)?;
        Ok(Self {
            region: Arc::new(region),
            fd: Arc::new(fd),
            parties,
            mapped: [false; 2],
            sealed: false,
            dead: [false; 2],
            slots: Slots::new(0, slots),
            lines: Vec::new(),
            lent: 0,
            wakers: HashMap::new(),
        })
    }

    /// A clean slot for a connection, which comes back when none is free.
    pub fn take(&mut self, connection: Connection) -> Result<u32, Connection> {
        let slot = self.slots.take(connection)?;
        self.region.slot(slot).iter().flat_map(|slot| &slot.half).for_each(Half::clear);
        Ok(slot)
    }

    /// True when nobody of one side, or of both, lives.
    pub fn has_dead_side(&self) -> bool {
        self.dead != [false; 2]
    }
}
