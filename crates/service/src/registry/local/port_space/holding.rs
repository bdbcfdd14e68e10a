//! Ports that sockets of the service hold in the kernel, so that no other program gets them.

use crate::sys::random;
use crate::sys::set_local_port_range;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// The default of Linux's `net.ipv4.ip_local_port_range`.
pub const RANGE: RangeInclusive<u16> = 32_768..=60_999;
/// The kernel searches for a free port among so many at once. A search of the whole range takes 10 ms when most of it is in use.
const WINDOW: u16 = 64;

/// A port that a socket holds in the kernel.
#[derive(Debug)]
pub struct Held {
    /// The port's number, which other programs cannot bind.
    pub port: u16,
    socket: OwnedFd,
}

impl Held {
    /// Lets other sockets with `SO_REUSEADDR` have the port, too, or not. False: the kernel refuses.
    pub fn share(&self, reuses: bool) -> bool {
        sockopt::set_socket_reuseaddr(&self.socket, reuses).is_ok()
    }
}

/// Number of ports from which the kernel chooses for the programs of this network namespace.
pub fn range_len() -> usize {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let bounds: Vec<usize> = text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    match bounds[..] {
        [first, last] => (last + 1).saturating_sub(first),
        _ => RANGE.len(),
    }
}

/// The first port of any window: services of one network namespace, and one after another, look for ports at different places.
pub fn some_window() -> u16 {
    let windows = RANGE.len() as u64 / u64::from(WINDOW);
    // Without a random number ports are looked for from the first on.
    let number = random().map_or(0, u64::from_ne_bytes);
    RANGE.start() + (number % windows) as u16 * WINDOW
}

/// Has the kernel choose a port in the `window`, which moves on, and holds it at all addresses of the family. `reuses`: sockets with
/// `SO_REUSEADDR` may have the port, too.
pub fn hold(is_ipv6: bool, reuses: bool, window: &mut u16) -> Option<Held> {
    let any: IpAddr = if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let any = SocketAddr::new(any, 0);
    let socket = socket_for(any, false)?;
    bind_in_windows(&socket, any, window)?;
    if reuses {
        // Only now: with the option the kernel would choose ports that other sockets have, too.
        sockopt::set_socket_reuseaddr(&socket, true).ok()?;
    }
    let at = SocketAddr::try_from(getsockname(&socket).ok()?).ok()?;
    Some(Held { port: at.port(), socket })
}

/// Binds the socket to a port of the window; when all of them are in use, to one of the windows after it. Where the kernel knows no windows
/// (before Linux 6.3), or all ports of [`RANGE`] are in use, the kernel searches its whole range.
fn bind_in_windows(socket: &OwnedFd, any: SocketAddr, window: &mut u16) -> Option<()> {
    for _ in 0..RANGE.len().div_ceil(WINDOW.into()) {
        let last = (*RANGE.end()).min(*window + (WINDOW - 1));
        // From the first odd port on: then the kernel takes even ports first. A program that binds to port 0 gets an odd port as long as
        // there is one, at its own address, and may go on to bind the same port at all addresses.
        if set_local_port_range(socket.as_fd(), *window | 1..=last).is_err() {
            break;
        }
        *window = if last == *RANGE.end() { *RANGE.start() } else { last + 1 };
        match bind(socket, &any) {
            Err(Errno::ADDRINUSE) => {}
            bound => return bound.ok(),
        }
    }
    // Errors are those of a kernel without windows.
    let _ = set_local_port_range(socket.as_fd(), 0..=0);
    bind(socket, &any).ok()
}

/// Holds that port at that address. `None`: another socket has it.
pub fn hold_at(at: SocketAddr, reuses: bool) -> Option<OwnedFd> {
    let socket = socket_for(at, reuses)?;
    bind(&socket, &at).ok()?;
    Some(socket)
}

/// A socket that is not bound yet, for an address of `at`'s family.
pub fn socket_for(at: SocketAddr, reuses: bool) -> Option<OwnedFd> {
    let family = if at.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true).ok()?;
    }
    if reuses {
        sockopt::set_socket_reuseaddr(&socket, true).ok()?;
    }
    Some(socket)
}
