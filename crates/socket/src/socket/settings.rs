//! Options and state of a socket that the library needs later: what the program has set, and how a connect ended.

use crate::socket::zerocopy::Notices;
use control::KernelReason;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// An option that was set: level, name, value.
pub type Kept = (i32, i32, Box<[u8]>);

/// Options of [`Settings::kept`] that apply to the listener only: an accepted socket does not get them.
const NOT_PASSED_ON: [(i32, i32); 2] =
    [(libc::SOL_SOCKET, libc::SO_PRIORITY), (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)];

/// Options and state of one socket. Accepted sockets share those of their listener until either changes.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Longest time that a receive waits (`SO_RCVTIMEO`); `None`: no limit.
    pub receive_limit: Option<Duration>,
    /// Longest time that a send waits (`SO_SNDTIMEO`); `None`: no limit.
    pub send_limit: Option<Duration>,
    /// `SO_LINGER` in seconds; `None`: off.
    pub linger: Option<u32>,
    /// Why the socket is never accelerated: an option was set that only the kernel can honour.
    pub kernel_only: Option<KernelReason>,
    /// True for a listener bound to the unspecified address, and for connections accepted from it.
    pub is_anywhere: bool,
    /// The kernel has refused a connect that returned EINPROGRESS; the program's next `connect` goes to the kernel, which reports it.
    pub is_refused: bool,
    /// The address of a connect that was put off (see `rings`), as the program gave it.
    pub later: Option<Box<[u8]>>,
    /// The error of that connect if the kernel reported one at once, for `SO_ERROR`.
    pub error: Option<Errno>,
    /// Completion notices of `MSG_ZEROCOPY`; not shared with accepted sockets.
    pub notices: Option<Arc<Notices>>,
    /// Options that an accepted socket inherits, in the order in which they were set.
    pub kept: Vec<Kept>,
    /// `SO_COOKIE` of a socket that came from another process or was passed to one; else 0.
    pub cookie: u64,
}

impl Settings {
    /// Options that sockets accepted from this listener inherit.
    pub fn passed_on(&self) -> impl Iterator<Item = &Kept> {
        self.kept.iter().filter(|(level, name, _)| !NOT_PASSED_ON.contains(&(*level, *name)))
    }

    /// True when `SO_REUSEADDR` is set.
    pub fn reuses_address(&self) -> bool {
        let is_it = |(level, name, _): &&Kept| (*level, *name) == (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        self.kept.iter().find(is_it).is_some_and(|(_, _, value)| value.iter().any(|byte| *byte != 0))
    }
}
