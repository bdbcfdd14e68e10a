//! Reno, Cubic, AIMD, DCTCP.

use ccp_agent::Aggregated;
use ccp_algorithms::{
    aggregate::BySource, aimd::Aimd, all, cubic::Cubic, dctcp::Dctcp, reno::Reno, vegas::Vegas,
};

use crate::model::{MSS, Path, World, ms};

/// Windows at local peaks, in segments, from `from_ms` on.
fn drops(world: &World, id: u64, from_ms: u64) -> Vec<f64> {
    let samples = &world.senders[&id].samples;
    let pairs = samples.windows(2).filter(|pair| pair[1].at >= ms(from_ms));
    pairs
        .filter(|pair| pair[1].cwnd * 10 < pair[0].cwnd * 9)
        .map(|pair| pair[1].cwnd as f64 / pair[0].cwnd as f64)
        .collect()
}

#[test]
fn the_agent_with_all_algorithms_has_no_mistakes() {
    let agent = all().expect("no mistakes");
    assert_eq!(agent.algorithms().count(), 12);
    assert_eq!(agent.algorithms().next(), Some("cubic"));
}

#[test]
fn reno_halves_and_grows_by_a_segment_for_each_window() {
    let mut world = World::new(Path::new(48.0, 20, 1.0), Reno);
    world.flow(1, 0, 100_000);
    world.run(30_000);
    let sender = &world.senders[&1];
    assert!(sender.mbit(ms(5000), ms(30_000)) > 45.0, "{}", sender.mbit(ms(5000), ms(30_000)));
    assert_eq!((sender.faults, sender.timeouts), (0, 0));
    let drops = drops(&world, 1, 2000);
    assert!(drops.len() >= 3 && drops.iter().all(|drop| (drop - 0.5).abs() < 0.03), "{drops:?}");
    // Between two losses: half a window of segments in as many round trips, each longer than the one before.
    let grown = sender.sample_at(ms(20_000));
    let before = sender.sample_at(ms(19_800));
    let segments = (grown.cwnd as f64 - before.cwnd as f64) / MSS as f64;
    let rtts = 0.2 / (0.02 + grown.queue.as_us() as f64 / 1e6);
    assert!(segments < 0.0 || (segments - rtts).abs() < 2.0, "{segments} in {rtts} round trips");
}

#[test]
fn cubic_takes_three_tenths_and_is_flat_at_its_plateau() {
    let mut world = World::new(Path::new(96.0, 60, 1.0), Cubic);
    world.flow(1, 0, 100_000);
    world.run(60_000);
    let sender = &world.senders[&1];
    assert!(sender.mbit(ms(10_000), ms(60_000)) > 92.0, "{}", sender.mbit(ms(10_000), ms(60_000)));
    assert_eq!(sender.faults, 0);
    let drops = drops(&world, 1, 5000);
    assert!(drops.len() >= 3 && drops.iter().all(|drop| (drop - 0.7).abs() < 0.03), "{drops:?}");
}

#[test]
fn cubic_and_reno_of_one_agent_share_a_path() {
    let mut world = World::with(Path::new(48.0, 20, 2.0), all().expect("no mistakes"));
    world.flow_of(1, "cubic", 0, 100_000);
    world.flow_of(2, "reno", 0, 100_000);
    world.run(60_000);
    let rates = [1, 2].map(|id| world.senders[&id].mbit(ms(10_000), ms(60_000)));
    assert!(rates.iter().sum::<f64>() > 46.0 && rates.iter().all(|rate| *rate > 12.0), "{rates:?}");
}

#[test]
fn aimd_in_the_agent_fills_a_path() {
    let mut world = World::new(Path::new(24.0, 20, 1.0), Aimd);
    world.flow(1, 0, 100_000);
    world.run(30_000);
    let sender = &world.senders[&1];
    assert!(sender.mbit(ms(5000), ms(30_000)) > 21.0, "{}", sender.mbit(ms(5000), ms(30_000)));
    assert_eq!(sender.timeouts, 0);
}

#[test]
fn dctcp_keeps_the_queue_at_the_mark() {
    let mut path = Path::new(100.0, 2, 20.0);
    path.mark_above = 20 * MSS;
    let mut world = World::new(path, Dctcp);
    world.flow(1, 0, 100_000);
    world.flow(2, 500, 100_000);
    world.run(10_000);
    let rates = [1, 2].map(|id| world.senders[&id].mbit(ms(3000), ms(10_000)));
    assert!(rates.iter().sum::<f64>() > 95.0 && rates.iter().all(|rate| *rate > 35.0), "{rates:?}");
    let queue = world.senders[&1].queue_ms(ms(3000), ms(10_000));
    let mark = 20.0 * MSS as f64 * 8.0 / 100e3;
    assert!(queue > 0.2 * mark && queue < 1.6 * mark, "{queue} ms, marked above {mark} ms");
    assert_eq!(world.senders[&1].lost, 0);
}

/// The window in segments after ten round trips, and what was lost until then, of a flow over 48 Mbit/s, 20 ms, with a queue of one bandwidth-delay
/// product: 82 segments each.
fn after_ten_round_trips(algorithm: impl ccp_agent::Algorithm + 'static, grown: Option<u64>) -> (u64, u64) {
    let mut world = World::new(Path::new(48.0, 20, 1.0), algorithm);
    match grown {
        Some(segments) => world.grown_flow(1, segments, 100_000),
        None => world.flow(1, 0, 100_000),
    }
    world.run(200);
    let sender = &world.senders[&1];
    (sender.cwnd / MSS, sender.lost)
}

/// A live flow that is given to an algorithm does not start slowly again: that would double its window until the queue is full.
#[test]
fn a_flow_that_comes_with_a_grown_window_goes_on_in_congestion_avoidance() {
    let grown = Some(80);
    for (window, lost) in [
        after_ten_round_trips(Reno, grown),
        after_ten_round_trips(Cubic, grown),
        after_ten_round_trips(Dctcp, grown),
    ] {
        assert!((80..=95).contains(&window) && lost == 0, "{window} segments, {lost} lost");
    }
    for (window, lost) in [
        after_ten_round_trips(Reno, None),
        after_ten_round_trips(Cubic, None),
        after_ten_round_trips(Dctcp, None),
    ] {
        assert!(window > 82 || lost > 0, "{window} segments, {lost} lost: a new flow doubles until it loses");
    }
}

/// The windows, in segments, of a flow that never has more than 100 segments in flight for ten seconds, and a second after that limit is gone.
fn unused_and_used(algorithm: impl ccp_agent::Algorithm + 'static) -> (u64, u64) {
    let mut world = World::new(Path::new(800.0, 20, 4.0), algorithm);
    world.flow(1, 0, 100_000);
    world.run(0);
    world.senders.get_mut(&1).expect("it has begun").limit = 100 * MSS;
    world.run(10_000);
    let unused = world.senders[&1].cwnd / MSS;
    world.senders.get_mut(&1).expect("it goes on").limit = u64::MAX;
    world.run(11_000);
    (unused, world.senders[&1].cwnd / MSS)
}

/// "CUBIC does not increase its congestion window if a flow is application limited" (RFC 9438 section 5.8), where the receiver's window counts as
/// the application; RFC 7661 says the same of every algorithm. Without it the window was the largest that there is.
#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for (name, (unused, used)) in [
        ("reno", unused_and_used(Reno)),
        ("cubic", unused_and_used(Cubic)),
        ("dctcp", unused_and_used(Dctcp)),
        ("aimd", unused_and_used(Aimd)),
        ("vegas", unused_and_used(Vegas)),
        ("aggregate", unused_and_used(Aggregated::new(BySource))),
    ] {
        // An agent may add what one report of its slow start acknowledges.
        let most = if name == "aggregate" { 310 } else { 210 };
        assert!(
            (100..=most).contains(&unused),
            "{name}: a window of {unused} segments of which 100 were used"
        );
        assert!(used > unused + 20, "{name}: {unused} segments, then {used}: a window that is used grows");
    }
}
