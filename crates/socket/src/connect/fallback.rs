//! Sockets that are the kernel's. Only here is a socket given up and the service told why; or the call fails, when the program was started
//! to have no kernel sockets (`TOWPATH_REQUIRE`).

use crate::connect::Why;
use crate::fd::tables::SOCKS;
use crate::process::fd_passing;
use crate::socket::Sock;
use control::profile::REQUIRE_ENV;
use control::{KernelReason, Request};
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::log::{Level, log};
use session::sys;
use session::sys::signal::Deferred;
use session::{self, config};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Why new sockets are the kernel's; unset: they are not.
static BYPASSED: OnceLock<KernelReason> = OnceLock::new();

/// From now on new sockets are the kernel's, for this reason. False: they were before.
pub fn bypass(reason: KernelReason) -> bool {
    BYPASSED.set(reason).is_ok()
}

/// Why undecided sockets are the kernel's; `None`: they are not.
pub fn reason() -> Option<KernelReason> {
    BYPASSED.get().copied()
}

/// Logs why a call fails that could have gone to the kernel.
pub fn refuse(call: fmt::Arguments<'_>, reason: impl fmt::Display) {
    log(Level::Error, format_args!("{call} fails: {reason}, and {REQUIRE_ENV} is set"));
}

/// The socket is the kernel's from now on, if sockets may be.
///
/// # Errors
/// The errno of `why`, where no socket may be the kernel's; then nothing is decided.
pub fn fall_back(fd: RawFd, sock: &Arc<Sock>, why: &Why, call: fmt::Arguments<'_>) -> Result<(), Errno> {
    if config::is_required() {
        refuse(call, why.reason);
        return Err(why.errno);
    }
    surrender(&[fd], sock, why.reason);
    Ok(())
}

/// The kernel has made a `connect` to where perhaps nothing listened. The socket is the kernel's, unless that was refused.
pub fn connected(fd: RawFd, result: Result<(), Errno>) {
    let Some(sock) = SOCKS.pin(fd).map(|sock| sock.share()) else { return };
    let _deferred = Deferred::begin();
    let is_refused = match result {
        Err(Errno::CONNREFUSED) => true,
        // On one host the refusal has come by now; the next call reports it.
        Err(Errno::INPROGRESS) if fd_passing::is_unconnected_in_kernel(fd) => {
            sock.set(|settings| settings.is_refused = true);
            true
        }
        _ => false,
    };
    if !is_refused {
        surrender(&[fd], &sock, KernelReason::NoListener);
    } else if let Some(client) = session::current() {
        client.say(Request::Refused);
    }
}

/// The socket is the kernel's from now on: takes it out of sets and table, and tells the service.
pub fn surrender(fds: &[RawFd], sock: &Arc<Sock>, reason: KernelReason) {
    for (set, fd) in sock.sets() {
        set.abandon(sock, fd);
    }
    for fd in fds {
        drop(SOCKS.remove(*fd));
    }
    count(reason, fds.first().copied());
}

/// Tells the service of a socket left to the kernel, even if it is the process's first: nothing else reports it.
pub fn count(reason: KernelReason, fd: Option<RawFd>) {
    if let Some(client) = session::current() {
        let inode = fd.and_then(|fd| rustix::fs::fstat(sys::borrow(fd)).ok()).map_or(0, |s| s.st_ino);
        client.say(Request::FellBack { reason, inode });
    }
}
