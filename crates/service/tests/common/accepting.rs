//! What the small application does with accept queues: it accepts, sleeps there, and connects directly.

use crate::common::{App, Conn, Daemon};
use control::{AcceptRecord, Grant, Lent, Parent, Reply, Request, Unlisten};
use queue::accept::{Accepting, Sleeper};
use queue::stream::watch;
use rustix::fd::{AsFd, OwnedFd};
use shm::half_flags::{ACCEPTED, LENT, OPEN, RELEASED};
use shm::queue_flags::WANT_ROOM;
use shm::{AcceptQueue, Half};
use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// The accept queues that a process has mapped.
#[derive(Default)]
pub struct Queues {
    pub mapped: HashMap<u32, AcceptQueue>,
    /// The files of those memories, for children.
    pub files: HashMap<u32, [OwnedFd; 2]>,
    /// Places at the queues of sockets that the process holds.
    pub places: HashMap<u32, (usize, Sleeper)>,
    /// Eventfds of sleepers of other processes: queue, application, context.
    wakers: HashMap<(u32, u32, u32), OwnedFd>,
}

fn ring(waker: &OwnedFd) {
    rustix::io::write(waker, &1u64.to_ne_bytes()).unwrap();
}

impl App {
    pub fn listen(&mut self, socket: &TcpListener, backlog: u32) -> u32 {
        self.try_listen(socket, backlog).unwrap()
    }

    pub fn try_listen(&mut self, socket: &TcpListener, backlog: u32) -> Result<u32, Reply> {
        self.show(socket, backlog).map(|(queue, _)| queue)
    }

    /// Shows a listening socket. Says the queue's id, and whether the service knew the socket.
    pub fn show(&mut self, socket: &TcpListener, backlog: u32) -> Result<(u32, bool), Reply> {
        let request = Request::Listen { backlog, nonblocking: false };
        let (reply, fds) = self.ask_showing(request, &[socket.as_fd()]);
        let Reply::Listening { queue, is_known } = reply else { return Err(reply) };
        self.map_queue(queue, fds);
        self.rest_at(queue);
        Ok((queue, is_known))
    }

    /// Maps a queue by the files that came with a reply; none came if this process has it already.
    pub fn map_queue(&mut self, queue: u32, fds: Vec<OwnedFd>) {
        if fds.is_empty() {
            assert!(self.queues.mapped.contains_key(&queue), "the service takes queue {queue} for known");
            return;
        }
        let files: [OwnedFd; 2] = fds.try_into().unwrap();
        let memory = AcceptQueue::open(files.each_ref().map(AsFd::as_fd)).unwrap();
        self.queues.mapped.insert(queue, memory);
        self.queues.files.insert(queue, files);
    }

    /// A forked child of this process, at that holder bit, which has this process's queue.
    pub fn child(&self, daemon: &Daemon, queue: u32, holder: u8) -> Self {
        let welcome = &self.welcome;
        self.region.header().holders_taken.fetch_or(1 << welcome.holder | 1 << holder, Ordering::SeqCst);
        let place = Parent { application: welcome.application, secret: welcome.secret, holder };
        let mut child = Self::with(daemon, Some(place), u32::from(holder));
        child.inherit(self, queue);
        child
    }

    /// Has the queue's memory from a parent, as after `fork`.
    pub fn inherit(&mut self, parent: &Self, queue: u32) {
        let files = parent.queues.files[&queue].each_ref().map(|fd| fd.try_clone().unwrap());
        self.map_queue(queue, files.into());
        self.rest_at(queue);
    }

    /// Takes a place among the queue's sleepers, if one is free.
    pub fn rest_at(&mut self, queue: u32) {
        if self.queues.places.contains_key(&queue) {
            return;
        }
        let sleeper = Sleeper {
            application: self.welcome.application,
            context: self.context as u8,
            is_exclusive: self.is_exclusive,
        };
        if let Some(place) = self.queue(queue).register(sleeper) {
            self.queues.places.insert(queue, (place, sleeper));
        }
    }

    /// Does not sleep at the queue any more.
    pub fn leave_rest(&mut self, queue: u32) {
        if let Some((place, sleeper)) = self.queues.places.remove(&queue) {
            let _ = self.queue(queue).unregister(place, sleeper);
        }
    }

    /// True when it has announced sleep at the queue, and has not been woken.
    pub fn sleeps_at(&self, queue: u32) -> bool {
        let (place, _) = self.queues.places[&queue];
        let word = &self.memory(queue).words().asleep[place / 64];
        word.load(Ordering::SeqCst) & 1 << (place % 64) != 0
    }

    pub fn memory(&self, queue: u32) -> &AcceptQueue {
        &self.queues.mapped[&queue]
    }

    pub fn queue(&self, queue: u32) -> Accepting<'_> {
        Accepting::new(self.memory(queue).words())
    }

    /// Accepts no more from a queue.
    pub fn unlisten(&mut self, queue: u32, because: Unlisten) -> Reply {
        self.leave_rest(queue);
        self.ask(Request::Unlisten { queue, because }).0
    }

    /// First step of an accept.
    pub fn claim(&self, queue: u32) -> Option<u32> {
        self.queue(queue).claim(self.welcome.application)
    }

    /// Last step of an accept.
    pub fn finish(&self, queue: u32, grant: u32) {
        self.queue(queue).finish(grant, self.welcome.application);
        fence(Ordering::SeqCst);
        if self.memory(queue).words().flags.load(Ordering::Relaxed) & WANT_ROOM != 0 {
            self.say(Request::Accepted { queue });
        }
    }

    /// What the service says of a grant.
    pub fn record(&self, queue: u32, grant: u32) -> Option<AcceptRecord> {
        AcceptRecord::from_words(self.memory(queue).read(grant)?)
    }

    /// Takes the oldest connection out of an accept queue.
    pub fn accept(&mut self, queue: u32) -> Option<(Conn, AcceptRecord)> {
        while let Some(grant) = self.claim(queue) {
            let found = self.set_up(queue, grant);
            self.finish(queue, grant);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The connection of a claimed grant. `None`: it is gone, or another process has it.
    pub fn set_up(&mut self, queue: u32, grant: u32) -> Option<(Conn, AcceptRecord)> {
        let record = self.record(queue, grant)?;
        if record.region != self.info.id && !self.pairs.contains_key(&record.region) {
            let (reply, fds) = self.ask(Request::Region { region: record.region });
            let Reply::Region(info) = reply else { return self.take(queue, grant) };
            self.map(info, fds);
        }
        let conn = Conn::new(record.region, record.slot, usize::from(record.side));
        let before = self.own_half(&conn, |half| half.flags.fetch_or(ACCEPTED, Ordering::AcqRel));
        if before & (ACCEPTED | RELEASED) != 0 {
            return None;
        }
        self.own_half(&conn, |half| watch(half, Some(self.context)));
        Some((conn, record))
    }

    /// The service carries the connection of a claimed grant on to this process's region.
    pub fn take(&mut self, queue: u32, grant: u32) -> Option<(Conn, AcceptRecord)> {
        let (reply, _) = self.ask(Request::Take { queue, grant });
        let Reply::Moved { slot, local, peer, .. } = reply else { return None };
        let record = AcceptRecord { region: self.info.id, slot, side: 1, local, peer };
        let conn = Conn::new(record.region, slot, 1);
        self.own_half(&conn, |half| watch(half, Some(self.context)));
        Some((conn, record))
    }

    pub fn accept_wait(&mut self, queue: u32) -> (Conn, AcceptRecord) {
        let end = Instant::now() + super::PATIENCE;
        loop {
            if let Some(found) = self.accept(queue) {
                return found;
            }
            assert!(Instant::now() < end, "there is nothing to accept");
            self.sleep(Duration::from_millis(10));
        }
    }

    /// True when a connection waits at one of the queues, or else sleep is announced there.
    pub(super) fn has_connection(&self) -> bool {
        let mut has = false;
        for (queue, (place, _)) in &self.queues.places {
            has |= !self.queue(*queue).prepare_sleep(*place);
        }
        has
    }

    /// Sleeps no more at the queues.
    pub(super) fn awake(&self) {
        self.queues.places.iter().for_each(|(queue, (place, _))| self.queue(*queue).awake(*place));
    }

    /// Keeps what came with the answer to a `connect`, and takes the queue's files off `fds`.
    pub(super) fn keep_lent(&mut self, lent: Option<Lent>, fds: &mut Vec<OwnedFd>) {
        if let Some(new) = lent.as_ref().filter(|lent| lent.is_new) {
            let files = fds.split_off(fds.len() - 2);
            self.map_queue(new.queue, files);
        }
        self.lent = lent;
    }

    /// Opens both ends of a granted slot and names it in socket block `sock`, as before a direct connect's push.
    pub fn open_direct(&mut self, region: u32, grant: Grant, sock: u32) -> Conn {
        let both = &self.region_of(region).slot(grant.slot).unwrap().half;
        let seen = both.each_ref().map(|half| half.flags.load(Ordering::Acquire));
        assert!(seen[0] & seen[1] & RELEASED != 0, "{seen:x?}");
        both.iter().for_each(Half::clear);
        let block = self.region.sock(sock).unwrap();
        block.slot.store(grant.slot, Ordering::Relaxed);
        block.region.store(region, Ordering::Relaxed);
        block.ports.store(u32::from(grant.port) << 16, Ordering::Relaxed);
        block.holders.store(1 << self.welcome.holder, Ordering::Release);
        both[0].flags.store(OPEN, Ordering::Release);
        both[1].flags.store(OPEN | LENT, Ordering::Release);
        let conn = Conn::new(region, grant.slot, 0);
        self.own_half(&conn, |half| watch(half, Some(self.context)));
        conn
    }

    /// Connects by a grant, without the service.
    pub fn connect_direct(&mut self, queue: u32, region: u32, grant: Grant, sock: u32) -> Conn {
        let conn = self.open_direct(region, grant, sock);
        assert!(self.queue(queue).push(grant.grant), "the grant is free");
        self.wake_acceptors(queue);
        conn
    }

    /// Wakes the sleepers that must hear of one more connection.
    pub fn wake_acceptors(&mut self, queue: u32) {
        let mut sleepers = Vec::new();
        self.queue(queue).wake(|sleeper| {
            sleepers.push(sleeper);
            true
        });
        for Sleeper { application, context, .. } in sleepers {
            let context = u32::from(context);
            if application == self.welcome.application {
                ring(&self.woken);
                continue;
            }
            if let Some(waker) = self.queues.wakers.get(&(queue, application, context)) {
                ring(waker);
                continue;
            }
            if let (Reply::Done, fds) = self.ask(Request::QueueWaker { queue, application, context }) {
                let waker = fds.into_iter().next().unwrap();
                self.queues.wakers.insert((queue, application, context), waker);
            }
        }
    }
}
