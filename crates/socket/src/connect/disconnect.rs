//! Sockets that are unconnected again: the program took back a connection (`connect` to `AF_UNSPEC`) or an attempt to make one (`shutdown`
//! while connecting). What lies in shared memory is let go of at once; only the block stays, for the pending error. A later `connect`,
//! `listen` or `bind` uses a new socket behind the same descriptors.

use crate::connect::listen;
use crate::fd::tables::{self, SOCKS};
use crate::socket::listener::Listener;
use crate::socket::{Role, Sock, options, pending_sockopts, placeholder};
use endpoint::Endpoint;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::sys::{self, address};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Takes a connection, or the attempt to make one, back.
///
/// # Errors
/// As [`Endpoint::give_up`].
pub fn give_up(sock: &Sock, link: &Endpoint) -> Result<(), Errno> {
    session::connect::give_up(session::present().as_deref(), link)?;
    let is_bound = link.is_passive() && !sock.settings().is_some_and(|settings| settings.is_anywhere);
    if !is_bound {
        forget_address(link, sock.family());
    }
    sock.pass_on();
    Ok(())
}

/// As on Linux, a local address that the program has not bound becomes the wildcard; its port stays.
fn forget_address(link: &Endpoint, family: i32) {
    let any: IpAddr =
        if family == libc::AF_INET6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let (mut local, peer) = session::addresses::both(link);
    local.set_ip(any);
    session::addresses::store(link, local, peer, family);
}

/// The socket behind `fd`. Replaces one that is unconnected again, or has stopped listening, by a new one with the same options, bound as
/// the program has bound the old one.
pub fn begin_anew(fd: RawFd) -> Option<Result<Arc<Sock>, Errno>> {
    let sock = SOCKS.pin(fd)?.share();
    Some(match sock.decided() {
        Some(Role::Listener(listener)) if listener.queue.is_over() => listen_anew(&sock, listener),
        _ if sock.is_unconnected() => renew(&sock, fd),
        _ => Ok(sock),
    })
}

/// The object for a socket that has stopped listening, and may begin again: on the same socket of the kernel, with another accept queue.
fn listen_anew(old: &Arc<Sock>, listener: &Listener) -> Result<Arc<Sock>, Errno> {
    listen::may_listen_again(old, listener)?;
    let fresh = Arc::new(Sock::after(old));
    tables::exchange(old, &fresh);
    Ok(fresh)
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
    for fd in tables::all_of(old) {
        result = result.and(placeholder::put(made, fd));
    }
    let result = result.and(sys::close(made));
    // The old placeholder is closed, so its port is free.
    let result = result.and_then(|()| if bound > 0 { sys::bind(fd, &name[..bound]) } else { Ok(()) });
    let fresh = Arc::new(Sock::after(old));
    tables::exchange(old, &fresh);
    result.map(|()| fresh)
}
