//! Listeners: a socket of the kernel that holds the port, and the accept queue that the service makes for it.

use crate::conn::Connection;
use crate::connect::{advise, family_of};
use crate::error::Error;
use crate::event::{Event, Kind};
use crate::handle::Handle;
use crate::options::ListenOptions;
use crate::ring::Ring;
use crate::table::Kept;
use control::{Reply, Request, Unlisten};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use session::Client;
use session::accept;
use session::accept_queue::{Queue, Rest};
use session::connect::is_own;
use session::reserved::Internal;
use session::sys::address::plain;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Most connections that one look takes from one listener: others get their turn.
const ACCEPTED_MOST: usize = 64;

/// A listener as the ring keeps it.
#[derive(Debug)]
pub(crate) struct Listening {
    queue: Arc<Queue>,
    /// This ring's place among those that sleep at the queue; `None`: there were too many.
    rest: Option<Rest>,
    /// Holds the port, and gets the connections of peers that do not use the service.
    socket: Internal,
    family: i32,
    token: u64,
    no_delay: bool,
}

impl Listening {
    /// True when a connection waits.
    pub(crate) fn has_any(&self) -> bool {
        self.queue.accepting().has_any() && !self.queue.is_over()
    }

    /// Announces sleep at the queue. False: a connection waits.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.rest.as_ref().is_none_or(Rest::prepare_sleep)
    }

    /// The ring looks for connections itself.
    pub(crate) fn take_turn(&self) {
        self.rest.iter().for_each(Rest::take_turn);
    }

    /// True when connections do not wake this ring.
    pub(crate) const fn is_crowded(&self) -> bool {
        self.rest.is_none()
    }
}

/// A socket of the kernel that listens at `address`, which may be one of the service's own: then connections come only by the service.
fn socket_at(client: &Client, address: SocketAddr, options: ListenOptions) -> Result<Internal, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, options.reuse_address)?;
    sockopt::set_socket_reuseport(&socket, options.reuse_port)?;
    if is_own(client, plain(address).ip()) {
        match address {
            SocketAddr::V4(_) => sockopt::set_ip_freebind(&socket, true)?,
            SocketAddr::V6(_) => sockopt::set_ipv6_freebind(&socket, true)?,
        }
    }
    bind(&socket, &address).or_else(|e| match e {
        // Perhaps the service has held the port for connections that are over: then it gives the port back.
        Errno::ADDRINUSE if is_port_back(client, address) => bind(&socket, &address),
        e => Err(e),
    })?;
    listen(&socket, options.backlog.min(i32::MAX as u32).cast_signed())?;
    Ok(Internal::new(socket))
}

/// Asks the service for a port. True: the service has held it, and has given it back.
fn is_port_back(client: &Client, address: SocketAddr) -> bool {
    matches!(client.ask(Request::WantPort { at: plain(address) }), Ok((Reply::Done, _)))
}

/// Has the service make an accept queue for a socket that listens.
fn announce(client: &Client, socket: &Internal, options: ListenOptions) -> Result<Arc<Queue>, Error> {
    client.expect_first();
    let backlog = options.backlog.min(session::sys::somaxconn());
    let request = Request::Listen { backlog, nonblocking: true };
    let answer = client.ask_with(request, Some(socket.number()));
    match answer.map_err(|_| Error::ServiceGone)?.0 {
        Reply::Listening { queue, .. } => client.queue(queue).ok_or_else(|| {
            client.say(Request::Unlisten { queue, because: Unlisten::GivenUp });
            Error::Full(Errno::NOMEM)
        }),
        Reply::Refused { errno, .. } => Err(Error::Refused(Errno::from_raw_os_error(errno))),
        Reply::Kernel { reason } => Err(Error::KernelOnly(reason)),
        _ => Err(Error::ServiceGone),
    }
}

impl Ring {
    /// Listens at `address`. Each connection comes as [`Kind::Accepted`]. Port 0: the kernel chooses one ([`Ring::local_address`]).
    /// A socket of the kernel holds the port; connections of peers that do not use the service come to it and are reset
    /// ([`crate::Counters::kernel_refused`]).
    ///
    /// # Errors
    /// [`Error::Os`] as `socket`, `bind` and `listen`; [`Error::Refused`] by the service's policy; [`Error::KernelOnly`].
    pub fn listen(
        &mut self,
        address: SocketAddr,
        options: ListenOptions,
        token: u64,
    ) -> Result<Handle, Error> {
        self.check()?;
        let socket = socket_at(&self.service.client, address, options).map_err(Error::Os)?;
        self.context.watch(socket.number()).map_err(Error::Os)?;
        let queue = announce(&self.service.client, &socket, options)?;
        queue.note_awaited();
        let rest = Rest::new(&queue, &self.service.client, self.context.number, true);
        let family = family_of(address);
        let listening = Listening { queue, rest, socket, family, token, no_delay: options.no_delay };
        let handle = self.table.insert(Kept::Listener(Box::new(listening)));
        self.listeners.push(handle.index);
        Ok(handle)
    }

    /// The address of a listener.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::WrongKind`].
    pub fn local_address(&mut self, listener: Handle) -> Result<SocketAddr, Error> {
        self.check()?;
        let index = self.table.index(listener)?;
        let listening = self.table.listener(index).ok_or(Error::WrongKind)?;
        let name = rustix::net::getsockname(listening.socket.as_fd()).map_err(Error::Os)?;
        SocketAddr::try_from(name).map_err(Error::Os)
    }

    /// Stops listening. Connections that wait are reset; those that were accepted go on. The handle is gone.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::WrongKind`].
    pub fn close_listener(&mut self, listener: Handle) -> Result<(), Error> {
        self.check()?;
        let index = self.table.index(listener)?;
        if self.table.listener(index).is_none() {
            return Err(Error::WrongKind);
        }
        self.close_at(index, false);
        Ok(())
    }

    pub(crate) fn unlisten(&mut self, index: u32, listening: Listening) {
        self.listeners.retain(|other| *other != index);
        let Listening { queue, rest, socket, .. } = listening;
        drop(rest);
        let close = || Request::Unlisten { queue: queue.id, because: Unlisten::Closed };
        let is_needed =
            !queue.is_over() && matches!(self.service.client.ask(close()), Ok((Reply::PortNeeded, _)));
        drop(socket);
        if is_needed {
            // The port is free in the kernel now: the service holds it. An error: the service is gone.
            let _ = self.service.client.ask(close());
        }
    }

    /// Accepts what waits at all listeners, while `events` has room.
    pub(crate) fn accept(&mut self, events: &mut Vec<Event>) {
        for at in 0..self.listeners.len() {
            let index = self.listeners[at];
            for _ in 0..ACCEPTED_MOST {
                if events.len() >= self.events_most() || !self.accept_one(index, events) {
                    break;
                }
            }
        }
    }

    /// Accepts one connection. False: none waits.
    fn accept_one(&mut self, index: u32, events: &mut Vec<Event>) -> bool {
        let handle = self.table.handle(index);
        let Some(listening) = self.table.listener(index).filter(|listening| listening.has_any()) else {
            return false;
        };
        let (queue, client) = (listening.queue.clone(), self.service.client.clone());
        let (family, token, no_delay) = (listening.family, listening.token, listening.no_delay);
        let Some(grant) = queue.accepting().claim(client.application()) else { return false };
        let found = accept::locate(&client, &queue, grant, |region, side| Ok(client.region(region, side)));
        let begun = found.ok().flatten().map(|claimed| {
            let (local, peer) = (claimed.local, claimed.peer);
            accept::begin(&client, claimed, family, true).map(|link| (link, local, peer))
        });
        queue.accepting().finish(grant, client.application());
        if queue.wants_room() {
            client.say(Request::Accepted { queue: queue.id });
        }
        // A grant that cannot be used (its peer is gone already, or no memory is left for it) is skipped.
        let Some(Ok((link, local, peer))) = begun else { return true };
        advise(&link, no_delay);
        let connection = Connection::new(link, token);
        let accepted = self.keep(connection);
        self.counters.accepted += 1;
        events.push(Event {
            handle: accepted,
            token,
            kind: Kind::Accepted { listener: handle, local, peer },
        });
        true
    }

    /// Resets connections that the kernel has made: a ring cannot carry them.
    pub(crate) fn refuse_kernel(&mut self) {
        for index in &self.listeners {
            let Some(listening) = self.table.listener(*index) else { continue };
            while let Ok(socket) = rustix::net::accept_with(listening.socket.as_fd(), SocketFlags::CLOEXEC) {
                // If that fails the peer sees an end instead of a reset.
                let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
                self.counters.kernel_refused += 1;
            }
        }
    }
}
