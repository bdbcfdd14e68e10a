//! The virtual sockets of one session: their state, and the table by which frames find them. Sends nothing and decides nothing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::open::Open;
use crate::receiving::Receiving;
use crate::sending::Sending;

/// Where a virtual socket is in its life.
///
/// ```text
///  ours:    Opening --OPENED, or any other frame--> Live --both ends confirmed--> Gone
///  peer's:  Arrived --accept--> Live                Live --reset--> Resetting --RESET 0--> free
///           Arrived --refuse--> Refusing --REFUSED sent--> free      any --RESET--> Gone --the caller is told--> free
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// An OPEN of ours has no answer yet.
    Opening,
    /// An OPEN of the peer's waits for the caller.
    Arrived,
    /// The caller has refused the peer's OPEN with this errno.
    Refusing(u32),
    /// Open at both sides: bytes flow.
    Live,
    /// The caller has reset the socket with this errno; the peer has not confirmed.
    Resetting(u32),
    /// Over for the peer; the caller has not been told yet.
    Gone,
}

/// How a virtual socket ended, for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Refused(u32),
    Reset(u32),
    Closed,
}

/// Frames that a virtual socket must send.
pub(crate) mod owed {
    pub const OPENED: u8 = 1;
    pub const REFUSED: u8 = 2;
    pub const CREDIT: u8 = 4;
    pub const FIN: u8 = 8;
    pub const RESET: u8 = 16;
}

/// What the caller must be told about a virtual socket.
pub(crate) mod news {
    pub const INCOMING: u8 = 1;
    pub const OPENED: u8 = 2;
    pub const READABLE: u8 = 4;
    pub const ACKED: u8 = 8;
    pub const FINISHED: u8 = 16;
}

/// The state of one virtual socket.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    pub id: u32,
    /// The caller's name of the socket.
    pub tag: u64,
    pub stage: Stage,
    pub open: Open,
    pub sending: Sending,
    pub receiving: Receiving,
    /// Frames that are owed: bits of [`owed`].
    pub owed: u8,
    /// What is to be told: bits of [`news`].
    pub news: u8,
    pub end: Option<End>,
    /// True: the caller knows that the peer's stream is over.
    pub is_end_told: bool,
    /// In which of the session's queues this place is. Survives the socket: the next one in this place finds itself there and is passed over.
    pub queued: Queued,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queued {
    pub control: bool,
    pub ready: bool,
    pub news: bool,
    pub acks: bool,
}

impl Socket {
    /// True when both directions are over and the peer knows it.
    pub fn is_over(&self) -> bool {
        let is_told = self.receiving.is_confirmed() && self.owed & owed::CREDIT == 0;
        self.sending.is_over() && self.receiving.is_over() && is_told
    }
}

/// Hashes identifiers of virtual sockets. The protocol makes each side number its sockets one after the other, so no peer can choose
/// identifiers that collide.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }
    fn write_u32(&mut self, id: u32) {
        // 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4).
        let mixed = (self.0 ^ u64::from(id)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// All virtual sockets of a session. Places are used again with their memory.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    places: Vec<Socket>,
    free: Vec<u32>,
    index: HashMap<u32, u32, BuildHasherDefault<IdHasher>>,
}

impl Sockets {
    /// Number of virtual sockets, also of those that the caller has not been told the end of.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Number of places, used or free.
    pub fn places_len(&self) -> usize {
        self.places.len()
    }

    /// Adds a socket and returns its place.
    pub fn add(&mut self, id: u32, stage: Stage, open: Open, edge: u64) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Socket {
                id,
                tag: 0,
                stage,
                open,
                sending: Sending::default(),
                receiving: Receiving::default(),
                owed: 0,
                news: 0,
                end: None,
                is_end_told: false,
                queued: Queued::default(),
            });
            self.places.len() as u32 - 1
        });
        let socket = &mut self.places[place as usize];
        (socket.id, socket.tag, socket.stage, socket.open) = (id, 0, stage, open);
        (socket.owed, socket.news, socket.end, socket.is_end_told) = (0, 0, None, false);
        socket.sending.clear();
        socket.receiving.clear(edge);
        self.index.insert(id, place);
        place
    }

    /// Forgets the socket in that place.
    pub fn remove(&mut self, place: u32) {
        let id = self.places[place as usize].id;
        if self.index.remove(&id).is_some() {
            let socket = &mut self.places[place as usize];
            (socket.id, socket.owed, socket.news, socket.end) = (0, 0, 0, None);
            self.free.push(place);
        }
    }

    /// The place of that socket.
    pub fn find(&self, id: u32) -> Option<u32> {
        self.index.get(&id).copied()
    }

    /// The socket in that place; of a free place one with identifier 0.
    pub fn at(&mut self, place: u32) -> &mut Socket {
        &mut self.places[place as usize]
    }

    /// Places in use, in the order of the table.
    pub fn places(&self) -> impl Iterator<Item = u32> + use<> {
        let used: Vec<u32> =
            (0..self.places.len() as u32).filter(|place| self.places[*place as usize].id != 0).collect();
        used.into_iter()
    }

    /// The sockets in use, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = &Socket> {
        self.places.iter().filter(|socket| socket.id != 0)
    }
}
