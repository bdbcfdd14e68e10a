//! Connections that the program makes.

use crate::conn::Connection;
use crate::error::Error;
use crate::handle::Handle;
use crate::options::ConnectOptions;
use crate::ring::Ring;
use control::SocketOptions;
use endpoint::Endpoint;
use endpoint::options::Name;
use rustix::io::Errno;
use session::connect::{Outcome, Wanted, by_service, free, is_candidate, somewhere};
use session::direct;
use session::sys::address;
use std::net::SocketAddr;

impl Ring {
    /// Begins a connection to `remote` from an address that the service chooses. [`crate::Kind::Connected`] or [`crate::Kind::Failed`] tells how it
    /// ends, with `token`. The first connection to a listener asks the service and waits for its answer (some 50 µs); later ones to a listener of
    /// the same user do not.
    ///
    /// # Errors
    /// [`Error::Refused`] when the answer is known at once, [`Error::KernelOnly`] when no service carries connections to there (a listener
    /// of this host that does not use it, or no port on the way), [`Error::Full`], [`Error::ServiceGone`].
    pub fn connect(
        &mut self,
        remote: SocketAddr,
        options: ConnectOptions,
        token: u64,
    ) -> Result<Handle, Error> {
        self.check()?;
        let link = self.begin(somewhere(remote))?;
        advise(&link, options.no_delay);
        let mut connection = Connection::new(link, token);
        connection.is_connecting = true;
        Ok(self.keep(connection))
    }

    fn begin(&self, remote: SocketAddr) -> Result<Endpoint, Error> {
        let client = &self.service.client;
        let plain = address::plain(remote);
        if !is_candidate(client, plain.ip()) {
            return Err(Error::KernelOnly(control::KernelReason::NoPortThere));
        }
        let family = family_of(remote);
        let block = client.take_block().ok_or(Error::Full(Errno::NOBUFS))?;
        if let Some(link) = direct::connect(client, block, plain, family, true) {
            return Ok(link);
        }
        if !client.has_room() {
            free(client, block);
            return Err(Error::Full(Errno::MFILE));
        }
        let wanted = Wanted {
            block,
            remote,
            plain,
            family,
            is_nonblocking: true,
            shown: None,
            options: SocketOptions::default(),
        };
        match by_service(client, &wanted) {
            Outcome::Begun(link) => Ok(link),
            Outcome::Refused(e) => Err(Error::Refused(e)),
            Outcome::Kernel(reason) => Err(Error::KernelOnly(reason)),
            Outcome::NoService => Err(Error::ServiceGone),
        }
    }
}

/// The family of an address: `AF_INET` or `AF_INET6`.
pub(crate) const fn family_of(address: SocketAddr) -> i32 {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

/// Gives a new connection the system's defaults and the ring's.
pub(crate) fn advise(link: &Endpoint, no_delay: bool) {
    link.set_lowat(0);
    if session::config::quick_ack() && !link.mapped.pair {
        link.set_quick_ack(true);
    }
    if no_delay {
        let _ = link.obey(Name::new(libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
    }
}
