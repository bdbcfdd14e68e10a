//! The agent of the comparison with the kernel's Cubic (docs/kernel-flows.md): Cubic in the datapath by `cubic.ccp`, and the cube root, which the
//! language has not, by the agent. Usage: `cubic_agent PATH`, the path of its socket; it serves until it is killed.

use std::os::unix::net::UnixDatagram;

use ccp_lang::{Compiled, compile};
use ccp_wire::{Fields, List, Message, Update, messages};

/// RFC 9438, section 4.1: the window falls by 0.3, and grows by 0.4 segments for each cubed second.
const FALL_OVER_GROWTH: f64 = 0.3 / 0.4;
const MSS: f64 = 1448.0;

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).expect("the path of the agent's socket is given");
    let socket = UnixDatagram::bind(&path)?;
    let program = compile(include_str!("cubic.ccp")).expect("the program beside this file compiles");
    let mut datagram = [0; 1024];
    loop {
        let (len, datapath) = socket.recv_from(&mut datagram)?;
        let Some(datapath) = datapath.as_pathname() else { continue };
        for answer in messages(&datagram[..len]).flatten().filter_map(|message| answer(&program, message)) {
            // A datapath that is gone, or full, hears nothing.
            let _ = socket.send_to(&answer, datapath);
        }
    }
}

fn answer(program: &Compiled, message: Message<'_>) -> Option<Vec<u8>> {
    match message {
        Message::Ready { .. } => {
            let (events, instructions) = (List::of(program.events()), List::of(program.instructions()));
            encoded(&Message::Install { program: 1, events, instructions })
        }
        Message::Create { flow, .. } => {
            encoded(&Message::Change { flow, program: 1, fields: Fields::of(&[]) })
        }
        Message::Measure { flow, values, .. } => {
            // The window before the loss is the program's third report variable.
            let segments = values.at(2)? as f64 / MSS;
            let k_ms = 1000.0 * (segments * FALL_OVER_GROWTH).cbrt();
            let update = Update { register: program.register("k_ms")?, value: k_ms as u64 };
            encoded(&Message::Update { flow, fields: Fields::of(&[update]) })
        }
        _ => None,
    }
}

fn encoded(message: &Message<'_>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).ok().map(|()| bytes)
}
