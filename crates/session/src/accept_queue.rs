//! The accept queue of one listening socket, as processes map it: holders of the socket, and processes that connect directly.

use crate::fork_locks::Held;
use crate::host;
use crate::log::{Level, log};
use crate::reserved::Internal;
use crate::sys::small_vec::Few;
use crate::{Client, lock};
use control::{AcceptRecord, Reply, Request};
use endpoint::host::Waker;
use queue::accept::{Accepting, Sleeper};
use rustix::fd::{AsFd, OwnedFd};
use shm::AcceptQueue;
use shm::queue_flags::{AWAITED, WANT_ROOM};
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};

/// Most eventfds that one connect asks the service for. A hostile holder could invent any number of sleepers.
const ASKED_MOST: usize = 8;

/// A mapped accept queue.
#[derive(Debug)]
pub struct Queue {
    /// The service's number of it.
    pub id: u32,
    memory: AcceptQueue,
    /// Eventfds of sleepers of other processes, by application and context.
    wakers: Mutex<HashMap<(u32, u32), Internal>>,
}

impl Queue {
    /// Maps a queue. `None`: the files are not what the service makes, or there is no room for them.
    pub fn open(id: u32, [words, table]: [OwnedFd; 2]) -> Option<Self> {
        let memory = AcceptQueue::open([words.as_fd(), table.as_fd()]);
        let memory =
            memory.inspect_err(|e| log(Level::Error, format_args!("an accept queue has no place here: {e}")));
        Some(Self { id, memory: memory.ok()?, wakers: Mutex::default() })
    }

    /// The operations on the queue's shared words.
    #[inline]
    pub fn accepting(&self) -> Accepting<'_> {
        Accepting::new(self.memory.words())
    }

    /// True when the socket no longer listens.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.epoch() == 0
    }

    /// The epoch in which grants may be used.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.memory.epoch()
    }

    /// True when the queue has as many connections as Linux admits: one more than the backlog.
    pub fn is_full(&self) -> bool {
        self.accepting().count() > self.memory.backlog() as usize
    }

    /// What the service says of a grant.
    pub fn record(&self, grant: u32) -> Option<AcceptRecord> {
        AcceptRecord::from_words(self.memory.read(grant)?)
    }

    fn has(&self, flag: u32) -> bool {
        self.memory.words().flags.load(Ordering::Relaxed) & flag != 0
    }

    /// True when the program has set `O_NONBLOCK`. All holders of the socket share the setting, as on Linux.
    #[inline]
    pub fn is_nonblocking(&self) -> bool {
        self.memory.is_nonblocking()
    }

    /// Sets what [`Self::is_nonblocking`] says, by the service.
    pub fn set_nonblocking(&self, on: bool) {
        if self.is_nonblocking() != on
            && let Some(client) = crate::present()
        {
            // An error: the service is gone, and so is the queue.
            let _ = client.ask(Request::Nonblocking { queue: self.id, on });
        }
    }

    /// True when some process waits for the socket, or has waited, by a call that the library sees.
    pub fn is_awaited(&self) -> bool {
        self.has(AWAITED)
    }

    /// Notes that a process waits at the queue: [`Self::is_awaited`] is true from now on.
    pub fn note_awaited(&self) {
        if !self.has(AWAITED) {
            self.memory.words().flags.fetch_or(AWAITED, Ordering::AcqRel);
        }
    }

    /// True after a connection was taken when the service wants to hear that there is room.
    pub fn wants_room(&self) -> bool {
        // Pairs with the service's fence: it sees the room, or this thread sees the flag.
        fence(Ordering::SeqCst);
        self.has(WANT_ROOM)
    }

    /// Wakes the sleepers that must hear of one more connection.
    pub fn wake(&self, client: &Client) {
        let mut sleepers: Few<Sleeper, 4> = Few::default();
        self.accepting().wake(|sleeper| {
            sleepers.push(sleeper);
            true
        });
        let mut asked = 0;
        for sleeper in sleepers.iter() {
            let (application, context) = (sleeper.application, u32::from(sleeper.context));
            if application == client.application() {
                client.wake(context);
                continue;
            }
            if let Some(waker) = lock(&self.wakers).get(&(application, context)) {
                waker.ring();
                continue;
            }
            asked += 1;
            if asked <= ASKED_MOST {
                self.ask_waker(client, application, context);
            }
        }
    }

    /// Has the service wake a sleeper, and keeps the eventfd that wakes it from then on.
    #[cold]
    fn ask_waker(&self, client: &Client, application: u32, context: u32) {
        if let Ok((Reply::Done, fds)) =
            client.ask(Request::QueueWaker { queue: self.id, application, context })
            && let Some(fd) = fds.into_iter().next()
        {
            lock(&self.wakers).insert((application, context), Internal::new(fd));
        }
    }

    /// Takes the queue's lock before a fork.
    pub fn hold(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |queue| &queue.wakers);
    }
}

/// A sleeper's place at a queue, until dropped.
#[derive(Debug)]
pub struct Rest {
    queue: Arc<Queue>,
    place: usize,
    sleeper: Sleeper,
    generation: u32,
}

impl Rest {
    /// A place for the threads that sleep in `context`. `None`: there are too many.
    pub fn new(queue: &Arc<Queue>, client: &Client, context: u32, is_exclusive: bool) -> Option<Self> {
        let sleeper = Sleeper { application: client.application(), context: context as u8, is_exclusive };
        let place = queue.accepting().register(sleeper)?;
        Some(Self { queue: queue.clone(), place, sleeper, generation: host::generation() })
    }

    /// True when the place was taken in this process for that context, not by a parent or for an earlier context.
    pub fn is_for(&self, context: u32) -> bool {
        self.generation == host::generation() && u32::from(self.sleeper.context) == context
    }

    /// Goes to sleep. False: a connection waits.
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        self.queue.accepting().prepare_sleep(self.place)
    }

    /// As [`Self::prepare_sleep`], for an epoll set that may be exclusive.
    #[must_use]
    pub fn prepare_sets_sleep(&self) -> bool {
        match self.sleeper.is_exclusive {
            true => self.queue.accepting().prepare_exclusive_sleep(self.place),
            false => self.prepare_sleep(),
        }
    }

    /// True when a connection waits for an epoll set that rests here, exclusive or not.
    pub fn has_any(&self) -> bool {
        match self.sleeper.is_exclusive {
            true => self.queue.accepting().has_for(self.place),
            false => self.queue.accepting().has_any(),
        }
    }

    /// The thread is about to look for connections itself.
    pub fn take_turn(&self) {
        self.queue.accepting().take_turn(self.place);
    }

    /// As [`Self::prepare_sleep`], for a thread that looks at the queue afterwards.
    pub fn announce_sleep(&self) {
        self.queue.accepting().announce_sleep(self.place);
    }

    /// Takes this thread's word back that it sleeps at the queue.
    pub fn awake(&self) {
        self.queue.accepting().awake(self.place);
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        // In a forked child the place is still the parent's.
        if self.generation == host::generation()
            && self.queue.accepting().unregister(self.place, self.sleeper)
            && let Some(client) = crate::present()
        {
            self.queue.wake(&client);
        }
    }
}
