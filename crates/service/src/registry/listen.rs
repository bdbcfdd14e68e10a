//! Listening, and how a connection gets into an accept queue. A listening socket has one queue, which all processes that hold the socket
//! map (`queue::accept`). What a process does there by itself the service finds out when it looks; it never waits for it.

pub(crate) mod direct;
pub(crate) mod grants;
pub(crate) mod holders;
pub(crate) mod origin;
pub(crate) mod table;
pub(crate) mod unaccepted;

use crate::registry::application::Application;
use crate::registry::handover::trusts::LOOK_MOST;
use crate::registry::listen::grants::Grants;
use crate::registry::listen::origin::Incoming;
use crate::registry::listen::table::{Holders, Home, Listener};
use crate::registry::local::shown::Shown;
use crate::registry::{Answer, Registry, Watch};
use control::{Itself, KernelReason, Reply, Unlisten};
use rustix::io::Errno;
use shm::SLEEPERS;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Shortest time between two calls of all processes that may accept from a listener.
const ROUSE_PAUSE: Duration = Duration::from_millis(10);
/// Descriptors of an accept queue: the memory of the grants, and that of the rest.
const QUEUE: usize = 2;
/// Most processes named in `Reply::Look`: as many as a family can have.
const LOOKED_AT: usize = 63;

impl Registry {
    /// Answers `Request::Listen`: a socket listens.
    pub fn listen(&mut self, id: u32, backlog: u32, nonblocking: bool, shown: Option<&Shown>) -> Answer {
        let Some(who) = self.applications.get(&id).map(Application::payer) else { return Answer::Silent };
        let Some(shown) = shown else {
            return Answer::Offence("it listens by something that is no TCP socket".to_owned());
        };
        if !shown.listens {
            return Answer::kernel(KernelReason::NotListening);
        }
        let known = self.listeners.of_socket(shown.cookie);
        let is_holder = |l: &Listener| l.holders.present().any(|holder| holder == id);
        let is_again = known.and_then(|listener| self.listeners.all.get(&listener)).is_some_and(is_holder);
        if !is_again && let Some(refusal) = self.refuses_listen(id, shown) {
            return refusal;
        }
        let home = match self.new_home(id) {
            Ok(home) => home,
            Err(reason) => return Answer::kernel(reason),
        };
        if let Some(listener) = known {
            return self.join(id, listener, backlog, shown.inode);
        }
        let Some(charge) = self.charge(id, QUEUE) else {
            return Answer::kernel(KernelReason::ServiceDescriptors);
        };
        let Some(grants) = Grants::new(backlog, nonblocking) else {
            return Answer::kernel(KernelReason::NoSharedMemory);
        };
        let mut holders = Holders::default();
        holders.join(id);
        let listener = Listener {
            cookie: shown.cookie,
            local: shown.local,
            v6_only: shown.v6_only,
            reuse_port: shown.reuse_port,
            reuse_address: shown.reuse_address,
            namespace: shown.namespace,
            uid: who.uid,
            asked: None,
            options: slowpath::FlowOptions::default(),
            since: self.now,
            holders,
            home,
            grants,
            wakers: HashMap::new(),
            charges: vec![charge],
            roused: self.now,
        };
        self.clear_place(&listener);
        // Within one namespace the kernel has checked for conflicts.
        let is_elsewhere = |other: &Listener| other.namespace != listener.namespace;
        let is_served = self.tcp.owns(listener.local.ip()) || listener.local.ip().is_unspecified();
        if is_served && self.listeners.overlapping(&listener).any(|(_, other)| is_elsewhere(other)) {
            return Answer::refused(Errno::ADDRINUSE, "a socket of another network namespace listens there");
        }
        let (queue, port, cookie) = (self.new_region_id(), listener.local.port(), listener.cookie);
        let charge = || self.descriptors.charge(who, 1, self.ports.held());
        let Ok(set) = self.listeners.alive.place(cookie, who.uid, charge) else {
            return Answer::kernel(KernelReason::ServiceDescriptors);
        };
        self.listeners.add(queue, listener);
        if let Err(error) = self.tcp_listen(queue, backlog) {
            self.end_listener(queue);
            if set.is_some() {
                self.listeners.alive.added(cookie, false);
            }
            return Answer::refused(Errno::from_raw_os_error(i32::from(error.errno())), &error.to_string());
        }
        // A new listener may change which one a connection to this port belongs to.
        self.revoke(port);
        self.count_sockets([id], 1);
        self.tcp_room(queue);
        self.listens_here(id, shown.inode);
        self.tell_queue(id, queue, false).watching(Watch { cookie, is_listener: true }, set)
    }

    /// The socket of `watch` was added to its set, or was not. `answer`: that to the process that has shown it. Returns the answer.
    pub fn watched(&mut self, watch: Watch, is_added: bool, answer: Answer) -> Answer {
        let Watch { cookie, is_listener } = watch;
        let alive = if is_listener { &mut self.listeners.alive } else { &mut self.trusts.alive };
        alive.added(cookie, is_added);
        match is_listener {
            _ if is_added => answer,
            true => {
                self.listeners.of_socket(cookie).into_iter().for_each(|id| drop(self.end_listener(id)));
                Answer::kernel(KernelReason::ServiceDescriptors)
            }
            false => self.unwatched_trust(cookie),
        }
    }

    /// The place for connections of a process that listens.
    fn new_home(&self, id: u32) -> Result<Home, KernelReason> {
        let a = self.applications.get(&id).ok_or(KernelReason::NotMapped)?;
        let region = self.own_region(id).ok_or(KernelReason::NotMapped)?;
        match a.sockets < self.config.max_sockets {
            true => Ok(Home { application: id, region }),
            false => Err(KernelReason::TooManySockets),
        }
    }

    /// The reply to `Listen`, with the queue's memory if the process has not got it.
    fn tell_queue(&mut self, id: u32, queue: u32, is_known: bool) -> Answer {
        let Some(l) = self.listeners.all.get(&queue) else { return Answer::Silent };
        let Some(a) = self.applications.get_mut(&id) else { return Answer::Silent };
        let fds = if a.queues.insert(queue) { l.grants.fds().to_vec() } else { Vec::new() };
        Answer::Reply(Reply::Listening { queue, is_known }, fds)
    }

    /// The kernel lets a socket listen at the place of `new`. Ends listeners there that were closed, or listen no longer, unnoticed by the
    /// service: of very many those at the same address, in turn; a round looks at the others.
    fn clear_place(&mut self, new: &Listener) {
        self.hear_ended_listeners();
        let turn = self.listeners.turn();
        let mut before: Vec<(u32, u64)> =
            self.listeners.overlapping(new).map(|(id, l)| (id, l.cookie)).collect();
        if before.len() > LOOK_MOST.1 {
            let count = before.len();
            before.rotate_left(turn % count);
            let is_elsewhere = |id: &u32| self.listeners.all.get(id).is_none_or(|l| l.local != new.local);
            before.sort_by_key(|(id, _)| is_elsewhere(id));
            before.truncate(LOOK_MOST.1);
            before
                .iter()
                .filter_map(|(id, _)| self.listeners.all.get(id))
                .for_each(|l| self.trusts.hurry(l.uid, self.now, Duration::ZERO));
        }
        let cookies: Vec<u64> = before.iter().map(|(_, cookie)| *cookie).collect();
        let forsaken = self.listeners.alive.forsaken(&cookies);
        let over = before.into_iter().filter(|(_, cookie)| forsaken.contains(cookie));
        over.for_each(|(id, _)| drop(self.end_listener(id)));
    }

    /// Ends each listener where the kernel's socket no longer listens.
    pub fn hear_ended_listeners(&mut self) {
        for cookie in self.listeners.alive.ended() {
            let Some(id) = self.listeners.of_socket(cookie) else { continue };
            if let Some(listener) = self.end_listener(id) {
                self.note_stopped(id, &listener);
            }
        }
    }

    /// Counts a listener. It may have been the kernel's until a program with an io_uring began to wait for it.
    fn listens_here(&mut self, id: u32, inode: u64) {
        if let Some(a) = self.applications.get_mut(&id)
            && let Some(reason) = a.fallen.take(inode)
        {
            a.process.came_back(reason);
        }
        self.accelerated(id, |p| &mut p.listeners, 1);
    }

    /// A process shows a known socket: for the first time, after it has left, or to change the backlog.
    fn join(&mut self, id: u32, queue: u32, backlog: u32, inode: u64) -> Answer {
        let home = self.new_home(id).ok();
        let is_home_alive = self.listeners.all.get(&queue).is_some_and(|l| self.is_alive(l.home.application));
        let Some(l) = self.listeners.all.get_mut(&queue) else { return Answer::Silent };
        let is_new = l.holders.join(id);
        if let Some(home) = home.filter(|_| !is_home_alive) {
            l.home = home;
        }
        l.grants.set_backlog(backlog);
        if is_new {
            self.count_sockets([id], 1);
            self.listens_here(id, inode);
        }
        self.admit(queue);
        self.tell_queue(id, queue, true)
    }

    /// True while the process or a descendant of it by fork lives.
    pub fn is_alive(&self, application: u32) -> bool {
        self.applications.values().any(|a| a.descends_from(application))
    }

    /// Answers `Request::Unlisten`: a process accepts no more, or has stopped the listener for all.
    pub fn unlisten(&mut self, id: u32, queue: u32, because: Unlisten) -> Answer {
        let Some(l) = self.listeners.all.get(&queue) else {
            return if because == Unlisten::Closed {
                self.closed_stopped(queue)
            } else {
                Answer::plain(Reply::Done)
            };
        };
        if !self.accepts(id, l) {
            return match l.holders.has_left(id) {
                true => self.closed_listener(queue),
                false => Answer::Offence("it ended a stranger's listener".to_owned()),
            };
        }
        if because == Unlisten::Stopped {
            self.hear_ended_listeners();
            self.end_listener(queue);
            return Answer::plain(Reply::Done);
        }
        self.leave_queue(id, queue);
        let is_deserted = self.listeners.all.get(&queue).is_some_and(|l| !self.has_acceptors(l));
        if because == Unlisten::GivenUp && is_deserted {
            self.end_listener(queue);
        }
        if because == Unlisten::Closed && is_deserted && self.needs_port(queue) {
            return Answer::plain(Reply::PortNeeded);
        }
        Answer::plain(Reply::Done)
    }

    /// A process says once more that it has closed a listener. If that was the last descriptor the listener ends.
    fn closed_listener(&mut self, queue: u32) -> Answer {
        let cookie = self.listeners.all.get(&queue).filter(|l| !self.has_acceptors(l)).map(|l| l.cookie);
        if cookie.is_some_and(|cookie| self.listeners.alive.forsaken(&[cookie]).contains(&cookie)) {
            self.end_listener(queue);
        }
        Answer::plain(Reply::Done)
    }

    /// Ends a listener, and returns it: nothing more comes into its queue, and connections in it are reset. `None`: there was none.
    pub fn end_listener(&mut self, id: u32) -> Option<Listener> {
        let mut listener = self.listeners.remove(id)?;
        listener.grants.end();
        let unaccepted = self.withdraw_unaccepted(&listener);
        let waiting = listener.grants.take_waiting();
        unaccepted.into_iter().chain(waiting).for_each(|incoming| self.reset_unaccepted(incoming));
        // All of them, also those that take turns.
        for _ in 0..SLEEPERS {
            if !listener.queue().has_sleepers() {
                break;
            }
            self.wake_sleepers(&listener);
        }
        self.uncount_sockets(listener.holders.present());
        self.keep_port(&listener);
        self.tcp_unlisten(id);
        self.revoke(listener.local.port());
        self.forget_queue(id);
        Some(listener)
    }

    /// Wakes the sleepers that the news of one more connection must wake. False: none sleeps.
    pub fn wake_sleepers(&self, listener: &Listener) -> bool {
        let mut is_woken = false;
        listener.queue().wake(|sleeper| {
            let holder = self.applications.get(&sleeper.application).filter(|a| self.accepts(a.id, listener));
            if let Some(a) = holder {
                self.wake(a.family(), u32::from(sleeper.context));
            }
            is_woken |= holder.is_some();
            holder.is_some()
        });
        is_woken
    }

    /// The processes that may accept from a listener, if no library call of theirs has ever waited there. One with an io_uring
    /// may accept through that, and would see the kernel's connections only. The connecting process looks at their descriptors, because
    /// this service has no right to.
    pub fn unseen_acceptors(&self, id: u32) -> Option<Vec<Itself>> {
        let listener = self.listeners.all.get(&id)?;
        if listener.grants.was_awaited() {
            return None;
        }
        Some(self.acceptors(listener).map(|a| a.itself).take(LOOKED_AT).collect())
    }

    /// The listener for the next connection: one where a process sleeps at an empty queue, else that with the shortest queue. Of very many
    /// some are looked at, in turn.
    pub fn choose(&mut self, candidates: &[u32]) -> Option<u32> {
        let (turn, n) = (self.listeners.turn(), candidates.len());
        let in_turn: Vec<u32> = (0..n.min(LOOK_MOST.1)).map(|i| candidates[(i + turn) % n]).collect();
        if n > 1 {
            // A socket that is closed gets nothing where another one listens.
            self.end_forsaken(&in_turn);
        }
        let burden = |id: &u32| {
            let listener = self.listeners.all.get(id).filter(|l| self.has_acceptors(l))?;
            Some(((listener.grants.waiting(), !listener.queue().has_sleepers()), *id))
        };
        let best = in_turn.iter().filter_map(burden).min_by_key(|(burden, _)| *burden).map(|(_, id)| id);
        best.filter(|id| self.has_home(*id))
    }

    /// Takes a new connection for a listener.
    pub fn arrive(&mut self, id: u32, incoming: Incoming) {
        let Some(listener) = self.listeners.all.get_mut(&id) else { return };
        listener.grants.add(incoming);
        let application = listener.home.application;
        self.accelerated(application, |p| &mut p.accepted, 1);
        self.admit(id);
    }

    /// Answers `Request::Accepted`: there may be room in a queue.
    pub fn accepted_one(&mut self, id: u32, queue: u32) -> Answer {
        if self.listeners.all.get(&queue).is_some_and(|l| self.accepts(id, l)) {
            self.admit(queue);
        }
        Answer::Silent
    }

    /// Notes which connections were accepted, drops waiting ones that their connectors have closed, and moves the others into the queue, as
    /// far as there is room.
    pub fn admit(&mut self, id: u32) {
        let Some(listener) = self.listeners.all.get_mut(&id) else { return };
        let (accepted, waiting) = (listener.grants.take_accepted(), listener.grants.take_waiting());
        accepted.iter().for_each(|incoming| self.note_accepted(incoming));
        let (gone, mut waiting): (VecDeque<_>, VecDeque<Incoming>) =
            waiting.into_iter().partition(|(origin, _)| self.is_given_up(*origin));
        gone.into_iter().for_each(|incoming| self.reset_unaccepted(incoming));
        let mut admitted = Vec::new();
        while let Some(incoming) = waiting.front().copied().filter(|_| self.has_room(id)) {
            self.establish(incoming.0, 1);
            if !self.listeners.all.get_mut(&id).is_some_and(|l| l.grants.put(incoming)) {
                break;
            }
            waiting.pop_front();
            admitted.push(incoming.0);
        }
        if let Some(listener) = self.listeners.all.get_mut(&id) {
            listener.grants.wait_on(waiting);
        }
        self.wake_for(id, admitted.len());
        admitted.into_iter().for_each(|origin| self.establish(origin, 0));
        self.tcp_room(id);
    }

    /// Wakes the sleepers for `count` more connections. Where none sleeps they may all be busy; or a hostile process has cleared their marks.
    fn wake_for(&mut self, id: u32, count: usize) {
        let Some(listener) = self.listeners.all.get(&id).filter(|_| count > 0) else { return };
        let woken = (0..count).filter(|_| self.wake_sleepers(listener)).count();
        let is_long_ago = self.now.saturating_duration_since(listener.roused) >= ROUSE_PAUSE;
        if woken == 0 && is_long_ago {
            self.rouse(id);
        }
    }

    /// Wakes all processes that may accept from a listener, whatever its queue says of sleepers.
    fn rouse(&mut self, id: u32) {
        let Some(listener) = self.listeners.all.get(&id) else { return };
        listener.queue().forget_sleepers(|application| !self.accepts(application, listener));
        for a in self.acceptors(listener) {
            let contexts = self.families.get(&a.family()).into_iter().flat_map(|f| f.contexts_of(a.id));
            contexts.for_each(|context| self.wake(a.family(), context));
        }
        let now = self.now;
        self.listeners.all.get_mut(&id).into_iter().for_each(|listener| listener.roused = now);
    }

    /// Wakes the processes that may accept from listeners where connections wait: now and then, because a hostile process may have cleared
    /// the marks of those that sleep.
    pub fn rouse_all(&mut self) {
        let waiting = self.listeners.all.iter().filter(|(_, listener)| listener.queue().has_any());
        waiting.map(|(id, _)| *id).collect::<Vec<_>>().into_iter().for_each(|id| self.rouse(id));
    }

    /// Answers `Request::Nonblocking`: the program has changed `O_NONBLOCK` of the listening socket.
    pub fn set_nonblocking(&mut self, id: u32, queue: u32, on: bool) -> Answer {
        if let Some(listener) = self.listeners.all.get(&queue).filter(|l| self.accepts(id, l)) {
            listener.grants.set_nonblocking(on);
        }
        Answer::plain(Reply::Done)
    }

    /// True when a queue has room for one more connection. If not, the next process that accepts tells the service.
    pub fn has_room(&self, id: u32) -> bool {
        self.listeners.all.get(&id).is_some_and(|listener| listener.grants.has_room())
    }
}
