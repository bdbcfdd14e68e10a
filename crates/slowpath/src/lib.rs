//! All of TCP except the packets of established in-order flows: handshake, teardown, timeouts, neighbours, routes.
//!
//! ```text
//!  core --Exception, frame--> handle_exception --+                +--> Command, frame --> core
//!  service --connect, listen, accept, ...------> |   SlowPath     |--> poll_event, poll_news --> service
//!  clock --handle_timers at next_deadline------> +----------------+--> OPEN, FAILED, RESET in the application's slot
//! ```
//! Never reads a clock, opens a socket or starts a thread. All input from the wire is taken for hostile; what is dropped is
//! counted by reason.
#![forbid(unsafe_code)]

mod active;
mod census;
mod claim;
mod config;
mod conflict;
mod cookie;
mod counters;
mod ecn;
mod event;
mod flow_map;
mod handshake;
mod icmp;
mod info;
mod input;
mod isn;
mod limit;
mod link;
mod listeners;
mod moves;
mod neighbours;
mod options;
mod orphans;
mod output;
mod passive;
mod path;
mod path_cache;
mod path_search;
mod patience;
mod pause;
mod ports;
mod programs;
mod regions;
mod reset;
mod routes;
mod sockets;
mod teardown;
mod time_wait;
mod timeouts;
mod wheel;

pub use census::Census;
pub use claim::{Claim, Taken};
pub use config::Config;
pub use cookie::SynCookies;
pub use counters::{Count, Counters};
pub use ecn::Feedback;
pub use event::{
    AcceptError, Connect, ConnectError, Event, How, ListenError, Owner, PendingId, Release, errno,
};
pub use isn::Secret;
pub use moves::MoveError;
pub use options::{AskedBy, AskedClass, FlowOptions, Linger2, RECEIVE_BUFFER_MIN};
pub use patience::Keepalive;
pub use ports::{EphemeralPorts, Standing};
pub use programs::{FlowEvent, FlowFacts, FlowName, FlowReport, NotBegun, ProgramState};
pub use routes::{OwnAddress, Route, Routes};
pub use sockets::{Listed, Socket};
pub use teardown::{State, Step};
pub use wheel::{TimerId, Wheel};

use active::Opening;
use base::Instant;
use conflict::Defences;
use flow::{CommandSender, FlowId, FlowMut, Flows, Keeper, News};
use flow_map::FlowMap;
use limit::PeerLimit;
use listeners::Listeners;
use moves::Moves;
use neighbours::Neighbours;
use output::Output;
use path_cache::PathCache;
use pause::Pause;
use programs::Programs;
use regions::Regions;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use teardown::Connection;
use time_wait::TimeWait;
use timeouts::Timer;
use wire::{FourTuple, MacAddr};

/// The slow path of one service.
#[derive(Debug)]
pub struct SlowPath {
    config: Config,
    keeper: Keeper,
    output: Output,
    regions: Regions,
    routes: Routes,
    neighbours: Neighbours,
    defences: Defences,
    secret: Secret,
    ports: EphemeralPorts,
    time_wait: TimeWait,
    listeners: Listeners,
    openings: HashMap<u64, Opening>,
    /// Ids of active opens by (region, slot).
    opening_at: HashMap<(u16, u32), u64>,
    opening_of: HashMap<FourTuple, u64>,
    next_opening: u64,
    connections: FlowMap<Connection>,
    /// Flows that are not over, by tuple with our end as `src`.
    by_tuple: HashMap<FourTuple, FlowId>,
    wheel: Wheel<Timer>,
    moves: Moves,
    events: VecDeque<Event>,
    news: VecDeque<News>,
    counters: Counters,
    /// Number of live connections that their applications have let go of.
    orphans: usize,
    reset_limit: PeerLimit,
    challenge_limit: PeerLimit,
    path_limit: PeerLimit,
    pause: Pause,
    paths: PathCache,
    programs: Programs,
    /// ECN is offered and agreed to. Initially `flow::Config::ecn`; see `set_ecn`.
    is_ecn_on: bool,
    /// The latest time that any input gave.
    now: Instant,
}

impl SlowPath {
    /// Makes a slow path over `flows`; `cores` are the command rings of all cores, in order.
    #[must_use]
    pub fn new(config: Config, flows: Arc<Flows>, cores: Vec<CommandSender>, now: Instant) -> Self {
        let routes = Routes::new(config.addresses.clone(), config.gateway_v4, config.gateway_v6);
        let regions = usize::from(flows.config().regions);
        Self {
            is_ecn_on: flows.config().ecn,
            regions: Regions::new(regions),
            routes,
            neighbours: Neighbours::new(config.neighbours_max),
            defences: Defences::default(),
            secret: Secret::new(config.secret),
            ports: EphemeralPorts::new(config.ephemeral.clone()),
            time_wait: TimeWait::new(config.time_wait_max, config.time_wait),
            listeners: Listeners::default(),
            openings: HashMap::new(),
            opening_at: HashMap::new(),
            opening_of: HashMap::new(),
            next_opening: 0,
            connections: FlowMap::default(),
            by_tuple: HashMap::new(),
            wheel: Wheel::new(now, 1024),
            moves: Moves::new(cores.len(), config.serving),
            events: VecDeque::new(),
            news: VecDeque::new(),
            counters: Counters::default(),
            orphans: 0,
            reset_limit: PeerLimit::new(config.resets_per_second),
            challenge_limit: PeerLimit::new(config.challenges_per_second),
            path_limit: PeerLimit::new(config.path_changes_per_second),
            pause: Pause::default(),
            paths: PathCache::new(config.paths_max),
            programs: Programs::default(),
            now,
            keeper: Keeper::new(flows),
            output: Output::new(cores),
            config,
        }
    }

    /// What a thread does again and again that waits for a flow's record, which its core holds for one turn of the flow: its core may be
    /// waiting for this very processor. Without it the thread only spins.
    pub fn set_give_way(&mut self, give_way: fn()) {
        self.keeper.set_give_way(give_way);
    }

    /// The next event for the service. Call until `None` after every input.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A sleeping application context to wake: the caller writes its eventfd. Call until `None` after every input.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// True, once, when `core` sleeps and was sent commands: the caller writes its eventfd. Call after every input.
    #[must_use]
    pub fn must_wake(&self, core: u8) -> bool {
        self.output.must_wake(core)
    }

    /// The slow path's counters since its start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The flow records, for reading statistics.
    #[must_use]
    pub fn flows(&self) -> &Arc<Flows> {
        self.keeper.flows()
    }

    /// Adds an address to ours; existing connections are not affected.
    pub fn add_address(&mut self, address: OwnAddress) {
        self.routes.add(address);
    }

    /// Our addresses and gateways, for routing.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Neighbours by IP address, with their Ethernet address; `None` while a neighbour has not answered.
    pub fn neighbours(&self) -> impl Iterator<Item = (std::net::IpAddr, Option<MacAddr>)> + '_ {
        self.neighbours.iter()
    }

    pub(crate) fn flow_config(&self) -> &flow::Config {
        self.keeper.flows().config()
    }

    /// Runs `work` on the locked record of a flow of `connections`.
    pub(crate) fn with_flow<R>(&self, flow: FlowId, work: impl FnOnce(&mut FlowMut<'_>) -> R) -> R {
        work(&mut self.keeper.lock(flow).parts())
    }

    /// Raises flags in the service's half of a slot, and notes its application's context to be woken if it sleeps.
    pub(crate) fn raise(&mut self, region: u16, slot: u32, flags: u32) {
        if let Some(parts) = self.region(region) {
            self.news.extend(flow::raise(&parts, region, slot, flags));
        }
    }
}

/// The source Ethernet address of a frame. Callers pass parsed frames only.
pub(crate) fn source_mac(frame: &[u8]) -> MacAddr {
    frame.get(6..12).and_then(|bytes| bytes.first_chunk::<6>()).map_or(MacAddr::ZERO, |mac| MacAddr(*mac))
}
