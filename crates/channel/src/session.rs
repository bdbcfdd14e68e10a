//! The session of two services for one lane: its virtual sockets over its channels. No I/O and no clock; the caller gives bytes of channels
//! in, room for bytes of channels, and `now`, and takes events out.
//!
//! ```text
//!   caller        written, finish, reset, credit, accept, refuse          poll_event
//!                    |                                                        ^
//!                    v                                                        |
//!   sockets       Sending: acked .. placed .. head        Receiving: next .. ahead .. edge
//!                    | chunks, by the scheduler                               ^
//!                    v                                                        |
//!   channels      waiting: chunks; GOAWAY, PING           Deframer            |
//!                    | transmit                              ^ received ------+
//! ```
//! Frames about sockets that are not DATA go over one channel, the *first* that is not closing. So the peer finds the identifiers of OPEN
//! frames in order, also after that channel has died: those without an answer go again, in order, over the next one.

mod event;
mod input;
mod output;
mod report;
mod times;

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Instant};

use crate::channel::{Channel, Greeted, free};
use crate::hello::{Agreed, CONGESTED};
use crate::limits::{CHANNELS_MAX, JOINS_A_SECOND, RECONNECT_TIME, WINDOW_MAX};
use crate::open::Open;
use crate::paths::Paths;
use crate::receiving::Tell;
use crate::runs::Number;
use crate::scheduler::{ChannelState, Policy, Scheduler};
use crate::sockets::{End, Sockets, Stage, news, owed};
use crate::transport::ChannelId;

pub use event::{Ended, Event, News, OpenError};

/// The errno of a socket that the other side, or the loss of the session, has reset.
pub const ECONNRESET: u32 = 104;
/// The errno of a socket that the other side does not accept.
pub const ECONNREFUSED: u32 = 111;

/// What a session has done, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes of streams given to channels again after another channel died.
    pub bytes_again: u64,
    /// Bytes of streams that had come before.
    pub bytes_twice: u64,
    /// Channels that died before their end was agreed.
    pub channels_lost: u64,
}

/// An answer about a socket that is gone; a later one in this list says more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Late {
    Refused,
    /// The peer's FIN at this position, and all before, were received.
    Finished(u64),
    ResetConfirmed,
}

/// How the session's own end proceeds.
#[derive(Clone, Copy, Debug, Default)]
struct Draining {
    /// This side opens and accepts nothing more.
    is_ours: bool,
    owes_ask: bool,
    /// The peer opens and accepts nothing more, and wants an answer.
    is_peers: bool,
    has_answered: bool,
    /// The peer has no sockets any more.
    was_answered: bool,
}

impl Draining {
    /// True when one side wants the session to end.
    fn has_begun(&self) -> bool {
        self.is_ours || self.is_peers
    }
}

/// Whether congestion windows hold back what the acceptor sends.
#[derive(Clone, Copy, Debug, Default)]
struct Congested {
    /// How many times that has changed since the session began. At the acceptor: as it sees it. At the opener: the largest number that the
    /// acceptor has told. The service looks at most once in 10 ms, so the number does not overflow.
    changes: u64,
    /// The acceptor must tell the opener.
    owes: bool,
}

impl Congested {
    /// True when congestion windows hold bytes back: at first they do not, so after an odd number of changes they do.
    fn is(&self) -> bool {
        self.changes % 2 == 1
    }
}

/// What a session is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// True: this side makes the session's channels.
    pub is_opener: bool,
    /// Most virtual sockets at this side.
    pub sockets_max: u32,
    /// Longest DATA frame that this side takes, bytes, as its HELLO has said.
    pub largest_frame: u32,
    /// How chunks are placed on channels.
    pub policy: Policy,
}

/// One session at one side.
#[derive(Debug)]
pub struct Session {
    settings: Settings,
    agreed: Option<Agreed>,
    /// True: a frame of the peer's has come.
    is_heard: bool,
    ended: Option<Ended>,
    draining: Draining,
    congested: Congested,
    channels: Vec<Channel>,
    next_number: u32,
    /// Channels that have joined since the second that began then.
    joined: u32,
    joined_since: Instant,
    /// Number of channels that the session should have.
    wanted: usize,
    paths: Paths,
    /// While no channel can be used: when the session is given up.
    alone_until: Instant,
    /// Since when there has been no socket.
    idle_since: Instant,
    sockets: Sockets,
    own_next: u32,
    peer_next: u32,
    /// Our OPENs without an answer, in order; so many of them were sent over the first channel.
    opens: VecDeque<u32>,
    opens_sent: usize,
    first: Option<Number>,
    control: VecDeque<u32>,
    ready: VecDeque<u32>,
    news: VecDeque<u32>,
    /// Sockets that must confirm bytes at `ack_at`.
    acks: Vec<u32>,
    ack_at: Instant,
    late: BTreeMap<u32, Late>,
    /// True: the peer must repeat what it has no answer to.
    owes_repeat: bool,
    /// When to repeat what has no answer, because the peer has asked for it; and the earliest time to do so.
    repeat_at: Instant,
    repeat_from: Instant,
    scheduler: Box<dyn Scheduler>,
    states: Vec<ChannelState>,
    doomed: VecDeque<ChannelId>,
    counters: Counters,
}

impl Session {
    /// A session without a channel. The opener makes one at once, and later one for each address of the peer.
    #[must_use]
    pub(crate) fn new(now: Instant, settings: Settings, paths: Paths) -> Self {
        let (own_next, peer_next) = if settings.is_opener { (1, 2) } else { (2, 1) };
        Self {
            settings,
            agreed: None,
            is_heard: false,
            ended: None,
            draining: Draining::default(),
            congested: Congested::default(),
            channels: Vec::new(),
            next_number: 0,
            joined: 0,
            joined_since: now,
            wanted: paths.len().min(CHANNELS_MAX),
            paths,
            alone_until: now.plus(RECONNECT_TIME),
            idle_since: now,
            sockets: Sockets::default(),
            own_next,
            peer_next,
            opens: VecDeque::new(),
            opens_sent: 0,
            first: None,
            control: VecDeque::new(),
            ready: VecDeque::new(),
            news: VecDeque::new(),
            acks: Vec::new(),
            ack_at: Instant::NEVER,
            late: BTreeMap::new(),
            owes_repeat: false,
            repeat_at: Instant::NEVER,
            repeat_from: now,
            scheduler: settings.policy.scheduler(),
            states: Vec::with_capacity(CHANNELS_MAX),
            doomed: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Opens a virtual socket. The peer may send `window` bytes at first; `tag` names the socket in events and for [`Streams`](crate::Streams).
    ///
    /// # Errors
    /// [`OpenError`] says what to do instead.
    pub fn open(&mut self, tag: u64, open: Open, window: u64) -> Result<u32, OpenError> {
        if self.ended.is_some() || self.draining.has_begun() {
            return Err(OpenError::Ending);
        }
        let most = self.agreed.map_or(self.settings.sockets_max, |agreed| agreed.sockets_max);
        if self.sockets.len() >= most.min(self.settings.sockets_max) as usize {
            return Err(OpenError::Full);
        }
        let id = self.own_next;
        self.own_next = id.checked_add(2).ok_or(OpenError::Exhausted)?;
        let place = self.sockets.add(id, Stage::Opening, open, window.min(WINDOW_MAX));
        self.sockets.at(place).tag = tag;
        self.opens.push_back(id);
        Ok(id)
    }

    /// Accepts a socket that the peer has opened; as [`open`](Self::open). False: the socket is gone.
    pub fn accept(&mut self, id: u32, tag: u64, window: u64) -> bool {
        let Some(place) = self.in_stage(id, |stage| stage == Stage::Arrived) else { return false };
        let socket = self.sockets.at(place);
        (socket.tag, socket.stage) = (tag, Stage::Live);
        socket.receiving.clear(window.min(WINDOW_MAX));
        self.owe(place, owed::OPENED);
        true
    }

    /// Refuses a socket that the peer has opened. False: the socket is gone.
    pub fn refuse(&mut self, id: u32, errno: u32) -> bool {
        let Some(place) = self.in_stage(id, |stage| stage == Stage::Arrived) else { return false };
        self.sockets.at(place).stage = Stage::Refusing(errno);
        self.owe(place, owed::REFUSED);
        true
    }

    /// The application has written all bytes before `head`, which never falls. They can be read until an event confirms them.
    pub fn written(&mut self, id: u32, head: u64) {
        let Some(place) = self.in_use(id) else { return };
        let sending = &mut self.sockets.at(place).sending;
        if !sending.is_finished && head > sending.head {
            sending.head = head;
            self.look(place);
        }
    }

    /// The application's stream ends behind the bytes written so far.
    pub fn finish(&mut self, id: u32) {
        let Some(place) = self.in_use(id) else { return };
        let socket = self.sockets.at(place);
        if !socket.sending.is_finished {
            socket.sending.is_finished = true;
            if socket.stage == Stage::Live {
                self.owe(place, owed::FIN);
            }
        }
    }

    /// Ends a socket at once: the peer's side is reset with this errno. No event of this socket comes any more.
    pub fn reset(&mut self, now: Instant, id: u32, errno: u32) {
        let Some(place) = self.sockets.find(id) else { return };
        let socket = self.sockets.at(place);
        socket.news = 0;
        match socket.stage {
            Stage::Gone => self.remove(now, place),
            Stage::Arrived => _ = self.refuse(id, errno),
            // The peer has not seen the OPEN: the RESET goes after its answer.
            Stage::Opening | Stage::Live => {
                let is_live = socket.stage == Stage::Live;
                (socket.stage, socket.owed) = (Stage::Resetting(errno.max(1)), 0);
                if is_live {
                    self.owe(place, owed::RESET);
                }
            }
            Stage::Refusing(_) | Stage::Resetting(_) => {}
        }
    }

    /// The caller has room for the bytes before `edge`, which never falls.
    pub fn credit(&mut self, id: u32, edge: u64) {
        let Some(place) = self.in_use(id) else { return };
        let socket = self.sockets.at(place);
        let receiving = &mut socket.receiving;
        let most = receiving.next.saturating_add(WINDOW_MAX);
        receiving.edge = receiving.edge.max(edge.min(most));
        if socket.stage == Stage::Live && receiving.tell() == Tell::Now {
            self.owe(place, owed::CREDIT);
        }
    }

    /// Wants that number of channels, at least one. Only the opener makes and ends channels.
    pub fn want_channels(&mut self, now: Instant, number: usize) {
        self.wanted = number.clamp(1, CHANNELS_MAX);
        self.trim();
        self.elect(now);
    }

    /// Tells the opener whether congestion windows hold back what this side sends, so that it does not make more channels to a network that is
    /// full. Does nothing at the opener's side, and with a peer that does not know the frame.
    pub fn note_congested(&mut self, is: bool) {
        let is_known = self.agreed.is_some_and(|agreed| agreed.features & CONGESTED != 0);
        if is_known && !self.settings.is_opener && self.congested.is() != is {
            self.congested.changes += 1;
            self.congested.owes = true;
        }
    }

    /// True when congestion windows hold back what the acceptor of this session sends.
    #[must_use]
    pub fn is_acceptor_congested(&self) -> bool {
        self.congested.is()
    }

    /// Ends channels beyond those wanted, each time the youngest of the address with the most.
    fn trim(&mut self) {
        if !self.settings.is_opener {
            return;
        }
        for _ in self.wanted..self.open_channels() {
            let channels = self.channels.iter().enumerate().filter(|(_, c)| !c.is_closing());
            let last = channels.max_by_key(|(at, c)| (self.open_to(c.address), *at)).map(|(at, _)| at);
            last.into_iter().for_each(|at| self.channels[at].close());
        }
    }

    /// Number of channels that are not closing.
    fn open_channels(&self) -> usize {
        self.channels.iter().filter(|c| !c.is_closing()).count()
    }

    /// Number of those to that address.
    fn open_to(&self, address: IpAddr) -> usize {
        self.channels.iter().filter(|c| c.address == address && !c.is_closing()).count()
    }

    /// Opens and accepts no more sockets; the session ends after those it has.
    pub(crate) fn drain(&mut self, now: Instant) {
        if !self.draining.is_ours {
            (self.draining.is_ours, self.draining.owes_ask) = (true, true);
            self.idle_since = now;
        }
    }

    /// Ends the session and resets its sockets at once.
    pub(crate) fn end(&mut self, now: Instant, why: Ended) {
        if self.ended.is_some() {
            return;
        }
        // When one side wanted to end the session, and nothing is left of it, it does not matter how the other side went.
        let is_over = |stage| matches!(stage, Stage::Gone | Stage::Refusing(_) | Stage::Resetting(_));
        let is_empty = self.sockets.iter().all(|socket| is_over(socket.stage));
        let is_drained = self.draining.has_begun() && is_empty && !matches!(why, Ended::Violation(_));
        self.ended = Some(if is_drained { Ended::Drained } else { why });
        self.doomed.extend(self.channels.drain(..).map(|channel| channel.id));
        self.late.clear();
        self.opens.clear();
        for place in self.sockets.places() {
            let socket = self.sockets.at(place);
            let (stage, end) = (socket.stage, socket.end);
            socket.owed = 0;
            match stage {
                Stage::Gone if end.is_some() => {}
                Stage::Opening => self.over(place, End::Refused(ECONNREFUSED)),
                Stage::Arrived if socket.news & news::INCOMING != 0 => self.remove(now, place),
                Stage::Arrived | Stage::Live => self.over(place, End::Reset(ECONNRESET)),
                Stage::Refusing(_) | Stage::Resetting(_) | Stage::Gone => self.remove(now, place),
            }
        }
    }

    /// Adds a channel after its handshake.
    pub(crate) fn join(&mut self, now: Instant, greeted: Greeted, agreed: Agreed) -> Number {
        self.paths.made(greeted.address);
        self.agreed.get_or_insert(agreed);
        if now.since(self.joined_since) >= Duration::from_secs(1) {
            (self.joined, self.joined_since) = (0, now);
        }
        self.joined += 1;
        let number = Number(self.next_number);
        self.next_number += 1;
        self.channels.push(Channel::new(now, number, greeted));
        self.trim();
        self.elect(now);
        number
    }

    /// True when the peer may add a channel.
    #[must_use]
    pub(crate) fn may_join(&self, now: Instant) -> bool {
        let is_calm = self.joined < JOINS_A_SECOND || now.since(self.joined_since) >= Duration::from_secs(1);
        self.channels.len() < CHANNELS_MAX && is_calm
    }

    /// A channel is gone. What it may have lost goes again.
    pub(crate) fn lose(&mut self, now: Instant, number: Number) {
        let Some(at) = self.position(number) else { return };
        let channel = self.channels.remove(at);
        self.doomed.push_back(channel.id);
        if !channel.is_closing() {
            self.counters.channels_lost += 1;
            self.paths.lost(now, channel.address);
        }
        if self.first == Some(number) {
            self.first = None;
        }
        for place in self.sockets.places() {
            let socket = self.sockets.at(place);
            socket.sending.lose(number);
            if socket.stage == Stage::Live {
                self.owe(place, owed::CREDIT);
                self.look(place);
            }
        }
        self.owes_repeat = true;
        self.repeat();
        self.elect(now);
    }

    /// Sends again every frame that may be lost and has no answer.
    fn repeat(&mut self) {
        self.opens_sent = 0;
        self.draining.owes_ask |= self.draining.is_ours && !self.draining.was_answered;
        self.congested.owes |= !self.settings.is_opener && self.congested.changes > 0;
        for place in self.sockets.places() {
            let socket = self.sockets.at(place);
            let (stage, id) = (socket.stage, socket.id);
            match stage {
                Stage::Live if socket.sending.is_finished && !socket.sending.is_over() => {
                    self.owe(place, owed::FIN);
                }
                // Of an OPEN without an answer only the OPEN goes again.
                Stage::Resetting(_) if self.opens.binary_search(&id).is_err() => self.owe(place, owed::RESET),
                _ => {}
            }
        }
    }

    /// The next channel that the transport must destroy.
    pub(crate) fn poll_destroy(&mut self) -> Option<ChannelId> {
        self.doomed.pop_front()
    }

    /// Why the session is over; `None`: it is not.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// True when nothing of the session is left: it is over, and every event was taken.
    #[must_use]
    pub(crate) fn is_gone(&self) -> bool {
        self.ended.is_some() && self.sockets.len() == 0 && self.doomed.is_empty()
    }

    /// True when new virtual sockets may be opened, as far as the session's end is concerned.
    #[must_use]
    pub(crate) fn may_open(&self) -> bool {
        self.ended.is_none() && !self.draining.has_begun() && self.own_next < u32::MAX - 1
    }

    /// What the two services have agreed on; `None` before the first channel.
    #[must_use]
    pub(crate) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// Number of virtual sockets.
    #[must_use]
    pub fn sockets(&self) -> usize {
        self.sockets.len()
    }

    fn position(&self, number: Number) -> Option<usize> {
        self.channels.iter().position(|channel| channel.number == number)
    }

    /// Chooses the first channel anew.
    fn elect(&mut self, now: Instant) {
        let first = self.channels.iter().find(|channel| !channel.is_closing()).map(|channel| channel.number);
        if first != self.first {
            (self.first, self.opens_sent) = (first, 0);
            self.draining.has_answered = false;
        }
        match (first, self.alone_until) {
            (Some(_), _) => self.alone_until = Instant::NEVER,
            (None, Instant::NEVER) => self.alone_until = now.plus(RECONNECT_TIME),
            (None, _) => {}
        }
    }

    fn in_stage(&mut self, id: u32, is: impl Fn(Stage) -> bool) -> Option<u32> {
        let place = self.sockets.find(id)?;
        is(self.sockets.at(place).stage).then_some(place)
    }

    fn in_use(&mut self, id: u32) -> Option<u32> {
        self.in_stage(id, |stage| matches!(stage, Stage::Opening | Stage::Live))
    }

    fn owe(&mut self, place: u32, frames: u8) {
        let socket = self.sockets.at(place);
        socket.owed |= frames;
        if frames != 0 && !socket.queued.control {
            socket.queued.control = true;
            self.control.push_back(place);
        }
    }

    fn tell(&mut self, place: u32, news: u8) {
        let socket = self.sockets.at(place);
        socket.news |= news;
        if !socket.queued.news {
            socket.queued.news = true;
            self.news.push_back(place);
        }
    }

    /// Puts the socket among those with bytes to place, if it has some.
    fn look(&mut self, place: u32) {
        let socket = self.sockets.at(place);
        if socket.stage == Stage::Live && !socket.queued.ready && socket.sending.next(1).is_some() {
            socket.queued.ready = true;
            self.ready.push_back(place);
        }
    }

    /// The socket is gone for the peer: the caller is told.
    fn over(&mut self, place: u32, end: End) {
        let socket = self.sockets.at(place);
        (socket.stage, socket.end, socket.owed) = (Stage::Gone, Some(end), 0);
        if end != End::Closed {
            socket.news = 0;
        }
        self.tell(place, 0);
    }

    fn remove(&mut self, now: Instant, place: u32) {
        let channels = &mut self.channels;
        self.sockets.at(place).sending.give_up(|on, bytes| free(channels, on, bytes));
        self.sockets.remove(place);
        if self.sockets.len() == 0 {
            self.idle_since = now;
        }
    }

    /// The socket is closed if both directions are over.
    fn close_if_over(&mut self, place: u32) {
        let socket = self.sockets.at(place);
        if socket.stage == Stage::Live && socket.is_over() {
            self.over(place, End::Closed);
        }
    }
}
