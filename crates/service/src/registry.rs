//! Everything the control thread knows: applications, families, regions, listeners; and how news reach an application.
//!
//! What is read from shared memory here is loaded once and checked; an application that wrote what it must not goes to
//! `doomed`, and the control loop detaches it before it serves anybody else.

use crate::application::{Application, Family};
use crate::bells::Bells;
use crate::config::Config;
use crate::cores::Core;
use crate::counting::Counting;
use crate::held::Holds;
use crate::helpers::Watched;
use crate::judge::Judge;
use crate::listeners::Listeners;
use crate::log_limit::LogLimit;
use crate::memory::Memory;
use crate::policy::Policy;
use crate::port_space::PortSpace;
use crate::rates::Rates;
use crate::region::{AppRegion, PairRegion, Relay};
use crate::slots::Slots;
use crate::statistics::{Process, Statistics};
use crate::sys;
use crate::tcp::Tcp;
use crate::trusts::Trusts;
use control::{CONTROL_SLOT, LineError, Push, Reply, TRUST_CONTEXT, ToApplication};
use queue::stream::watcher;
use queue::{Doorbell, Wake};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use shm::{Region, Side};
use std::collections::HashMap;
use std::sync::Arc;

/// What a request comes to.
#[derive(Debug)]
pub enum Answer {
    /// This, with these descriptors.
    Reply(Reply, Vec<Arc<OwnedFd>>),
    /// Nothing is said.
    Silent,
    /// The sender misbehaved.
    Offence(String),
}

impl Answer {
    /// A reply without descriptors.
    pub fn plain(reply: Reply) -> Self {
        Self::Reply(reply, Vec::new())
    }

    /// The kernel shall do it.
    pub fn kernel(reason: &str) -> Self {
        Self::plain(Reply::Kernel { reason: reason.to_owned() })
    }

    /// Refused with an errno.
    pub fn refused(errno: rustix::io::Errno, reason: &str) -> Self {
        Self::plain(Reply::Refused { errno: errno.raw_os_error(), reason: reason.to_owned() })
    }
}

/// All state of the control thread that is not a descriptor of its own.
#[derive(Debug)]
pub struct Registry {
    /// What the service was told.
    pub config: Config,
    /// What the administrator lets users do.
    pub policy: Policy,
    /// How fast they begin connections.
    pub rates: Rates,
    /// How many lines of the log they bring about.
    pub log_limit: LogLimit,
    /// By id.
    pub applications: HashMap<u32, Application>,
    /// By the id of the root.
    pub families: HashMap<u32, Family>,
    /// Application regions by id.
    pub regions: HashMap<u32, AppRegion>,
    /// Pair regions by id.
    pub pairs: HashMap<u32, PairRegion>,
    /// Pair regions by connector and acceptor.
    pub pair_of: HashMap<[u32; 2], u32>,
    /// Relayed connections.
    pub relays: HashMap<u32, Relay>,
    /// The threads that move bytes.
    pub cores: Vec<Core>,
    /// Indices of application regions in the threads' tables. Free again when all threads have let go.
    pub indices: Slots<u32>,
    /// TCP over the port.
    pub tcp: Tcp,
    /// Addresses and ports of connections inside this host.
    pub ports: PortSpace,
    /// What the kernel's own TCP knows of listeners; `None` where it does not say.
    pub judge: Option<Judge>,
    /// The network namespace of the service (`SO_NETNS_COOKIE`).
    pub namespace: u64,
    /// Pair regions that a helper is to seal, in the name of that application.
    pub to_seal: Vec<(u32, u32, Arc<OwnedFd>)>,
    /// How the threads wake applications.
    pub bells: Arc<Bells>,
    /// The port in words.
    pub port: String,
    /// Who listens.
    pub listeners: Listeners,
    /// Connections on their way from one process to another.
    pub trusts: Trusts,
    /// What is held back within this host.
    pub held: Holds,
    /// What is counted.
    pub statistics: Statistics,
    /// Whether cycles are counted.
    pub counting: Counting,
    /// Applications to detach, with the reason.
    pub doomed: Vec<(u32, String)>,
    /// Application regions whose bell the control loop must start or stop watching.
    pub bells_changed: Vec<BellChange>,
    next_region: u32,
    next_relay: u32,
}

/// A bell of an application region comes or goes.
#[derive(Debug)]
pub enum BellChange {
    /// Watch this region's slow-path bell.
    New(u32, Arc<OwnedFd>),
    /// Stop watching it.
    Gone(Arc<OwnedFd>),
}

/// Adds one to an eventfd's counter. A full counter means that the reader has not looked yet: nothing is lost.
pub fn write_eventfd(fd: BorrowedFd<'_>) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

impl Registry {
    /// Nobody is registered.
    pub fn new(
        config: Config,
        (cores, bells, tcp): (Vec<Core>, Arc<Bells>, Tcp),
        counting: Counting,
        watched: &Watched,
    ) -> Self {
        Self {
            indices: Slots::new(0, config.max_applications),
            relays: HashMap::new(),
            cores,
            bells,
            tcp,
            ports: PortSpace::default(),
            judge: Judge::open().ok(),
            namespace: sys::own_namespace(),
            to_seal: Vec::new(),
            port: String::new(),
            policy: config.policy.clone(),
            rates: Rates::default(),
            log_limit: LogLimit::default(),
            config,
            applications: HashMap::new(),
            families: HashMap::new(),
            regions: HashMap::new(),
            pairs: HashMap::new(),
            pair_of: HashMap::new(),
            listeners: Listeners::new(watched.listeners.clone()),
            trusts: Trusts::new(watched.connections.clone()),
            held: Holds::default(),
            statistics: Statistics::default(),
            counting,
            doomed: Vec::new(),
            bells_changed: Vec::new(),
            next_region: 1,
            next_relay: 1,
        }
    }

    /// A name for a new region.
    pub fn new_region_id(&mut self) -> u32 {
        let id = self.next_region;
        // 2^32 regions later names come again; by then the first are long gone.
        self.next_region = self.next_region.checked_add(1).unwrap_or(1);
        id
    }

    /// A name for a new relay.
    pub fn new_relay_id(&mut self) -> u32 {
        let id = self.next_relay;
        self.next_relay = self.next_relay.checked_add(1).unwrap_or(1);
        id
    }

    /// Marks an application for detaching.
    pub fn doom(&mut self, application: u32, reason: impl Into<String>) {
        self.doomed.push((application, reason.into()));
    }

    /// Counts sockets of a process as accelerated. What comes to a process that is gone is for those forked from it.
    pub fn accelerated(&mut self, application: u32, of: fn(&mut Process) -> &mut u64, n: u64) {
        let id = if self.applications.contains_key(&application) {
            Some(application)
        } else {
            self.applications.values().filter(|a| a.descends_from(application)).map(|a| a.id).min()
        };
        let process = match id.and_then(|id| self.applications.get_mut(&id)) {
            Some(a) => &mut a.process,
            None => &mut self.statistics.forgotten,
        };
        process.accelerated += n;
        *of(process) += n;
    }

    /// Tells `side` of `region`, held by `family`, that `slot` has news.
    pub fn ring(&self, region: &Region, side: Side, family: u32, slot: u32) {
        let Some(half) = region.slot(slot).map(|s| &s.half[side.index()]) else { return };
        if let Some(context) = watcher(half) {
            self.ring_context(region, side, family, context, slot);
        }
    }

    fn ring_context(&self, region: &Region, side: Side, family: u32, context: u32, slot: u32) {
        let Some(block) = region.context(side, context) else { return };
        if Doorbell::new(block, region.layout().words_per_group).ring(slot) == Wake::Needed {
            self.wake(family, context);
        }
    }

    /// Writes the eventfd of a context.
    pub fn wake(&self, family: u32, context: u32) {
        if context == TRUST_CONTEXT {
            // A deputy: the core that relays looks at them all.
            self.cores[0].wake();
        } else if let Some(context) = self.families.get(&family).and_then(|f| f.contexts.get(&context)) {
            write_eventfd(context.eventfd.as_fd());
        }
    }

    /// The family of a process, dead or alive: what it mapped is now held by that family.
    pub fn family_of(&self, application: u32) -> Option<u32> {
        if let Some(a) = self.applications.get(&application) {
            return Some(a.family());
        }
        self.families.iter().find(|(_, f)| f.members.contains_key(&application)).map(|(id, _)| *id)
    }

    /// Says something unasked; `context` (or all of the application's) looks at its control line.
    pub fn push(&mut self, application: u32, context: Option<u32>, push: Push, fds: &[BorrowedFd<'_>]) {
        let Some(a) = self.applications.get(&application) else { return };
        let sent = a.line.send(&ToApplication::Push(push), fds, false);
        let (family, region) = (a.family(), self.control_region(a));
        if let Some(region) = region {
            let of_it = self.families.get(&family).into_iter().flat_map(|f| &f.contexts);
            let contexts: Vec<u32> =
                of_it.filter(|(_, c)| c.application == application).map(|(n, _)| *n).collect();
            for n in contexts.into_iter().filter(|n| context.is_none_or(|c| c == *n)) {
                self.ring_context(region.region(), Side::One, family, n, CONTROL_SLOT);
            }
        }
        self.after_send(application, sent);
    }

    /// An application that does not read its control line is detached.
    pub fn after_send(&mut self, application: u32, sent: Result<(), LineError>) {
        match sent {
            // A line that is gone is noticed by its hang-up.
            Ok(()) | Err(LineError::Closed) => {}
            Err(LineError::WouldBlock) => self.doom(application, "it does not read its control socket"),
            Err(e) => self.doom(application, e.to_string()),
        }
    }

    /// The region whose control slot reaches this application: its own, or its nearest ancestor's.
    fn control_region(&self, a: &Application) -> Option<Arc<Memory>> {
        let line = std::iter::once(a.id).chain(a.ancestors.iter().rev().copied());
        let mut regions = line.filter_map(|id| self.regions.values().find(|r| r.owner == id));
        regions.next().map(|r| r.memory.clone())
    }

    /// Bytes of shared memory in use by regions that `application` caused.
    pub fn memory_of(&self, application: u32) -> u64 {
        let size = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map_or(0, |s| s.st_blocks as u64 * 512);
        let own = self.regions.values().filter(|r| r.owner == application).map(|r| size(r.memory.fd.as_fd()));
        let pairs = self.pairs.values().filter(|p| p.parties.contains(&application));
        own.chain(pairs.map(|p| size(p.fd.as_fd()))).sum()
    }
}
