//! A million packets through a core, and not one allocation.

use crate::counting;
use crate::harness::{Host, MAC_A, MAC_B, config, endpoints, install};
use base::{Duration, Instant};
use port::Capabilities;
use port_memory::{LinkOptions, link};

#[test]
fn a_million_packets_allocate_nothing() {
    let capabilities = Capabilities::plain(1500, MAC_A);
    let (mut pa, mut pb) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
    let (ea, eb) = endpoints(false);
    let (mut a, mut b) = (Host::new(config(), capabilities, 8), Host::new(config(), capabilities, 8));
    let mut now = Instant::from_ns(1);
    let (_, mut ask) = a.open(now, &install(ea, eb, 5, MAC_B, 1, 1));
    let (_, mut answer) = b.open(now, &install(eb, ea, 5, MAC_A, 1, 1));
    let (message, mut packets) = (vec![7u8; 6000], 0u64);
    let mut rounds = 0u64;
    while packets < 1_000_000 {
        a.send(&mut ask, &message[..1 + (rounds % 6000) as usize], 64 << 10);
        b.send(&mut answer, &message[..1 + (rounds * 7 % 3000) as usize], 64 << 10);
        for _ in 0..2 {
            counting::arm(true);
            packets += u64::from(a.core.poll(now, &mut pa).packets);
            packets += u64::from(b.core.poll(now, &mut pb).packets);
            counting::arm(false);
            now = now.plus(Duration::from_us(10));
            // The test's own slow path and applications may allocate.
            a.poll(now, &mut pa);
            b.poll(now, &mut pb);
        }
        a.recv(&mut ask, usize::MAX);
        b.recv(&mut answer, usize::MAX);
        rounds += 1;
    }
    assert_eq!(counting::count(), 0, "allocations in {packets} packets");
    assert!(ask.rx_tail > 1_000_000 && answer.rx_tail > 1_000_000);
}
