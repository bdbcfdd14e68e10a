//! Sockets that are unconnected again: the program took back a connection (`connect` to `AF_UNSPEC`) or an attempt to make one (`shutdown`
//! while connecting). What lies in shared memory is let go of at once; only the block stays, for the pending error. A later `connect`,
//! `listen` or `bind` uses a new socket behind the same descriptors.

use crate::endpoint::stream::{Progress, ready};
use crate::endpoint::{Link, own, state};
use crate::file::SOCKS;
use crate::socket::Sock;
use crate::socket::{options, pending_sockopts, placeholder};
use crate::sys::address;
use crate::{file, session, sys};
use control::Request;
use queue::stream::raise;
use rustix::fd::RawFd;
use rustix::io::Errno;
use shm::MOVED;
use shm::half_flags::{READ_CLOSED, RELEASED, RESET};
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Link {
    /// True when the program gave the connection up: the socket is unconnected, and the slot not its own.
    #[inline]
    pub fn is_unconnected(&self) -> bool {
        self.state() & state::UNCONNECTED != 0
    }

    /// The readiness of a socket that is unconnected again.
    pub(crate) fn unconnected_readiness(&self) -> u32 {
        let error = if self.block().error.load(Ordering::Relaxed) != 0 { ready::ERR } else { 0 };
        let is_shut = self.state() & state::SHUT_RD != 0;
        let end = if is_shut { ready::IN | ready::RDNORM | ready::RDHUP } else { 0 };
        error | end | ready::OUT | ready::WRNORM | ready::HUP
    }

    /// Remembers a `shutdown` of such a socket; the call fails.
    pub(crate) fn note_shut(&self, read: bool, write: bool) {
        let bit = |is: bool, bit| if is { bit } else { 0 };
        self.note(bit(read, state::SHUT_RD) | bit(write, state::SHUT_WR));
    }

    /// The error of a send that could not take its lock for `why`: an unconnected socket's pending error, then EPIPE.
    #[cold]
    pub(crate) fn unsendable(&self, why: Errno) -> Errno {
        match why {
            Errno::NOTCONN if self.is_unconnected() => self.take_error().unwrap_or(Errno::PIPE),
            _ => why,
        }
    }

    /// The same for a receive: the pending error, then ENOTCONN, or the end of the stream when it was shut.
    #[cold]
    pub(crate) fn unreadable(&self, why: Errno) -> Result<Progress, Errno> {
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
        let locks = (own(&b.tx_lock)?, own(&b.rx_lock)?);
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
        self.announce();
        self.part_with_rings();
        // From here on the slot may be another connection's: MOVED keeps every thread from taking these locks.
        mem::forget(locks);
        b.tx_lock.store(MOVED, Ordering::Release);
        b.rx_lock.store(MOVED, Ordering::Release);
        Ok(())
    }
}

/// Takes a connection, or the attempt to make one, back.
///
/// # Errors
/// As [`Link::give_up`].
pub fn give_up(sock: &Sock, link: &Link) -> Result<(), Errno> {
    link.give_up()?;
    let is_bound = link.is_passive() && !sock.settings().is_some_and(|settings| settings.is_anywhere);
    if !is_bound {
        forget_address(link, sock.family());
    }
    if !link.mapped.pair
        && let Some(client) = session::present()
    {
        client.say(Request::Closed { region: link.mapped.id, slot: link.slot() });
    }
    sock.pass_on();
    Ok(())
}

/// As on Linux, a local address that the program has not bound becomes the wildcard; its port stays.
fn forget_address(link: &Link, family: i32) {
    let any: IpAddr =
        if family == libc::AF_INET6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let (mut local, peer) = crate::connect::addresses(link);
    local.set_ip(any);
    crate::connect::store_addresses(link, local, peer, family);
}

/// The socket behind `fd`. Replaces one that is unconnected again by a new one, with the same options, bound as the program has bound the
/// old one.
pub fn begin_anew(fd: RawFd) -> Option<Result<Arc<Sock>, Errno>> {
    let sock = SOCKS.pin(fd)?.share();
    Some(if sock.is_unconnected() { renew(&sock, fd) } else { Ok(sock) })
}

fn renew(old: &Arc<Sock>, fd: RawFd) -> Result<Arc<Sock>, Errno> {
    placeholder::own(old, fd)?;
    let mut name = [0; address::ADDRESS_MAX];
    let bound = if old.is_bound() { sys::getsockname(fd, &mut name)? } else { 0 };
    let made = sys::socket(old.family(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
    pending_sockopts::keep(old);
    options::repeat(old, made);
    let nonblock = if old.is_nonblocking() { libc::O_NONBLOCK } else { 0 };
    let mut result = sys::fcntl(made, libc::F_SETFL, nonblock as usize).map(|_| ());
    for fd in file::all_of(old) {
        result = result.and(placeholder::put(made, fd));
    }
    let result = result.and(sys::close(made));
    // The old placeholder is closed, so its port is free.
    let result = result.and_then(|()| if bound > 0 { sys::bind(fd, &name[..bound]) } else { Ok(()) });
    let fresh = Arc::new(Sock::after(old));
    file::exchange(old, &fresh);
    result.map(|()| fresh)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::stream::tests::{ends, send, take};

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
