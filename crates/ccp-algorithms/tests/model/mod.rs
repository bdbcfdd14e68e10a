//! A path with one bottleneck, in packets and virtual time: flows with unlimited data, a FIFO with a tail, marks, and a constant delay. Nothing
//! is random. Each flow's program runs in a `ccp_vm::Machine` for each acknowledgement, and an agent decides over `ccp::Endpoint`, 20 us away.

mod sender;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddrV4};

use base::{Duration, Instant};
use ccp::{Command, Config, Endpoint, FlowId, NewFlow, Sent};
use ccp_agent::{Agent, Algorithm};
use ccp_wire::Create;

pub use sender::{MSS, Sample, Sender};

const AGENT: &[u8] = b"agent";
const DATAPATH: &[u8] = b"datapath";
/// From a report to the agent, and from there back (CCP paper, section 7.3: 20 us).
const STALENESS: Duration = Duration::from_us(10);
/// A program runs at least so often, also without acknowledgements.
const TICK: Duration = Duration::from_ms(5);
const SAMPLE: Duration = Duration::from_ms(10);

/// The bottleneck and the delay around it.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub bytes_per_second: u64,
    pub rtt: Duration,
    pub buffer: u64,
    /// Packets that find more than so many bytes before them are marked.
    pub mark_above: u64,
}

impl Path {
    /// A path with a buffer of `bdps` bandwidth-delay products.
    pub fn new(mbit: f64, rtt_ms: u64, bdps: f64) -> Self {
        let bytes_per_second = (mbit * 125_000.0) as u64;
        let bdp = bytes_per_second as f64 * rtt_ms as f64 / 1000.0;
        let rtt = Duration::from_ms(rtt_ms);
        Self { bytes_per_second, rtt, buffer: (bdp * bdps) as u64, mark_above: u64::MAX }
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_ns(bytes * 1_000_000_000 / self.bytes_per_second)
    }
}

/// What happens at a time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Open(u64),
    /// Packet `number` of a flow has come back, marked or not.
    Acknowledged(u64, u64, bool),
    /// The pacer of a flow lets a packet go.
    Paced(u64),
    Tick(u64),
    Close(u64),
    ToAgent(Vec<u8>),
    ToDatapath(Vec<u8>),
    AgentTimer,
    Cross,
    Sample,
}

/// A source of packets that listens to nothing, at `rate` bytes per second between two times.
#[derive(Clone, Copy, Debug)]
pub struct Cross {
    pub rate: u64,
    pub from: Instant,
    pub until: Instant,
}

pub struct World {
    pub path: Path,
    pub now: Instant,
    pub agent: Agent,
    pub endpoint: Endpoint,
    pub senders: BTreeMap<u64, Sender>,
    /// What closed flows have left behind.
    pub closed: BTreeMap<u64, Sender>,
    pub log: Vec<ccp_agent::Event>,
    /// Endpoint or agent may have something to say.
    has_news: bool,
    free_at: Instant,
    cross: Option<Cross>,
    heap: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    count: u64,
    names: BTreeMap<u64, String>,
    /// Windows of flows that do not begin with the initial one, bytes.
    windows: BTreeMap<u64, u64>,
}

pub fn ms(ms: u64) -> Instant {
    Instant::ZERO.plus(Duration::from_ms(ms))
}

impl World {
    pub fn new(path: Path, algorithm: impl Algorithm + 'static) -> Self {
        let mut agent = Agent::new();
        agent.add(algorithm).unwrap_or_else(|why| panic!("{why}"));
        Self::with(path, agent)
    }

    pub fn with(path: Path, agent: Agent) -> Self {
        let mut endpoint = Endpoint::new(Config {
            datapath: 1,
            own_uid: 0,
            allowed_uids: Vec::new(),
            messages_per_second: 1_000_000,
            cwnd_max: 1 << 30,
            rate_max: 1 << 40,
            flows_max: 100,
        });
        endpoint.add_agent(Instant::ZERO, AGENT, &[]);
        let mut world = Self {
            path,
            now: Instant::ZERO,
            agent,
            endpoint,
            senders: BTreeMap::new(),
            closed: BTreeMap::new(),
            log: Vec::new(),
            has_news: false,
            free_at: Instant::ZERO,
            cross: None,
            heap: BinaryHeap::new(),
            count: 0,
            names: BTreeMap::new(),
            windows: BTreeMap::new(),
        };
        world.at(Instant::ZERO, Event::Sample);
        world.talk();
        world
    }

    /// A flow that begins at `from_ms` and ends at `until_ms`.
    pub fn flow(&mut self, id: u64, from_ms: u64, until_ms: u64) {
        self.flow_of(id, "", from_ms, until_ms);
    }

    /// A flow of algorithm `name`.
    pub fn flow_of(&mut self, id: u64, name: &str, from_ms: u64, until_ms: u64) {
        self.names.insert(id, name.to_owned());
        self.at(ms(from_ms), Event::Open(id));
        self.at(ms(until_ms), Event::Close(id));
    }

    /// A flow that another algorithm has brought to a window of so many segments.
    pub fn grown_flow(&mut self, id: u64, segments: u64, until_ms: u64) {
        self.windows.insert(id, segments * MSS);
        self.flow(id, 0, until_ms);
    }

    pub fn cross(&mut self, cross: Cross) {
        self.cross = Some(cross);
        self.at(cross.from, Event::Cross);
    }

    pub fn run(&mut self, until_ms: u64) {
        while let Some(Reverse((at, _, _))) = self.heap.peek() {
            if *at > ms(until_ms) {
                return;
            }
            let Some(Reverse((at, _, event))) = self.heap.pop() else { return };
            self.now = at;
            self.handle(event);
            if std::mem::take(&mut self.has_news) {
                self.talk();
            }
        }
    }

    /// The queueing delay that a packet would see now.
    pub fn queue(&self) -> Duration {
        self.free_at.since(self.now)
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.heap.push(Reverse((at, self.count, event)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Open(id) => self.open(id),
            Event::Close(id) => {
                self.has_news = true;
                self.endpoint.close(FlowId(id));
                self.closed.extend(self.senders.remove_entry(&id));
            }
            Event::Acknowledged(id, number, is_marked) => {
                let now = self.now;
                let Some(sender) = self.senders.get_mut(&id) else { return };
                sender.acknowledged(now, number, is_marked);
                self.turn(id);
            }
            Event::Paced(id) => self.turn(id),
            Event::Tick(id) => {
                let now = self.now;
                let Some(sender) = self.senders.get_mut(&id) else { return };
                sender.tick(now);
                self.at(now.plus(TICK), Event::Tick(id));
                self.turn(id);
            }
            Event::ToAgent(bytes) => {
                self.agent.receive(self.now, DATAPATH, &bytes);
                self.has_news = true;
            }
            Event::ToDatapath(bytes) => {
                self.has_news = true;
                let sender = ccp::Sender { address: AGENT, pid: 1, uid: 0 };
                self.endpoint.receive(self.now, sender, &bytes);
            }
            Event::AgentTimer => {
                self.agent.drive(self.now);
                self.has_news = true;
            }
            Event::Cross => self.send_cross(),
            Event::Sample => {
                let queue = self.queue();
                self.senders.values_mut().for_each(|sender| sender.sample(self.now, queue));
                self.at(self.now.plus(SAMPLE), Event::Sample);
            }
        }
    }

    fn open(&mut self, id: u64) {
        self.has_news = true;
        let source = SocketAddrV4::new(Ipv4Addr::LOCALHOST, id as u16);
        let destination = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);
        let name = self.names.get(&id).map_or("", String::as_str);
        let window = self.windows.get(&id).copied().unwrap_or(10 * MSS);
        let create = Create::new(window as u32, MSS as u32, source, destination);
        let create = create.with_name(name).expect("a short name");
        let new = NewFlow { id: FlowId(id), uid: 0, rtt: self.path.rtt, rate_max: u64::MAX, create };
        self.endpoint.open(new).expect("there is room");
        let mut sender = Sender::new(self.now);
        sender.cwnd = window;
        self.senders.insert(id, sender);
        self.at(self.now.plus(TICK), Event::Tick(id));
        self.turn(id);
    }

    /// Hands on a report of a flow, and sends what it may send.
    fn turn(&mut self, id: u64) {
        let Some(sender) = self.senders.get_mut(&id) else { return };
        if let Some(report) = sender.take_report() {
            self.has_news = true;
            self.endpoint.report(FlowId(id), report.program, sender.srtt, &report.values).expect("accepted");
        }
        while let Some(sender) = self.senders.get_mut(&id)
            && sender.may_send()
        {
            if let Some(at) = sender.paced_until(self.now) {
                if sender.wakes_at(at) {
                    self.at(at, Event::Paced(id));
                }
                return;
            }
            let number = sender.send(self.now);
            if let Some((back, is_marked)) = self.carry(MSS) {
                self.at(back, Event::Acknowledged(id, number, is_marked));
            }
        }
    }

    /// When the acknowledgement of a packet comes back, and whether it is marked; `None`: dropped.
    fn carry(&mut self, bytes: u64) -> Option<(Instant, bool)> {
        let queued = self.queue().as_ns() * (self.path.bytes_per_second / 1000) / 1_000_000;
        if queued + bytes > self.path.buffer {
            return None;
        }
        self.free_at = self.free_at.max(self.now).plus(self.path.time_of(bytes));
        Some((self.free_at.plus(self.path.rtt), queued > self.path.mark_above))
    }

    fn send_cross(&mut self) {
        let Some(cross) = self.cross else { return };
        if self.now < cross.until {
            self.carry(MSS);
            let gap = Duration::from_ns(MSS * 1_000_000_000 / cross.rate);
            self.at(self.now.plus(gap), Event::Cross);
        }
    }

    /// Lets endpoint and agent say what they have to say.
    fn talk(&mut self) {
        let mut to_agent = Vec::new();
        self.endpoint.drive(self.now, &mut |_, bytes| {
            to_agent.push(bytes.to_vec());
            Sent::Taken
        });
        let then = self.now.plus(STALENESS);
        to_agent.into_iter().for_each(|bytes| self.at(then, Event::ToAgent(bytes)));
        while let Some(outgoing) = self.agent.poll_outgoing() {
            self.at(then, Event::ToDatapath(outgoing.bytes));
        }
        let deadline = self.agent.next_deadline();
        if deadline != Instant::NEVER && deadline > self.now {
            self.at(deadline, Event::AgentTimer);
        }
        while let Some(command) = self.endpoint.poll_command() {
            self.obey(command);
        }
        self.log.extend(std::iter::from_fn(|| self.agent.poll_event()));
    }

    fn obey(&mut self, command: Command) {
        let (Command::Program { flow, .. }
        | Command::Change { flow, .. }
        | Command::Accept { flow }
        | Command::Default { flow, .. }) = &command;
        let id = flow.0;
        let now = self.now;
        if let Some(sender) = self.senders.get_mut(&id) {
            sender.obey(now, command);
            self.turn(id);
        }
    }
}
