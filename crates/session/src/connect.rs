//! What both doors do to make a connection: the request to the service, and what is kept of its answer. Knows no descriptor but the one
//! that is shown.

use crate::log::{Level, log};
use crate::{Client, acceptors, addresses, direct};
use control::{KernelReason, Reply, Request, SocketOptions};
use endpoint::Endpoint;
use rustix::fd::{OwnedFd, RawFd};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;

/// A connection that the service is asked for.
#[derive(Debug)]
pub struct Wanted {
    /// The socket block taken for it, freed when no connection comes of it.
    pub block: u32,
    /// The address as the program gave it.
    pub remote: SocketAddr,
    /// The same as an IPv4 address where it is one.
    pub plain: SocketAddr,
    /// The socket's family: `AF_INET` or `AF_INET6`.
    pub family: i32,
    /// The program has set `O_NONBLOCK`.
    pub is_nonblocking: bool,
    /// The descriptor to be shown: a bound socket's, or one of another network namespace; `None`: none is needed.
    pub shown: Option<RawFd>,
    /// Options that the program has set before.
    pub options: SocketOptions,
}

/// What the service makes of it.
#[derive(Debug)]
pub enum Outcome {
    /// The connection has begun.
    Begun(Endpoint),
    /// It may not be, or cannot be.
    Refused(Errno),
    /// The kernel is to make it.
    Kernel(KernelReason),
    /// The service is gone.
    NoService,
}

/// Asks the service for a connection.
#[must_use]
pub fn by_service(client: &Client, wanted: &Wanted) -> Outcome {
    let Wanted { block, remote, plain, .. } = *wanted;
    if !plain.ip().is_loopback() {
        client.expect_first();
    }
    let outcome = match ask(client, wanted) {
        Ok((Reply::Connecting { region, slot, local, lent }, _)) => {
            let mapped = client.region(region.id, region.side).filter(|m| m.has(slot));
            let Some(mapped) = mapped else {
                free(client, block);
                return Outcome::Refused(Errno::NOBUFS);
            };
            lent.iter().for_each(|lent| direct::learn(client, plain, &mapped, lent));
            client.expect(&mapped, slot);
            let link = Endpoint::new(mapped, slot, client.home.clone(), block);
            link.begin(wanted.is_nonblocking, false);
            addresses::store(&link, local, plain, wanted.family);
            return Outcome::Begun(link);
        }
        Ok((Reply::Refused { errno, reason }, _)) => {
            log(Level::Info, format_args!("connect to {remote}: {reason}"));
            Outcome::Refused(Errno::from_raw_os_error(errno))
        }
        Ok((Reply::Kernel { reason }, _)) => {
            log(Level::Info, format_args!("connect to {remote} in the kernel: {reason}"));
            Outcome::Kernel(reason)
        }
        _ => Outcome::NoService,
    };
    free(client, block);
    outcome
}

/// Sends the request; the connection is the kernel's where the listener may wait by an io_uring.
fn ask(client: &Client, wanted: &Wanted) -> Result<(Reply, Vec<OwnedFd>), Errno> {
    let Wanted { remote, .. } = *wanted;
    let options = SocketOptions { channel: crate::config::channel(), ..wanted.options };
    let request = |has_looked| Request::Connect { remote, options, has_looked };
    match client.ask_with(request(false), wanted.shown) {
        Ok((Reply::Look { acceptors }, _)) => match acceptors::reason_for_kernel(&acceptors) {
            None => client.ask_with(request(true), wanted.shown),
            Some(reason) => Ok((Reply::Kernel { reason }, Vec::new())),
        },
        other => other,
    }
}

/// Frees a socket block that was taken for a connection that does not come.
pub fn free(client: &Client, block: u32) {
    if let Some(b) = client.home.region.sock(block) {
        b.holders.store(0, Ordering::Release);
    }
}

/// Gives up this process's hold on a connection, and tells the service what it does not see. `hard` asks for a reset. `client` is `None`
/// once the service is gone.
pub fn let_go(client: Option<&Client>, link: &Endpoint, hard: bool) {
    // The slot may be lent again as soon as it is released, so the lease is asked first.
    let is_lent = link.is_lent();
    let is_last = link.release(client.map_or(u64::MAX, Client::holder_bit), hard);
    if let Some(client) = client.filter(|_| link.is_left()) {
        client.say(Request::LetGo);
    }
    if is_last {
        released(client, link, is_lent);
    }
}

/// Takes a connection, or the attempt to make one, back from all that hold it, and tells the service what it does not see.
///
/// # Errors
/// As [`Endpoint::give_up`].
pub fn give_up(client: Option<&Client>, link: &Endpoint) -> Result<(), Errno> {
    let is_lent = link.is_lent();
    link.give_up()?;
    released(client, link, is_lent);
    Ok(())
}

fn released(client: Option<&Client>, link: &Endpoint, is_lent: bool) {
    if is_lent {
        link.mapped.lease.closed(&link.mapped, link.slot());
    }
    if let Some(client) = client.filter(|_| link.must_say_closed()) {
        client.say(Request::Closed { region: link.mapped.id, slot: link.slot() });
    }
}

/// True when `ip` is an address of the service, not of the kernel.
#[must_use]
pub fn is_own(client: &Client, ip: IpAddr) -> bool {
    client.welcome.settings.own.iter().any(|(own, _)| *own == ip)
}

/// True when the service may carry connections to `ip`.
#[must_use]
pub fn is_candidate(client: &Client, ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || is_own(client, ip) || client.welcome.settings.has_port
}

/// The source address of connections to this host.
#[must_use]
pub fn loopback(remote: IpAddr) -> IpAddr {
    match remote {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Replaces the unspecified address by loopback: it means this host.
#[must_use]
pub fn somewhere(mut to: SocketAddr) -> SocketAddr {
    if to.ip().is_unspecified() {
        to.set_ip(loopback(to.ip()));
    }
    to
}
