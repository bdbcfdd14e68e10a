//! The kernel's facts about a socket that an application shows. The questions may wait for a process that holds the socket's lock, so a
//! helper thread asks them.

use crate::registry::listen::table::canonical;
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, ipproto, sockopt};
use std::net::SocketAddr;

/// The kernel's facts about a TCP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    /// `SO_COOKIE` of the socket.
    pub cookie: u64,
    /// Its network namespace (`SO_NETNS_COOKIE`).
    pub namespace: u64,
    /// Its inode, as in `/proc/PID/fd`.
    pub inode: u64,
    /// The address that it is bound to, v4-mapped ones as IPv4; port 0: not bound to a port.
    pub local: SocketAddr,
    /// It listens now (`SO_ACCEPTCONN`).
    pub listens: bool,
    /// It is IPv6 and has `IPV6_V6ONLY` set.
    pub v6_only: bool,
    /// It has `SO_REUSEPORT` set.
    pub reuse_port: bool,
    /// It has `SO_REUSEADDR` set.
    pub reuse_address: bool,
}

/// Asks the kernel about `socket`. `None`: it is not a TCP socket.
pub fn look(socket: &OwnedFd) -> Option<Shown> {
    // First a question that only sockets answer: files of other kinds are asked nothing.
    if sockopt::socket_protocol(socket).ok()? != Some(ipproto::TCP) {
        return None;
    }
    let cookie = sockopt::socket_cookie(socket).ok()?;
    let is_v6 = sockopt::socket_domain(socket).ok()? == AddressFamily::INET6;
    Some(Shown {
        cookie,
        namespace: sys::namespace_cookie(socket.as_fd()).unwrap_or(0),
        inode: rustix::fs::fstat(socket).ok()?.st_ino,
        local: canonical(SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?),
        listens: sockopt::socket_acceptconn(socket).ok()?,
        v6_only: is_v6 && sockopt::ipv6_v6only(socket).ok()?,
        reuse_port: sockopt::socket_reuseport(socket).ok()?,
        reuse_address: sockopt::socket_reuseaddr(socket).ok()?,
    })
}
