//! One flow fills a long fat path: the receive window, the window scale, slow start and the pacer all have to reach its
//! bandwidth-delay product.

#![allow(clippy::print_stdout)]

use crate::harness::{Host, MAC_A, MAC_B, config, endpoints, install};
use base::{Duration, Instant};
use congestion::{Algorithm, Window};
use flow::Config;
use port::{Batch, Capabilities, PacketMeta, Port};
use port_memory::{LinkOptions, MemoryPort, link};
use std::collections::VecDeque;

/// One direction: a rate, a delay, and a queue without end.
struct Pipe {
    rate: u64,
    free_at: Instant,
    frames: VecDeque<(Instant, PacketMeta, Vec<u8>)>,
    batch: Batch,
}

const DELAY: Duration = Duration::from_ms(50);

impl Pipe {
    fn new(rate: u64) -> Self {
        Self { rate, free_at: Instant::ZERO, frames: VecDeque::new(), batch: Batch::new() }
    }

    /// Takes what came out of `from`, and delivers what has arrived into `to`.
    fn pass(&mut self, now: Instant, from: &mut MemoryPort, to: &mut MemoryPort) {
        while from.receive(&mut self.batch) > 0 {
            for packet in self.batch.packets() {
                let time = Duration::from_ns(packet.frame().len() as u64 * 8_000_000_000 / self.rate);
                self.free_at = self.free_at.max(now).plus(time);
                let at = self.free_at.plus(DELAY);
                self.frames.push_back((at, packet.meta, packet.frame().to_vec()));
            }
        }
        while self.frames.front().is_some_and(|(at, ..)| *at <= now) {
            let Some(buf) = to.reserve() else { break };
            let (_, meta, frame) = self.frames.pop_front().unwrap();
            assert!(buf.fill(&frame));
            buf.meta = meta;
            to.commit();
        }
        to.flush();
    }
}

/// Sends for `time` over a path of `rate` bits per second and 100 ms; returns the share of the rate delivered in the last second.
fn share(rate: u64, ring: u32, memory_mib: u64, time: Duration) -> f64 {
    let capabilities = Capabilities::plain(1500, MAC_A).with_tso();
    let options = LinkOptions { capabilities, slots: 512, ..LinkOptions::default() };
    let ((mut a, mut far_a), (mut b, mut far_b)) = (link(&options).unwrap(), link(&options).unwrap());
    let config = Config { receive_buffer_initial: 128 << 10, receive_buffer_max: ring, ..config() };
    let shift = config.window_shift();
    let (ea, eb) = endpoints(false);
    let open = |local, peer, mac| {
        let mut host = Host::new(config.clone(), capabilities, memory_mib);
        let what = flow::Install {
            shifts: (shift, shift),
            rtt: Some(Duration::from_ms(100)),
            window: Window::new(Algorithm::Cubic, 1448, Instant::ZERO),
            ..install(local, peer, 5, mac, 1, 1)
        };
        let (id, sock) = host.open(Instant::ZERO, &what);
        (host, id, sock)
    };
    let (mut sender, _, mut out) = open(ea, eb, MAC_B);
    let (mut receiver, id, mut into) = open(eb, ea, MAC_A);
    let (mut there, mut back) = (Pipe::new(rate), Pipe::new(rate));
    let piece = vec![5; 4 << 20];
    let (mut now, mut got, mut before) = (Instant::from_ns(1_000_000), 0u64, 0u64);
    let end = now.plus(time);
    let last_second = Instant::from_ns(end.as_ns() - 1_000_000_000);
    while now < end {
        sender.send(&mut out, &piece, ring as usize);
        sender.poll(now, &mut a);
        there.pass(now, &mut far_a, &mut far_b);
        receiver.poll(now, &mut b);
        got += receiver.recv(&mut into, usize::MAX).len() as u64;
        back.pass(now, &mut far_b, &mut far_a);
        before = if now < last_second { got } else { before };
        now = now.plus(Duration::from_us(100));
    }
    let window = 1u64 << receiver.keeper.lock(id).parts().rx.window_log2;
    let share = (got - before) as f64 * 8.0 / rate as f64;
    println!("{rate} bit/s: {got} bytes, the last second {:.1} %, window {window}", share * 100.0);
    assert_eq!(sender.timeouts, 0);
    share
}

#[test]
fn one_flow_fills_a_gigabit_over_100_ms() {
    assert!(share(1_000_000_000, 32 << 20, 128, Duration::from_secs(4)) > 0.9);
}

/// The bar of issue 3. Moves five gigabytes through half a gigabyte of memory: `cargo test --release -- --ignored`.
#[test]
#[ignore = "moves gigabytes"]
fn one_flow_fills_ten_gigabits_over_100_ms() {
    assert!(share(10_000_000_000, 256 << 20, 512, Duration::from_secs(4)) > 0.9);
}
