//! Copa and Vegas: algorithms that keep the queue short.

use ccp_algorithms::{all, copa::Copa, vegas::Vegas};

use crate::model::{MSS, Path, World, ms};

/// CCP paper, section 6.2: on a link of 12 Mbit/s with 25 ms Copa got 8.2 Mbit/s at a mean queueing delay of 11 ms.
#[test]
fn copa_at_12_mbit_and_25_ms() {
    let mut world = World::new(Path::new(12.0, 25, 4.0), Copa);
    world.flow(1, 0, 100_000);
    world.run(30_000);
    let sender = &world.senders[&1];
    let (rate, queue) = (sender.mbit(ms(2000), ms(30_000)), sender.queue_ms(ms(2000), ms(30_000)));
    assert!(rate > 11.0, "{rate} Mbit/s");
    assert!(queue < 8.0, "{queue} ms");
    assert_eq!(sender.faults, 0);
}

#[test]
fn copa_flows_share_evenly() {
    let mut world = World::new(Path::new(48.0, 20, 4.0), Copa);
    world.flow(1, 0, 100_000);
    world.flow(2, 5000, 100_000);
    world.run(40_000);
    let rates = [1, 2].map(|id| world.senders[&id].mbit(ms(20_000), ms(40_000)));
    assert!(rates.iter().sum::<f64>() > 44.0, "{rates:?}");
    assert!(rates[0].min(rates[1]) / rates[0].max(rates[1]) > 0.7, "{rates:?}");
}

/// Section 2.2 of Copa's paper: against a flow that fills the queue, Copa competes.
#[test]
fn copa_is_not_starved_by_reno() {
    let mut world = World::with(Path::new(24.0, 20, 2.0), all().expect("no mistakes"));
    world.flow_of(1, "copa", 0, 100_000);
    world.flow_of(2, "reno", 0, 100_000);
    world.run(60_000);
    let rates = [1, 2].map(|id| world.senders[&id].mbit(ms(10_000), ms(60_000)));
    assert!(rates[0] > 4.0 && rates.iter().sum::<f64>() > 22.0, "{rates:?}");
}

#[test]
fn vegas_keeps_two_to_four_segments_in_the_queue() {
    let path = Path::new(24.0, 20, 4.0);
    let mut world = World::new(path, Vegas);
    world.flow(1, 0, 100_000);
    world.run(30_000);
    let sender = &world.senders[&1];
    let segment_ms = MSS as f64 * 1000.0 / path.bytes_per_second as f64;
    let queued = sender.queue_ms(ms(5000), ms(30_000)) / segment_ms;
    assert!((1.0..=5.0).contains(&queued), "{queued} segments");
    assert!(sender.mbit(ms(5000), ms(30_000)) > 23.0);
    assert_eq!(sender.lost, 0);
}
