//! What a session sends over its channels.

use base::Instant;

use super::{ECONNREFUSED, Late, Session};
use crate::bytes::Room;
use crate::channel::Waiting;
use crate::frame::{Goaway, HEADER_LEN, Header, Kind};
use crate::limits::FRAME_MAX;
use crate::runs::Number;
use crate::sockets::{Socket, Stage, owed};
use crate::streams::Streams;

/// Payload below which a frame is not cut to fit the room: the rest of the room stays empty instead.
const PIECE_MIN: usize = 1_024;

/// The room that a transport lends.
struct Frames<'a, R: ?Sized> {
    room: &'a mut R,
    used: usize,
}

impl<R: Room + ?Sized> Frames<'_, R> {
    fn left(&self) -> usize {
        self.room.size() - self.used
    }

    /// Puts a whole frame. False: it does not fit.
    fn put(&mut self, frame: &[u8]) -> bool {
        let fits = frame.len() <= self.left();
        if fits {
            self.room.put(self.used, frame);
            self.used += frame.len();
        }
        fits
    }

    fn put_bare(&mut self, kind: Kind, socket: u32, argument: u64) -> bool {
        self.put(&Header::bare(kind, socket, argument).encode())
    }

    fn put_credit(&mut self, socket: u32, acked: u64, edge: u64) -> bool {
        let mut frame = [0; HEADER_LEN + 8];
        let header = Header { length: 8, kind: Kind::Credit, socket, argument: acked };
        frame[..HEADER_LEN].copy_from_slice(&header.encode());
        frame[HEADER_LEN..].copy_from_slice(&edge.to_le_bytes());
        self.put(&frame)
    }
}

impl Session {
    /// Fills `room` from its place `from` on with frames for that channel, and returns how many bytes. The channel counts them as sent.
    pub(crate) fn transmit<R: Room + ?Sized>(
        &mut self,
        now: Instant,
        number: Number,
        room: &mut R,
        from: usize,
        streams: &mut impl Streams,
    ) -> usize {
        let Some(at) = self.position(number) else { return 0 };
        let mut room = Frames { room, used: from };
        self.put_own(now, at, &mut room);
        if self.first == Some(number) {
            self.put_session(now, &mut room);
        }
        self.place_chunks(at, room.left());
        self.put_data(at, &mut room, streams);
        let channel = &mut self.channels[at];
        while let Some(last) = channel.last() {
            if !room.put_bare(Kind::Goaway, 0, last as u64) {
                break;
            }
            channel.sent_last(last);
        }
        room.used - from
    }

    /// True when [`transmit`](Self::transmit) would find something for that channel.
    #[must_use]
    pub(crate) fn has_output(&self, number: Number) -> bool {
        let Some(at) = self.position(number) else { return false };
        let is_first = self.first == Some(number);
        let has_control = !self.control.is_empty()
            || self.opens_sent < self.opens.len()
            || !self.late.is_empty()
            || self.congested.owes
            || self.session_frame().is_some();
        self.channels[at].has_output() || (is_first && has_control) || !self.ready.is_empty()
    }

    fn put_own<R: Room + ?Sized>(&mut self, now: Instant, at: usize, room: &mut Frames<'_, R>) {
        let channel = &mut self.channels[at];
        while let Some(own) = channel.own(now) {
            let (kind, argument) = match own {
                crate::channel::Own::Ping(number) => (Kind::Ping, number),
                crate::channel::Own::Pong(number) => (Kind::Pong, number),
            };
            if !room.put_bare(kind, 0, argument) {
                return;
            }
            channel.sent(&own);
        }
    }

    /// Frames of the first channel: answers, OPENs in order, and what sockets owe.
    fn put_session<R: Room + ?Sized>(&mut self, now: Instant, room: &mut Frames<'_, R>) {
        while let Some((id, late)) = self.late.first_key_value() {
            let fits = match *late {
                Late::Finished(end) => room.put_credit(*id, end.saturating_add(1), 0),
                Late::Refused => room.put_bare(Kind::Refused, *id, u64::from(ECONNREFUSED)),
                Late::ResetConfirmed => room.put_bare(Kind::Reset, *id, 0),
            };
            if !fits {
                return;
            }
            self.late.pop_first();
        }
        while let Some(id) = self.opens.get(self.opens_sent).copied() {
            if let Some(place) = self.sockets.find(id) {
                let socket = self.sockets.at(place);
                if !room.put(&socket.open.encode(id, socket.receiving.told_edge())) {
                    return;
                }
            }
            self.opens_sent += 1;
        }
        while let Some(place) = self.control.front().copied() {
            if !put_owed(self.sockets.at(place), room) {
                return;
            }
            self.control.pop_front();
            self.sockets.at(place).queued.control = false;
            if matches!(self.sockets.at(place).stage, Stage::Refusing(_)) {
                self.remove(now, place);
            } else {
                self.close_if_over(place);
            }
        }
        if self.congested.owes {
            if !room.put_bare(Kind::Congested, 0, self.congested.changes) {
                return;
            }
            self.congested.owes = false;
        }
        while let Some(goaway) = self.session_frame() {
            if !room.put_bare(Kind::Goaway, 0, goaway as u64) {
                return;
            }
            match goaway {
                Goaway::Repeat => self.owes_repeat = false,
                Goaway::Session => self.draining.owes_ask = false,
                _ => self.draining.has_answered = true,
            }
        }
    }

    /// The GOAWAY that the session owes its peer.
    pub(super) fn session_frame(&self) -> Option<Goaway> {
        let draining = &self.draining;
        if self.owes_repeat {
            return Some(Goaway::Repeat);
        }
        if draining.owes_ask {
            return Some(Goaway::Session);
        }
        let may_answer = self.sockets.len() == 0 && self.late.is_empty();
        (draining.is_peers && !draining.has_answered && may_answer).then_some(Goaway::SessionAnswer)
    }

    /// Places chunks of sockets in turn, until the channel at `at` has enough for `room` bytes or no more can be placed.
    fn place_chunks(&mut self, at: usize, room: usize) {
        if self.ready.is_empty() || self.channels[at].is_closing() {
            return;
        }
        self.states.clear();
        self.states.extend(self.channels.iter().filter(|c| !c.is_closing()).map(|c| c.state()));
        let most = self.agreed.map_or(FRAME_MAX, |agreed| agreed.largest_frame);
        // Sockets that wait for a channel with room are passed over, each once.
        let mut passed = 0;
        while passed < self.ready.len() && self.channels[at].unsent < room {
            let Some(place) = self.ready.pop_front() else { break };
            let socket = self.sockets.at(place);
            let chunk = socket.sending.next(u64::from(most)).filter(|_| socket.stage == Stage::Live);
            let Some(chunk) = chunk else {
                socket.queued.ready = false;
                continue;
            };
            let state = match chunk.must {
                Some(must) => self.states.iter().position(|s| s.number == must && s.has_room()),
                None => self.scheduler.place(socket.id, &self.states),
            };
            self.ready.push_back(place);
            let Some(state) = state.and_then(|index| self.states.get_mut(index)) else {
                passed += 1;
                continue;
            };
            passed = 0;
            let again = socket.sending.placed.saturating_sub(chunk.start).min(chunk.end - chunk.start);
            self.counters.bytes_again += again;
            socket.sending.place(chunk, state.number);
            let waiting = Waiting { place, id: socket.id, start: chunk.start, end: chunk.end };
            if let Some(channel) = self.channels.iter_mut().find(|c| c.number == state.number) {
                channel.place(waiting, u64::from(most));
                *state = channel.state();
            }
        }
    }

    fn put_data<R: Room + ?Sized>(
        &mut self,
        at: usize,
        room: &mut Frames<'_, R>,
        streams: &mut impl Streams,
    ) {
        let channel = &mut self.channels[at];
        while let Some(chunk) = channel.waiting.front_mut() {
            let socket = self.sockets.at(chunk.place);
            let is_gone = socket.id != chunk.id || socket.stage != Stage::Live;
            // The peer may have the beginning from a channel that died after it delivered.
            let start = if is_gone { chunk.end } else { socket.sending.acked.clamp(chunk.start, chunk.end) };
            channel.unsent -= (start - chunk.start) as usize;
            chunk.start = start;
            let len = (chunk.end - start) as usize;
            if len == 0 {
                channel.waiting.pop_front();
                continue;
            }
            let fits = room.left().saturating_sub(HEADER_LEN).min(len);
            if fits == 0 || (room.used > 0 && fits < len && fits < PIECE_MIN) {
                return;
            }
            let header = Header { length: fits as u32, kind: Kind::Data, socket: chunk.id, argument: start };
            room.room.put(room.used, &header.encode());
            streams.read(socket.tag, start, fits, room.room, room.used + HEADER_LEN);
            room.used += HEADER_LEN + fits;
            chunk.start += fits as u64;
            channel.unsent -= fits;
        }
    }
}

/// Puts what a socket owes. False: it does not fit, and the rest is still owed.
fn put_owed<R: Room + ?Sized>(socket: &mut Socket, room: &mut Frames<'_, R>) -> bool {
    let id = socket.id;
    if socket.owed & owed::OPENED != 0 {
        if !room.put_bare(Kind::Opened, id, socket.receiving.edge) {
            return false;
        }
        socket.receiving.note_edge_told();
        socket.owed &= !owed::OPENED;
    }
    if socket.owed & owed::REFUSED != 0 {
        let Stage::Refusing(errno) = socket.stage else { return true };
        if !room.put_bare(Kind::Refused, id, u64::from(errno)) {
            return false;
        }
        socket.owed &= !owed::REFUSED;
    }
    if socket.owed & owed::RESET != 0 {
        let Stage::Resetting(errno) = socket.stage else { return true };
        if !room.put_bare(Kind::Reset, id, u64::from(errno)) {
            return false;
        }
        socket.owed &= !owed::RESET;
    }
    if socket.owed & owed::CREDIT != 0 {
        let receiving = &mut socket.receiving;
        if !room.put_credit(id, receiving.acked(), receiving.edge) {
            return false;
        }
        receiving.note_told();
        socket.owed &= !owed::CREDIT;
    }
    if socket.owed & owed::FIN != 0 {
        if !room.put_bare(Kind::Fin, id, socket.sending.head) {
            return false;
        }
        socket.owed &= !owed::FIN;
    }
    true
}
