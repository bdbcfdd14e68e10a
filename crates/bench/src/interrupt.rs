//! SIGINT, SIGTERM and SIGHUP during a measurement: every wait checks for them and returns an error, so that drops clean up.

use anyhow::bail;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::OnceLock;

static SIGNALS: OnceLock<OwnedFd> = OnceLock::new();

/// Makes SIGINT, SIGTERM and SIGHUP fail [`check`] instead of ending this process. Call it before threads are started. Child processes
/// start with the default handling of signals.
///
/// # Errors
/// When the kernel cannot make a signal descriptor.
pub fn watch() -> anyhow::Result<()> {
    if SIGNALS.get().is_none() {
        // If another thread was faster, its descriptor is kept: both report the same signals.
        let _ = SIGNALS.set(service::signals()?);
    }
    Ok(())
}

/// Does nothing unless a signal has come.
///
/// # Errors
/// "interrupted", once a signal has come.
pub fn check() -> anyhow::Result<()> {
    pause(0.0)
}

/// Sleeps for `seconds`.
///
/// # Errors
/// "interrupted" as soon as a signal comes.
pub fn pause(seconds: f64) -> anyhow::Result<()> {
    readable(None, seconds).map(|_| ())
}

/// Waits up to `seconds` until `what` is readable or hung up. False after `seconds`. `what` may be `None`.
///
/// # Errors
/// "interrupted" as soon as a signal comes.
pub fn readable(what: Option<BorrowedFd<'_>>, seconds: f64) -> anyhow::Result<bool> {
    let until = crate::clock::now_ns() + (seconds * 1e9) as u64;
    let signals = SIGNALS.get().map(AsFd::as_fd);
    let entry = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut entries: Vec<PollFd<'_>> = what.into_iter().chain(signals).map(entry).collect();
    loop {
        let left = until.saturating_sub(crate::clock::now_ns());
        let timeout =
            Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        match poll(&mut entries, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if signals.is_some() && entries.last().is_some_and(|entry| !entry.revents().is_empty()) {
        bail!("interrupted");
    }
    Ok(true)
}
