//! What a small RPC costs one core: request in, reply out with the acknowledgement on it. The peer is a generator without a
//! stack, the application's work is not timed. And what bulk costs, between two cores on one thread.
//! `cargo bench -p towpath-fastpath`.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A measurement prints, and panics when it cannot be made.

#[path = "../tests/harness/mod.rs"]
mod harness;

use base::{Duration, Instant, SeqNumber};
use flow::Config;
use harness::{Host, MAC_A, MAC_B, Sock, install};
use port::{Batch, Capabilities, Port};
use port_memory::{LinkOptions, MemoryPort, link};
use wire::{Endpoint, IpParameters, MacAddr, TcpFlags, TcpHeader, TcpOptions, TxChecksum};

const SIZE: usize = 64;
/// From a flow to the next: no neighbour, whose lines the processor would fetch by itself.
const STRIDE: u32 = 40_503;

struct Run {
    host: Host,
    port: MemoryPort,
    far: MemoryPort,
    socks: Vec<Sock>,
    batch: Batch,
    sent: u32,
}

fn run(flows: u16) -> Run {
    let capabilities = Capabilities::plain(1500, MAC_A).with_checksum();
    let (port, far) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
    let config = Config { flows: u32::from(flows).max(64), regions: 4, ..Config::default() };
    let slots = u32::from(flows).next_power_of_two().max(64);
    // A page for what each has in flight, and some more.
    let mut host = Host::with_slots(config, capabilities, u64::from(slots / 200).max(64), slots);
    let socks = (0..flows)
        .map(|i| {
            let (local, peer) = ends(i);
            let sock = host.open(Instant::ZERO, &install(local, peer, u32::from(i), MAC_B, 0, 0)).1;
            host.nodelay(&sock);
            sock
        })
        .collect();
    Run { host, port, far, socks, batch: Batch::new(), sent: 0 }
}

fn ends(i: u16) -> (Endpoint, Endpoint) {
    (Endpoint::new([10, 0, 0, 1].into(), 80), Endpoint::new([10, 0, 0, 2].into(), 1024 + i))
}

impl Run {
    fn request(&mut self, i: u16) {
        let (local, peer) = ends(i);
        let parameters = IpParameters::new(MacAddr(MAC_B), MacAddr(MAC_A));
        let options = TcpOptions::with_timestamps(self.sent, 0);
        let at = SeqNumber(self.sent * SIZE as u32);
        let header = TcpHeader {
            src_port: 0,
            dst_port: 0,
            seq: at,
            ack: at,
            flags: TcpFlags::ACK.with(TcpFlags::PSH),
            window: 512,
            urgent: 0,
        };
        let buf = self.far.reserve().unwrap();
        let tuple = wire::FourTuple::new(peer, local);
        let start = wire::tcp_headers_len(&parameters, &tuple, &options);
        let storage = buf.storage_mut();
        wire::emit_tcp(&parameters, &tuple, &header, &options, SIZE, TxChecksum::Partial, storage).unwrap();
        buf.set_len(start + SIZE);
        buf.meta.checksum = port::Checksum::Partial { start: 34, offset: 16 };
        self.far.commit();
    }

    /// One request and reply on each of `count` flows from the `first` on, in no order; returns nanoseconds spent in the core.
    fn round(&mut self, first: u16, count: u16, now: Instant) -> u64 {
        let all = self.socks.len() as u32;
        let flows = || (first..first + count).map(|i| (u32::from(i) * STRIDE % all) as u16);
        flows().for_each(|i| self.request(i));
        self.far.flush();
        let start = std::time::Instant::now();
        self.host.core.poll(now, &mut self.port);
        let mut ns = start.elapsed().as_nanos() as u64;
        for i in flows() {
            let got = self.host.recv(&mut self.socks[usize::from(i)], SIZE);
            assert_eq!(got.len(), SIZE);
            self.host.give_back(&mut self.socks[usize::from(i)]);
            self.host.send(&mut self.socks[usize::from(i)], &got, 4096);
        }
        let start = std::time::Instant::now();
        let progress = self.host.core.poll(now, &mut self.port);
        ns += start.elapsed().as_nanos() as u64;
        assert_eq!(progress.sent, u32::from(count));
        while self.far.receive(&mut self.batch) > 0 {}
        ns
    }
}

/// With numbers of flows: RPCs of so many, and nothing else.
fn main() {
    let asked: Vec<u16> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    if asked.is_empty() {
        rpc(&[1, 32, 4096, 64_000]);
        bulk();
    } else {
        rpc(&asked);
    }
}

fn rpc(asked: &[u16]) {
    println!("{SIZE}-byte RPC, nanoseconds of core time per RPC (median of 15 runs; second column: least)");
    for &flows in asked {
        let batch = flows.min(32);
        let (mut run, mut now) = (run(flows), Instant::ZERO);
        let mut results: Vec<u64> = (0..15)
            .map(|_| {
                let rounds = (60_000 / u32::from(flows)).max(1);
                let mut ns = 0;
                for _ in 0..rounds {
                    for first in (0..flows).step_by(usize::from(batch)) {
                        now = now.plus(Duration::from_us(20));
                        ns += run.round(first, batch, now);
                    }
                    run.sent += 1;
                    run.host.poll(now, &mut run.port);
                }
                ns / u64::from(rounds * u32::from(flows))
            })
            .collect();
        results.sort_unstable();
        println!("{flows:5} flows, batches of {batch:2}: {:5} {:5}", results[7], results[0]);
    }
}

/// Core time per GiB of each end, with super-frames and without.
fn bulk() {
    for (name, capabilities) in [
        ("super-frames", Capabilities::plain(1500, MAC_A).with_tso()),
        ("1500-byte frames, checksums offloaded", Capabilities::plain(1500, MAC_A).with_checksum()),
    ] {
        let (mut pa, mut pb) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
        let config = || Config { flows: 64, regions: 4, ..Config::default() };
        let (mut a, mut b) = (Host::new(config(), capabilities, 64), Host::new(config(), capabilities, 64));
        let (ea, eb) = ends(0);
        let mut sender = a.open(Instant::ZERO, &install(ea, eb, 1, MAC_B, 0, 0)).1;
        let mut receiver = b.open(Instant::ZERO, &install(eb, ea, 1, MAC_A, 0, 0)).1;
        let bytes = vec![5u8; 1 << 20];
        let (mut now, mut spent, mut got) = (Instant::ZERO, [0u64; 2], 0u64);
        while got < 1 << 30 {
            a.send(&mut sender, &bytes, 4 << 20);
            let start = std::time::Instant::now();
            a.core.poll(now, &mut pa);
            let middle = std::time::Instant::now();
            b.core.poll(now, &mut pb);
            spent[0] += (middle - start).as_nanos() as u64;
            spent[1] += middle.elapsed().as_nanos() as u64;
            got += b.recv(&mut receiver, usize::MAX).len() as u64;
            now = now.plus(Duration::from_us(20));
        }
        let [s, r] = spent.map(|ns| ns as f64 / 1e6);
        println!(
            "{name}: {s:.0} ms to send and {r:.0} ms to receive 1 GiB; {} segments",
            a.core.counters().segments_out
        );
    }
}
