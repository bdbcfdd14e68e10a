//! An agent of crate `ccp-agent` as the handler of a quinn connection: the same algorithm, from the same file, as for Towpath and for the kernel,
//! by the same messages.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ccp_agent::{Agent, Instant};
use ccp_quinn::{Changes, Handler};
use ccp_vm::{Field, Program};
use ccp_wire::{Create, Fields, List, Message, messages};

/// The datapath's name towards the agent.
const NAME: &[u8] = b"quinn";
/// The only connection, as the factory numbers it.
const FLOW: u32 = 1;

/// The agent, and what it has chosen for the connection.
pub struct Served {
    agent: Mutex<Agent>,
    /// The agent's number of the program.
    number: u32,
    now_us: AtomicU64,
}

impl Served {
    /// Opens a connection at the agent: its program with what it sets first, and the handler of its reports.
    pub fn open(algorithm: &str, mss: u32) -> (Program, Changes, Self) {
        let mut agent = ccp_algorithms::all().expect("a test of that crate adds them all");
        agent.prefer(algorithm).expect("it is one of them");
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
        let create = Create::new(10 * mss, mss, address, address);
        let mut said = Vec::new();
        for message in [Message::Ready { datapath: 1 }, Message::Create { flow: FLOW, create }] {
            said.extend(answers(&mut agent, Instant::ZERO, &message));
        }
        let all = || {
            said.iter().flat_map(|datagram| messages(datagram)).map(|message| message.expect("well-formed"))
        };
        let chosen = all().find_map(|message| match message {
            Message::Change { flow: FLOW, program, fields } => Some((program, fields)),
            _ => None,
        });
        let (number, fields) = chosen.expect("the agent chooses a program");
        let mut first = Changes::default();
        set(&mut first, fields);
        let program = all().find_map(|message| match message {
            Message::Install { program, events, instructions } if program == number => {
                let (instructions, events): (Vec<_>, Vec<_>) =
                    (instructions.iter().collect(), events.iter().collect());
                Program::verify(&instructions, &events).ok()
            }
            _ => None,
        });
        let program = program.expect("it was installed and keeps the rules");
        (program, first, Self { agent: Mutex::new(agent), number, now_us: AtomicU64::new(0) })
    }

    /// The virtual time that reports come at from now on.
    pub fn set_now(&self, now_us: u64) {
        self.now_us.store(now_us, Ordering::Relaxed);
    }
}

impl Handler for Served {
    fn on_report(&self, connection: u64, values: &[u64]) -> Changes {
        assert_eq!(connection, u64::from(FLOW));
        let now = Instant::from_ns(self.now_us.load(Ordering::Relaxed) * 1000);
        let measure = Message::Measure { flow: FLOW, program: self.number, values: List::of(values) };
        let mut changes = Changes::default();
        for datagram in answers(&mut self.agent.lock().expect("no panic"), now, &measure) {
            for message in messages(&datagram) {
                let Ok(Message::Update { flow: FLOW, fields }) = message else {
                    panic!("quinn's flows keep their program: {message:?}")
                };
                set(&mut changes, fields);
            }
        }
        changes
    }
}

fn answers(agent: &mut Agent, now: Instant, message: &Message<'_>) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).expect("short");
    agent.receive(now, NAME, &bytes);
    agent.drive(now);
    std::iter::from_fn(|| agent.poll_outgoing()).map(|outgoing| outgoing.bytes).collect()
}

/// Writes what an agent sets over what it has set before.
fn set(changes: &mut Changes, fields: Fields<'_>) {
    for update in fields.iter() {
        let kept = match Field::of(update.register).expect("agents set only these") {
            Field::Control(index) => &mut changes.controls[usize::from(index)],
            Field::Cwnd => &mut changes.cwnd,
            Field::Rate => &mut changes.rate,
        };
        *kept = Some(update.value);
    }
}
