//! CREATE: what an agent learns of a flow that has begun.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

/// Bytes of the name of an algorithm, with the zero behind it.
pub const NAME_LEN: usize = 64;

/// A flow that has begun.
///
/// ```text
/// 8: window u32 | 12: mss u32 | 16: source address, network order | 20: port u32 | 24: destination address | 28: port u32 | 32..96: name, zeros
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Create {
    /// The congestion window, bytes.
    pub cwnd: u32,
    /// The largest segment, bytes.
    pub mss: u32,
    /// Our address. The format has no room for IPv6: see [`shown_address`].
    pub source: SocketAddrV4,
    /// The peer's address, shown in the same way.
    pub destination: SocketAddrV4,
    /// The name of the algorithm; all bytes behind the first zero are zeros.
    name: [u8; NAME_LEN],
}

/// The address as a CREATE shows it. Of an IPv6 address that maps no IPv4 address these are the last four bytes: enough to tell most peers
/// apart, and no address to connect to.
#[must_use]
pub fn shown_address(address: SocketAddr) -> SocketAddrV4 {
    let ip = match address.ip().to_canonical() {
        std::net::IpAddr::V4(ip) => ip,
        std::net::IpAddr::V6(ip) => Ipv4Addr::from_bits(ip.to_bits() as u32),
    };
    SocketAddrV4::new(ip, address.port())
}

impl Create {
    /// A flow without a name of an algorithm: the agent takes its default one.
    #[must_use]
    pub const fn new(cwnd: u32, mss: u32, source: SocketAddrV4, destination: SocketAddrV4) -> Self {
        Self { cwnd, mss, source, destination, name: [0; NAME_LEN] }
    }

    /// The same flow with this name of an algorithm; `None` if the name has a zero or more than 63 bytes.
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Option<Self> {
        if name.len() >= NAME_LEN || name.contains('\0') {
            return None;
        }
        self.name = [0; NAME_LEN];
        self.name[..name.len()].copy_from_slice(name.as_bytes());
        Some(self)
    }

    /// The name of the algorithm; empty: the agent's default. Bytes that are no UTF-8 are no name.
    #[must_use]
    pub fn name(&self) -> &str {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
        std::str::from_utf8(&self.name[..end]).unwrap_or_default()
    }

    /// The body of a CREATE. Agents up to 0.5 know only the first 24 bytes, so those alone are taken, too.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let word = |at: usize| body.get(at..at + 4).and_then(|four| <[u8; 4]>::try_from(four).ok());
        let number = |at| word(at).map(u32::from_le_bytes);
        let address = |at| {
            let port = u16::try_from(number(at + 4)?).ok()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(word(at)?), port))
        };
        let mut name = [0; NAME_LEN];
        let sent = body.get(24..).unwrap_or_default();
        if sent.len() > NAME_LEN {
            return None;
        }
        let end = sent.iter().position(|byte| *byte == 0).unwrap_or(sent.len());
        name[..end].copy_from_slice(&sent[..end]);
        let (source, destination) = (address(8)?, address(16)?);
        Some(Self { cwnd: number(0)?, mss: number(4)?, source, destination, name })
    }

    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.cwnd.to_le_bytes());
        to.extend_from_slice(&self.mss.to_le_bytes());
        for address in [self.source, self.destination] {
            to.extend_from_slice(&address.ip().octets());
            to.extend_from_slice(&u32::from(address.port()).to_le_bytes());
        }
        to.extend_from_slice(&self.name);
    }
}
