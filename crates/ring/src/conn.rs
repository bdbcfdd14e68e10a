//! One connection of a ring: its state there, and the calls on it.

use crate::error::Error;
use crate::read::Read;
use crate::ring::Ring;
use crate::table::Kept;
use crate::write::Write;
use endpoint::{Endpoint, options::Name};
use rustix::io::Errno;
use session::connect;
use session::reserved::Internal;
use shm::half_flags::FIN;
use std::net::SocketAddr;

/// A connection as the ring keeps it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: Endpoint,
    pub(crate) token: u64,
    /// Stream position up to which the program knows that bytes have come.
    pub(crate) known: u64,
    /// Stream position up to which a read has shown bytes.
    pub(crate) shown: u64,
    /// What the peer is owed at the next flush.
    pub(crate) owed: u8,
    /// It is in the ring's list of connections that may have events.
    pub(crate) is_due: bool,
    /// `Connected` or `Failed` is yet to be told.
    pub(crate) is_connecting: bool,
    /// A reserve found no room.
    pub(crate) wants_room: bool,
    pub(crate) told_finished: bool,
    pub(crate) told_closed: bool,
    /// The descriptor that it came with ([`Ring::attach`]).
    pub(crate) descriptor: Option<Internal>,
}

impl Connection {
    pub(crate) fn new(link: Endpoint, token: u64) -> Self {
        Self {
            link,
            token,
            known: 0,
            shown: 0,
            owed: 0,
            is_due: false,
            is_connecting: false,
            wants_room: false,
            told_finished: false,
            told_closed: false,
            descriptor: None,
        }
    }
}

// A program may hold very many connections.
const _: () = assert!(size_of::<Connection>() <= 88);

/// What is known of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// The address and port of this end.
    pub local: SocketAddr,
    /// The other end's address.
    pub peer: SocketAddr,
    /// Bytes that have come and are not consumed.
    pub unread: usize,
    /// Bytes committed that the peer, or over a port the peer's TCP, has not taken.
    pub unsent: usize,
    /// The peer is an application of this host, with which this process shares memory.
    pub is_pair: bool,
    /// The connection was accepted, not made by this program.
    pub is_accepted: bool,
}

/// A choice that can be changed at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Setting {
    /// `TCP_NODELAY`: small segments do not wait for acknowledgements.
    NoDelay(bool),
    /// `TCP_QUICKACK`: acknowledgements do not wait for data.
    QuickAck(bool),
    /// `TCP_NOTSENT_LOWAT` in bytes; 0: the system's.
    NotSentLowWater(u32),
    /// `SO_SNDBUF` in bytes as for `setsockopt`: the most bytes that wait to be acknowledged.
    SendBuffer(u32),
}

/// A connection, borrowed from its ring: spans of it live no longer than this.
#[derive(Debug)]
pub struct Conn<'a> {
    pub(crate) ring: &'a mut Ring,
    pub(crate) index: u32,
}

impl<'a> Conn<'a> {
    #[inline]
    pub(crate) fn own(&mut self) -> Result<&mut Connection, Error> {
        self.ring.table.connection(self.index).ok_or(Error::Gone)
    }

    /// The bytes that have come and are not consumed.
    ///
    /// # Errors
    /// [`Error::Ended`] when the connection has ended and every byte before its end is consumed.
    #[inline]
    pub fn read(self) -> Result<Read<'a>, Error> {
        let connection = self.ring.table.connection(self.index).ok_or(Error::Gone)?;
        let link = &connection.link;
        let unread = link.unread_pieces().map_err(Error::Ended)?;
        connection.known = link.read_position() + unread.total as u64;
        connection.shown = connection.known;
        if unread.total == 0 {
            let _ = link.peer_flags();
            if let Some(e) = link.take_error() {
                return Err(Error::Ended(e));
            }
        }
        Ok(Read::new(self.ring, self.index, unread))
    }

    /// The first `n` unread bytes are done with, for a program that has looked at them by an earlier [`read`](Self::read). `false`: there are
    /// not so many, and nothing was done.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Ended`] with ECONNRESET when the peer broke the protocol.
    pub fn consume(mut self, n: usize) -> Result<bool, Error> {
        self.ring.end_view();
        let is_checked = self.ring.is_checked;
        let Connection { link, shown, .. } = self.own()?;
        if is_checked {
            let seen = shown.saturating_sub(link.read_position());
            if n as u64 > seen {
                let what = format!("consume of {n} bytes, of which {seen} were shown by a read");
                return Err(Error::Misuse(what));
            }
        }
        let unread = link.unread_pieces().map_err(Error::Ended)?;
        if n > unread.total {
            return Ok(false);
        }
        let owed = link.consume_in_place(&unread, n);
        self.ring.owe(self.index, owed);
        Ok(true)
    }

    /// Room for at least `least` and at most `most` bytes, to be filled and committed. `None`: there is not so much now; after the next
    /// flush the peer makes some, and [`crate::Kind::Writable`] tells.
    ///
    /// # Errors
    /// [`Error::Ended`] with EPIPE after `finish`, and when the peer reads no more; with the connection's error when it has ended;
    /// [`Error::TooLong`].
    #[inline]
    pub fn reserve(self, least: usize, most: usize) -> Result<Option<Write<'a>>, Error> {
        let connection = self.ring.table.connection(self.index).ok_or(Error::Gone)?;
        let found = connection.link.reserve(least, most).map_err(|e| match e {
            Errno::MSGSIZE => Error::TooLong,
            e => Error::Ended(e),
        })?;
        let Some(room) = found else {
            connection.wants_room = true;
            self.ring.is_starved |= connection.link.lacks_memory();
            return Ok(None);
        };
        Ok(Some(Write::new(self.ring, self.index, room)))
    }

    /// Copies as much of `bytes` as there is room for, and commits it. Returns how many that are; if fewer than all,
    /// [`crate::Kind::Writable`] tells when there is room again.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve)'s.
    pub fn write(mut self, bytes: &[u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let again = Conn { ring: &mut *self.ring, index: self.index };
            let Some(mut write) = again.reserve(1, rest.len())? else { break };
            let n = write.put(rest);
            write.commit(n);
            done += n;
            if done < bytes.len() {
                // A peer that sees no bytes makes no room.
                self.ring.flush();
            }
        }
        let _ = self.own()?;
        Ok(done)
    }

    /// Tells at the next wait what is there once more, as if it had come just now: [`crate::Kind::Readable`] if any byte is unread,
    /// [`crate::Kind::Finished`] if the peer sends no more. For a program that leaves a connection in the middle, to serve others.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn again(mut self) -> Result<(), Error> {
        let connection = self.own()?;
        connection.known = connection.link.read_position();
        connection.told_finished = false;
        self.ring.enqueue(self.index);
        Ok(())
    }

    /// Ends this side's stream behind what was committed. The peer's stream goes on.
    ///
    /// # Errors
    /// [`Error::Ended`] with ENOTCONN when there is no connection any more.
    pub fn finish(mut self) -> Result<(), Error> {
        self.ring.flush();
        self.own()?.link.shutdown(libc::SHUT_WR).map_err(Error::Ended)
    }

    /// Closes the connection as `close(2)` does: what was committed is sent, then the end of the stream; unread bytes mean a reset. The handle
    /// is gone.
    pub fn close(self) {
        self.ring.flush();
        self.ring.close_at(self.index, false);
    }

    /// Resets the connection. The handle is gone.
    pub fn reset(self) {
        self.ring.flush();
        self.ring.close_at(self.index, true);
    }

    /// True when the peer sends no more and every byte is consumed.
    #[must_use]
    pub fn is_finished(&mut self) -> bool {
        self.own().is_ok_and(|connection| {
            let link = &connection.link;
            let is_ended = link.peer_flags() & FIN != 0;
            is_ended && link.arrived() == link.read_position()
        })
    }

    /// The token of the connection's events.
    #[must_use]
    pub fn token(&mut self) -> u64 {
        self.own().map_or(0, |connection| connection.token)
    }

    /// Gives the connection another token.
    pub fn set_token(&mut self, token: u64) {
        if let Ok(connection) = self.own() {
            connection.token = token;
        }
    }

    /// What is known of the connection.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn info(mut self) -> Result<Info, Error> {
        let link = &self.own()?.link;
        let (local, peer) = session::addresses::both(link);
        Ok(Info {
            local,
            peer,
            unread: link.unread(),
            unsent: link.unsent(),
            is_pair: link.mapped.pair,
            is_accepted: link.is_passive(),
        })
    }

    /// Changes a choice, from now on.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn set(mut self, setting: Setting) -> Result<(), Error> {
        let link = &self.own()?.link;
        let (level, name, value) = match setting {
            Setting::NoDelay(on) => (libc::IPPROTO_TCP, libc::TCP_NODELAY, i32::from(on)),
            Setting::QuickAck(on) => (libc::IPPROTO_TCP, libc::TCP_QUICKACK, i32::from(on)),
            Setting::NotSentLowWater(bytes) => (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes.cast_signed()),
            Setting::SendBuffer(bytes) => (libc::SOL_SOCKET, libc::SO_SNDBUF, bytes.cast_signed()),
        };
        if link.obey(Name::new(level, name), value) {
            self.ring.enqueue(self.index);
        }
        Ok(())
    }
}

/// From `linux/tcp.h`; `libc` has it for some targets only.
const TCP_NOTSENT_LOWAT: i32 = 25;

impl Ring {
    /// Closes what lies at `index`.
    pub(crate) fn close_at(&mut self, index: u32, hard: bool) {
        match self.table.remove(index) {
            Kept::Connection(connection) => self.release(connection, hard),
            Kept::Listener(listener) => self.unlisten(index, *listener),
            Kept::Free => {}
        }
    }

    fn release(&mut self, Connection { link, descriptor, .. }: Connection, hard: bool) {
        self.watches.remove(&link.mapped, link.slot());
        if self.service.client.dead.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        link.keep_no_more();
        drop(descriptor);
        connect::let_go(Some(&self.service.client), &link, hard);
    }
}
