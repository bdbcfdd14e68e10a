//! Handing unaccepted connections from one process's accept queue to another's. On Linux all processes that have a listening socket share
//! one queue; here each process that accepts has its own, or reads its parent's.
//!
//! A closing queue leaves its connections to other queues of the socket; the last one leaves them with the service, for the next process
//! that shows the socket, as long as any process has it (see `alive`). A process that joins a socket gets the connections that wait at its
//! other queues, and so does a process that sleeps while others accept nothing: they may have passed the socket on, as `inetd` does. A
//! connection stays in its slot, with the bytes received so far, and is relayed from there.

use crate::listen::table::{Incoming, Listener, Origin, Queue, QueueKey};
use crate::memory::region::Stage;
use crate::registry::Registry;
use control::{AcceptRecord, Left};
use cycles::now_ns;
use queue::Violation;
use shm::SEIZED;
use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A connection that one process leaves unaccepted for this time goes to another process that sleeps at the same socket.
const PATIENCE: Duration = Duration::from_millis(20);

/// Most listeners without a queue that are remembered; see [`Listeners::surplus`](crate::listen::table::Listeners::surplus).
const DESERTED_MOST: usize = 1024;
/// A kept connection that no process accepts in this time is reset: perhaps only programs without our library still have the socket.
const KEPT: Duration = Duration::from_secs(5);

fn left_of(record: &AcceptRecord) -> Left {
    let AcceptRecord { region, slot, side, .. } = *record;
    Left { region, slot, side, home: 0, sock: 0 }
}

impl Registry {
    /// Disposes of the connections in a closed queue: those of `unread` records, and those that wait.
    pub fn leave_unaccepted(&mut self, queue: Queue, unread: Vec<Incoming>, offender: bool) {
        let Queue { listener, application, waiting, .. } = queue;
        let heirs = if offender { Vec::new() } else { self.listeners.others(listener, application) };
        let is_last = !offender && self.listeners.is_deserted(listener);
        for incoming in unread {
            let is_kept = is_last && self.keep(listener, incoming);
            if !is_kept && !self.bequeath(incoming, &heirs) {
                self.reset_unaccepted(incoming);
            }
        }
        for incoming in waiting {
            if !self.bequeath(incoming, &heirs) {
                self.reset_unaccepted(incoming);
            }
        }
    }

    /// Keeps a connection for the next process that accepts from that listener. False: it cannot be kept.
    fn keep(&mut self, listener: u32, (origin, record): Incoming) -> bool {
        let Some(trust) = self.hold_unused(left_of(&record), [record.local, record.peer]) else {
            return false;
        };
        self.set_stage(origin, Stage::Accepted);
        if let Some(listener) = self.listeners.all.get_mut(&listener) {
            listener.kept.push((trust, AcceptRecord { time: now_ns(), ..record }));
        }
        true
    }

    /// Gives an unaccepted connection to one of the queues `heirs`. False: there is none, or it cannot take the connection.
    pub fn bequeath(&mut self, (origin, record): Incoming, heirs: &[QueueKey]) -> bool {
        let Some(key) = self.choose_queue(heirs) else { return false };
        // A connection for which the backlog had no room is established all the same, this once.
        [1, 0].into_iter().for_each(|end| self.establish(origin, end));
        let Some(trust) = self.hold_unused(left_of(&record), [record.local, record.peer]) else {
            return false;
        };
        let is_delivered = self.deliver(trust, &record, key);
        if is_delivered {
            self.set_stage(origin, Stage::Accepted);
        } else {
            self.trusts.remove(trust);
        }
        is_delivered
    }

    /// Puts a held connection into a queue, relayed from its slot. False: there is no room for it.
    fn deliver(&mut self, trust: u64, record: &AcceptRecord, key: QueueKey) -> bool {
        let heir = self.listeners.queues.get(&key).map(|queue| queue.application);
        let has_room =
            |id: &u32| self.applications.get(id).is_some_and(|a| a.sockets < self.config.max_sockets);
        let carried = heir.filter(has_room).and_then(|heir| self.carry_unused(trust, key.region, heir));
        let Some((relay, slot)) = carried else { return false };
        // The time for which it waits there begins now.
        let AcceptRecord { local, peer, .. } = *record;
        let record = AcceptRecord { region: key.region, slot, side: 1, local, peer, time: now_ns(), line: 0 };
        if let Some(queue) = self.listeners.queues.get_mut(&key) {
            queue.waiting.push_back((Origin::Relay(relay), record));
        }
        self.admit_queue(key);
        true
    }

    /// Called when a queue of a listener was closed: if it was the last, remembers the listener without a queue.
    pub fn desert(&mut self, id: u32, nonblocking: bool) {
        let Some(listener) = self.listeners.all.get_mut(&id).filter(|l| l.queues.is_empty()) else { return };
        (listener.nonblocking, listener.since) = (nonblocking, self.now);
        if let Some(surplus) = self.listeners.surplus(DESERTED_MOST) {
            self.end_listener(surplus);
        }
        self.tcp_room(id);
        self.trusts.hurry();
        self.trusts.soon = true;
    }

    /// Resets the connections that were kept for too long.
    pub fn forget_kept(&mut self) {
        let old = now_ns().saturating_sub(KEPT.as_nanos() as u64);
        let mut over = Vec::new();
        for listener in self.listeners.all.values_mut() {
            over.extend(listener.kept.extract_if(.., |(_, record)| record.time < old));
        }
        over.into_iter().for_each(|(trust, _)| self.end_trust(trust, true));
    }

    /// Ends the listeners without a queue that `which` selects, if no process has their socket open. True: some of them remain.
    pub fn forget_deserted(&mut self, which: impl Fn(&Listener) -> bool) -> bool {
        let all = &self.listeners.all;
        let deserted = self.listeners.deserted().filter(|(id, _)| all.get(id).is_some_and(&which));
        let deserted: Vec<(u32, u64)> = deserted.collect();
        let cookies: Vec<u64> = deserted.iter().map(|(_, cookie)| *cookie).collect();
        let forsaken = self.listeners.alive.forsaken(&cookies);
        let over = deserted.iter().filter(|(_, cookie)| forsaken.contains(cookie));
        over.for_each(|(id, _)| self.end_listener(*id));
        forsaken.len() < deserted.len()
    }

    /// Removes a listener, and resets the connections kept for it.
    pub fn end_listener(&mut self, id: u32) {
        let Some(listener) = self.listeners.remove(id) else { return };
        listener.kept.into_iter().for_each(|(trust, _)| self.end_trust(trust, true));
        self.tcp_unlisten(id);
    }

    /// The owner of queue `key` has joined a listener: gives it the connections that wait there.
    pub fn succeed(&mut self, listener: u32, key: QueueKey) {
        let kept = self.listeners.all.get_mut(&listener).map(|l| mem::take(&mut l.kept)).unwrap_or_default();
        for (trust, record) in kept {
            if !self.deliver(trust, &record, key) {
                self.end_trust(trust, true);
            }
        }
        for other in self.strangers(key) {
            self.hand_on(other, &[key]);
            self.look_after(other);
        }
    }

    /// Queues of the same listener that share no reader with queue `key`: neither owner reads the other's queue.
    fn strangers(&self, key: QueueKey) -> Vec<QueueKey> {
        let Some(queue) = self.listeners.queues.get(&key) else { return Vec::new() };
        let mut others = self.listeners.others(queue.listener, queue.application);
        others.retain(|other| !self.is_shared(key, *other) && !self.is_shared(*other, key));
        others
    }

    /// Gives the unaccepted connections of a queue to `heirs`. Those for which `heirs` have no room stay.
    fn hand_on(&mut self, key: QueueKey, heirs: &[QueueKey]) {
        match self.take_back(key) {
            Ok(unaccepted) => {
                let wanted = self.without_given_up(unaccepted).into_iter();
                let rest: VecDeque<_> =
                    wanted.skip_while(|incoming| self.bequeath(*incoming, heirs)).collect();
                if let Some(queue) = self.listeners.queues.get_mut(&key).filter(|_| !rest.is_empty()) {
                    queue.waiting = rest;
                    self.admit_queue(key);
                }
            }
            Err(violation) => {
                if let Some(queue) = self.listeners.queues.get(&key) {
                    self.doom(queue.application, format!("in its accept queue: {violation}"));
                }
            }
        }
    }

    /// Takes the unaccepted connections out of a queue. Takes none while the queue's owner is in the middle of an accept.
    fn take_back(&mut self, key: QueueKey) -> Result<VecDeque<Incoming>, Violation> {
        let Some((memory, sock)) = self.reader_of(key) else { return Ok(VecDeque::new()) };
        let region = memory.region();
        let (Some(block), Some([_, reader])) = (region.sock(sock), region.slot(key.slot).map(|s| &s.half))
        else {
            return Ok(VecDeque::new());
        };
        let (Some(queue), Some(r)) = (self.listeners.queues.get_mut(&key), self.regions.get_mut(&key.region))
        else {
            return Ok(VecDeque::new());
        };
        if block.rx_lock.compare_exchange(0, SEIZED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Ok(VecDeque::new());
        }
        let sender = &mut queue.sender;
        let head = sender.head;
        let read = sender.update(reader).and_then(|ring| {
            let read = sender.tail;
            block.rx_tail.store(head, Ordering::Relaxed);
            reader.rx_tail.store(head, Ordering::Release);
            Ok((read, [ring, sender.acknowledge(head)?]))
        });
        block.rx_lock.store(0, Ordering::Release);
        let (read, rings) = read?;
        rings.into_iter().flatten().for_each(|ring| memory.give_back(&mut r.pool, ring));
        let (queued, waiting) = (mem::take(&mut queue.queued), mem::take(&mut queue.waiting));
        let mut unaccepted = VecDeque::with_capacity(queued.len() + waiting.len());
        for (end, incoming) in queued {
            if end <= read {
                self.set_stage(incoming.0, Stage::Accepted);
            } else {
                unaccepted.push_back(incoming);
            }
        }
        unaccepted.extend(waiting);
        Ok(unaccepted)
    }

    /// Schedules `relieve` when queue `key` has connections that may have to go to another process's queue. Nothing is taken from a forked
    /// child's share (`sock` is `None`).
    pub fn look_after(&mut self, key: QueueKey) {
        let is_relieved = |queue: &Queue| queue.sock.is_some() && self.listeners.relief.is_none();
        if self.listeners.queues.get(&key).is_some_and(is_relieved) && !self.strangers(key).is_empty() {
            self.listeners.relief = Some(self.now + PATIENCE);
        }
    }

    /// Gives connections that a process leaves unaccepted to processes that sleep at the same socket.
    pub fn relieve(&mut self) {
        if self.listeners.relief.is_none_or(|at| at > self.now) {
            return;
        }
        self.listeners.relief = None;
        let old = now_ns().saturating_sub(PATIENCE.as_nanos() as u64);
        let shared = self.listeners.all.values().filter(|listener| listener.queues.len() > 1);
        let queues: Vec<QueueKey> = shared.flat_map(|listener| listener.queues.iter().copied()).collect();
        for key in queues {
            let strangers = match self.listeners.queues.get(&key) {
                Some(queue) if queue.sock.is_some() => self.strangers(key),
                _ => continue,
            };
            if strangers.is_empty() {
                continue;
            }
            self.admit_queue(key);
            let Some(queue) = self.listeners.queues.get(&key) else { continue };
            let first = queue.queued.front().map(|(_, incoming)| incoming).or(queue.waiting.front());
            let Some(time) = first.map(|(_, record)| record.time) else { continue };
            self.listeners.relief = Some(self.now + PATIENCE);
            let heirs: Vec<QueueKey> = strangers.into_iter().filter(|other| self.is_idle(*other)).collect();
            if time <= old && !heirs.is_empty() {
                self.hand_on(key, &heirs);
            }
        }
    }
}
