//! An application that scribbles over its half of a slot hurts itself and nobody else.

use crate::harness::{Host, MAC_A, MAC_B, config, endpoints, install};
use base::{Duration, Instant, Seed};
use flow::Exception;
use port::Capabilities;
use port_memory::{LinkOptions, link};
use std::sync::atomic::Ordering::Relaxed;
use wire::Endpoint;

#[test]
fn scribbling_is_reported_once_and_the_neighbour_goes_on() {
    for seed in 0..60 {
        let mut rng = Seed::new(seed);
        let capabilities = Capabilities::plain(1500, MAC_A).with_tso();
        let (mut pa, mut pb) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
        let (ea, eb) = endpoints(false);
        let other = |e: Endpoint| Endpoint::new(e.addr, e.port + 1);
        let (mut a, mut b) = (Host::new(config(), capabilities, 4), Host::new(config(), capabilities, 4));
        let mut now = Instant::from_ns(1);
        let (_, mut bad) = a.open(now, &install(ea, eb, 5, MAC_B, 1, 1));
        let (_, mut good) = a.open(now, &install(other(ea), other(eb), 6, MAC_B, 1, 1));
        let (_, mut bad_peer) = b.open(now, &install(eb, ea, 5, MAC_A, 1, 1));
        let (_, mut good_peer) = b.open(now, &install(other(eb), other(ea), 6, MAC_A, 1, 1));
        let mut received = 0;
        for round in 0..400u64 {
            a.send(&mut good, &[round as u8; 1000], 64 << 10);
            b.send(&mut good_peer, &[round as u8; 500], 64 << 10);
            b.send(&mut bad_peer, &[1; 500], 64 << 10);
            if round < 20 {
                a.send(&mut bad, &[2; 700], 64 << 10);
            } else {
                let (_, half) = a.region.halves(5).unwrap();
                let word = if rng.chance(500_000) { rng.next_u64() } else { rng.below(1 << 18) };
                match rng.below(8) {
                    0 => half.tx_head.store(word, Relaxed),
                    1 => half.rx_tail.store(word, Relaxed),
                    i @ 2..4 => half.ring[i as usize - 2].store(word & (0xFF << 32 | 0xFFF), Relaxed),
                    i @ 4..6 => half.start[i as usize - 4].store(word, Relaxed),
                    6 => half.context.store(word as u32, Relaxed),
                    _ => half.extra.store(word, Relaxed),
                }
                a.raise(&bad, 0);
            }
            a.poll(now, &mut pa);
            b.poll(now, &mut pb);
            received += b.recv(&mut good_peer, usize::MAX).len();
            a.recv(&mut good, usize::MAX);
            b.recv(&mut bad_peer, usize::MAX);
            now = now.plus(Duration::from_us(100));
        }
        for _ in 0..20_000 {
            a.poll(now, &mut pa);
            b.poll(now, &mut pb);
            received += b.recv(&mut good_peer, usize::MAX).len();
            a.recv(&mut good, usize::MAX);
            now = now.plus(Duration::from_us(100));
        }
        assert_eq!(received as u64, good.tx.head, "seed {seed}");
        assert!(received > 300_000);
        let violations: Vec<_> =
            a.log.iter().filter(|e| matches!(e, Exception::Violation { slot: 5, .. })).collect();
        assert!(violations.len() <= 1, "seed {seed}: {violations:?}");
        assert!(a.log.iter().all(|e| !matches!(e, Exception::Violation { slot: 6, .. })));
    }
}
