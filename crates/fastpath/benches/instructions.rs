//! What the common case costs in instructions: fixed work for callgrind, which counts inside `Core::poll` only.
//! `cargo xtask instructions` runs it.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A measurement prints, and panics when it cannot be made.

#[path = "../tests/harness/mod.rs"]
mod harness;

use base::{Duration, Instant, SeqNumber};
use flow::Config;
use harness::{Host, MAC_A, MAC_B, install};
use port::{Batch, Capabilities, Port};
use port_memory::{LinkOptions, MemoryPort, link};
use wire::{Endpoint, FourTuple, IpParameters, MacAddr, TcpFlags, TcpHeader, TcpOptions, TxChecksum};

const SIZE: usize = 64;
const FLOWS: u16 = 32;
const ROUNDS: u32 = 400;
const BULK: u64 = 16 << 20;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("rpc") => rpc(),
        Some("bulk") => bulk(Capabilities::plain(1500, MAC_A).with_checksum()),
        Some("super") => bulk(Capabilities::plain(1500, MAC_A).with_tso()),
        _ => println!("one of: rpc, bulk, super; see the head of the source"),
    }
}

fn ends(i: u16) -> (Endpoint, Endpoint) {
    (Endpoint::new([10, 0, 0, 1].into(), 80), Endpoint::new([10, 0, 0, 2].into(), 1024 + i))
}

fn request(far: &mut MemoryPort, i: u16, n: u32) {
    let (local, peer) = ends(i);
    let parameters = IpParameters::new(MacAddr(MAC_B), MacAddr(MAC_A));
    let at = SeqNumber(n * SIZE as u32);
    let header = TcpHeader {
        src_port: 0,
        dst_port: 0,
        seq: at,
        ack: at,
        flags: TcpFlags::ACK.with(TcpFlags::PSH),
        window: 512,
        urgent: 0,
    };
    let options = TcpOptions::with_timestamps(n, 0);
    let tuple = FourTuple::new(peer, local);
    let start = wire::tcp_headers_len(&parameters, &tuple, &options);
    let buf = far.reserve().unwrap();
    wire::emit_tcp(&parameters, &tuple, &header, &options, SIZE, TxChecksum::Partial, buf.storage_mut())
        .unwrap();
    buf.set_len(start + SIZE);
    buf.meta.checksum = port::Checksum::Partial { start: 34, offset: 16 };
    far.commit();
}

/// Requests come in and replies go out, each flow once in a round of 20 microseconds. The slow path, which looks at a flow after a
/// timeout at the earliest, has no turn in so short a time.
fn rpc() {
    let capabilities = Capabilities::plain(1500, MAC_A).with_checksum();
    let (mut port, mut far) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
    let config = Config { flows: 64, regions: 4, ..Config::default() };
    let mut host = Host::with_slots(config, capabilities, 64, 64);
    let mut socks: Vec<_> = (0..FLOWS)
        .map(|i| {
            let (local, peer) = ends(i);
            let sock = host.open(Instant::ZERO, &install(local, peer, u32::from(i), MAC_B, 0, 0)).1;
            host.nodelay(&sock);
            sock
        })
        .collect();
    let mut batch = Batch::new();
    for n in 0..ROUNDS {
        let now = Instant::ZERO.plus(Duration::from_us(u64::from(n) * 20));
        (0..FLOWS).for_each(|i| request(&mut far, i, n));
        far.flush();
        host.core.poll(now, &mut port);
        for sock in &mut socks {
            let got = host.recv(sock, SIZE);
            assert_eq!(host.send(sock, &got, 4096), SIZE);
        }
        assert_eq!(host.core.poll(now, &mut port).sent, u32::from(FLOWS));
        host.core.wakes().for_each(drop);
        while far.receive(&mut batch) > 0 {}
    }
    println!("{} requests with their replies", ROUNDS * u32::from(FLOWS));
}

/// One flow, both ends counted together.
fn bulk(capabilities: Capabilities) {
    let (mut pa, mut pb) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
    let config = || Config { flows: 64, regions: 4, ..Config::default() };
    let (mut a, mut b) = (Host::new(config(), capabilities, 64), Host::new(config(), capabilities, 64));
    let (ea, eb) = ends(0);
    let mut sender = a.open(Instant::ZERO, &install(ea, eb, 1, MAC_B, 0, 0)).1;
    let mut receiver = b.open(Instant::ZERO, &install(eb, ea, 1, MAC_A, 0, 0)).1;
    let bytes = vec![5u8; 1 << 20];
    let (mut now, mut got) = (Instant::ZERO, 0u64);
    while got < BULK {
        a.send(&mut sender, &bytes, 4 << 20);
        a.poll(now, &mut pa);
        b.poll(now, &mut pb);
        got += b.recv(&mut receiver, usize::MAX).len() as u64;
        now = now.plus(Duration::from_us(20));
    }
    let (out, back) = (a.core.counters().segments_out, b.core.counters().segments_out);
    println!("{} packets: {out} segments and {back} acknowledgements", out + back);
}
