//! All sessions and channels of one service: which session a channel belongs to, which sessions there are with which peers, and what a peer's
//! restart ends. No I/O and no clock.

mod entrance;
mod greet;

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};

use base::{Instant, Seed};

use crate::bytes::{Input, Room};
use crate::frame::field;
use crate::greeting::Greeting;
use crate::hello::{Class, FEATURES, Hello, VERSION};
use crate::lane::Lane;
use crate::limits::{FRAME_MAX, REJECTED_MAX, SESSIONS_MAX_DEFAULT, SOCKETS_MAX_DEFAULT};
use crate::paths::Paths;
use crate::proof::Key;
use crate::runs::Number;
use crate::scheduler::Policy;
use crate::session::{Ended, Event, Session, Settings};
use crate::streams::Streams;
use crate::transport::ChannelId;
use crate::violation::{Refusal, Rejection};
use entrance::Entrance;

/// The identifier of a session, the same at both services.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SessionId(pub u128);

/// What a service decides about its channels.
#[derive(Clone, Debug)]
pub struct Config {
    /// The shared secret; `None`: peers are known by their addresses only.
    pub secret: Option<Vec<u8>>,
    /// Random bytes of the kernel, new at each start: all nonces and session identifiers come from them.
    pub seed: [u8; 32],
    /// When the service started: see [`Hello::epoch`].
    pub epoch: u64,
    /// Least version of the protocol to speak.
    pub version_least: u8,
    /// Most version of the protocol to speak.
    pub version_most: u8,
    /// Longest DATA frame to take, bytes.
    pub largest_frame: u32,
    /// Most virtual sockets of one session.
    pub sockets_max: u32,
    /// Most sessions with all peers together.
    pub sessions_max: usize,
    /// Hosts with several addresses: each host's addresses. A session with one of them has channels to all of them.
    pub hosts: Vec<Vec<IpAddr>>,
    /// How sockets that need low latency are placed.
    pub latency: Policy,
    /// How bulk data is placed.
    pub throughput: Policy,
}

impl Config {
    /// The defaults, without a secret.
    #[must_use]
    pub const fn new(seed: [u8; 32], epoch: u64) -> Self {
        Self {
            secret: None,
            seed,
            epoch,
            version_least: 1,
            version_most: VERSION,
            largest_frame: FRAME_MAX,
            sockets_max: SOCKETS_MAX_DEFAULT,
            sessions_max: SESSIONS_MAX_DEFAULT,
            hosts: Vec::new(),
            latency: Policy::Sticky,
            throughput: Policy::Shortest,
        }
    }

    fn policy(&self, class: Class) -> Policy {
        match class {
            Class::Latency => self.latency,
            Class::Throughput => self.throughput,
        }
    }

    /// All addresses of the host with that one, which comes first.
    fn paths(&self, now: Instant, peer: IpAddr) -> Paths {
        let host = self.hosts.iter().find(|host| host.contains(&peer));
        Paths::new(now, peer, host.into_iter().flatten().copied())
    }
}

/// A session that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Over {
    /// The identifier of the session.
    pub session: SessionId,
    /// The service at the other side.
    pub peer: IpAddr,
    /// Why the session is over.
    pub why: Ended,
}

/// A channel that did not come through its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// The address of the service at the other side.
    pub peer: IpAddr,
    /// Why the channel has ended.
    pub why: Rejection,
}

/// What a hub knows of a session, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct About {
    /// The service at the other side.
    pub peer: IpAddr,
    /// What the session's sockets need most.
    pub class: Class,
    /// True: this side has opened the session, and makes its channels.
    pub is_opener: bool,
    /// The user of this host with the session's sockets; `None`: several users share it, or the peer has opened it.
    pub user: Option<u32>,
}

/// How much a hub keeps: for limits, reports and the check that nothing is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Sessions, also those that are over and have events left.
    pub sessions: usize,
    /// Channels that belong to a session.
    pub channels: usize,
    /// Channels in their handshake.
    pub greetings: usize,
    /// Virtual sockets of all sessions.
    pub sockets: usize,
}

/// Counts of what peers did wrong, by the point where it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refusals {
    /// Channels refused or given up in their handshake.
    pub greetings: u64,
    /// Sessions ended because the peer broke the rules.
    pub violations: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    session: u128,
    number: Number,
}

#[derive(Debug)]
struct Entry {
    session: Session,
    peer: IpAddr,
    /// The lane of a session that this side has opened.
    lane: Option<Lane>,
    class: Class,
    is_touched: bool,
    is_over_told: bool,
}

/// All sessions and channels of one service.
#[derive(Debug)]
pub struct Hub {
    config: Config,
    secret: Key,
    random: Key,
    random_number: u64,
    is_shut: bool,
    greetings: BTreeMap<ChannelId, Greeting>,
    entrance: Entrance,
    places: BTreeMap<ChannelId, Place>,
    sessions: BTreeMap<u128, Entry>,
    by_lane: BTreeMap<Lane, u128>,
    /// Sessions that may have events.
    touched: VecDeque<u128>,
    /// No session and no handshake has anything to do before this time, except those in `touched`.
    due_at: Instant,
    /// Empty between calls; its memory is used again.
    due: Vec<u128>,
    wanted: VecDeque<Wanted>,
    doomed: VecDeque<ChannelId>,
    aborted: VecDeque<ChannelId>,
    over: VecDeque<Over>,
    rejected: VecDeque<Rejected>,
    refusals: Refusals,
}

impl Hub {
    /// A hub without sessions.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let random = Key::of_secret(Some(&config.seed));
        // Number 0: `random` begins with 1.
        let lots = Seed::new(u64::from_le_bytes(field(&random.random(0), 0)));
        Self {
            secret: Key::of_secret(config.secret.as_deref()),
            random,
            config,
            random_number: 0,
            is_shut: false,
            greetings: BTreeMap::new(),
            entrance: Entrance::new(lots),
            places: BTreeMap::new(),
            sessions: BTreeMap::new(),
            by_lane: BTreeMap::new(),
            touched: VecDeque::new(),
            due_at: Instant::ZERO,
            due: Vec::new(),
            wanted: VecDeque::new(),
            doomed: VecDeque::new(),
            aborted: VecDeque::new(),
            over: VecDeque::new(),
            rejected: VecDeque::new(),
            refusals: Refusals::default(),
        }
    }

    /// The session for new sockets of that lane; a new one when there is none that opens more.
    ///
    /// # Errors
    /// [`Refusal::Full`] and [`Refusal::ShuttingDown`], of this service itself.
    pub fn session_for(&mut self, now: Instant, lane: Lane) -> Result<SessionId, Refusal> {
        if self.is_shut {
            return Err(Refusal::ShuttingDown);
        }
        if let Some(id) = self.by_lane.get(&lane)
            && self.sessions.get(id).is_some_and(|entry| entry.session.may_open())
        {
            return Ok(SessionId(*id));
        }
        if self.sessions.len() >= self.config.sessions_max {
            return Err(Refusal::Full);
        }
        let id = u128::from_le_bytes(self.random());
        self.add(now, id, lane.peer, lane.class, Some(lane));
        self.by_lane.insert(lane, id);
        Ok(SessionId(id))
    }

    /// That session, to open, write and close sockets. Its events come by [`poll_event`](Self::poll_event).
    pub fn session(&mut self, id: SessionId) -> Option<&mut Session> {
        self.touch(id.0);
        self.sessions.get_mut(&id.0).map(|entry| &mut entry.session)
    }

    /// A session as it stands, to be read only.
    #[must_use]
    pub fn view(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id.0).map(|entry| &entry.session)
    }

    /// The address of a session's other service, and so of the peer of each virtual socket of that session.
    #[must_use]
    pub fn peer(&self, id: SessionId) -> Option<IpAddr> {
        self.sessions.get(&id.0).map(|entry| entry.peer)
    }

    /// What a report says of a session beside its own counters.
    #[must_use]
    pub fn about(&self, id: SessionId) -> Option<About> {
        let entry = self.sessions.get(&id.0)?;
        let user = entry.lane.and_then(|lane| lane.user);
        Some(About { peer: entry.peer, class: entry.class, is_opener: entry.lane.is_some(), user })
    }

    /// The channels of a session that are past their handshake.
    pub fn channels_of(&self, id: SessionId) -> impl Iterator<Item = ChannelId> {
        self.view(id).into_iter().flat_map(Session::channels_by_address).map(|(channel, ..)| channel)
    }

    /// The session that a channel is in, or is made for; `None`: the peer has made it, and its handshake is not over.
    #[must_use]
    pub fn session_of(&self, channel: ChannelId) -> Option<SessionId> {
        let place = self.places.get(&channel).map(|place| place.session);
        place.or_else(|| self.greetings.get(&channel)?.session).map(SessionId)
    }

    /// The class of the sockets on that channel; `None`: the channel is in its handshake, or gone.
    #[must_use]
    pub fn class_of(&self, channel: ChannelId) -> Option<Class> {
        let place = self.places.get(&channel)?;
        self.sessions.get(&place.session).map(|entry| entry.class)
    }

    /// Opens no more sessions and sockets; what there is ends by itself.
    pub fn shut(&mut self, now: Instant) {
        self.is_shut = true;
        self.sessions.values_mut().for_each(|entry| entry.session.drain(now));
        self.due_at = self.due_at.min(now);
    }

    /// A service at `peer` has made a channel to this one. `is_allowed`: the configuration names the peer.
    pub fn accepted(&mut self, now: Instant, channel: ChannelId, peer: IpAddr, is_allowed: bool) {
        if let Some(loser) = self.entrance.enter(channel, peer, is_allowed) {
            self.turn_out(loser);
        }
        let mut greeting = Greeting::accept(now, peer);
        if !is_allowed {
            self.note_rejected(peer, Rejection::Refused(Refusal::NotAllowed));
            greeting.refuse(Refusal::NotAllowed);
        }
        self.due_at = self.due_at.min(greeting.deadline);
        self.greetings.insert(channel, greeting);
    }

    /// Takes in the next bytes of a channel.
    pub fn received<'a>(
        &mut self,
        now: Instant,
        channel: ChannelId,
        bytes: impl Into<Input<'a>>,
        streams: &mut impl Streams,
    ) {
        let mut rest = bytes.into();
        if self.greetings.contains_key(&channel) {
            self.greet(now, channel, &mut rest);
        }
        let Some(place) = self.places.get(&channel).copied() else { return };
        let Some(entry) = self.sessions.get_mut(&place.session) else { return };
        entry.session.received(now, place.number, rest, streams);
        entry.session.tick(now);
        self.settle(place.session);
    }

    /// Fills `room` for that channel, and returns how many bytes are for the transport.
    pub fn transmit<R: Room + ?Sized>(
        &mut self,
        now: Instant,
        channel: ChannelId,
        room: &mut R,
        streams: &mut impl Streams,
    ) -> usize {
        let greeted = self.greetings.get_mut(&channel).map(|greeting| greeting.transmit(room));
        let len = match greeted {
            Some(sent) => {
                if let Some(done) = sent.done {
                    self.joined(now, channel, done);
                }
                sent.len
            }
            None => 0,
        };
        let Some(place) = self.places.get(&channel).copied() else { return len };
        let Some(entry) = self.sessions.get_mut(&place.session) else { return len };
        let more = entry.session.transmit(now, place.number, room, len, streams);
        self.touch(place.session);
        len + more
    }

    /// True when [`transmit`](Self::transmit) would find something for that channel.
    #[must_use]
    pub fn has_output(&self, channel: ChannelId) -> bool {
        match (self.greetings.get(&channel), self.places.get(&channel)) {
            (Some(greeting), _) => greeting.has_output(),
            (None, Some(place)) => {
                self.sessions.get(&place.session).is_some_and(|entry| entry.session.has_output(place.number))
            }
            (None, None) => false,
        }
    }

    /// The transport of a channel is gone.
    pub fn gone(&mut self, now: Instant, channel: ChannelId) {
        if self.greetings.contains_key(&channel) {
            self.give_up(now, channel);
        } else if let Some(place) = self.places.get(&channel).copied() {
            if let Some(entry) = self.sessions.get_mut(&place.session) {
                entry.session.lose(now, place.number);
            }
            self.settle(place.session);
        } else {
            self.doomed.push_back(channel);
        }
    }

    /// Does what is due. Costs nothing before [`next_deadline`](Self::next_deadline).
    pub fn tick(&mut self, now: Instant) {
        if now < self.due_at {
            return;
        }
        while let Some((channel, _)) = self.greetings.iter().find(|(_, greeting)| greeting.deadline <= now) {
            self.give_up(now, *channel);
        }
        let mut due = core::mem::take(&mut self.due);
        due.extend(
            self.sessions.iter().filter(|(_, entry)| entry.session.next_deadline() <= now).map(|(id, _)| *id),
        );
        for id in due.drain(..) {
            let Some(entry) = self.sessions.get_mut(&id) else { continue };
            entry.session.tick(now);
            while let Some(address) = entry.session.poll_create(now) {
                self.wanted.push_back(Wanted { session: SessionId(id), address });
            }
            self.settle(id);
        }
        self.due = due;
        self.due_at = self.next_deadline();
    }

    /// When [`tick`](Self::tick) must be called again, after [`poll_event`](Self::poll_event) has given its last event. Costs nothing; may be
    /// too early, and then the tick does nothing.
    #[must_use]
    pub fn due_at(&self) -> Instant {
        self.due_at
    }

    /// When [`tick`](Self::tick) has something to do at the latest. Looks at every session.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let greetings = self.greetings.values().map(|greeting| greeting.deadline);
        let sessions = self.sessions.values().map(|entry| entry.session.next_deadline());
        greetings.chain(sessions).min().unwrap_or(Instant::NEVER)
    }

    /// The next session that needs a channel, found by [`tick`](Self::tick): the caller makes one to that address, and then calls
    /// [`created`](Self::created) or [`not_created`](Self::not_created).
    pub fn poll_create(&mut self) -> Option<Wanted> {
        self.wanted.pop_front()
    }

    /// The channel that a session needs is being made.
    pub fn created(&mut self, now: Instant, wanted: Wanted, channel: ChannelId) {
        let Wanted { session, address } = wanted;
        let nonce = self.random();
        let Some(entry) = self.sessions.get(&session.0) else { return self.doomed.push_back(channel) };
        let is_join = entry.session.is_heard();
        let ask = Hello { is_join, session: session.0, nonce, ..self.hello(entry.class) };
        let greeting = Greeting::ask(now, address, ask, self.secret.of_session(session.0));
        self.due_at = self.due_at.min(greeting.deadline);
        self.greetings.insert(channel, greeting);
    }

    /// The channel that a session needs cannot be made now.
    pub fn not_created(&mut self, now: Instant, Wanted { session, address }: Wanted) {
        if let Some(entry) = self.sessions.get_mut(&session.0) {
            entry.session.not_made(now, address);
        }
        self.settle(session.0);
    }

    /// The next channel that the transport must abort, because its peer has not proved itself; the hub does not name it any more.
    pub fn poll_abort(&mut self) -> Option<ChannelId> {
        self.aborted.pop_front()
    }

    /// The next channel that the transport must destroy; the hub does not name it any more.
    pub fn poll_destroy(&mut self) -> Option<ChannelId> {
        self.doomed.pop_front()
    }

    /// The next event of a virtual socket.
    pub fn poll_event(&mut self, now: Instant) -> Option<(SessionId, Event)> {
        while let Some(id) = self.touched.front().copied() {
            if let Some(entry) = self.sessions.get_mut(&id) {
                if let Some(event) = entry.session.poll_event(now) {
                    return Some((SessionId(id), event));
                }
                self.settle(id);
                if let Some(entry) = self.sessions.get_mut(&id) {
                    entry.is_touched = false;
                    if entry.session.is_gone() {
                        self.sessions.remove(&id);
                    }
                }
            }
            self.touched.pop_front();
        }
        None
    }

    /// The next session that is over; its last events may still come.
    pub fn poll_over(&mut self) -> Option<Over> {
        self.over.pop_front()
    }

    /// The next channel that did not come through its handshake. Of those that no call has taken the hub keeps some; it counts all.
    pub fn poll_rejected(&mut self) -> Option<Rejected> {
        self.rejected.pop_front()
    }

    fn note_rejected(&mut self, peer: IpAddr, why: Rejection) {
        self.refusals.greetings += 1;
        if self.rejected.len() < REJECTED_MAX {
            self.rejected.push_back(Rejected { peer, why });
        }
    }

    /// How much the hub keeps.
    #[must_use]
    pub fn census(&self) -> Census {
        Census {
            sessions: self.sessions.len(),
            channels: self.places.len(),
            greetings: self.greetings.len(),
            sockets: self.sessions.values().map(|entry| entry.session.sockets()).sum(),
        }
    }

    /// What peers did wrong.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        self.refusals
    }

    /// All sessions, for reports and tests.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.sessions.iter().map(|(id, entry)| (SessionId(*id), &entry.session))
    }

    fn hello(&self, class: Class) -> Hello {
        Hello {
            least: self.config.version_least,
            most: self.config.version_most,
            class,
            is_join: false,
            features: FEATURES,
            largest_frame: self.config.largest_frame,
            sockets_max: self.config.sockets_max,
            epoch: self.config.epoch,
            session: 0,
            nonce: [0; 16],
        }
    }

    /// Sixteen bytes that no peer can guess.
    fn random(&mut self) -> [u8; 16] {
        self.random_number += 1;
        field(&self.random.random(self.random_number), 0)
    }

    fn add(&mut self, now: Instant, id: u128, peer: IpAddr, class: Class, lane: Option<Lane>) {
        let policy = self.config.policy(class);
        let Config { sockets_max, largest_frame, .. } = self.config;
        let settings = Settings { is_opener: lane.is_some(), sockets_max, largest_frame, policy };
        let session = Session::new(now, settings, self.config.paths(now, peer));
        let entry = Entry { session, peer, lane, class, is_touched: false, is_over_told: false };
        self.sessions.insert(id, entry);
        self.due_at = self.due_at.min(now);
    }

    fn touch(&mut self, id: u128) {
        if let Some(entry) = self.sessions.get_mut(&id)
            && !entry.is_touched
        {
            entry.is_touched = true;
            self.touched.push_back(id);
        }
    }

    /// After anything that may end a session or its channels.
    fn settle(&mut self, id: u128) {
        self.touch(id);
        let Some(entry) = self.sessions.get_mut(&id) else { return };
        while let Some(channel) = entry.session.poll_destroy() {
            self.places.remove(&channel);
            self.doomed.push_back(channel);
        }
        self.due_at = self.due_at.min(entry.session.next_deadline());
        if let Some(why) = entry.session.ended().filter(|_| !entry.is_over_told) {
            entry.is_over_told = true;
            self.over.push_back(Over { session: SessionId(id), peer: entry.peer, why });
            self.refusals.violations += u64::from(matches!(why, Ended::Violation(_)));
            if let Some(lane) = entry.lane.filter(|lane| self.by_lane.get(lane) == Some(&id)) {
                self.by_lane.remove(&lane);
            }
        }
    }
}

/// A session that needs a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The identifier of the session.
    pub session: SessionId,
    /// The address of its peer to connect to.
    pub address: IpAddr,
}
