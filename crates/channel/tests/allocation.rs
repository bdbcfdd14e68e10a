//! A million frames between two sessions, and not one allocation.

use crate::counting;
use base::{Duration, Instant};
use channel::bytes::{Input, Room};
use channel::open::Open;
use channel::{ChannelId, Class, Config, Hub, Lane, News, SessionId, Sharing, Streams};
use std::net::IpAddr;

const SOCKETS: usize = 64;
const CHANNELS: u32 = 2;
const MESSAGE: u64 = 64;
const WINDOW: u64 = 1 << 16;

/// Positions of one host's sockets, by tag; the bytes do not matter.
struct Sockets {
    ids: [u32; SOCKETS],
    heads: [u64; SOCKETS],
    readable: [u64; SOCKETS],
    bytes: u64,
}

static SEVENS: [u8; 61_440] = [7; 61_440];

impl Streams for Sockets {
    fn read<R: Room + ?Sized>(&mut self, _tag: u64, _position: u64, len: usize, room: &mut R, at: usize) {
        room.put(at, &SEVENS[..len]);
    }
    fn write(&mut self, _tag: u64, _position: u64, bytes: Input<'_>) {
        self.bytes += bytes.len() as u64;
    }
}

struct Host {
    hub: Hub,
    sockets: Sockets,
    room: Vec<u8>,
    accepted: usize,
}

impl Host {
    fn new(number: u8) -> Self {
        let hub = Hub::new(Config::new([number; 32], 1));
        let sockets = Sockets { ids: [0; SOCKETS], heads: [0; SOCKETS], readable: [0; SOCKETS], bytes: 0 };
        Self { hub, sockets, room: vec![0; 16 << 10], accepted: 0 }
    }

    /// All that this host has for the other one, over both channels.
    fn send(&mut self, now: Instant, to: &mut Self) {
        for channel in (1..=CHANNELS).map(ChannelId) {
            while self.hub.has_output(channel) {
                let len = self.hub.transmit(now, channel, &mut self.room[..], &mut self.sockets);
                if len == 0 {
                    break;
                }
                to.hub.received(now, channel, &self.room[..len], &mut to.sockets);
            }
        }
        to.events(now);
    }

    fn events(&mut self, now: Instant) {
        while let Some((id, event)) = self.hub.poll_event(now) {
            let tag = event.tag as usize;
            let Some(session) = self.hub.session(id) else { continue };
            match event.news {
                News::Incoming(_) => {
                    assert!(session.accept(event.socket, self.accepted as u64, WINDOW));
                    self.sockets.ids[self.accepted] = event.socket;
                    self.accepted += 1;
                }
                News::Readable(to) => {
                    self.sockets.readable[tag] = to;
                    session.credit(event.socket, to + WINDOW);
                }
                News::Opened | News::Acked(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn write(&mut self, id: SessionId) {
        let session = self.hub.session(id).unwrap();
        for tag in 0..SOCKETS {
            self.sockets.heads[tag] += MESSAGE;
            session.written(self.sockets.ids[tag], self.sockets.heads[tag]);
        }
    }
}

#[test]
fn a_million_frames_allocate_nothing() {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let [peer_a, peer_b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let mut now = Instant::from_ns(1);
    let lane = Lane::of(peer_b, Class::Throughput, 1, Sharing::SameUser);
    let id = a.hub.session_for(now, lane).unwrap();
    let session = a.hub.session(id).unwrap();
    session.want_channels(now, CHANNELS as usize);
    for tag in 0..SOCKETS {
        let open = Open { from_port: 1, to: ([10, 0, 0, 2], 80).into(), options: 0 };
        a.sockets.ids[tag] = session.open(tag as u64, open, WINDOW).unwrap();
    }
    a.hub.tick(now);
    for channel in 1..=CHANNELS {
        let wanted = a.hub.poll_create().unwrap();
        a.hub.created(now, wanted, ChannelId(channel));
        b.hub.accepted(now, ChannelId(channel), peer_a, true);
    }
    let mut frames = 0;
    for round in 0..10_000 {
        // The tables reach their sizes in the first rounds.
        counting::arm(round >= 100);
        if b.accepted == SOCKETS {
            a.write(id);
            b.write(id);
            frames += 2 * SOCKETS;
        }
        a.send(now, &mut b);
        b.send(now, &mut a);
        now = now.plus(Duration::from_ms(1));
        a.hub.tick(now);
        b.hub.tick(now);
    }
    counting::arm(false);
    assert!(frames > 1_000_000);
    let behind = a.sockets.heads[0] - b.sockets.readable[0];
    assert!(behind <= 2 * MESSAGE && b.sockets.bytes > 30_000_000, "{behind} bytes behind");
    assert_eq!(counting::count(), 0);
}
