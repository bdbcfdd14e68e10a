//! Any datagrams of two datapaths to an agent with all our algorithms, timers, deaths and silences: what goes out is well formed, what is kept
//! is bounded, and time always passes.
#![no_main]

use std::net::{Ipv4Addr, SocketAddrV4};

use base::{Duration, Instant};
use ccp_agent::{Agent, FLOWS_MAX, OUTGOING_MAX};
use ccp_wire::{Create, DATAGRAM_MAX, List, Message, messages};
use libfuzzer_sys::fuzz_target;

const ADDRESSES: [&[u8]; 2] = [b"/run/one", b"/run/two"];
/// Timers that one step of time may let expire.
const TURNS: usize = 1000;

struct World {
    agent: Agent,
    now: Instant,
}

impl World {
    fn receive(&mut self, kind: u8, datagram: &[u8]) {
        self.agent.receive(self.now, ADDRESSES[usize::from(kind & 1)], datagram);
    }

    /// Time passes, timer by timer.
    fn pass(&mut self, time: Duration) {
        let until = self.now.plus(time);
        for _ in 0..TURNS {
            self.now = self.agent.next_deadline().clamp(self.now, until);
            self.agent.drive(self.now);
            if self.now == until {
                return;
            }
        }
        self.now = until;
    }

    fn check(&mut self) {
        let mut sent = 0;
        while let Some(outgoing) = self.agent.poll_outgoing() {
            assert!(ADDRESSES.contains(&&outgoing.to[..]));
            assert!(messages(&outgoing.bytes).all(|message| message.is_ok()));
            sent += 1;
        }
        assert!(sent <= OUTGOING_MAX);
        while self.agent.poll_event().is_some() {}
        assert!(self.agent.flows().len() <= FLOWS_MAX);
    }
}

fn create(flow: u8, name: u8) -> Vec<u8> {
    let address = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, name & 3), 80);
    let (cwnd, mss) = (u32::from(flow) << (name & 24), if name & 4 == 0 { 1448 } else { u32::from(name >> 5) });
    let names = ["", "copa", "cubic", "reno", "vegas", "nimbus", "dctcp", "aimd", "bbr", "aggregate"];
    let create = Create::new(cwnd, mss, address, address);
    let create = create.with_name(names[usize::from(name) % names.len()]).expect("short");
    encoded(&Message::Create { flow: u32::from(flow & 7), create })
}

/// A report of a program with values of any size.
fn measure(flow: u8, program: u8, bytes: &[u8]) -> Vec<u8> {
    let values: Vec<u64> = bytes.iter().map(|byte| u64::from(*byte) << (byte & 63)).collect();
    encoded(&Message::Measure { flow: u32::from(flow & 7), program: u32::from(program & 31), values: List::of(&values) })
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).expect("short");
    bytes
}

fuzz_target!(|data: &[u8]| {
    let agent = ccp_algorithms::all().expect("our own algorithms have no mistakes");
    let mut world = World { agent, now: Instant::from_ns(1_000_000_000) };
    let mut rest = data;
    while let [op, kind, behind @ ..] = rest {
        rest = behind;
        match op % 6 {
            0 => world.receive(op / 6, &create(*kind, op / 6)),
            1 | 2 => {
                let (values, behind) = rest.split_at(rest.len().min(usize::from(*op) / 16));
                world.receive(op / 6, &measure(*kind, kind >> 3, values));
                rest = behind;
            }
            3 => {
                let (datagram, behind) = rest.split_at(rest.len().min(usize::from(*kind)));
                assert!(datagram.len() <= DATAGRAM_MAX);
                world.receive(op / 6, datagram);
                rest = behind;
            }
            4 => world.pass(Duration::from_us(u64::from(*kind) << (op / 6 % 16))),
            _ => world.agent.gone(world.now, ADDRESSES[usize::from(kind & 1)]),
        }
        world.check();
    }
});
