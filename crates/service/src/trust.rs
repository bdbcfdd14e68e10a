//! Connections on their way from one process to another, by `exec` or `SCM_RIGHTS`: a descriptor is the capability. A
//! process that lets one out leaves its connection with the service; whoever shows the descriptor gets it, in its own region.
//!
//! ```text
//!   Leave --> held as long as anybody has the descriptor --Present--> relayed: old slot <-- deputy | service --> new slot
//!                |                                                          |
//!                '-- nobody has it any more --> closed                      '-- the new holder closes --> closed
//! ```
//! Nothing is copied when it moves: what is unread or unsent lies in the old slot's rings, and the relay goes on from there.
//! Which descriptor it is the kernel says (`SO_COOKIE`), and so it does whether anybody still has it: the service keeps it in
//! an epoll set, where it vanishes with its last holder.

use crate::cores::Command;
use crate::end::{ADVICE, End, Place};
use crate::region::{Connection, Relay, Stage, Use};
use crate::registry::{Answer, Registry};
use crate::requests::new_eventfd;
use control::{Left, Reply, TRUST_CONTEXT};
use queue::stream::{Sender, raise, watch};
use rustix::event::epoll;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use shm::half_flags::{FAILED, FIN, OPEN, RESET};
use shm::{Half, MOVED, Side, SockBlock, TRUST};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The core that relays.
const RELAY_CORE: u32 = 0;
/// So often it is asked whether descriptors that only the service holds connections for are still somebody's.
const PAUSE: Duration = Duration::from_millis(500);

/// A connection that was left.
#[derive(Clone, Copy, Debug)]
struct Trust {
    /// Of its descriptor; 0: nobody has ever accepted it.
    cookie: u64,
    left: Left,
    /// The processes whose regions it lies in.
    owners: [u32; 2],
    family: u32,
    /// Carried on by that relay, for its new holder.
    relay: Option<u32>,
}

impl Trust {
    fn place(&self) -> (u32, u32, u8) {
        (self.left.region, self.left.slot, self.left.side)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Trusts {
    all: HashMap<u64, Trust>,
    /// The latest of each descriptor: a connection may be handed on again and again.
    by_cookie: HashMap<u64, u64>,
    next: u64,
    /// The descriptors, for as long as somebody has them.
    alive: Option<OwnedFd>,
    /// Regions may be nobody's any more.
    pub changed: bool,
}

impl Trusts {
    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// True when the regions of that process are still needed.
    pub fn hold(&self, process: u32) -> bool {
        self.all.values().any(|t| t.owners.contains(&process))
    }

    /// True when some connection of that family was left.
    pub fn has_family(&self, family: u32) -> bool {
        self.all.values().any(|t| t.family == family)
    }

    fn find(&self, cookie: u64) -> Option<(u64, Trust)> {
        let key = self.by_cookie.get(&cookie)?;
        Some((*key, *self.all.get(key)?))
    }

    /// Remembers `fd` while somebody else has it, too.
    fn watch(&mut self, fd: &OwnedFd, key: u64) -> rustix::io::Result<()> {
        if self.alive.is_none() {
            self.alive = Some(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        }
        let Some(set) = &self.alive else { return Ok(()) };
        let data = epoll::EventData::new_u64(key);
        match epoll::add(set, fd, data, epoll::EventFlags::empty()) {
            // Known from an earlier journey, which is over or carried on: that one needs it no more.
            Err(Errno::EXIST) => epoll::modify(set, fd, data, epoll::EventFlags::empty()),
            other => other,
        }
    }

    /// Keys of the descriptors that somebody has; `None` when the kernel does not say.
    fn living(&self) -> Option<HashSet<u64>> {
        let set = self.alive.as_ref()?.as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{set}")).ok()?;
        let key = |line: &str| {
            let word = line.strip_prefix("tfd:")?.split("data:").nth(1)?.split_whitespace().next()?;
            u64::from_str_radix(word, 16).ok()
        };
        Some(text.lines().filter_map(key).collect())
    }

    fn add(&mut self, trust: Trust) -> u64 {
        let key = self.next;
        self.next += 1;
        self.all.insert(key, trust);
        key
    }

    fn remove(&mut self, key: u64) -> Option<Trust> {
        let trust = self.all.remove(&key)?;
        if self.by_cookie.get(&trust.cookie) == Some(&key) {
            self.by_cookie.remove(&trust.cookie);
        }
        self.changed = true;
        Some(trust)
    }
}

fn cookie_of(fds: &[OwnedFd]) -> Option<u64> {
    let [fd] = fds else { return None };
    rustix::net::sockopt::socket_cookie(fd).ok()
}

/// Takes both directions' locks for good. False: one of the other holders is in the middle of a copy.
fn seize(block: &SockBlock) -> bool {
    let alone = block.holders.load(Ordering::Acquire) & !TRUST == 0;
    let locks = [&block.tx_lock, &block.rx_lock];
    for (i, lock) in locks.iter().enumerate() {
        if alone {
            lock.store(MOVED, Ordering::Release);
        } else if lock.compare_exchange(0, MOVED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            locks[..i].iter().for_each(|taken| taken.store(0, Ordering::Release));
            return false;
        }
    }
    true
}

impl Registry {
    /// `Request::Leave`.
    pub fn leave(&mut self, id: u32, left: Left, fds: &[OwnedFd]) -> Answer {
        let Some(cookie) = cookie_of(fds) else {
            return Answer::Offence("it left something that is no socket".to_owned());
        };
        let Some(owners) = self.owners_of(id, &left) else {
            return Answer::Offence("it left a stranger's connection".to_owned());
        };
        let (Some(family), Some(block)) = (self.family_of(owners[0]), self.block(&left)) else {
            return Answer::refused(Errno::INVAL, "there is no such socket");
        };
        block.holders.fetch_or(TRUST, Ordering::AcqRel);
        let trust = Trust { cookie, left, owners, family, relay: None };
        let known = self.trusts.find(cookie);
        if known.is_some_and(|(_, t)| t.place() == trust.place()) {
            return Answer::plain(Reply::Done);
        }
        // Who holds somebody else's descriptor must not give out a connection of its own under its name.
        let handed_on = |t: &Trust| {
            let relay = t.relay.and_then(|relay| self.relays.get(&relay));
            relay.is_some_and(|relay| relay.places[1] == (left.region, left.slot))
        };
        let taken = self.trusts.all.values().any(|t| t.place() == trust.place());
        if taken || known.is_some_and(|(_, t)| !handed_on(&t)) {
            self.hold_no_more(&left);
            return Answer::refused(Errno::EXIST, "that descriptor or that connection is known otherwise");
        }
        if let Err(e) = self.trusts.watch(&fds[0], self.trusts.next) {
            tracing::warn!("a connection's descriptor cannot be watched: {e}");
            self.hold_no_more(&left);
            return Answer::refused(e, "the service cannot watch the descriptor");
        }
        let key = self.trusts.add(trust);
        self.trusts.by_cookie.insert(cookie, key);
        Answer::plain(Reply::Done)
    }

    /// What was set for the service in the block of a connection that it does not take.
    fn hold_no_more(&self, left: &Left) {
        let mut all = self.trusts.all.values();
        if !all.any(|t| (t.left.home, t.left.sock) == (left.home, left.sock))
            && let Some(block) = self.block(left)
        {
            block.holders.fetch_and(!TRUST, Ordering::AcqRel);
        }
    }

    /// Whose regions a connection lies in, if they are `id`'s or its ancestors'.
    fn owners_of(&self, id: u32, left: &Left) -> Option<[u32; 2]> {
        let a = self.applications.get(&id)?;
        let home = self.regions.get(&left.home)?.owner;
        let place = match (self.regions.get(&left.region), self.pairs.get(&left.region)) {
            (Some(r), _) if left.side == 1 => match r.slots.get(left.slot)? {
                Use::Flow(_) | Use::Relay(..) => r.owner,
                Use::Queue => return None,
            },
            (None, Some(pair)) => {
                pair.slots.get(left.slot)?;
                *pair.parties.get(usize::from(left.side))?
            }
            _ => return None,
        };
        (a.descends_from(home) && a.descends_from(place)).then_some([home, place])
    }

    fn block(&self, left: &Left) -> Option<&SockBlock> {
        self.regions.get(&left.home)?.memory.region().sock(left.sock)
    }

    /// `Request::Present`.
    pub fn present(&mut self, id: u32, fds: &[OwnedFd]) -> Answer {
        let Some(cookie) = cookie_of(fds) else {
            return Answer::Offence("it showed something that is no socket".to_owned());
        };
        let Some((key, trust)) = self.trusts.find(cookie) else {
            return Answer::kernel("no connection was left behind that descriptor");
        };
        if trust.relay.is_some() {
            return Answer::refused(Errno::NOTCONN, "another process has that connection");
        }
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        let own = a.region.filter(|r| self.regions.get(r).is_some_and(|r| r.sealed));
        let Some(own) = own.filter(|_| a.sockets < self.config.max_sockets) else {
            return Answer::refused(
                Errno::NOBUFS,
                "its region is not mapped, or has as many sockets as it may",
            );
        };
        let relay = self.new_relay_id();
        let Some((slot, mut near)) = self.new_end(own, relay) else {
            return Answer::refused(Errno::NOBUFS, "the application region is full");
        };
        let (deputy, shut_write) = match self.deputize(&trust) {
            Ok(deputy) => deputy,
            Err(errno) => {
                self.regions.get_mut(&own).and_then(|r| r.slots.release(slot));
                if errno == Errno::CONNRESET {
                    // Its positions make no sense, or its owner was killed in the middle of a send.
                    self.end_trust(key, true);
                }
                return Answer::refused(errno, "it cannot be taken over");
            }
        };
        // What its holder before has ended stays so, and what it wanted of TCP.
        near.ended = shut_write;
        if let (Some((own, _)), Some((_, app))) =
            (deputy.place.halves(deputy.slot), near.place.halves(near.slot))
        {
            app.extra.store(own.extra.load(Ordering::Relaxed) & ADVICE, Ordering::Relaxed);
        }
        if let Some(trust) = self.trusts.all.get_mut(&key) {
            trust.relay = Some(relay);
        }
        self.carry_on(relay, &trust.left, (own, slot), id, [deputy, near]);
        let Left { local, peer, shut_read, .. } = trust.left;
        Answer::plain(Reply::Moved { slot, local, peer, shut_read, shut_write })
    }

    /// Relays from where a connection was left to `place`, for `holder`.
    fn carry_on(&mut self, relay: u32, left: &Left, place: (u32, u32), holder: u32, ends: [End; 2]) {
        let connection = Connection {
            addresses: [left.peer, left.local],
            applications: [0, holder],
            stage: Stage::Accepted,
        };
        // The deputy's slot is freed the way it always would have been: it counts as gone.
        let places = [(left.region, left.slot), place];
        self.relays.insert(relay, Relay { places, connection, gone: [true, false] });
        if let Some(a) = self.applications.get_mut(&holder) {
            a.sockets += 1;
        }
        self.cores[RELAY_CORE as usize].say(Command::Open(relay, Box::new(ends)));
    }

    /// Takes over an established connection that nobody has used at its acceptor's place, for `holder` in `region`. Says
    /// which relay carries it, to which slot.
    pub fn carry_unused(&mut self, left: Left, region: u32, holder: u32) -> Option<(u32, u32)> {
        let owner = match (self.regions.get(&left.region), self.pairs.get(&left.region)) {
            (Some(r), _) => r.owner,
            (None, pair) => *pair?.parties.get(usize::from(left.side))?,
        };
        let family = self.family_of(owner)?;
        let place = self.place_of(&left).ok()?;
        let relay = self.new_relay_id();
        let (slot, near) = self.new_end(region, relay)?;
        let deputy = End::deputy(place, left.slot, Sender::default());
        self.trusts.add(Trust { cookie: 0, left, owners: [owner; 2], family, relay: Some(relay) });
        self.carry_on(relay, &left, (region, slot), holder, [deputy, near]);
        Some((relay, slot))
    }

    /// The service takes the place of whoever left a connection. Also says whether they had sent FIN.
    fn deputize(&mut self, trust: &Trust) -> Result<(End, bool), Errno> {
        let left = &trust.left;
        let place = self.place_of(left)?;
        let (own, _) = place.halves(left.slot).ok_or(Errno::NOTCONN)?;
        let block = self.block(left).ok_or(Errno::NOTCONN)?;
        if !seize(block) {
            return Err(Errno::AGAIN);
        }
        let sender = Sender::taken_over(block, own, place.own_bytes()).map_err(|_| Errno::CONNRESET)?;
        let shut_write = own.flags.load(Ordering::Acquire) & FIN != 0;
        Ok((End::deputy(place.clone(), left.slot, sender), shut_write))
    }

    /// Where the service can stand for whoever left an established connection.
    fn place_of(&mut self, left: &Left) -> Result<Place, Errno> {
        let side = Side::from_index(left.side).ok_or(Errno::INVAL)?;
        let place = match (self.regions.get(&left.region), self.pairs.get(&left.region)) {
            (Some(r), _) => Place::of_application(r.memory.clone(), r.bells.clone()),
            (None, Some(pair)) => {
                let other = self.family_of(pair.parties[usize::from(left.side) ^ 1]).unwrap_or(0);
                Place::of_party(left.region, side, (pair.region.clone(), pair.fd.clone()), other)
            }
            _ => return Err(Errno::NOTCONN),
        };
        let (_, other) = place.halves(left.slot).ok_or(Errno::NOTCONN)?;
        let flags = other.flags.load(Ordering::Acquire);
        if flags & OPEN == 0 {
            let is_over = flags & (FAILED | RESET) != 0;
            return Err(if is_over { Errno::NOTCONN } else { Errno::INPROGRESS });
        }
        self.bell_of_pair(left.region, usize::from(left.side));
        Ok(place)
    }

    /// By that bell the other party wakes the core that relays.
    fn bell_of_pair(&mut self, pair: u32, side: usize) {
        let Some(pair) = self.pairs.get_mut(&pair) else { return };
        if pair.wakers.contains_key(&(side, TRUST_CONTEXT)) {
            return;
        }
        match new_eventfd() {
            Ok(bell) => {
                self.cores[RELAY_CORE as usize].say(Command::Watch(bell.clone()));
                pair.wakers.insert((side, TRUST_CONTEXT), bell);
            }
            Err(e) => tracing::error!("a relayed connection has no bell: {e}"),
        }
    }

    /// The new holder's end.
    fn new_end(&mut self, region: u32, relay: u32) -> Option<(u32, End)> {
        let r = self.regions.get_mut(&region)?;
        let slot = r.slots.take(Use::Relay(relay, 1)).ok()?;
        let lines = r.memory.region().slot(slot)?;
        lines.half.iter().for_each(Half::clear);
        raise(&lines.half[0], OPEN);
        watch(&lines.half[0], Some(RELAY_CORE));
        Some((slot, End::new(r.memory.clone(), slot)))
    }

    /// Where the connection at a slot was before its last move, and so on: there TCP knows it.
    pub fn first_place(&self, mut place: (u32, u32)) -> (u32, u32) {
        // Each step leads to an earlier holder.
        while let Some(Use::Relay(relay, 1)) = self.regions.get(&place.0).and_then(|r| r.slots.get(place.1))
            && let Some(left) = self.trusts.all.values().find(|t| t.relay == Some(*relay)).map(|t| t.left)
        {
            place = (left.region, left.slot);
        }
        place
    }

    /// A relay's deputy has let go: the connection is closed, and of the journey nothing is left.
    pub fn deputy_gone(&mut self, relay: u32, end: usize) {
        let found =
            self.trusts.all.iter().find(|(_, t)| end == 0 && t.relay == Some(relay)).map(|(key, _)| *key);
        if let Some(key) = found {
            self.end_trust(key, false);
        }
    }

    /// The service lets go. The last holder's close is done in its name.
    fn end_trust(&mut self, key: u64, reset: bool) {
        let Some(trust) = self.trusts.remove(key) else { return };
        let left = trust.left;
        let before = self.block(&left).map_or(0, |block| block.holders.fetch_and(!TRUST, Ordering::AcqRel));
        if trust.relay.is_none() && before & !TRUST != 0 && !reset {
            return;
        }
        match self.regions.get(&left.region).map(|r| r.slots.get(left.slot)) {
            Some(Some(Use::Flow(_))) => self.close_flow(left.region, left.slot, reset),
            Some(Some(Use::Relay(relay, end))) => self.close_relay_end(*relay, *end, reset),
            Some(_) => {}
            None => self.close_end(left.region, left.slot, usize::from(left.side), reset),
        }
    }

    /// Closes connections whose descriptor nobody has any more. Returns when to look again.
    pub fn settle_trusts(&mut self, now: Instant) -> Option<Instant> {
        let alone = |t: &Trust| {
            t.relay.is_none()
                && self.block(&t.left).is_none_or(|b| b.holders.load(Ordering::Acquire) == TRUST)
        };
        let alone: Vec<u64> = self.trusts.all.iter().filter(|(_, t)| alone(t)).map(|(key, _)| *key).collect();
        if alone.is_empty() {
            return None;
        }
        let living = self.trusts.living();
        let mut left = 0;
        for key in alone {
            match &living {
                Some(living) if !living.contains(&key) => self.end_trust(key, false),
                _ => left += 1,
            }
        }
        (left > 0).then(|| now + PAUSE)
    }
}
