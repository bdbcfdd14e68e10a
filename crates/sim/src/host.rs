//! One machine: fast-path cores, a slow path, an application's region, and the service's small glue between them.

use crate::agents::{AgentSetting, Desk, KeptDatagram, KeptReport};
use crate::interface::Interface;
use crate::processors::{ProcessorSetting, Processors};
use crate::receive_offload::queue_of;
use crate::repeats::Repeats;
use crate::ring::Unpublished;
use crate::sockets::{Fd, Sockets};
use crate::steering::{Steering, Strays};
use base::limits::{RING_MAX, RING_MIN};
use base::{Duration, Instant, Seed};
use endpoint::host::{self, Solitary};
use endpoint::region::Mapped;
use fastpath::{Core, Others};
use flow::{AppRegion, CommandSender, ExceptionReceiver, Flows};
use port::Capabilities;
use rustix::fd::AsFd;
use shm::{Kind, Params, Region, Side};
use slowpath::{Event, OwnAddress, Owner, Release, SlowPath};
use std::net::IpAddr;
use std::sync::Arc;
use wire::MacAddr;

/// The application's context, on which all its sockets' doorbells ring.
pub(crate) const APPLICATION: u32 = 1;
/// The processes that simulated applications are, by the log2 of the bytes of their longest send ring: they do not fork, and nothing in them
/// sleeps.
static PROCESSES: [host::Host; RING_MAX.ilog2() as usize + 1] =
    [const { host::Host::new(&Solitary) }; RING_MAX.ilog2() as usize + 1];
/// A host that is still busy after this many rounds at one instant never comes to rest: a round handles at least 32 packets.
const ROUNDS_MAX: usize = 100_000;

/// The process of applications with send rings of up to `bytes`, a power of two from `RING_MIN` to `RING_MAX`.
fn process_of(bytes: u32) -> &'static host::Host {
    let process = &PROCESSES[bytes.clamp(RING_MIN, RING_MAX).ilog2() as usize];
    process.limit_rings(bytes);
    process
}

/// The configuration of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The configuration that fast path and slow path share.
    pub shared: flow::Config,
    /// The configuration of the slow path, with addresses, gateways, Ethernet address and MTU.
    pub slow: slowpath::Config,
    /// Capabilities of the network interface.
    pub capabilities: Capabilities,
    /// The interface merges consecutive segments of a flow.
    pub merges: bool,
    /// Number of fast-path cores, each with a queue of the interface; flows are spread over them.
    pub cores: u8,
    /// Time that the interface takes to bring the frames of moved groups to another queue. `None`: it spreads flows by a hash of its own,
    /// and nothing moves.
    pub steer_delay: Option<Duration>,
    /// The interface brings one frame in so many to another queue than its flow's, as when the kernel learns slowly where flows are; 0: none.
    pub stray_every: u32,
    /// The host's processors: packets cost time, and cores come and go with the load. `None`: packets cost nothing, and all cores serve.
    pub processors: Option<ProcessorSetting>,
    /// Number of applications, at least 1, each with a region of its own. A socket is the first's, unless
    /// [`act_for`](Host::act_for) says otherwise.
    pub applications: u16,
    /// Largest number of sockets of each application: a power of two from 64 to 65536.
    pub slots: u32,
    /// Bytes of each side's payload area of a region: a multiple of 1 MiB. Memory is taken only when it is used.
    pub data_len: u64,
    /// Bytes of the longest ring of an application that sends: a power of two from `RING_MIN` to `RING_MAX`.
    pub ring_most: u32,
    /// `net.ipv4.tcp_notsent_lowat`: bytes; `u32::MAX`: no limit.
    pub not_sent_low: u32,
    /// Exceptions that the slow path takes per round of a core, at least 1. A small number lets the exception ring fill.
    pub exceptions_most: usize,
    /// The agent that decides about congestion control of all connections, if there is one.
    pub agent: Option<AgentSetting>,
    /// Seed of the host's secrets.
    pub seed: u64,
}

impl HostConfig {
    /// A small host with these addresses and prefix lengths, on a 1500-byte link without offloads.
    #[must_use]
    pub fn new(mac: [u8; 6], addresses: &[(IpAddr, u8)], seed: u64) -> Self {
        let addresses = addresses.iter().map(|&(addr, prefix_len)| OwnAddress { addr, prefix_len }).collect();
        Self {
            shared: flow::Config { flows: 256, regions: 2, ring_slots: 256, ..flow::Config::default() },
            slow: slowpath::Config { mac: MacAddr(mac), addresses, ..slowpath::Config::default() },
            capabilities: Capabilities::plain(1500, mac),
            merges: false,
            cores: 1,
            steer_delay: None,
            stray_every: 0,
            processors: None,
            applications: 1,
            slots: 256,
            data_len: 64 << 20,
            ring_most: 1 << 20,
            not_sent_low: u32::MAX,
            exceptions_most: usize::MAX,
            agent: None,
            seed,
        }
    }
}

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Free,
    /// A connection in the slot has no socket yet.
    Waiting,
    /// The connection in the slot is this socket's.
    Open(Fd),
    /// The application has released the slot; it is free at `Event::Released`.
    Closed,
}

/// A slot of an application's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) application: u16,
    pub(crate) slot: u32,
}

/// The region of one application of the host.
#[derive(Debug)]
pub(crate) struct Home {
    /// The region as the service maps it.
    pub(crate) region: Arc<AppRegion>,
    /// The same region as the application maps it.
    pub(crate) mapped: Arc<Mapped>,
    pub(crate) uses: Vec<Use>,
    free: Vec<u32>,
}

impl Home {
    fn new(index: u16, config: &HostConfig) -> Self {
        let id = u64::from(index) + 1;
        let params = Params { kind: Kind::Application, id, slots: config.slots, data_len: config.data_len };
        let (service, fd) = Region::create(params).expect("memory for a simulated region");
        let application = Arc::new(Region::open(fd.as_fd(), params).expect("the region just made"));
        let region = Arc::new(AppRegion::new(service));
        region.set_watermark(config.data_len);
        let pages = application.page_words() * 64;
        Self {
            region,
            mapped: Arc::new(Mapped::new(process_of(config.ring_most), Side::One, application, pages)),
            uses: vec![Use::Free; config.slots as usize],
            // Slot 0 is the control slot.
            free: (1..config.slots).rev().collect(),
        }
    }
}

/// A core with its queue of the interface and its exception ring.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) core: Core,
    exceptions: ExceptionReceiver,
    pub(crate) interface: Interface,
    pub(crate) deadline: Instant,
    /// The core does nothing before this time.
    pub(crate) stopped_until: Instant,
    /// The core is busy until then with what it found last.
    pub(crate) busy_until: Instant,
}

impl Lane {
    /// When the core can look for work again.
    fn free_at(&self) -> Instant {
        self.stopped_until.max(self.busy_until)
    }
}

/// One machine. Frames, calls and `now` go in; frames, results and the next deadline come out.
///
/// Calls of sockets ([`Host::send`] and so on) happen at the time of the last [`Host::run`]; what they cause leaves at the
/// next one.
#[derive(Debug)]
pub struct Host {
    /// The congestion control of connections that name none.
    pub(crate) algorithm: congestion::Algorithm,
    /// `TCP_NOTSENT_LOWAT` of sockets that do not set it.
    pub(crate) not_sent_low: u32,
    pub(crate) slow: SlowPath,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) steering: Option<Steering>,
    pub(crate) processors: Option<Box<Processors>>,
    strays: Strays,
    /// Number of turns that the cores have had.
    turns: u64,
    exceptions_most: usize,
    pub(crate) repeats: Repeats,
    pub(crate) desk: Option<Box<Desk>>,
    /// The applications, by index of their regions.
    pub(crate) homes: Vec<Home>,
    /// The application that opens sockets now.
    pub(crate) acting: u16,
    pub(crate) sockets: Sockets,
    /// What a program with a ring has not published yet; `None`: the program uses sockets.
    pub(crate) ring: Option<Unpublished>,
    /// Number of regions that were removed and given back.
    pub(crate) drained: usize,
    pub(crate) now: Instant,
    must_run: bool,
}

impl Host {
    /// A host that starts at `now`.
    ///
    /// # Panics
    /// When the kernel gives no memory for the region, or the configuration breaks a limit of `shm::Layout`.
    #[must_use]
    pub fn new(config: &HostConfig, now: Instant) -> Self {
        let mut seed = Seed::new(config.seed);
        let flows = Arc::new(Flows::new(config.shared.clone(), [seed.next_u64(), seed.next_u64()]));
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&seed.next_u64().to_le_bytes());
        secret[8..].copy_from_slice(&seed.next_u64().to_le_bytes());
        let is_steered = config.steer_delay.is_some();
        let mtu = config.capabilities.mtu;
        let serving = if config.processors.is_some() { 1 } else { config.slow.serving };
        let slow_config = slowpath::Config { secret, mtu, is_steered, serving, ..config.slow.clone() };
        let others = Others::join(config.cores, &config.shared);
        let of_core = |(i, others)| lane(i as u8, config, &flows, others, now);
        let (lanes, commands) = others.into_iter().enumerate().map(of_core).unzip();
        let mut slow = SlowPath::new(slow_config, flows, commands, now);
        let homes: Vec<Home> = (0..config.applications).map(|index| Home::new(index, config)).collect();
        for (index, home) in homes.iter().enumerate() {
            assert!(slow.add_region(index as u16, &home.region), "a fresh table of regions has room");
        }
        let slow_first = if config.processors.is_some() { 1 } else { config.cores };
        let desk = config.agent.as_ref().map(|agent| Box::new(Desk::new(agent, seed.next_u64(), now)));
        slow.watch_flows(desk.is_some());
        Self {
            algorithm: config.slow.algorithm,
            not_sent_low: config.not_sent_low,
            slow,
            lanes,
            steering: config.steer_delay.map(|delay| Steering::new(slow_first, delay)),
            processors: config.processors.map(|setting| Box::new(Processors::new(config.cores, setting))),
            strays: Strays::new(config.stray_every, config.seed),
            turns: 0,
            exceptions_most: config.exceptions_most,
            repeats: Repeats::default(),
            desk,
            homes,
            acting: 0,
            sockets: Sockets::default(),
            ring: None,
            drained: 0,
            now,
            must_run: true,
        }
    }

    /// Announces this host's IPv4 addresses on the link (gratuitous ARP).
    pub fn announce(&mut self) {
        self.slow.announce(0);
        self.must_run = true;
    }

    /// Gives the host one more address.
    pub fn add_address(&mut self, addr: IpAddr, prefix_len: u8) {
        self.slow.add_address(OwnAddress { addr, prefix_len });
    }

    /// A frame comes from the network; the next [`run`](Self::run) handles it.
    pub fn inject(&mut self, frame: &[u8]) {
        self.inject_owned(frame.to_vec());
    }

    /// As [`inject`](Self::inject), for a frame that nothing else needs.
    pub(crate) fn inject_owned(&mut self, frame: Vec<u8>) {
        let lane = match &self.steering {
            Some(steering) => steering.queue_of(&frame),
            None => queue_of(&frame, self.lanes.len()),
        };
        let lane = self.strays.queue(lane, self.lanes.len());
        self.lanes[lane].interface.inject(frame);
    }

    /// Runs cores and slow path until nothing more happens at `now`.
    ///
    /// # Panics
    /// When the host does not come to rest.
    pub fn run(&mut self, now: Instant) {
        self.flush();
        self.now = now;
        self.must_run = false;
        for _ in 0..ROUNDS_MAX {
            if !self.round(now) {
                return;
            }
        }
        panic!("the host never comes to rest at {now:?}");
    }

    fn round(&mut self, now: Instant) -> bool {
        let Self { slow, lanes, turns, exceptions_most, processors, repeats, .. } = self;
        let mut is_busy = false;
        for (i, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| lane.free_at() <= now) {
            *turns += 1;
            processors.iter_mut().for_each(|all| all.begin(i, now, lane.core.counters()));
            lane.interface.begin(*turns);
            let (before, fired) = (lane.interface.waiting(), lane.core.counters().loss_timers);
            let progress = lane.core.poll(now, &mut lane.interface);
            let fired = lane.core.counters().loss_timers - fired;
            repeats.round(now, lane.interface.heard(), fired, lane.interface.sent_after(before));
            lane.core.wakes().for_each(drop);
            lane.core.strangers().for_each(drop);
            lane.deadline = progress.deadline;
            let found = progress.is_busy() || progress.wake_cores != 0;
            is_busy |= found;
            if let Some(all) = processors {
                lane.busy_until = all.end(i, now, &lane.core, found);
            }
            let mut take = |exception, frame: &[u8]| slow.handle_exception(now, i as u8, exception, frame);
            let mut left = *exceptions_most;
            while left > 0 && lane.exceptions.pop(&mut take).is_some() {
                (is_busy, left) = (true, left - 1);
            }
        }
        is_busy |= self.steer(now) | self.scale(now);
        if self.slow.next_deadline() <= now {
            self.slow.handle_timers(now);
            is_busy = true;
        }
        while let Some(event) = self.slow.poll_event() {
            self.on_event(event);
            is_busy = true;
        }
        if let Some(desk) = &mut self.desk {
            is_busy |= desk.run(now, &mut self.slow);
        }
        while self.slow.poll_news().is_some() {}
        is_busy || self.has_input()
    }

    fn has_input(&self) -> bool {
        self.lanes.iter().any(|lane| lane.interface.has_news() && lane.free_at() <= self.now)
    }

    /// Takes the next frame for the network, in the order in which the cores have sent them.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        let next = self.lanes.iter_mut().min_by_key(|lane| lane.interface.next_turn().unwrap_or(u64::MAX))?;
        next.interface.take()
    }

    /// When [`run`](Self::run) is due even if nothing happens; in the past when there is work now.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        if self.must_run || self.has_input() {
            return self.now;
        }
        // A core that is busy looks for more when it is done.
        let cores = self.lanes.iter().map(|lane| match lane.interface.has_news() {
            _ if self.now < lane.busy_until => lane.free_at(),
            true => lane.free_at(),
            false => lane.deadline.max(lane.free_at()),
        });
        let load = self.processors.as_ref().and_then(|all| all.elastic.due()).unwrap_or(Instant::NEVER);
        let steering = self.steering.as_ref().map_or(Instant::NEVER, Steering::next_deadline);
        let desk = self.desk.as_ref().map_or(Instant::NEVER, |desk| desk.next_deadline());
        cores.fold(self.slow.next_deadline().min(steering).min(desk).min(load), Instant::min)
    }

    /// The slow path, for its counters and listings.
    #[must_use]
    pub fn slow(&self) -> &SlowPath {
        &self.slow
    }

    /// Sets for the future whether the host agrees to ECN, and whether its own SYNs ask for it.
    pub const fn set_ecn(&mut self, agrees: bool, asks: bool) {
        self.slow.set_ecn(agrees, asks);
    }

    /// Takes the reports that the host's agent has kept: see [`Mind::Gives`](crate::Mind::Gives).
    pub fn take_reports(&mut self) -> Vec<KeptReport> {
        self.desk.as_mut().map(|desk| desk.take_kept()).unwrap_or_default()
    }

    /// Takes the datagrams between the endpoint and its agent, if the agent's setting has them kept.
    pub fn take_datagrams(&mut self) -> Vec<KeptDatagram> {
        self.desk.as_mut().map(|desk| desk.take_datagrams()).unwrap_or_default()
    }

    /// The host's agent: see [`Mind::Agent`](crate::Mind::Agent). What its handles of flows are told from outside leaves at the next run.
    pub fn agent(&mut self) -> Option<&mut ccp_agent::Agent> {
        self.touch();
        self.desk.as_mut()?.agent()
    }

    /// The counters of the first core.
    #[must_use]
    pub fn counters(&self) -> &fastpath::Counters {
        self.lanes[0].core.counters()
    }

    /// The statistics of the interface's first queue.
    #[must_use]
    pub fn interface(&self) -> port::Stats {
        port::Port::stats(&self.lanes[0].interface)
    }

    /// Notes that the next run has work to do.
    pub(crate) fn touch(&mut self) {
        self.must_run = true;
    }

    /// The sockets that are opened from now on are that application's.
    ///
    /// # Panics
    /// For an application that the host does not have.
    pub fn act_for(&mut self, application: u16) {
        assert!(usize::from(application) < self.homes.len(), "there is no such application");
        self.acting = application;
    }

    /// The application's memory, as the service sees it.
    pub(crate) fn home(&self, application: u16) -> &Home {
        &self.homes[usize::from(application)]
    }

    /// Takes a free slot of an application and clears it, as the service does.
    pub(crate) fn take_slot(&mut self, application: u16) -> Option<Place> {
        let home = &mut self.homes[usize::from(application)];
        let slot = home.free.pop()?;
        let (own, app) = home.region.halves(slot)?;
        own.clear();
        app.clear();
        home.uses[slot as usize] = Use::Waiting;
        Some(Place { application, slot })
    }

    /// The owner of the connection in a slot, as the service names it. Its core may differ from the core that gets its packets.
    pub(crate) fn owner(&self, Place { application, slot }: Place) -> Owner {
        Owner { region: application, slot, core: (slot % u32::from(self.serving())) as u8 }
    }

    /// Notes what a slot is used for.
    pub(crate) fn set_use(&mut self, Place { application, slot }: Place, use_: Use) {
        self.homes[usize::from(application)].uses[slot as usize] = use_;
    }

    pub(crate) fn free_slot(&mut self, Place { application, slot }: Place) {
        let home = &mut self.homes[usize::from(application)];
        debug_assert_ne!(home.uses[slot as usize], Use::Free, "freed twice");
        home.uses[slot as usize] = Use::Free;
        home.free.push(slot);
    }

    /// The application has released the slot: it becomes free at once, or when the core has released it.
    pub(crate) fn release_slot(&mut self, place: Place) {
        self.set_use(place, Use::Closed);
        if self.slow.release_slot(place.application, place.slot) == Release::Free {
            self.free_slot(place);
        }
        self.touch();
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Established { .. }
            | Event::ConnectFailed { .. }
            | Event::MemoryShort { .. }
            | Event::Closed { .. }
            | Event::AddressConflict { .. } => {}
            Event::Incoming { token, local, remote, pending } => {
                self.on_incoming(Fd(token as u32), local, remote, pending);
            }
            Event::Released { region: application, slot } => {
                if self.home(application).uses[slot as usize] == Use::Closed {
                    self.free_slot(Place { application, slot });
                }
            }
            Event::Violation { slot, what, .. } => {
                panic!("the socket layer broke its contract: {slot}: {what}")
            }
            Event::RegionDrained { .. } => self.drained += 1,
            Event::Steer { groups, core } => {
                let now = self.now;
                self.steering.iter_mut().for_each(|steering| steering.begin(now, groups, core));
            }
            Event::MoveOver { groups } => self.on_move_over(groups),
        }
    }
}

/// Core `index` with its queue and rings, and the sender of its commands.
fn lane(
    index: u8,
    config: &HostConfig,
    flows: &Arc<Flows>,
    others: Others,
    now: Instant,
) -> (Lane, CommandSender) {
    let (exception_tx, exceptions) = flow::exceptions(config.shared.ring_slots);
    let (commands, command_rx) = flow::commands(config.shared.ring_slots);
    let core = Core::new(index, flows.clone(), exception_tx, command_rx, config.capabilities, others);
    let interface = Interface::new(config.capabilities, config.merges);
    (Lane { core, exceptions, interface, deadline: now, stopped_until: now, busy_until: now }, commands)
}
