//! What a session tells its caller.

use base::Instant;

use super::Session;
use crate::open::Open;
use crate::sockets::{End, Socket, news};
use crate::violation::{Refusal, Violation};

/// Why a session is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The peer broke the rules.
    Violation(Violation),
    /// The peer refused the session.
    Refused(Refusal),
    /// No channel could be made for [`RECONNECT_TIME`](crate::limits::RECONNECT_TIME).
    Unreachable,
    /// The peer does not know the session any more: its service has started anew, or has ended the session for a reason of its own.
    Restarted,
    /// All sockets were closed, and one side wanted to end the session.
    Drained,
}

impl core::fmt::Display for Ended {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Violation(violation) => write!(f, "the peer broke the rules: {violation}"),
            Self::Refused(refusal) => write!(f, "refused: {refusal}"),
            Self::Unreachable => f.write_str("no channel could be made for 10 s"),
            Self::Restarted => f.write_str("the peer's service has started anew, or has ended the session"),
            Self::Drained => f.write_str("it had no sockets any more"),
        }
    }
}

/// Why a virtual socket cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The session is over, or one side lets it end: use another session.
    Ending,
    /// One side has as many virtual sockets as it may have.
    Full,
    /// The identifiers of the session are used up: use another session.
    Exhausted,
}

/// News of a virtual socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The identifier in the session.
    pub socket: u32,
    /// The caller's name of the socket; 0 before [`Session::accept`].
    pub tag: u64,
    /// What has happened to the socket.
    pub news: News,
}

/// What has happened to a virtual socket. Positions count bytes from the beginning of the stream; one event may stand for several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// The peer opens a socket: [`accept`](super::Session::accept) or [`refuse`](Session::refuse) it.
    Incoming(Open),
    /// The peer has accepted the socket.
    Opened,
    /// All bytes before this position may be read.
    Readable(u64),
    /// The peer's socket has all bytes before this position: their memory is free.
    Acked(u64),
    /// The peer's stream ends at this position, and all of it may be read.
    Finished(u64),
    /// The peer has not accepted the socket, for this errno. The socket is gone.
    Refused(u32),
    /// The socket is gone, for this errno.
    Reset(u32),
    /// Both directions are over and confirmed. The socket is gone.
    Closed,
}

impl Session {
    /// The next event of a virtual socket.
    pub(crate) fn poll_event(&mut self, now: Instant) -> Option<Event> {
        while let Some(place) = self.news.front().copied() {
            let socket = self.sockets.at(place);
            let (id, tag) = (socket.id, socket.tag);
            if let Some(news) = take_news(socket) {
                return Some(Event { socket: id, tag, news });
            }
            self.news.pop_front();
            socket.queued.news = false;
            let news = match socket.end {
                None => continue,
                Some(End::Refused(errno)) => News::Refused(errno),
                Some(End::Reset(errno)) => News::Reset(errno),
                Some(End::Closed) => News::Closed,
            };
            self.remove(now, place);
            return Some(Event { socket: id, tag, news });
        }
        None
    }
}

/// The next of a socket's news, in the order of a socket's life.
fn take_news(socket: &mut Socket) -> Option<News> {
    let bit = socket.news & socket.news.wrapping_neg();
    socket.news &= !bit;
    match bit {
        news::INCOMING => Some(News::Incoming(socket.open)),
        news::OPENED => Some(News::Opened),
        news::READABLE => Some(News::Readable(socket.receiving.next)),
        news::ACKED => Some(News::Acked(socket.sending.acked)),
        news::FINISHED => Some(News::Finished(socket.receiving.next)),
        _ => None,
    }
}
