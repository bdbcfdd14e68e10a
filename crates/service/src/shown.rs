//! A socket that an application shows: what the kernel says of it. Looking may wait for the process that has the socket locked, so a
//! helper thread does it.

use crate::alive::Alive;
use crate::listeners::canonical;
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, ipproto, sockopt};
use std::net::SocketAddr;

/// What the kernel says of a TCP socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The kernel's name for it (`SO_COOKIE`).
    pub cookie: u64,
    /// The kernel's name for its network namespace (`SO_NETNS_COOKIE`).
    pub namespace: u64,
    /// Its inode, by which `/proc/PID/fd` names it.
    pub inode: u64,
    /// Where it is bound, v4-mapped addresses as v4; port 0: nowhere.
    pub local: SocketAddr,
    /// It listens now (`SO_ACCEPTCONN`).
    pub listens: bool,
    /// An IPv6 wildcard takes no IPv4 connections.
    pub v6_only: bool,
    /// It has `SO_REUSEPORT` set.
    pub reuse_port: bool,
    /// It is in the set that was asked for, and stays there as long as any process has it.
    pub watched: bool,
}

/// Looks at `socket`, and puts it into `set`. `None`: it is no TCP socket.
pub fn look(socket: &OwnedFd, set: Option<&Alive>) -> Option<Shown> {
    // First, and by what only sockets know: nothing is asked of a file.
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
        watched: set.is_some_and(|set| set.watch(socket, cookie).is_ok()),
    })
}
