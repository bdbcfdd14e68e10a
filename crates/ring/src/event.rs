//! What a ring tells its program.

use crate::handle::Handle;
use rustix::io::Errno;
use std::net::SocketAddr;

/// One thing that has happened. The events of one `wait` tell readiness: over several connections they say nothing about the order in which
/// bytes came. The events of one connection follow one another, in the order of [`Kind`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The connection; for [`Kind::Timer`] and [`Kind::Woken`] a handle that names nothing.
    pub handle: Handle,
    /// The token that the program gave: to `connect`, to `listen` (its accepted connections have it, too, until [`crate::Conn::set_token`]),
    /// or to `timer`.
    pub token: u64,
    /// What has happened to it.
    pub kind: Kind,
}

/// What has happened, in the order in which one connection's events come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A listener has a new connection. No other event of the connection comes earlier.
    Accepted {
        /// The listener that has accepted it.
        listener: Handle,
        /// The address of this end.
        local: SocketAddr,
        /// The address of the other end.
        peer: SocketAddr,
    },
    /// A connection that this program wanted is made.
    Connected,
    /// A connection that this program wanted is not made, for this reason. Close the handle.
    Failed(Errno),
    /// Bytes have come since the last look. Bytes that a read leaves unread are told again only when more come, or after
    /// [`crate::Conn::again`].
    Readable,
    /// There is room again, after a `reserve` that found none.
    Writable,
    /// The peer sends no more. Bytes that came before may be unread.
    Finished,
    /// The connection has ended otherwise than by both sides' ends. Bytes that came before can still be read. Close the handle.
    Closed(Errno),
    /// A timer is due.
    Timer,
    /// A [`crate::Waker`] was used.
    Woken,
}
