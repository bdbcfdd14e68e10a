//! `struct sockaddr` as bytes: `sockaddr_in` and `sockaddr_in6`.

use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of `sockaddr_in6`, the longer of the two.
pub(crate) const LEN_MAX: usize = 28;

/// Parses an address.
///
/// # Errors
/// EINVAL if `bytes` are too few, EAFNOSUPPORT for another family.
pub(crate) fn parse(bytes: &[u8]) -> Result<SocketAddr, Errno> {
    let family = u16::from_ne_bytes(*bytes.first_chunk().ok_or(Errno::INVAL)?);
    let field = |at: usize, len: usize| bytes.get(at..at + len).ok_or(Errno::INVAL);
    let port = || Ok(u16::from_be_bytes(*field(2, 2)?.first_chunk().ok_or(Errno::INVAL)?));
    let ip = match i32::from(family) {
        libc::AF_INET => Ipv4Addr::from(*field(4, 4)?.first_chunk::<4>().ok_or(Errno::INVAL)?).into(),
        libc::AF_INET6 => Ipv6Addr::from(*field(8, 16)?.first_chunk::<16>().ok_or(Errno::INVAL)?).into(),
        _ => return Err(Errno::AFNOSUPPORT),
    };
    Ok(SocketAddr::new(ip, port()?))
}

/// The address in the form for a socket of this family: 16 or 28 bytes.
pub(crate) fn emit(address: SocketAddr, is_v6: bool) -> Vec<u8> {
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET } as u16;
    let mut bytes = family.to_ne_bytes().to_vec();
    bytes.extend(address.port().to_be_bytes());
    match (address.ip(), is_v6) {
        (IpAddr::V4(v4), false) => {
            bytes.extend(v4.octets());
            bytes.resize(16, 0);
        }
        (ip, _) => {
            let v6 = match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            bytes.extend([0; 4]);
            bytes.extend(v6.octets());
            bytes.resize(LEN_MAX, 0);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{emit, parse};
    use rustix::io::Errno;

    #[test]
    fn address_comes_back_and_an_ipv4_peer_of_an_ipv6_socket_is_mapped() {
        for text in ["192.0.2.1:8080", "[2001:db8::1]:80"] {
            let address = text.parse().unwrap();
            assert_eq!(parse(&emit(address, address.is_ipv6())), Ok(address));
        }
        let mapped = parse(&emit("192.0.2.1:9".parse().unwrap(), true)).unwrap();
        assert_eq!(mapped, "[::ffff:192.0.2.1]:9".parse().unwrap());
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        let bytes = emit("[::1]:1".parse().unwrap(), true);
        for len in 0..24 {
            assert_eq!(parse(&bytes[..len]), Err(Errno::INVAL), "{len}");
        }
        assert_eq!(parse(&[0; 28]), Err(Errno::AFNOSUPPORT));
    }
}
