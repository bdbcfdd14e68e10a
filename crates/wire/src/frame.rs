//! Writes whole frames: Ethernet, IP and TCP headers in one step, with the checksum complete or left to the port.

use core::net::IpAddr;

use crate::{
    Ecn, EtherType, EthernetHeader, FourTuple, IpProtocol, Ipv4Header, Ipv6Header, MacAddr, TcpHeader,
    TcpOptions, VlanTag, checksum,
};

error_enum! {
    /// Why a frame could not be written.
    FrameError {
        /// source and destination are not of one IP version
        MixedFamilies,
        /// the packet is longer than IP can say
        TooLong,
        /// the TCP options do not fit in 40 bytes
        OptionsTooLong,
        /// a field does not fit its bits
        FieldOutOfRange,
        /// the buffer is too small for the frame
        BufferTooSmall,
    }
}

/// What to write into the TCP checksum field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TxChecksum {
    /// The complete checksum; the payload must already lie behind the headers.
    Full,
    /// The pseudo header's sum; the port adds the segment itself.
    Partial,
}

/// The header fields around a TCP segment, except its addresses and ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpParameters {
    /// Ethernet source: our address.
    pub src_mac: MacAddr,
    /// Ethernet destination: the next hop's address.
    pub dst_mac: MacAddr,
    /// The VLAN tag, if any.
    pub vlan: Option<VlanTag>,
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// The ECN field of the IP header.
    pub ecn: Ecn,
    /// Time to live (IPv4) or hop limit (IPv6), hops.
    pub hop_limit: u8,
    /// IPv4's identification. A port that cuts a super-frame counts up from it.
    pub identification: u16,
    /// IPv4's DF bit: routers must not fragment the packet.
    pub dont_fragment: bool,
    /// IPv6's flow label, 20 bits.
    pub flow_label: u32,
}

impl IpParameters {
    /// Parameters of a usual frame: no tag, best effort, 64 hops, DF set.
    #[must_use]
    #[inline]
    pub const fn new(src_mac: MacAddr, dst_mac: MacAddr) -> Self {
        Self {
            src_mac,
            dst_mac,
            vlan: None,
            dscp: 0,
            ecn: Ecn::NotEct,
            hop_limit: 64,
            identification: 0,
            dont_fragment: true,
            flow_label: 0,
        }
    }
}

/// Length of the headers that [`emit_tcp`] writes, and so the offset of the payload, bytes.
#[must_use]
#[inline]
pub const fn tcp_headers_len(parameters: &IpParameters, tuple: &FourTuple, options: &TcpOptions) -> usize {
    let ethernet = if parameters.vlan.is_some() { EthernetHeader::LEN_TAGGED } else { EthernetHeader::LEN };
    let ip = if matches!(tuple.src.addr, IpAddr::V4(_)) { Ipv4Header::LEN } else { Ipv6Header::LEN };
    ethernet + ip + TcpHeader::LEN + options.encoded_len()
}

/// Writes Ethernet and IP headers for `payload_len` bytes of `protocol`. Returns their length: the offset of the payload.
///
/// # Errors
/// Any [`FrameError`] except `OptionsTooLong`.
#[inline]
pub fn emit_ip(
    parameters: &IpParameters,
    src: IpAddr,
    dst: IpAddr,
    protocol: IpProtocol,
    payload_len: usize,
    buffer: &mut [u8],
) -> Result<usize, FrameError> {
    let p = parameters;
    let ethertype = if src.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let ethernet = EthernetHeader { dst: p.dst_mac, src: p.src_mac, ethertype, vlan: p.vlan };
    let start = ethernet.emit(buffer).map_err(|_| FrameError::BufferTooSmall)?;
    let rest = &mut buffer[start..];
    if p.dscp > 63 || p.flow_label > 0xF_FFFF {
        return Err(FrameError::FieldOutOfRange);
    }
    let ip_len = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            if payload_len > 0xFFFF - Ipv4Header::LEN {
                return Err(FrameError::TooLong);
            }
            let mut header = Ipv4Header::new(src, dst, protocol, payload_len);
            (header.dscp, header.ecn, header.ttl) = (p.dscp, p.ecn, p.hop_limit);
            (header.identification, header.dont_fragment) = (p.identification, p.dont_fragment);
            header.emit(rest).map_err(|_| FrameError::BufferTooSmall)?
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            if payload_len > 0xFFFF {
                return Err(FrameError::TooLong);
            }
            let mut header = Ipv6Header::new(src, dst, protocol, payload_len);
            (header.dscp, header.ecn, header.hop_limit) = (p.dscp, p.ecn, p.hop_limit);
            header.flow_label = p.flow_label;
            header.emit(rest).map_err(|_| FrameError::BufferTooSmall)?
        }
        _ => return Err(FrameError::MixedFamilies),
    };
    Ok(start + ip_len)
}

/// Writes all headers of a TCP segment with `payload_len` bytes of payload, and returns their length.
///
/// With [`TxChecksum::Full`] the payload must already lie at [`tcp_headers_len`]; with [`TxChecksum::Partial`] it may
/// lie anywhere. Addresses and ports come from `tuple`; `header.src_port` and `header.dst_port` are not read.
///
/// # Errors
/// Any [`FrameError`] can occur.
#[inline]
pub fn emit_tcp(
    parameters: &IpParameters,
    tuple: &FourTuple,
    header: &TcpHeader,
    options: &TcpOptions,
    payload_len: usize,
    tx: TxChecksum,
    buffer: &mut [u8],
) -> Result<usize, FrameError> {
    let options_len = options.encoded_len();
    if options_len > TcpOptions::LEN_MAX {
        return Err(FrameError::OptionsTooLong);
    }
    let (src, dst) = (tuple.src.addr, tuple.dst.addr);
    let segment_len = payload_len.saturating_add(TcpHeader::LEN + options_len);
    let start = emit_ip(parameters, src, dst, IpProtocol::TCP, segment_len, buffer)?;
    let header = TcpHeader { src_port: tuple.src.port, dst_port: tuple.dst.port, ..*header };
    let written = header.emit(options, &mut buffer[start..]).map_err(|_| FrameError::BufferTooSmall)?;
    let pseudo = checksum::pseudo(src, dst, IpProtocol::TCP, segment_len).ok_or(FrameError::TooLong)?;
    let is_filled = match tx {
        TxChecksum::Partial => {
            checksum::fill_partial(pseudo, &mut buffer[start..], TcpHeader::CHECKSUM_OFFSET)
        }
        TxChecksum::Full => {
            let segment = buffer.get_mut(start..start + segment_len).ok_or(FrameError::BufferTooSmall)?;
            checksum::fill(pseudo, segment, TcpHeader::CHECKSUM_OFFSET)
        }
    };
    if is_filled { Ok(start + written) } else { Err(FrameError::BufferTooSmall) }
}
