//! What a session does because time has passed, and when it must be asked again.

use core::net::IpAddr;

use base::Instant;

use super::{Ended, Session};
use crate::limits::{CHANNELS_MAX, IDLE_TIME, RECONNECT_TIME, REPEAT_PAUSE};
use crate::runs::Number;
use crate::sockets::{Stage, owed};

impl Session {
    /// Does what is due. The caller calls it at [`next_deadline`](Self::next_deadline) or later.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.ended.is_some() {
            return;
        }
        if self.ack_at <= now {
            self.ack_at = Instant::NEVER;
            while let Some(place) = self.acks.pop() {
                let socket = self.sockets.at(place);
                socket.queued.acks = false;
                let is_live = socket.id != 0 && socket.stage == Stage::Live;
                if is_live && !socket.receiving.is_confirmed() {
                    self.owe(place, owed::CREDIT);
                }
            }
        }
        if self.repeat_at <= now {
            (self.repeat_at, self.repeat_from) = (Instant::NEVER, now.plus(REPEAT_PAUSE));
            self.repeat();
        }
        while let Some(silent) = self.silent(now) {
            self.lose(now, silent);
        }
        self.tick_end(now);
    }

    fn silent(&mut self, now: Instant) -> Option<Number> {
        self.channels.iter_mut().find_map(|channel| (!channel.check(now)).then_some(channel.number))
    }

    fn tick_end(&mut self, now: Instant) {
        if self.alone_until <= now {
            return self.end(now, Ended::Unreachable);
        }
        if !self.is_empty() {
            return;
        }
        let idle = now.since(self.idle_since);
        let is_confirmed = self.draining.was_answered && self.session_frame().is_none();
        if self.draining.is_ours && (is_confirmed || idle >= RECONNECT_TIME) {
            return self.end(now, Ended::Drained);
        }
        if self.settings.is_opener && idle >= IDLE_TIME {
            self.drain(now);
        }
    }

    /// True when there is no socket, and no answer about one that waits to be sent.
    fn is_empty(&self) -> bool {
        self.sockets.len() == 0 && self.late.is_empty() && self.control.is_empty()
    }

    /// When [`tick`](Self::tick) has something to do at the latest.
    #[must_use]
    pub(crate) fn next_deadline(&self) -> Instant {
        if self.ended.is_some() {
            return Instant::NEVER;
        }
        let channels = self.channels.iter().map(|channel| channel.deadline()).min().unwrap_or(Instant::NEVER);
        let create = self.create_at().unwrap_or(Instant::NEVER);
        let idle = match self.is_empty() {
            true if self.draining.is_ours => self.idle_since.plus(RECONNECT_TIME),
            true if self.settings.is_opener => self.idle_since.plus(IDLE_TIME),
            _ => Instant::NEVER,
        };
        [channels, create, idle, self.alone_until, self.ack_at, self.repeat_at]
            .into_iter()
            .min()
            .unwrap_or(Instant::NEVER)
    }

    /// From when on the next channel may be made; `None`: the session has as many as it should have.
    fn create_at(&self) -> Option<Instant> {
        let (open, pending) = (self.open_channels(), self.paths.pending());
        // The other addresses wait until the peer knows the session.
        let is_alone = !self.is_heard && self.paths.len() > 1;
        let wanted = if is_alone { 1 } else { self.wanted };
        let may_make = self.channels.len() + pending < CHANNELS_MAX;
        match self.settings.is_opener && self.ended.is_none() && may_make {
            true if open + pending < wanted => Some(self.paths.due(!self.is_heard)),
            true if pending == 0 && self.is_heard => self.paths.uneven(|address| self.open_to(address)),
            _ => None,
        }
    }

    /// The address of the peer to which the caller must make a channel now. Then the caller calls [`join`](Self::join) or
    /// [`not_made`](Self::not_made).
    pub(crate) fn poll_create(&mut self, now: Instant) -> Option<IpAddr> {
        self.create_at().filter(|at| *at <= now)?;
        let address = self.paths.next(now, !self.is_heard, |address| self.open_to(address))?;
        self.paths.begin(address);
        Some(address)
    }

    /// True when the peer has sent something in this session, so that it knows the session.
    pub(crate) fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// A channel to that address could not be made, or its handshake failed.
    pub(crate) fn not_made(&mut self, now: Instant, address: IpAddr) {
        self.paths.not_made(now, address);
    }
}
