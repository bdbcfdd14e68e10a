//! Flows, agents and datagrams in any order: what goes out is well formed, what comes in stays within its bounds, and time always passes.
#![no_main]

use std::net::{Ipv4Addr, SocketAddrV4};

use base::{Duration, Instant};
use ccp::{Command, Config, Endpoint, FlowId, NewFlow, Sender, Sent};
use ccp_vm::{Builder, Implicit, Register, Scope};
use ccp_wire::{Create, DATAGRAM_MAX, Fields, List, Message, Update, messages};
use libfuzzer_sys::fuzz_target;

const ADDRESSES: [&[u8]; 2] = [b"/tmp/ccp/one", b"/tmp/ccp/two"];
const CWND_MAX: u64 = 1 << 20;

struct World {
    endpoint: Endpoint,
    now: Instant,
    sockets: [Sent; 2],
    flows: u64,
}

impl World {
    fn new() -> Self {
        let config = Config {
            datapath: 1,
            own_uid: 7,
            allowed_uids: vec![8],
            messages_per_second: 1000,
            cwnd_max: CWND_MAX,
            rate_max: CWND_MAX,
            flows_max: 50,
        };
        let mut endpoint = Endpoint::new(config);
        endpoint.add_agent(Instant::ZERO, ADDRESSES[0], &[]);
        endpoint.add_agent(Instant::ZERO, ADDRESSES[1], &["copa"]);
        Self { endpoint, now: Instant::ZERO, sockets: [Sent::Taken; 2], flows: 0 }
    }

    fn open(&mut self, kind: u8) {
        self.flows += 1;
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, u16::from(kind));
        let create = Create::new(14_480, 1448, address, address);
        let create = create.with_name(if kind & 1 == 0 { "" } else { "copa" }).expect("short");
        let rtt = Duration::from_us(u64::from(kind) * 100);
        let new = NewFlow { id: FlowId(self.flows), uid: 6 + u32::from(kind & 3), rtt, rate_max: u64::MAX, create };
        let _ = self.endpoint.open(new);
    }

    fn say(&mut self, kind: u8, datagram: &[u8]) {
        let address = ADDRESSES[usize::from(kind & 1)];
        let uid = [0, 7, 8, 9][usize::from(kind >> 1 & 3)];
        self.endpoint.receive(self.now, Sender { address, pid: u32::from(kind >> 3 & 3), uid }, datagram);
    }

    fn drive(&mut self) {
        let sockets = self.sockets;
        self.endpoint.drive(self.now, &mut |address, datagram| {
            assert!(datagram.len() <= DATAGRAM_MAX);
            assert!(messages(datagram).all(|message| message.is_ok()));
            sockets[usize::from(address == ADDRESSES[1])]
        });
        while let Some(command) = self.endpoint.poll_command() {
            let changes = match command {
                Command::Program { changes, .. } | Command::Change { changes, .. } => changes,
                Command::Accept { .. } | Command::Default { .. } => continue,
            };
            assert!(changes.cwnd.is_none_or(|cwnd| (1448..=CWND_MAX).contains(&cwnd)));
        }
        while self.endpoint.poll_notice().is_some() {}
        assert!(self.endpoint.next_deadline() > self.now, "nothing is left to do now");
    }
}

fn install() -> Vec<u8> {
    let mut program = Builder::new();
    let count = program.volatile_report(0);
    program.always(|event| {
        event.set(count, 1);
        event.report();
    });
    let source = program.finish().expect("small");
    let mut datagram = Vec::new();
    let (events, instructions) = (List::of(source.events()), List::of(source.instructions()));
    Message::Install { program: 1, events, instructions }.encode(&mut datagram).expect("short");
    datagram
}

fn change(flow: u8, value: u8) -> Vec<u8> {
    let value = u64::from(value) << (value & 31);
    let fields = [
        Update { register: Register::implicit(Implicit::Cwnd), value },
        Update { register: Register::new(Scope::Control, value as u32 & 17), value },
    ];
    let mut datagram = Vec::new();
    let fields = Fields::of(&fields);
    Message::Change { flow: u32::from(flow), program: 1, fields }.encode(&mut datagram).expect("short");
    datagram
}

fuzz_target!(|data: &[u8]| {
    let mut world = World::new();
    let mut rest = data;
    while let [op, kind, behind @ ..] = rest {
        rest = behind;
        match op % 9 {
            0 => world.open(*kind),
            1 => world.endpoint.close(FlowId(u64::from(*kind))),
            2 | 3 => {
                let rtt = Duration::from_us(u64::from(*kind) * 1000);
                let _ = world.endpoint.report(FlowId(u64::from(*kind & 31)), 1, rtt, &[1, 2]);
            }
            4 => {
                let (datagram, behind) = rest.split_at(rest.len().min(usize::from(*kind)));
                world.say(*op, datagram);
                rest = behind;
            }
            5 => world.now = world.now.plus(Duration::from_us(u64::from(*kind) * 500)),
            6 => world.sockets[usize::from(kind & 1)] = [Sent::Taken, Sent::Full, Sent::Gone][usize::from(kind >> 1) % 3],
            7 => world.say(*kind, &install()),
            _ => world.say(op / 9, &change(*kind, *op)),
        }
        world.drive();
    }
});
