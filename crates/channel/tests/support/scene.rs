//! A hub and a peer that is played by hand: what it sends is bytes, and what it gets is bytes.

use base::Instant;
use channel::bytes::{Input, Room};
use channel::frame::{Header, Kind};
use channel::hello::{Class, Hello, Step};
use channel::open::Open;
use channel::proof::{Key, Purpose};
use channel::session::Ended;
use channel::{ChannelId, Config, Hub, Lane, News, SessionId, Sharing, Streams};
use std::net::IpAddr;

pub const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
pub const SOCKETS_MAX: u32 = 64;
pub const WINDOW: u64 = 10_000;

/// Takes every byte and remembers how far beyond the window one was put.
#[derive(Default)]
pub struct Sink {
    pub end: u64,
}

impl Streams for Sink {
    fn read<R: Room + ?Sized>(&mut self, _tag: u64, _position: u64, len: usize, room: &mut R, at: usize) {
        room.put(at, &vec![0; len]);
    }
    fn write(&mut self, _tag: u64, position: u64, bytes: Input<'_>) {
        self.end = self.end.max(position + bytes.len() as u64);
    }
}

/// A hub with one hostile peer, which has a whole and honest handshake behind it if it wants one.
pub struct Scene {
    pub now: Instant,
    pub hub: Hub,
    pub sink: Sink,
    /// The address from which the peer makes channels.
    pub address: IpAddr,
    channels: u32,
    pub session: u128,
    pub epoch: u64,
    /// What the peer's HELLO names.
    pub features: u64,
    /// False: incoming sockets are left waiting.
    pub accepts: bool,
    pub events: Vec<News>,
}

impl Scene {
    pub fn new(secret: Option<&[u8]>) -> Self {
        let config = Config {
            secret: secret.map(<[u8]>::to_vec),
            sockets_max: SOCKETS_MAX,
            ..Config::new([1; 32], 1)
        };
        Self {
            now: Instant::ZERO,
            hub: Hub::new(config),
            sink: Sink::default(),
            address: PEER,
            channels: 0,
            session: 0,
            epoch: 1,
            features: 0,
            accepts: true,
            events: Vec::new(),
        }
    }

    pub fn channel(&mut self) -> ChannelId {
        self.channels += 1;
        self.hub.accepted(self.now, ChannelId(self.channels), self.address, true);
        ChannelId(self.channels)
    }

    /// So many channels from that address, which say nothing.
    pub fn silent(&mut self, address: IpAddr, count: usize) {
        let own = std::mem::replace(&mut self.address, address);
        (0..count).for_each(|_| _ = self.channel());
        self.address = own;
    }

    pub fn send(&mut self, channel: ChannelId, bytes: &[u8]) {
        self.hub.received(self.now, channel, bytes, &mut self.sink);
        while let Some((id, event)) = self.hub.poll_event(self.now) {
            self.events.push(event.news);
            if let News::Incoming(_) = event.news
                && self.accepts
            {
                assert!(self.hub.session(id).unwrap().accept(event.socket, 1, WINDOW));
            }
        }
        for (_, session) in self.hub.sessions() {
            session.check().unwrap();
        }
    }

    /// All that the hub sends now.
    pub fn reply(&mut self, channel: ChannelId) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let mut room = [0; 4_096];
            let n = self.hub.transmit(self.now, channel, &mut room[..], &mut self.sink);
            all.extend_from_slice(&room[..n]);
            if n == 0 {
                return all;
            }
        }
    }

    pub fn hello(&self) -> Hello {
        Hello {
            least: 1,
            most: 1,
            class: Class::Throughput,
            is_join: false,
            features: self.features,
            largest_frame: 61_440,
            sockets_max: 1_000,
            epoch: self.epoch,
            session: self.session,
            nonce: [7; 16],
        }
    }

    /// Begins a handshake over a new channel. The channel, and what the hub answers.
    pub fn ask(&mut self, ask: &Hello) -> (ChannelId, Vec<u8>) {
        let channel = self.channel();
        self.send(channel, &ask.encode(Step::Ask, &[0; 32]));
        (channel, self.reply(channel))
    }

    /// The handshake of a new session; the channel afterwards.
    pub fn greet(&mut self, secret: Option<&[u8]>) -> ChannelId {
        self.session += 1;
        self.shake(secret, &self.hello()).0
    }

    /// A whole handshake over a new channel, from that ask on. The channel, and the confirmation that was sent.
    pub fn shake(&mut self, secret: Option<&[u8]>, ask: &Hello) -> (ChannelId, Vec<u8>) {
        let (channel, answer) = self.ask(ask);
        let confirm = confirm(secret, ask, &answer);
        self.send(channel, &confirm);
        (channel, confirm)
    }

    /// One more channel of the peer's session; the channel.
    pub fn join(&mut self, secret: Option<&[u8]>) -> ChannelId {
        self.shake(secret, &Hello { is_join: true, ..self.hello() }).0
    }

    /// The hub opens a session to the peer, and socket 1 in it, which waits for its answer; the channel. The hub's confirmation waits for room.
    pub fn open_ours(&mut self, secret: Option<&[u8]>) -> ChannelId {
        self.begin_ours();
        self.make_ours(secret)
    }

    /// The hub begins a session with the peer, and opens socket 1 in it.
    pub fn begin_ours(&mut self) {
        let lane = Lane::of(PEER, Class::Throughput, 1, Sharing::Always);
        let id = self.hub.session_for(self.now, lane).unwrap();
        let to = Open { from_port: 1, to: ([10, 0, 0, 2], 80).into(), options: 0 };
        assert_eq!(self.hub.session(id).unwrap().open(1, to, WINDOW), Ok(1));
    }

    /// The hub makes the channel that a session of its own needs. The channel, and what the hub asks.
    pub fn ask_ours(&mut self) -> (ChannelId, Hello) {
        self.hub.tick(self.now);
        let wanted = self.hub.poll_create().unwrap();
        self.channels += 1;
        let channel = ChannelId(self.channels);
        self.hub.created(self.now, wanted, channel);
        let ask = Hello::parse(&self.reply(channel)[16..]).unwrap();
        assert_eq!(wanted.session, SessionId(ask.session));
        (channel, ask)
    }

    /// The hub makes the channel that a session of its own needs, and the peer answers; the channel. The hub's confirmation waits for room.
    pub fn make_ours(&mut self, secret: Option<&[u8]>) -> ChannelId {
        let (channel, ask) = self.ask_ours();
        let answer = Hello { nonce: [9; 16], ..ask };
        let proof = Key::of_secret(secret).of_session(ask.session).prove(Purpose::Answer, &ask, &answer);
        self.send(channel, &answer.encode(Step::Answer, &proof));
        channel
    }

    /// A session of the peer, and a socket with identifier 1 that is open.
    pub fn with_socket() -> (Self, ChannelId) {
        let mut scene = Self::new(None);
        let channel = scene.greet(None);
        scene.send(channel, &open(1));
        assert_eq!(scene.hub.census().sockets, 1);
        scene.reply(channel);
        (scene, channel)
    }

    pub fn why(&mut self) -> Option<Ended> {
        self.hub.poll_over().map(|over| over.why)
    }
}

/// The last step of a handshake, after that ask and what the hub has answered.
pub fn confirm(secret: Option<&[u8]>, ask: &Hello, answer: &[u8]) -> Vec<u8> {
    let key = Key::of_secret(secret).of_session(ask.session);
    let answer = Hello::parse(&answer[16..]).unwrap();
    ask.encode(Step::Confirm, &key.prove(Purpose::Confirm, ask, &answer)).to_vec()
}

pub fn open(socket: u32) -> Vec<u8> {
    Open { from_port: 7, to: ([10, 0, 0, 1], 80).into(), options: 0 }.encode(socket, WINDOW).to_vec()
}

pub fn frame(kind: Kind, socket: u32, argument: u64, body: &[u8]) -> Vec<u8> {
    [&Header { length: body.len() as u32, kind, socket, argument }.encode()[..], body].concat()
}

pub fn bare(kind: Kind, socket: u32, argument: u64) -> Vec<u8> {
    frame(kind, socket, argument, &[])
}
