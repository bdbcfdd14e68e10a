//! An endpoint with sockets that a test fills, drains and removes, and a clock that a test moves.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};

use base::{Duration, Instant};
use ccp::{Command, Config, Endpoint, FlowId, NewFlow, Notice, Sender, Sent};
use ccp_vm::{Builder, Implicit, Primitive, Register, Scope};
use ccp_wire::{Create, DATAGRAM_MAX, Fields, List, Message, Update, messages};

pub const AGENT: &str = "/tmp/ccp/portus";
pub const OTHER: &str = "/tmp/ccp/other";
pub const MSS: u32 = 1448;
pub const USER: u32 = 1000;
pub const SERVICE: u32 = 7;
/// Datagrams that a socket holds (`net.unix.max_dgram_qlen`).
pub const QUEUE_LEN: usize = 10;

/// What lies in the agents' sockets. A socket that is not there refuses.
#[derive(Default)]
pub struct Sockets(pub BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>);

impl Sockets {
    pub fn send(&mut self, address: &[u8], datagram: &[u8]) -> Sent {
        assert!(!datagram.is_empty() && datagram.len() <= DATAGRAM_MAX);
        match self.0.get_mut(address) {
            None => Sent::Gone,
            Some(queue) if queue.len() >= QUEUE_LEN => Sent::Full,
            Some(queue) => {
                queue.push_back(datagram.to_vec());
                Sent::Taken
            }
        }
    }
}

/// What an agent reads, without lists that borrow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Read {
    Ready,
    Create { flow: u32, id: u64, name: String },
    Report { flow: u32, program: u32, values: Vec<u64> },
    End { flow: u32 },
}

pub struct Bench {
    pub endpoint: Endpoint,
    pub sockets: Sockets,
    pub now: Instant,
}

pub fn config() -> Config {
    Config {
        datapath: 3,
        own_uid: SERVICE,
        allowed_uids: vec![USER],
        messages_per_second: 1_000_000,
        cwnd_max: 1_000_000,
        rate_max: 50_000_000,
        flows_max: 100_000,
    }
}

impl Bench {
    pub fn new(config: Config) -> Self {
        Self { endpoint: Endpoint::new(config), sockets: Sockets::default(), now: Instant::from_ns(1) }
    }

    /// An endpoint with one agent of root's, which is there with program 1.
    pub fn with_agent() -> Self {
        let mut bench = Self::new(config());
        bench.join(AGENT, 0, &[]);
        bench
    }

    /// Configures an agent that serves flows of these names, and that is there, as a process of user `uid`, with program 1.
    pub fn join(&mut self, address: &str, uid: u32, names: &[&str]) {
        self.bind(address);
        self.endpoint.add_agent(self.now, address.as_bytes(), names);
        self.drive();
        self.say(address, uid, &install(1));
        assert_eq!(self.read(address), [Read::Ready]);
    }

    pub fn bind(&mut self, address: &str) {
        self.sockets.0.insert(address.as_bytes().to_vec(), VecDeque::new());
    }

    pub fn unbind(&mut self, address: &str) {
        self.sockets.0.remove(address.as_bytes());
    }

    pub fn drive(&mut self) {
        let sockets = &mut self.sockets;
        self.endpoint.drive(self.now, &mut |address, datagram| sockets.send(address, datagram));
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now.plus(time);
        self.drive();
    }

    pub fn pass_to_deadline(&mut self) {
        self.now = self.endpoint.next_deadline();
        self.drive();
    }

    /// Hands over a datagram from `address`, as process `uid` + 100 of user `uid`.
    pub fn say(&mut self, address: &str, uid: u32, datagram: &[u8]) {
        self.say_as(address, uid, uid + 100, datagram);
    }

    pub fn say_as(&mut self, address: &str, uid: u32, pid: u32, datagram: &[u8]) {
        self.endpoint.receive(self.now, Sender { address: address.as_bytes(), pid, uid }, datagram);
        self.drive();
    }

    /// Fills an agent's socket, so that the next datagram finds no room.
    pub fn fill(&mut self, address: &str) {
        let queue = self.sockets.0.get_mut(address.as_bytes()).expect("bound");
        queue.resize(QUEUE_LEN, Vec::new());
    }

    /// Takes all that lies in an agent's socket, unread.
    pub fn empty(&mut self, address: &str) {
        self.sockets.0.get_mut(address.as_bytes()).expect("bound").clear();
    }

    /// All that lies in an agent's socket, in order.
    pub fn read(&mut self, address: &str) -> Vec<Read> {
        let queue = self.sockets.0.get_mut(address.as_bytes()).expect("bound");
        queue.drain(..).flat_map(|datagram| decode(&datagram)).collect()
    }

    pub fn open(&mut self, id: u64) {
        self.open_as(id, USER, "", Duration::from_ms(1));
    }

    pub fn open_as(&mut self, id: u64, uid: u32, name: &str, rtt: Duration) {
        self.endpoint.open(new_flow(id, uid, name, rtt)).expect("there is room");
        self.drive();
    }

    /// Opens a flow, to which [`AGENT`] gives program 1; its number on the wire.
    pub fn running(&mut self, id: u64, rtt: Duration) -> u32 {
        self.running_at(AGENT, id, "", rtt)
    }

    /// Opens a flow that asks for `name`, to which root's agent at `address` gives program 1; its number on the wire.
    pub fn running_at(&mut self, address: &str, id: u64, name: &str, rtt: Duration) -> u32 {
        self.open_as(id, USER, name, rtt);
        let number = self.created(address, id);
        self.say(address, 0, &change(number, 1, &[]));
        assert!(matches!(self.commands().as_slice(), [Command::Program { number: 1, .. }]));
        number
    }

    /// The number of the only CREATE in an agent's socket, which is that of flow `id`.
    pub fn created(&mut self, address: &str, id: u64) -> u32 {
        let read = self.read(address);
        let [Read::Create { flow, id: shown, .. }] = read.as_slice() else { panic!("one CREATE: {read:?}") };
        assert_eq!(*shown, id);
        *flow
    }

    pub fn report(&mut self, id: u64, value: u64) -> Result<(), ccp::NotTaken> {
        let taken = self.endpoint.report(FlowId(id), 1, Duration::from_ms(1), &[value]);
        self.drive();
        taken
    }

    pub fn commands(&mut self) -> Vec<Command> {
        std::iter::from_fn(|| self.endpoint.poll_command()).collect()
    }

    pub fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.endpoint.poll_notice()).collect()
    }
}

/// A flow with `id` as its source address, by which [`decode`] knows it again.
pub fn new_flow(id: u64, uid: u32, name: &str, rtt: Duration) -> NewFlow {
    let source = SocketAddrV4::new(Ipv4Addr::from_bits(id as u32), 1);
    let destination = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);
    let create = Create::new(14_480, MSS, source, destination).with_name(name).expect("a short name");
    NewFlow { id: FlowId(id), uid, rtt, rate_max: u64::MAX, create }
}

pub fn decode(datagram: &[u8]) -> Vec<Read> {
    let read = |message| match message {
        Message::Ready { datapath: 3 } => Read::Ready,
        Message::Create { flow, create } => {
            let id = u64::from(create.source.ip().to_bits());
            Read::Create { flow, id, name: create.name().to_owned() }
        }
        Message::Measure { flow, values, .. } if values.is_empty() => Read::End { flow },
        Message::Measure { flow, program, values } => {
            Read::Report { flow, program, values: values.iter().collect() }
        }
        other => panic!("no message to an agent: {other:?}"),
    };
    messages(datagram).map(|message| read(message.expect("well formed"))).collect()
}

/// The flows of these CREATEs, sorted; whatever is no CREATE counts as flow 0.
pub fn ids_of(creates: &[Read]) -> Vec<u64> {
    let id = |read: &Read| if let Read::Create { id, .. } = read { *id } else { 0 };
    let mut ids: Vec<u64> = creates.iter().map(id).collect();
    ids.sort_unstable();
    ids
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut datagram = Vec::new();
    message.encode(&mut datagram).expect("short");
    datagram
}

/// INSTALL of a program that counts bytes, with a control variable.
pub fn install(number: u32) -> Vec<u8> {
    let mut program = Builder::new();
    let acked = program.volatile_report(0);
    program.control(0);
    program.always(|event| {
        let sum = event.add(acked, Primitive::BytesAcked);
        event.set(acked, sum);
        event.report();
    });
    let source = program.finish().expect("small");
    let (events, instructions) = (List::of(source.events()), List::of(source.instructions()));
    encoded(&Message::Install { program: number, events, instructions })
}

/// INSTALL of a program that reads a temporary that nothing has written.
pub fn bad_install(number: u32) -> Vec<u8> {
    let flag = Register::implicit(Implicit::EventFlag);
    let instructions = [ccp_vm::Instruction::bind(flag, Register::new(Scope::Temp, 0))];
    let events = [ccp_vm::Event { flag_start: 0, flag_count: 1, body_start: 0, body_count: 0 }];
    let (events, instructions) = (List::of(&events), List::of(&instructions));
    encoded(&Message::Install { program: number, events, instructions })
}

pub fn change(flow: u32, program: u32, fields: &[Update]) -> Vec<u8> {
    encoded(&Message::Change { flow, program, fields: Fields::of(fields) })
}

pub fn update(flow: u32, fields: &[Update]) -> Vec<u8> {
    encoded(&Message::Update { flow, fields: Fields::of(fields) })
}

pub fn cwnd(value: u64) -> Update {
    Update { register: Register::implicit(Implicit::Cwnd), value }
}

pub fn rate(value: u64) -> Update {
    Update { register: Register::implicit(Implicit::Rate), value }
}

pub fn control(index: u32, value: u64) -> Update {
    Update { register: Register::new(Scope::Control, index), value }
}
