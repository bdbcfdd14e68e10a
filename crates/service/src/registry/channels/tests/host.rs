//! One simulated host: a core and a slow path of the service, the engine of channels, and what the control thread does for it.

use super::programs::{Outcome, Plan, Program};
use super::wire::Frames;
use crate::registry::channels::engine::{Engine, Opening, Say, Shared, Start, Told};
use crate::registry::memory::Memory;
use base::{Instant, Seed};
use channel::lane::{Class, Lane, Sharing};
use channel::open::Open;
use channel::session::ECONNREFUSED;
use elastic::load::{LoadMeter, Loads};
use fastpath::{Core, Others};
use flow::{ExceptionReceiver, FlowId, Flows, Limits};
use queue::stream::{close_for, raise, watch};
use shm::half_flags::OPEN;
use shm::{Kind, Params, Region};
use slowpath::{Connect, Event, FlowOptions, OwnAddress, Owner, PendingId, Release, SlowPath};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use wire::{Endpoint, MacAddr};

/// Indices of the programs' region and of the service's own.
const PROGRAMS: u16 = 0;
const OWN: u16 = 1;
const SLOTS: u32 = 128;
const DATA: u64 = 8 << 20;
/// The port of the channel service.
const PORT: u16 = 7_117;
/// The slow path's name for the listener at it.
const TOKEN: u64 = 1;
/// The port of the programs.
const PLAIN_PORT: u16 = 80;
/// The slow path's name for the listener at it.
const PLAIN_TOKEN: u64 = 2;
/// A host that is still busy after so many rounds at one instant never comes to rest.
const ROUNDS_MAX: usize = 100_000;

/// Ways between the hosts: each host has an address on each.
const WAYS: u8 = 2;

/// The address of a host.
pub fn address(host: usize) -> IpAddr {
    address_on(host, 0)
}

/// The address of a host on one of the ways to the other.
pub fn address_on(host: usize, way: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, way, 1 + host as u8))
}

/// How a connection of a program goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By channel, in a lane of that class.
    Channel(Class),
    /// As a TCP connection of its own.
    Plain,
    /// As a TCP connection to the other host's channel service, which hears nothing it understands.
    Stranger,
}

/// How a host has its channels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Channels {
    /// The number for each session; `None`: as the load asks.
    pub number: Option<usize>,
    /// They go over all ways.
    pub on_all_ways: bool,
    /// The host's core is always busy, and another one is free.
    pub is_full: bool,
    /// How many times the host has started before.
    pub starts: u64,
}

/// A region with its free slots; slot 0 is the control slot.
#[derive(Debug)]
struct Slots {
    memory: Arc<Memory>,
    free: Vec<u32>,
}

impl Slots {
    fn new(index: u16) -> Self {
        let id = 1 + u32::from(index);
        let params = Params { kind: Kind::Application, id: u64::from(id), slots: SLOTS, data_len: DATA };
        let (region, fd) = Region::create(params).expect("memory for a simulated region");
        let memory = Arc::new(Memory::new(id, index, region, fd, Limits::none()));
        memory.area.set_watermark(DATA);
        Self { memory, free: (1..SLOTS).rev().collect() }
    }

    fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        let (own, app) = self.memory.halves(slot)?;
        own.clear();
        app.clear();
        Some(slot)
    }
}

/// One host: its core, slow path, engine of channels and programs.
#[derive(Debug)]
pub struct Host {
    core: Core,
    slow: SlowPath,
    exceptions: ExceptionReceiver,
    /// The port through which the host sends and hears frames.
    pub port: Frames,
    engine: Engine,
    own: Slots,
    programs_slots: Slots,
    /// Slots of the service's own region that are closed and not free yet.
    leaving: BTreeSet<u32>,
    /// Ends of connections, by slot.
    pub programs: BTreeMap<u32, Program>,
    /// Slots that the engine has let go of before their programs.
    gone: BTreeSet<u32>,
    /// What the ends of connections came to, by the port of the connecting end.
    pub outcomes: BTreeMap<u16, Outcome>,
    ports: BTreeMap<u32, u16>,
    /// Plans of the accepting ends, by the port of the connecting end.
    pub expected: BTreeMap<u16, Plan>,
    /// Connections to these ports this host refuses.
    pub refused: BTreeSet<u16>,
    deadline: Instant,
    now: Instant,
    address: IpAddr,
    loads: Arc<Loads>,
    /// Of a core that is always busy.
    meter: Option<LoadMeter>,
}

/// What the hub of host `number` is made with.
fn hub(number: usize, channels: Channels, seed: &mut Seed) -> channel::Config {
    let mut hub_seed = [0; 32];
    hub_seed[..8].copy_from_slice(&seed.next_u64().to_le_bytes());
    let all = || (0..2).map(|host| (0..WAYS).map(|way| address_on(host, way)).collect()).collect();
    channel::Config {
        hosts: if channels.on_all_ways { all() } else { Vec::new() },
        ..channel::Config::new(hub_seed, 1 + number as u64 + 10 * channels.starts)
    }
}

impl Host {
    /// A host that starts at `now`.
    pub fn new(number: usize, channels: Channels, seed: &mut Seed, now: Instant) -> Self {
        let mac = [2, 0, 0, 0, 0, 1 + number as u8];
        let shared =
            flow::Config { flows: SLOTS, regions: 2, ring_slots: SLOTS as usize, ..flow::Config::default() };
        let flows = Arc::new(Flows::new(shared, [seed.next_u64(), seed.next_u64()]));
        let (exception_sender, exceptions) = flow::exceptions(512);
        let (commands, command_receiver) = flow::commands(64);
        let port = Frames::new(mac);
        let capabilities = port::Port::capabilities(&port);
        let others = Others::alone(flows.config());
        let core = Core::new(0, flows.clone(), exception_sender, command_receiver, capabilities, others);
        let addresses = (0..WAYS).map(|way| OwnAddress { addr: address_on(number, way), prefix_len: 24 });
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&seed.next_u64().to_le_bytes());
        let slow_config = slowpath::Config {
            mac: MacAddr(mac),
            addresses: addresses.collect(),
            secret,
            mtu: 1_500,
            ..slowpath::Config::default()
        };
        let mut slow = SlowPath::new(slow_config, flows.clone(), vec![commands], now);
        let (own, programs_slots) = (Slots::new(OWN), Slots::new(PROGRAMS));
        assert!(
            slow.add_region(OWN, &own.memory.area) && slow.add_region(PROGRAMS, &programs_slots.memory.area)
        );
        for way in 0..WAYS {
            slow.listen(Endpoint::new(address_on(number, way), PORT), TOKEN, 64).expect("a fresh table");
        }
        slow.set_accept_room(TOKEN, 64);
        slow.listen(Endpoint::new(address(number), PLAIN_PORT), PLAIN_TOKEN, SLOTS).expect("a fresh table");
        slow.set_accept_room(PLAIN_TOKEN, SLOTS as usize);
        let start = Start {
            hub: hub(number, channels, seed),
            memory: own.memory.clone(),
            cores: Arc::from([]),
            ring_most: 256 << 10,
            channels: channels.number,
        };
        let loads = Arc::new(Loads::new(if channels.is_full { 2 } else { 1 }));
        let engine =
            Engine::new(start, Shared { wakers: Arc::default(), records: flows, loads: loads.clone() });
        Self {
            core,
            slow,
            exceptions,
            port,
            engine,
            own,
            programs_slots,
            leaving: BTreeSet::new(),
            programs: BTreeMap::new(),
            gone: BTreeSet::new(),
            outcomes: BTreeMap::new(),
            ports: BTreeMap::new(),
            expected: BTreeMap::new(),
            refused: BTreeSet::new(),
            deadline: now,
            now,
            address: address(number),
            loads,
            meter: channels.is_full.then(|| LoadMeter::new(0)),
        }
    }

    /// A program connects, from that port, to the other host. False: no slot is free.
    pub fn connect(&mut self, way: Way, from_port: u16, to: IpAddr, plan: Plan) -> bool {
        let Some(slot) = self.programs_slots.take() else { return false };
        let memory = self.programs_slots.memory.clone();
        self.add_program(slot, from_port, plan);
        let Way::Channel(class) = way else {
            let owner = Owner { region: PROGRAMS, slot, core: 0 };
            let port = if way == Way::Stranger { PORT } else { PLAIN_PORT };
            let (local, remote) = (Endpoint::new(self.address, from_port), Endpoint::new(to, port));
            let options = FlowOptions::default();
            let what = Connect { token: 0, local: Some(local), remote, owner, options };
            self.slow.connect(self.now, &what).expect("there is room for the connection");
            return true;
        };
        let open = Open { from_port, to: SocketAddr::new(to, PLAIN_PORT), options: 0 };
        let lane = Lane::of(to, class, 1, Sharing::SameUser);
        let opening = Opening { memory, slot, lane, open, is_required: true };
        self.engine.obey(self.now, Say::Open(Box::new(opening)));
        true
    }

    fn add_program(&mut self, slot: u32, port: u16, plan: Plan) {
        let memory = self.programs_slots.memory.clone();
        if let Some((own, _)) = memory.halves(slot) {
            // Its application rings the core with the engine.
            watch(own, Some(0));
        }
        self.programs.insert(slot, Program::new(memory, slot, plan));
        self.ports.insert(slot, port);
    }

    /// The connections of all channels.
    fn flows(&self) -> Vec<FlowId> {
        (1..SLOTS).filter_map(|slot| self.own.memory.area.flow_of(slot)).collect()
    }

    /// The host dies and starts anew: its programs are gone, and its service knows nothing of the time before but what is to come.
    pub fn restart(&mut self, number: usize, channels: Channels, seed: &mut Seed) {
        let fresh = Self::new(number, channels, seed, self.now);
        let before = std::mem::replace(self, fresh);
        (self.expected, self.refused, self.outcomes) = (before.expected, before.refused, before.outcomes);
        for slot in before.programs.keys() {
            self.outcomes.insert(before.ports[slot], Outcome::Reset);
        }
    }

    /// Kills the connection of one channel by a RST to both ends. False: there is none.
    pub fn kill(&mut self, seed: &mut Seed) -> bool {
        let flows = self.flows();
        if flows.is_empty() {
            return false;
        }
        self.slow.abort(self.now, flows[seed.below(flows.len() as u64) as usize]);
        true
    }

    /// Kills the connections of all channels.
    pub fn kill_all(&mut self) {
        self.flows().into_iter().for_each(|flow| self.slow.abort(self.now, flow));
    }

    /// Each program has its turn. True: one has done something.
    pub fn turns(&mut self, now: Instant, seed: &mut Seed) -> bool {
        let mut is_busy = false;
        for program in self.programs.values_mut() {
            is_busy |= program.turn(now, seed);
        }
        let over: Vec<(u32, Outcome)> =
            self.programs.iter().filter_map(|(slot, program)| Some((*slot, program.outcome?))).collect();
        for (slot, outcome) in over {
            self.programs.remove(&slot);
            self.outcomes.insert(self.ports[&slot], outcome);
            if self.gone.remove(&slot) {
                self.programs_slots.free.push(slot);
            }
        }
        is_busy
    }

    /// Runs core, slow path and engine until nothing more happens at `now`.
    pub fn run(&mut self, now: Instant) {
        self.now = now;
        self.meter.iter_mut().for_each(|meter| _ = meter.begin(now, 0, &self.loads));
        for _ in 0..ROUNDS_MAX {
            if !self.round(now) {
                return;
            }
        }
        panic!("the host never comes to rest at {now:?}");
    }

    fn round(&mut self, now: Instant) -> bool {
        let progress = self.core.poll(now, &mut self.port);
        self.core.wakes().for_each(drop);
        self.engine.wakes().for_each(drop);
        self.deadline = progress.deadline;
        let mut is_busy = progress.is_busy();
        let strangers: Vec<(u16, u32)> = self.core.strangers().collect();
        strangers.into_iter().for_each(|(region, slot)| _ = self.engine.news(region, slot));
        let Self { slow, exceptions, .. } = self;
        let mut take = |exception, frame: &[u8]| slow.handle_exception(now, 0, exception, frame);
        while exceptions.pop(&mut take).is_some() {
            is_busy = true;
        }
        if self.slow.next_deadline() <= now {
            self.slow.handle_timers(now);
            is_busy = true;
        }
        while let Some(event) = self.slow.poll_event() {
            self.event(event);
            is_busy = true;
        }
        while self.slow.poll_news().is_some() {}
        if self.engine.has_work(now) {
            self.engine.work(now);
            let told: Vec<Told> = self.engine.told().collect();
            told.into_iter().for_each(|told| self.told(told));
            is_busy = true;
        }
        is_busy
    }

    /// When `run` is due, even if nothing comes.
    pub fn next_deadline(&self) -> Instant {
        self.deadline.min(self.slow.next_deadline()).min(self.engine.deadline())
    }

    /// When a program sends its next request.
    pub fn next_call(&self) -> Instant {
        self.programs.values().map(Program::next_call).min().unwrap_or(Instant::NEVER)
    }

    /// The service ends: first what programs still have, then the rest.
    pub fn shut(&mut self, rest: bool) {
        self.say(if rest { Say::ShutRest } else { Say::Shut });
    }

    /// The ends of the programs' sockets lose their credit, and the sessions do not know.
    pub fn take_credit(&mut self) {
        self.engine.take_credit();
    }

    fn say(&mut self, say: Say) {
        self.engine.obey(self.now, say);
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Incoming { token: PLAIN_TOKEN, remote, pending, .. } => {
                self.program_arrives(remote, pending);
            }
            Event::Incoming { remote, pending, .. } => self.channel_arrives(remote, pending),
            Event::Released { region: OWN, slot } if self.leaving.remove(&slot) => self.own_freed(slot),
            Event::Violation { what, .. } => panic!("the engine broke the rules of a flow: {what}"),
            Event::MemoryShort { .. } => panic!("the service's own region is too small"),
            _ => {}
        }
    }

    fn channel_arrives(&mut self, remote: Endpoint, pending: PendingId) {
        self.slow.set_accept_room(TOKEN, 64);
        let Some(slot) = self.own.take() else { return self.slow.refuse(self.now, pending) };
        let owner = Owner { region: OWN, slot, core: 0 };
        if self.slow.accept(self.now, pending, owner).is_err() {
            return self.own.free.push(slot);
        }
        self.say(Say::Arrived(slot, remote.addr, true));
    }

    fn program_arrives(&mut self, remote: Endpoint, pending: PendingId) {
        self.slow.set_accept_room(PLAIN_TOKEN, SLOTS as usize);
        let slot = self.programs_slots.take().expect("a slot for each program");
        self.add_program(slot, remote.port, self.expected[&remote.port]);
        let owner = Owner { region: PROGRAMS, slot, core: 0 };
        self.slow.accept(self.now, pending, owner).expect("there is room for the connection");
    }

    fn own_freed(&mut self, slot: u32) {
        self.own.free.push(slot);
        self.say(Say::Freed(slot));
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::Connect { channel, peer, .. } => {
                let made = self.own.take().filter(|slot| {
                    let owner = Owner { region: OWN, slot: *slot, core: 0 };
                    let remote = Endpoint::new(peer, PORT);
                    let what =
                        Connect { token: 0, local: None, remote, owner, options: FlowOptions::default() };
                    let is_begun = self.slow.connect(self.now, &what).is_ok();
                    if !is_begun {
                        self.own.free.push(*slot);
                    }
                    is_begun
                });
                self.say(Say::Made(channel, made));
            }
            Told::Left { slot } => {
                let (own, app) = self.own.memory.halves(slot).expect("a slot of the region");
                close_for(app, own, false);
                match self.slow.release_slot(OWN, slot) {
                    Release::Free => self.own_freed(slot),
                    _ => _ = self.leaving.insert(slot),
                }
            }
            Told::Incoming { at, open, .. } => {
                let plan = self.expected.get(&open.from_port).copied();
                let plan = plan.filter(|_| !self.refused.contains(&open.from_port));
                let taken = plan.and_then(|plan| Some((plan, self.programs_slots.take()?)));
                let Some((plan, slot)) = taken else {
                    return self.say(Say::Refuse(at, ECONNREFUSED));
                };
                self.add_program(slot, open.from_port, plan);
                let memory = self.programs_slots.memory.clone();
                if let Some((own, _)) = memory.halves(slot) {
                    raise(own, OPEN);
                }
                self.say(Say::Accept(at, memory, slot));
            }
            Told::Gone { slot, .. } => {
                if self.programs.contains_key(&slot) {
                    self.gone.insert(slot);
                } else {
                    self.programs_slots.free.push(slot);
                }
            }
            Told::Unserved { .. } => panic!("every program requires channels"),
            Told::Speaks(_) | Told::Over(_) | Told::Rejected(_) => {}
            Told::Violation(_, what) => panic!("a program broke the rules: {what}"),
            Told::MemoryShort { .. } => panic!("the regions are large enough"),
        }
    }

    /// Checks that nothing is left: every slot is free, and every ring of programs came back; of the service's own region the core keeps some
    /// rings warm. Returns what is left.
    pub fn leftovers(&self) -> Option<String> {
        let (all, rings) = (SLOTS as usize - 1, self.programs_slots.memory.area.lent());
        let free = [self.own.free.len(), self.programs_slots.free.len()];
        let kept = (1..SLOTS).filter(|slot| !self.programs_slots.free.contains(slot));
        let kept: Vec<_> =
            kept.map(|slot| (slot, self.ports.get(&slot), self.gone.contains(&slot))).collect();
        (free != [all; 2] || rings != 0)
            .then(|| format!("free slots {free:?} of {all}, {rings} bytes of rings, kept {kept:?}"))
    }

    /// Number of slots of the service's own region that a channel's connection has.
    pub fn used_by_channels(&self) -> usize {
        SLOTS as usize - 1 - self.own.free.len()
    }

    /// The sessions' counters, and the number of channels, of the engine.
    pub fn snapshot(&mut self) -> crate::registry::channels::snapshot::Snapshot {
        let (ask, answer) = std::sync::mpsc::channel();
        self.say(Say::Report(ask));
        answer.recv().expect("the engine answers at once")
    }
}
