//! An endpoint (address and port), and the pair of endpoints that identifies a connection.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint {
    /// IPv4 or IPv6 address.
    pub addr: IpAddr,
    /// TCP port, host order.
    pub port: u16,
}

/// Both ends of a connection, in the direction of one packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FourTuple {
    /// Endpoint of the sender.
    pub src: Endpoint,
    /// Endpoint of the receiver.
    pub dst: Endpoint,
}

impl Endpoint {
    /// The endpoint with this address and port.
    #[must_use]
    #[inline]
    pub const fn new(addr: IpAddr, port: u16) -> Self {
        Self { addr, port }
    }
}

impl FourTuple {
    /// The tuple of a packet from `src` to `dst`.
    #[must_use]
    #[inline]
    pub const fn new(src: Endpoint, dst: Endpoint) -> Self {
        Self { src, dst }
    }

    /// The same connection, in the opposite direction.
    #[must_use]
    #[inline]
    pub const fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src }
    }
}

impl From<SocketAddr> for Endpoint {
    /// Drops the scope and flow label of an IPv6 socket address.
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
