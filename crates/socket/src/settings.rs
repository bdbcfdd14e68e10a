//! What the program has set on a socket, as far as it matters later.

use crate::notices::Notices;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// An option set: level, name, value.
pub type Kept = (i32, i32, Box<[u8]>);

/// What the program has set. Accepted sockets share their listener's until either changes.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `SO_RCVTIMEO`.
    pub receive_limit: Option<Duration>,
    /// `SO_SNDTIMEO`.
    pub send_limit: Option<Duration>,
    /// `SO_LINGER` in seconds, when it is on.
    pub linger: Option<u32>,
    /// Something was set that only the kernel can honour: why this socket is never accelerated.
    pub kernel_only: Option<&'static str>,
    /// A listener at no address of its own, or accepted by one.
    pub is_anywhere: bool,
    /// The kernel refuses a connect of it, and has yet to say so.
    pub is_refused: bool,
    /// A connect that is put off (`rings`): the address, as the program gave it.
    pub later: Option<Box<[u8]>>,
    /// What became of it, where the kernel has said so at once: for `SO_ERROR`.
    pub error: Option<Errno>,
    /// Of `MSG_ZEROCOPY`: each socket's own.
    pub notices: Option<Arc<Notices>>,
    /// Options set that an accepted socket inherits.
    pub kept: Vec<Kept>,
    /// `SO_COOKIE`, where the socket came from another process or was let out; else 0.
    pub cookie: u64,
}
