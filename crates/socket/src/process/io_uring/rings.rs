//! What is known of the io_uring rings of this process.

use super::queue::Queue;
use crate::fd::table::Table;
use control::profile::Rings;
use rustix::fd::RawFd;
use session::config;
use session::sys;
use std::sync::atomic::{AtomicBool, Ordering};

/// The submission queues of watched rings, by the ring's descriptor.
pub(super) static WATCHED: Table<Queue> = Table::new();
/// This process has made a watched ring. Unless [`CHANGES_SETS`] is set, it is not known what the ring is for.
pub(super) static IS_QUIET: AtomicBool = AtomicBool::new(false);
/// A watched ring has changed an epoll set.
pub(super) static CHANGES_SETS: AtomicBool = AtomicBool::new(false);
/// The program has a ring that it made by direct system calls.
pub(super) static IS_STRANGE: AtomicBool = AtomicBool::new(false);

/// In a forked child: drops the pins of the parent's threads.
pub fn forget_pins() {
    WATCHED.forget_pins();
}

/// In a forked child: the purpose of rings that it makes is unknown again.
pub fn forked() {
    if CHANGES_SETS.swap(false, Ordering::SeqCst) {
        IS_QUIET.store(false, Ordering::SeqCst);
    }
}

/// True when `fd` is a watched ring.
#[inline]
pub fn is_watched(fd: RawFd) -> bool {
    WATCHED.is_taken(fd)
}

/// `fd` is about to be closed: it is no longer watched.
#[inline]
pub fn forget(fd: RawFd) {
    drop(WATCHED.remove(fd));
}

/// The descriptors of all watched rings.
pub fn watched() -> Vec<RawFd> {
    WATCHED.all().into_iter().map(|(fd, _)| fd).collect()
}

/// True when `fd` is a ring that is not watched.
pub fn is_strange(fd: RawFd) -> bool {
    let is_typeless = |mode| rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Unknown;
    !is_watched(fd)
        && rustix::fs::fstat(sys::borrow(fd)).is_ok_and(|stat| is_typeless(stat.st_mode))
        && rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new())
            .is_ok_and(|name| name.as_bytes() == Rings::LINK.as_bytes())
}

/// True when it is of interest, and not yet known, whether the program has an unwatched ring.
pub fn may_be_strange() -> bool {
    !(IS_STRANGE.load(Ordering::Relaxed) || config::is_required())
}

/// True when the process has, or inherited, a ring that was seen.
pub fn are_any() -> bool {
    IS_QUIET.load(Ordering::Relaxed) || are_for_sets() || IS_STRANGE.load(Ordering::Relaxed)
}

/// True when there is a watched ring and its purpose is not known yet.
pub(super) fn is_unknown() -> bool {
    IS_QUIET.load(Ordering::Relaxed) && !are_for_sets()
}

/// True when watched rings only change epoll sets: the program waits in those sets.
pub fn are_for_sets() -> bool {
    CHANGES_SETS.load(Ordering::Relaxed)
}
