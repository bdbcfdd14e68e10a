//! docs/channels.md is enough to write a peer: its tables and its example are what the crate does, and a peer that knows nothing but the page
//! gets through.

use crate::support::scene::{PEER, Scene};
use channel::News;
use channel::frame::{Goaway, Header, Kind};
use channel::hello::{Class, Hello, Step};
use channel::limits::FRAME_MAX;
use channel::open::{KEEPALIVE, NODELAY, Open};
use channel::proof::{Key, Purpose};
use channel::violation::Refusal;
use hmac::{Hmac, Mac};
use std::collections::BTreeMap;
use std::net::SocketAddr;

const PAGE: &str = include_str!("../../../docs/channels.md");

/// The chapter of the page under a heading.
fn chapter(heading: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("{heading}\n")).unwrap_or_else(|| panic!("no `{heading}`"));
    rest.split_once("\n##").map_or(rest, |(chapter, _)| chapter)
}

/// The cells of the table under that head, row by row.
fn table(chapter: &'static str, head: &str) -> Vec<Vec<&'static str>> {
    let rows = chapter.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect();
    let rows: Vec<Vec<&str>> = rows.map(cells).collect();
    assert!(!rows.is_empty(), "no table `{head}`");
    rows
}

fn number(cell: &str) -> u64 {
    cell.parse().unwrap_or_else(|_| panic!("`{cell}` is no number"))
}

/// The bytes of the worked example, by name.
fn example() -> BTreeMap<&'static str, Vec<u8>> {
    let (_, block) = chapter("### A worked example").split_once("```hex\n").expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    let (mut all, mut last) = (BTreeMap::<&str, Vec<u8>>::new(), "");
    for line in block.lines() {
        let (name, bytes) = line.split_at(13);
        last = if name.trim().is_empty() { last } else { name.trim() };
        let bytes = bytes.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("hex"));
        all.entry(last).or_default().extend(bytes);
    }
    all
}

/// HMAC-SHA256 as the page says it.
fn hmac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key).expect("any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

/// The session key, and the proofs of the answer and of the confirmation, from the texts of the page.
fn proofs(secret: &[u8], session: &[u8], ask: &[u8], answer: &[u8]) -> [Vec<u8>; 3] {
    let service = hmac(&[0; 32], &[&[1], secret]);
    let key = hmac(&service, &[b"towpath channel session", session]);
    let of_answer = hmac(&key, &[b"towpath channel answer\0", &ask[..64], &answer[..64]]);
    let of_confirm = hmac(&key, &[b"towpath channel confirm", &ask[..64], &answer[..64]]);
    [key, of_answer, of_confirm]
}

#[test]
fn the_example_has_the_bytes_of_the_code() {
    let bytes = example();
    let (secret, session) =
        (&bytes["secret"][..], u128::from_le_bytes(bytes["session"][..].try_into().unwrap()));
    let hello = |name: &str, step: Step| {
        let frame = &bytes[name];
        let header = Header::parse(frame[..16].try_into().unwrap()).unwrap();
        let expected = Header { length: 96, kind: Kind::Hello, socket: 0, argument: step as u64 };
        assert_eq!((header, frame.len()), (expected, 112), "{name}");
        Hello::parse(&frame[16..]).unwrap()
    };
    let (ask, answer) = (hello("ask", Step::Ask), hello("answer", Step::Answer));
    assert_eq!((ask.session, ask.class, ask.is_join), (session, Class::Throughput, false));
    let key = Key::of_secret(Some(secret)).of_session(session);
    let proof = |purpose| key.prove(purpose, &ask, &answer);
    assert_eq!(bytes["ask"], ask.encode(Step::Ask, &[0; 32]));
    assert_eq!(bytes["answer"], answer.encode(Step::Answer, &proof(Purpose::Answer)));
    assert_eq!(bytes["confirm"], ask.encode(Step::Confirm, &proof(Purpose::Confirm)));
    let [of_session, ..] = proofs(secret, &bytes["session"], &bytes["ask"][16..], &bytes["answer"][16..]);
    assert_eq!(bytes["session key"], of_session);
    assert_eq!(bytes["service key"], hmac(&[0; 32], &[&[1], secret]));

    let open = Open { from_port: 40_000, to: ([10, 9, 0, 3], 80).into(), options: NODELAY };
    assert_eq!(bytes["OPEN"], open.encode(1, 65_536));
    assert_eq!(bytes["OPENED"], Header::bare(Kind::Opened, 1, 65_536).encode());
    let data = Header { length: 5, kind: Kind::Data, socket: 1, argument: 0 };
    assert_eq!(bytes["DATA"], [&data.encode()[..], b"hello"].concat());
    assert_eq!(bytes["FIN"], Header::bare(Kind::Fin, 1, 5).encode());
    let credit = Header { length: 8, kind: Kind::Credit, socket: 1, argument: 6 };
    assert_eq!(bytes["CREDIT"], [&credit.encode()[..], &65_536u64.to_le_bytes()].concat());
}

/// A peer that knows the page only: its own HMAC, and the example's frames behind its handshake.
#[test]
fn a_peer_that_is_written_by_the_page_gets_through() {
    let bytes = example();
    let secret = &bytes["secret"][..];
    let mut scene = Scene::new(Some(secret));
    let channel = scene.channel();
    scene.send(channel, &bytes["ask"]);
    let answer = scene.reply(channel);
    let (ask, answer) = (&bytes["ask"][16..], &answer[16..]);
    let [_, of_answer, of_confirm] = proofs(secret, &bytes["session"], ask, answer);
    assert_eq!(answer[64..], of_answer, "the hub proves the secret as the page says");
    let mut confirm = bytes["confirm"].clone();
    confirm[16 + 64..].copy_from_slice(&of_confirm);
    scene.send(channel, &confirm);
    for name in ["OPEN", "DATA", "FIN"] {
        scene.send(channel, &bytes[name]);
    }
    assert_eq!(scene.why(), None, "no fault");
    let to: SocketAddr = ([10, 9, 0, 3], 80).into();
    assert!(matches!(scene.events[0], News::Incoming(open) if open.to == to), "{:?} of {PEER}", scene.events);
    assert!(scene.events.contains(&News::Readable(5)) && scene.events.contains(&News::Finished(5)));
    let replies = scene.reply(channel);
    let is_there = |header: &[u8]| replies.windows(header.len()).any(|bytes| bytes == header);
    assert!(is_there(&bytes["OPENED"][..8]), "OPENED, with the hub's own credit");
    assert!(is_there(&bytes["CREDIT"][..16]), "the end is confirmed by one more than its position");
}

/// Rows of a table of fields follow one another, and each field of the code lies where its row says.
fn fields_lie_as_in(chapter: &'static str, whole: u64, first: &[u8], others: &[(&str, Vec<u8>)]) {
    let rows = table(chapter, "| byte | length | field |");
    let mut at = 0;
    for row in &rows {
        assert_eq!(number(row[0]), at, "{row:?}");
        at += number(row[1]);
    }
    assert_eq!(at, whole);
    let mut seen = Vec::new();
    for (name, other) in others {
        let row = rows.iter().find(|row| row[2] == *name).unwrap_or_else(|| panic!("no field `{name}`"));
        let place = number(row[0]) as usize..(number(row[0]) + number(row[1])) as usize;
        let differ: Vec<usize> = (0..first.len()).filter(|at| first[*at] != other[*at]).collect();
        assert!(!differ.is_empty() && differ.iter().all(|at| place.contains(at)), "{name}: bytes {differ:?}");
        seen.push(*name);
    }
    let unseen: Vec<&str> = rows.iter().map(|row| row[2]).filter(|name| !seen.contains(name)).collect();
    assert!(unseen.iter().all(|name| ["magic", "zero"].contains(name)), "fields without a check: {unseen:?}");
}

#[test]
fn the_fields_of_hello_and_open_lie_as_the_tables_say() {
    let bytes = example();
    let hello = Hello::parse(&bytes["ask"][16..]).unwrap();
    let body = |hello: &Hello| hello.encode(Step::Ask, &[0; 32])[16..].to_vec();
    let others = [
        ("least version", body(&Hello { least: 9, ..hello })),
        ("most version", body(&Hello { most: 9, ..hello })),
        ("class", body(&Hello { class: Class::Latency, ..hello })),
        ("purpose", body(&Hello { is_join: true, ..hello })),
        ("features", body(&Hello { features: !hello.features, ..hello })),
        ("largest frame", body(&Hello { largest_frame: !hello.largest_frame, ..hello })),
        ("most sockets", body(&Hello { sockets_max: !hello.sockets_max, ..hello })),
        ("boot epoch", body(&Hello { epoch: !hello.epoch, ..hello })),
        ("session", body(&Hello { session: !hello.session, ..hello })),
        ("nonce", body(&Hello { nonce: [0; 16], ..hello })),
        ("proof", hello.encode(Step::Ask, &[1; 32])[16..].to_vec()),
    ];
    assert_eq!(body(&hello)[..4], *b"TpCh");
    fields_lie_as_in(chapter("### HELLO"), 96, &body(&hello), &others);
    let open = Open { from_port: 1, to: ([1, 1, 1, 1], 2).into(), options: 0 };
    let body = |open: &Open| open.encode(1, 0)[16..].to_vec();
    let six = body(&Open { to: ([0x0101, 0x0101, 0, 0, 0, 0, 0, 0], 2).into(), ..open });
    let others = [
        ("family", six),
        ("options", body(&Open { options: NODELAY | KEEPALIVE, ..open })),
        ("local port", body(&Open { from_port: !1, ..open })),
        ("remote port", body(&Open { to: ([1, 1, 1, 1], !2).into(), ..open })),
        ("address", body(&Open { to: ([9, 9, 9, 9], 2).into(), ..open })),
    ];
    fields_lie_as_in(chapter("### OPEN"), 24, &body(&open), &others);
}

#[test]
fn types_lengths_reasons_and_ends_are_those_of_the_tables() {
    let chapter = chapter("### A frame");
    let kinds = table(chapter, "| type | name |");
    assert!((kinds.len() + 1..=255).all(|kind| Kind::parse(kind as u8).is_none()), "the table has all types");
    for (i, row) in kinds.iter().enumerate() {
        let kind = Kind::parse(number(row[0]) as u8).expect("a type");
        assert_eq!(number(row[0]), i as u64 + 1);
        assert_eq!(format!("{kind:?}").to_uppercase(), row[1]);
        let words: Vec<&str> = row[4].split([' ', ':', ';']).collect();
        let least = number(words[0]);
        let most = if words.get(1) == Some(&"to") { number(words[2]) } else { least };
        let fits = |length: u64| {
            let header = Header { length: length as u32, kind, socket: 0, argument: 0 };
            Header::parse(&header.encode()).is_ok()
        };
        assert!(fits(least) && fits(most) && !fits(most + 1), "{row:?}");
        assert!(least == 0 || !fits(least - 1), "{row:?}");
    }
    assert_eq!(number(kinds[4][4].split([' ', ':']).nth(2).unwrap()), u64::from(FRAME_MAX));
    let reasons = table(chapter, "| REFUSED of socket 0 |");
    let known = [
        Refusal::Version,
        Refusal::Secret,
        Refusal::UnknownSession,
        Refusal::OldEpoch,
        Refusal::Full,
        Refusal::ShuttingDown,
        Refusal::NotAllowed,
    ];
    let numbers: Vec<u64> = reasons.iter().map(|row| number(row[0])).collect();
    assert_eq!(numbers, known.map(|reason| reason as u64));
    let ends = table(chapter, "| GOAWAY |");
    let known =
        [Goaway::Channel, Goaway::ChannelAnswer, Goaway::Session, Goaway::SessionAnswer, Goaway::Repeat];
    assert_eq!(ends.iter().map(|row| number(row[0])).collect::<Vec<_>>(), known.map(|goaway| goaway as u64));
    assert!(ends[0][1].starts_with("the sender puts nothing more") && ends[4][1].contains("repeats"));
}
