//! Why a call failed: one value for each cause.

use control::KernelReason;
use rustix::io::Errno;
use std::fmt::{self, Display, Formatter};

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no service, it is not trusted, it is of another version, or it refuses this process; the text says which.
    NoService(String),
    /// The service has ended: every connection is over. Open a new [`Service`](crate::Service).
    ServiceGone,
    /// The handle's connection or listener was closed.
    Gone,
    /// The ring belongs to the process that made it, and this process was forked from that.
    NotYours,
    /// The handle is a listener's, and the call is for connections, or the other way round.
    WrongKind,
    /// The descriptor has no connection that a ring could have, for this reason.
    NoConnection(&'static str),
    /// The kernel would have to carry the connection or the listener, and a ring cannot.
    KernelOnly(KernelReason),
    /// The service refuses: EACCES by its policy, ECONNREFUSED where nothing listens, EADDRINUSE, and others.
    Refused(Errno),
    /// The connection has ended: ECONNRESET, EPIPE, ETIMEDOUT and others, as `send` and `recv` report them.
    Ended(Errno),
    /// A call out of order, or a use of released bytes, found in the checked mode ([`crate::check`]); the text says what and where.
    Misuse(String),
    /// No ring of this process holds so many bytes at once.
    TooLong,
    /// A limit is reached: connections, contexts, descriptors or memory.
    Full(Errno),
    /// The kernel refused a call, with this error.
    Os(Errno),
}

impl Error {
    /// The error as a number of `errno.h`.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoService(_) => libc::ENETDOWN,
            Self::ServiceGone => libc::ENETRESET,
            Self::Gone => libc::EBADF,
            Self::NotYours => libc::EPERM,
            Self::WrongKind | Self::NoConnection(_) | Self::Misuse(_) => libc::EINVAL,
            Self::KernelOnly(_) => libc::EOPNOTSUPP,
            Self::TooLong => libc::EMSGSIZE,
            Self::Refused(e) | Self::Ended(e) | Self::Full(e) | Self::Os(e) => e.raw_os_error(),
        }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoService(why) => write!(f, "no service: {why}"),
            Self::ServiceGone => f.write_str("the service has ended, and with it every connection"),
            Self::Gone => f.write_str("this connection or listener was closed"),
            Self::NotYours => f.write_str("the ring belongs to the process that this one was forked from"),
            Self::WrongKind => f.write_str("a call for connections on a listener, or the other way round"),
            Self::NoConnection(why) => write!(f, "the descriptor has no connection: {why}"),
            Self::KernelOnly(reason) => write!(f, "only the kernel can carry it: {reason}"),
            Self::Refused(e) => write!(f, "refused: {e}"),
            Self::Ended(e) => write!(f, "the connection has ended: {e}"),
            Self::Misuse(what) => write!(f, "misuse: {what}"),
            Self::TooLong => f.write_str("no ring holds so many bytes at once"),
            Self::Full(e) => write!(f, "a limit is reached: {e}"),
            Self::Os(e) => write!(f, "the kernel refused: {e}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        Self::new(Self::from_raw_os_error(e.errno()).kind(), e)
    }
}
