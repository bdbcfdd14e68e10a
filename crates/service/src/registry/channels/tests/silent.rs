//! Peers that make connections to the channel service and prove nothing: what they keep of it.

use super::World;
use super::host::{Channels, Host, Way, address};
use super::programs::{Outcome, Plan};
use base::{Duration, Seed};
use channel::lane::Class;
use channel::limits::{GREETING_TIME, GREETINGS_OF_PEER};
use link::LinkConfig;

/// Programs of host 0 connect to the channel service of host 1 and say nothing; they neither read nor close for as long as the test does not
/// give them their turn.
fn silent(world: &mut World, count: usize) {
    for number in 0..count {
        let plan = Plan { reads: 1, ..Plan::default() };
        assert!(world.hosts[0].connect(Way::Stranger, 20_000 + number as u16, address(1), plan));
    }
}

/// As `World::step`, for so much time, without any program's turn.
fn pass_without_turns(world: &mut World, time: Duration) {
    let until = world.now.plus(time);
    while world.now < until {
        let now = world.now;
        world.hosts.iter_mut().for_each(|host: &mut Host| host.run(now));
        world.pass(until);
    }
}

fn world() -> World {
    let link = LinkConfig::delayed(Duration::from_us(50));
    World::over(1, Channels { number: Some(1), ..Channels::default() }, Seed::new(1), &link)
}

#[test]
fn connections_without_proof_are_bounded_while_they_last_and_free_at_once_when_their_time_is_over() {
    let mut world = world();
    silent(&mut world, 2 * GREETINGS_OF_PEER);
    pass_without_turns(&mut world, Duration::from_secs(1));
    assert_eq!(world.hosts[1].snapshot().census.greetings, GREETINGS_OF_PEER);
    assert_eq!(world.hosts[1].used_by_channels(), GREETINGS_OF_PEER, "those that lost their places are gone");
    pass_without_turns(&mut world, GREETING_TIME);
    assert_eq!(world.hosts[1].snapshot().census.greetings, 0);
    assert_eq!(world.hosts[1].used_by_channels(), 0, "though no peer has closed its end");
    assert_eq!(world.hosts[1].snapshot().refusals.greetings, 2 * GREETINGS_OF_PEER as u64);
}

#[test]
fn a_session_begins_at_once_beside_silent_connections_of_its_own_host() {
    let mut world = world();
    silent(&mut world, 2 * GREETINGS_OF_PEER);
    pass_without_turns(&mut world, Duration::from_secs(1));
    let plan = Plan { key: 1, peer_key: 2, writes: 1_000, reads: 1_000, ..Plan::default() };
    let began = world.now;
    assert!(world.begin(0, Class::Latency, 10_000, plan, |there| there));
    let until = world.now.plus(Duration::from_ms(100));
    while world.now < until && !world.hosts[0].outcomes.contains_key(&10_000) {
        world.step(Duration::from_ms(1));
    }
    assert_eq!(world.hosts[0].outcomes.get(&10_000), Some(&Outcome::Whole), "since {began:?}");
}
