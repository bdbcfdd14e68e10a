//! A ring and the tasks that wait for it. It is locked for the time of one call.

use ring::{Event, Handle, Kind, Ring};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A ring, shared by its streams, listeners and the task that drives it.
pub(crate) type Shared = Arc<Mutex<Inner>>;

/// Locks, even if a task panicked meanwhile: a call of the ring's that panics has changed nothing.
pub(crate) fn lock(shared: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tasks that wait for a connection.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
    /// How a connect has ended: the error, or `None`.
    pub(crate) connected: Option<Option<ring::Error>>,
}

/// Connections that a listener has accepted, and the task that waits for one.
#[derive(Debug, Default)]
pub(crate) struct Accepting {
    pub(crate) accepted: VecDeque<(Handle, SocketAddr)>,
    pub(crate) waker: Option<Waker>,
}

/// What a lock protects.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) ring: Ring,
    pub(crate) connections: HashMap<Handle, Waiting>,
    pub(crate) listeners: HashMap<Handle, Accepting>,
    /// The task that drives the ring.
    driver: Option<Waker>,
    /// The driver is to publish what was written.
    is_due: bool,
    events: Vec<Event>,
    /// Why the ring is of no use any more.
    over: Option<ring::Error>,
}

impl Inner {
    pub(crate) fn new(ring: Ring) -> Self {
        Self {
            ring,
            connections: HashMap::new(),
            listeners: HashMap::new(),
            driver: None,
            is_due: false,
            events: Vec::new(),
            over: None,
        }
    }

    /// Has the driver publish what was written and consumed, once the tasks that are ready have run.
    pub(crate) fn publish_soon(&mut self) {
        if !std::mem::replace(&mut self.is_due, true)
            && let Some(driver) = &self.driver
        {
            driver.wake_by_ref();
        }
    }

    /// # Errors
    /// Why the ring is of no use any more.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.over.clone().map_or(Ok(()), |e| Err(e.into()))
    }

    /// Publishes, takes news and wakes the tasks that wait for it. Ready: the ring has news at once; pending: it is armed, so its descriptor
    /// tells of news.
    pub(crate) fn turn(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.driver = Some(cx.waker().clone());
        self.is_due = false;
        let mut events = std::mem::take(&mut self.events);
        let armed = self.ring.poll(&mut events).and_then(|()| {
            events.drain(..).for_each(|event| self.hear(event));
            self.ring.arm()
        });
        self.events = events;
        match armed {
            Ok(true) => Poll::Pending,
            Ok(false) => Poll::Ready(()),
            Err(e) => {
                self.end(e);
                Poll::Pending
            }
        }
    }

    /// Every task hears that the ring is over.
    fn end(&mut self, e: ring::Error) {
        self.over = Some(e);
        for waiting in self.connections.values_mut() {
            [waiting.reader.take(), waiting.writer.take()].into_iter().flatten().for_each(Waker::wake);
        }
        self.listeners.values_mut().filter_map(|accepting| accepting.waker.take()).for_each(Waker::wake);
    }

    fn hear(&mut self, Event { handle, kind, .. }: Event) {
        if let Kind::Accepted { listener, peer, .. } = kind {
            self.connections.insert(handle, Waiting::default());
            let accepting = self.listeners.entry(listener).or_default();
            accepting.accepted.push_back((handle, peer));
            return accepting.waker.take().into_iter().for_each(Waker::wake);
        }
        let Some(waiting) = self.connections.get_mut(&handle) else { return };
        let (reads, writes) = match kind {
            Kind::Readable | Kind::Finished => (true, false),
            Kind::Writable => (false, true),
            Kind::Connected => {
                waiting.connected = Some(None);
                (true, true)
            }
            Kind::Failed(e) => {
                waiting.connected = Some(Some(ring::Error::Refused(e)));
                (true, true)
            }
            _ => (true, true),
        };
        let reader = waiting.reader.take_if(|_| reads);
        let writer = waiting.writer.take_if(|_| writes);
        reader.into_iter().chain(writer).for_each(Waker::wake);
    }
}

impl Drop for Inner {
    /// Wakes the driver, which finds that nothing is left to drive and ends.
    fn drop(&mut self) {
        self.driver.take().into_iter().for_each(Waker::wake);
    }
}
