//! A peer that opens as many virtual sockets as a service takes by default, and more, and fills what each may keep: the memory is bounded, and it
//! comes back.

use crate::counting;
use crate::support::scene::{Scene, bare, frame, open};
use channel::frame::Kind;
use channel::limits::{INTERVALS_MAX, SOCKETS_MAX_DEFAULT};
use channel::session::{ECONNREFUSED, Ended};
use channel::violation::Violation;
use channel::{Config, Hub};

/// OPENs in one piece: each piece has the hub's invariants checked, which looks at every socket.
const PIECE: u32 = 8_192;
/// Bytes for each socket beside what lies ahead of its next byte: one place of the table, and its entry in the index.
const SOCKET_BYTES: i64 = 1_024;
/// Bytes for each socket with as many intervals ahead as it may have.
const FULL_BYTES: i64 = SOCKET_BYTES + 4 * 16 * INTERVALS_MAX as i64;

/// The bytes that the hub has, with the scene's own lists empty.
fn bytes(scene: &mut Scene) -> i64 {
    scene.events = Vec::new();
    counting::bytes()
}

#[test]
fn a_flood_of_sockets_at_the_default_maximum_has_bounded_memory_and_gives_it_back() {
    let mut scene = Scene::new(None);
    scene.hub = Hub::new(Config::new([1; 32], 1));
    let channel = scene.greet(None);
    let before = bytes(&mut scene);
    let opens = |from: u32, to: u32| (from..to).flat_map(|i| open(2 * i + 1)).collect::<Vec<_>>();
    for from in (0..SOCKETS_MAX_DEFAULT).step_by(PIECE as usize) {
        scene.send(channel, &opens(from, from + PIECE));
        scene.reply(channel);
    }
    assert_eq!(scene.hub.census().sockets, SOCKETS_MAX_DEFAULT as usize);
    let full = bytes(&mut scene) - before;
    let most = SOCKET_BYTES * i64::from(SOCKETS_MAX_DEFAULT);
    assert!(full < most, "{} bytes for each socket", full / i64::from(SOCKETS_MAX_DEFAULT));

    // More of them, of a peer that reads its answers: nothing grows.
    let beyond = SOCKETS_MAX_DEFAULT + 16 * PIECE;
    for from in (SOCKETS_MAX_DEFAULT..beyond).step_by(PIECE as usize) {
        scene.send(channel, &opens(from, from + PIECE));
        let refusal = bare(Kind::Refused, 2 * from + 1, u64::from(ECONNREFUSED));
        assert!(scene.reply(channel).starts_with(&refusal));
    }
    let after = bytes(&mut scene) - before;
    assert!(after < most, "{after} bytes after {beyond} OPENs, {full} before");

    // Some of them full of holes.
    const HOLED: u32 = 512;
    for i in 0..HOLED {
        let holes =
            (0..INTERVALS_MAX as u64).flat_map(|hole| frame(Kind::Data, 2 * i + 1, 10 + 20 * hole, b"hole"));
        scene.hub.received(scene.now, channel, &holes.collect::<Vec<_>>()[..], &mut scene.sink);
    }
    let holed = bytes(&mut scene) - before - after;
    assert!(holed < FULL_BYTES * i64::from(HOLED), "{} bytes for each", holed / i64::from(HOLED));

    // One that goes too far ends all of it.
    scene.send(channel, &frame(Kind::Data, 1, 9_000, b"hole"));
    assert_eq!(scene.why(), Some(Ended::Violation(Violation::Scattered(1))));
    let left = bytes(&mut scene) - before;
    assert!(left < 1 << 20, "{left} bytes are left of {holed} and {after}");
}
