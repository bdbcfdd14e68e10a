//! An accept queue as the service sees it: the memory that all holders of the socket map, the grants that the service alone writes there,
//! and the connections for which the backlog has no room yet.

use crate::registry::listen::origin::{Incoming, Origin};
use crate::registry::memory::slots::Slots;
use control::AcceptRecord;
use queue::accept::Accepting;
use rustix::fd::OwnedFd;
use shm::queue_flags::{AWAITED, WANT_ROOM};
use shm::{AcceptQueue, GRANTS};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

/// Most grants of one queue that are lent; the others are for connections that the service sets up.
const LENT_MOST: u32 = GRANTS as u32 / 2;

/// An accept queue. Each grant in it stands for a connection, or for a slot that is lent to a connector.
#[derive(Debug)]
pub struct Grants {
    /// The memory of the queue, mapped with the right to write its grants.
    memory: AcceptQueue,
    /// The files of that memory.
    fds: [Arc<OwnedFd>; 2],
    /// The backlog, as given to `listen`.
    backlog: u32,
    /// What the grants stand for, by their numbers. Their records are in `memory`, which no other process can write.
    all: Slots<Origin>,
    /// The grants that stand for one connection each, the oldest first.
    single: VecDeque<u32>,
    /// Connections for which the backlog has no room yet.
    waiting: VecDeque<Incoming>,
}

impl Grants {
    /// An empty queue; `None`: there is no memory for it.
    pub fn new(backlog: u32, nonblocking: bool) -> Option<Self> {
        let (memory, fds) = AcceptQueue::create().ok()?;
        memory.set_nonblocking(nonblocking);
        Some(Self {
            memory,
            fds: fds.map(Arc::new),
            backlog,
            all: Slots::new(0, GRANTS as u32),
            single: VecDeque::new(),
            waiting: VecDeque::new(),
        })
    }

    /// The operations on the queue's shared words.
    pub fn queue(&self) -> Accepting<'_> {
        Accepting::new(self.memory.words())
    }

    /// The files of the queue's memory, for a process that is to map it.
    pub fn fds(&self) -> &[Arc<OwnedFd>] {
        &self.fds
    }

    /// The backlog, as given to `listen`.
    pub fn backlog(&self) -> u32 {
        self.backlog
    }

    /// What direct connectors compare with the epoch that their grants are of.
    pub fn epoch(&self) -> u32 {
        self.memory.epoch()
    }

    /// Tells direct connectors to ask the service again: each connection must be decided anew, or under other limits.
    pub fn revoke(&self) {
        self.memory.set(self.memory.epoch().checked_add(1).unwrap_or(1), self.backlog);
    }

    /// As [`Self::revoke`], with another backlog.
    pub fn set_backlog(&mut self, backlog: u32) {
        self.backlog = backlog;
        self.revoke();
    }

    /// The listener has ended: no direct connector puts anything into the queue any more.
    pub fn end(&self) {
        self.memory.set(0, self.backlog);
        // Pairs with the fence of a direct connector: it sees that the listener has ended, or this thread sees its grant.
        fence(SeqCst);
    }

    /// The program has changed `O_NONBLOCK` of the listening socket.
    pub fn set_nonblocking(&self, on: bool) {
        self.memory.set_nonblocking(on);
    }

    /// True when a library call of a process has ever waited at the queue. Hostile.
    pub fn was_awaited(&self) -> bool {
        self.memory.words().flags.load(Relaxed) & AWAITED != 0
    }

    /// Number of connections that wait to be accepted. Hostile, at most [`GRANTS`] and those that wait for room.
    pub fn waiting(&self) -> usize {
        self.queue().count() + self.waiting.len()
    }

    /// For how many connections more there is room; Linux admits one more than the backlog.
    pub fn free(&self) -> usize {
        (self.backlog as usize + 1).saturating_sub(self.waiting())
    }

    /// True when the queue has room for one more connection. If not, the next process that accepts tells the service.
    pub fn has_room(&self) -> bool {
        let flags = &self.memory.words().flags;
        let is_full = || self.queue().count() > self.backlog as usize;
        if is_full() {
            flags.fetch_or(WANT_ROOM, SeqCst);
            // Pairs with the fence of the process that accepts: it sees the flag, or this thread sees the room.
            fence(SeqCst);
            if is_full() {
                return false;
            }
        }
        if flags.load(Relaxed) & WANT_ROOM != 0 {
            flags.fetch_and(!WANT_ROOM, SeqCst);
        }
        true
    }

    /// What a grant stands for.
    pub fn get(&self, grant: u32) -> Option<Incoming> {
        let origin = *self.all.get(grant)?;
        Some((origin, AcceptRecord::from_words(self.memory.read(grant)?)?))
    }

    /// All grants with what they stand for.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Origin)> {
        self.all.iter().map(|(grant, origin)| (grant, *origin))
    }

    /// The connections for which there is no room yet.
    pub fn without_room(&self) -> impl Iterator<Item = &Incoming> {
        self.waiting.iter()
    }

    /// Adds a connection behind those that wait for room.
    pub fn add(&mut self, incoming: Incoming) {
        self.waiting.push_back(incoming);
    }

    /// Takes the connections that wait for room.
    pub fn take_waiting(&mut self) -> VecDeque<Incoming> {
        std::mem::take(&mut self.waiting)
    }

    /// These connections wait for room still.
    pub fn wait_on(&mut self, waiting: VecDeque<Incoming>) {
        self.waiting = waiting;
    }

    /// Puts a connection into the queue. False: the queue has no number left for it.
    pub fn put(&mut self, incoming: Incoming) -> bool {
        let (origin, record) = incoming;
        let Ok(grant) = self.all.take(origin) else { return false };
        self.memory.write(grant, record.to_words());
        self.queue().note_moment(cycles::moment());
        self.queue().put(grant);
        self.single.push_back(grant);
        true
    }

    /// A grant for a lent slot: the connector puts it into the queue each time it has connected. `None`: there are enough of them.
    pub fn lend(&mut self, (origin, record): Incoming) -> Option<u32> {
        if self.all.used() >= LENT_MOST {
            return None;
        }
        let grant = self.all.take(origin).ok()?;
        self.memory.write(grant, record.to_words());
        Some(grant)
    }

    /// The slot of a lent grant is lent no longer, and its connection is in the queue: the grant stands for this one only.
    pub fn end_lending(&mut self, grant: u32) {
        self.single.push_back(grant);
    }

    /// Frees a grant, also one that is in the queue.
    pub fn withdraw(&mut self, grant: u32) {
        self.queue().withdraw(grant);
        self.all.release(grant);
    }

    /// Returns the connections that were accepted since the last call, and frees the numbers of their grants.
    pub fn take_accepted(&mut self) -> Vec<Incoming> {
        let mut accepted = Vec::new();
        while let Some(grant) = self.single.front().copied().filter(|grant| self.queue().is_idle(*grant)) {
            self.single.pop_front();
            accepted.extend(self.get(grant));
            self.all.release(grant);
        }
        accepted
    }

    /// True when each grant that stands for one connection has a number.
    #[cfg(test)]
    pub fn agrees(&self) -> bool {
        self.single.iter().all(|grant| self.all.get(*grant).is_some())
    }
}
