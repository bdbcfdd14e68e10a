//! Two cores, a bad path, and bulk both ways: whatever is lost, doubled, reordered or damaged, bytes come out as they went in.

#![allow(clippy::print_stdout)]

use crate::harness::{Host, MAC_A, MAC_B, Sock, config, endpoints, install};
use base::{Duration, Instant, Seed};
use port::{Capabilities, FaultRates, Faults, Port};
use port_memory::{LinkOptions, link};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

struct Side {
    host: Host,
    sock: Sock,
    port: Box<dyn Port>,
    sent: usize,
    got: usize,
    closed: bool,
}

fn byte(stream: u64, i: usize) -> u8 {
    (i as u64).wrapping_mul(0x9E37_79B9).wrapping_add(stream).rotate_right(7) as u8
}

fn worlds(seed: u64, rates: FaultRates, capabilities: Capabilities, v6: bool) -> [Side; 2] {
    let (a, b) = link(&LinkOptions { capabilities, slots: 256, ..LinkOptions::default() }).unwrap();
    let (ea, eb) = endpoints(v6);
    let mss = if v6 { 1428 } else { 1448 };
    let side = |port, local, peer, mac, snd, rcv| {
        let mut host = Host::new(config(), capabilities, 16);
        let what = flow::Install { mss, ..install(local, peer, 5, mac, snd, rcv) };
        let (_, sock) = host.open(Instant::ZERO, &what);
        Side { host, sock, port, sent: 0, got: 0, closed: false }
    };
    // Sequence numbers that wrap on the way.
    let (x, y) = (u32::MAX - 40_000, u32::MAX / 2 - 3);
    [
        side(Box::new(Faults::new(a, seed, FaultRates::NONE, rates)) as Box<dyn Port>, ea, eb, MAC_B, x, y),
        side(Box::new(Faults::new(b, seed + 1, FaultRates::NONE, rates)), eb, ea, MAC_A, y, x),
    ]
}

/// Moves `total` bytes each way and closes. Returns the time it took.
fn transfer(sides: &mut [Side; 2], seed: u64, totals: [usize; 2], step: Duration) -> Duration {
    let mut rng = Seed::new(seed);
    let mut now = Instant::from_ns(1_000_000);
    let start = now;
    let limit = now.plus(Duration::from_secs(600));
    while now < limit {
        let mut open = false;
        for i in 0..2 {
            let side = &mut sides[i];
            if side.sent < totals[i] {
                let n = (totals[i] - side.sent).min(1 + rng.below(30_000) as usize);
                let bytes: Vec<u8> = (side.sent..side.sent + n).map(|j| byte(i as u64, j)).collect();
                side.sent += side.host.send(&mut side.sock, &bytes, 256 << 10);
            } else if !std::mem::replace(&mut side.closed, true) {
                let Side { host, sock, .. } = side;
                host.raise(sock, shm::half_flags::FIN);
            }
            side.host.poll(now, &mut *side.port);
            let most = if rng.chance(900_000) { 1 << 20 } else { rng.below(5_000) as usize };
            for b in side.host.recv(&mut side.sock, most) {
                assert_eq!(b, byte(1 - i as u64, side.got), "byte {} of stream {}", side.got, 1 - i);
                side.got += 1;
            }
            open |= !(side.host.is_eof(&side.sock) && side.got == totals[1 - i]);
        }
        if !open {
            return now.since(start);
        }
        now = now.plus(step);
    }
    for side in sides.iter() {
        let mut guard = side.host.keeper.lock(flow::FlowId(0));
        let f = guard.parts();
        println!("{:?}\n{:?}\n{:?}\n{:?}", f.rx, f.tx, f.cold, side.host.core.counters());
    }
    panic!(
        "seed {seed}: not done: sent {:?} got {:?}",
        [sides[0].sent, sides[1].sent],
        [sides[0].got, sides[1].got]
    );
}

#[test]
fn a_clean_path_moves_megabytes_both_ways_with_super_frames() {
    let capabilities = Capabilities::plain(1500, MAC_A).with_tso();
    let mut sides = worlds(1, FaultRates::NONE, capabilities, false);
    transfer(&mut sides, 1, [24 << 20, 24 << 20], Duration::from_us(20));
    for side in &sides {
        let c = side.host.core.counters();
        assert_eq!((c.retransmitted_bytes, c.recoveries, side.host.timeouts), (0, 0, 0));
        assert!(c.segments_out < 6_000, "super-frames: {c:?}");
    }
}

#[test]
fn loss_of_two_percent_is_recovered_mostly_without_timeouts() {
    let capabilities = Capabilities::plain(1500, MAC_A);
    let mut sides = worlds(7, FaultRates::losing(20_000), capabilities, false);
    let took = transfer(&mut sides, 7, [4 << 20, 0], Duration::from_us(50));
    let c = sides[0].host.core.counters();
    assert!(c.recoveries > 10, "{c:?}");
    let timeouts = sides[0].host.timeouts;
    println!("{took:?}, {timeouts} timeouts, {c:?}");
    assert!(u64::from(timeouts) * 2 < c.recoveries, "{timeouts} {c:?}");
}

/// A timeout is 200 ms and the path 100 us: ten of them would be most of the time.
#[test]
fn loss_of_one_percent_leaves_next_to_nothing_to_timeouts() {
    for (seed, tso) in [(11, false), (12, true), (13, false), (14, true)] {
        let plain = Capabilities::plain(1500, MAC_A);
        let capabilities = if tso { plain.with_tso() } else { plain };
        let mut sides = worlds(seed, FaultRates::losing(10_000), capabilities, false);
        let took = transfer(&mut sides, seed, [16 << 20, 0], Duration::from_us(50));
        let (c, timeouts) = (sides[0].host.core.counters(), sides[0].host.timeouts);
        println!("{took:?}, {timeouts} timeouts, {c:?}");
        assert!(c.recoveries > 20 && timeouts <= 2, "seed {seed}: {timeouts} timeouts, {c:?}");
    }
}

/// The slow path holds records for longer than a core is willing to try: packets are lost, doorbells and timers are not.
#[test]
fn records_held_by_somebody_else_delay_nothing_for_ever() {
    let capabilities = Capabilities::plain(1500, MAC_A).with_tso();
    let mut sides = worlds(3, FaultRates::NONE, capabilities, false);
    let stop = Arc::new(AtomicBool::new(false));
    let holders: Vec<_> = sides
        .iter()
        .map(|side| {
            let (flows, stop) = (side.host.keeper.flows().clone(), stop.clone());
            std::thread::spawn(move || {
                let mut held = 0u64;
                while !stop.load(Relaxed) {
                    let guard = flows.try_lock(flow::FlowId(0));
                    held += u64::from(guard.is_some());
                    (0..20_000).for_each(|_| std::hint::spin_loop());
                    drop(guard);
                    (0..60_000).for_each(|_| std::hint::spin_loop());
                }
                held
            })
        })
        .collect();
    transfer(&mut sides, 3, [8 << 20, 1 << 20], Duration::from_us(50));
    stop.store(true, Relaxed);
    let held: u64 = holders.into_iter().map(|h| h.join().unwrap()).sum();
    assert!(held > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn bytes_survive_any_path(
        seed: u64, loss in 0u32..80_000, duplicate in 0u32..50_000, reorder in 0u32..150_000, corrupt in 0u32..30_000,
        truncate in 0u32..10_000, tso: bool, v6: bool, a in 0usize..400_000, b in 0usize..400_000,
    ) {
        let rates = FaultRates { loss, duplicate, reorder, corrupt, truncate, reorder_distance: 6, ..FaultRates::NONE };
        let plain = Capabilities::plain(1500, MAC_A);
        let mut sides = worlds(seed >> 1, rates, if tso { plain.with_tso() } else { plain }, v6);
        transfer(&mut sides, seed, [a, b], Duration::from_us(200));
    }
}
