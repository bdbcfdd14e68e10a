//! What a session does with the bytes of its channels.

use base::Instant;

use super::{ECONNREFUSED, ECONNRESET, Ended, Late, Session};
use crate::bytes::Input;
use crate::channel::free;
use crate::deframer::Item;
use crate::frame::{Goaway, Header, Kind, field};
use crate::hello::CONGESTED;
use crate::limits::{ACK_DELAY, LATE_ANSWERS_SLACK};
use crate::open::Open;
use crate::receiving::Tell;
use crate::runs::Number;
use crate::sockets::{End, Stage, news, owed};
use crate::streams::Streams;
use crate::violation::{Refusal, Violation};

/// A socket as a frame names it.
enum Named {
    /// In that place of the table.
    Here(u32),
    /// Opened once, and gone: an honest peer may not know that yet.
    Past,
}

/// What a connection may end with, by Linux's numbers: EACCES, ENETUNREACH, ECONNRESET, ETIMEDOUT, ECONNREFUSED, EHOSTUNREACH. A program
/// must not get others from a hostile peer: EAGAIN, for one, would have it try for ever.
const ERRNOS: [u32; 6] = [13, 101, 104, 110, 111, 113];

/// The errno that a frame's argument names, or `otherwise`.
fn errno_of(argument: u64, otherwise: u32) -> u32 {
    ERRNOS.into_iter().find(|errno| u64::from(*errno) == argument).unwrap_or(otherwise)
}

impl Session {
    /// Takes in the next bytes of a channel, which may end anywhere. A violation ends the session.
    pub(crate) fn received(
        &mut self,
        now: Instant,
        number: Number,
        bytes: Input<'_>,
        streams: &mut impl Streams,
    ) {
        let Some(at) = self.position(number) else { return };
        self.channels[at].heard(now);
        // The de-framer is taken out, because what it finds borrows it.
        let mut deframer = core::mem::take(&mut self.channels[at].deframer);
        let mut input = bytes;
        let result = loop {
            let done = match deframer.next(&mut input) {
                Ok(Some(item)) => self.item(now, number, &item, streams),
                Ok(None) => break Ok(()),
                Err(violation) => Err(violation),
            };
            if done.is_err() || self.ended.is_some() {
                break done;
            }
        };
        if let Err(violation) = result {
            self.end(now, Ended::Violation(violation));
        }
        if let Some(at) = self.position(number) {
            self.channels[at].deframer = deframer;
            if self.channels[at].is_closed() {
                self.lose(now, number);
            }
        }
    }

    fn item(
        &mut self,
        now: Instant,
        number: Number,
        item: &Item<'_>,
        streams: &mut impl Streams,
    ) -> Result<(), Violation> {
        self.is_heard = true;
        match item {
            Item::Data { header, before, bytes } => self.data(now, header, *before, *bytes, streams),
            Item::Control { header, body } => self.control_frame(now, number, header, body),
        }
    }

    fn control_frame(
        &mut self,
        now: Instant,
        number: Number,
        header: &Header,
        body: &[u8],
    ) -> Result<(), Violation> {
        match header.kind {
            Kind::Hello | Kind::Data => Err(Violation::Unexpected(header.kind)),
            Kind::Ping | Kind::Pong | Kind::Goaway | Kind::Congested if header.socket != 0 => {
                Err(Violation::UnknownSocket(header.socket))
            }
            Kind::Congested => self.on_congested(header),
            Kind::Goaway => self.on_goaway(now, number, header),
            Kind::Ping | Kind::Pong => self.of_channel(now, number, header),
            Kind::Refused if header.socket == 0 => {
                self.end(now, Ended::Refused(Refusal::of(header.argument)));
                Ok(())
            }
            Kind::Open => self.on_open(header, body),
            Kind::Opened => self.on_opened(header),
            Kind::Refused => self.on_refused(now, header),
            Kind::Fin => self.on_fin(header),
            Kind::Reset => self.on_reset(now, header),
            Kind::Credit => self.on_credit(header, u64::from_le_bytes(field(body, 0))),
        }
    }

    fn on_goaway(&mut self, now: Instant, number: Number, header: &Header) -> Result<(), Violation> {
        match Goaway::parse(header.argument) {
            Some(Goaway::Channel | Goaway::ChannelAnswer) => return self.of_channel(now, number, header),
            Some(Goaway::Session) => {
                (self.draining.is_peers, self.draining.has_answered) = (true, false);
            }
            Some(Goaway::Repeat) => self.repeat_at = self.repeat_at.min(now.max(self.repeat_from)),
            Some(Goaway::SessionAnswer) if self.draining.is_ours => self.draining.was_answered = true,
            Some(Goaway::SessionAnswer) | None => return Err(Violation::Unexpected(Kind::Goaway)),
        }
        Ok(())
    }

    fn on_congested(&mut self, header: &Header) -> Result<(), Violation> {
        if self.agreed.is_none_or(|agreed| agreed.features & CONGESTED == 0) {
            return Err(Violation::Type(Kind::Congested as u8));
        }
        if !self.settings.is_opener {
            return Err(Violation::Unexpected(Kind::Congested));
        }
        // One on a channel that dies may come after a later one on another channel.
        self.congested.changes = self.congested.changes.max(header.argument);
        Ok(())
    }

    fn of_channel(&mut self, now: Instant, number: Number, header: &Header) -> Result<(), Violation> {
        let Some(at) = self.position(number) else { return Ok(()) };
        self.channels[at].control(header)?;
        self.elect(now);
        Ok(())
    }

    fn is_own(&self, id: u32) -> bool {
        (id % 2 == 1) == self.settings.is_opener
    }

    fn named(&mut self, id: u32) -> Result<Named, Violation> {
        let next = if self.is_own(id) { self.own_next } else { self.peer_next };
        if id == 0 || id >= next {
            return Err(Violation::UnknownSocket(id));
        }
        Ok(match self.in_stage(id, |stage| stage != Stage::Gone) {
            Some(place) => Named::Here(place),
            None => Named::Past,
        })
    }

    /// An answer about a socket that is gone. Of each socket only the one that says most counts.
    fn answer_late(&mut self, id: u32, late: Late) -> Result<(), Violation> {
        let known = self.late.entry(id).or_insert(late);
        *known = (*known).max(late);
        let most = 2 * self.settings.sockets_max as usize + LATE_ANSWERS_SLACK;
        if self.late.len() > most { Err(Violation::Flood) } else { Ok(()) }
    }

    /// An OPEN of ours has its answer. False: it has had one before.
    fn take_open(&mut self, id: u32) -> bool {
        let Ok(at) = self.opens.binary_search(&id) else { return false };
        self.opens.remove(at);
        self.opens_sent -= usize::from(at < self.opens_sent);
        true
    }

    /// A frame of a live socket has come for one of ours that waits for OPENED: the peer has accepted it.
    fn confirm_open(&mut self, place: u32) {
        let socket = self.sockets.at(place);
        let is_reset = matches!(socket.stage, Stage::Resetting(_));
        if socket.stage != Stage::Opening && !is_reset {
            return;
        }
        let id = socket.id;
        if !self.take_open(id) {
            return;
        }
        if is_reset {
            self.owe(place, owed::RESET);
            return;
        }
        let socket = self.sockets.at(place);
        socket.stage = Stage::Live;
        let is_finished = socket.sending.is_finished;
        let is_widened = socket.receiving.tell() == Tell::Now;
        self.tell(place, news::OPENED);
        self.owe(place, if is_finished { owed::FIN } else { 0 });
        self.owe(place, if is_widened { owed::CREDIT } else { 0 });
        self.look(place);
    }

    /// False: the socket is being reset, and the peer does not know that yet.
    fn is_live(&mut self, place: u32, kind: Kind) -> Result<bool, Violation> {
        match self.sockets.at(place).stage {
            Stage::Live => Ok(true),
            Stage::Resetting(_) => Ok(false),
            _ => Err(Violation::Unexpected(kind)),
        }
    }

    fn on_open(&mut self, header: &Header, body: &[u8]) -> Result<(), Violation> {
        let open = Open::parse(body)?;
        let id = header.socket;
        if self.is_own(id) || id == 0 || id > self.peer_next {
            return Err(Violation::OpenOrder { expected: self.peer_next, found: id });
        }
        if header.argument > crate::limits::WINDOW_MAX {
            return Err(Violation::Window(header.argument));
        }
        if id < self.peer_next {
            // It goes again because the answer may be lost.
            return match self.named(id)? {
                Named::Past => self.answer_late(id, Late::Refused),
                Named::Here(place) => {
                    if self.sockets.at(place).stage == Stage::Live {
                        self.owe(place, owed::OPENED);
                    }
                    Ok(())
                }
            };
        }
        self.peer_next = id.checked_add(2).ok_or(Violation::UnknownSocket(id))?;
        let is_full = self.sockets.len() >= self.settings.sockets_max as usize;
        if is_full || self.draining.is_ours {
            return self.answer_late(id, Late::Refused);
        }
        let place = self.sockets.add(id, Stage::Arrived, open, 0);
        self.sockets.at(place).sending.edge = header.argument;
        self.tell(place, news::INCOMING);
        Ok(())
    }

    fn on_opened(&mut self, header: &Header) -> Result<(), Violation> {
        if !self.is_own(header.socket) {
            return Err(Violation::Unexpected(Kind::Opened));
        }
        let Named::Here(place) = self.named(header.socket)? else { return Ok(()) };
        self.confirm_open(place);
        self.sockets.at(place).sending.widen(header.argument)?;
        self.look(place);
        Ok(())
    }

    fn on_refused(&mut self, now: Instant, header: &Header) -> Result<(), Violation> {
        if !self.is_own(header.socket) {
            return Err(Violation::Unexpected(Kind::Refused));
        }
        let Named::Here(place) = self.named(header.socket)? else { return Ok(()) };
        // A socket that the peer has accepted is not refused: this answers an OPEN that went twice.
        if !self.take_open(header.socket) {
            return Ok(());
        }
        let errno = errno_of(header.argument, ECONNREFUSED);
        self.drop_socket(now, place, End::Refused(errno));
        Ok(())
    }

    /// The peer has ended the socket.
    fn drop_socket(&mut self, now: Instant, place: u32, end: End) {
        let socket = self.sockets.at(place);
        let is_untold = socket.stage == Stage::Arrived && socket.news & news::INCOMING != 0;
        let is_reset = matches!(socket.stage, Stage::Resetting(_) | Stage::Refusing(_));
        if is_untold || is_reset {
            // The caller does not know the socket, or no more: poll_event finds a socket without news and without an end.
            socket.news = 0;
            self.remove(now, place);
        } else {
            self.over(place, end);
        }
    }

    fn on_fin(&mut self, header: &Header) -> Result<(), Violation> {
        let place = match self.named(header.socket)? {
            Named::Past => return self.answer_late(header.socket, Late::Finished(header.argument)),
            Named::Here(place) => place,
        };
        self.confirm_open(place);
        if !self.is_live(place, Kind::Fin)? {
            return Ok(());
        }
        let socket = self.sockets.at(place);
        socket.receiving.finish(header.socket, header.argument)?;
        // It goes again if the confirmation was lost.
        self.owe(place, owed::CREDIT);
        self.tell_end(place);
        Ok(())
    }

    /// Tells the caller once that the peer's stream is over.
    fn tell_end(&mut self, place: u32) {
        let socket = self.sockets.at(place);
        if socket.receiving.is_over() && !socket.is_end_told {
            socket.is_end_told = true;
            self.tell(place, news::FINISHED);
        }
    }

    fn on_reset(&mut self, now: Instant, header: &Header) -> Result<(), Violation> {
        let place = match self.named(header.socket)? {
            Named::Past if header.argument == 0 => return Ok(()),
            Named::Past => return self.answer_late(header.socket, Late::ResetConfirmed),
            Named::Here(place) => place,
        };
        if header.argument == 0 {
            if matches!(self.sockets.at(place).stage, Stage::Resetting(_)) {
                self.remove(now, place);
            }
            return Ok(());
        }
        self.take_open(header.socket);
        let errno = errno_of(header.argument, ECONNRESET);
        self.drop_socket(now, place, End::Reset(errno));
        self.answer_late(header.socket, Late::ResetConfirmed)
    }

    fn on_credit(&mut self, header: &Header, edge: u64) -> Result<(), Violation> {
        let Named::Here(place) = self.named(header.socket)? else { return Ok(()) };
        self.confirm_open(place);
        if !self.is_live(place, Kind::Credit)? {
            return Ok(());
        }
        let socket = self.sockets.at(place);
        let channels = &mut self.channels;
        let freed = |on, bytes| free(channels, on, bytes);
        let progress = socket.sending.confirm(header.socket, header.argument, edge, freed)?;
        if progress.is_acked {
            self.tell(place, news::ACKED);
        }
        if progress.is_widened {
            self.look(place);
        }
        self.close_if_over(place);
        Ok(())
    }

    fn data(
        &mut self,
        now: Instant,
        header: &Header,
        before: u32,
        mut bytes: Input<'_>,
        streams: &mut impl Streams,
    ) -> Result<(), Violation> {
        if header.length > self.settings.largest_frame {
            return Err(Violation::Length { kind: Kind::Data, length: header.length });
        }
        let Named::Here(place) = self.named(header.socket)? else { return Ok(()) };
        self.confirm_open(place);
        if !self.is_live(place, Kind::Data)? {
            return Ok(());
        }
        let socket = self.sockets.at(place);
        let arrival = socket.receiving.arrive(header, before, bytes.len())?;
        if arrival.skip < bytes.len() {
            let position = header.argument + u64::from(before) + arrival.skip as u64;
            bytes.take(arrival.skip);
            streams.write(socket.tag, position, bytes);
        }
        self.counters.bytes_twice += arrival.skip as u64;
        // Bytes come twice when the peer does not know of them.
        let tell = if arrival.skip > 0 { Tell::Now } else { socket.receiving.tell() };
        if arrival.is_readable {
            self.tell(place, news::READABLE);
            self.tell_end(place);
        }
        self.confirm(now, place, tell);
        Ok(())
    }

    /// Has the peer told of what has come, at once or in a while.
    fn confirm(&mut self, now: Instant, place: u32, tell: Tell) {
        match tell {
            Tell::Nothing => {}
            Tell::Now => self.owe(place, owed::CREDIT),
            Tell::Soon => {
                let queued = &mut self.sockets.at(place).queued;
                if !queued.acks {
                    queued.acks = true;
                    self.acks.push(place);
                    self.ack_at = self.ack_at.min(now.plus(ACK_DELAY));
                }
            }
        }
    }
}
