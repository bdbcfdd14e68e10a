//! The two ends of a dead channel learn of its death at different times. One end repeats at once what it has no answer to; the other still
//! answers over the dead channel, and forgets the socket. Then it must have the first end repeat once more.

use base::{Duration, Instant};
use channel::bytes::{Input, Room};
use channel::frame::{Goaway, Header, Kind};
use channel::open::Open;
use channel::session::Ended;
use channel::violation::Violation;
use channel::{ChannelId, Class, Config, Event, Hub, Lane, News, SessionId, Sharing, Streams};
use std::net::IpAddr;

const FIRST: ChannelId = ChannelId(1);
const SECOND: ChannelId = ChannelId(2);

/// The bytes do not matter here.
struct Zeros;

impl Streams for Zeros {
    fn read<R: Room + ?Sized>(&mut self, _tag: u64, _position: u64, len: usize, room: &mut R, at: usize) {
        room.put(at, &vec![0; len]);
    }
    fn write(&mut self, _tag: u64, _position: u64, input: Input<'_>) {
        let mut bytes = vec![1; input.len()];
        input.copy_to(&mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}

/// Two hubs with one session over two channels; host 0 has opened it.
struct Pair {
    now: Instant,
    hubs: [Hub; 2],
    id: SessionId,
    events: [Vec<News>; 2],
    /// Sockets that the peer of host 0 has opened are accepted.
    accepts: bool,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::from_ns(1);
        let mut hubs = [1, 2].map(|number| Hub::new(Config::new([number; 32], 1)));
        let [peer, own] = [2, 1].map(|last| IpAddr::from([10, 0, 0, last]));
        let id = hubs[0].session_for(now, Lane::of(peer, Class::Latency, 1, Sharing::SameUser)).unwrap();
        hubs[0].session(id).unwrap().want_channels(now, 2);
        hubs[0].tick(now);
        let mut pair = Self { now, hubs, id, events: Default::default(), accepts: true };
        for channel in [FIRST, SECOND] {
            let wanted = pair.hubs[0].poll_create().unwrap();
            pair.hubs[0].created(now, wanted, channel);
            pair.hubs[1].accepted(now, channel, own, true);
            (0..3).for_each(|_| pair.exchange(&[channel]));
        }
        assert_eq!(pair.hubs[1].census().channels, 2);
        pair
    }

    /// What that host sends over a channel now.
    fn send(&mut self, host: usize, channel: ChannelId) -> Vec<u8> {
        let mut room = vec![0; 4_096];
        let len = self.hubs[host].transmit(self.now, channel, &mut room[..], &mut Zeros);
        room.truncate(len);
        room
    }

    fn receive(&mut self, host: usize, channel: ChannelId, bytes: &[u8]) {
        self.hubs[host].received(self.now, channel, bytes, &mut Zeros);
        self.poll(host);
    }

    fn poll(&mut self, host: usize) {
        while let Some((id, Event { socket, news, .. })) = self.hubs[host].poll_event(self.now) {
            self.events[host].push(news);
            if let News::Incoming(_) = news {
                let session = self.hubs[host].session(id).unwrap();
                assert!(if self.accepts {
                    session.accept(socket, 1, 100)
                } else {
                    session.refuse(socket, 111)
                });
            }
        }
    }

    /// Each host sends once over each of these channels, and gets what the other has sent.
    fn exchange(&mut self, channels: &[ChannelId]) {
        self.now = self.now.plus(Duration::from_ms(1));
        for host in 0..2 {
            self.hubs[host].tick(self.now);
            for channel in channels {
                let bytes = self.send(host, *channel);
                self.receive(host ^ 1, *channel, &bytes);
            }
        }
    }

    /// Host 0 sends its next frames over the first channel, which is dead; it learns that, and repeats over the second. Host 1 answers over
    /// the first, and learns of the death then. Some exchanges over the second channel must bring both to rest.
    fn first_channel_dies(&mut self) {
        assert!(!self.send(0, FIRST).is_empty(), "lost on the way");
        self.hubs[0].gone(self.now, FIRST);
        let repeated = self.send(0, SECOND);
        self.receive(1, SECOND, &repeated);
        assert!(!self.send(1, FIRST).is_empty(), "the answer, lost on the way");
        self.hubs[1].gone(self.now, FIRST);
        (0..4).for_each(|_| self.exchange(&[SECOND]));
    }

    fn open(&mut self) -> u32 {
        let open = Open { from_port: 1, to: ([10, 0, 0, 2], 80).into(), options: 0 };
        self.hubs[0].session(self.id).unwrap().open(1, open, 100).unwrap()
    }
}

#[test]
fn a_fin_with_a_lost_answer_is_repeated() {
    let mut pair = Pair::new();
    let socket = pair.open();
    (0..2).for_each(|_| pair.exchange(&[FIRST, SECOND]));
    pair.hubs[1].session(pair.id).unwrap().finish(socket);
    (0..2).for_each(|_| pair.exchange(&[FIRST, SECOND]));
    pair.hubs[0].session(pair.id).unwrap().finish(socket);
    pair.first_channel_dies();
    assert_eq!(pair.events[0].last(), Some(&News::Closed));
    assert_eq!(pair.events[1].last(), Some(&News::Closed));
    assert!(pair.hubs.iter().all(|hub| hub.census().sockets == 0));
}

#[test]
fn a_reset_with_a_lost_answer_is_repeated() {
    let mut pair = Pair::new();
    let socket = pair.open();
    (0..2).for_each(|_| pair.exchange(&[FIRST, SECOND]));
    let now = pair.now;
    pair.hubs[0].session(pair.id).unwrap().reset(now, socket, 104);
    pair.first_channel_dies();
    assert_eq!(pair.events[1].last(), Some(&News::Reset(104)));
    assert!(pair.hubs.iter().all(|hub| hub.census().sockets == 0));
}

#[test]
fn an_open_with_a_lost_refusal_is_repeated() {
    let mut pair = Pair::new();
    pair.accepts = false;
    pair.open();
    pair.first_channel_dies();
    assert_eq!(pair.events[0].last(), Some(&News::Refused(111)));
    assert_eq!(pair.events[1].len(), 1, "the repeated OPEN is no new socket");
    assert!(pair.hubs.iter().all(|hub| hub.census().sockets == 0));
}

#[test]
fn an_open_with_a_lost_opened_is_repeated() {
    let mut pair = Pair::new();
    let socket = pair.open();
    pair.first_channel_dies();
    assert_eq!((&pair.events[0][..], pair.events[1].len()), (&[News::Opened][..], 1));
    pair.hubs[0].session(pair.id).unwrap().written(socket, 40);
    (0..2).for_each(|_| pair.exchange(&[SECOND]));
    assert_eq!(pair.events[1].last(), Some(&News::Readable(40)));
}

#[test]
fn a_peer_that_asks_again_and_again_is_heard_every_ten_milliseconds() {
    let mut pair = Pair::new();
    pair.open();
    assert!(!pair.send(0, FIRST).is_empty(), "the OPEN, which host 1 never gets");
    let again = Header::bare(Kind::Goaway, 0, Goaway::Repeat as u64).encode();
    let mut opens = 0;
    for _ in 0..100 {
        pair.now = pair.now.plus(Duration::from_ms(1));
        (0..10).for_each(|_| pair.receive(0, SECOND, &again));
        pair.hubs[0].tick(pair.now);
        opens += usize::from(!pair.send(0, FIRST).is_empty());
    }
    assert_eq!(opens, 10);
}

#[test]
fn an_unknown_goaway_does_not_answer_ours() {
    let mut pair = Pair::new();
    let now = pair.now;
    pair.hubs[0].session(pair.id).unwrap().want_channels(now, 1);
    assert!(!pair.send(0, SECOND).is_empty(), "the GOAWAY of the second channel");
    pair.receive(0, SECOND, &Header::bare(Kind::Goaway, 0, 77).encode());
    let why = Ended::Violation(Violation::Unexpected(Kind::Goaway));
    assert_eq!(pair.hubs[0].poll_over().map(|over| over.why), Some(why));
}
