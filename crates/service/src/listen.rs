//! Listening, and how a connection gets into an accept queue.

pub(crate) mod defer_accept;
pub(crate) mod direct;
pub(crate) mod handover;
pub(crate) mod table;

use crate::listen::table::{Incoming, ListenCall, Listener, Origin, Queue, QueueKey};
use crate::local::shown::Shown;
use crate::memory::Memory;
use crate::memory::region::{AppRegion, Stage, Use};
use crate::memory::slot_key::SlotKey;
use crate::registry::application::Application;
use crate::registry::{Answer, Registry};
use control::{AcceptRecord, KernelReason, Push, RECORD_LEN, Reply, Unlisten};
use queue::pages::class_of;
use queue::stream::{Sender, watch, watcher};
use queue::{Ring, Violation};
use rustix::io::Errno;
use shm::sock_flags::NONBLOCK;
use shm::sock_state::AWAITED;
use shm::{Half, Region, SLOW_CONTEXT, Side, SockBlock, TRUST, half_flags};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The burden (see [`Registry::burden`]) of an empty queue on which its process sleeps.
const IDLE: (bool, usize, bool) = (false, 0, false);
/// Most processes named in `Reply::Look`: as many as a family can have.
const LOOKED_AT: usize = 63;

impl Registry {
    /// Answers `Request::Listen`: a socket listens.
    pub fn listen(&mut self, id: u32, call: ListenCall, shown: Option<&Shown>) -> Answer {
        let Some(uid) = self.applications.get(&id).map(|a| a.uid) else { return Answer::Silent };
        let Some(shown) = shown else {
            return Answer::Offence("it listens by something that is no TCP socket".to_owned());
        };
        if !(shown.listens && shown.watched) {
            return Answer::kernel(KernelReason::NotListening);
        }
        let (cookie, inode) = (shown.cookie, shown.inode);
        if let Some(answer) = self.listen_again(id, call, cookie) {
            return answer;
        }
        if let Some(refusal) = self.refuses_listen(id, shown) {
            return refusal;
        }
        if let Some(listener) = self.listeners.of_socket(cookie) {
            return self.join(id, listener, call, inode);
        }
        let ListenCall { sock, backlog } = call;
        let listener = Listener {
            cookie,
            local: shown.local,
            v6_only: shown.v6_only,
            reuse_port: shown.reuse_port,
            namespace: shown.namespace,
            uid,
            options: slowpath::FlowOptions::default(),
            queues: Vec::new(),
            nonblocking: false,
            since: self.now,
            kept: Vec::new(),
        };
        self.clear_place(&listener);
        // Within one namespace the kernel has checked for conflicts.
        let is_elsewhere = |other: &Listener| other.namespace != listener.namespace;
        let is_served = self.tcp.owns(listener.local.ip()) || listener.local.ip().is_unspecified();
        if is_served && self.listeners.overlapping(&listener).any(|(_, other)| is_elsewhere(other)) {
            return Answer::refused(Errno::ADDRINUSE, "a socket of another network namespace listens there");
        }
        let key = match self.new_queue(id, backlog, Some(sock)) {
            Ok(key) => key,
            Err(reason) => return Answer::kernel(reason),
        };
        let listener = self.listeners.add(listener);
        self.attach_queue(listener, key);
        if let Err(error) = self.tcp_listen(listener, backlog) {
            self.close_queue(key, false);
            self.end_listener(listener);
            return Answer::refused(Errno::from_raw_os_error(i32::from(error.errno())), &error.to_string());
        }
        // A listener that shared the port may have had no queue, and so no room.
        self.tcp_room(listener);
        self.listens_here(id, inode);
        Answer::plain(Reply::Listening { slot: key.slot })
    }

    /// The kernel lets a socket listen at the place of `new`. Ends listeners there that were closed, or listen no longer, unnoticed by the
    /// service.
    fn clear_place(&mut self, new: &Listener) {
        self.hear_ended_listeners();
        let before: Vec<(u32, u64)> = self.listeners.overlapping(new).map(|(id, l)| (id, l.cookie)).collect();
        let cookies: Vec<u64> = before.iter().map(|(_, cookie)| *cookie).collect();
        let forsaken = self.listeners.alive.forsaken(&cookies);
        let over = before.into_iter().filter(|(_, cookie)| forsaken.contains(cookie));
        over.for_each(|(id, _)| self.stop_queues(id));
    }

    /// Stops the queues of sockets that no longer listen.
    pub fn hear_ended_listeners(&mut self) {
        for cookie in self.listeners.alive.ended() {
            if let Some(id) = self.listeners.of_socket(cookie) {
                self.stop_queues(id);
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

    /// Gives another process a queue at a known socket, and the connections there that no process accepts.
    fn join(&mut self, id: u32, listener: u32, call: ListenCall, inode: u64) -> Answer {
        if self.listeners.queues.values().any(|q| (q.listener, q.application) == (listener, id)) {
            return Answer::kernel(KernelReason::AcceptsAlready);
        }
        let key = match self.new_queue(id, call.backlog, Some(call.sock)) {
            Ok(key) => key,
            Err(reason) => return Answer::kernel(reason),
        };
        let nonblocking = self.is_nonblocking(listener);
        self.attach_queue(listener, key);
        self.listens_here(id, inode);
        self.succeed(listener, key);
        self.tcp_room(listener);
        Answer::plain(Reply::Joined { slot: key.slot, nonblocking })
    }

    /// `O_NONBLOCK` of a listening socket. Processes that share no memory learn it from each other only through the service.
    fn is_nonblocking(&self, listener: u32) -> bool {
        let Some(listener) = self.listeners.all.get(&listener) else { return false };
        let first = listener.queues.iter().find(|key| self.reader_of(**key).is_some());
        first.map_or(listener.nonblocking, |key| self.reads_nonblocking(*key))
    }

    /// `O_NONBLOCK` as the reader of an accept queue has set it, or had when it closed. Hostile.
    fn reads_nonblocking(&self, key: QueueKey) -> bool {
        self.block_of(key).is_some_and(|block| block.flags.load(Ordering::Relaxed) & NONBLOCK != 0)
    }

    /// The socket block that listens through accept queue `key`, or did. Hostile.
    fn block_of(&self, key: QueueKey) -> Option<&SockBlock> {
        let sock = self.listeners.queues.get(&key)?.sock?;
        self.regions.get(&key.region)?.memory.region().sock(sock)
    }

    /// The region of an accept queue and the index of the socket block that reads it; `None`: none reads it now. The block is hostile.
    pub fn reader_of(&self, key: QueueKey) -> Option<(Arc<Memory>, u32)> {
        let block = self.block_of(key)?;
        let place = SlotKey::in_block(block);
        let (memory, sock) = (&self.regions.get(&key.region)?.memory, self.listeners.queues.get(&key)?.sock?);
        (place == key).then(|| (memory.clone(), sock))
    }

    /// `listen` for a socket block with a queue. The same socket gets the new backlog; for another socket the old queue is closed.
    fn listen_again(&mut self, id: u32, call: ListenCall, cookie: u64) -> Option<Answer> {
        let queues = self.listeners.queues.iter();
        let mine = |q: &Queue| q.application == id && q.sock == Some(call.sock);
        let key = queues.filter(|(_, q)| mine(q)).map(|(k, _)| *k).next()?;
        let queue = self.listeners.queues.get_mut(&key)?;
        let listener = self.listeners.all.get(&queue.listener).filter(|listener| listener.cookie == cookie);
        let Some(listener) = listener else {
            self.close_queue(key, false);
            return None;
        };
        queue.backlog = call.backlog;
        let port = listener.local.port();
        self.revoke_lines(port);
        self.admit_queue(key);
        Some(Answer::plain(Reply::Listening { slot: key.slot }))
    }

    /// Answers `Request::ShareListener`: a forked child gets a queue of its own at its parent's listener.
    pub fn share(&mut self, id: u32, of: QueueKey) -> Answer {
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        let Some(queue) = self.listeners.queues.get(&of) else {
            return Answer::refused(Errno::NOENT, "that listener is gone");
        };
        if !a.descends_from(queue.application) {
            return Answer::Offence("it asked for a share of a stranger's listener".to_owned());
        }
        let (listener, backlog) = (queue.listener, queue.backlog);
        match self.new_queue(id, backlog, None) {
            Ok(key) => {
                self.attach_queue(listener, key);
                Answer::plain(Reply::Listening { slot: key.slot })
            }
            Err(reason) => Answer::kernel(reason),
        }
    }

    /// Answers `Request::Unlisten`: closes one queue, or for `Stopped` all queues of the socket.
    pub fn unlisten(&mut self, id: u32, key: QueueKey, because: Unlisten) -> Answer {
        let Some(a) = self.applications.get(&id) else { return Answer::Silent };
        let is_its = self.regions.get(&key.region).is_none_or(|r| a.descends_from(r.owner));
        if !is_its {
            return Answer::Offence("it ended a stranger's listener".to_owned());
        }
        if because == Unlisten::Closed && self.has_other_holders(key, 1 << a.holder) {
            return Answer::plain(Reply::Listening { slot: key.slot });
        }
        let listener = self.listeners.queues.get(&key).map(|queue| queue.listener);
        if let Some(listener) = listener.filter(|_| because == Unlisten::Stopped) {
            self.stop_queues(listener);
        }
        self.close_queue(key, false);
        if because == Unlisten::GivenUp
            && let Some(listener) = listener.filter(|id| self.listeners.is_deserted(*id))
        {
            self.end_listener(listener);
        }
        Answer::plain(Reply::Done)
    }

    /// Ends a listener: nothing more comes into its queues, and connections in them are reset. The processes close the queues themselves.
    fn stop_queues(&mut self, listener: u32) {
        let queues = self.listeners.all.get(&listener).map(|l| l.queues.clone()).unwrap_or_default();
        self.end_listener(listener);
        for key in queues {
            self.end_lines(key);
            let slot = self.regions.get(&key.region).and_then(|r| r.memory.region().slot(key.slot));
            let Some(queue) = self.listeners.queues.get_mut(&key) else { continue };
            let unread = queue.take_unread(slot.map(|slot| &slot.half[1]));
            let waiting = mem::take(&mut queue.waiting);
            unread.into_iter().chain(waiting).for_each(|incoming| self.reset_unaccepted(incoming));
        }
    }

    /// True when other processes hold the listening socket of queue `key` (beside the holder of `bit`) and none of them has a queue of its
    /// own: children that have not accepted yet. They will accept from this queue.
    fn has_other_holders(&self, key: QueueKey, bit: u64) -> bool {
        let Some(queue) = self.listeners.queues.get(&key) else { return false };
        let holders = self.block_of(key).map_or(0, |block| block.holders.load(Ordering::Acquire));
        holders & !(bit | TRUST) != 0 && self.listeners.others(queue.listener, queue.application).is_empty()
    }

    /// Process numbers of those that may accept from queue `key`, if no library call of theirs has ever waited there. One with an io_uring
    /// may accept through that, and would see the kernel's connections only. The connecting process looks at their descriptors, because
    /// this service has no right to.
    pub fn unseen_acceptors(&self, key: QueueKey) -> Option<Vec<i32>> {
        let id = self.listeners.queues.get(&key)?.listener;
        let listener = self.listeners.all.get(&id)?;
        let state =
            |key: &QueueKey| self.block_of(*key).map_or(0, |block| block.state.load(Ordering::Relaxed));
        if listener.queues.iter().any(|key| state(key) & AWAITED != 0) {
            return None;
        }
        let owners = || listener.queues.iter().filter_map(|key| self.listeners.queues.get(key));
        let may_accept = |a: &&Application| owners().any(|queue| a.descends_from(queue.application));
        let acceptors = self.applications.values().filter(may_accept).map(|a| a.pid);
        Some(acceptors.take(LOOKED_AT).collect())
    }

    /// Takes a slot in the application's own region for a new accept queue.
    fn new_queue(&mut self, id: u32, backlog: u32, sock: Option<u32>) -> Result<QueueKey, KernelReason> {
        let a = self.applications.get_mut(&id).ok_or(KernelReason::NotMapped)?;
        let region = a.region.ok_or(KernelReason::NotMapped)?;
        if a.sockets >= self.config.max_sockets {
            return Err(KernelReason::TooManySockets);
        }
        let r = self.regions.get_mut(&region).filter(|r| r.sealed).ok_or(KernelReason::NotMapped)?;
        let slot = r.slots.take(Use::Queue).map_err(|_| KernelReason::RegionFull)?;
        a.sockets += 1;
        if let Some(lines) = r.memory.region().slot(slot) {
            lines.half.iter().for_each(shm::Half::clear);
            watch(&lines.half[0], Some(SLOW_CONTEXT));
        }
        let queue = Queue {
            listener: 0,
            application: id,
            uid: a.uid,
            sock,
            backlog,
            sender: Sender::default(),
            queued: VecDeque::new(),
            waiting: VecDeque::new(),
            lines: Vec::new(),
        };
        let key = QueueKey { region, slot };
        self.listeners.queues.insert(key, queue);
        Ok(key)
    }

    fn attach_queue(&mut self, listener: u32, key: QueueKey) {
        if let Some(queue) = self.listeners.queues.get_mut(&key) {
            queue.listener = listener;
        }
        if let Some(l) = self.listeners.all.get_mut(&listener) {
            l.queues.push(key);
            let port = l.local.port();
            self.revoke_lines(port);
        }
    }

    /// The queue for the next connection: one on which its process sleeps. Else an ancestor's queue, which all processes that share the
    /// listener look at, so that, as on Linux, the first to come takes the connection. Else a queue that its process watches, the shortest.
    pub fn choose_queue(&mut self, candidates: &[QueueKey]) -> Option<QueueKey> {
        let turn = self.listeners.turn();
        let n = candidates.len();
        let in_turn = (0..n).map(|i| candidates[(i + turn) % n]);
        let burdens = in_turn.map(|key| (self.burden(key), key));
        let (burden, best) = burdens.min_by_key(|(burden, _)| *burden)?;
        if burden == IDLE { Some(best) } else { self.shared_queue(candidates, best).or(Some(best)) }
    }

    /// Another one of `candidates` that the process of `own` accepts from, too: its ancestor's queue.
    pub fn shared_queue(&self, candidates: &[QueueKey], own: QueueKey) -> Option<QueueKey> {
        candidates.iter().find(|key| key.region != own.region && self.is_shared(**key, own)).copied()
    }

    /// True when the process of queue `own` also accepts from `queue`, its ancestor's.
    pub fn is_shared(&self, queue: QueueKey, own: QueueKey) -> bool {
        let [shared, own] = [queue, own].map(|key| self.listeners.queues.get(&key));
        let (Some(shared), Some(own)) = (shared, own) else { return false };
        let is_descendant =
            || self.applications.get(&own.application).is_some_and(|a| a.descends_from(shared.application));
        shared.sock.is_some() && shared.listener == own.listener && is_descendant()
    }

    /// True when the queue is empty and its process sleeps on it.
    pub fn is_idle(&self, key: QueueKey) -> bool {
        self.burden(key) == IDLE
    }

    /// Order for choosing a queue, least first: (its own process does not watch it, unread connections, that process is awake). Children
    /// that watch a parent's queue do not count: they have queues of their own, in memory that ends with them.
    fn burden(&self, key: QueueKey) -> (bool, usize, bool) {
        let (Some(queue), Some(r)) = (self.listeners.queues.get(&key), self.regions.get(&key.region)) else {
            return (true, usize::MAX, true);
        };
        let region = r.memory.region();
        let Some(half) = region.slot(key.slot).map(|s| &s.half) else { return (true, usize::MAX, true) };
        let read = half[1].rx_tail.load(Ordering::Relaxed).min(queue.sender.head);
        let unread = (queue.sender.head - read) as usize / RECORD_LEN + queue.waiting.len();
        let contexts = self.family_of(queue.application).and_then(|f| self.families.get(&f));
        let is_its = |c: &u32| {
            let context = contexts.and_then(|family| family.contexts.get(c));
            context.is_some_and(|context| context.application == queue.application)
        };
        let context = watcher(&half[1]).filter(is_its);
        let block = context.and_then(|c| region.context(Side::One, c));
        let sleeps = block.is_some_and(|b| b.sleeping.load(Ordering::Relaxed) != 0);
        (context.is_none(), unread, !sleeps)
    }

    /// Moves waiting connections into the accept queues of one region, as far as there is room.
    pub fn admit_waiting(&mut self, region: u32) {
        let keys = self.listeners.queues.iter().filter(|(k, q)| k.region == region && !q.waiting.is_empty());
        let keys: Vec<QueueKey> = keys.map(|(k, _)| *k).collect();
        for key in keys {
            self.forget_given_up(key);
            self.admit_queue(key);
        }
    }

    /// Drops waiting connections that their connectors have closed.
    fn forget_given_up(&mut self, key: QueueKey) {
        let Some(queue) = self.listeners.queues.get_mut(&key) else { return };
        let waiting = mem::take(&mut queue.waiting);
        let kept = self.without_given_up(waiting);
        if let Some(queue) = self.listeners.queues.get_mut(&key) {
            queue.waiting = kept;
        }
    }

    /// Resets the connections that were given up, and returns the others.
    pub fn without_given_up(&mut self, waiting: VecDeque<Incoming>) -> VecDeque<Incoming> {
        let is_gone = |(origin, _): &Incoming| self.is_given_up(*origin);
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(is_gone);
        gone.into_iter().for_each(|incoming| self.reset_unaccepted(incoming));
        kept
    }

    /// Takes a new connection for queue `key`.
    pub fn arrive(&mut self, key: QueueKey, incoming: Incoming) {
        let Some(queue) = self.listeners.queues.get_mut(&key) else { return };
        queue.waiting.push_back(incoming);
        let application = queue.application;
        self.accelerated(application, |p| &mut p.accepted, 1);
        self.admit_queue(key);
    }

    /// Notes which connections the application has accepted, and moves waiting ones into the queue.
    pub fn admit_queue(&mut self, key: QueueKey) {
        let elsewhere = self.unread_in_lines(key);
        let mut accepted = Vec::new();
        let (Some(queue), Some(r)) = (self.listeners.queues.get_mut(&key), self.regions.get_mut(&key.region))
        else {
            return;
        };
        let (application, listener) = (queue.application, queue.listener);
        let (memory, mut admitted) = (r.memory.clone(), Admitted::default());
        let Some([own, peer]) = memory.region().slot(key.slot).map(|s| &s.half) else { return };
        let done = fill(queue, elsewhere, own, peer, &memory, &mut r.pool, &mut admitted);
        let Admitted { established, rings } = admitted;
        while queue.queued.front().is_some_and(|(end, _)| *end <= queue.sender.tail) {
            accepted.extend(queue.queued.pop_front().map(|(_, (origin, _))| origin));
        }
        rings.into_iter().for_each(|ring| memory.give_back(&mut r.pool, ring));
        accepted.into_iter().for_each(|origin| self.set_stage(origin, Stage::Accepted));
        established.iter().for_each(|origin| self.establish(*origin, 1));
        if !established.is_empty() {
            if let Some(family) = self.family_of(application) {
                self.ring(memory.region(), Side::One, family, key.slot);
            }
            self.look_after(key);
        }
        established.into_iter().for_each(|origin| self.establish(origin, 0));
        self.tcp_room(listener);
        match done {
            Ok(Filled::All) => {}
            Ok(Filled::NoMemory) => self.grow(key.region),
            Err(violation) => self.doom(application, format!("in its accept queue: {violation}")),
        }
    }

    /// Asks all processes that use an application region to populate more of it, once at a time. The owner alone might not answer: it may
    /// be gone, or wait for children that serve its connections.
    pub fn grow(&mut self, region: u32) {
        let Some(r) = self.regions.get_mut(&region).filter(|r| r.growing.is_none()) else { return };
        let present = r.memory.area.lendable();
        let bytes = control::grown(present, r.memory.region().layout().params.data_len);
        if bytes <= present {
            return;
        }
        r.growing = Some(bytes);
        let owner = r.owner;
        let users = self.applications.values().filter(|a| a.descends_from(owner)).map(|a| a.id);
        for user in users.collect::<Vec<_>>() {
            self.push(user, None, Push::Grow { region, bytes }, &[]);
        }
    }

    /// Asks a new process to populate regions of its ancestors that were asked in vain: they may be waiting for this process.
    pub fn ask_to_grow(&mut self, id: u32) {
        let Some(a) = self.applications.get(&id) else { return };
        let wanted = |r: &AppRegion| r.growing.filter(|_| r.owner != id && a.descends_from(r.owner));
        let all = self.regions.iter().filter_map(|(region, r)| Some((*region, wanted(r)?)));
        for (region, bytes) in all.collect::<Vec<_>>() {
            self.push(id, None, Push::Grow { region, bytes }, &[]);
        }
    }

    /// Closes an accept queue. Connections not yet accepted go to another queue of the socket, because on Linux all its processes share one
    /// queue. Without one they are kept for the next process that shows the socket. Those of an `offender` are reset.
    pub fn close_queue(&mut self, key: QueueKey, offender: bool) {
        self.end_lines(key);
        self.leave_deferred(key, false, offender);
        let nonblocking = self.reads_nonblocking(key);
        let Some(mut queue) = self.listeners.remove_queue(key) else { return };
        let slot = self.regions.get(&key.region).and_then(|r| r.memory.region().slot(key.slot));
        let unaccepted = queue.take_unread(slot.map(|slot| &slot.half[1]));
        if let Some(r) = self.regions.get_mut(&key.region) {
            // No process reads these rings any more, read or not.
            let rings = [queue.sender.ring.take(), queue.sender.old.take()];
            rings.into_iter().flatten().for_each(|ring| r.memory.give_back(&mut r.pool, ring));
            if let Some(slot) = r.memory.region().slot(key.slot) {
                slot.half[0].flags.fetch_or(half_flags::FIN | half_flags::RELEASED, Ordering::SeqCst);
            }
            r.slots.release(key.slot);
        }
        if let Some(a) = self.applications.get_mut(&queue.application) {
            a.sockets = a.sockets.saturating_sub(1);
        }
        let listener = queue.listener;
        self.leave_unaccepted(queue, unaccepted, offender);
        self.desert(listener, nonblocking);
    }
}

/// Why filling a queue stopped.
enum Filled {
    All,
    NoMemory,
}

/// What filling a queue has done.
#[derive(Default)]
struct Admitted {
    /// Connections with a record in the stream now.
    established: Vec<Origin>,
    /// Rings that the reader needs no more.
    rings: Vec<Ring>,
}

/// Moves waiting records into the queue's stream, as far as backlog and memory allow. `elsewhere` records wait in lines to the queue.
fn fill(
    queue: &mut Queue,
    elsewhere: u64,
    own: &Half,
    peer: &Half,
    memory: &Arc<Memory>,
    pool: &mut queue::pages::Pool,
    Admitted { established, rings }: &mut Admitted,
) -> Result<Filled, Violation> {
    let sender = &mut queue.sender;
    rings.extend(sender.update(peer)?);
    let mut announced = false;
    while let Some((origin, record)) = queue.waiting.front().copied() {
        let unread = (sender.head - sender.tail) / RECORD_LEN as u64;
        // Linux admits one connection more than the backlog.
        let full = unread + elsewhere > u64::from(queue.backlog);
        let roomy = !full && (sender.space() >= RECORD_LEN || lend(sender, own, memory, pool, unread, rings));
        if roomy {
            put(sender, own, memory.region(), &record);
            queue.queued.push_back((sender.head, (origin, record)));
            established.push(origin);
            queue.waiting.pop_front();
            announced = false;
        } else if announced {
            return Ok(if full { Filled::All } else { Filled::NoMemory });
        } else {
            // Pairs with the fence in `consumed`: the reader sees the flag, or this thread sees what it has read.
            own.flags.fetch_or(half_flags::WANT_SPACE, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            rings.extend(sender.update(peer)?);
            announced = true;
        }
    }
    own.flags.fetch_and(!half_flags::WANT_SPACE, Ordering::SeqCst);
    Ok(Filled::All)
}

/// Lends the stream a ring with room for twice the unread records.
fn lend(
    sender: &mut Sender,
    own: &Half,
    memory: &Memory,
    pool: &mut queue::pages::Pool,
    unread: u64,
    rings: &mut Vec<Ring>,
) -> bool {
    if !sender.may_lend() {
        return false;
    }
    let Some(ring) = memory.lend(pool, class_of((unread as usize + 1) * 2 * RECORD_LEN)) else {
        return false;
    };
    rings.extend(sender.lend(own, ring));
    true
}

fn put(sender: &mut Sender, own: &Half, region: &Region, record: &AcceptRecord) {
    let Some(ring) = sender.ring else { return };
    let bytes = record.to_bytes();
    let [(first, n), (second, m)] = ring.spans(sender.head, RECORD_LEN);
    region.write(Side::Zero, first, &bytes[..n]);
    region.write(Side::Zero, second, &bytes[n..n + m]);
    sender.publish(own, RECORD_LEN);
}
