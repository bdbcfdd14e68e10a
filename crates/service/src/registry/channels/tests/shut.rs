//! The end of a service: what its programs have written and closed arrives, and the rest is reset.

use super::host::Channels;
use super::programs::{Outcome, Plan};
use super::{World, wait_for_outcome};
use crate::registry::channels::control::SHUT_TIME;
use base::{Duration, Seed};
use channel::lane::Class;
use link::LinkConfig;

/// A program of host 0 writes to one of host 1 and closes its socket at once; then the service of host 0 ends. `stops`: the other program reads
/// nothing. Returns what the other program came to.
fn write_close_and_shut(seed: u64, stops: bool) -> (World, Option<Outcome>) {
    let mut world = World::new(seed, 2);
    // For a reader that reads nothing, more than the credit.
    let writes = if stops { 20_000 } else { 7_000 };
    let plan = Plan { key: 1, peer_key: 2, writes, leaves: true, ..Plan::default() };
    assert!(world.begin(0, Class::Throughput, 10_000, plan, |there| Plan { stops, ..there }));
    // One more that its program keeps.
    let kept = Plan { key: 3, peer_key: 4, writes: 500_000, ..Plan::default() };
    assert!(world.begin(0, Class::Throughput, 10_001, kept, |there| there));
    while !world.hosts[0].outcomes.contains_key(&10_000) {
        world.step(Duration::from_us(50));
    }
    world.hosts[0].shut(false);
    let until = world.now.plus(Duration::from_secs(if stops { 1 } else { 20 }));
    while world.now < until && !world.hosts[1].outcomes.contains_key(&10_000) {
        world.step(Duration::from_ms(1));
    }
    let outcome = world.hosts[1].outcomes.get(&10_000).copied();
    (world, outcome)
}

#[test]
fn what_is_written_and_closed_arrives_though_the_service_ends() {
    for seed in 1..=20 {
        let (mut world, outcome) = write_close_and_shut(seed, false);
        assert_eq!(outcome, Some(Outcome::Whole), "{seed}");
        wait_for_no_sockets(&mut world);
        let kept = world.hosts[1].outcomes.get(&10_001);
        assert_eq!(kept, Some(&Outcome::Reset), "{seed}: its program has it still");
    }
}

/// Everything that is sent in the first tenth of a second of the service's end is lost, the probe for a lost tail with it: the retransmission
/// timeout, which is the slow path's, repairs that while the service waits.
#[test]
fn a_tail_that_is_lost_with_its_probe_arrives_though_the_service_ends() {
    for seed in 1..=20 {
        let link = LinkConfig::delayed(Duration::from_us(50 * seed));
        let mut world = World::over(seed, Channels::default(), Seed::new(seed), &link);
        let plan = |key| Plan { key, peer_key: 100 + key, writes: 3_000, ..Plan::default() };
        // A round trip is measured.
        assert!(world.begin(0, Class::Throughput, 10_000, plan(1), |there| there));
        assert_eq!(wait_for_outcome(&mut world, 10_000).0, Outcome::Whole);
        while !world.are_programs_over() {
            world.step(Duration::from_ms(1));
        }
        let left = Plan { leaves: true, ..plan(2) };
        assert!(world.begin(0, Class::Throughput, 10_001, left, |there| there));
        while world.hosts[1].programs.is_empty() {
            world.step(Duration::from_us(50));
        }
        // The peer's answer is under way: the program writes when it has come.
        world.network.dark_until = world.now.plus(Duration::from_ms(100));
        assert_eq!(wait_for_outcome(&mut world, 10_001).0, Outcome::Whole, "it has written and left");
        assert!(world.now < world.network.dark_until);
        world.hosts[0].shut(false);
        let until = world.now.plus(Duration::from_ms(SHUT_TIME.as_millis() as u64));
        while !world.hosts[1].outcomes.contains_key(&10_001) {
            assert!(world.now < until, "{seed}: it has not arrived");
            world.step(Duration::from_ms(1));
        }
        assert_eq!(world.hosts[1].outcomes[&10_001], Outcome::Whole, "{seed}");
    }
}

/// Steps until host 0 has no virtual socket.
fn wait_for_no_sockets(world: &mut World) {
    let until = world.now.plus(Duration::from_secs(20));
    while world.hosts[0].snapshot().census.sockets > 0 {
        assert!(world.now < until, "{:?}", world.hosts[0].snapshot().census);
        world.step(Duration::from_ms(5));
    }
}

#[test]
fn what_cannot_arrive_is_reset_when_the_service_has_waited() {
    let (mut world, outcome) = write_close_and_shut(1, true);
    assert_eq!(outcome, None);
    assert_eq!(world.hosts[0].snapshot().census.sockets, 1, "the reader has stopped");
    world.hosts[0].shut(true);
    wait_for_no_sockets(&mut world);
    assert_eq!(world.hosts[1].outcomes.get(&10_000), Some(&Outcome::Reset));
}
