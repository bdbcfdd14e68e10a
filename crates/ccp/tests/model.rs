//! A datapath with many flows and several agents, all of them random: agents stop reading, die, restart, answer late and send nonsense, while
//! flows come and go. After each step the rules of the endpoint are checked. A failure names its seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::{Duration, Instant};
use ccp::{Command, Config, FlowId, GRACE_MIN, NotTaken, Sent};

use crate::bench::{
    Bench, Read, bad_install, change, config, control, cwnd, decode, install, new_flow, rate, update,
};

const ADDRESSES: [&str; 3] = ["/tmp/ccp/one", "/tmp/ccp/two", "/tmp/ccp/three"];
const NAMES: [&[&str]; 3] = [&[], &["copa"], &["copa", "bbr"]];
const STEP: Duration = Duration::from_us(500);
/// Longer than any interval of the endpoint but the second READY.
const LEAP: Duration = Duration::from_ms(150);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A flow in the datapath: its registers are one sum.
struct Flow {
    uid: u32,
    rtt: Duration,
    program: Option<u32>,
    /// Counted, and in no report yet.
    unsent: u64,
    /// In reports that the endpoint has taken.
    taken: u64,
    /// When the report was taken that no Accept has followed.
    waits_since: Option<Instant>,
}

/// A process behind an address.
struct Agent {
    pid: u32,
    uid: u32,
    is_reading: bool,
    /// Datagrams in its socket for the process before it: the endpoint had not yet learned of that one's end.
    foreign: usize,
    /// Flows by their numbers, as the process was told.
    known: BTreeMap<u32, u64>,
    ended: BTreeSet<u32>,
}

struct World {
    seed: u64,
    random: Random,
    bench: Bench,
    flows: BTreeMap<u64, Flow>,
    agents: BTreeMap<&'static str, Agent>,
    /// When an address has refused a datagram for want of room, and taken none since.
    full_since: BTreeMap<Vec<u8>, Instant>,
    /// What agents have read of each flow, in sum.
    delivered: BTreeMap<u64, u64>,
    taken_of_closed: BTreeMap<u64, u64>,
    next_flow: u64,
    next_pid: u32,
    reports: u64,
    fallbacks: u64,
    has_deaths: bool,
}

impl World {
    fn new(seed: u64, has_deaths: bool, messages_per_second: u32) -> Self {
        let mut bench = Bench::new(Config { messages_per_second, ..config() });
        for (address, names) in ADDRESSES.into_iter().zip(NAMES) {
            bench.endpoint.add_agent(bench.now, address.as_bytes(), names);
        }
        Self {
            seed,
            random: Random(seed),
            bench,
            flows: BTreeMap::new(),
            agents: BTreeMap::new(),
            full_since: BTreeMap::new(),
            delivered: BTreeMap::new(),
            taken_of_closed: BTreeMap::new(),
            next_flow: 1,
            next_pid: 1,
            reports: 0,
            fallbacks: 0,
            has_deaths,
        }
    }

    fn drive(&mut self) {
        let Self { bench, full_since, .. } = self;
        let Bench { endpoint, sockets, now } = bench;
        endpoint.drive(*now, &mut |address, datagram| {
            let sent = sockets.send(address, datagram);
            match sent {
                Sent::Full => {
                    full_since.entry(address.to_vec()).or_insert(*now);
                }
                Sent::Taken | Sent::Gone => {
                    full_since.remove(address);
                }
            }
            sent
        });
        self.obey();
    }

    fn obey(&mut self) {
        for command in self.bench.commands() {
            match command {
                Command::Program { flow, number, changes, program, .. } => {
                    assert!(changes.cwnd.is_none_or(|cwnd| (1448..=1_000_000).contains(&cwnd)));
                    assert_eq!(program.report_len(), 1);
                    if let Some(flow) = self.flows.get_mut(&flow.0) {
                        flow.program = Some(number);
                    }
                }
                Command::Change { flow, changes } => {
                    assert!(changes.rate.is_none_or(|rate| (1448..=50_000_000).contains(&rate)));
                    assert!(self.flows.get(&flow.0).is_none_or(|flow| flow.program.is_some()));
                }
                Command::Accept { flow } => {
                    if let Some(flow) = self.flows.get_mut(&flow.0) {
                        flow.waits_since = None;
                    }
                }
                Command::Default { flow, .. } => {
                    self.fallbacks += 1;
                    if let Some(flow) = self.flows.get_mut(&flow.0) {
                        assert!(flow.program.take().is_some(), "it ran no program");
                        flow.waits_since = None;
                    }
                }
            }
        }
    }

    fn open(&mut self) {
        let id = self.next_flow;
        self.next_flow += 1;
        let uid = [0, 1000, 1001][self.random.below(3) as usize];
        let rtt = Duration::from_us([20, 1000, 8000][self.random.below(3) as usize]);
        let name = ["", "copa", "bbr", "reno"][self.random.below(4) as usize];
        self.bench.endpoint.open(new_flow(id, uid, name, rtt)).expect("room");
        self.flows.insert(id, Flow { uid, rtt, program: None, unsent: 0, taken: 0, waits_since: None });
    }

    fn close(&mut self) {
        let Some(id) = self.some_flow() else { return };
        let Some(flow) = self.flows.remove(&id) else { return };
        self.taken_of_closed.insert(id, flow.taken);
        self.bench.endpoint.close(FlowId(id));
    }

    fn some_flow(&mut self) -> Option<u64> {
        let index = self.random.below(self.flows.len().max(1) as u64) as usize;
        self.flows.keys().nth(index).copied()
    }

    /// A run of the flow's program that counts and wants to report.
    fn count(&mut self) {
        let Some(id) = self.some_flow() else { return };
        let amount = 1 + self.random.below(9);
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let Some(program) = flow.program else { return };
        flow.unsent += amount;
        match self.bench.endpoint.report(FlowId(id), program, flow.rtt, &[flow.unsent]) {
            Ok(()) => {
                assert_eq!(flow.waits_since, None, "two reports of one flow");
                flow.taken += std::mem::take(&mut flow.unsent);
                flow.waits_since = Some(self.bench.now);
                self.reports += 1;
            }
            Err(NotTaken::Busy) => assert!(flow.waits_since.is_some(), "nothing waits"),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn start_agent(&mut self, address: &'static str) {
        let uid = [0, 1000][self.random.below(2) as usize];
        self.bench.bind(address);
        let pid = self.next_pid;
        self.next_pid += 1;
        let agent =
            Agent { pid, uid, is_reading: true, foreign: 0, known: BTreeMap::new(), ended: BTreeSet::new() };
        self.agents.insert(address, agent);
    }

    fn kill_agent(&mut self, address: &'static str) {
        self.agents.remove(address);
        self.bench.unbind(address);
        // Half of the deaths are seen by a pidfd, the other half by a datagram that finds no socket, or a new process.
        if self.random.one_in(2) {
            self.bench.endpoint.agent_died(self.bench.now, address.as_bytes());
        }
    }

    /// The agent reads one datagram, as Portus does, and answers.
    fn read(&mut self, address: &'static str) {
        let Some(datagram) =
            self.bench.sockets.0.get_mut(address.as_bytes()).and_then(|queue| queue.pop_front())
        else {
            return;
        };
        let is_known = self.is_known(address);
        let Some(agent) = self.agents.get_mut(address) else { return };
        let is_foreign = !is_known || agent.foreign > 0;
        agent.foreign = agent.foreign.saturating_sub(1);
        for read in decode(&datagram) {
            if read == Read::Ready || !is_foreign {
                self.hear(address, read);
            }
        }
    }

    fn is_known(&self, address: &str) -> bool {
        let process = self.bench.endpoint.process_of(address.as_bytes());
        self.agents.get(address).is_some_and(|agent| process == Some(agent.pid))
    }

    fn say(&mut self, address: &'static str, datagram: &[u8]) {
        let is_first = !self.is_known(address);
        let Some(agent) = self.agents.get_mut(address) else { return };
        if is_first {
            agent.foreign = self.bench.sockets.0.get(address.as_bytes()).map_or(0, |queue| queue.len());
        }
        self.bench.say_as(address, agent.uid, agent.pid, datagram);
        self.obey();
    }

    fn hear(&mut self, address: &'static str, read: Read) {
        let seed = self.seed;
        let Some(agent) = self.agents.get_mut(address) else { return };
        match read {
            Read::Ready => {
                for number in 1..=3 {
                    self.say(address, &install(number));
                }
            }
            Read::Create { flow, id, .. } => {
                let is_allowed =
                    agent.uid == 0 || self.flows.get(&id).is_none_or(|flow| flow.uid == agent.uid);
                assert!(is_allowed, "seed {seed}: flow {id} of another user");
                assert_eq!(agent.known.insert(flow, id), None, "seed {seed}: number {flow} given twice");
                let program = 1 + self.random.below(4) as u32;
                let fields = [cwnd(self.random.below(1 << 22)), control(0, 3)];
                self.say(address, &change(flow, program, &fields));
            }
            Read::Report { flow, values, .. } => {
                let id = *agent.known.get(&flow).unwrap_or_else(|| panic!("seed {seed}: a report of {flow}"));
                assert!(!agent.ended.contains(&flow), "seed {seed}: a report behind the end of {flow}");
                *self.delivered.entry(id).or_default() += values[0];
                if self.random.one_in(3) {
                    let fields = [rate(self.random.below(1 << 27)), cwnd(self.random.below(1 << 22))];
                    self.say(address, &update(flow, &fields));
                }
            }
            Read::End { flow } => {
                assert!(agent.known.contains_key(&flow), "seed {seed}: the end of unknown {flow}");
                assert!(agent.ended.insert(flow), "seed {seed}: {flow} ended twice");
            }
        }
    }

    /// A message that no agent should send: for any flow, of any program, or of any bytes.
    fn say_nonsense(&mut self, address: &'static str) {
        let flow = self.random.below(60) as u32;
        let datagram = match self.random.below(4) {
            0 => change(flow, self.random.below(5) as u32, &[cwnd(u64::MAX)]),
            1 => update(flow, &[rate(self.random.next()), control(self.random.below(20) as u32, 1)]),
            2 => (0..self.random.below(40)).map(|_| self.random.next() as u8).collect(),
            _ => bad_install(self.random.below(4) as u32),
        };
        self.say(address, &datagram);
    }

    fn step(&mut self) {
        let address = ADDRESSES[self.random.below(3) as usize];
        match self.random.below(100) {
            0..8 => self.open(),
            8..14 => self.close(),
            14..60 => self.count(),
            60..63 if !self.agents.contains_key(address) => self.start_agent(address),
            63 if self.has_deaths && self.agents.contains_key(address) => self.kill_agent(address),
            64 => self.agents.get_mut(address).into_iter().for_each(|agent| agent.is_reading = false),
            65..69 => self.agents.get_mut(address).into_iter().for_each(|agent| agent.is_reading = true),
            69..71 if self.agents.contains_key(address) => self.say_nonsense(address),
            71..90 => {
                for address in ADDRESSES {
                    if self.agents.get(address).is_some_and(|agent| agent.is_reading) {
                        self.read(address);
                    }
                }
            }
            99 => self.bench.now = self.bench.now.plus(LEAP),
            _ => self.bench.now = self.bench.now.plus(STEP),
        }
        self.drive();
        self.bench.notices();
        self.check();
    }

    fn check(&self) {
        for (id, sum) in &self.delivered {
            let taken = self.taken(*id);
            assert!(*sum <= taken, "seed {}: flow {id} reported {taken}, {sum} arrived", self.seed);
        }
        // With one full agent for all flows it is known which flow waits for which agent.
        let all_full = ADDRESSES.iter().map(|address| self.full_since.get(address.as_bytes()).copied());
        let Some(full_since) = all_full.collect::<Option<Vec<_>>>() else { return };
        let full_since = full_since.into_iter().max().unwrap_or(Instant::NEVER);
        for (id, flow) in &self.flows {
            let Some(since) = flow.waits_since else { continue };
            let grace = Duration::from_ns(flow.rtt.as_ns() * 3).max(GRACE_MIN);
            let waits = self.bench.now.since(since.max(full_since));
            assert!(waits <= grace, "seed {}: flow {id} has waited for {waits:?} of {grace:?}", self.seed);
        }
    }

    fn taken(&self, id: u64) -> u64 {
        self.flows.get(&id).map_or_else(|| self.taken_of_closed[&id], |flow| flow.taken)
    }

    /// All agents read until nothing more comes.
    fn settle(&mut self) {
        for round in 0..2000 {
            self.bench.now = self.bench.now.plus(Duration::from_ms(100));
            self.drive();
            for address in ADDRESSES {
                while self.bench.sockets.0.get(address.as_bytes()).is_some_and(|queue| !queue.is_empty()) {
                    if !self.agents.contains_key(address) {
                        break;
                    }
                    self.read(address);
                }
            }
            self.bench.notices();
            // An agent that was full takes what waits a round later.
            if round > 2 && self.flows.values().all(|flow| flow.waits_since.is_none()) {
                break;
            }
        }
    }

    fn finish(&mut self) {
        self.settle();
        self.check();
        for (id, flow) in &self.flows {
            assert_eq!(flow.waits_since, None, "seed {}: the report of flow {id} never went", self.seed);
        }
        if !self.has_deaths {
            let ids = self.flows.keys().chain(self.taken_of_closed.keys());
            for id in ids {
                let arrived = self.delivered.get(id).copied().unwrap_or(0);
                assert_eq!(arrived, self.taken(*id), "seed {}: reports of flow {id} were lost", self.seed);
            }
        }
    }
}

/// Runs a world for each seed: for half of them the budget is small. The model means something only if all of them together have more
/// reports and fallbacks than these.
fn run_all(seeds: Range<u64>, has_deaths: bool, reports_floor: u64, fallbacks_floor: u64) {
    let (mut reports, mut fallbacks) = (0, 0);
    for seed in seeds {
        let world = run(seed, has_deaths, if seed % 2 == 0 { 1_000_000 } else { 2000 });
        reports += world.reports;
        fallbacks += world.fallbacks;
    }
    assert!(
        reports > reports_floor && fallbacks > fallbacks_floor,
        "the model did little: {reports} reports, {fallbacks} fallbacks"
    );
}

fn run(seed: u64, has_deaths: bool, messages_per_second: u32) -> World {
    let mut world = World::new(seed, has_deaths, messages_per_second);
    for _ in 0..4000 {
        world.step();
    }
    world.finish();
    world
}

#[test]
fn no_report_is_lost_or_sent_twice_while_agents_stop_and_read() {
    run_all(0..40, false, 5000, 50);
}

#[test]
fn agents_die_and_restart_at_any_instant() {
    run_all(1000..1040, true, 2000, 200);
}
