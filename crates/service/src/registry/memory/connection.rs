//! Connections inside this host, as the service knows them.

use crate::registry::memory::slot_key::SlotKey;
use std::net::SocketAddr;

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
