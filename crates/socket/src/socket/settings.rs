//! Options and state of a socket that the library needs later: what the program has set, and how a connect ended.

use crate::socket::zerocopy::Notices;
use control::KernelReason;
use endpoint::options::Options;
use rustix::io::Errno;
use std::sync::Arc;

/// Options and state of one socket. Accepted sockets share those of their listener until either changes.
#[derive(Debug, Clone, Default)]
pub struct Settings {
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
    /// Options that an accepted socket inherits.
    pub options: Options,
    /// `SO_COOKIE` of a socket that came from another process or was passed to one; else 0.
    pub cookie: u64,
}
