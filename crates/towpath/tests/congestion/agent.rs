//! An agent of congestion control in the messages of Portus, at the path in `AGENT`: it sets windows, and a rate that is too large.

use ccp_agent::{Agent, Runner};
use ccp_algorithms::aimd::Aimd;
use ccp_vm::{Builder, Primitive, Source, Variable};
use ccp_wire::{Fields, List, Message, Update, messages};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// The number of the agent's only program.
pub const PROGRAM: u32 = 7;

/// AIMD of crate `ccp-algorithms`, until it is killed.
fn serve_aimd(path: &Path) {
    let mut agent = Agent::new();
    agent.add(Aimd).unwrap();
    Runner::bind(path).unwrap().run(&mut agent, &|| false, &mut |_| {}).unwrap();
}

/// Answers until it is killed; with `dies` in `AGENT_THAT` until it has installed its program.
pub fn serve() {
    let path = PathBuf::from(std::env::var_os("AGENT").unwrap());
    let _ = std::fs::remove_file(&path);
    if std::env::var("AGENT_THAT").is_ok_and(|what| what == "aimd") {
        return serve_aimd(&path);
    }
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut buffer = [0; 1024];
    let mut reports = 0_u64;
    loop {
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        let from = from.as_pathname().unwrap().to_owned();
        // What finds no room is lost, as the answers of a busy agent are.
        let say = |message: &Message<'_>| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes).unwrap();
            let _ = socket.send_to(&bytes, &from);
        };
        for message in messages(&buffer[..len]) {
            match message.expect("the service sends what has a meaning") {
                Message::Ready { .. } => {
                    install(&say);
                    if std::env::var("AGENT_THAT").is_ok_and(|what| what == "dies") {
                        std::process::exit(0);
                    }
                }
                Message::Create { flow, create } => {
                    let [window] = window(20 * u64::from(create.mss));
                    // More than there can be.
                    let rate = Update { register: Variable::RATE.register(), value: u64::MAX };
                    say(&Message::Change { flow, program: PROGRAM, fields: Fields::of(&[window, rate]) });
                }
                Message::Measure { flow, values, .. } if values.iter().next().is_some() => {
                    reports += 1;
                    let window = window(60_000 + 1_000 * (reports % 4));
                    say(&Message::Update { flow, fields: Fields::of(&window) });
                }
                _ => {}
            }
        }
    }
}

/// Waits for a CREATE, and returns the flow's number.
pub fn told(socket: &UnixDatagram) -> u32 {
    let mut buffer = [0; 1024];
    loop {
        let len = socket.recv(&mut buffer).unwrap();
        let created = messages(&buffer[..len]).find_map(|message| match message {
            Ok(Message::Create { flow, .. }) => Some(flow),
            _ => None,
        });
        if let Some(flow) = created {
            return flow;
        }
    }
}

fn window(bytes: u64) -> [Update; 1] {
    [Update { register: Variable::CWND.register(), value: bytes }]
}

/// Reports bytes acknowledged, every 10 ms.
fn reporter() -> Source {
    let mut program = Builder::new();
    let acked = program.volatile_report(0);
    program.always(|event| {
        let sum = event.add(acked, Primitive::BytesAcked);
        event.set(acked, sum);
        event.fallthrough();
    });
    program.when(
        |event| event.gt(Variable::MICROS, 10_000),
        |event| {
            event.report();
            event.set(Variable::MICROS, 0);
        },
    );
    program.finish().unwrap()
}

/// Installs the program that reports.
pub fn install(say: &dyn Fn(&Message<'_>)) {
    let source = reporter();
    say(&Message::Install {
        program: PROGRAM,
        events: List::of(source.events()),
        instructions: List::of(source.instructions()),
    });
}

/// Installs the same events without their instructions, as program 8.
pub fn install_half(say: &dyn Fn(&Message<'_>)) {
    let source = reporter();
    say(&Message::Install {
        program: 8,
        events: List::of(source.events()),
        instructions: List::of(&source.instructions()[..1]),
    });
}
