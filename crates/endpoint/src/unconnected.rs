//! A connection, or the attempt to make one, that the program has taken back: the socket is unconnected again. The block stays, for the
//! pending error; the slot may belong to another connection.

use crate::lock::own;
use crate::stream::{Progress, ready};
use crate::{Endpoint, state};
use queue::stream::raise;
use rustix::io::Errno;
use shm::MOVED;
use shm::half_flags::{READ_CLOSED, RELEASED, RESET};
use std::mem;
use std::sync::atomic::Ordering;

impl Endpoint {
    /// True when the program gave the connection up: the socket is unconnected, and the slot not its own.
    #[inline]
    pub fn is_unconnected(&self) -> bool {
        self.state() & state::UNCONNECTED != 0
    }

    /// The readiness of a socket that is unconnected again.
    pub fn unconnected_readiness(&self) -> u32 {
        let error = if self.block().error.load(Ordering::Relaxed) != 0 { ready::ERR } else { 0 };
        let is_shut = self.state() & state::SHUT_RD != 0;
        let end = if is_shut { ready::IN | ready::RDNORM | ready::RDHUP } else { 0 };
        error | end | ready::OUT | ready::WRNORM | ready::HUP
    }

    /// Remembers a `shutdown` of such a socket; the call fails.
    pub fn note_shut(&self, read: bool, write: bool) {
        let bit = |is: bool, bit| if is { bit } else { 0 };
        self.note(bit(read, state::SHUT_RD) | bit(write, state::SHUT_WR));
    }

    /// The error of a send that could not take its lock for `why`: an unconnected socket's pending error, then EPIPE.
    #[cold]
    pub fn unsendable(&self, why: Errno) -> Errno {
        match why {
            Errno::NOTCONN if self.is_unconnected() => self.take_error().unwrap_or(Errno::PIPE),
            _ => why,
        }
    }

    /// The same for a receive: the pending error, then ENOTCONN, or the end of the stream when it was shut.
    #[cold]
    pub fn unreadable(&self, why: Errno) -> Result<Progress, Errno> {
        match why {
            Errno::NOTCONN if self.is_unconnected() => match self.take_error() {
                Some(e) => Err(e),
                None if self.state() & state::SHUT_RD != 0 => Ok(Progress::Done(0)),
                None => Err(why),
            },
            _ => Err(why),
        }
    }

    /// Resets the connection and lets go of its slot. As on Linux, `ECONNRESET` is pending afterwards, unless it was over before.
    ///
    /// # Errors
    /// EAGAIN when a signal handler has interrupted a call on the same socket; ENOTCONN when the connection is another process's.
    pub fn give_up(&self) -> Result<(), Errno> {
        let b = self.block();
        let locks = (own(&b.tx_lock, &self.mapped)?, own(&b.rx_lock, &self.mapped)?);
        let _ = self.peer_flags();
        if !(self.is_over() || self.is_closed()) {
            b.error.store(libc::ECONNRESET as u32, Ordering::Release);
        }
        self.forget(state::SHUT_RD | state::SHUT_WR);
        self.note(state::OVER | state::UNCONNECTED);
        // From here on, if this process dies, the service closes no slot for it.
        b.region.store(0, Ordering::Release);
        raise(self.halves().0, RESET | READ_CLOSED | RELEASED);
        self.tell();
        self.part_with_rings();
        // From here on the slot may be another connection's: MOVED keeps every thread from taking these locks.
        mem::forget(locks);
        b.tx_lock.store(MOVED, Ordering::Release);
        b.rx_lock.store(MOVED, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::tests::{ends, send, take};

    #[test]
    fn a_connection_that_is_given_up_is_reset_and_its_slot_left_alone() {
        let (a, b) = ends(5);
        send(&a, b"unread").unwrap();
        a.give_up().unwrap();
        assert_eq!(take(&b, 9).unwrap(), b"unread");
        assert_eq!(take(&b, 9), Err(Some(Errno::CONNRESET)));
        let ready = ready::OUT | ready::WRNORM | ready::HUP;
        assert_eq!(a.stream_readiness(), ready | ready::ERR);
        assert_eq!((take(&a, 9), take(&a, 9)), (Err(Some(Errno::CONNRESET)), Err(Some(Errno::NOTCONN))));
        assert_eq!((send(&a, b"x"), a.stream_readiness()), (Err(Errno::PIPE), ready));
        assert_eq!((a.shut(true, true), a.give_up()), (Err(Errno::NOTCONN), Err(Errno::NOTCONN)));
        assert_eq!((take(&a, 9), a.stream_readiness() & ready::RDHUP), (Ok(Vec::new()), ready::RDHUP));
        // The slot is another connection's, which must hear nothing of this socket's end.
        let own = a.halves().0;
        own.clear();
        a.release(1, true);
        assert_eq!(own.flags.load(Ordering::Relaxed), 0);
        assert_eq!(a.block().holders.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_was_over_before_leaves_no_error_behind() {
        let (a, b) = ends(5);
        a.shut(false, true).unwrap();
        b.shut(false, true).unwrap();
        a.give_up().unwrap();
        assert_eq!(take(&a, 9), Err(Some(Errno::NOTCONN)));
        let (a, b) = ends(5);
        b.raise(RESET);
        assert_ne!(a.stream_readiness() & ready::ERR, 0);
        a.give_up().unwrap();
        assert_eq!((send(&a, b"x"), send(&a, b"x")), (Err(Errno::CONNRESET), Err(Errno::PIPE)));
    }
}
