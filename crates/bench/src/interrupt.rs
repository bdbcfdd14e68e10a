//! Ctrl-C and its kind while a measurement has things to put away: every wait asks here, and the way out drops them.

use anyhow::bail;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::OnceLock;

static SIGNALS: OnceLock<OwnedFd> = OnceLock::new();

/// From now on SIGINT, SIGTERM and SIGHUP make [`check`] fail instead of ending this process. To be called before threads
/// are started; children begin with signals as usual.
///
/// # Errors
/// When the kernel has no descriptor for us.
pub fn watch() -> anyhow::Result<()> {
    if SIGNALS.get().is_none() {
        // Only the first watcher's descriptor is kept; another one would see the same signals.
        let _ = SIGNALS.set(service::signals()?);
    }
    Ok(())
}

/// Goes on, unless a signal came.
///
/// # Errors
/// "interrupted", from the signal on.
pub fn check() -> anyhow::Result<()> {
    pause(0.0)
}

/// Sleeps.
///
/// # Errors
/// "interrupted", as soon as a signal comes.
pub fn pause(seconds: f64) -> anyhow::Result<()> {
    readable(None, seconds).map(|_| ())
}

/// True when `what` has become readable (or hung up) within `seconds`.
///
/// # Errors
/// "interrupted", as soon as a signal comes.
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
