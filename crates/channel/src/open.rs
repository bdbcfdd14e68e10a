//! The body of an OPEN frame: which listener the peer's new virtual socket is for.
//!
//! ```text
//!  0 family u8 (4, 6) | 1 options u8 | 2 local port u16 | 4 remote port u16 | 6 zero u16 | 8 address [16], IPv4 in the first four bytes     24 bytes
//! ```
//! The address is the one that the opener's program connects to; the opener's own address is always that of the session.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::frame::{HEADER_LEN, Header, Kind, field};
use crate::violation::Violation;

/// Bytes of the body in this version.
pub(crate) const LEN: usize = 24;

/// The bit for a socket with TCP_NODELAY.
pub const NODELAY: u8 = 1;
/// The bit for a socket with SO_KEEPALIVE.
pub const KEEPALIVE: u8 = 2;

/// The body of an OPEN frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// The port of the opener's socket.
    pub from_port: u16,
    /// Where the opener's program connects to.
    pub to: SocketAddr,
    /// Options of the opener's socket that the acceptor's socket need not have: [`NODELAY`], [`KEEPALIVE`].
    pub options: u8,
}

impl Open {
    /// The whole frame; `edge`: how many bytes the peer may send at first.
    #[must_use]
    pub fn encode(&self, socket: u32, edge: u64) -> [u8; HEADER_LEN + LEN] {
        let header = Header { length: LEN as u32, kind: Kind::Open, socket, argument: edge };
        let mut frame = [0; HEADER_LEN + LEN];
        frame[..HEADER_LEN].copy_from_slice(&header.encode());
        let body = &mut frame[HEADER_LEN..];
        body[1] = self.options;
        body[2..4].copy_from_slice(&self.from_port.to_le_bytes());
        body[4..6].copy_from_slice(&self.to.port().to_le_bytes());
        match self.to.ip() {
            IpAddr::V4(ip) => {
                body[0] = 4;
                body[8..12].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                body[0] = 6;
                body[8..24].copy_from_slice(&ip.octets());
            }
        }
        frame
    }

    /// Reads the body of an OPEN frame. Options of a later version are ignored.
    ///
    /// # Errors
    /// [`Violation::Open`] when a field is out of range.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        let [family, options] = field(body, 0);
        let port = |at| u16::from_le_bytes(field(body, at));
        let ip = match family {
            4 => IpAddr::V4(Ipv4Addr::from(field::<4>(body, 8))),
            6 => IpAddr::V6(Ipv6Addr::from(field::<16>(body, 8))),
            _ => return Err(Violation::Open),
        };
        if body.len() < LEN || port(2) == 0 || port(4) == 0 {
            return Err(Violation::Open);
        }
        Ok(Self {
            from_port: port(2),
            to: SocketAddr::new(ip, port(4)),
            options: options & (NODELAY | KEEPALIVE),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_has_the_bytes_of_the_picture() {
        let open = Open { from_port: 0x0102, to: ([10, 0, 0, 2], 0x0304).into(), options: NODELAY };
        let frame = open.encode(0x0506, 0x0708);
        let mut golden = [0; 40];
        golden[..12].copy_from_slice(&[24, 0, 0, 2, 6, 5, 0, 0, 8, 7, 0, 0]);
        golden[16..28].copy_from_slice(&[4, 1, 2, 1, 4, 3, 0, 0, 10, 0, 0, 2]);
        assert_eq!(frame, golden);
        assert_eq!(Open::parse(&frame[16..]), Ok(open));
        let six = Open { to: ([1, 2, 3, 4, 5, 6, 7, 8], 9).into(), ..open };
        assert_eq!(Open::parse(&six.encode(1, 0)[16..]), Ok(six));
    }

    #[test]
    fn family_and_ports_must_be_sane() {
        let frame = Open { from_port: 1, to: ([10, 0, 0, 2], 2).into(), options: 0 }.encode(1, 0);
        for at in [0, 2, 4] {
            let mut body = frame[16..].to_vec();
            body[at] = 0;
            assert_eq!(Open::parse(&body), Err(Violation::Open));
        }
        assert_eq!(Open::parse(&frame[16..39]), Err(Violation::Open));
    }
}
