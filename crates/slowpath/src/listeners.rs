//! Who listens where, and the half-open connections of each listener: small, bounded, the oldest gives way.

use crate::handshake::Negotiated;
use crate::wheel::TimerId;
use base::{Instant, SeqNumber};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{Endpoint, FourTuple, MacAddr};

/// Segments with data that are kept of one connection until the service has accepted it: an initial window of 10 segments
/// (RFC 6928) often comes right behind the final acknowledgement.
const EARLY_EACH: usize = 16;
/// The same in all: at most 16 MiB, were all of them super-frames of a first flight.
const EARLY_ALL: usize = 1024;

/// A SYN that was answered. Everything else of a connection exists only after the final acknowledgement.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    /// Our end is `src`.
    pub(crate) tuple: FourTuple,
    pub(crate) listener: Endpoint,
    pub(crate) iss: SeqNumber,
    pub(crate) irs: SeqNumber,
    pub(crate) negotiated: Negotiated,
    /// The peer's window in bytes.
    pub(crate) snd_wnd: u32,
    pub(crate) mac: MacAddr,
    pub(crate) core: u8,
    /// SYN-ACKs sent again.
    pub(crate) tries: u8,
    /// The service was told and has not answered.
    pub(crate) is_offered: bool,
    pub(crate) sent_at: Instant,
    /// When the final acknowledgement came.
    pub(crate) established_at: Instant,
    pub(crate) timer: Option<TimerId>,
    /// Data that came before the service answered.
    pub(crate) early: Vec<Box<[u8]>>,
}

const _: () = assert!(size_of::<HalfOpen>() <= 232, "a flood costs this much per SYN");

/// One listening port.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) token: u64,
    /// Connections the accept queue still takes.
    pub(crate) room: usize,
    /// Half-open connections, oldest first; names of finished ones stay until they come to the front.
    order: VecDeque<u64>,
    live: usize,
}

/// All listeners and all half-open connections.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_address: HashMap<Endpoint, Listener>,
    half_open: HashMap<u64, HalfOpen>,
    by_tuple: HashMap<FourTuple, u64>,
    next: u64,
    early: usize,
}

impl Listeners {
    /// Linux takes one more than the backlog says.
    pub(crate) fn add(&mut self, at: Endpoint, token: u64, backlog: u32) -> bool {
        let is_free = !self.by_address.contains_key(&at);
        if is_free {
            let room = backlog as usize + 1;
            self.by_address.insert(at, Listener { token, room, order: VecDeque::new(), live: 0 });
        }
        is_free
    }

    /// Takes a listener away; its half-open connections are returned.
    pub(crate) fn remove(&mut self, at: &Endpoint) -> Option<Vec<HalfOpen>> {
        let listener = self.by_address.remove(at)?;
        Some(listener.order.into_iter().filter_map(|id| self.take(id)).collect())
    }

    /// The listener for a SYN to `to`: of the address itself, else of the family's wildcard.
    pub(crate) fn find(&self, to: &Endpoint) -> Option<Endpoint> {
        let any = match to.addr {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        [*to, Endpoint::new(any, to.port)].into_iter().find(|at| self.by_address.contains_key(at))
    }

    pub(crate) fn get_mut(&mut self, at: &Endpoint) -> Option<&mut Listener> {
        self.by_address.get_mut(at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Endpoint, &Listener)> {
        self.by_address.iter()
    }

    pub(crate) fn of_token(&mut self, token: u64) -> impl Iterator<Item = &mut Listener> {
        self.by_address.values_mut().filter(move |listener| listener.token == token)
    }

    pub(crate) fn half_open_len(&self) -> usize {
        self.half_open.len()
    }

    pub(crate) fn half_open(&self) -> impl Iterator<Item = &HalfOpen> {
        self.half_open.values()
    }

    pub(crate) fn id_of(&self, tuple: &FourTuple) -> Option<u64> {
        self.by_tuple.get(tuple).copied()
    }

    pub(crate) fn entry(&mut self, id: u64) -> Option<&mut HalfOpen> {
        self.half_open.get_mut(&id)
    }

    /// Adds a half-open connection; the oldest ones of the same listener that must give way are returned. `None` when
    /// all the room is taken by other listeners' connections.
    pub(crate) fn open(
        &mut self,
        half_open: HalfOpen,
        per_listener: usize,
        in_all: usize,
    ) -> Option<(u64, Vec<HalfOpen>)> {
        let mut evicted = Vec::new();
        while self.half_open.len() >= in_all || self.live_of(&half_open.listener) >= per_listener {
            evicted.push(self.take_oldest(&half_open.listener)?);
        }
        let listener = self.by_address.get_mut(&half_open.listener)?;
        self.next += 1;
        let id = self.next;
        listener.order.push_back(id);
        listener.live += 1;
        if listener.order.len() > 2 * listener.live + 64 {
            let known = &self.half_open;
            listener.order.retain(|&old| old == id || known.contains_key(&old));
        }
        self.by_tuple.insert(half_open.tuple, id);
        self.half_open.insert(id, half_open);
        Some((id, evicted))
    }

    /// Keeps a segment that came before the service has accepted. False when there is no room.
    pub(crate) fn keep_early(&mut self, id: u64, frame: &[u8]) -> bool {
        let room = self.early < EARLY_ALL;
        let Some(half_open) = self.half_open.get_mut(&id).filter(|h| room && h.early.len() < EARLY_EACH)
        else {
            return false;
        };
        half_open.early.push(frame.into());
        self.early += 1;
        true
    }

    /// Forgets what was kept.
    pub(crate) fn forget_early(&mut self, id: u64) {
        if let Some(half_open) = self.half_open.get_mut(&id) {
            self.early -= half_open.early.len();
            half_open.early.clear();
        }
    }

    /// Takes a half-open connection out.
    pub(crate) fn take(&mut self, id: u64) -> Option<HalfOpen> {
        let half_open = self.half_open.remove(&id)?;
        self.by_tuple.remove(&half_open.tuple);
        self.early -= half_open.early.len();
        if let Some(listener) = self.by_address.get_mut(&half_open.listener) {
            listener.live -= 1;
        }
        Some(half_open)
    }

    fn live_of(&self, at: &Endpoint) -> usize {
        self.by_address.get(at).map_or(0, |listener| listener.live)
    }

    /// The oldest of a listener's that the service has not been told of.
    fn take_oldest(&mut self, at: &Endpoint) -> Option<HalfOpen> {
        let order = &mut self.by_address.get_mut(at)?.order;
        let place = order.iter().position(|id| self.half_open.get(id).is_some_and(|h| !h.is_offered))?;
        let id = order.remove(place)?;
        self.take(id)
    }
}
