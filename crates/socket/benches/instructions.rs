//! What an RPC costs in instructions in the socket layer, both ends counted together, without a service and without system calls:
//! fixed work for callgrind, which counts inside `counted` only. `cargo xtask instructions` runs it.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A measurement prints, and panics when it cannot be made.

use cycles::{Switch, Ticks};
use endpoint::Endpoint;
use endpoint::region::Mapped;
use endpoint::stream::{How, Progress, Said};
use queue::stream::{raise, watch};
use session::host::HOST;
use session::sys::cycle_account::{self, Section};
use shm::half_flags::OPEN;
use shm::{Kind, Params, Region, Side};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SIZE: usize = 64;
const RPCS: u32 = 10_000;
const SLOT: u32 = 5;
const CONTEXT: u32 = 1;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("rpc") => rpc(),
        Some("section-off") => section(Switch::OFF),
        Some("section-on") => section(Switch::on(1, 0, Ticks::Tsc)),
        _ => println!("one of: rpc, section-off, section-on; see the head of the source"),
    }
}

/// Both ends of a connection over a pair region.
fn ends() -> [Endpoint; 2] {
    let params = |kind, id| Params { kind, id, slots: 64, data_len: 1 << 20 };
    let home = Arc::new(Region::create(params(Kind::Application, 1)).unwrap().0);
    let home = Arc::new(Mapped::new(&HOST, Side::One, home, 0));
    let region = Arc::new(Region::create(params(Kind::Pair, 2)).unwrap().0);
    [(Side::Zero, 1), (Side::One, 2)].map(|(side, block)| {
        let pages = region.page_words() * 64;
        let mapped = Arc::new(Mapped::new(&HOST, side, region.clone(), pages));
        let link = Endpoint::new(mapped, SLOT, home.clone(), block);
        link.begin(true, side == Side::One);
        link.block().holders.store(1, Ordering::Relaxed);
        raise(link.halves().0, OPEN);
        watch(link.halves().0, Some(CONTEXT));
        link
    })
}

fn rpc() {
    let [client, server] = ends();
    for n in 0..RPCS {
        let request = [n as u8; SIZE];
        assert_eq!(counted(&client, &server, &request), request);
        // Whoever waits takes its bells; it has to be done, and costs what the queue's own count says.
        for link in [&client, &server] {
            let bell = link.mapped.own_bell(CONTEXT).unwrap();
            bell.drain(64, |_| {});
        }
    }
    println!("{RPCS} requests with their replies");
}

/// What a call costs more for being told where its time goes.
fn section(switch: Switch) {
    let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 1 << 20 };
    let home = Arc::new(Region::create(params).unwrap().0);
    home.header().cycles.store(switch.word(), Ordering::Relaxed);
    cycle_account::follow(&home);
    drop(cycle_account::enter(Section::Send));
    (0..RPCS).for_each(|_| counted_section());
    println!("{RPCS} sections");
}

#[inline(never)]
fn counted_section() {
    let _in = cycle_account::enter(Section::Send);
    std::hint::black_box(());
}

#[inline(never)]
fn counted(client: &Endpoint, server: &Endpoint, request: &[u8; SIZE]) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    send(client, request);
    take(server, &mut bytes);
    send(server, &bytes);
    take(client, &mut bytes);
    bytes
}

fn send(link: &Endpoint, bytes: &[u8]) {
    assert_eq!(link.push(&[bytes], 0, Said::default()), Ok(Progress::Done(SIZE)));
}

fn take(link: &Endpoint, bytes: &mut [u8]) {
    assert_eq!(link.pull(&mut [bytes], 0, How::default()), Ok(Progress::Done(SIZE)));
}
