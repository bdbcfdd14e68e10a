//! A peer that breaks the rules: its session ends with a reason, what the hub keeps stays bounded, and other sessions go on.

use crate::support::scene::{PEER, SOCKETS_MAX, Scene, WINDOW, bare, frame, open};
use base::{Duration, Seed};
use channel::frame::{Goaway, Kind};
use channel::hello::{Hello, Step};
use channel::hub::{Census, Rejected};
use channel::limits::{GREETING_TIME, JOINS_A_SECOND, LATE_ANSWERS_SLACK, SESSIONS_OF_PEER};
use channel::proof::{Key, Purpose};
use channel::session::{ECONNREFUSED, Ended};
use channel::violation::{Refusal, Rejection, Violation};
use channel::{ChannelId, Config, Hub, News};

#[test]
fn each_breach_ends_the_session_with_its_reason() {
    let credit = |acked, edge: u64| frame(Kind::Credit, 1, acked, &edge.to_le_bytes());
    let far = 1 << 50;
    let cases = [
        (vec![0, 0, 0, 13], Violation::Type(13)),
        // Of a feature that the peer's HELLO has not named.
        (bare(Kind::Congested, 0, 1), Violation::Type(12)),
        (bare(Kind::Congested, 1, 1), Violation::UnknownSocket(1)),
        (
            frame(Kind::Data, 1, 0, &[0; 10_001]),
            Violation::BeyondCredit { socket: 1, end: 10_001, edge: WINDOW },
        ),
        (
            frame(Kind::Data, 1, u64::MAX, &[0; 1]),
            Violation::BeyondCredit { socket: 1, end: u64::MAX, edge: WINDOW },
        ),
        (frame(Kind::Data, 3, 0, &[0; 1]), Violation::UnknownSocket(3)),
        (frame(Kind::Data, 0, 0, &[0; 1]), Violation::UnknownSocket(0)),
        (frame(Kind::Data, 2, 0, &[0; 1]), Violation::UnknownSocket(2)),
        (credit(1, WINDOW), Violation::AckedUnsent { socket: 1, acked: 1 }),
        (credit(0, far), Violation::Window(far)),
        (open(5), Violation::OpenOrder { expected: 3, found: 5 }),
        (open(2), Violation::OpenOrder { expected: 3, found: 2 }),
        (open(0), Violation::OpenOrder { expected: 3, found: 0 }),
        (bare(Kind::Opened, 1, 0), Violation::Unexpected(Kind::Opened)),
        (bare(Kind::Refused, 1, 0), Violation::Unexpected(Kind::Refused)),
        (bare(Kind::Pong, 0, 4), Violation::UnaskedPong),
        (bare(Kind::Ping, 1, 4), Violation::UnknownSocket(1)),
        (bare(Kind::Goaway, 0, Goaway::ChannelAnswer as u64), Violation::Unexpected(Kind::Goaway)),
        (bare(Kind::Goaway, 0, Goaway::SessionAnswer as u64), Violation::Unexpected(Kind::Goaway)),
        (bare(Kind::Goaway, 0, 77), Violation::Unexpected(Kind::Goaway)),
        (Scene::new(None).hello().encode(Step::Ask, &[0; 32]).to_vec(), Violation::Unexpected(Kind::Hello)),
        ([bare(Kind::Fin, 1, 5), bare(Kind::Fin, 1, 6)].concat(), Violation::BeyondFin(1)),
        ([bare(Kind::Fin, 1, 5), frame(Kind::Data, 1, 0, &[0; 6])].concat(), Violation::BeyondFin(1)),
    ];
    for (mut bytes, violation) in cases {
        let (mut scene, channel) = Scene::with_socket();
        bytes.resize(bytes.len().max(16), 0);
        scene.send(channel, &bytes);
        assert_eq!(scene.why(), Some(Ended::Violation(violation)));
        assert_eq!(scene.hub.poll_destroy(), Some(channel));
        assert_eq!(scene.hub.census(), Census::default());
        assert!(scene.sink.end <= WINDOW);
        assert_eq!(scene.hub.refusals().violations, 1);
    }
}

#[test]
fn a_frame_longer_than_this_side_takes_ends_the_session() {
    const LARGEST: u32 = 4_096;
    let scene = || {
        let mut scene = Scene::new(None);
        scene.hub = Hub::new(Config { largest_frame: LARGEST, ..Config::new([1; 32], 1) });
        let channel = scene.greet(None);
        scene.send(channel, &open(1));
        (scene, channel)
    };
    let data = |len: u32| frame(Kind::Data, 1, 0, &vec![0; len as usize]);
    let (mut fits, channel) = scene();
    fits.send(channel, &data(LARGEST));
    assert_eq!((fits.why(), fits.sink.end), (None, u64::from(LARGEST)));
    // Whole, and with no more of it than the first byte.
    for (bytes, length) in [(data(LARGEST + 1), LARGEST + 1), (data(9_999)[..17].to_vec(), 9_999)] {
        let (mut scene, channel) = scene();
        scene.send(channel, &bytes);
        let violation = Violation::Length { kind: Kind::Data, length };
        assert_eq!((scene.why(), scene.sink.end), (Some(Ended::Violation(violation)), 0));
    }
}

#[test]
fn scattered_bytes_are_bounded() {
    let (mut scene, channel) = Scene::with_socket();
    for i in 0..64 {
        scene.send(channel, &frame(Kind::Data, 1, 10 + 20 * i, &[0; 5]));
    }
    assert_eq!(scene.why(), None);
    scene.send(channel, &frame(Kind::Data, 1, 9_000, &[0; 5]));
    assert_eq!(scene.why(), Some(Ended::Violation(Violation::Scattered(1))));
}

#[test]
fn a_million_sockets_are_refused_and_then_a_flood() {
    let mut scene = Scene::new(None);
    scene.accepts = false;
    let channel = scene.greet(None);
    let mut opened = 0;
    while scene.hub.census().sessions > 0 && opened < 1_000_000 {
        scene.send(channel, &open(2 * opened + 1));
        assert!(scene.hub.census().sockets <= SOCKETS_MAX as usize);
        opened += 1;
    }
    assert_eq!(scene.why(), Some(Ended::Violation(Violation::Flood)));
    assert_eq!(
        opened as usize,
        3 * SOCKETS_MAX as usize + LATE_ANSWERS_SLACK + 1,
        "a peer that never reads its answers"
    );
}

#[test]
fn a_peer_that_reads_its_refusals_may_go_on_opening() {
    let mut scene = Scene::new(None);
    scene.accepts = false;
    let channel = scene.greet(None);
    for i in 0..3_000u32 {
        scene.send(channel, &open(2 * i + 1));
        let reply = scene.reply(channel);
        let refusal = bare(Kind::Refused, 2 * i + 1, u64::from(ECONNREFUSED));
        assert_eq!(reply, if i < SOCKETS_MAX { Vec::new() } else { refusal });
    }
    assert_eq!(scene.hub.census().sockets, SOCKETS_MAX as usize);
}

#[test]
fn what_comes_late_for_a_closed_socket_is_answered_from_the_frame_alone() {
    let (mut scene, channel) = Scene::with_socket();
    scene.send(channel, &bare(Kind::Reset, 1, 104));
    assert_eq!(scene.events.last(), Some(&News::Reset(104)));
    assert_eq!(scene.hub.census().sockets, 0);
    assert_eq!(scene.reply(channel), bare(Kind::Reset, 1, 0));
    scene.send(channel, &frame(Kind::Data, 1, 0, &[0; 9]));
    assert_eq!(scene.reply(channel), []);
    scene.send(channel, &bare(Kind::Fin, 1, 9));
    assert_eq!(scene.reply(channel), frame(Kind::Credit, 1, 10, &[0; 8]));
    scene.send(channel, &[bare(Kind::Reset, 1, 104), bare(Kind::Fin, 1, 9), open(1)].concat());
    assert_eq!(scene.reply(channel), bare(Kind::Reset, 1, 0), "the answer that says most");
    assert_eq!(scene.why(), None);
}

#[test]
fn an_errno_with_which_no_connection_ends_is_econnreset() {
    for (errno, told) in [(11, 104), (1 << 40, 104), (110, 110)] {
        let (mut scene, channel) = Scene::with_socket();
        scene.send(channel, &bare(Kind::Reset, 1, errno));
        assert_eq!(scene.events.last(), Some(&News::Reset(told)));
    }
}

#[test]
fn a_wrong_secret_is_refused_at_either_side() {
    for (ours, theirs) in [(Some(&b"a"[..]), Some(&b"b"[..])), (Some(b"a"), None), (None, Some(b"a"))] {
        let mut scene = Scene::new(ours);
        let channel = scene.greet(theirs);
        assert_eq!(scene.reply(channel), bare(Kind::Refused, 0, Refusal::Secret as u64));
        assert_eq!(scene.hub.census().sessions, 0);
        assert_eq!(scene.hub.refusals().greetings, 1);
    }
}

#[test]
fn versions_zero_and_255_are_refused_and_what_is_no_hello_is_dropped() {
    for (least, most, refused) in
        [(0, 0, true), (0, 255, true), (255, 255, true), (2, 1, true), (1, 255, false)]
    {
        let mut scene = Scene::new(None);
        let hello = Hello { least, most, ..scene.hello() };
        let (_, reply) = scene.ask(&hello);
        assert_eq!(reply == bare(Kind::Refused, 0, Refusal::Version as u64), refused, "{least} to {most}");
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &bare(Kind::Ping, 0, 0), &open(1)] {
        let mut scene = Scene::new(None);
        let channel = scene.channel();
        scene.send(channel, bytes);
        assert_eq!(scene.hub.poll_abort(), Some(channel));
        assert_eq!(scene.hub.census(), Census::default());
    }
}

#[test]
fn a_stranger_is_told_that_it_is_not_allowed_whatever_it_says() {
    let mut scene = Scene::new(None);
    let channel = ChannelId(77);
    scene.hub.accepted(scene.now, channel, PEER, false);
    let hello = scene.hello().encode(Step::Ask, &[0; 32]);
    scene.send(channel, &[&hello[..], &[0xFF; 100]].concat());
    assert_eq!(scene.reply(channel), bare(Kind::Refused, 0, Refusal::NotAllowed as u64));
    scene.send(channel, &hello);
    scene.now = scene.now.plus(GREETING_TIME);
    scene.hub.tick(scene.now);
    assert_eq!(scene.hub.poll_abort(), Some(channel));
    assert_eq!(scene.hub.census(), Census::default());
    assert_eq!(scene.hub.refusals().greetings, 1, "counted once");
    let rejected = Rejected { peer: PEER, why: Rejection::Refused(Refusal::NotAllowed) };
    assert_eq!((scene.hub.poll_rejected(), scene.hub.poll_rejected()), (Some(rejected), None));
}

#[test]
fn a_replayed_handshake_proves_nothing() {
    let secret = Some(&b"secret"[..]);
    let mut scene = Scene::new(secret);
    scene.session = 5;
    let ask = scene.hello();
    let (channel, confirm) = scene.shake(secret, &ask);
    assert_eq!(scene.hub.census().sessions, 1);
    // The same bytes again, to the same service after the session has ended.
    scene.hub.gone(scene.now, channel);
    scene.now = scene.now.plus(Duration::from_secs(11));
    scene.hub.tick(scene.now);
    assert_eq!(scene.hub.poll_event(scene.now), None);
    let (channel, _) = scene.ask(&ask);
    scene.send(channel, &confirm);
    assert_eq!(scene.reply(channel), bare(Kind::Refused, 0, Refusal::Secret as u64));
    assert_eq!(scene.hub.census().sessions, 0);
}

#[test]
fn a_handshake_that_is_replayed_while_its_session_lives_adds_no_channel() {
    let secret = Some(&b"secret"[..]);
    let mut scene = Scene::new(secret);
    scene.session = 5;
    let ask = scene.hello();
    let (_, confirm) = scene.shake(secret, &ask);
    assert_eq!(scene.hub.census().channels, 1);
    let (channel, _) = scene.ask(&ask);
    scene.send(channel, &confirm);
    assert_eq!(scene.reply(channel), bare(Kind::Refused, 0, Refusal::Secret as u64));
    assert_eq!((scene.hub.census().channels, scene.why()), (1, None), "the session is not disturbed");
}

/// Why a session of the hub's own is over after that answer to its ask, with a right proof or one for another ask, and what the hub says to the
/// peer.
fn judged(change: impl Fn(Hello) -> Hello, is_proved_before: bool) -> (Option<Ended>, Vec<u8>) {
    let secret = Some(&b"secret"[..]);
    let mut scene = Scene::new(secret);
    scene.begin_ours();
    let (channel, ask) = scene.ask_ours();
    let answer = change(Hello { nonce: [9; 16], ..ask });
    let before = Hello { nonce: [8; 16], ..ask };
    let key = Key::of_secret(secret).of_session(ask.session);
    let proof = key.prove(Purpose::Answer, if is_proved_before { &before } else { &ask }, &answer);
    scene.send(channel, &answer.encode(Step::Answer, &proof));
    assert_eq!(scene.hub.census().channels, 0);
    (scene.why(), scene.reply(channel))
}

#[test]
fn an_answer_of_another_version_or_to_another_ask_is_refused() {
    let refused = |why: Refusal| (Some(Ended::Refused(why)), bare(Kind::Refused, 0, why as u64));
    for (least, most) in [(0, 0), (255, 255), (0, 255)] {
        let judged = judged(|answer| Hello { least, most, ..answer }, false);
        assert_eq!(judged, refused(Refusal::Version), "{least} to {most}");
    }
    // Recorded when the hub had asked with another nonce,
    assert_eq!(judged(|answer| answer, true), refused(Refusal::Secret));
    // and when it had asked for another session.
    let other = judged(|answer| Hello { session: 7, ..answer }, false);
    assert_eq!(other, (Some(Ended::Violation(Violation::Hello)), vec![]));
}

#[test]
fn a_stranger_cannot_join_a_session() {
    let mut scene = Scene::new(Some(b"secret"));
    scene.greet(Some(b"secret"));
    // It has seen the identifier of the session on the wire, and does not know the secret.
    for is_join in [true, false] {
        let ask = Hello { is_join, ..scene.hello() };
        let (channel, answer) = scene.ask(&ask);
        let answer = Hello::parse(&answer[16..]).unwrap();
        let proof = Key::of_secret(None).of_session(scene.session).prove(Purpose::Confirm, &ask, &answer);
        scene.send(channel, &ask.encode(Step::Confirm, &proof));
        assert_eq!(scene.reply(channel), bare(Kind::Refused, 0, Refusal::Secret as u64));
    }
    // It speaks for another start of the peer's service, or knows no session.
    for ask in [Hello { epoch: 2, ..scene.hello() }, Hello { session: 77, is_join: true, ..scene.hello() }] {
        assert_eq!(scene.ask(&ask).1, bare(Kind::Refused, 0, Refusal::UnknownSession as u64));
    }
    assert_eq!(scene.hub.census().channels, 1);
}

#[test]
fn two_services_with_one_address_do_not_end_each_others_sessions_for_ever() {
    let mut scene = Scene::new(None);
    scene.epoch = 10;
    let old = scene.greet(None);
    scene.epoch = 20;
    scene.greet(None);
    assert_eq!(scene.why(), Some(Ended::Restarted), "the later one has the address");
    assert_eq!(scene.hub.poll_destroy(), Some(old));
    scene.epoch = 10;
    scene.session += 1;
    let ask = scene.hello();
    assert_eq!(scene.ask(&ask).1, bare(Kind::Refused, 0, Refusal::OldEpoch as u64));
    assert_eq!((scene.why(), scene.hub.census().sessions), (None, 1));
    // And where the hub asks, the older one answers: its epoch is 1.
    let channel = scene.open_ours(None);
    assert_eq!(scene.reply(channel), bare(Kind::Refused, 0, Refusal::OldEpoch as u64));
    assert_eq!(scene.why(), Some(Ended::Refused(Refusal::OldEpoch)));
    assert_eq!(scene.hub.census().channels, 1, "the later one's");
}

#[test]
fn a_channel_that_comes_through_its_handshake_after_the_end_of_its_session_is_counted() {
    let mut scene = Scene::new(None);
    let first = scene.open_ours(None);
    scene.reply(first);
    let id = scene.hub.sessions().next().unwrap().0;
    scene.hub.session(id).unwrap().want_channels(scene.now, 2);
    assert_eq!(scene.hub.poll_event(scene.now), None);
    let second = scene.make_ours(None);
    scene.epoch = 20;
    scene.greet(None);
    assert_eq!(scene.why(), Some(Ended::Restarted), "the peer has started anew");
    assert_eq!((scene.hub.poll_destroy(), scene.hub.refusals().greetings), (Some(first), 0));
    scene.reply(second);
    let rejected = Rejected { peer: PEER, why: Rejection::SessionOver };
    assert_eq!((scene.hub.poll_rejected(), scene.hub.poll_rejected()), (Some(rejected), None));
    assert_eq!((scene.hub.poll_destroy(), scene.hub.refusals().greetings), (Some(second), 1));
}

#[test]
fn channels_that_join_and_die_again_are_bounded_in_time() {
    let mut scene = Scene::new(None);
    for _ in 0..JOINS_A_SECOND {
        scene.session = 0;
        let channel = scene.greet(None);
        assert_eq!(scene.hub.census().channels, 1);
        scene.now = scene.now.plus(Duration::from_ms(1));
        scene.hub.gone(scene.now, channel);
    }
    let ask = scene.hello();
    assert_eq!(scene.ask(&ask).1, bare(Kind::Refused, 0, Refusal::Full as u64));
    scene.now = scene.now.plus(Duration::from_secs(1));
    scene.session = 0;
    scene.greet(None);
    assert_eq!((scene.hub.census().channels, scene.hub.census().sessions), (1, 1), "and later again");
}

#[test]
fn one_peer_cannot_have_all_sessions() {
    let mut scene = Scene::new(None);
    for _ in 0..SESSIONS_OF_PEER {
        scene.greet(None);
    }
    scene.session += 1;
    let ask = scene.hello();
    assert_eq!(scene.ask(&ask).1, bare(Kind::Refused, 0, Refusal::Full as u64));
    assert_eq!(scene.hub.census().sessions, SESSIONS_OF_PEER);
}

/// Frames that are nearly right, in any order and split anywhere, with a session of an honest peer beside.
#[test]
fn random_frames_never_cost_more_than_their_session() {
    for number in 0..3_000 {
        let mut seed = Seed::new(number);
        let mut scene = Scene::new(None);
        let mut channel = scene.greet(None);
        let mut opened = 0u32;
        for _ in 0..60 {
            let mut bytes = random_frame(&mut seed, &mut opened);
            if seed.chance(50_000) {
                let at = seed.below(bytes.len() as u64) as usize;
                bytes[at] = seed.next_u64() as u8;
            }
            let cut = seed.below(bytes.len() as u64 + 1) as usize;
            scene.send(channel, &bytes[..cut]);
            scene.now = scene.now.plus(Duration::from_ms(seed.below(50)));
            scene.send(channel, &bytes[cut..]);
            if seed.chance(500_000) {
                scene.reply(channel);
            }
            scene.hub.tick(scene.now);
            let census = scene.hub.census();
            assert!(
                census.sockets <= SOCKETS_MAX as usize && census.sessions <= 1,
                "seed {number}: {census:?}"
            );
            assert!(scene.sink.end <= WINDOW, "seed {number}");
            while scene.hub.poll_destroy().is_some() {}
            if census.channels == 0 {
                let over = scene.why();
                assert!(over.is_some() || census.sessions == 1, "seed {number}: gone without a reason");
                (channel, opened) = (scene.greet(None), 0);
            }
        }
    }
}

fn random_frame(seed: &mut Seed, opened: &mut u32) -> Vec<u8> {
    let socket = 1 + 2 * seed.below(u64::from(*opened).max(1)) as u32;
    let position = seed.below(WINDOW + 1);
    match seed.below(12) {
        0..3 => {
            *opened += 1;
            open(2 * *opened - 1)
        }
        3..6 => {
            let len = 1 + seed.below((WINDOW - position).max(1)) as usize;
            frame(Kind::Data, socket, position, &vec![0; len])
        }
        6 => bare(Kind::Fin, socket, position),
        7 => bare(Kind::Reset, socket, seed.below(3)),
        8 => frame(Kind::Credit, socket, 0, &(position + 5).to_le_bytes()),
        9 => bare(Kind::Ping, 0, position),
        10 => bare(Kind::Goaway, 0, seed.below(5)),
        _ => {
            let kind = Kind::parse(1 + seed.below(11) as u8).unwrap();
            bare(kind, seed.below(6) as u32, seed.next_u64() >> seed.below(60))
        }
    }
}
