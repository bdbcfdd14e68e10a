//! All state of the control thread: applications, families, regions, listeners; and how applications are told of news.
//!
//! Values from shared memory are loaded once and checked. What is to be sent, watched or detached goes to `outputs`; the control loop does it
//! before it serves another application ([`output::Output`]). Its fields are its modules' alone: the loop has functions.
//!
//! ```text
//!   application, family, registration, promises, reaper    applications and their families, requests, deaths
//!   listen    accept queues                                  memory    regions and their slots
//!   local     connections within this host                   policy    what each user may do
//!   tcp       connections over the port                      process   what the kernel says of processes
//!   relay     connections between processes that share no memory
//!   channels  connections over channels to other hosts with this service
//!   handover  connections on their way from one process to another
//!   choice    which congestion control a flow gets           agents    congestion control by other processes
//!   scaling   how many cores serve flows, and which flows each has
//!   report    ss, stat, explain
//! ```

pub(crate) mod agents;
pub(crate) mod application;
pub(crate) mod channels;
pub(crate) mod choice;
mod control_loop;
pub(crate) mod family;
pub(crate) mod handover;
pub(crate) mod listen;
pub(crate) mod local;
pub(crate) mod log_limit;
pub(crate) mod memory;
#[cfg(test)]
mod model;
pub(crate) mod output;
pub mod policy;
pub(crate) mod process;
pub(crate) mod promises;
pub(crate) mod reaper;
pub(crate) mod registration;
pub(crate) mod relay;
pub mod report;
pub(crate) mod scaling;
pub(crate) mod tcp;
mod timers;
mod unheard;

use crate::config::Config;
use crate::cores::wakers::{Call, Wakers, rouse, rouse_at};
use crate::cores::{Command, Core, RELAY_CORE};
use crate::registry::agents::Agents;
use crate::registry::application::Application;
use crate::registry::channels::control::Channels;
use crate::registry::choice::Choices;
use crate::registry::family::Family;
use crate::registry::handover::trusts::Trusts;
use crate::registry::listen::table::Listeners;
use crate::registry::local::holds::Holds;
use crate::registry::local::judge::Judge;
use crate::registry::local::port_space::PortSpace;
use crate::registry::log_limit::LogLimit;
use crate::registry::memory::Memory;
use crate::registry::memory::connection::Relay;
use crate::registry::memory::pairs::{PairRegion, Pairs};
use crate::registry::memory::region::AppRegion;
use crate::registry::memory::slots::Slots;
use crate::registry::output::{Output, Outputs, Pushed};
use crate::registry::policy::Policy;
use crate::registry::policy::buckets::Buckets;
use crate::registry::policy::rates::Rates;
use crate::registry::process::descriptors::Descriptors;
use crate::registry::process::fd_liveness::Watched;
use crate::registry::promises::Promised;
use crate::registry::report::profile_switch::Counting;
use crate::registry::report::statistics::{Process, Statistics};
use crate::registry::scaling::Scaling;
use crate::registry::tcp::Tcp;
use crate::registry::unheard::Unheard;
use crate::sys;
use control::{CONTROL_SLOT, KernelReason, Push, Reply};
use flow::News;
use queue::stream::watcher;
use queue::{Doorbell, Wake, nap};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use shm::{Region, Side, TRUST_CONTEXT};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The outcome of a request.
#[derive(Debug)]
pub enum Answer {
    /// Send this reply with these descriptors.
    Reply(Reply, Vec<Arc<OwnedFd>>),
    /// Send no reply at all.
    Silent,
    /// Detach the sender: it misbehaved, for this reason.
    Offence(String),
    /// Add the socket that the sender has shown to this epoll set, then give this answer, or [`Registry::watched`]'s.
    Watch(Watch, Arc<OwnedFd>, Box<Answer>),
}

/// A socket that is to be watched, now that the service keeps what it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    /// `SO_COOKIE` of the socket.
    pub cookie: u64,
    /// It is a listening socket; else that of a connection that was left with the service.
    pub is_listener: bool,
}

impl Answer {
    /// A reply without descriptors.
    pub fn plain(reply: Reply) -> Self {
        Self::Reply(reply, Vec::new())
    }

    /// This answer, once the shown socket is in `set`; `None`: it is there already.
    pub fn watching(self, watch: Watch, set: Option<Arc<OwnedFd>>) -> Self {
        match set {
            Some(set) => Self::Watch(watch, set, Box::new(self)),
            None => self,
        }
    }

    /// The kernel serves the socket, for this reason.
    pub fn kernel(reason: KernelReason) -> Self {
        Self::plain(Reply::Kernel { reason })
    }

    /// The refusal of a request for which there is no descriptor.
    pub fn out_of_descriptors() -> Self {
        Self::refused(
            rustix::io::Errno::MFILE,
            "the service is out of descriptors, or has as many for this user as it may",
        )
    }

    /// The call fails with this errno.
    pub fn refused(errno: rustix::io::Errno, reason: &str) -> Self {
        Self::plain(Reply::Refused { errno: errno.raw_os_error(), reason: reason.to_owned() })
    }
}

/// All state of the control thread but its own descriptors.
#[derive(Debug)]
pub struct Registry {
    /// The present time, as of the input that is handled now. No part of the registry reads a clock.
    now: Instant,
    /// The configuration in use.
    config: Config,
    /// What chooses congestion control.
    choices: Choices,
    /// Agents of congestion control, if any are configured.
    agents: Option<Agents>,
    /// The policy in force.
    policy: Policy,
    /// Rates at which users begin connections.
    rates: Rates,
    /// The buckets that bound what processes send to other hosts.
    buckets: Buckets,
    /// Numbers of log lines that users have caused.
    log_limit: LogLimit,
    /// Registered processes, by id.
    applications: HashMap<u32, Application>,
    /// Families, by the id of their root process.
    families: HashMap<u32, Family>,
    /// Control lines that stand for children which have not said hello, by their numbers.
    promises: HashMap<u32, Promised>,
    /// Application regions by id.
    regions: HashMap<u32, AppRegion>,
    /// Regions that two processes share.
    pairs: Pairs,
    /// Relayed connections, by id.
    relays: HashMap<u32, Relay>,
    /// Handles of the threads that move bytes.
    cores: Vec<Core>,
    /// Ids of application regions by their index in the threads' tables. An index is free again when no thread uses it.
    indices: Slots<u32>,
    /// The slow path and its state.
    tcp: Tcp,
    /// How many cores serve flows, and which groups each has.
    scaling: Scaling,
    /// Channels to other hosts; `None`: there are none.
    channels: Option<Channels>,
    /// Addresses and ports of connections inside this host.
    ports: PortSpace,
    /// The service's descriptors, by user.
    descriptors: Descriptors,
    /// Asks the kernel's TCP about listening sockets; `None` where the kernel does not answer.
    judge: Option<Judge>,
    /// Network namespace of the service (`SO_NETNS_COOKIE`).
    namespace: u64,
    /// Eventfds of the applications' contexts, shared with all threads.
    wakers: Arc<Wakers>,
    /// Description of the port.
    port: String,
    /// Listening sockets and accept queues.
    listeners: Listeners,
    /// Connections that processes have left with the service.
    trusts: Trusts,
    /// Sockets that hold bytes back within this host.
    held: Holds,
    /// Counts for `towpath stat`.
    statistics: Statistics,
    /// The counting of cycles.
    counting: Counting,
    /// What the control loop is to do, in this order.
    outputs: Outputs,
    /// Application regions whose slow-path doorbells the control loop must look at.
    unheard: Unheard,
    timers: Timers,
    next_region: u32,
    next_relay: u32,
}

/// The next sweep of pair slots.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    at: Instant,
    /// The pause before it.
    pause: Duration,
}

/// The times of the registry itself; its parts have their own.
#[derive(Debug, Default)]
struct Timers {
    sweep: Option<Sweep>,
    /// When to look again for what no live process holds.
    reap: Option<Instant>,
    /// When it last looked.
    reaped: Option<Instant>,
    /// How often it has looked.
    #[cfg(test)]
    reaps: usize,
}

impl Registry {
    /// A registry without applications.
    pub fn new(
        config: Config,
        cores: Vec<Core>,
        wakers: Arc<Wakers>,
        tcp: Tcp,
        scaling: Scaling,
        counting: Counting,
        watched: Watched,
    ) -> Self {
        Self {
            now: tcp.system_time(base::Instant::ZERO),
            indices: Slots::new(0, config.max_applications),
            relays: HashMap::new(),
            cores,
            wakers,
            tcp,
            scaling,
            channels: None,
            ports: PortSpace::default(),
            descriptors: Descriptors::open(),
            judge: Judge::open().ok(),
            namespace: sys::own_namespace(),
            port: String::new(),
            choices: config.choices.clone(),
            agents: None,
            policy: config.policy.clone(),
            rates: Rates::default(),
            buckets: Buckets::default(),
            log_limit: LogLimit::default(),
            config,
            applications: HashMap::new(),
            families: HashMap::new(),
            promises: HashMap::new(),
            regions: HashMap::new(),
            pairs: Pairs::default(),
            listeners: Listeners::new(watched.listeners),
            trusts: Trusts::new(watched.connections),
            held: Holds::default(),
            statistics: Statistics::default(),
            counting,
            outputs: Outputs::default(),
            unheard: Unheard::default(),
            timers: Timers::default(),
            next_region: 1,
            next_relay: 1,
        }
    }

    /// An id for a new region.
    pub fn new_region_id(&mut self) -> u32 {
        let id = self.next_region;
        // Ids repeat after 2^32 regions; the first regions have ended by then.
        self.next_region = self.next_region.checked_add(1).unwrap_or(1);
        id
    }

    /// An id for a new relay.
    pub fn new_relay_id(&mut self) -> u32 {
        let id = self.next_relay;
        self.next_relay = self.next_relay.checked_add(1).unwrap_or(1);
        id
    }

    /// Counts `n` accelerated sockets of a process, and adds them to `of`. If the process has ended, a descendant by fork gets the count.
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

    /// Rings the doorbell of `side` of `region`, on which processes of `family` live: `slot` has news.
    pub fn ring(&self, region: &Region, side: Side, family: u32, slot: u32) {
        let Some(half) = region.slot(slot).map(|s| &s.half[side.index()]) else { return };
        if let Some(context) = watcher(half) {
            self.ring_context(region, side, family, context, slot);
        }
    }

    fn ring_context(&self, region: &Region, side: Side, family: u32, context: u32, slot: u32) {
        match Doorbell::of(region, side, context) {
            Some(bell) if bell.ring(slot) == Wake::Needed => self.wake(family, context),
            Some(_) => {}
            None => rouse(region, side, slot),
        }
    }

    /// As [`Self::ring`], for a process that has ended: it may have taken the mark of the sleeper, and been killed before it woke it.
    pub fn ring_for_dead(&self, region: &Region, side: Side, family: u32, slot: u32) {
        let Some(half) = region.slot(slot).map(|s| &s.half[side.index()]) else { return };
        let _ = nap::rouse(half);
        rouse_at(region, side, slot);
        let Some(context) = watcher(half) else { return };
        if let Some(bell) = Doorbell::of(region, side, context) {
            let _ = bell.ring(slot);
        }
        self.wake(family, context);
    }

    /// Wakes that context of a family.
    pub fn wake(&self, family: u32, context: u32) {
        if context == TRUST_CONTEXT {
            // A deputy waits there: the core that relays reads the doorbells of all deputies.
            self.wake_core(RELAY_CORE);
        } else if let Some(context) = self.families.get(&family).and_then(|f| f.context(context)) {
            self.outputs.add(Output::Wake(context.eventfd.clone()));
        }
    }

    /// Rings an application's doorbell for `slot` of that region, and wakes the application if it sleeps.
    pub fn tell(&self, memory: &Memory, slot: u32) {
        memory.tell(slot).into_iter().for_each(|news| self.wake_for_news(news));
    }

    /// Wakes the context that has news.
    pub fn wake_for_news(&self, news: News) {
        match self.wakers.of(news) {
            Some(Call::Write(eventfd)) => self.outputs.add(Output::Wake(eventfd)),
            Some(Call::Rouse(region, slot)) => rouse_at(region.region(), Side::One, slot),
            None => {}
        }
    }

    /// Wakes the core of that index.
    pub fn wake_core(&self, core: usize) {
        self.outputs.add(Output::Wake(self.cores[core].waker()));
    }

    /// Gives a core a command.
    pub fn command(&self, core: usize, command: Command) {
        self.outputs.add(Output::Command(core, command));
    }

    /// The family of a process, dead or alive. The family has what the process has mapped.
    pub fn family_of(&self, application: u32) -> Option<u32> {
        if let Some(a) = self.applications.get(&application) {
            return Some(a.family());
        }
        self.families.iter().find(|(_, f)| f.member(application).is_some()).map(|(id, _)| *id)
    }

    /// The number of the family on one side of a pair region. When the family has ended it is 0, which no family has: the service may be on
    /// that side as a deputy, and a deputy's waker needs no family.
    pub fn family_at(&self, pair: &PairRegion, side: Side) -> u32 {
        self.family_of(pair.parties[side.index()]).unwrap_or(0)
    }

    /// The application region of a process, for connections of its own. `None`: it is not mapped and sealed yet.
    pub fn own_region(&self, id: u32) -> Option<u32> {
        let region = self.applications.get(&id)?.region?;
        self.regions.get(&region).is_some_and(|r| r.sealed).then_some(region)
    }

    /// Counts `count` more sockets of each of these processes, as far as they live.
    pub fn count_sockets(&mut self, of: impl IntoIterator<Item = u32>, count: u32) {
        for id in of {
            if let Some(a) = self.applications.get_mut(&id) {
                a.sockets += count;
            }
        }
    }

    /// A socket of each of these processes has ended.
    pub fn uncount_sockets(&mut self, of: impl IntoIterator<Item = u32>) {
        for id in of {
            if let Some(a) = self.applications.get_mut(&id) {
                a.sockets = a.sockets.saturating_sub(1);
            }
        }
    }

    /// Has an application detached.
    pub fn doom(&mut self, application: u32, reason: impl Into<String>) {
        self.outputs.add(Output::Detach(application, reason.into()));
    }

    /// Has a message sent to all contexts of an application.
    pub fn push(&mut self, application: u32, push: Push) {
        self.outputs.add(Output::Push(Pushed { application, push, fd: None }));
    }

    /// Has the eventfd by which others wake `context` for a region or a queue sent to the application that sleeps there. `fd`: what it sleeps
    /// on, if that was made already.
    pub fn push_waker(&self, application: u32, region: u32, context: u32, fd: Option<Arc<OwnedFd>>) {
        let push = Push::Waker { region, context };
        self.outputs.add(Output::Push(Pushed { application, push, fd }));
    }

    /// A message to that application was sent: wakes `context` (`None`: all contexts of the process) to read it.
    pub fn tell_pushed(&self, application: u32, context: Option<u32>) {
        let Some(a) = self.applications.get(&application) else { return };
        let (family, Some(region)) = (a.family(), self.control_region(a)) else { return };
        let its = self.families.get(&family);
        let contexts = its.into_iter().flat_map(|family| family.contexts_of(application));
        for n in contexts.filter(|n| context.is_none_or(|c| c == *n)) {
            self.ring_context(region.region(), Side::One, family, n, CONTROL_SLOT);
        }
    }

    /// The region with the control slot that reaches this application: its own, or its nearest ancestor's.
    fn control_region(&self, a: &Application) -> Option<Arc<Memory>> {
        let line = std::iter::once(a.id).chain(a.ancestors.iter().rev().copied());
        let mut regions = line.filter_map(|id| self.regions.values().find(|r| r.owner == id));
        regions.next().map(|r| r.memory.clone())
    }

    /// Bytes of shared memory in use by the application's own region and its pair regions.
    pub fn memory_of(&self, application: u32) -> u64 {
        let size = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map_or(0, |s| s.st_blocks as u64 * 512);
        let own = self.regions.values().filter(|r| r.owner == application).map(|r| size(r.memory.fd.as_fd()));
        let pairs = self.pairs.values().filter(|p| p.parties.contains(&application));
        own.chain(pairs.map(|p| size(p.fd.as_fd()))).sum()
    }
}
