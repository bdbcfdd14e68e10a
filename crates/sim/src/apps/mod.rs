//! Applications on the machines of a run: which ports they serve, which connections they open and when, and what each end does.

mod endpoint;
mod ledger;
mod payload;
mod plan;

pub use ledger::{Account, Ledger, Outcome, Written};
pub use payload::{HEADER, Stream};
pub use plan::{Manner, Pattern, Plan, Profile, Side};

use crate::machine::Stack;
use crate::sockets::Fd;
use base::{Duration, Instant};
use endpoint::{Endpoint, Next, PIECE, World};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The plans of all connections of a run: both ends derive a connection's plan from its number.
#[derive(Clone, Copy, Debug)]
pub struct Plans {
    /// The kind of connections.
    pub profile: Profile,
    /// Seed of the run.
    pub seed: u64,
    /// In every connection the first machine shuts its direction last, whether it accepted or connected.
    pub first_is_last: bool,
}

impl Plans {
    /// The number of the first connection that machine `i` opens.
    #[must_use]
    pub const fn first_id(i: usize) -> u64 {
        (i as u64) << 32
    }

    /// The plan of connection `id`.
    #[must_use]
    pub fn of(&self, id: u64) -> Plan {
        let plan = self.profile.plan(self.seed, id);
        let side = if id < Self::first_id(1) { Side::Client } else { Side::Server };
        if self.first_is_last { plan.with_last(side) } else { plan }
    }
}

/// The connections that an application opens.
#[derive(Clone, Debug)]
pub struct Opens {
    /// The addresses to connect to, in turn.
    pub remotes: Vec<SocketAddr>,
    /// Numbers of the connections.
    pub ids: std::ops::Range<u64>,
    /// Largest number of connections open at once.
    pub at_once: usize,
    /// Least time between two connects.
    pub gap: Duration,
    /// Connections with this number or higher are not opened for now.
    pub pause_at: Option<u64>,
}

impl Opens {
    /// True when there are connections to open now.
    fn has_more(&self) -> bool {
        !self.ids.is_empty() && self.pause_at.is_none_or(|at| self.ids.start < at)
    }
}

/// The application of one machine.
#[derive(Debug)]
pub struct Application {
    plans: Plans,
    /// Ports to listen on, with their backlogs.
    listens: Vec<(u16, usize)>,
    listeners: BTreeSet<Fd>,
    opens: Option<Opens>,
    open_at: Instant,
    clients: usize,
    ends: BTreeMap<Fd, Endpoint>,
    wakes: BTreeSet<(Instant, Fd)>,
    buffer: Vec<u8>,
    /// Number of connects that failed at once for want of a port or a slot.
    pub refused: u64,
}

impl Application {
    /// An application with the connections of `plans`; it serves and opens none yet.
    #[must_use]
    pub fn new(plans: Plans) -> Self {
        Self {
            plans,
            listens: Vec::new(),
            listeners: BTreeSet::new(),
            opens: None,
            open_at: Instant::ZERO,
            clients: 0,
            ends: BTreeMap::new(),
            wakes: BTreeSet::new(),
            buffer: vec![0; PIECE],
            refused: 0,
        }
    }

    /// Makes the application serve `port`; up to `backlog` connections may wait.
    #[must_use]
    pub fn serving(mut self, port: u16, backlog: usize) -> Self {
        self.listens.push((port, backlog));
        self
    }

    /// Makes the application open connections.
    #[must_use]
    pub fn opening(mut self, opens: Opens) -> Self {
        self.opens = Some(opens);
        self
    }

    /// Makes the application open no connection before `at`.
    #[must_use]
    pub fn beginning(mut self, at: Instant) -> Self {
        self.open_at = at;
        self
    }

    /// When its next turn is due even without socket events.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let wake = self.wakes.first().map_or(Instant::NEVER, |(at, _)| *at);
        let opens = self.opens.as_ref().is_some_and(|o| o.has_more() && self.clients < o.at_once);
        let listens = if self.listens.is_empty() { Instant::NEVER } else { Instant::ZERO };
        wake.min(if opens { self.open_at } else { Instant::NEVER }).min(listens)
    }

    /// True when all connections that it may open now are opened and over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ends.is_empty() && !self.opens.as_ref().is_some_and(Opens::has_more)
    }

    /// Opens `count` more connections and then pauses; `None`: opens all that remain.
    pub fn open_more(&mut self, count: Option<u64>) {
        if let Some(opens) = &mut self.opens {
            opens.pause_at = count.map(|count| opens.ids.start + count);
        }
    }

    /// Number of its open ends.
    #[must_use]
    pub fn ends(&self) -> usize {
        self.ends.len()
    }

    /// Runs the application once. True when it did something.
    pub fn turn(&mut self, now: Instant, stack: &mut dyn Stack, ledger: &mut Ledger) -> bool {
        let mut is_busy = self.listen(stack, ledger);
        while self.open(now, stack, ledger) {
            is_busy = true;
        }
        while let Some(fd) = stack.news() {
            is_busy = true;
            if self.listeners.contains(&fd) {
                self.accept(now, fd, stack, ledger);
            } else {
                self.serve(now, fd, stack, ledger);
            }
        }
        while let Some(&(at, fd)) = self.wakes.first()
            && at <= now
        {
            is_busy = true;
            self.wakes.pop_first();
            self.serve(now, fd, stack, ledger);
        }
        is_busy
    }

    fn listen(&mut self, stack: &mut dyn Stack, ledger: &mut Ledger) -> bool {
        for (port, backlog) in self.listens.drain(..) {
            match stack.listen_on(port, backlog) {
                Ok(fd) => {
                    self.listeners.insert(fd);
                }
                Err(error) => ledger.breach(|| format!("listen on {port}: {error}")),
            }
        }
        false
    }

    fn open(&mut self, now: Instant, stack: &mut dyn Stack, ledger: &mut Ledger) -> bool {
        let Some(opens) = &mut self.opens else { return false };
        if !opens.has_more() || opens.at_once <= self.clients || now < self.open_at {
            return false;
        }
        let id = opens.ids.start;
        let remote = opens.remotes[(id % opens.remotes.len() as u64) as usize];
        match stack.open(remote) {
            Ok(fd) => {
                opens.ids.start += 1;
                self.open_at = now.plus(opens.gap);
                self.clients += 1;
                ledger.account(id, Side::Client).moved_at = now;
                self.ends.insert(fd, Endpoint::client(fd, id, self.plans.of(id)));
                self.serve(now, fd, stack, ledger);
            }
            // All ports are in TIME-WAIT, or too many connects are under way: try again in a second.
            Err(Errno::ADDRNOTAVAIL | Errno::NOBUFS) => {
                self.refused += 1;
                self.open_at = now.plus(Duration::from_secs(1));
            }
            Err(error) => {
                opens.ids.start += 1;
                ledger.breach(|| format!("connect to {remote}: {error}"));
            }
        }
        true
    }

    fn accept(&mut self, now: Instant, listener: Fd, stack: &mut dyn Stack, ledger: &mut Ledger) {
        while let Ok(fd) = stack.take(listener) {
            self.ends.insert(fd, Endpoint::server(fd));
            self.serve(now, fd, stack, ledger);
        }
    }

    fn serve(&mut self, now: Instant, fd: Fd, stack: &mut dyn Stack, ledger: &mut Ledger) {
        let Some(end) = self.ends.get_mut(&fd) else { return };
        let plans = self.plans;
        let buffer = &mut self.buffer;
        match end.turn(&mut World { now, stack, ledger, buffer, plans }) {
            Next::News => {}
            Next::At(at) => {
                self.wakes.insert((at, fd));
            }
            Next::Over => {
                let is_client = self.ends.remove(&fd).is_some_and(|end| end.is_client());
                self.clients -= usize::from(is_client);
            }
        }
    }

    /// Closes the listeners: no more connections will come.
    pub fn close(&mut self, stack: &mut dyn Stack) {
        std::mem::take(&mut self.listeners).into_iter().for_each(|fd| stack.drop_fd(fd));
    }

    /// The application dies. It does not close its sockets; the caller does ([`Host::crash`](crate::Host::crash)).
    pub fn kill(&mut self, ledger: &mut Ledger) {
        std::mem::take(&mut self.ends).into_values().for_each(|end| end.kill(ledger));
        self.listeners.clear();
        self.wakes.clear();
        self.opens = None;
        self.clients = 0;
    }

    /// Numbers of the connections that have an end here, for messages.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.ends.values().filter_map(Endpoint::id)
    }
}
