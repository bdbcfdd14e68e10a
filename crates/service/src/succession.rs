//! What waits in an accept queue while its listening socket is another's to accept from. On Linux there is one queue for all who
//! have the socket, in whatever way they got it; here each process that accepts has one of its own, or looks into its parent's.
//!
//! A queue that closes leaves what waits to the others of its socket; the last one leaves it with the service, as long as anybody
//! has the socket (`alive` knows), for whoever shows it next. Who comes to a socket that others have gets what waits with them,
//! and so does who waits while others let it wait: they may have handed the socket on to be accepted from, as `inetd` does.
//! A connection stays where it was set up, with what its peer has sent already, and is relayed from there.

use crate::listeners::{Incoming, Listener, Origin, Queue, QueueKey};
use crate::region::Stage;
use crate::registry::Registry;
use control::{AcceptRecord, Left};
use cycles::now_ns;
use queue::Violation;
use shm::SEIZED;
use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A connection that one process lets wait for so long goes to another, if that one sleeps until something comes.
const PATIENCE: Duration = Duration::from_millis(20);

/// Listeners without a queue that are remembered.
const DESERTED_MOST: usize = 1024;
/// A connection that is kept is reset when nobody has come to accept it for so long: programs that know nothing of us may have the socket.
const KEPT: Duration = Duration::from_secs(5);

fn left_of(record: &AcceptRecord) -> Left {
    let AcceptRecord { region, slot, side, .. } = *record;
    Left { region, slot, side, home: 0, sock: 0 }
}

impl Registry {
    /// What was in a queue of `listener` that is closed: the queue of that process.
    pub fn leave_unaccepted(
        &mut self,
        (listener, application): (u32, u32),
        (queued, waiting): (Vec<Incoming>, VecDeque<Incoming>),
        offender: bool,
    ) {
        let heirs = if offender { Vec::new() } else { self.listeners.others(listener, application) };
        let is_last = !offender && self.listeners.is_deserted(listener);
        for incoming in queued {
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

    /// Keeps a connection for whoever accepts from that listener next.
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

    /// Gives a connection that nobody has accepted to one of `heirs`. False: there is none, or it cannot take it.
    pub fn bequeath(&mut self, (origin, record): Incoming, heirs: &[QueueKey]) -> bool {
        let Some(key) = self.choose_queue(heirs) else { return false };
        // Who found no room yet is let in over the backlog this once.
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

    /// Puts a connection that is held into a queue. False: there is no room for it.
    fn deliver(&mut self, trust: u64, record: &AcceptRecord, key: QueueKey) -> bool {
        let heir = self.listeners.queues.get(&key).map(|queue| queue.application);
        let has_room =
            |id: &u32| self.applications.get(id).is_some_and(|a| a.sockets < self.config.max_sockets);
        let carried = heir.filter(has_room).and_then(|heir| self.carry_unused(trust, key.0, heir));
        let Some((relay, slot)) = carried else { return false };
        // It waits there from now on.
        let AcceptRecord { local, peer, .. } = *record;
        let record = AcceptRecord { region: key.0, slot, side: 1, local, peer, time: now_ns(), line: 0 };
        if let Some(queue) = self.listeners.queues.get_mut(&key) {
            queue.waiting.push_back((Origin::Relay(relay), record));
        }
        self.admit_queue(key);
        true
    }

    /// The last queue of a listener may be gone.
    pub fn desert(&mut self, id: u32, nonblocking: bool) {
        let Some(listener) = self.listeners.all.get_mut(&id).filter(|l| l.queues.is_empty()) else { return };
        listener.nonblocking = nonblocking;
        if listener.cookie == 0 || self.listeners.deserted().count() > DESERTED_MOST {
            return self.end_listener(id);
        }
        self.tcp_room(id);
        self.trusts.hurry();
        self.trusts.soon = true;
    }

    /// Resets what was kept too long.
    pub fn forget_kept(&mut self) {
        let old = now_ns().saturating_sub(KEPT.as_nanos() as u64);
        let mut over = Vec::new();
        for listener in self.listeners.all.values_mut() {
            over.extend(listener.kept.extract_if(.., |(_, record)| record.time < old));
        }
        over.into_iter().for_each(|(trust, _)| self.end_trust(trust, true));
    }

    /// Ends those listeners without a queue that `which` names and whose socket nobody has any more. True: some are left.
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

    /// Nobody listens there any more.
    pub fn end_listener(&mut self, id: u32) {
        let Some(listener) = self.listeners.remove(id) else { return };
        listener.kept.into_iter().for_each(|(trust, _)| self.end_trust(trust, true));
        self.tcp_unlisten(id);
    }

    /// The owner of `key` has come to a listener: what waits there is its to take.
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

    /// The other queues of its listener: those whose owners do not look into that one, nor its owner into theirs.
    fn strangers(&self, key: QueueKey) -> Vec<QueueKey> {
        let Some(queue) = self.listeners.queues.get(&key) else { return Vec::new() };
        let mut others = self.listeners.others(queue.listener, queue.application);
        others.retain(|other| !self.is_shared(key, *other) && !self.is_shared(*other, key));
        others
    }

    /// Gives what nobody has accepted out of a queue to `heirs`. What they have no room for stays.
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

    /// Takes what nobody has accepted out of a queue. Nothing where its owner accepts at this moment.
    fn take_back(&mut self, key: QueueKey) -> Result<VecDeque<Incoming>, Violation> {
        let Some((memory, sock)) = self.reader_of(key) else { return Ok(VecDeque::new()) };
        let region = memory.region();
        let (Some(block), Some([_, reader])) = (region.sock(sock), region.slot(key.1).map(|s| &s.half))
        else {
            return Ok(VecDeque::new());
        };
        let (Some(queue), Some(r)) = (self.listeners.queues.get_mut(&key), self.regions.get_mut(&key.0))
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

    /// Something has come into a queue, or is there, which strangers may have to be given. Nothing is taken from children that have a
    /// queue beside their parent's.
    pub fn look_after(&mut self, key: QueueKey) {
        let is_relieved = |queue: &Queue| queue.sock.is_some() && self.listeners.relief.is_none();
        if self.listeners.queues.get(&key).is_some_and(is_relieved) && !self.strangers(key).is_empty() {
            self.listeners.relief = Some(Instant::now() + PATIENCE);
        }
    }

    /// Relieves processes that accept nothing of what they have, where others of the same socket sleep until something comes.
    pub fn relieve(&mut self, now: Instant) {
        if self.listeners.relief.is_none_or(|at| at > now) {
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
            self.listeners.relief = Some(now + PATIENCE);
            let heirs: Vec<QueueKey> = strangers.into_iter().filter(|other| self.is_idle(*other)).collect();
            if time <= old && !heirs.is_empty() {
                self.hand_on(key, &heirs);
            }
        }
    }
}
