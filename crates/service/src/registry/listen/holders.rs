//! The processes that hold a listening socket: their right to accept, their deaths, and connections that go to a process of another family.

use crate::registry::listen::origin::Origin;

use crate::registry::application::Application;
use crate::registry::listen::table::{Home, Listener};
use crate::registry::{Answer, Registry};
use control::{AcceptRecord, Left, Push, Reply};
use rustix::io::Errno;
use shm::half_flags::{ACCEPTED, RELEASED};
use shm::{Half, Side};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most listeners that no process accepts from; beyond that those of the user with the most of them end, the oldest first.
const DESERTED_MOST: usize = 1024;
/// Connections at a listener that no process accepts from are reset after this time: perhaps only programs without our library still have
/// the socket.
const KEPT: Duration = Duration::from_secs(5);
/// A process that has said that it no longer listens mostly closes the descriptor within this time.
const CLOSING: Duration = Duration::from_millis(1);

impl Registry {
    /// True for a process that may accept from a listener: it has shown the socket, or it is a forked child of one that has.
    pub fn accepts(&self, id: u32, listener: &Listener) -> bool {
        !listener.holders.has_left(id)
            && self
                .applications
                .get(&id)
                .is_some_and(|a| listener.holders.shown().any(|holder| a.descends_from(holder)))
    }

    /// The processes that may accept from a listener.
    pub fn acceptors<'a>(&'a self, listener: &'a Listener) -> impl Iterator<Item = &'a Application> {
        self.applications.values().filter(|a| self.accepts(a.id, listener))
    }

    /// True when some process may accept from a listener, or a promised child of such a process.
    pub fn has_acceptors(&self, listener: &Listener) -> bool {
        self.accepts(listener.home.application, listener)
            || self.acceptors(listener).next().is_some()
            || listener.holders.shown().any(|holder| self.expects_heir_of(holder))
    }

    /// A process accepts no more from a listener.
    pub fn leave_queue(&mut self, id: u32, queue: u32) {
        let Some(l) = self.listeners.all.get_mut(&queue) else { return };
        let is_counted = l.holders.leave(id);
        l.queue().forget_sleepers(|application| application == id);
        self.uncount_sockets(is_counted.then_some(id));
        self.look_for_acceptors(queue);
    }

    /// After a process has left a listener or has died: if no other accepts, direct connectors must ask, and the service looks whether any
    /// process still has the socket.
    pub fn look_for_acceptors(&mut self, queue: u32) {
        let Some(l) = self.listeners.all.get(&queue) else { return };
        if !self.has_holders(l) {
            self.trusts.hurry(l.uid, self.now, CLOSING);
        }
        if self.has_acceptors(l) {
            // The sleeper that was woken last may be the one that has left.
            if l.queue().has_any() {
                self.wake_sleepers(l);
            }
            self.has_home(queue);
            return;
        }
        if let Some(l) = self.listeners.all.get_mut(&queue) {
            l.since = self.now;
            l.grants.revoke();
        }
        if let Some(surplus) = self.surplus(DESERTED_MOST) {
            self.end_listener(surplus);
        }
        self.tcp_room(queue);
    }

    /// True when new connections can be put somewhere. A listener with a home of which no relative lives moves to a process that accepts.
    pub fn has_home(&mut self, queue: u32) -> bool {
        let Some(l) = self.listeners.all.get(&queue) else { return false };
        let home = l.home.application;
        if self.applications.contains_key(&home) || self.is_alive(home) || self.expects_heir_of(home) {
            return true;
        }
        let homes = self
            .acceptors(l)
            .filter_map(|a| Some(Home { application: a.id, region: self.own_region(a.id)? }));
        let other = homes.min_by_key(|home| home.application);
        let (Some(home), Some(l)) = (other, self.listeners.all.get_mut(&queue)) else { return false };
        l.home = home;
        l.grants.revoke();
        true
    }

    /// True when a process lives and accepts that has shown the socket. All others that may accept are descendants of such a process; which
    /// of them have the socket, the service does not know: some were forked before their parent had it, or after it had closed it.
    fn has_holders(&self, l: &Listener) -> bool {
        l.holders.present().any(|holder| self.applications.contains_key(&holder))
    }

    /// Listeners that no process accepts from.
    pub fn deserted(&self) -> impl Iterator<Item = (u32, &Listener)> {
        self.listeners.all.iter().filter(|(_, l)| !self.has_acceptors(l)).map(|(id, l)| (*id, l))
    }

    /// The listener to end when more than `most` have no process that accepts: of the user with the most of them, the one that has been
    /// without for the longest time. So a user that leaves very many ends no other user's.
    fn surplus(&self, most: usize) -> Option<u32> {
        let deserted: Vec<(u32, &Listener)> = self.deserted().collect();
        if deserted.len() <= most {
            return None;
        }
        let mut of_user: HashMap<u32, usize> = HashMap::new();
        deserted.iter().for_each(|(_, listener)| *of_user.entry(listener.uid).or_default() += 1);
        let (uid, _) = of_user.into_iter().max_by_key(|(uid, count)| (*count, *uid))?;
        let its = deserted.into_iter().filter(|(_, listener)| listener.uid == uid);
        its.min_by_key(|(id, listener)| (listener.since, *id)).map(|(id, _)| id)
    }

    /// Ends those of these listeners without a process that certainly accepts, if no process has their socket open; resets connections that
    /// have waited too long where none accepts. True: some of these listeners remain.
    pub fn settle_deserted(&mut self, ids: &[u32]) -> bool {
        let left = self.end_forsaken(ids);
        left.iter().for_each(|id| self.reset_old(*id));
        !left.is_empty()
    }

    /// Ends those of these listeners without a process that certainly accepts if no process has their socket open. Returns those without
    /// such a process that remain.
    pub fn end_forsaken(&mut self, ids: &[u32]) -> Vec<u32> {
        let known = ids.iter().filter_map(|id| Some((*id, self.listeners.all.get(id)?)));
        let doubtful: Vec<(u32, u64)> =
            known.filter(|(_, l)| !self.has_holders(l)).map(|(id, l)| (id, l.cookie)).collect();
        let cookies: Vec<u64> = doubtful.iter().map(|(_, cookie)| *cookie).collect();
        let forsaken = self.listeners.alive.forsaken(&cookies);
        let (over, left): (Vec<_>, Vec<_>) =
            doubtful.into_iter().partition(|(_, cookie)| forsaken.contains(cookie));
        // The family of one that ends may be needed no more.
        self.trusts.changed |= !over.is_empty();
        over.into_iter().for_each(|(id, _)| drop(self.end_listener(id)));
        left.into_iter().map(|(id, _)| id).collect()
    }

    fn reset_old(&mut self, id: u32) {
        let is_old = |l: &&Listener| l.since + KEPT <= self.now && !self.has_acceptors(l);
        let Some(l) = self.listeners.all.get(&id).filter(is_old) else { return };
        let mut over = self.withdraw_unaccepted(l);
        if let Some(l) = self.listeners.all.get_mut(&id) {
            over.extend(l.grants.take_waiting());
        }
        over.into_iter().for_each(|incoming| self.reset_unaccepted(incoming));
    }

    /// A process has died, and its sockets were closed. What it had claimed in accept queues and not set up waits again; what it had put in
    /// and not announced is announced.
    pub fn repair_queues(&mut self, dead: &Application) {
        let has_grants = |l: &Listener| l.grants.iter().any(|(_, origin)| self.is_connector(dead, origin));
        let concerned = |l: &Listener| l.holders.shown().any(|h| dead.descends_from(h)) || has_grants(l);
        let queues: Vec<u32> =
            self.listeners.all.iter().filter(|(_, l)| concerned(l)).map(|(id, _)| *id).collect();
        for id in queues {
            let Some(l) = self.listeners.all.get(&id) else { continue };
            l.queue().forget_sleepers(|application| application == dead.id);
            for (grant, _) in l.grants.iter() {
                let is_left =
                    || l.grants.get(grant).is_some_and(|incoming| self.is_left_unaccepted(dead, &incoming));
                l.queue().repair(grant, dead.id, is_left);
            }
            self.look_for_acceptors(id);
        }
    }

    fn is_connector(&self, a: &Application, origin: Origin) -> bool {
        match origin {
            Origin::Pair(region, _) => self.pairs.get(region).is_some_and(|pair| pair.parties[0] == a.id),
            Origin::Relay(_) | Origin::Flow(..) => false,
        }
    }

    /// Answers `Request::Take`: a process has claimed a connection in a region of another family. The service carries it on to the
    /// process's own region.
    pub fn take(&mut self, id: u32, queue: u32, grant: u32) -> Answer {
        let refused = |why: &str| Answer::refused(Errno::CONNABORTED, why);
        let Some(l) = self.listeners.all.get(&queue).filter(|l| self.accepts(id, l)) else {
            return refused("that listener is gone");
        };
        let Some(incoming) = l.grants.get(grant).filter(|_| !l.queue().is_queued(grant)) else {
            return refused("that connection is gone");
        };
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        let Some(own) = self.own_region(id).filter(|_| a.sockets < self.config.max_sockets) else {
            return refused("its region is not mapped, or has as many sockets as it may");
        };
        let is_first =
            |half: &Half| half.flags.fetch_or(ACCEPTED, Ordering::AcqRel) & (ACCEPTED | RELEASED) == 0;
        if !self.acceptors_half(&incoming).is_some_and(is_first) {
            return refused("another process has that connection");
        }
        let (origin, record) = incoming;
        let AcceptRecord { region, slot, side, local, peer } = record;
        let left = Left { region, slot, side, home: 0, sock: 0 };
        self.keep_slot(&left);
        self.note_accepted(&incoming);
        let held = self.hold_unused(left, [local, peer]);
        let carried = held.map(|trust| (trust, self.carry_unused(trust, own, id)));
        match carried {
            Some((_, Some((_, slot)))) => {
                Answer::plain(Reply::Moved { slot, local, peer, shut_read: false, shut_write: false })
            }
            other => {
                if let Some((trust, _)) = other {
                    self.trusts.remove(trust);
                }
                self.reset_unaccepted((origin, record));
                refused("there is no room to carry it on")
            }
        }
    }

    /// Answers `Request::QueueWaker`: the eventfd that wakes a sleeper at a queue.
    pub fn queue_waker(&mut self, id: u32, queue: u32, application: u32, context: u32) -> Answer {
        let Some(is_same_user) = self.wake_at_queue(id, queue, application, context) else {
            return Answer::refused(Errno::NOENT, "no such thread sleeps there");
        };
        let known = self.listeners.all.get(&queue).and_then(|l| l.wakers.get(&(application, context)));
        if let Some(known) = known {
            return Answer::Reply(Reply::Done, vec![known.clone()]);
        }
        let Some(charge) = self.charge(id, 1) else { return Answer::out_of_descriptors() };
        let Some(new) = self.new_waker(application, queue, context, is_same_user) else {
            return Answer::out_of_descriptors();
        };
        if let Some(l) = self.listeners.all.get_mut(&queue) {
            l.wakers.insert((application, context), new.clone());
            l.charges.push(charge);
        }
        Answer::Reply(Reply::Done, vec![new])
    }

    /// Wakes the sleeper at an accept queue. `None`: there is none; else whether it is of the same user as process `id`.
    pub fn wake_at_queue(&self, id: u32, queue: u32, application: u32, context: u32) -> Option<bool> {
        let (l, a) = (self.listeners.all.get(&queue)?, self.applications.get(&id)?);
        let target = self.applications.get(&application).filter(|t| self.accepts(t.id, l))?;
        let family = target.family();
        let known = self.families.get(&family)?.context(context)?;
        if !a.queues.contains(&queue) || known.application != application {
            return None;
        }
        self.wake(family, context);
        Some(a.uid == target.uid)
    }

    /// A listener has ended: the processes that have its queue forget it.
    pub fn forget_queue(&mut self, id: u32) {
        let told = self.applications.values_mut().filter_map(|a| a.queues.remove(&id).then_some(a.id));
        let told: Vec<u32> = told.collect();
        for application in told {
            self.push(application, Push::Revoked { region: id });
        }
    }

    /// Processes that own regions of connections that wait in queues, or for room there. Perhaps no process of their family lives: another
    /// holder of the socket may accept them.
    pub fn owners_of_unaccepted(&self) -> Vec<u32> {
        let queued = self.listeners.all.values().flat_map(|l| {
            let of_queue = l.grants.iter().filter(|(grant, _)| !l.queue().is_idle(*grant));
            let of_queue = of_queue.filter_map(|(grant, _)| l.grants.get(grant));
            let of_queue = of_queue.filter(|incoming| self.is_unaccepted(incoming));
            of_queue.chain(l.grants.without_room().copied()).map(|(_, record)| record.region)
        });
        let owner = |region: u32| {
            let of_pair = || Some(self.pairs.get(region)?.parties[Side::One.index()]);
            self.regions.get(&region).map(|r| r.owner).or_else(of_pair)
        };
        queued.filter_map(owner).collect()
    }
}
