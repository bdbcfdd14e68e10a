//! The header fields that the segmenter and the tracer need, read from a frame that has not been checked.

pub(crate) const ETHERTYPE_V4: u16 = 0x0800;
pub(crate) const ETHERTYPE_V6: u16 = 0x86DD;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88A8;
const PROTOCOL_TCP: u8 = 6;

pub(crate) const TCP_FIN: u8 = 0x01;
pub(crate) const TCP_PSH: u8 = 0x08;
pub(crate) const TCP_CWR: u8 = 0x80;

/// Offsets of the headers of a TCP frame; all lie within the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub v4: bool,
    pub ip: usize,
    pub tcp: usize,
    pub payload: usize,
}

/// The big-endian 16-bit value at offset `at`.
pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The big-endian 32-bit value at offset `at`.
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Overwrites the bytes at `at`; the caller has checked that they lie within `bytes`.
pub(crate) fn write(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// The Ethernet type behind at most two VLAN tags, and the offset of the network header.
pub(crate) fn network(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = 12;
    for _ in 0..3 {
        match read_u16(frame, at)? {
            ETHERTYPE_VLAN | ETHERTYPE_QINQ => at += 4,
            other => return Some((other, at + 2)),
        }
    }
    None
}

impl Layout {
    /// Finds TCP directly behind IPv4 or IPv6; packets with IPv6 extension headers and fragments are not found.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let (ethertype, ip) = network(frame)?;
        let v4 = ethertype == ETHERTYPE_V4;
        let tcp = match ethertype {
            ETHERTYPE_V4 => ip + Self::ipv4_header_len(frame.get(ip..)?)?,
            ETHERTYPE_V6 => ip + Self::ipv6_header_len(frame.get(ip..)?)?,
            _ => return None,
        };
        let header_len = usize::from(frame.get(tcp + 12)? >> 4) * 4;
        let payload = tcp + header_len;
        (header_len >= 20 && payload <= frame.len()).then_some(Self { v4, ip, tcp, payload })
    }

    fn ipv4_header_len(ip: &[u8]) -> Option<usize> {
        let header_len = usize::from(ip.first()? & 0x0F) * 4;
        let is_fragment = read_u16(ip, 6)? & 0x3FFF != 0;
        let is_tcp = ip.first()? >> 4 == 4 && *ip.get(9)? == PROTOCOL_TCP;
        (is_tcp && !is_fragment && header_len >= 20).then_some(header_len)
    }

    fn ipv6_header_len(ip: &[u8]) -> Option<usize> {
        (ip.first()? >> 4 == 6 && *ip.get(6)? == PROTOCOL_TCP).then_some(40)
    }
}
