//! Regions: their memory, parties and slots, and what each slot is used for.

use crate::memory::Memory;
use crate::memory::residency::Pages;
use crate::memory::slot_key::SlotKey;
use crate::memory::slots::Slots;
use crate::tcp::Flow;
use flow::Limits;
use rustix::fd::{AsFd, OwnedFd};
use shm::{Kind, Layout, Params, Region, RegionError, SockBlock};
use std::net::SocketAddr;
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
    /// The owner has mapped and sealed it.
    pub sealed: bool,
    /// Bytes that the application was asked to populate (`Push::Grow`) and has not yet; `None`: it was not asked.
    pub growing: Option<u64>,
    /// Uses of the slots. Slot 0 is the control slot.
    pub slots: Slots<Use>,
    /// Eventfds by which the application wakes the service: first the slow path, then each core.
    pub bells: Vec<Arc<OwnedFd>>,
    /// Connections made, and accepted, without the service that the statistics include.
    pub counted: [u64; 2],
    /// When these were last read.
    pub counted_at: Instant,
}

/// Size of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Number of slots: a power of two.
    pub slots: u32,
    /// Payload bytes of each side: a multiple of 1 MiB.
    pub data_len: u64,
}

/// The smallest region.
const LEAST: Size = Size { slots: 64, data_len: 1 << 20 };

/// The size of an application region: the `usual` one, halved until the region needs at most half of `room` bytes of address space.
pub fn fitting(usual: Size, room: u64) -> Size {
    let mut size = usual;
    let total = |Size { slots, data_len }| {
        Layout::new(Params { kind: Kind::Application, id: 0, slots, data_len }).map_or(0, |l| l.total as u64)
    };
    while total(size) > room / 2 && size != LEAST {
        size.slots = (size.slots / 2).max(LEAST.slots);
        size.data_len = (size.data_len / 2).next_multiple_of(LEAST.data_len);
    }
    size
}

impl AppRegion {
    /// Makes a region for the process `owner`, the sending of which `limits` bound. `index` is the region's place in the threads' tables.
    pub fn create(
        id: u32,
        index: u16,
        owner: u32,
        Size { slots, data_len }: Size,
        bells: Vec<Arc<OwnedFd>>,
        limits: Limits,
        now: Instant,
    ) -> Result<Self, RegionError> {
        let params = Params { kind: Kind::Application, id: u64::from(id), slots, data_len };
        let (region, fd) = Region::create(params)?;
        Ok(Self {
            memory: Arc::new(Memory::new(id, index, region, fd, limits)),
            owner,
            sealed: false,
            growing: None,
            slots: Slots::new(1, slots),
            bells,
            counted: [0; 2],
            counted_at: now,
        })
    }

    /// The socket blocks in pages that are present; no other block can be in use.
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

/// State of a slot of a pair region, or of a relayed connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The accept queue is full, and the connector waits.
    Pending,
    /// Established, and in the accept queue.
    Queued,
    /// Established, and accepted by a process.
    Accepted,
    /// Lent to the connector, which may make a connection in it without the service, again and again, always with these addresses.
    Lent,
}

/// Name of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantKey {
    /// Id of the accept queue.
    pub queue: u32,
    /// Number of the grant there.
    pub grant: u32,
}

/// A connection inside this host.
#[derive(Debug)]
pub struct Connection {
    /// Addresses of the connector and of the acceptor.
    pub addresses: [SocketAddr; 2],
    /// Ids of the connecting process and of the accepting one.
    pub applications: [u32; 2],
    /// How far the connection has come.
    pub stage: Stage,
    /// Of a lent slot: its grant in the accept queue that it is lent for.
    pub grant: Option<GrantKey>,
}

/// A connection that the service copies between two application regions.
#[derive(Debug)]
pub struct Relay {
    /// The connector's end and the acceptor's.
    ends: [RelayEnd; 2],
    /// Addresses, processes and stage.
    pub connection: Connection,
}

/// An end of a relay.
#[derive(Clone, Copy, Debug)]
enum RelayEnd {
    /// A process uses it, by this slot.
    Used(SlotKey),
    /// The service itself is there as the deputy of a holder that has left the connection in this slot, which ends with its old use.
    Left(SlotKey),
    /// It is over. Its slot may have another connection.
    Gone,
}

impl Relay {
    /// A new connection between processes that use it by these slots.
    pub fn new(places: [SlotKey; 2], connection: Connection) -> Self {
        Self { ends: places.map(RelayEnd::Used), connection }
    }

    /// Carries a connection on that was left in slot `from`.
    pub fn onward(from: SlotKey, place: SlotKey, connection: Connection) -> Self {
        Self { ends: [RelayEnd::Left(from), RelayEnd::Used(place)], connection }
    }

    /// The slot by which a process uses an end.
    pub fn place(&self, end: usize) -> Option<SlotKey> {
        match self.ends[end] {
            RelayEnd::Used(place) => Some(place),
            RelayEnd::Left(_) | RelayEnd::Gone => None,
        }
    }

    /// The ends that processes use, each with its slot.
    pub fn places(&self) -> impl Iterator<Item = (usize, SlotKey)> {
        (0..2).filter_map(|end| Some((end, self.place(end)?)))
    }

    /// Slot in which the connection was left that the relay carries on.
    pub fn left_in(&self) -> Option<SlotKey> {
        match self.ends[0] {
            RelayEnd::Left(place) => Some(place),
            RelayEnd::Used(_) | RelayEnd::Gone => None,
        }
    }

    /// An end is over: no process uses it. Returns its slot.
    pub fn end(&mut self, end: usize) -> Option<SlotKey> {
        let place = self.place(end)?;
        self.ends[end] = RelayEnd::Gone;
        Some(place)
    }

    /// True when no process uses an end.
    pub fn is_over(&self) -> bool {
        self.places().next().is_none()
    }

    /// The end with the slot `from` has the slot `to` from now on. Returns which end it is.
    pub fn move_end(&mut self, from: SlotKey, to: SlotKey) -> Option<usize> {
        let (end, _) = self.places().find(|(_, place)| *place == from)?;
        self.ends[end] = RelayEnd::Used(to);
        Some(end)
    }
}
