//! Connections that go from one process to another, by `exec` or `SCM_RIGHTS`. The descriptor is the capability: a process that passes it
//! on leaves its connection with the service, and the process that shows the descriptor gets the connection, in its own region, until
//! another process shows it. Of several processes with the descriptor the last one that used it has the connection.
//!
//! ```text
//!   Leave --> the service may take it --Present--> relayed: old slot <-- deputy | service --> new slot
//!                  ^        |                                                          |
//!                  |        '-- no process has the descriptor open --> closed          |
//!                  '------------------------ at once, from the new slot ---------------'
//! ```
//! Moving copies nothing: unread and unsent bytes stay in the old slot's rings, and the relay goes on from there. Relays in a row become
//! one as soon as nothing is under way between them (`relay::join`). The kernel identifies the descriptor (`SO_COOKIE`) and tells whether
//! any process still has it: the service keeps it in an epoll set, which it leaves when the last process closes it.

pub(crate) mod trusts;

use crate::cores::wakers::new_eventfd;
use crate::cores::{Command, Core, RELAY_CORE};
use crate::registry::application::Application;
use crate::registry::handover::trusts::{LOOK_MOST, Trust};
use crate::registry::local::shown::Shown;
use crate::registry::memory::connection::{Connection, Relay, Stage};
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::output::Output;
use crate::registry::relay::endpoint::{ADVICE, End, Place};
use crate::registry::{Answer, Registry, Watch};
use control::{KernelReason, Left, Reply};
use queue::holding;
use queue::stream::{Sender, raise, watch};
use rustix::io::Errno;
use shm::half_flags::{FAILED, FIN, NEAR, OPEN, READ_CLOSED, RESET, WANT_SPACE};
use shm::{Half, KEPT, Side, SockBlock, TRUST, TRUST_CONTEXT};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most relays in a row. A further move must wait until two of them have become one.
const ROW_MAX: usize = 16;

/// Time that a piece of a round costs, and each descriptor that the kernel is asked about in it, for the account of the round's user.
const LOOK: Duration = Duration::from_micros(20);
const ASKED: Duration = Duration::from_micros(10);

/// Takes the locks of both directions for good.
///
/// # Errors
/// EAGAIN when another holder of the socket is in the middle of a copy, EBUSY when a ring keeps the connection.
fn seize(block: &SockBlock) -> Result<(), Errno> {
    holding::seize(block).map_err(|owner| if owner == KEPT { Errno::BUSY } else { Errno::AGAIN })
}

/// Directions that the previous holder has shut down.
struct Shut {
    read: bool,
    write: bool,
}

impl Registry {
    /// Answers `Request::Leave`: a process passes a connection's descriptor on and leaves the connection with the service.
    pub fn leave(&mut self, id: u32, left: Left, shown: Option<&Shown>) -> Answer {
        let Some(&Shown { cookie, .. }) = shown else {
            return Answer::Offence("it left something that is no TCP socket".to_owned());
        };
        let owners = [self.regions.get(&left.home).map(|r| r.owner), self.party_of(&left)];
        let descends = |owner: &u32| self.applications.get(&id).is_some_and(|a| a.descends_from(*owner));
        if !owners.iter().flatten().all(descends) {
            return Answer::Offence("it left a stranger's connection".to_owned());
        }
        let ([Some(home), Some(place)], Some(ends)) = (owners, self.ends_of(&left)) else {
            return self.left_too_late(cookie, &left);
        };
        let owners = [home, place];
        let Some(family) = self.family_of(home).filter(|_| self.block(&left).is_some()) else {
            return Answer::refused(Errno::INVAL, "there is no such socket");
        };
        let known = self.trusts.find(cookie).map(|(key, _)| key);
        match (known, self.trusts.at(SlotKey::of_left(&left), left.side)) {
            (None, None) => {}
            (known, there) if known == there => return Answer::plain(Reply::Done),
            // A process with another program's descriptor must not pass a connection of its own off as that descriptor's.
            _ => {
                // The library has set the bit beforehand.
                self.hold_no_more(&left);
                return Answer::refused(
                    Errno::EXIST,
                    "that descriptor or that connection is known otherwise",
                );
            }
        }
        let Some(who) = self.applications.get(&id).map(Application::payer) else { return Answer::Silent };
        let charge = || self.descriptors.charge(who, 1, self.ports.held());
        let set = match self.trusts.alive.place(cookie, who.uid, charge) {
            Ok(set) => set,
            Err(e) => {
                self.hold_no_more(&left);
                return Answer::refused(e, "the service cannot watch the descriptor");
            }
        };
        if let Some(block) = self.block(&left) {
            block.holders.fetch_or(TRUST, Ordering::AcqRel);
        }
        self.keep_slot(&left);
        self.trusts.add(Trust { cookie, left, ends, owners, family, uid: who.uid, relay: None });
        Answer::plain(Reply::Done).watching(Watch { cookie, is_listener: false }, set)
    }

    /// The socket that a process has left could not be watched: the service does not keep the connection.
    pub fn unwatched_trust(&mut self, cookie: u64) -> Answer {
        if let Some((key, trust)) = self.trusts.find(cookie) {
            self.trusts.remove(key);
            self.hold_no_more(&trust.left);
        }
        Answer::refused(Errno::NOSPC, "the service cannot watch the descriptor")
    }

    /// Clears the service's holder bit in the connection's socket block, unless another trust needs it.
    fn hold_no_more(&self, left: &Left) {
        if !self.trusts.has_block(left)
            && let Some(block) = self.block(left)
        {
            block.holders.fetch_and(!TRUST, Ordering::AcqRel);
        }
    }

    /// Id of the process that owns the region of a connection, or its side of a pair region.
    fn party_of(&self, left: &Left) -> Option<u32> {
        match (self.regions.get(&left.region), self.pairs.get(left.region)) {
            (Some(r), _) => Some(r.owner),
            (None, pair) => pair?.parties.get(usize::from(left.side)).copied(),
        }
    }

    /// The results of `getsockname` and `getpeername` for the connection in that slot, as the service knows them. `None`: there is none.
    fn ends_of(&self, left: &Left) -> Option<[SocketAddr; 2]> {
        let of = |connection: &Connection, side: usize| {
            let addresses = connection.addresses;
            [addresses[side], addresses[side ^ 1]]
        };
        let side = Side::from_index(left.side)?.index();
        let Some(r) = self.regions.get(&left.region) else {
            return Some(of(self.pairs.get(left.region)?.connection(left.slot)?, side));
        };
        match r.slots.get(left.slot).filter(|_| left.side == 1)? {
            Use::Flow(flow) => Some(flow.ends),
            Use::Relay(relay, end) => Some(of(&self.relays.get(relay)?.connection, *end)),
        }
    }

    /// Another process has shown the descriptor meanwhile, or the connection has ended: no offence. In the first case the service has the
    /// connection already, and the process that gets the descriptor will find it.
    fn left_too_late(&self, cookie: u64, left: &Left) -> Answer {
        self.hold_no_more(left);
        match self.trusts.find(cookie) {
            Some(_) => Answer::plain(Reply::Done),
            None => Answer::refused(Errno::NOTCONN, "there is no connection any more"),
        }
    }

    fn block(&self, left: &Left) -> Option<&SockBlock> {
        self.regions.get(&left.home)?.memory.region().sock(left.sock)
    }

    /// Answers `Request::Present`: gives the connection behind a shown descriptor to the socket block `sock` of the process.
    pub fn present(&mut self, id: u32, sock: u32, shown: Option<&Shown>) -> Answer {
        let Some(&Shown { cookie, .. }) = shown else {
            return Answer::Offence("it showed something that is no TCP socket".to_owned());
        };
        let Some((key, trust)) = self.trusts.find(cookie).filter(|(_, trust)| trust.relay.is_none()) else {
            return Answer::kernel(KernelReason::NothingLeft);
        };
        if self.origin_of(SlotKey::of_left(&trust.left)).1 >= ROW_MAX {
            return Answer::refused(Errno::AGAIN, "it has moved faster than its bytes");
        }
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        let Some(own) = self.own_region(id).filter(|_| a.sockets < self.config.max_sockets) else {
            return Answer::refused(
                Errno::NOBUFS,
                "its region is not mapped, or has as many sockets as it may",
            );
        };
        let (family, uid) = (a.family(), a.uid);
        let relay = self.new_relay_id();
        let Some((slot, mut near)) = self.new_end(own, relay, trust.left.region, trust.left.slot) else {
            return Answer::refused(Errno::NOBUFS, "the application region is full");
        };
        let (deputy, shut) = match self.deputize(&trust) {
            Ok(deputy) => deputy,
            Err(errno) => {
                self.regions.get_mut(&own).and_then(|r| r.slots.release(slot));
                if errno == Errno::CONNRESET {
                    // Its positions make no sense, or its holder was killed in the middle of a send.
                    self.end_trust(key, true);
                }
                let why = if errno == Errno::BUSY { "a ring has it" } else { "it cannot be taken over" };
                return Answer::refused(errno, why);
            }
        };
        // Directions that the previous holder has shut down stay so; its options for TCP stay, too.
        near.ended = shut.write;
        if let (Some((own, _)), Some((_, app))) =
            (deputy.place.halves(deputy.slot), near.place.halves(near.slot))
        {
            app.extra.store(own.extra.load(Ordering::Relaxed) & ADVICE, Ordering::Relaxed);
        }
        self.trusts.carried(key, relay);
        self.carry_on(relay, &trust, SlotKey { region: own, slot }, id, [deputy, near]);
        let ends @ [local, peer] = trust.ends;
        let left = Left { region: own, slot, side: Side::One as u8, home: own, sock };
        if let Some(block) = self.block(&left) {
            block.holders.fetch_or(TRUST, Ordering::AcqRel);
        }
        self.trusts.add(Trust { cookie, left, ends, owners: [id; 2], family, uid, relay: None });
        Answer::plain(Reply::Moved { slot, local, peer, shut_read: shut.read, shut_write: shut.write })
    }

    /// Relays from the slot where a connection was left to `place`, the new slot of process `holder`.
    fn carry_on(&mut self, relay: u32, trust: &Trust, place: SlotKey, holder: u32, ends: [End; 2]) {
        let Trust { left, ends: [local, peer], .. } = *trust;
        let connection = Connection {
            addresses: [peer, local],
            applications: [0, holder],
            stage: Stage::Accepted,
            grant: None,
        };
        self.relays.insert(relay, Relay::onward(SlotKey::of_left(&left), place, connection));
        self.count_sockets([holder], 1);
        self.command(RELAY_CORE, Command::Open(relay, Box::new(ends)));
    }

    /// Records that the service holds an established connection that no process has accepted, in its acceptor's slot. Returns the trust's
    /// number.
    pub fn hold_unused(&mut self, left: Left, ends: [SocketAddr; 2]) -> Option<u64> {
        let owner = self.party_of(&left)?;
        let slot = SlotKey::of_left(&left);
        // A process may have left it already, unaccepted.
        if self.origin_of(slot).1 >= ROW_MAX || self.trusts.at(slot, left.side).is_some() {
            return None;
        }
        let family = self.family_of(owner)?;
        self.place_of(&left).ok()?;
        // No look is for it: it ends with its listener.
        let uid = self.applications.get(&owner).map_or(0, |a| a.uid);
        Some(self.trusts.add(Trust { cookie: 0, left, ends, owners: [owner; 2], family, uid, relay: None }))
    }

    /// Moves such a connection to process `holder`, into `region`. Returns the relay and the new slot.
    pub fn carry_unused(&mut self, trust: u64, region: u32, holder: u32) -> Option<(u32, u32)> {
        let held = *self.trusts.get(trust)?;
        let left = held.left;
        let place = self.place_of(&left).ok()?;
        let relay = self.new_relay_id();
        let (slot, near) = self.new_end(region, relay, left.region, left.slot)?;
        let deputy = End::deputy(place, left.slot, Sender::default());
        self.trusts.carried(trust, relay);
        self.carry_on(relay, &held, SlotKey { region, slot }, holder, [deputy, near]);
        Some((relay, slot))
    }

    /// Takes a connection from the process that has it: the service becomes that process's deputy in the slot.
    fn deputize(&mut self, trust: &Trust) -> Result<(End, Shut), Errno> {
        let left = &trust.left;
        let place = self.place_of(left)?;
        let (own, _) = place.halves(left.slot).ok_or(Errno::NOTCONN)?;
        let block = self.block(left).ok_or(Errno::NOTCONN)?;
        seize(block)?;
        let sender = Sender::taken_over(block, own, place.own_bytes()).map_err(|_| Errno::CONNRESET)?;
        // A thread that sleeps on the connection there must see that it has moved.
        if let Some(family) = self.family_of(trust.owners[1]) {
            self.ring(place.region(), place.side(), family, left.slot);
        }
        let flags = own.flags.load(Ordering::Acquire);
        let shut = Shut { read: flags & READ_CLOSED != 0, write: flags & FIN != 0 };
        let end = End::deputy(place.clone(), left.slot, sender);
        if end.sender.let_go(own) {
            // Held bytes are released now: their time limit does not move with the connection.
            end.tell(&self.wakers);
        }
        Ok((end, shut))
    }

    /// The side of a region where the service can be the deputy of an established connection's holder.
    fn place_of(&mut self, left: &Left) -> Result<Place, Errno> {
        let side = Side::from_index(left.side).ok_or(Errno::INVAL)?;
        let place = match (self.regions.get(&left.region), self.pairs.get(left.region)) {
            (Some(r), _) => {
                Place::of_application(r.memory.clone(), self.cores.iter().map(Core::waker).collect())
            }
            (None, Some(pair)) => {
                let other = self.family_of(pair.parties[usize::from(left.side) ^ 1]).unwrap_or(0);
                Place::of_party(left.region, side, pair.region.clone(), pair.fd.clone(), other)
            }
            _ => return Err(Errno::NOTCONN),
        };
        let (_, other) = place.halves(left.slot).ok_or(Errno::NOTCONN)?;
        let flags = other.flags.load(Ordering::Acquire);
        if flags & OPEN == 0 {
            let is_over = flags & (FAILED | RESET) != 0;
            return Err(if is_over { Errno::NOTCONN } else { Errno::INPROGRESS });
        }
        self.waker_of_pair(left.region, usize::from(left.side));
        Ok(place)
    }

    /// Makes the eventfd by which the other party of a pair region wakes the core that relays.
    fn waker_of_pair(&mut self, pair: u32, side: usize) {
        let Some(pair) = self.pairs.get_mut(pair) else { return };
        if pair.waker(side, TRUST_CONTEXT).is_some() {
            return;
        }
        match new_eventfd() {
            Ok(waker) => {
                self.outputs.add(Output::Command(RELAY_CORE, Command::Watch(waker.clone(), None)));
                pair.add_waker(side, TRUST_CONTEXT, waker);
            }
            Err(e) => tracing::error!("a relayed connection has no waker: {e}"),
        }
    }

    /// The new holder's end, in `region`, of a connection that was at `slot` of region `from`.
    fn new_end(&mut self, region: u32, relay: u32, from: u32, slot: u32) -> Option<(u32, End)> {
        // The service's half of the old slot says whether the bytes stay on this host; in a pair region they always do.
        let before = self.regions.get(&from).map(|r| r.memory.halves(slot));
        let near = match before {
            Some(halves) => halves.map_or(0, |(own, _)| own.flags.load(Ordering::Relaxed) & NEAR),
            None => NEAR,
        };
        let r = self.regions.get_mut(&region)?;
        let slot = r.slots.take(Use::Relay(relay, 1)).ok()?;
        let lines = r.memory.region().slot(slot)?;
        lines.half.iter().for_each(Half::clear);
        raise(&lines.half[0], OPEN | near);
        watch(&lines.half[0], Some(RELAY_CORE as u32));
        Some((slot, End::new(r.memory.clone(), slot)))
    }

    /// The slot where a connection was before all its moves, which is where TCP knows it, and the number of relays from there.
    pub fn origin_of(&self, mut place: SlotKey) -> (SlotKey, usize) {
        // The loop ends, because each step leads to an earlier holder.
        let mut steps = 0;
        while let Some(Use::Relay(relay, 1)) =
            self.regions.get(&place.region).and_then(|r| r.slots.get(place.slot))
            && let Some((_, Trust { left, .. })) = self.trusts.behind(*relay)
        {
            place = SlotKey::of_left(&left);
            steps += 1;
        }
        (place, steps)
    }

    /// Two relays in a row have become one, the inner: frees the slot between them.
    pub fn joined(&mut self, outer: u32, inner: u32) {
        let Some(far) = self.relays.remove(&outer) else { return };
        let (Some(middle), Some(place)) = (far.left_in(), far.place(1)) else { return };
        let Some(relay) = self.relays.get_mut(&inner) else { return };
        let Some(end) = relay.move_end(middle, place) else { return };
        let before =
            std::mem::replace(&mut relay.connection.applications[end], far.connection.applications[1]);
        if let Some(used) = self.regions.get_mut(&place.region).and_then(|r| r.slots.get_mut(place.slot)) {
            *used = Use::Relay(inner, end);
        }
        self.regions.get_mut(&middle.region).and_then(|r| r.slots.release(middle.slot));
        self.uncount_sockets([before]);
        if let Some((key, trust)) = self.trusts.behind(outer) {
            self.trusts.remove(key);
            self.hold_no_more(&trust.left);
        }
        // Commands to the outer relay may have been lost meanwhile.
        self.look_at_relay(inner);
    }

    /// A relay's deputy has closed: the connection has ended, and so does its trust.
    pub fn deputy_gone(&mut self, relay: u32, end: usize) {
        if let Some((key, _)) = self.trusts.behind(relay).filter(|_| end == 0) {
            self.end_trust(key, false);
        }
    }

    /// A slot is free: the trusts of the connection that was there end. What a core says of that connection may come later, and must not be
    /// taken for news of the next one there.
    pub fn forget_trusts_at(&mut self, slot: SlotKey) {
        for side in 0..2 {
            let trust = self.trusts.at(slot, side).and_then(|key| self.trusts.remove(key));
            trust.into_iter().for_each(|trust| self.hold_no_more(&trust.left));
        }
    }

    /// Ends a trust: the service holds the connection no longer. If no other process does, closes it in the last holder's name.
    pub fn end_trust(&mut self, key: u64, reset: bool) {
        let Some(trust) = self.trusts.remove(key) else { return };
        let left = trust.left;
        let holders = self.block(&left).map_or(0, |block| block.holders.load(Ordering::Acquire) & !TRUST);
        let is_carried = trust.relay.is_some();
        if !is_carried && holders != 0 && !reset {
            return self.hold_no_more(&left);
        }
        let last = if is_carried || reset { None } else { self.deputize(&trust).ok() };
        if let Some((end, _)) = &last {
            // WANT_SPACE has the reader ring when it has read everything.
            end.raise(&self.wakers, WANT_SPACE);
        }
        match self.regions.get(&left.region).map(|r| r.slots.get(left.slot)) {
            Some(Some(Use::Flow(_))) => self.close_flow(left.region, left.slot, reset),
            Some(Some(Use::Relay(relay, end))) => self.close_relay_end(*relay, *end, reset),
            Some(_) => {}
            None => self.close_end(left.region, left.slot, usize::from(left.side), reset),
        }
        // The rings that it sent from can be taken back when they were read.
        if let Some((end, _)) = last {
            self.command(RELAY_CORE, Command::Linger(Box::new(end)));
        }
        self.hold_no_more(&left);
    }

    /// Closes connections and ends listeners that no process has a descriptor of: takes one piece of one user's round, if one is due.
    pub fn look_at_trusts(&mut self) {
        let now = self.now;
        let Some(uid) = self.trusts.next_user(now) else { return };
        let regions = &self.regions;
        let is_alone = |t: &Trust| {
            // Trusts with cookie 0 are connections kept at a listener; they end with it.
            let block = || regions.get(&t.left.home)?.memory.region().sock(t.left.sock);
            t.relay.is_none()
                && t.cookie != 0
                && block().is_none_or(|b| b.holders.load(Ordering::Acquire) & !TRUST == 0)
        };
        let alone = self.trusts.next_piece(uid, is_alone);
        let cookies: Vec<u64> = alone.iter().map(|(_, cookie)| *cookie).collect();
        let forsaken = self.trusts.alive.forsaken(&cookies);
        let over = alone.iter().filter(|(_, cookie)| forsaken.contains(cookie));
        over.for_each(|(key, _)| self.end_trust(*key, false));
        let from = self.trusts.listeners_from(uid);
        let listeners = from.map_or_else(Vec::new, |from| self.listeners.of_user(uid, from, LOOK_MOST.1));
        let are_deserted = self.settle_deserted(&listeners);
        self.trusts.end_piece(uid, now, &listeners, forsaken.len() < cookies.len() || are_deserted);
        self.outputs.add(Output::Spent(uid, LOOK + ASKED * (cookies.len() + listeners.len()) as u32));
    }
}
