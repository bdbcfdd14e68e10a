//! One thread's connections and listeners, and what wakes it.

use crate::bells::Bells;
use crate::check;
use crate::conn::{Conn, Connection};
use crate::counters::Counters;
use crate::error::Error;
use crate::event::{Event, Kind};
use crate::handle::Handle;
use crate::listen::Listening;
use crate::news::Watches;
use crate::service::Service;
use crate::table::{Kept, Table};
use crate::timers::Timers;
use crate::waker::Waker;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use session::host;
use session::sleeper::Context;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

/// Most events of one call, if the program has not chosen.
const EVENTS_MOST: usize = 256;

/// One thread's connections and listeners. It may be moved to another thread between calls, and never be used by two at once.
///
/// ```
/// fn moves<T: Send>() {}
/// moves::<ring::Ring>();
/// ```
/// ```compile_fail,E0277
/// fn is_shared<T: Sync>() {}
/// is_shared::<ring::Ring>();
/// ```
#[derive(Debug)]
pub struct Ring {
    pub(crate) service: Service,
    pub(crate) context: Arc<Context>,
    pub(crate) table: Table,
    pub(crate) watches: Watches,
    /// Indices of the listeners.
    pub(crate) listeners: Vec<u32>,
    /// Connections that may have events to tell.
    pub(crate) due: VecDeque<u32>,
    /// Connections with something to publish.
    pub(crate) unpublished: Vec<u32>,
    pub(crate) bells: Bells,
    pub(crate) timers: Timers,
    pub(crate) waker: Waker,
    /// Memory for copies of messages.
    pub(crate) scratch: Vec<u8>,
    /// The ring is in the checked mode ([`crate::check`]).
    pub(crate) is_checked: bool,
    /// In the checked mode: bytes of `scratch` that the program may still look at.
    pub(crate) viewed: usize,
    pub(crate) counters: Counters,
    /// Connections with news in one wait, times 8, smoothed.
    pub(crate) busy: u32,
    /// A reserve has found no memory at all: nothing tells when there is some.
    pub(crate) is_starved: bool,
    /// The program was told that it may sleep elsewhere (`arm`).
    pub(crate) is_armed: bool,
    not_sync: PhantomData<std::cell::Cell<()>>,
}

impl Ring {
    pub(crate) fn new(service: Service) -> Result<Self, Error> {
        service.check()?;
        let context = Context::take(&service.client).map_err(Error::Full)?;
        let waker = Waker::new(context.clone());
        Ok(Self {
            waker,
            watches: Watches::new(&service.client.home),
            service,
            context,
            table: Table::default(),
            listeners: Vec::new(),
            due: VecDeque::new(),
            unpublished: Vec::new(),
            bells: Bells::default(),
            timers: Timers::default(),
            scratch: Vec::new(),
            is_checked: check::is_on(),
            viewed: 0,
            counters: Counters::default(),
            busy: 0,
            is_starved: false,
            is_armed: false,
            not_sync: PhantomData,
        })
    }

    /// Whether the ring can be used at all: every call checks it first.
    ///
    /// # Errors
    /// [`Error::NotYours`], [`Error::ServiceGone`].
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        self.service.check()
    }

    /// The connection of a handle.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::WrongKind`] for a listener's, [`Error::NotYours`], [`Error::ServiceGone`].
    #[inline]
    pub fn conn(&mut self, handle: Handle) -> Result<Conn<'_>, Error> {
        self.check()?;
        let index = self.table.index(handle)?;
        if self.table.connection(index).is_none() {
            return Err(Error::WrongKind);
        }
        Ok(Conn { ring: self, index })
    }

    /// Ends a sleep of this ring from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Tells [`Kind::Timer`] with `token` at `at` or soon after. A timer cannot be taken back: ignore it.
    pub fn timer(&mut self, at: Instant, token: u64) {
        self.timers.add(at, token);
    }

    /// The moment of the earliest timer, for a program that sleeps elsewhere (see [`Ring::fd`]).
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// What the ring has done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Number of connections and listeners that are not closed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True when nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A descriptor for another event loop (`epoll`, `mio`, `tokio`): it is readable when the ring has events, provided that
    /// [`Ring::arm`] was called before the loop sleeps. The ring keeps it; watch it level-triggered or edge-triggered, never read it.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.context.epfd()
    }

    pub(crate) fn events_most(&self) -> usize {
        match self.service.options.events_most {
            0 => EVENTS_MOST,
            most => most,
        }
    }

    /// The program must not look at its last view any more.
    #[inline]
    pub(crate) fn end_view(&mut self) {
        if self.is_checked {
            check::poison(&mut self.scratch[..self.viewed]);
            self.viewed = 0;
        }
    }

    /// An event of no connection.
    pub(crate) fn event(token: u64, kind: Kind) -> Event {
        Event { handle: Handle::from_bits(0), token, kind }
    }

    /// Takes a new connection into the ring's table.
    pub(crate) fn keep(&mut self, connection: Connection) -> Handle {
        let mapped = connection.link.mapped.clone();
        let slot = connection.link.slot();
        let handle = self.table.insert(Kept::Connection(connection));
        self.watches.add(&mapped, slot, handle.index, self.context.number);
        self.enqueue(handle.index);
        handle
    }

    /// The connection at `index` may have something to tell.
    pub(crate) fn enqueue(&mut self, index: u32) {
        enqueue(&mut self.table, &mut self.due, index);
    }

    /// The listeners of the ring.
    pub(crate) fn listening(&self) -> impl Iterator<Item = &Listening> {
        self.listeners.iter().filter_map(|index| self.table.listener(*index))
    }
}

/// Puts the connection at `index` of `table` into `due`, once.
pub(crate) fn enqueue(table: &mut Table, due: &mut VecDeque<u32>, index: u32) {
    if let Some(connection) = table.connection(index)
        && !std::mem::replace(&mut connection.is_due, true)
    {
        due.push_back(index);
    }
}

impl AsFd for Ring {
    /// [`Ring::fd`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        session::sys::borrow(self.fd())
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}

impl Drop for Ring {
    /// Closes everything, as [`Conn::close`] and [`Ring::close_listener`] do. In a forked child nothing: it is all the parent's.
    fn drop(&mut self) {
        if self.service.generation != host::generation() {
            // What these hold is the parent's: nothing of it may be closed here.
            let table = std::mem::take(&mut self.table);
            std::mem::forget((table, self.context.clone(), self.service.client.clone()));
            return;
        }
        self.flush();
        for index in self.table.taken() {
            self.close_at(index, false);
        }
        self.context.clone().give_back();
    }
}
