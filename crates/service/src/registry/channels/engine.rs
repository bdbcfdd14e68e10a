//! The engine of channels: one hub, the applications' ends and the channels' connections, driven by the core that also runs the relays.
//! Reads no clock. What needs the slow path or a listener it asks of the control thread ([`Told`]), which answers by [`Say`].

use super::ends::{AppEnd, At, Ends};
use super::flows::Flows;
use super::rules::Why;
use super::scale::Scale;
use super::snapshot::{Snapshot, snapshot};
use super::stale::Stale;
use crate::cores::wakers::Wakers;
use crate::registry::memory::Memory;
use base::{Duration, Instant};
use channel::hub::{Over, Rejected};
use channel::open::Open;
use channel::session::{ECONNREFUSED, ECONNRESET, Ended};
use channel::{ChannelId, Event, Hub, Lane, News, Session, SessionId, drive};
use elastic::load::Loads;
use queue::Violation;
use rustix::fd::OwnedFd;
use shm::half_flags::{ERRNO_SHIFT, FAILED, FIN, OPEN, RESET};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Most ends looked at in one round.
const NEWS_MAX: usize = 1_024;
/// Time after which a socket that its application has closed is reset, if the peer neither reads nor closes: Linux's `tcp_fin_timeout`.
const ORPHAN_TIME: Duration = Duration::from_secs(60);
/// The errno of a socket of a program that wants a channel where there is none, and of one that a peer takes by plain TCP only: ENETUNREACH.
pub const NO_CHANNEL: u32 = 101;

/// A report of the engine to the control thread.
#[derive(Debug)]
pub enum Told {
    /// Make a TCP connection to that peer's channel port.
    Connect {
        /// The channel that the connection is for.
        channel: ChannelId,
        /// The session that the channel is for.
        session: SessionId,
        /// The address of the peer's service.
        peer: IpAddr,
    },
    /// The engine has closed its end of the connection in that slot of the service's own region.
    Left {
        /// The number of that slot.
        slot: u32,
    },
    /// A peer opens a socket: find a listener.
    Incoming {
        /// The session of the socket, and its identifier there.
        at: At,
        /// The address of the peer, which the listener's program sees.
        peer: IpAddr,
        /// What the peer asks for.
        open: Open,
    },
    /// The engine no longer uses that slot of an application region.
    Gone {
        /// Id of the region.
        region: u32,
        /// The number of the slot in that region.
        slot: u32,
    },
    /// The socket in that slot cannot go by channel: make it a plain TCP connection.
    Unserved {
        /// Id of the region.
        region: u32,
        /// The number of the slot in that region.
        slot: u32,
        /// What keeps it off the channels.
        why: Why,
    },
    /// A peer has agreed on a session.
    Speaks(IpAddr),
    /// A session is over.
    Over(Over),
    /// A channel did not come through its handshake.
    Rejected(Rejected),
    /// The application of that region broke the rules.
    Violation(u32, Violation),
    /// More of that region must be present.
    MemoryShort {
        /// Id of the region.
        region: u32,
    },
}

/// A socket that a program connects over channels.
#[derive(Debug)]
pub struct Opening {
    /// The region of the program's slot.
    pub memory: Arc<Memory>,
    /// The number of that slot.
    pub slot: u32,
    /// The sockets that may share its channels.
    pub lane: Lane,
    /// What the peer is told.
    pub open: Open,
    /// Fail rather than use plain TCP.
    pub is_required: bool,
}

/// A command of the control thread to the engine.
#[derive(Debug)]
pub enum Say {
    /// Open a socket to a peer for the program that connects.
    Open(Box<Opening>),
    /// Ask a peer whether it has a channel service, by a session without sockets.
    Ask(Lane),
    /// The socket that a peer opens has this slot.
    Accept(At, Arc<Memory>, u32),
    /// The socket that a peer opens is refused with this errno.
    Refuse(At, u32),
    /// Look at that slot, by the region's index: flags of one of its halves have changed.
    Look(u16, u32),
    /// The connection of that channel is in that slot of the service's own region; `None`: it cannot be made.
    Made(ChannelId, Option<u32>),
    /// A peer has made a connection, in that slot; true: the configuration names the peer.
    Arrived(u32, IpAddr, bool),
    /// That slot of the service's own region is free.
    Freed(u32),
    /// The region with that index is gone.
    RegionGone(u16),
    /// Open no more sockets, and end those that programs still have. Sockets that their programs have closed still send their bytes.
    Shut,
    /// Reset the sockets that are left.
    ShutRest,
    /// Send the state of all sessions.
    Report(Sender<Snapshot>),
}

/// What an engine is made with.
#[derive(Debug)]
pub struct Start {
    /// What the service decides about its channels.
    pub hub: channel::Config,
    /// The service's own region.
    pub memory: Arc<Memory>,
    /// The eventfds of all cores.
    pub cores: Arc<[Arc<OwnedFd>]>,
    /// Largest ring for what one peer sends to one socket, bytes.
    pub ring_most: usize,
    /// The number of channels of each session; `None`: as the load asks.
    pub channels: Option<usize>,
}

/// What an engine shares with the core that drives it.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The eventfds that wake applications.
    pub wakers: Arc<Wakers>,
    /// The flow records of all cores.
    pub records: Arc<flow::Flows>,
    /// How busy each core is.
    pub loads: Arc<Loads>,
}

/// The engine of channels, which one core drives.
#[derive(Debug)]
pub struct Engine {
    hub: Hub,
    flows: Flows,
    ends: Ends,
    scale: Scale,
    stale: Stale,
    channels: Vec<ChannelId>,
    /// A channel may have more to do at once.
    is_busy: bool,
    /// When the hub has something to do at the latest.
    due: Instant,
    /// Sessions that were begun and have no channel yet.
    asked: Vec<(SessionId, IpAddr)>,
    /// Sockets that their applications have closed, and when to look at them.
    orphans: VecDeque<(Instant, u64)>,
    told: Vec<Told>,
}

impl Engine {
    /// An engine without sessions.
    pub fn new(start: Start, shared: Shared) -> Self {
        let Start { hub, memory, cores, ring_most, channels } = start;
        let Shared { wakers, records, loads } = shared;
        Self {
            hub: Hub::new(hub),
            flows: Flows::new(memory, cores, wakers, records),
            scale: Scale::new(channels, loads),
            stale: Stale::default(),
            ends: Ends::new(ring_most),
            channels: Vec::new(),
            is_busy: false,
            due: Instant::NEVER,
            asked: Vec::new(),
            orphans: VecDeque::new(),
            told: Vec::new(),
        }
    }

    /// The application has rung for that slot. False: the slot is no virtual socket's.
    pub fn news(&mut self, region: u16, slot: u32) -> bool {
        self.ends.news(region, slot)
    }

    /// More of that region is present.
    pub fn fed(&mut self, region: u32) {
        self.ends.fed(region);
        self.is_busy = true;
    }

    /// Carries out a command of the control thread.
    pub fn obey(&mut self, now: Instant, say: Say) {
        self.is_busy = true;
        match say {
            Say::Open(opening) => self.open(now, *opening),
            Say::Ask(lane) => _ = self.session_for(now, lane),
            Say::Accept(at, memory, slot) => self.accept(at, memory, slot),
            Say::Refuse(at, errno) => {
                if let Some(session) = self.hub.session(at.session) {
                    session.refuse(at.socket, errno);
                }
            }
            Say::Look(region, slot) => _ = self.ends.news(region, slot),
            Say::Made(channel, Some(slot)) => _ = self.flows.made(channel, slot),
            Say::Made(channel, None) => {
                self.flows.not_made(channel);
                self.hub.gone(now, channel);
            }
            Say::Arrived(slot, peer, is_allowed) => {
                let channel = self.flows.accepted(slot);
                self.hub.accepted(now, channel, peer, is_allowed);
            }
            Say::Freed(slot) => self.flows.freed(slot),
            Say::RegionGone(index) => self.ends.forget_region(index),
            Say::Shut => self.shut(now),
            Say::ShutRest => self.reset_all(now, |_| true),
            // The control thread may have stopped waiting.
            Say::Report(answer) => _ = answer.send(snapshot(&self.hub, &self.flows, &self.ends, &self.scale)),
        }
    }

    fn session_for(&mut self, now: Instant, lane: Lane) -> Option<SessionId> {
        let id = self.hub.session_for(now, lane).ok()?;
        if !has_channel(&self.hub, id) && !self.asked.iter().any(|(known, _)| *known == id) {
            self.asked.push((id, lane.peer));
        }
        Some(id)
    }

    fn open(&mut self, now: Instant, opening: Opening) {
        let Opening { memory, slot, lane, open, is_required } = opening;
        let session = self.session_for(now, lane);
        let at = At { session: session.unwrap_or(SessionId(0)), socket: 0 };
        let (tag, window) = self.ends.add(memory, slot, at, is_required);
        let opened =
            session.and_then(|id| self.hub.session(id)).map(|session| session.open(tag, open, window));
        match (opened, self.ends.get(tag)) {
            (Some(Ok(socket)), Some(end)) => end.at.socket = socket,
            _ => self.unserved(tag, Why::SessionLost),
        }
    }

    /// The socket cannot go by channel.
    fn unserved(&mut self, tag: u64, why: Why) {
        let Some(end) = self.ends.get(tag) else { return };
        if end.is_required {
            end.is_over = true;
            self.ends.raise(tag, FAILED | NO_CHANNEL << ERRNO_SHIFT);
            return self.ends.look_at(tag);
        }
        end.clear();
        if let Some((region, slot)) = self.ends.remove(tag) {
            self.told.push(Told::Unserved { region, slot, why });
        }
    }

    fn accept(&mut self, at: At, memory: Arc<Memory>, slot: u32) {
        let (tag, window) = self.ends.add(memory, slot, at, false);
        let session = self.hub.session(at.session);
        if !session.is_some_and(|session| session.accept(at.socket, tag, window)) {
            self.over(tag, RESET);
        }
        // The program may have written already.
        self.ends.look_at(tag);
    }

    /// The session has no such socket any more: tells the application by `flags`.
    fn over(&mut self, tag: u64, flags: u32) {
        if let Some(end) = self.ends.get(tag) {
            end.is_over = true;
            if flags != 0 {
                self.ends.raise(tag, flags);
            }
            self.ends.look_at(tag);
        }
    }

    /// True when something has news, or is due. Takes the rings of the channels' connections.
    pub fn has_work(&mut self, now: Instant) -> bool {
        self.flows.listen() || self.is_busy || self.ends.has_news() || self.due <= now
    }

    /// Serves what has news.
    pub fn work(&mut self, now: Instant) {
        for _ in 0..NEWS_MAX {
            let Some(tag) = self.ends.next_news() else { break };
            self.look(now, tag);
        }
        self.look_at_orphans(now);
        self.scale.tick(now, &mut self.hub, &self.flows);
        self.stale.tick(now, &mut self.hub, &self.flows);
        self.channels.clear();
        self.channels.extend(self.flows.channels());
        let Self { hub, flows, ends, channels, .. } = self;
        let has_more = drive::receive(now, hub, flows, &(), channels, ends);
        flows.ask(|channel| hub.session_of(channel));
        flows.tell_classes(|channel| hub.class_of(channel));
        self.events(now);
        let Self { hub, flows, ends, channels, .. } = self;
        let has_more = drive::send(now, hub, flows, channels, ends) | has_more;
        self.events(now);
        self.ends.announce();
        self.is_busy = has_more;
        let orphan = self.orphans.front().map_or(Instant::NEVER, |(at, _)| *at);
        self.due = self.hub.due_at().min(orphan).min(self.scale.deadline()).min(self.stale.deadline());
    }

    /// The contexts of applications that sleep and have news: the caller writes the eventfd of each after [`work`](Self::work), once for all
    /// sockets. An application that wakes in the middle of the work would take the processor from the core.
    pub fn wakes(&mut self) -> impl Iterator<Item = flow::News> {
        self.ends.wakes()
    }

    /// When there is work at the latest.
    pub fn deadline(&self) -> Instant {
        self.due
    }

    /// Announces sleep. False: there is news.
    pub fn prepare_sleep(&self) -> bool {
        !self.is_busy && !self.ends.has_news() && self.flows.prepare_sleep()
    }

    /// Announces that the engine is awake.
    pub fn awake(&self) {
        self.flows.awake();
    }

    /// The reports since the last call.
    pub fn told(&mut self) -> impl Iterator<Item = Told> {
        let Self { told, flows, .. } = self;
        flows.told.drain(..).chain(told.drain(..))
    }

    /// Passes on what an application has done.
    fn look(&mut self, now: Instant, tag: u64) {
        let Some(end) = self.ends.get(tag) else { return };
        let (at, is_over) = (end.at, end.is_over);
        let look = self.ends.look(tag);
        if is_over {
            if look.is_released
                && let Some((region, slot)) = self.ends.remove(tag)
            {
                self.told.push(Told::Gone { region, slot });
            }
            return;
        }
        let Some(session) = self.hub.session(at.session) else { return };
        if look.is_reset {
            session.reset(now, at.socket, ECONNRESET);
            return self.over(tag, 0);
        }
        if let Some(head) = look.written {
            session.written(at.socket, head);
        }
        if look.is_finished {
            session.finish(at.socket);
        }
        if let Some(edge) = look.edge {
            session.credit(at.socket, edge);
        }
        if look.is_released {
            self.orphan(now, tag);
        }
    }

    fn orphan(&mut self, now: Instant, tag: u64) {
        if let Some(end) = self.ends.get(tag).filter(|end| !end.is_orphan()) {
            (end.progress_at, end.progress) = (now, end.acked());
            self.orphans.push_back((now.plus(ORPHAN_TIME), tag));
        }
    }

    /// Resets sockets that their applications have closed, and with which the peer does nothing.
    fn look_at_orphans(&mut self, now: Instant) {
        while let Some((_, tag)) = self.orphans.front().copied().filter(|(at, _)| *at <= now) {
            self.orphans.pop_front();
            let Some(end) = self.ends.get(tag).filter(|end| !end.is_over) else { continue };
            let (at, acked) = (end.at, end.acked());
            if acked != end.progress {
                end.progress = acked;
                self.orphans.push_back((now.plus(ORPHAN_TIME), tag));
            } else if let Some(session) = self.hub.session(at.session) {
                session.reset(now, at.socket, ECONNRESET);
                self.over(tag, RESET);
            }
        }
    }

    /// Passes on what the peers have done.
    fn events(&mut self, now: Instant) {
        // These are reset first: `reset` takes back the news of their bytes, which the sessions would pass on.
        for tag in std::mem::take(&mut self.ends.unstored) {
            let Some(at) = self.ends.get(tag).filter(|end| !end.is_over).map(|end| end.at) else { continue };
            if let Some(session) = self.hub.session(at.session) {
                session.reset(now, at.socket, ECONNRESET);
            }
            self.over(tag, RESET);
        }
        while let Some((session, event)) = self.hub.poll_event(now) {
            self.event(now, session, event);
        }
        while let Some(over) = self.hub.poll_over() {
            self.asked.retain(|(id, _)| *id != over.session);
            self.told.push(Told::Over(over));
        }
        while let Some(rejected) = self.hub.poll_rejected() {
            self.told.push(Told::Rejected(rejected));
        }
        let hub = &self.hub;
        let told = &mut self.told;
        self.asked.retain(|(id, peer)| {
            let has = has_channel(hub, *id);
            told.extend(has.then_some(Told::Speaks(*peer)));
            !has
        });
        for (tag, violation) in std::mem::take(&mut self.ends.broken) {
            let Some(end) = self.ends.get(tag) else { continue };
            let (region, _) = end.place();
            self.told.push(Told::Violation(region, violation));
        }
        let short = std::mem::take(&mut self.ends.short);
        self.told.extend(short.into_iter().map(|region| Told::MemoryShort { region }));
    }

    fn event(&mut self, now: Instant, session: SessionId, event: Event) {
        let (tag, at) = (event.tag, At { session, socket: event.socket });
        match event.news {
            News::Incoming(open) => {
                let peer = self.hub.peer(session);
                self.told.extend(peer.map(|peer| Told::Incoming { at, peer, open }));
            }
            // The control thread has not answered yet; it will find the socket gone.
            _ if self.ends.get(tag).is_none_or(|end| end.at != at) => {}
            News::Opened => self.ends.raise(tag, OPEN),
            News::Readable(to) => self.readable(now, at, tag, to),
            News::Acked(to) => self.ends.acked(tag, to),
            News::Finished(_) => self.ends.raise(tag, FIN),
            News::Refused(errno) => self.refused(tag, errno),
            News::Reset(ECONNRESET) => self.over(tag, RESET),
            News::Reset(errno) => self.over(tag, FAILED | errno << ERRNO_SHIFT),
            News::Closed => self.over(tag, 0),
        }
    }

    fn readable(&mut self, now: Instant, at: At, tag: u64, to: u64) {
        let is_read = self.ends.publish(tag, to);
        let edge = self.ends.more_credit(tag).filter(|_| is_read);
        let Some(session) = self.hub.session(at.session) else { return };
        if !is_read {
            // Linux answers data for a closed socket with a RST.
            session.reset(now, at.socket, ECONNRESET);
            return self.over(tag, 0);
        }
        if let Some(edge) = edge {
            session.credit(at.socket, edge);
        }
    }

    /// The peer has not accepted the socket. When no peer has answered, but the session is over, plain TCP may do; also when the peer says so.
    fn refused(&mut self, tag: u64, errno: u32) {
        let Some(session) = self.ends.get(tag).map(|end| end.at.session) else { return };
        let ended = self.hub.view(session).and_then(Session::ended);
        let is_lost = ended.is_some_and(|why| why != Ended::Drained);
        match errno {
            NO_CHANNEL => self.unserved(tag, Why::PeerRefuses),
            ECONNREFUSED if is_lost => self.unserved(tag, Why::SessionLost),
            _ => self.over(tag, FAILED | errno << ERRNO_SHIFT),
        }
    }

    /// Opens no more sockets, and resets those that programs still have: nothing can serve them any more. What a program has written before it
    /// closed its socket is sent.
    fn shut(&mut self, now: Instant) {
        // What programs have done shortly before the end counts.
        self.ends.tags(|end| !end.is_over).into_iter().for_each(|tag| self.look(now, tag));
        self.reset_all(now, |end| !end.is_orphan());
        self.hub.shut(now);
    }

    /// Takes the credit of all ends, of which the sessions know nothing.
    #[cfg(test)]
    pub fn take_credit(&mut self) {
        for tag in self.ends.tags(|_| true) {
            self.ends.get(tag).into_iter().for_each(AppEnd::take_credit);
        }
    }

    /// Resets the sockets of ends for which `is` holds.
    fn reset_all(&mut self, now: Instant, is: impl Fn(&AppEnd) -> bool) {
        let all: Vec<At> = self.ends.iter().filter(|end| !end.is_over && is(end)).map(|end| end.at).collect();
        for at in all {
            if let Some(session) = self.hub.session(at.session) {
                session.reset(now, at.socket, ECONNRESET);
            }
        }
    }
}

fn has_channel(hub: &Hub, id: SessionId) -> bool {
    hub.view(id).is_some_and(|session| session.channels().next().is_some())
}
