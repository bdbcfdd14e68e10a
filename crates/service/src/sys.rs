//! What has no safe wrapper: signals as a descriptor, and a socket option.

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// Blocks SIGTERM, SIGINT and SIGHUP for this thread (and those it starts) and returns a descriptor that becomes
/// readable when one comes.
pub fn signals() -> Result<OwnedFd, Errno> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: the set is initialised and the signal numbers are valid.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: the set is initialised; a null old set is allowed.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if error != 0 {
        return Err(Errno::from_raw_os_error(error));
    }
    // SAFETY: the set is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS));
    }
    // SAFETY: signalfd returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The kernel's name for the network namespace of a socket; `None` before Linux 5.14.
pub fn namespace_cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let to = (&raw mut cookie).cast();
    // SAFETY: the value has room for `len` bytes, and both live as long as the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, to, &raw mut len)
    };
    (result == 0).then_some(cookie)
}
