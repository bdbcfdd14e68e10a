//! Peers with several addresses: channels of a session go over all of them, and an address that dies takes no socket with it.

use crate::support::apps::{ACCEPTS, Outcome, Plan};
use crate::support::lossy::{Weather, address, address_on};
use crate::support::scene::Sink;
use crate::support::world::World;
use base::{Duration, Instant};
use channel::limits::DEAD_AFTER;
use channel::session::{Ended, Session};
use channel::{ChannelId, Class, Config, Hub, Lane, SessionId, Sharing};
use std::net::IpAddr;

const FINE: Weather =
    Weather { delay_max: Duration::from_us(100), capacity: 1 << 20, create_fails: 0, is_cut: false };
/// Ways between the two hosts.
const WAYS: u8 = 2;

fn config() -> Config {
    let hosts = (0..2).map(|host| (0..WAYS).map(|way| address_on(host, way)).collect()).collect();
    Config { hosts, ..Config::new([0; 32], 0) }
}

/// A world with a socket on which so many bytes flow.
fn world_with(bytes: u64) -> (World, u64) {
    let mut world = World::new(7, FINE, &config());
    let plan = Plan { totals: [bytes, bytes], reset: None, stopped: None };
    let tag = world.open(0, Class::Throughput, ACCEPTS, plan).unwrap();
    (world, tag)
}

fn run_for(world: &mut World, time: Duration) {
    let until = world.now.plus(time);
    while world.now < until {
        world.step(Duration::from_ms(1));
    }
}

fn session(world: &World, host: usize) -> &Session {
    world.sides[host].hub.sessions().next().unwrap().1
}

/// The peer's addresses, one for each channel, in order.
fn addresses(world: &World, host: usize) -> Vec<IpAddr> {
    let mut all: Vec<_> = session(world, host).channels_by_address().map(|(_, address, _)| address).collect();
    all.sort_unstable();
    all
}

#[test]
fn each_address_has_a_channel_and_carries_bytes() {
    let (mut world, _) = world_with(20_000_000);
    run_for(&mut world, Duration::from_ms(20));
    for host in 0..2 {
        assert_eq!(addresses(&world, host), [0, 1].map(|way| address_on(host ^ 1, way)));
        let id = world.sides[host].hub.sessions().next().unwrap().0;
        assert_eq!(world.sides[host].hub.peer(id), Some(address(host ^ 1)), "whatever joins it");
    }
    world.finish();
    let carried = world.net.borrow().carried_on.clone();
    assert!(carried.len() == 2 && carried.values().all(|bytes| *bytes > 5_000_000), "{carried:?}");
}

#[test]
fn a_fixed_number_of_channels_is_spread_over_the_addresses() {
    let (mut world, _) = world_with(1 << 20);
    for (number, on) in [(4, [2, 2]), (3, [2, 1]), (1, [1, 0]), (5, [3, 2])] {
        let now = world.now;
        let id = world.sides[0].hub.sessions().next().unwrap().0;
        world.sides[0].hub.session(id).unwrap().want_channels(now, number);
        run_for(&mut world, Duration::from_ms(20));
        let there = addresses(&world, 0);
        let counts = [0, 1].map(|way| there.iter().filter(|at| **at == address_on(1, way)).count());
        assert_eq!(counts, on, "{number} channels");
    }
    world.finish();
}

/// Kills a way and waits until the side that sends has found out.
fn kill_way(world: &mut World, way: u8) {
    world.net.borrow_mut().kill_way(Some(way));
    run_for(world, DEAD_AFTER.plus(Duration::from_secs(1)));
    assert!(!addresses(world, 0).contains(&address_on(1, way)), "{:?}", addresses(world, 0));
}

#[test]
fn an_address_that_dies_moves_its_bytes_to_the_others_and_comes_back() {
    for way in 0..WAYS {
        let (mut world, tag) = world_with(40_000_000);
        run_for(&mut world, Duration::from_ms(20));
        assert_eq!(world.sides[0].apps.all[&tag].outcome, None, "the bytes are under way");
        kill_way(&mut world, way);
        assert_eq!(addresses(&world, 0), [address_on(1, way ^ 1); 2], "as many channels, on what is left");
        assert!(session(&world, 0).counters().channels_lost > 0);
        assert_eq!(world.sides[0].over, [], "the session lives");
        // What lives on is what carries the rest, but for the silence of the way back.
        world.net.borrow_mut().kill_way(None);
        run_for(&mut world, Duration::from_secs(10));
        assert_eq!(addresses(&world, 0), [0, 1].map(|way| address_on(1, way)), "way {way} is back");
        world.finish();
        assert_eq!(world.sides[0].apps.all[&tag].outcome, Some(Outcome::Closed));
    }
}

#[test]
fn a_session_begins_at_its_own_address_alone() {
    let mut world = World::new(7, FINE, &config());
    world.net.borrow_mut().kill_way(Some(0));
    world.may_end = true;
    let plan = Plan { totals: [10, 10], reset: None, stopped: None };
    let tag = world.open(0, Class::Throughput, ACCEPTS, plan).unwrap();
    run_for(&mut world, Duration::from_secs(11));
    assert_eq!(world.sides[0].apps.all[&tag].outcome, Some(Outcome::Refused));
    assert_eq!(world.net.borrow().carried_on.get(&1), None, "nothing went to the other address");
    world.finish();
}

/// Hubs joined by hand: `a` opens a session with `b`.
struct Hands {
    now: Instant,
    a: Hub,
    id: SessionId,
}

impl Hands {
    fn new() -> (Self, Hub) {
        let now = Instant::from_ns(1);
        let mut a = Hub::new(Config { hosts: config().hosts, ..Config::new([1; 32], 1) });
        let b = Hub::new(Config::new([2; 32], 1));
        let id = a.session_for(now, Lane::of(address(1), Class::Latency, 1, Sharing::SameUser)).unwrap();
        (Self { now, a, id }, b)
    }

    /// Makes the channel that the session asks for to that hub, and carries all that either says.
    fn channel(&mut self, number: u32, to: &mut Hub) -> Option<IpAddr> {
        self.now = self.now.plus(Duration::from_secs(1));
        self.a.tick(self.now);
        let (wanted, channel) = (self.a.poll_create()?, ChannelId(number));
        self.a.created(self.now, wanted, channel);
        to.accepted(self.now, channel, address(0), true);
        self.exchange(&[channel], to);
        Some(wanted.address)
    }

    fn exchange(&mut self, channels: &[ChannelId], to: &mut Hub) {
        for channel in channels.iter().cycle().take(4 * channels.len()) {
            carry(self.now, *channel, &mut self.a, to);
            carry(self.now, *channel, to, &mut self.a);
        }
    }
}

fn carry(now: Instant, channel: ChannelId, from: &mut Hub, to: &mut Hub) {
    let mut room = [0; 4_096];
    let n = from.transmit(now, channel, &mut room[..], &mut Sink::default());
    to.received(now, channel, &room[..n], &mut Sink::default());
    while from.poll_event(now).is_some() || to.poll_event(now).is_some() {}
}

#[test]
fn another_host_at_a_further_address_costs_the_session_nothing() {
    let (mut hands, mut b) = Hands::new();
    let mut stranger = Hub::new(Config::new([3; 32], 9));
    assert_eq!(hands.channel(1, &mut b), Some(address(1)));
    assert_eq!(hands.channel(2, &mut b), None, "not before the peer has said something in the session");
    // A PING and its PONG.
    hands.now = hands.now.plus(channel::limits::PING_AFTER);
    hands.a.tick(hands.now);
    hands.exchange(&[ChannelId(1)], &mut b);
    for number in 2..5 {
        assert_eq!(hands.channel(number, &mut stranger), Some(address_on(1, 1)));
        assert_eq!(hands.a.census().channels, 1);
    }
    assert_eq!((stranger.census().sessions, stranger.refusals().greetings), (0, 3));
    assert_eq!(hands.a.view(hands.id).unwrap().ended(), None);
    assert_eq!(hands.channel(5, &mut b), Some(address_on(1, 1)), "it is tried again");
    assert_eq!(hands.a.census().channels, 2);
    assert_eq!(hands.a.poll_over(), None);
}

#[test]
fn a_restarted_peer_ends_the_session_at_its_own_address() {
    let (mut hands, mut b) = Hands::new();
    hands.channel(1, &mut b);
    hands.now = hands.now.plus(channel::limits::PING_AFTER);
    hands.a.tick(hands.now);
    hands.exchange(&[ChannelId(1)], &mut b);
    hands.a.gone(hands.now, ChannelId(1));
    let mut anew = Hub::new(Config::new([4; 32], 2));
    assert_eq!(hands.channel(2, &mut anew), Some(address(1)));
    assert_eq!(hands.a.poll_over().map(|over| over.why), Some(Ended::Restarted));
}
