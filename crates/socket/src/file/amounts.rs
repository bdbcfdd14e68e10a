//! Numbers about a descriptor: bytes to read, bytes unsent, and so on. Changes nothing.

use crate::fd::tables::SOCKS;
use crate::socket::{Sock, flag};
use endpoint::Endpoint;
use endpoint::stream::ready;
use rustix::fd::RawFd;

/// Bytes that can be read: `ioctl(FIONREAD)`.
pub fn unread(fd: RawFd) -> Option<usize> {
    let sock = SOCKS.pin(fd)?;
    connection(&sock).map(Endpoint::unread_to_mark)
}

/// `SO_RCVLOWAT` of an accelerated connection.
pub fn low_water(fd: RawFd) -> Option<usize> {
    SOCKS.pin(fd)?.stream().map(|link| link.low_water() as usize)
}

/// Whether the next byte is the urgent mark: `ioctl(SIOCATMARK)` and `sockatmark`.
pub fn is_at_mark(fd: RawFd) -> Option<bool> {
    let sock = SOCKS.pin(fd)?;
    connection(&sock).map(Endpoint::is_at_mark)
}

/// Ancillary data that a `recvmsg` returns beside the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// The option that is on, `SO_TIMESTAMP` or one of its kind; `None`: no time is wanted.
    pub stamp: Option<i32>,
    /// Bytes left to read; `None` unless the program has set `TCP_INQ`.
    pub left: Option<usize>,
}

/// The ancillary data that a `recvmsg` on `fd` is to return.
pub fn beside(fd: RawFd) -> Beside {
    let Some(sock) = SOCKS.pin(fd) else { return Beside::default() };
    let stamp = || sock.settings()?.options.stamp();
    Beside {
        stamp: if sock.has(flag::TELLS_TIME) { stamp() } else { None },
        left: connection(&sock).filter(|_| sock.has(flag::TELLS_UNREAD)).map(Endpoint::left),
    }
}

/// Bytes that the peer has not acknowledged: `ioctl(SIOCOUTQ)`.
pub fn unsent(fd: RawFd) -> Option<usize> {
    let sock = SOCKS.pin(fd)?;
    connection(&sock).map(Endpoint::unsent)
}

/// Bytes held back within one host, `ioctl(SIOCOUTQNSD)`; `None` over a port: the kernel answers.
pub fn held_back(fd: RawFd) -> Option<usize> {
    let sock = SOCKS.pin(fd)?;
    connection(&sock).and_then(Endpoint::held_back)
}

/// The connection, unless it is over and its slot may be another connection's.
fn connection(sock: &Sock) -> Option<&Endpoint> {
    sock.stream().filter(|link| !link.is_unconnected())
}

/// True when an accelerated connection is writable now.
pub fn has_space(fd: RawFd) -> Option<bool> {
    let sock = SOCKS.pin(fd)?;
    sock.stream()?;
    Some(sock.readiness() & ready::OUT != 0)
}
