//! Each frame in each stage of a virtual socket's life: what the caller is told, what is answered, and what ends the session.

use crate::support::scene::{PEER, Scene, WINDOW, bare, frame, open};
use channel::frame::{Goaway, HEADER_LEN, Header, Kind};
use channel::hello::{CONGESTED, Step};
use channel::lane::{Class, Lane, Sharing};
use channel::session::Ended;
use channel::violation::Violation;
use channel::{ChannelId, News};

/// What a frame brings about.
#[derive(PartialEq, Eq, Debug)]
enum Effect {
    /// Events for the caller, and the frames of the answer by type and argument.
    Fine(Vec<News>, Vec<(Kind, u64)>),
    Breach(Violation),
}

use Effect::{Breach, Fine};

fn answers(mut bytes: &[u8]) -> Vec<(Kind, u64)> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() {
        let header = Header::parse(head).unwrap();
        all.push((header.kind, header.argument));
        bytes = &rest[header.length as usize..];
    }
    all
}

fn hear(scene: &mut Scene, channel: ChannelId, bytes: &[u8]) -> Effect {
    scene.events.clear();
    scene.send(channel, bytes);
    match scene.why() {
        Some(Ended::Violation(violation)) => Breach(violation),
        Some(other) => panic!("{other:?}"),
        None => Fine(scene.events.clone(), answers(&scene.reply(channel))),
    }
}

fn session(scene: &mut Scene) -> &mut channel::Session {
    let id = scene.hub.sessions().next().unwrap().0;
    scene.hub.session(id).unwrap()
}

/// A socket that the peer has opened, brought into a stage.
fn of_peer(stage: &str) -> (Scene, ChannelId) {
    let mut scene = Scene::new(None);
    scene.accepts = stage == "live" || stage == "resetting";
    let channel = scene.greet(None);
    scene.send(channel, &open(1));
    let now = scene.now;
    match stage {
        "arrived" => {}
        "live" => _ = scene.reply(channel),
        "refusing" => assert!(session(&mut scene).refuse(1, 13)),
        "resetting" => {
            scene.reply(channel);
            session(&mut scene).reset(now, 1, 104);
            scene.reply(channel);
        }
        _ => {
            assert!(session(&mut scene).refuse(1, 13));
            scene.reply(channel);
        }
    }
    (scene, channel)
}

fn fine(news: &[News], answer: &[(Kind, u64)]) -> Effect {
    Fine(news.to_vec(), answer.to_vec())
}

/// For each stage the effects of OPEN once more, DATA, FIN, CREDIT, RESET, and the confirmation of a RESET.
fn effects_on_peers(stage: &str) -> [Effect; 6] {
    let unexpected = |kind| Breach(Violation::Unexpected(kind));
    let (reset, refused) = ([(Kind::Reset, 0)], [(Kind::Refused, 13)]);
    let nothing = || fine(&[], &[]);
    match stage {
        "arrived" => [
            nothing(),
            unexpected(Kind::Data),
            unexpected(Kind::Fin),
            unexpected(Kind::Credit),
            fine(&[News::Reset(104)], &reset),
            nothing(),
        ],
        "refusing" => [
            fine(&[], &refused),
            unexpected(Kind::Data),
            unexpected(Kind::Fin),
            unexpected(Kind::Credit),
            fine(&[], &reset),
            fine(&[], &refused),
        ],
        "live" => [
            fine(&[], &[(Kind::Opened, WINDOW)]),
            fine(&[News::Readable(3_000)], &[(Kind::Credit, 3_000)]),
            fine(&[News::Finished(0)], &[(Kind::Credit, 1)]),
            nothing(),
            fine(&[News::Reset(104)], &reset),
            nothing(),
        ],
        "resetting" => [nothing(), nothing(), nothing(), nothing(), fine(&[], &reset), nothing()],
        _ => [
            fine(&[], &[(Kind::Refused, 111)]),
            nothing(),
            fine(&[], &[(Kind::Credit, 1)]),
            nothing(),
            fine(&[], &reset),
            nothing(),
        ],
    }
}

#[test]
fn sockets_of_the_peer() {
    let data = frame(Kind::Data, 1, 0, &[0; 3_000]);
    let credit = frame(Kind::Credit, 1, 0, &20_000u64.to_le_bytes());
    let frames =
        [open(1), data, bare(Kind::Fin, 1, 0), credit, bare(Kind::Reset, 1, 104), bare(Kind::Reset, 1, 0)];
    for stage in ["arrived", "refusing", "live", "resetting", "past"] {
        for (bytes, expected) in frames.iter().zip(effects_on_peers(stage)) {
            let (mut scene, channel) = of_peer(stage);
            let kind = Kind::parse(bytes[3]).unwrap();
            assert_eq!(hear(&mut scene, channel, bytes), expected, "{kind:?} while {stage}");
            // A confirmed RESET, and one from the peer, leave nothing.
            let is_over = kind == Kind::Reset && (bytes[8] != 0 || stage == "resetting");
            assert!(!is_over || scene.hub.census().sockets == 0, "{kind:?} while {stage}");
        }
    }
}

/// A session that the hub has opened to a peer played by hand, and a socket of the hub's in it.
fn of_ours(reset: bool) -> (Scene, ChannelId) {
    let mut scene = Scene::new(None);
    let channel = scene.open_ours(None);
    assert_eq!(answers(&scene.reply(channel)), [(Kind::Hello, Step::Confirm as u64), (Kind::Open, WINDOW)]);
    if reset {
        let now = scene.now;
        session(&mut scene).reset(now, 1, 104);
        assert_eq!(scene.reply(channel), [], "a RESET waits for the answer to the OPEN");
    }
    (scene, channel)
}

#[test]
fn own_sockets_without_an_answer() {
    let data = frame(Kind::Data, 1, 0, &[0; 3_000]);
    let credit = frame(Kind::Credit, 1, 0, &20_000u64.to_le_bytes());
    let frames = [
        bare(Kind::Opened, 1, 9),
        data,
        bare(Kind::Fin, 1, 0),
        credit,
        bare(Kind::Refused, 1, 13),
        bare(Kind::Reset, 1, 104),
    ];
    let reset = (Kind::Reset, 104);
    let opening = [
        Fine(vec![News::Opened], vec![]),
        Fine(vec![News::Opened, News::Readable(3_000)], vec![(Kind::Credit, 3_000)]),
        Fine(vec![News::Opened, News::Finished(0)], vec![(Kind::Credit, 1)]),
        Fine(vec![News::Opened], vec![]),
        Fine(vec![News::Refused(13)], vec![]),
        Fine(vec![News::Reset(104)], vec![(Kind::Reset, 0)]),
    ];
    let resetting = [
        Fine(vec![], vec![reset]),
        Fine(vec![], vec![reset]),
        Fine(vec![], vec![reset]),
        Fine(vec![], vec![reset]),
        Fine(vec![], vec![]),
        Fine(vec![], vec![(Kind::Reset, 0)]),
    ];
    for (is_reset, row) in [(false, opening), (true, resetting)] {
        for (bytes, expected) in frames.iter().zip(row) {
            let (mut scene, channel) = of_ours(is_reset);
            assert_eq!(
                hear(&mut scene, channel, bytes),
                expected,
                "{:?}, reset {is_reset}",
                Kind::parse(bytes[3])
            );
        }
    }
}

#[test]
fn an_acceptor_says_when_the_network_is_its_limit_and_says_it_again_when_that_may_be_lost() {
    let mut scene = Scene::new(None);
    scene.features = CONGESTED;
    let channel = scene.greet(None);
    let said = |scene: &mut Scene| answers(&scene.reply(channel));
    assert_eq!(said(&mut scene), []);
    for (is, changes) in [(true, 1), (false, 2)] {
        session(&mut scene).note_congested(is);
        session(&mut scene).note_congested(is);
        assert_eq!(said(&mut scene), [(Kind::Congested, changes)], "once");
    }
    scene.send(channel, &bare(Kind::Goaway, 0, Goaway::Repeat as u64));
    scene.hub.tick(scene.now);
    assert_eq!(said(&mut scene), [(Kind::Congested, 2)]);
    // An opener must not say it.
    let breach = Breach(Violation::Unexpected(Kind::Congested));
    assert_eq!(hear(&mut scene, channel, &bare(Kind::Congested, 0, 1)), breach);
    // A peer that does not know it is not told.
    let mut old = Scene::new(None);
    let channel = old.greet(None);
    session(&mut old).note_congested(true);
    assert_eq!(old.reply(channel), []);
}

#[test]
fn an_opener_hears_that_the_network_is_the_acceptors_limit() {
    let (mut scene, channel) = of_ours(false);
    // One of a channel that dies comes after later ones; and some were lost with it.
    for (changes, is) in
        [(0, false), (1, true), (2, false), (1, false), (7, true), (6, true), (7, true), (8, false)]
    {
        assert_eq!(hear(&mut scene, channel, &bare(Kind::Congested, 0, changes)), fine(&[], &[]));
        assert_eq!(session(&mut scene).is_acceptor_congested(), is, "{changes}");
    }
    scene.send(channel, &bare(Kind::Goaway, 0, Goaway::Repeat as u64));
    scene.hub.tick(scene.now);
    let repeated = answers(&scene.reply(channel));
    assert!(
        repeated.iter().all(|(kind, _)| *kind != Kind::Congested),
        "an opener has nothing to say: {repeated:?}"
    );
}

#[test]
fn an_acceptor_at_the_end_of_the_numbers_harms_its_own_session_alone() {
    let (mut scene, channel) = of_ours(false);
    for changes in [u64::MAX, 1 << 63, 2, u64::MAX - 1] {
        assert_eq!(hear(&mut scene, channel, &bare(Kind::Congested, 0, changes)), fine(&[], &[]));
        assert!(session(&mut scene).is_acceptor_congested(), "its last word; {changes} is older");
    }
    // Its sockets go on,
    let opened = fine(&[News::Opened], &[]);
    assert_eq!(hear(&mut scene, channel, &bare(Kind::Opened, 1, 9)), opened);
    // and another session with the same peer knows nothing of it.
    let lane = Lane::of(PEER, Class::Latency, 1, Sharing::SameUser);
    let other = scene.hub.session_for(scene.now, lane).unwrap();
    assert!(!scene.hub.view(other).unwrap().is_acceptor_congested());
}
