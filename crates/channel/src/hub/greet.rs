//! What a hub decides in handshakes: which channel may begin a session or join one, and which sessions a peer's restart ends.

use core::net::IpAddr;

use base::Instant;

use super::{Hub, Place, SessionId, Wanted};
use crate::bytes::Input;
use crate::channel::Greeted;
use crate::greeting::{Greeting, Heard};
use crate::hello::{Agreed, Hello};
use crate::limits::SESSIONS_OF_PEER;
use crate::session::Ended;
use crate::transport::ChannelId;
use crate::violation::{Refusal, Rejection, Violation};

impl Hub {
    /// Takes the frames of a handshake from the beginning of `input`; leaves what belongs to the session.
    pub(super) fn greet(&mut self, now: Instant, channel: ChannelId, input: &mut Input<'_>) {
        while let Some(greeting) = self.greetings.get_mut(&channel) {
            match greeting.next(input) {
                Ok(Some(heard)) => self.heard(now, channel, heard),
                Ok(None) => return,
                Err(violation) => return self.reject(now, channel, violation),
            }
        }
    }

    fn heard(&mut self, now: Instant, channel: ChannelId, heard: Heard) {
        match heard {
            Heard::Ask(ask) => match self.judge(now, channel, &ask) {
                Ok(()) => self.answer(channel, ask),
                Err(why) => self.refuse(channel, why),
            },
            Heard::Answered(agreed) => self.answered(now, channel, &agreed),
            Heard::Confirmed { ask, agreed } => self.confirmed(now, channel, &ask, agreed),
            Heard::Refused(why) => self.refused(now, channel, why),
            Heard::MustRefuse(why) => {
                let greeting = self.greetings.get(&channel);
                if let Some((id, peer)) =
                    greeting.and_then(|greeting| Some((greeting.session?, greeting.peer)))
                {
                    self.end_opening(now, id, peer, Ended::Refused(why));
                }
                self.refuse(channel, why);
            }
        }
    }

    /// Whether this HELLO may begin or join its session.
    fn judge(&self, now: Instant, channel: ChannelId, ask: &Hello) -> Result<(), Refusal> {
        ask.agree(&self.hello(ask.class))?;
        let Some(entry) = self.sessions.get(&ask.session) else {
            let peer = self.greetings.get(&channel).map(|greeting| greeting.peer);
            let begun = |entry: &&super::Entry| entry.lane.is_none() && Some(entry.peer) == peer;
            let of_peer = self.sessions.values().filter(begun).count();
            let is_full = self.sessions.len() >= self.config.sessions_max || of_peer >= SESSIONS_OF_PEER;
            return match ask.is_join {
                true => Err(Refusal::UnknownSession),
                false if self.is_shut => Err(Refusal::ShuttingDown),
                false if is_full => Err(Refusal::Full),
                false if self.has_newer(peer, ask.epoch) => Err(Refusal::OldEpoch),
                false => Ok(()),
            };
        };
        let is_same = entry.session.agreed().is_some_and(|agreed| agreed.epoch == ask.epoch);
        let may_join = entry.lane.is_none() && entry.session.ended().is_none() && entry.class == ask.class;
        if !(is_same && may_join) {
            return Err(Refusal::UnknownSession);
        }
        if entry.session.may_join(now) { Ok(()) } else { Err(Refusal::Full) }
    }

    /// True when a session with that address belongs to a service that started later than `epoch`.
    fn has_newer(&self, peer: Option<IpAddr>, epoch: u64) -> bool {
        let mut same = self.sessions.values().filter(|entry| Some(entry.peer) == peer);
        same.any(|entry| {
            let agreed = entry.session.agreed();
            entry.session.ended().is_none() && agreed.is_some_and(|agreed| agreed.epoch > epoch)
        })
    }

    fn answer(&mut self, channel: ChannelId, ask: Hello) {
        let key = self.secret.of_session(ask.session);
        let nonce = self.random();
        let answer = Hello { is_join: ask.is_join, session: ask.session, nonce, ..self.hello(ask.class) };
        if let Some(greeting) = self.greetings.get_mut(&channel) {
            self.entrance.has_asked(channel, greeting.peer);
            greeting.answer(ask, answer, key);
        }
    }

    /// This side refuses a channel.
    fn refuse(&mut self, channel: ChannelId, why: Refusal) {
        let Some(greeting) = self.greetings.get_mut(&channel) else { return };
        greeting.session = None;
        greeting.refuse(why);
        let peer = greeting.peer;
        self.note_rejected(peer, Rejection::Refused(why));
    }

    /// The opener's side: the peer has proved itself.
    fn answered(&mut self, now: Instant, channel: ChannelId, agreed: &Agreed) {
        let Some(greeting) = self.greetings.get(&channel) else { return };
        let (peer, session) = (greeting.peer, greeting.session.unwrap_or_default());
        let known = self.sessions.get(&session).and_then(|entry| entry.session.agreed());
        if known.is_some_and(|known| known.epoch != agreed.epoch) {
            self.stranger(now, session, peer);
            return self.refuse(channel, Refusal::UnknownSession);
        }
        if self.has_newer(Some(peer), agreed.epoch) {
            self.end_opening(now, session, peer, Ended::Refused(Refusal::OldEpoch));
            return self.refuse(channel, Refusal::OldEpoch);
        }
        self.end_older(now, peer, agreed.epoch);
    }

    /// The acceptor's side: the peer has proved itself.
    fn confirmed(&mut self, now: Instant, channel: ChannelId, ask: &Hello, agreed: Agreed) {
        // Time has passed since the ask: all is judged anew.
        if let Err(why) = self.judge(now, channel, ask) {
            return self.refuse(channel, why);
        }
        let Some(greeting) = self.greetings.get(&channel) else { return };
        let peer = greeting.peer;
        if !self.sessions.contains_key(&ask.session) {
            self.end_older(now, peer, agreed.epoch);
            self.add(now, ask.session, peer, ask.class, None);
        }
        self.attach(now, channel, ask.session, agreed);
    }

    /// The opener's side: the confirmation is sent.
    pub(super) fn joined(&mut self, now: Instant, channel: ChannelId, agreed: Agreed) {
        if let Some(id) = self.greetings.get(&channel).and_then(|greeting| greeting.session) {
            self.attach(now, channel, id, agreed);
        }
    }

    fn attach(&mut self, now: Instant, channel: ChannelId, id: u128, agreed: Agreed) {
        let Some(greeting) = self.end_greeting(channel) else { return };
        self.entrance.know(greeting.peer);
        match self.sessions.get_mut(&id).filter(|entry| entry.session.ended().is_none()) {
            Some(entry) => {
                let Greeting { peer: address, deframer, .. } = greeting;
                let number = entry.session.join(now, Greeted { id: channel, address, deframer }, agreed);
                self.places.insert(channel, Place { session: id, number });
                self.touch(id);
            }
            None => {
                self.note_rejected(greeting.peer, Rejection::SessionOver);
                self.doomed.push_back(channel);
            }
        }
    }

    /// Sessions with that peer from before its restart are over.
    fn end_older(&mut self, now: Instant, peer: IpAddr, epoch: u64) {
        let is_older = |entry: &super::Entry| {
            entry.peer == peer && entry.session.agreed().is_some_and(|agreed| agreed.epoch < epoch)
        };
        let older = self.sessions.iter().filter(|(_, entry)| is_older(entry)).map(|(id, _)| *id);
        older.collect::<Vec<_>>().into_iter().for_each(|id| self.end(now, id, Ended::Restarted));
    }

    fn end(&mut self, now: Instant, id: u128, why: Ended) {
        if let Some(entry) = self.sessions.get_mut(&id) {
            entry.session.end(now, why);
        }
        self.settle(id);
    }

    /// The service at that address does not know the session. At the session's own address its peer has restarted; at another one there may be
    /// another host.
    fn stranger(&mut self, now: Instant, id: u128, address: IpAddr) {
        if self.sessions.get(&id).is_some_and(|entry| entry.peer == address) {
            self.end(now, id, Ended::Restarted);
        } else {
            self.not_created(now, Wanted { session: SessionId(id), address });
        }
    }

    /// Ends a session that has no channel yet; of one that has had some, the attempt to get another has failed.
    fn end_opening(&mut self, now: Instant, id: u128, address: IpAddr, why: Ended) {
        let Some(entry) = self.sessions.get_mut(&id) else { return };
        if entry.session.agreed().is_none() {
            self.end(now, id, why);
        } else {
            entry.session.not_made(now, address);
            self.settle(id);
        }
    }

    /// The peer refuses a channel.
    fn refused(&mut self, now: Instant, channel: ChannelId, why: Refusal) {
        let Some(greeting) = self.end_greeting(channel) else { return };
        match greeting.session {
            Some(id) if greeting.is_join && why == Refusal::UnknownSession => {
                self.stranger(now, id, greeting.peer);
            }
            Some(id) => self.end_opening(now, id, greeting.peer, Ended::Refused(why)),
            None => {}
        }
        self.note_rejected(greeting.peer, Rejection::ByPeer(why));
        self.end_unproved(channel, &greeting);
    }

    /// The peer broke the rules in its handshake.
    fn reject(&mut self, now: Instant, channel: ChannelId, violation: Violation) {
        let Some(greeting) = self.end_greeting(channel) else { return };
        if let Some(id) = greeting.session {
            self.end_opening(now, id, greeting.peer, Ended::Violation(violation));
        }
        self.note_rejected(greeting.peer, Rejection::Violation(violation));
        self.end_unproved(channel, &greeting);
    }

    /// The channel is gone, or its handshake took too long.
    pub(super) fn give_up(&mut self, now: Instant, channel: ChannelId) {
        let Some(greeting) = self.end_greeting(channel) else { return };
        // A channel that was refused is counted already. One that could not be connected has had no handshake.
        if greeting.has_begun() && !greeting.is_refused() {
            self.note_rejected(greeting.peer, Rejection::GivenUp);
        }
        if let Some(id) = greeting.session {
            self.not_created(now, Wanted { session: SessionId(id), address: greeting.peer });
        }
        self.end_unproved(channel, &greeting);
    }

    /// A channel that has come in has lost its place to a later one.
    pub(super) fn turn_out(&mut self, channel: ChannelId) {
        let Some(greeting) = self.end_greeting(channel) else { return };
        if !greeting.is_refused() {
            self.note_rejected(greeting.peer, Rejection::Crowd);
        }
        self.end_unproved(channel, &greeting);
    }

    /// The handshake of a channel is over, with whatever result.
    fn end_greeting(&mut self, channel: ChannelId) -> Option<Greeting> {
        let greeting = self.greetings.remove(&channel)?;
        self.entrance.leave(channel, greeting.peer);
        Some(greeting)
    }

    /// Ends a channel without proof. One that has come in is aborted: a peer that neither reads nor closes must not keep its connection.
    fn end_unproved(&mut self, channel: ChannelId, greeting: &Greeting) {
        let queue = if greeting.is_incoming { &mut self.aborted } else { &mut self.doomed };
        queue.push_back(channel);
    }
}
