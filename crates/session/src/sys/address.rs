//! Socket addresses as C passes them, to and from Rust's.

use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of the longest address we know: `struct sockaddr_in6`.
pub const ADDRESS_MAX: usize = 28;

/// The address in `bytes`.
///
/// # Errors
/// EINVAL when it is too short for its family, EAFNOSUPPORT for other families than IPv4 and IPv6.
pub fn parse(bytes: &[u8]) -> Result<SocketAddr, Errno> {
    let family = u16::from_ne_bytes(bytes.get(..2).and_then(|b| b.try_into().ok()).ok_or(Errno::INVAL)?);
    let port = || Some(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?));
    match i32::from(family) {
        libc::AF_INET if bytes.len() >= 16 => {
            let ip: [u8; 4] = bytes[4..8].try_into().map_err(|_| Errno::INVAL)?;
            Ok(SocketAddr::V4(SocketAddrV4::new(ip.into(), port().ok_or(Errno::INVAL)?)))
        }
        libc::AF_INET6 if bytes.len() >= 24 => {
            let ip: [u8; 16] = bytes[8..24].try_into().map_err(|_| Errno::INVAL)?;
            let word = |at: usize| {
                bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
            };
            let port = port().ok_or(Errno::INVAL)?;
            Ok(SocketAddr::V6(SocketAddrV6::new(ip.into(), port, u32::from_be(word(4)), word(24))))
        }
        libc::AF_INET | libc::AF_INET6 => Err(Errno::INVAL),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// The address in C's form on a socket of `family` (an IPv4 address on an IPv6 socket is v4-mapped), and its length in bytes.
#[must_use]
pub fn bytes(address: SocketAddr, family: i32) -> ([u8; ADDRESS_MAX], usize) {
    let mut out = [0; ADDRESS_MAX];
    out[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    out[2..4].copy_from_slice(&address.port().to_be_bytes());
    if family == libc::AF_INET {
        if let IpAddr::V4(ip) = plain(address).ip() {
            out[4..8].copy_from_slice(&ip.octets());
        }
        return (out, 16);
    }
    let (ip, scope) = match address {
        SocketAddr::V4(a) => (a.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(a) => (*a.ip(), a.scope_id()),
    };
    out[8..24].copy_from_slice(&ip.octets());
    out[24..28].copy_from_slice(&scope.to_ne_bytes());
    (out, 28)
}

/// A v4-mapped address as the IPv4 address it stands for; anything else as it is.
#[must_use]
pub fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(a) => match a.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::V4(SocketAddrV4::new(ip, a.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

/// The wildcard address of the family of `like`.
#[must_use]
pub fn unspecified(like: SocketAddr) -> SocketAddr {
    let ip: IpAddr = if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_bytes() {
        for text in ["127.0.0.1:80", "[::1]:8080", "[fe80::1%3]:9", "0.0.0.0:0"] {
            let a: SocketAddr = text.parse().unwrap();
            let family = if a.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
            let (b, n) = bytes(a, family);
            assert_eq!(parse(&b[..n]), Ok(a));
        }
    }

    #[test]
    fn v4_on_a_v6_socket_is_mapped() {
        let (b, n) = bytes("10.0.0.1:5".parse().unwrap(), libc::AF_INET6);
        assert_eq!(parse(&b[..n]).unwrap().to_string(), "[::ffff:10.0.0.1]:5");
        assert_eq!(plain(parse(&b[..n]).unwrap()).to_string(), "10.0.0.1:5");
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        assert_eq!(parse(&[]), Err(Errno::INVAL));
        assert_eq!(parse(&[2, 0, 0, 80]), Err(Errno::INVAL));
        assert_eq!(parse(&[1, 0, 0, 80]), Err(Errno::AFNOSUPPORT));
    }
}
