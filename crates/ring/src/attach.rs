//! Connections that go from sockets to a ring and back, with their descriptors. The ring passes the descriptor to itself as a program passes one
//! to another program (`SCM_RIGHTS`): the preload library, which sees the one half of that, leaves the connection with the service, or
//! learns that one has come. So neither library knows of the other.
//!
//! ```text
//!   attach:  sendmsg of the C library ──► the sockets leave the connection ──► recvmsg of the kernel ──► Present: it is the ring's
//!   detach:  Leave: it is the service's ──► sendmsg of the kernel ──► recvmsg of the C library ──► the sockets know the descriptor
//! ```
//! While a ring has the connection the service gives it to no other holder of the descriptor (`shm::KEPT`).

use crate::conn::{Conn, Connection};
use crate::error::Error;
use crate::handle::Handle;
use crate::raw;
use crate::ring::Ring;
use crate::table::Kept;
use control::{KernelReason, Line, Reply, Request, tcp_state};
use endpoint::Endpoint;
use queue::holding;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, socketpair};
use session::presented::{self, Presented};
use session::reserved::Internal;
use session::sys;
use shm::TRUST;
use std::sync::atomic::Ordering;

/// What is known of a descriptor that is to be attached.
struct Described {
    family: i32,
    is_nonblocking: bool,
}

impl Ring {
    /// Takes over the connection of a socket, which a program has accepted or made by sockets through the preload library: it comes with its
    /// unread and unsent bytes, its shut directions and its options. [`crate::Kind::Readable`] tells of bytes that wait.
    ///
    /// The program keeps the descriptor. As long as the ring has the connection, calls on it and on its duplicates, in this process and in
    /// others, fail with EBUSY. The connection ends when the ring closes it and no process has the descriptor any more. Bytes go by the
    /// service from then on, which copies them once more than a pair region does.
    ///
    /// # Errors
    /// Nothing has changed then. [`Error::NoConnection`] says what the descriptor is instead of a connection, [`Error::KernelOnly`] that the
    /// kernel carries it, [`Error::Refused`] with EBUSY that a ring has it already, with EAGAIN that another process is in a call on it, with
    /// EINPROGRESS that its handshake is not over; [`Error::Os`] for a closed descriptor.
    pub fn attach(&mut self, fd: impl AsFd, token: u64) -> Result<Handle, Error> {
        self.check()?;
        let described = describe(fd.as_fd())?;
        let passed = pass_in(fd.as_fd()).map_err(Error::Os)?;
        let link = self.take(&passed, described)?;
        link.set_lowat(0);
        let mut connection = Connection::new(link, token);
        connection.descriptor = Some(passed);
        Ok(self.keep(connection))
    }

    fn take(&self, passed: &Internal, described: Described) -> Result<Endpoint, Error> {
        let Described { family, is_nonblocking } = described;
        let shown = Presented { fd: passed.number(), family, is_nonblocking, waits: false, keeps: true };
        presented::take(&self.service.client, shown).map_err(|e| match e {
            _ if self.check().is_err() => Error::ServiceGone,
            Errno::NOTCONN => Error::KernelOnly(KernelReason::NothingLeft),
            Errno::NOBUFS => Error::Full(e),
            e => Error::Refused(e),
        })
    }
}

impl Conn<'_> {
    /// Gives the connection to the program's sockets: returns a descriptor of it. What was committed is sent; unread bytes stay unread. The
    /// handle is gone. Descriptors that the program has kept since [`Ring::attach`] can be used again, too.
    ///
    /// Without the preload library in this process the descriptor is good for nothing but to be passed to a program that has it.
    ///
    /// # Errors
    /// Nothing has changed then. [`Error::Ended`] when the connection has ended, [`Error::Refused`] with EINPROGRESS during its handshake;
    /// [`Error::Os`], [`Error::Full`] without descriptors.
    pub fn detach(mut self) -> Result<OwnedFd, Error> {
        self.ring.flush();
        let client = self.ring.service.client.clone();
        let connection = self.own()?;
        let link = &connection.link;
        let _ = link.peer_flags();
        if link.is_over() {
            return Err(Error::Ended(link.take_error().unwrap_or(Errno::NOTCONN)));
        }
        if !link.is_open() {
            return Err(Error::Refused(Errno::INPROGRESS));
        }
        if connection.descriptor.is_none() {
            let descriptor = placeholder(link).map_err(Error::Full)?;
            leave(&client, link, descriptor.number())?;
            connection.descriptor = Some(descriptor);
        }
        let descriptor = connection.descriptor.as_ref().map(Internal::as_fd).ok_or(Error::Gone)?;
        // The sockets ask the service for the connection at the first use, not before.
        let passed = pass_out(descriptor).map_err(Error::Os)?;
        let index = self.index;
        if let Kept::Connection(Connection { link, .. }) = self.ring.table.remove(index) {
            self.ring.watches.remove(&link.mapped, link.slot());
            holding::let_go(link.block(), client.holder_bit());
        }
        Ok(passed)
    }
}

fn number(fd: RawFd, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = [0; 4];
    sys::getsockopt(fd, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// Finds out by the kernel's socket whether `fd` can have a connection of the service's.
fn describe(fd: BorrowedFd<'_>) -> Result<Described, Error> {
    let fd = fd.as_raw_fd();
    let ask = |level, name| {
        number(fd, level, name).map_err(|e| match e {
            Errno::NOTSOCK => Error::NoConnection("it is no socket"),
            e => Error::Os(e),
        })
    };
    if ask(libc::SOL_SOCKET, libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
        return Err(Error::NoConnection("it is no TCP socket"));
    }
    if ask(libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? != 0 {
        return Err(Error::NoConnection("it listens"));
    }
    let mut state = [0];
    sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state).map_err(Error::Os)?;
    if state[0] != tcp_state::CLOSE {
        return Err(Error::KernelOnly(KernelReason::NothingLeft));
    }
    let flags = sys::fcntl(fd, libc::F_GETFL, 0).map_err(Error::Os)?;
    Ok(Described {
        family: ask(libc::SOL_SOCKET, libc::SO_DOMAIN)?,
        is_nonblocking: flags & libc::O_NONBLOCK as usize != 0,
    })
}

/// A socket of the kernel that stands for a connection which had no descriptor.
fn placeholder(link: &Endpoint) -> Result<Internal, Errno> {
    let family = match link.block().family.load(Ordering::Relaxed).cast_signed() {
        libc::AF_INET => AddressFamily::INET,
        _ => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    Ok(Internal::new(socket))
}

/// Leaves a connection that the ring keeps with the service, for the next holder of its descriptor.
fn leave(client: &session::Client, link: &Endpoint, fd: RawFd) -> Result<(), Error> {
    let kept = link.keep();
    match client.ask_with(Request::Leave(link.leave()), Some(fd)) {
        Ok((Reply::Done, _)) => Ok(()),
        other => {
            link.block().holders.fetch_and(!TRUST, Ordering::AcqRel);
            if kept {
                link.keep_no_more();
            }
            Err(match other {
                Ok((Reply::Refused { errno, .. }, _)) => Error::Refused(Errno::from_raw_os_error(errno)),
                _ => Error::ServiceGone,
            })
        }
    }
}

/// Passes a descriptor of the program's to the ring.
fn pass_in(fd: BorrowedFd<'_>) -> Result<Internal, Errno> {
    let (here, there) = pair()?;
    raw::send_by_libc(here.as_fd(), fd)?;
    let passed = Line::new(there).receive::<u8>(true).ok().and_then(|mut message| message.fds.pop());
    // The message is there. What can be missing is a free number.
    passed.map(Internal::new).ok_or(Errno::MFILE)
}

/// Passes a descriptor of the ring's to the program.
fn pass_out(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let (here, there) = pair()?;
    Line::new(here).send(&0u8, &[fd], true).map_err(|_| Errno::NOBUFS)?;
    raw::receive_by_libc(there.as_fd())?.ok_or(Errno::MFILE)
}

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}
