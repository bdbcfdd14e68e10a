//! Who talks to whom: an address with a port, and the pair of them that names a connection.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint {
    /// The address.
    pub addr: IpAddr,
    /// The TCP port.
    pub port: u16,
}

/// Both ends of a connection, in the direction of one packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FourTuple {
    /// Where the packet comes from.
    pub src: Endpoint,
    /// Where the packet goes.
    pub dst: Endpoint,
}

impl Endpoint {
    /// `addr:port`.
    #[must_use]
    #[inline]
    pub const fn new(addr: IpAddr, port: u16) -> Self {
        Self { addr, port }
    }
}

impl FourTuple {
    /// From `src` to `dst`.
    #[must_use]
    #[inline]
    pub const fn new(src: Endpoint, dst: Endpoint) -> Self {
        Self { src, dst }
    }

    /// The same connection, seen in the other direction.
    #[must_use]
    #[inline]
    pub const fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src }
    }
}

impl From<SocketAddr> for Endpoint {
    /// The scope and flow label of an IPv6 socket address are left behind.
    #[inline]
    fn from(address: SocketAddr) -> Self {
        Self { addr: address.ip(), port: address.port() }
    }
}

impl From<Endpoint> for SocketAddr {
    #[inline]
    fn from(end: Endpoint) -> Self {
        Self::new(end.addr, end.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&SocketAddr::from(*self), f)
    }
}

impl fmt::Display for FourTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.src, self.dst)
    }
}
