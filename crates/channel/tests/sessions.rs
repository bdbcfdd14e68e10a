//! What sessions of two whole services do in named situations.

use crate::support::apps::{ACCEPTS, Outcome, Plan, REFUSES};
use crate::support::lossy::{Weather, address};
use crate::support::world::World;
use base::{Duration, Instant};
use channel::hub::Over;
use channel::limits::{DEAD_AFTER, IDLE_TIME, PING_AFTER, RECONNECT_TIME};
use channel::session::{Counters, ECONNRESET, Ended, Session};
use channel::violation::Refusal;
use channel::{Class, Config, Lane, SessionId, Sharing};

const FINE: Weather =
    Weather { delay_max: Duration::from_us(100), capacity: 1 << 20, create_fails: 0, is_cut: false };

fn plan(sent: u64, answered: u64) -> Plan {
    Plan { totals: [sent, answered], reset: None, stopped: None }
}

fn world() -> World {
    World::new(7, FINE, &Config::new([0; 32], 0))
}

fn run_for(world: &mut World, time: Duration) {
    let until = world.now.plus(time);
    while world.now < until {
        world.step(Duration::from_ms(1));
    }
}

/// Runs until bytes flow on that socket.
fn run_until_open(world: &mut World, host: usize, tag: u64) {
    while !world.sides[host].apps.all[&tag].is_open {
        world.step(Duration::from_us(100));
    }
}

/// A world with a socket from host 0 on which bytes flow.
fn world_with(plan: Plan) -> (World, u64) {
    let mut world = world();
    let tag = world.open(0, Class::Throughput, ACCEPTS, plan).unwrap();
    run_until_open(&mut world, 0, tag);
    (world, tag)
}

fn session(world: &mut World, host: usize) -> (SessionId, &mut Session) {
    let id = world.sides[host].hub.sessions().next().unwrap().0;
    (id, world.sides[host].hub.session(id).unwrap())
}

fn counters(world: &mut World, host: usize) -> Counters {
    session(world, host).1.counters()
}

fn want_channels(world: &mut World, number: usize) {
    let now = world.now;
    session(world, 0).1.want_channels(now, number);
    run_for(world, Duration::from_ms(20));
}

#[test]
fn classes_and_users_have_channels_of_their_own() {
    let mut world = world();
    let mut lane = |class, user, sharing| {
        let lane = Lane::of(address(1), class, user, sharing);
        world.sides[0].hub.session_for(Instant::ZERO, lane).unwrap()
    };
    let first = lane(Class::Latency, 1, Sharing::SameUser);
    assert_eq!(lane(Class::Latency, 1, Sharing::SameUser), first);
    let others = [
        lane(Class::Throughput, 1, Sharing::SameUser),
        lane(Class::Latency, 2, Sharing::SameUser),
        lane(Class::Latency, 2, Sharing::Always),
    ];
    assert!(!others.contains(&first) && others[0] != others[1] && others[1] != others[2]);
    assert_eq!(lane(Class::Latency, 9, Sharing::Always), others[2]);
    run_for(&mut world, Duration::from_ms(10));
    assert_eq!(world.sides[1].hub.census().channels, 4, "one for each session");
    for id in others.into_iter().chain([first]) {
        let peers = [0, 1].map(|host| world.sides[host].hub.peer(id));
        assert_eq!(peers, [Some(address(1)), Some(address(0))]);
    }
}

#[test]
fn small_messages_of_many_sockets_share_a_segment() {
    let mut world = world();
    world.sides.iter_mut().for_each(|side| side.host.room = 64 << 10);
    for _ in 0..64 {
        world.open(0, Class::Throughput, ACCEPTS, plan(64, 64)).unwrap();
    }
    // All sockets are open, and none has written.
    for host in [0, 1, 0, 1, 0, 1, 0, 1, 0] {
        world.now = world.now.plus(Duration::from_ms(1));
        world.net.borrow_mut().now = world.now;
        world.serve(host);
    }
    assert_eq!(world.sides[1].apps.all.len(), 64);
    let before = world.net.borrow().enqueued;
    while world.sides[0].apps.all.values().any(|app| !app.has_written_all()) {
        world.turns(0);
    }
    world.serve(0);
    assert_eq!(world.net.borrow().enqueued - before, 1, "64 messages of 64 bytes in one piece");
    world.finish();
}

#[test]
fn the_bytes_of_one_socket_go_over_several_channels() {
    // A window of several rows of chunks.
    let (mut world, _) = world_with(plan(20_000_000, 0));
    want_channels(&mut world, 3);
    world.finish();
    let carried: Vec<u64> = world.net.borrow().carried.values().copied().collect();
    assert!(carried.len() == 3 && carried.iter().all(|bytes| *bytes > 2_000_000), "{carried:?}");
}

#[test]
fn a_reader_that_stops_holds_neither_the_channel_nor_4095_others() {
    let mut world = world();
    let stopped = Plan { stopped: Some(1), ..plan(1_000_000, 0) };
    let tag = world.open(0, Class::Throughput, ACCEPTS, stopped).unwrap();
    for _ in 1..4_096 {
        world.open(0, Class::Throughput, ACCEPTS, plan(300, 20)).unwrap();
    }
    let is_left = |world: &World| {
        let others = world.sides[0].apps.all.iter().filter(|(other, _)| **other != tag);
        others.into_iter().any(|(_, app)| app.outcome.is_none())
    };
    let mut steps = 0;
    while is_left(&world) {
        world.step(Duration::from_ms(1));
        steps += 1;
        assert!(steps < 2_000, "the others are held up");
        let waiting: usize = session(&mut world, 0).1.channels().map(|channel| channel.unsent).sum();
        assert!(waiting <= 2 << 20);
    }
    assert_eq!(session(&mut world, 0).1.channels().count(), 1);
    let census = world.sides[0].hub.census();
    assert_eq!(census.sockets, 1, "only the stopped one");
    assert_eq!(world.sides[0].apps.all[&tag].outcome, None);
    let (now, socket) = (world.now, world.sides[0].apps.all[&tag].socket);
    session(&mut world, 0).1.reset(now, socket, ECONNRESET);
    world.sides[0].apps.all.get_mut(&tag).unwrap().outcome = Some(Outcome::ResetByUs);
    world.may_end = true;
    world.finish();
}

#[test]
fn a_channel_that_ends_in_order_sends_nothing_twice() {
    let (mut world, _) = world_with(plan(3_000_000, 3_000_000));
    for number in [4, 1, 3, 2] {
        want_channels(&mut world, number);
        assert_eq!(session(&mut world, 0).1.channels().count(), number);
        assert_eq!(session(&mut world, 1).1.channels().count(), number);
    }
    for host in 0..2 {
        let counters = counters(&mut world, host);
        assert_eq!((counters.bytes_again, counters.bytes_twice, counters.channels_lost), (0, 0, 0));
    }
    world.finish();
}

#[test]
fn a_channel_that_dies_has_only_its_own_bytes_go_again() {
    let (mut world, _) = world_with(plan(3_000_000, 0));
    want_channels(&mut world, 3);
    world.net.borrow_mut().kill(false);
    run_for(&mut world, Duration::from_ms(20));
    let again = counters(&mut world, 0).bytes_again;
    assert!(again < 300_000, "{again} bytes went again");
    assert_eq!(counters(&mut world, 0).channels_lost, 1);
    world.finish();
}

#[test]
fn a_silent_channel_is_taken_for_dead_and_its_sockets_go_on() {
    let mut world = world();
    let tag = world.open(0, Class::Latency, ACCEPTS, plan(500, 500)).unwrap();
    run_for(&mut world, Duration::from_ms(5));
    world.net.borrow_mut().mute();
    run_for(&mut world, PING_AFTER);
    assert_eq!(counters(&mut world, 0).channels_lost, 0);
    run_for(&mut world, DEAD_AFTER);
    assert_eq!(counters(&mut world, 0).channels_lost, 1);
    world.finish();
    assert_eq!(world.sides[0].apps.all[&tag].outcome, Some(Outcome::Closed));
}

#[test]
fn an_idle_channel_is_kept_alive_by_pings() {
    let mut world = world();
    let stopped = Plan { stopped: Some(1), ..plan(1_000_000, 0) };
    world.open(0, Class::Latency, ACCEPTS, stopped).unwrap();
    run_for(&mut world, Duration::from_secs(120));
    assert_eq!(counters(&mut world, 0).channels_lost, 0);
    assert_eq!(counters(&mut world, 1).channels_lost, 0);
}

#[test]
fn without_any_channel_sockets_live_for_ten_seconds() {
    let (mut world, tag) = world_with(plan(1_000_000, 0));
    world.net.borrow_mut().weather.is_cut = true;
    world.net.borrow_mut().kill(true);
    run_for(&mut world, Duration::from_ms(RECONNECT_TIME.as_ms() - 100));
    assert_eq!(world.sides[0].apps.all[&tag].outcome, None);
    world.may_end = true;
    run_for(&mut world, Duration::from_ms(200));
    assert_eq!(world.sides[0].apps.all[&tag].outcome, Some(Outcome::Reset(ECONNRESET)));
    let ends =
        |world: &World, host: usize| world.sides[host].over.iter().map(|over| over.why).collect::<Vec<_>>();
    assert_eq!((ends(&world, 0), ends(&world, 1)), (vec![Ended::Unreachable], vec![Ended::Unreachable]));
    world.finish();
}

#[test]
fn a_restart_of_either_side_resets_at_once() {
    for host in 0..2 {
        let mut world = world();
        let tags =
            [0, 1].map(|from| world.open(from, Class::Throughput, ACCEPTS, plan(1_000_000, 9)).unwrap());
        run_until_open(&mut world, 0, tags[0]);
        run_until_open(&mut world, 1, tags[1]);
        world.restart(host);
        // The new service opens a socket, too: its HELLO names the new epoch.
        world.open(host, Class::Latency, ACCEPTS, plan(10, 10)).unwrap();
        run_for(&mut world, Duration::from_ms(RECONNECT_TIME.as_ms() / 10));
        let other = &world.sides[host ^ 1];
        assert_eq!(other.apps.all[&tags[host ^ 1]].outcome, Some(Outcome::Reset(ECONNRESET)));
        assert!(other.over.iter().all(|over| over.why == Ended::Restarted) && other.over.len() == 2);
        world.finish();
    }
}

#[test]
fn services_with_different_secrets_have_no_session() {
    let mut world = world();
    world.may_end = true;
    let other = Config { secret: Some(b"other".to_vec()), ..Config::new([9; 32], 300) };
    world.sides[1].hub = channel::Hub::new(other);
    let tag = world.open(0, Class::Throughput, ACCEPTS, plan(10, 10)).unwrap();
    run_for(&mut world, Duration::from_ms(10));
    assert_eq!(world.sides[0].apps.all[&tag].outcome, Some(Outcome::Refused));
    let [Over { why, .. }] = world.sides[0].over[..] else { panic!("{:?}", world.sides[0].over) };
    assert_eq!(why, Ended::Refused(Refusal::Secret));
    world.finish();
}

#[test]
fn refused_sockets_and_those_with_nothing_to_say_end_cleanly() {
    let mut world = world();
    let refused = world.open(0, Class::Latency, REFUSES, plan(10, 10)).unwrap();
    let silent = world.open(0, Class::Latency, ACCEPTS, plan(0, 0)).unwrap();
    let server_first = world.open(0, Class::Latency, ACCEPTS, plan(0, 5_000)).unwrap();
    world.finish();
    let outcome = |tag| world.sides[0].apps.all[&tag].outcome;
    assert_eq!(outcome(refused), Some(Outcome::Refused));
    assert_eq!((outcome(silent), outcome(server_first)), (Some(Outcome::Closed), Some(Outcome::Closed)));
}

#[test]
fn a_session_without_sockets_ends_after_a_minute() {
    let mut world = world();
    world.open(0, Class::Latency, ACCEPTS, plan(10, 10)).unwrap();
    run_for(&mut world, IDLE_TIME);
    assert_eq!(world.sides[1].hub.census().sessions, 1);
    // The side that was asked keeps its state as long as the other could come back for an answer.
    run_for(&mut world, RECONNECT_TIME.plus(Duration::from_secs(1)));
    for side in &world.sides {
        assert_eq!(side.hub.census().sessions, 0);
        assert_eq!(side.over.iter().map(|over| over.why).collect::<Vec<_>>(), [Ended::Drained]);
    }
    assert_eq!(world.net.borrow().wires(), 0);
}

#[test]
fn a_service_that_shuts_down_lets_its_sockets_finish() {
    let (mut world, tag) = world_with(plan(500_000, 500_000));
    world.sides[1].hub.shut(world.now);
    run_for(&mut world, Duration::from_ms(2));
    world.net.borrow_mut().kill(true);
    assert!(world.open(0, Class::Throughput, ACCEPTS, plan(1, 1)).is_some(), "a new session is asked for");
    world.may_end = true;
    world.finish();
    assert_eq!(world.sides[0].apps.all[&tag].outcome, Some(Outcome::Closed));
    let refused = Ended::Refused(Refusal::ShuttingDown);
    assert!(world.sides[0].over.iter().any(|over| over.why == refused), "{:?}", world.sides[0].over);
}
