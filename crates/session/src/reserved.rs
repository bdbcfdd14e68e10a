//! Descriptors of the library's own: moved out of the program's way, and remembered so that a program that closes every descriptor it does
//! not know leaves them alone.

use crate::sys;
use endpoint::host::Waker;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Numbers from here on are never ours: one bit is kept below for each smaller one.
pub const MOST: usize = 65_536;
static OURS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// Number of times that a set of the library's was about to be made or closed (`BEGUN`), and that this was completed (`DONE`).
static BEGUN: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);

/// While this lives, a set of the library's is being made or closed: the kernel and the tables may disagree about its descriptor.
#[derive(Debug)]
pub struct Changing(());

impl Drop for Changing {
    fn drop(&mut self) {
        DONE.fetch_add(1, Ordering::SeqCst);
    }
}

/// Begins a change of the library's sets, until the result is dropped.
pub fn begin() -> Changing {
    BEGUN.fetch_add(1, Ordering::SeqCst);
    Changing(())
}

/// Number of changes begun and of changes completed.
pub fn changes() -> (u32, u32) {
    (BEGUN.load(Ordering::SeqCst), DONE.load(Ordering::SeqCst))
}

/// In a forked child: ends the changes that the parent's threads had begun, for they do not run here.
pub fn settle() {
    DONE.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// True when the program must not touch `fd`.
#[must_use]
#[inline]
pub fn is_internal(fd: RawFd) -> bool {
    let i = fd as u32 as usize;
    i < MOST && OURS[i / 64].load(Ordering::Relaxed) & (1 << (i % 64)) != 0
}

/// The descriptors `64 * i..64 * (i + 1)` that the program must not touch, one bit each.
pub fn word(i: usize) -> u64 {
    OURS[i].load(Ordering::Relaxed)
}

/// How many descriptors this process may have (`RLIMIT_NOFILE`).
pub fn limit() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current.unwrap_or(MOST as u64)
}

/// Moves `fd` to a high number, if the limits allow, and claims it.
pub fn claim(fd: OwnedFd) -> OwnedFd {
    if let Some(away) = claim_away(fd.as_raw_fd()) {
        // The old number is known nowhere; an error of close changes nothing.
        let _ = sys::close(fd.into_raw_fd());
        return sys::own(away);
    }
    note(fd.as_raw_fd());
    fd
}

/// Duplicates `fd` at a high number, if the limits allow, and claims that.
pub fn claim_away(fd: RawFd) -> Option<RawFd> {
    // Not above most systems' usual limit: a fork copies the table up to the highest descriptor.
    let limit = limit().min(1024);
    let from = limit.saturating_sub(512).max(64);
    let new = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, from as usize).ok()? as RawFd;
    note(new);
    Some(new)
}

/// Notes that the program must not touch `fd`.
pub fn note(fd: RawFd) {
    let i = fd as usize;
    if i < MOST {
        OURS[i / 64].fetch_or(1 << (i % 64), Ordering::Relaxed);
    }
}

/// Gives up the claim and closes the descriptor.
pub fn close(fd: RawFd) {
    let _changing = begin();
    unclaim(fd);
    let _ = sys::close(fd);
}

/// Gives up the claim, just before the descriptor is closed.
pub fn unclaim(fd: RawFd) {
    let i = fd as u32 as usize;
    if i < MOST {
        OURS[i / 64].fetch_and(!(1 << (i % 64)), Ordering::Relaxed);
    }
}

impl Waker for Internal {
    /// Adds one to the eventfd.
    fn ring(&self) {
        if let Some(fd) = &self.0 {
            sys::ring(fd);
        }
    }
}

/// A claimed descriptor, given up and closed when dropped.
#[derive(Debug)]
pub struct Internal(Option<OwnedFd>);

impl Internal {
    /// Claims `fd` as [`claim`] does.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self(Some(claim(fd)))
    }

    /// Makes a kernel epoll set.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn epoll() -> Result<Self, Errno> {
        let _changing = begin();
        Ok(Self::new(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// The number of the descriptor, never negative.
    #[must_use]
    pub fn number(&self) -> RawFd {
        self.0.as_ref().map_or(0, AsRawFd::as_raw_fd)
    }
}

impl AsFd for Internal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        sys::borrow(self.number())
    }
}

impl Drop for Internal {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            close(fd.into_raw_fd());
        }
    }
}

/// Which of the descriptors `first..=last` are the library's, in ascending order.
#[must_use]
pub fn within(first: u32, last: u32) -> Vec<u32> {
    (first..=last.min(MOST as u32 - 1)).filter(|fd| is_internal(*fd as RawFd)).collect()
}
