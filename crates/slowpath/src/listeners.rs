//! Listeners by address, and the half-open connections of each: small and bounded.

use crate::FlowOptions;
use crate::cookie::RECENT;
use crate::handshake::Negotiated;
use crate::wheel::TimerId;
use base::{Instant, SeqNumber};
use flow::Challenged;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{Endpoint, FourTuple, MacAddr};

/// Most segments with data kept for one connection until the service has accepted it: an initial window of 10 segments
/// (RFC 6928) often comes right behind the final acknowledgement.
const EARLY_EACH: usize = 16;
/// Most segments kept for all connections: at most 16 MiB, if all were super-frames.
const EARLY_ALL: usize = 1024;

/// A SYN that was answered. All other state of a connection is made after the final acknowledgement.
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
    /// Number of times that the SYN-ACK was sent again.
    pub(crate) tries: u8,
    /// The service got `Event::Incoming` and has not answered yet.
    pub(crate) is_offered: bool,
    /// The final acknowledgement came without data, which the listener waits for (`TCP_DEFER_ACCEPT`).
    pub(crate) is_deferred: bool,
    /// Made from a SYN cookie: it is not known when the peer's SYN came.
    pub(crate) is_from_cookie: bool,
    pub(crate) sent_at: Instant,
    /// When the final acknowledgement came.
    pub(crate) established_at: Instant,
    /// When its peer was last challenged.
    pub(crate) challenged: Challenged,
    pub(crate) timer: Option<TimerId>,
    /// Frames with data that came before the service has answered.
    pub(crate) early: Vec<Box<[u8]>>,
}

impl HalfOpen {
    /// Time from which on the peer may know of the connection. A cookie only tells that its SYN came recently.
    pub(crate) fn began(&self) -> Instant {
        if self.is_from_cookie {
            Instant::from_ns(self.sent_at.as_ns().saturating_sub(RECENT.as_ns()))
        } else {
            self.sent_at
        }
    }
}

const _: () = assert!(size_of::<HalfOpen>() <= 232, "a flood costs this much per SYN");

/// One listening port.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) token: u64,
    /// Number of connections that the accept queue still takes.
    pub(crate) room: usize,
    /// Options of the connections that it accepts.
    pub(crate) options: FlowOptions,
    /// Most half-open connections before SYNs are answered with cookies.
    backlog: usize,
    /// Number of half-open connections now.
    live: usize,
    /// When it last answered with a cookie.
    pub(crate) cookie_at: Option<Instant>,
}

/// So few half-open connections are no sign of a flood, however small the backlog is.
const HALF_OPEN_MIN: usize = 8;

impl Listener {
    /// True when the listener has no room for another half-open connection; `most` bounds every listener.
    pub(crate) fn is_full(&self, most: usize) -> bool {
        self.live >= self.backlog.max(HALF_OPEN_MIN).min(most)
    }
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
    /// Adds a listener, unless `at` has one. Like Linux it takes one connection more than the backlog says.
    pub(crate) fn add(&mut self, at: Endpoint, token: u64, backlog: u32) -> bool {
        let is_free = !self.by_address.contains_key(&at);
        if is_free {
            let (backlog, room) = (backlog as usize, backlog as usize + 1);
            let options = FlowOptions::default();
            let listener = Listener { token, room, options, backlog, live: 0, cookie_at: None };
            self.by_address.insert(at, listener);
        }
        is_free
    }

    /// Removes a listener and returns its half-open connections. `None` when there is none.
    pub(crate) fn remove(&mut self, at: &Endpoint) -> Option<Vec<HalfOpen>> {
        self.by_address.remove(at)?;
        let of_it = self.half_open.iter().filter(|(_, h)| h.listener == *at).map(|(&id, _)| id);
        let of_it: Vec<u64> = of_it.collect();
        Some(of_it.into_iter().filter_map(|id| self.take(id)).collect())
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

    pub(crate) fn half_open_ids(&self) -> impl Iterator<Item = u64> {
        self.half_open.keys().copied()
    }

    pub(crate) fn half_open(&self, id: u64) -> Option<&HalfOpen> {
        self.half_open.get(&id)
    }

    pub(crate) fn id_of(&self, tuple: &FourTuple) -> Option<u64> {
        self.by_tuple.get(tuple).copied()
    }

    pub(crate) fn entry(&mut self, id: u64) -> Option<&mut HalfOpen> {
        self.half_open.get_mut(&id)
    }

    /// Adds a half-open connection and returns its id. `None` when its listener is gone.
    pub(crate) fn open(&mut self, half_open: HalfOpen) -> Option<u64> {
        let listener = self.by_address.get_mut(&half_open.listener)?;
        listener.live += 1;
        self.next += 1;
        self.by_tuple.insert(half_open.tuple, self.next);
        self.half_open.insert(self.next, half_open);
        Some(self.next)
    }

    /// Notes the timer of a half-open connection.
    pub(crate) fn set_timer(&mut self, id: u64, timer: TimerId) {
        if let Some(half_open) = self.half_open.get_mut(&id) {
            half_open.timer = Some(timer);
        }
    }

    /// Keeps a segment that came before the service has accepted the connection. False when there is no room.
    #[must_use]
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

    /// Drops the segments kept for a half-open connection.
    pub(crate) fn forget_early(&mut self, id: u64) {
        if let Some(half_open) = self.half_open.get_mut(&id) {
            self.early -= half_open.early.len();
            half_open.early.clear();
        }
    }

    /// Removes a half-open connection and returns it.
    pub(crate) fn take(&mut self, id: u64) -> Option<HalfOpen> {
        let half_open = self.half_open.remove(&id)?;
        self.by_tuple.remove(&half_open.tuple);
        self.early -= half_open.early.len();
        if let Some(listener) = self.by_address.get_mut(&half_open.listener) {
            listener.live -= 1;
        }
        Some(half_open)
    }
}
