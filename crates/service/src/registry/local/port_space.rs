//! Addresses and ports of connections inside this host. No two connections have the same ends; a connector that is bound to no port gets
//! one. To an address of the service's own that is any port of Linux's default range, which only the service manages. To an address of the
//! kernel's it is a port that a socket of the service holds in the kernel, so that no other program gets it. Each held port serves all
//! destinations of its sort: beyond a few the service holds as many as one destination needs at once.

mod giving;
mod holding;

use crate::registry::listen::origin::Origin;
use crate::registry::local::port_need::{For, Need};
use holding::{Held, RANGE, hold, hold_at, range_len, some_window};
use rustix::fd::OwnedFd;
use rustix::net::sockopt;
use rustix::process::{Resource, getrlimit};
use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Fewest ports held, once one is needed, and most ports added at once.
const STEP: (usize, usize) = (32, 256);
/// No more than one in this many ports of the kernel's range is held before it is needed: programs of the same range bind ports, too.
const FEW_SHARE: usize = 16;
/// While fewer ports of a sort are held, no connection gets a port that another needs, except with lent slots: as on Linux a port is free when
/// its connection has ended.
const UNSHARED: usize = 4096;
/// The ended connections are forgotten when at least one in this many is new.
const NEW_SHARE: usize = 4;
/// With one in this many of the service's descriptors ports are shared, too: the sockets that hold ports of all sorts are no more than that.
const DESCRIPTORS_SHARE: u64 = 2;
/// Most addresses at which the port of one closed listener is kept.
const KEPT_MOST: usize = 16;

/// The two ends of a connection: the connector's address and the acceptor's.
pub type Ends = [SocketAddr; 2];

/// The sort of a held port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sort {
    /// Held at the host's IPv6 addresses; false: at its IPv4 addresses.
    pub is_ipv6: bool,
    /// What the port is for.
    pub purpose: For,
}

impl Sort {
    /// Number of sorts: three purposes of two families.
    const COUNT: usize = 6;

    const fn index(self) -> usize {
        self.is_ipv6 as usize * 3 + self.purpose as usize
    }
}

/// The held ports of one sort.
#[derive(Debug, Default)]
struct Pool {
    held: Vec<Held>,
    /// Index of the port that the next search begins with.
    next: usize,
}

/// What ports are held ahead for: connections from an address to a listener.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    sort: Sort,
    local: IpAddr,
    remote: SocketAddr,
    /// How many ports may be wanted at once.
    count: usize,
}

/// By end: what the end needs its port for since it was closed, and when the service first saw that. `None`: it was not seen closed.
type Closed = [Option<(Need, Instant)>; 2];

/// A connection that uses two ends.
#[derive(Debug)]
struct Taken {
    origin: Origin,
    /// `None`: no end was seen closed, as of most connections.
    closed: Option<Box<Closed>>,
    /// The connector's port went back to the kernel: another connection may have the ends.
    is_given_back: bool,
}

impl Taken {
    /// Notes what the ends need their ports for. FIN-WAIT-2 that is over stays so: the FIN that comes after it leads to no TIME-WAIT.
    fn note(&mut self, needs: [Need; 2], now: Instant) {
        if self.closed.is_none() && needs == [Need::Live; 2] {
            return;
        }
        for (closed, need) in self.closed.get_or_insert_default().iter_mut().zip(needs) {
            let is_old = closed.is_some_and(|(old, since)| {
                old == need
                    || matches!(old, Need::FinWait2(_)) && ends_at(old, since).is_some_and(|at| at <= now)
            });
            match need {
                Need::Live => *closed = None,
                _ if is_old => {}
                _ => *closed = Some((need, now)),
            }
        }
    }

    /// What each end needs its port for.
    fn closed(&self) -> Closed {
        self.closed.as_deref().copied().unwrap_or_default()
    }

    /// True when the end needs its port now.
    fn needs(&self, end: usize, now: Instant) -> bool {
        self.closed()[end].is_none_or(|(need, since)| ends_at(need, since).is_none_or(|at| now < at))
    }
}

/// When a need that was first seen at `since` ends; `None`: not by itself.
fn ends_at(need: Need, since: Instant) -> Option<Instant> {
    need.lasts().map(|time| since + time)
}

/// A port that connections need, held at the address that they have: a closed listener's, or a connector's that a program wants to bind at
/// another address.
#[derive(Debug)]
struct Kept {
    at: SocketAddr,
    /// No other socket had the port then.
    is_alone: bool,
    _socket: OwnedFd,
}

impl Kept {
    /// Holds the port at that address, also beside a socket that shares it; from then on as `reuses` says. `None`: another socket has it.
    fn hold(at: SocketAddr, reuses: bool) -> Option<Self> {
        let (socket, is_alone) = match hold_at(at, false) {
            None => (hold_at(at, true)?, false),
            Some(socket) => (socket, true),
        };
        sockopt::set_socket_reuseaddr(&socket, reuses).ok()?;
        Some(Self { at, is_alone, _socket: socket })
    }

    /// Holds the port at that address beside sockets that share it; from then on as `reuses` says. `None`: one of them does not.
    fn beside(at: SocketAddr, reuses: bool) -> Option<Self> {
        let socket = hold_at(at, true)?;
        sockopt::set_socket_reuseaddr(&socket, reuses).ok()?;
        Some(Self { at, is_alone: false, _socket: socket })
    }
}

/// The ends in use, and their connections. An ended connection is removed later: when its ends are wanted, or after a pass over the ports.
#[derive(Debug)]
pub struct PortSpace {
    next_own: u16,
    /// One pool for each sort of addresses, at [`Sort::index`].
    pools: [Pool; Sort::COUNT],
    /// When so many ports of all sorts are held, the service has no descriptors for more.
    held_most: usize,
    /// Fewest ports held of a sort, once one is needed: at most the first of [`STEP`].
    fewest: usize,
    /// The first port of the window in which the next port is looked for.
    window: u16,
    /// The kernel gave no port at the last try.
    is_short: bool,
    /// Ports that may be wanted soon.
    ahead: Option<Ahead>,
    taken: HashMap<Ends, Taken>,
    /// How many connections were recorded since the ended ones were forgotten.
    new: usize,
    /// By family (true: IPv6) and port: how many connectors' ends in `taken` have the port.
    users: HashMap<(bool, u16), u32>,
    /// By family (true: IPv6) and port, then by address: when the last connector's TIME-WAIT ends, of connections that have no slot any more.
    connectors: HashMap<(bool, u16), HashMap<IpAddr, Instant>>,
    /// By address and port: the same of acceptors.
    acceptors: HashMap<SocketAddr, Instant>,
    kept: Vec<Kept>,
}

impl Default for PortSpace {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        Self {
            next_own: *RANGE.start(),
            pools: Default::default(),
            held_most: usize::try_from(limit / DESCRIPTORS_SHARE).unwrap_or(usize::MAX),
            fewest: STEP.0,
            window: some_window(),
            is_short: false,
            ahead: None,
            taken: HashMap::new(),
            new: 0,
            users: HashMap::new(),
            connectors: HashMap::new(),
            acceptors: HashMap::new(),
            kept: Vec::new(),
        }
    }
}

impl PortSpace {
    /// One that holds no more ports than that.
    #[cfg(test)]
    pub fn with_most(held_most: usize) -> Self {
        Self { held_most, ..Self::default() }
    }

    /// The next port of `local`, an address of the service's own, that no connection to `remote` uses and that is not reserved. `None`: all
    /// are in use.
    pub fn find_own(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        is_live: impl Fn(&Ends, Origin) -> bool,
        is_reserved: impl Fn(SocketAddr) -> bool,
    ) -> Option<u16> {
        for _ in RANGE {
            let at = SocketAddr::new(local, self.next_own);
            self.next_own = if self.next_own >= *RANGE.end() { *RANGE.start() } else { self.next_own + 1 };
            if self.next_own == *RANGE.start() {
                self.forget_ended_if_due(&is_live);
            }
            if self.is_free(&[at, remote], &is_live) && !is_reserved(at) {
                return Some(at.port());
            }
        }
        None
    }

    /// The next held port of that sort that no connection needs; or, when the service holds enough of them, with which `local`, an address of
    /// the kernel's, has no connection to `remote`. `None`: there is none.
    pub fn find_held(
        &mut self,
        sort: Sort,
        local: IpAddr,
        remote: SocketAddr,
        now: Instant,
        is_live: impl Fn(&Ends, Origin) -> bool,
    ) -> Option<u16> {
        let found = self.search(sort, local, remote, now, &is_live);
        let pool = &mut self.pools[sort.index()];
        let before = pool.next;
        let port = found.map(|index| {
            pool.next = (index + 1) % pool.held.len();
            pool.held[index].port
        });
        if port.is_none() || pool.next <= before {
            self.forget_ended_if_due(is_live);
        }
        port
    }

    /// Index of the port that [`Self::find_held`] finds. The search begins where the last one ended.
    fn search(
        &self,
        sort: Sort,
        local: IpAddr,
        remote: SocketAddr,
        now: Instant,
        is_live: impl Fn(&Ends, Origin) -> bool,
    ) -> Option<usize> {
        let Pool { held, next } = &self.pools[sort.index()];
        let unshared = if sort.purpose == For::Lent { 0 } else { held.len().min(STEP.0) };
        let may_share = unshared == 0 || held.len() >= UNSHARED || self.holds_most() || self.is_short;
        let mut shared = None;
        for tried in 0..if may_share { held.len() } else { unshared } {
            if tried >= unshared && shared.is_some() {
                break;
            }
            let index = (next + tried) % held.len();
            let at = SocketAddr::new(local, held[index].port);
            if tried < unshared && self.is_unused(at, now) {
                return Some(index);
            }
            if may_share && shared.is_none() && self.is_free(&[at, remote], &is_live) {
                shared = Some(index);
            }
        }
        shared
    }

    /// True when no connector, alive or in TIME-WAIT, has the port.
    fn is_unused(&self, at: SocketAddr, now: Instant) -> bool {
        let port = (at.is_ipv6(), at.port());
        let is_over = |rests: &HashMap<IpAddr, Instant>| rests.values().all(|until| *until <= now);
        !self.users.contains_key(&port) && self.connectors.get(&port).is_none_or(is_over)
    }

    /// True when no connection has these ends, and needs the connector's port.
    pub fn is_free(&self, ends: &Ends, is_live: impl Fn(&Ends, Origin) -> bool) -> bool {
        self.taken.get(ends).is_none_or(|taken| taken.is_given_back || !is_live(ends, taken.origin))
    }

    /// Forgets the connections that have ended, when so many are new that this costs each of them little.
    fn forget_ended_if_due(&mut self, is_live: impl Fn(&Ends, Origin) -> bool) {
        if self.new * NEW_SHARE >= self.taken.len() {
            self.forget_ended(is_live);
        }
    }

    fn forget_ended(&mut self, is_live: impl Fn(&Ends, Origin) -> bool) {
        self.new = 0;
        self.retain(|ends, taken| is_live(ends, taken.origin));
    }

    /// Keeps those of the recorded connections.
    fn retain(&mut self, is_kept: impl Fn(&Ends, &Taken) -> bool) {
        let Self { taken, users, .. } = self;
        taken.retain(|ends, connection| {
            let is_kept = is_kept(ends, connection);
            if !is_kept {
                drop_user(users, ends[0]);
            }
            is_kept
        });
    }

    /// Holds as many more ports of that sort as are held now, within `STEP`, and no more than `held_most` of all sorts; for lent slots half of
    /// all ports at most. The next search begins with them. If the kernel gives none, the next search may share ports; those of lent slots are
    /// always shared. Returns true when another search may find a port.
    pub fn hold_more(&mut self, sort: Sort) -> bool {
        let range = range_len();
        self.fewest = (range / FEW_SHARE).clamp(1, STEP.0);
        let len = self.pools[sort.index()].held.len();
        let left = self.held_most.saturating_sub(self.held_in_pools());
        let most = match sort.purpose {
            For::Lent => left.min((range / 2).saturating_sub(len)),
            For::Plain | For::Reusing => left,
        };
        if most == 0 {
            return false;
        }
        let wanted = len.clamp(self.fewest, STEP.1).min(most);
        let window = &mut self.window;
        let new: Vec<Held> =
            (0..wanted).map_while(|_| hold(sort.is_ipv6, sort.purpose == For::Reusing, window)).collect();
        let is_more = !new.is_empty();
        if is_more {
            let pool = &mut self.pools[sort.index()];
            pool.next = len;
            pool.held.extend(new);
        }
        self.is_short = !is_more;
        is_more || sort.purpose != For::Lent
    }

    /// True when the service has no descriptors for more ports: a connection for which it has none can only be the kernel's.
    pub fn holds_most(&self) -> bool {
        self.held_in_pools() >= self.held_most
    }

    /// `count` more connections from `local` to `remote` may come: [`Self::hold_ahead`] is to be called soon.
    pub const fn expect(&mut self, sort: Sort, local: IpAddr, remote: SocketAddr, count: usize) {
        self.ahead = Some(Ahead { sort, local, remote, count });
    }

    /// True when [`Self::hold_ahead`] has something to do.
    pub const fn is_expecting(&self) -> bool {
        self.ahead.is_some()
    }

    /// Holds more ports when too few of the next ones are free for the connections that are expected. Later the connector would wait for that.
    pub fn hold_ahead(&mut self, is_live: impl Fn(&Ends, Origin) -> bool) {
        let Some(Ahead { sort, local, remote, count }) = self.ahead.take() else { return };
        let Pool { held, next } = &self.pools[sort.index()];
        let is_free = |held: &&Held| self.is_free(&[SocketAddr::new(local, held.port), remote], &is_live);
        let looked_at = held.iter().cycle().skip(*next).take((4 * count).min(held.len()));
        let free = looked_at.filter(is_free).take(count).count();
        if free < count {
            let next = *next;
            self.hold_more(sort);
            if free > 0 {
                self.pools[sort.index()].next = next;
            }
        }
    }

    /// Gives ports back to the kernel when connections use less than a quarter of a sort.
    pub fn release(&mut self, now: Instant, is_live: impl Fn(&Ends, Origin) -> bool) {
        self.connectors.retain(|_, rests| {
            rests.retain(|_, until| now < *until);
            !rests.is_empty()
        });
        self.acceptors.retain(|_, until| now < *until);
        let fewest = self.fewest;
        if self.pools.iter().all(|pool| pool.held.len() <= fewest) {
            return;
        }
        self.forget_ended(is_live);
        let waiting = self.connectors.keys().map(|(_, port)| *port);
        let used: HashSet<u16> = self.taken.keys().map(|[at, _]| at.port()).chain(waiting).collect();
        self.pools.iter_mut().for_each(|pool| pool.release(&used, fewest));
    }

    /// Records that `origin` uses these ends.
    pub fn take(&mut self, ends: Ends, origin: Origin) {
        self.new += 1;
        if self.taken.insert(ends, Taken { origin, closed: None, is_given_back: false }).is_none() {
            *self.users.entry((ends[0].is_ipv6(), ends[0].port())).or_default() += 1;
        }
    }

    /// Notes what the ends of a connection need their ports for. Nothing happens if other connections have the ends now.
    pub fn note(&mut self, ends: &Ends, origin: Origin, needs: [Need; 2], now: Instant) {
        if let Some(taken) = self.taken.get_mut(ends).filter(|taken| taken.origin == origin) {
            taken.note(needs, now);
        }
    }

    /// The slot of a connection ends. Its ends keep their ports as long as they need them.
    pub fn end(&mut self, ends: &Ends, origin: Origin, needs: [Need; 2], now: Instant) {
        self.note(ends, origin, needs, now);
        let Some(taken) = self.taken.get(ends).filter(|taken| taken.origin == origin) else { return };
        let (closed, is_given_back) = (taken.closed(), taken.is_given_back);
        self.taken.remove(ends);
        drop_user(&mut self.users, ends[0]);
        for (end, (need, since)) in closed.into_iter().enumerate().filter_map(|(i, c)| Some((i, c?))) {
            if end == 0 && is_given_back {
                continue;
            }
            self.rest(ends, end, need, since);
        }
    }

    /// One end has this need since then, and no slot says so any more.
    pub fn rest(&mut self, ends: &Ends, end: usize, need: Need, since: Instant) {
        let Some(until) = ends_at(need, since).filter(|until| *until > since) else { return };
        let at = ends[end];
        let latest = match end {
            0 => {
                let rests = self.connectors.entry((at.is_ipv6(), at.port())).or_default();
                rests.entry(at.ip()).or_insert(until)
            }
            _ => self.acceptors.entry(at).or_insert(until),
        };
        *latest = until.max(*latest);
    }

    /// Notes what all connections with a port of that number need it for, with 0 what all need their ports for; `needs` is `None` for those
    /// that have ended.
    pub fn note_port(&mut self, port: u16, now: Instant, needs: impl Fn(&Ends, Origin) -> Option<[Need; 2]>) {
        let is_it = |at: &SocketAddr| port == 0 || at.port() == port;
        for (ends, taken) in self.taken.iter_mut().filter(|(ends, _)| ends.iter().any(is_it)) {
            taken.note(needs(ends, taken.origin).unwrap_or([Need::Nothing; 2]), now);
        }
    }

    /// The addresses with that port that acceptors need. The needs are noted.
    fn needed_by_acceptors(&self, port: u16, now: Instant) -> HashSet<SocketAddr> {
        let taken = self.taken.iter().filter(|(ends, taken)| ends[1].port() == port && taken.needs(1, now));
        let waiting = self.acceptors.iter().filter(|(at, until)| at.port() == port && now < **until);
        taken.map(|(ends, _)| ends[1]).chain(waiting.map(|(at, _)| *at)).collect()
    }

    /// True when connections need the port of a listener at `local`. The needs are noted.
    pub fn has_acceptors(&self, local: SocketAddr, now: Instant) -> bool {
        self.needed_by_acceptors(local.port(), now).iter().any(|at| covers(local, *at))
    }

    /// A listener at `local` is closed: holds the port at the addresses at which its connections need it. The needs are noted. False: another
    /// socket has the port somewhere there.
    pub fn keep(&mut self, local: SocketAddr, reuses: bool, now: Instant) -> bool {
        let needed = self.needed_by_acceptors(local.port(), now);
        let is_new = |at: &SocketAddr| covers(local, *at) && self.kept.iter().all(|kept| kept.at != *at);
        let new: Vec<SocketAddr> = needed.into_iter().filter(is_new).take(KEPT_MOST).collect();
        let before = self.kept.len();
        self.kept.extend(new.iter().filter_map(|at| Kept::hold(*at, reuses)));
        self.kept.len() - before == new.len()
    }

    /// True when another socket had the port of a listener at `local` while `keep` was called for it.
    pub fn is_bound(&self, local: SocketAddr) -> bool {
        !self.kept.iter().any(|kept| covers(local, kept.at) && kept.is_alone)
    }

    /// Number of ports that are held in the kernel, those of closed listeners included.
    pub fn held(&self) -> usize {
        self.held_in_pools() + self.kept.len()
    }

    fn held_in_pools(&self) -> usize {
        self.pools.iter().map(|pool| pool.held.len()).sum()
    }

    /// The ports that are held at single addresses, each once.
    pub fn kept_ports(&self) -> HashSet<u16> {
        self.kept.iter().map(|kept| kept.at.port()).collect()
    }

    /// Gives the kept ports back that no connection needs; `only`: of those with that number. The needs are noted. True: there were some.
    pub fn release_kept(&mut self, only: Option<u16>, now: Instant) -> bool {
        let before = self.kept.len();
        let mut kept = std::mem::take(&mut self.kept);
        kept.retain(|kept| {
            let is_asked_for = only.is_none_or(|port| port == kept.at.port());
            let (at, port) = (kept.at, kept.at.port());
            !is_asked_for
                || self.needed_by_acceptors(port, now).contains(&at)
                || self.needed_by_connectors(at.is_ipv6(), port, now).contains(&at.ip())
        });
        self.kept = kept;
        self.kept.len() < before
    }
}

/// One connector with the port less.
fn drop_user(users: &mut HashMap<(bool, u16), u32>, at: SocketAddr) {
    if let Entry::Occupied(mut count) = users.entry((at.is_ipv6(), at.port())) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// True when a listener at `local` accepts connections to `at`.
fn covers(local: SocketAddr, at: SocketAddr) -> bool {
    local.port() == at.port()
        && (local.ip() == at.ip() || local.ip().is_unspecified() && (local.is_ipv6() || at.is_ipv4()))
}

impl Pool {
    /// Gives ports back that no connection uses, but keeps `fewest`.
    fn release(&mut self, used: &HashSet<u16>, fewest: usize) {
        let in_use = self.held.iter().filter(|held| used.contains(&held.port)).count();
        if self.held.len() <= fewest || in_use * 4 >= self.held.len() {
            return;
        }
        let mut spare = self.held.len() - (in_use * 2).max(fewest);
        self.held.retain(|held| {
            let goes = spare > 0 && !used.contains(&held.port);
            spare -= usize::from(goes);
            !goes
        });
        self.next = 0;
    }
}

#[cfg(test)]
mod tests;
