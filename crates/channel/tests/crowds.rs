//! Peers that make channels and say nothing: what they take up is bounded, and a peer that is honest gets in beside them.

use crate::support::scene::{PEER, Scene, confirm};
use base::Duration;
use channel::hub::{Census, Rejected};
use channel::limits::{
    DEAD_AFTER, GREETING_TIME, GREETINGS_MAX, GREETINGS_OF_PEER, KNOWN_MAX, REJECTED_MAX, STRANGERS_MAX,
};
use channel::violation::Rejection;
use channel::{Config, Hub};
use std::net::{IpAddr, Ipv6Addr};

const SECRET: Option<&[u8]> = Some(b"secret");

/// An address in a network of its own.
fn v4(host: u32) -> IpAddr {
    IpAddr::from((0x0B00_0000 + host).to_be_bytes())
}

/// One of the addresses of a single network.
fn v6(host: u64) -> IpAddr {
    Ipv6Addr::from_bits(0x2001_0DB8_0000_0001 << 64 | u128::from(host)).into()
}

/// A hub whose sessions are not full before its places.
fn scene() -> Scene {
    let mut scene = Scene::new(SECRET);
    let config =
        Config { secret: SECRET.map(<[u8]>::to_vec), sessions_max: 100_000, ..Config::new([1; 32], 1) };
    scene.hub = Hub::new(config);
    scene
}

/// The peer's handshake, with `meanwhile` between its two steps. True if it has got a session.
fn gets_in(scene: &mut Scene, peer: IpAddr, meanwhile: impl FnOnce(&mut Scene)) -> bool {
    let before = scene.hub.census().sessions;
    scene.address = peer;
    scene.session += 1;
    let ask = scene.hello();
    let (channel, answer) = scene.ask(&ask);
    meanwhile(scene);
    scene.send(channel, &confirm(SECRET, &ask, &answer));
    scene.hub.census().sessions > before
}

#[test]
fn silent_channels_of_twenty_addresses_do_not_keep_a_newcomer_out() {
    let mut scene = scene();
    let flood = |scene: &mut Scene| (0..20).for_each(|host| scene.silent(v4(host), 2 * GREETINGS_OF_PEER));
    flood(&mut scene);
    assert_eq!(scene.hub.census().greetings, GREETINGS_MAX);
    assert!(gets_in(&mut scene, PEER, flood), "at the first try, and the flood goes on meanwhile");
    assert_eq!(scene.hub.census().greetings, GREETINGS_MAX - 1);
}

#[test]
fn a_network_of_ipv6_counts_as_one_address_and_a_newcomer_out_of_it_gets_in_too() {
    let mut scene = scene();
    let flood = |scene: &mut Scene| (0..2_000).for_each(|host| scene.silent(v6(host), 1));
    flood(&mut scene);
    // A hundred peers in their handshakes at once.
    let asks: Vec<_> = (0..100)
        .map(|host| {
            scene.address = v4(host);
            scene.session += 1;
            let ask = scene.hello();
            let (channel, answer) = scene.ask(&ask);
            (ask, channel, answer)
        })
        .collect();
    flood(&mut scene);
    for (ask, channel, answer) in &asks {
        scene.send(*channel, &confirm(SECRET, ask, answer));
    }
    assert_eq!(scene.hub.census().sessions, 100);
    // One host of that network has all places of it; another one asks.
    (0..8).for_each(|host| scene.silent(v6(host), GREETINGS_OF_PEER));
    assert!(gets_in(&mut scene, v6(99_999), |scene| scene.silent(v6(1), GREETINGS_OF_PEER)));
}

/// A peer that proved itself once has a place that no number of other peers can take, though each of them is a network of its own.
#[test]
fn a_peer_that_has_proved_itself_before_gets_in_whatever_others_do() {
    let flood = |scene: &mut Scene| {
        for host in 0..2_000 {
            scene.silent(v4(host), 1);
            scene.hub.accepted(scene.now, channel::ChannelId(1 << 20 | host), v4(host + 5_000), false);
        }
    };
    let mut scene = scene();
    assert!(gets_in(&mut scene, PEER, flood), "who has asked is not turned out for those who have not");
    for _ in 0..5 {
        assert!(gets_in(&mut scene, PEER, flood));
    }
    // Its own address is no way around: silent channels from there are a newcomer's no more, and its own.
    assert!(gets_in(&mut scene, PEER, |scene| scene.silent(PEER, GREETINGS_OF_PEER - 1)));
}

/// Makes a channel from that address that asks for a session and proves nothing. A host needs no secret for that.
fn asks(scene: &mut Scene, address: IpAddr) {
    let own = std::mem::replace(&mut scene.address, address);
    scene.session += 1;
    let ask = scene.hello();
    scene.ask(&ask);
    scene.address = own;
}

/// In how many of a hundred handshakes the peer gets in though `rival` makes so many channels that ask meanwhile.
fn successes(scene: &mut Scene, peer: IpAddr, rivals: usize, rival: impl Fn(usize) -> IpAddr) -> usize {
    let before = |scene: &mut Scene| (0..rivals).for_each(|number| asks(scene, rival(number)));
    before(scene);
    (0..100).filter(|_| gets_in(scene, peer, before)).count()
}

/// Another user of the same host, or a host behind the same address, has the address of a peer that is known.
#[test]
fn silent_channels_from_its_own_address_do_not_turn_a_known_peer_out() {
    let mut scene = scene();
    for _ in 0..5 {
        assert!(gets_in(&mut scene, PEER, |scene| scene.silent(PEER, 10 * GREETINGS_OF_PEER)));
    }
}

/// And if its channels ask as well, it cannot make sure of the peer's.
#[test]
fn channels_that_ask_from_its_own_address_turn_a_known_peer_out_by_chance_only() {
    let mut scene = scene();
    assert!(gets_in(&mut scene, PEER, |_| ()));
    let times = successes(&mut scene, PEER, GREETINGS_OF_PEER, |_| PEER);
    assert!(times > 20, "{times}: a third is meant");
}

#[test]
fn as_many_networks_as_there_are_places_turn_a_newcomer_out_by_chance_only() {
    let mut scene = scene();
    let times = (0..100u32).filter(|try_| {
        let newcomer = v4(100_000 + try_);
        (0..GREETINGS_MAX as u32).for_each(|host| asks(&mut scene, v4(host)));
        gets_in(&mut scene, newcomer, |scene| {
            (0..GREETINGS_MAX as u32).for_each(|host| asks(scene, v4(1_000 + host)));
        })
    });
    let times = times.count();
    assert!(times > 20, "{times}: a third is meant");
}

/// Sessions that this service has opened prove their peers as well.
#[test]
fn a_peer_that_has_answered_this_service_is_known() {
    let mut scene = scene();
    let channel = scene.open_ours(SECRET);
    scene.reply(channel);
    assert_eq!(scene.hub.census().channels, 1);
    assert!(gets_in(&mut scene, PEER, |scene| (0..2_000).for_each(|host| scene.silent(v4(host), 1))));
}

#[test]
fn peers_that_prove_themselves_from_many_addresses_make_no_other_unknown() {
    let mut scene = scene();
    assert!(gets_in(&mut scene, PEER, |_| ()));
    for host in 0..2 * KNOWN_MAX as u64 {
        assert!(gets_in(&mut scene, v6(host), |_| ()));
    }
    assert!(gets_in(&mut scene, PEER, |scene| (0..2_000).for_each(|host| scene.silent(v4(host), 1))));
}

#[test]
fn silent_channels_are_bounded_and_given_up() {
    let mut scene = scene();
    let channel = scene.greet(SECRET);
    scene.silent(PEER, 2 * GREETINGS_OF_PEER);
    assert_eq!(scene.hub.census().greetings, GREETINGS_OF_PEER, "one known peer");
    assert_eq!(scene.hub.refusals().greetings, GREETINGS_OF_PEER as u64);
    for host in 0..2 * GREETINGS_MAX as u32 {
        scene.hub.accepted(scene.now, channel::ChannelId(1 << 20 | host), v4(host), false);
    }
    assert_eq!(scene.hub.census().greetings, GREETINGS_OF_PEER + STRANGERS_MAX);
    (0..2 * GREETINGS_MAX as u32).for_each(|host| scene.silent(v4(host), 1));
    assert_eq!(scene.hub.census().greetings, GREETINGS_OF_PEER + STRANGERS_MAX + GREETINGS_MAX);
    // Each that has lost its place was counted, strangers when they were told that they are none of the peers.
    assert_eq!(scene.hub.refusals().greetings, (GREETINGS_OF_PEER + 3 * GREETINGS_MAX) as u64);
    let rejected: Vec<_> = std::iter::from_fn(|| scene.hub.poll_rejected()).collect();
    assert_eq!(rejected.len(), REJECTED_MAX);
    assert_eq!(rejected[0], Rejected { peer: PEER, why: Rejection::Crowd });
    let ended = |scene: &mut Scene| std::iter::from_fn(|| scene.hub.poll_abort()).count();
    assert_eq!(ended(&mut scene), GREETINGS_OF_PEER + 2 * GREETINGS_MAX - STRANGERS_MAX + GREETINGS_MAX);
    scene.now = scene.now.plus(GREETING_TIME);
    scene.hub.tick(scene.now);
    assert_eq!(ended(&mut scene), GREETINGS_OF_PEER + STRANGERS_MAX + GREETINGS_MAX);
    assert_eq!(scene.hub.census(), Census { sessions: 1, channels: 1, greetings: 0, sockets: 0 });
    scene.now = scene.now.plus(DEAD_AFTER);
    scene.hub.tick(scene.now);
    assert_eq!(scene.hub.poll_destroy(), Some(channel), "a silent peer's channel is given up, too");
}

/// What this service asks others takes no place from those that ask it.
#[test]
fn handshakes_of_this_service_take_no_place() {
    let mut scene = scene();
    scene.begin_ours();
    scene.ask_ours();
    (0..GREETINGS_MAX as u32).for_each(|host| scene.silent(v4(host), 1));
    assert_eq!((scene.hub.census().greetings, scene.hub.refusals().greetings), (GREETINGS_MAX + 1, 0));
    scene.now = scene.now.plus(Duration::from_ms(1));
    assert!(gets_in(&mut scene, PEER, |_| ()));
}
