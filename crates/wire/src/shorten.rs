//! The beginning of a super-frame, as a frame: for whoever gets no more of it.

use crate::checksum::update_u16;
use crate::{EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, TcpFlags};

/// Where IPv4 says its whole length, and IPv6 that of its payload.
const V4_LENGTH: usize = 2;
const V6_LENGTH: usize = 4;
const V4_CHECKSUM: usize = 10;
/// Where TCP's flags stand.
const FLAGS: usize = 13;

/// Makes the beginning of a TCP segment, whose end `frame` lacks, a segment of its own: what is lacking counts as lost. The lengths and
/// IPv4's checksum say so, and FIN, which belongs behind the last byte, is gone. TCP's checksum stays: it was verified when the frame was
/// whole. A frame that lacks nothing stays as it is, and so does what is no TCP right behind its IP header.
pub fn shorten(frame: &mut [u8]) {
    let Ok(ethernet) = EthernetHeader::parse(frame) else { return };
    let rest = frame.get_mut(ethernet.header_len()..).unwrap_or_default();
    let tcp = match ethernet.ethertype {
        EtherType::IPV4 => shorten_v4(rest),
        EtherType::IPV6 => shorten_v6(rest),
        _ => None,
    };
    let flags = tcp.and_then(|tcp| rest.get_mut(tcp + FLAGS));
    // With SYN it makes no sense, and is to be seen as what it is.
    if let Some(flags) = flags.filter(|flags| **flags & TcpFlags::SYN.bits() as u8 == 0) {
        *flags &= !(TcpFlags::FIN.bits() as u8);
    }
}

/// Where TCP begins, if the packet was shortened.
fn shorten_v4(packet: &mut [u8]) -> Option<usize> {
    let header = Ipv4Header::parse_unverified(packet).ok()?;
    let len = u16::try_from(packet.len()).ok().filter(|len| *len < header.total_len)?;
    if header.protocol != IpProtocol::TCP || header.is_fragment() {
        return None;
    }
    let sum = u16::from_be_bytes([packet[V4_CHECKSUM], packet[V4_CHECKSUM + 1]]);
    let sum = update_u16(sum, header.total_len, len);
    packet[V4_LENGTH..V4_LENGTH + 2].copy_from_slice(&len.to_be_bytes());
    packet[V4_CHECKSUM..V4_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    Some(header.header_len())
}

fn shorten_v6(packet: &mut [u8]) -> Option<usize> {
    let rest = packet.len().checked_sub(Ipv6Header::LEN)?;
    let payload_len = u16::from_be_bytes([packet[V6_LENGTH], packet[V6_LENGTH + 1]]);
    let len = u16::try_from(rest).ok().filter(|len| *len < payload_len)?;
    if packet[6] != IpProtocol::TCP.0 {
        return None;
    }
    packet[V6_LENGTH..V6_LENGTH + 2].copy_from_slice(&len.to_be_bytes());
    Some(Ipv6Header::LEN)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::shorten;
    use crate::{
        Body, Endpoint, FourTuple, IpParameters, MacAddr, Packet, RxChecksum, TcpFlags, TcpHeader,
        TcpOptions, TxChecksum, emit_tcp, tcp_headers_len,
    };
    use base::SeqNumber;
    use core::net::IpAddr;
    use std::vec;
    use std::vec::Vec;

    fn super_frame(addresses: [&str; 2]) -> Vec<u8> {
        let [src, dst] = addresses.map(|a| Endpoint::new(a.parse::<IpAddr>().unwrap(), 80));
        let (tuple, options) = (FourTuple::new(src, dst), TcpOptions::with_timestamps(1, 2));
        let parameters = IpParameters::new(MacAddr([2; 6]), MacAddr([4; 6]));
        let flags = TcpFlags::ACK.with(TcpFlags::FIN);
        let header = TcpHeader {
            src_port: 80,
            dst_port: 80,
            seq: SeqNumber(7),
            ack: SeqNumber(9),
            flags,
            window: 5,
            urgent: 0,
        };
        let mut frame = vec![0; tcp_headers_len(&parameters, &tuple, &options) + 40_000];
        emit_tcp(&parameters, &tuple, &header, &options, 40_000, TxChecksum::Partial, &mut frame).unwrap();
        frame
    }

    fn tcp(frame: &[u8]) -> Option<(usize, TcpFlags)> {
        match Packet::parse(frame, RxChecksum::Verified).ok()?.body {
            Body::Tcp(tcp) => Some((tcp.payload.len(), tcp.header.flags)),
            _ => None,
        }
    }

    #[test]
    fn the_beginning_of_a_super_frame_is_a_shorter_segment_without_its_end() {
        for addresses in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            let whole = super_frame(addresses);
            let headers = whole.len() - 40_000;
            let mut cut = whole[..16 << 10].to_vec();
            assert_eq!(tcp(&cut), None, "its lengths lie");
            shorten(&mut cut);
            assert_eq!(tcp(&cut), Some(((16 << 10) - headers, TcpFlags::ACK)));
            let mut same = whole.clone();
            shorten(&mut same);
            assert_eq!(same, whole);
        }
    }

    #[test]
    fn what_is_too_short_for_a_header_stays() {
        let whole = super_frame(["10.0.0.1", "10.0.0.2"]);
        for len in 0..80 {
            let mut cut = whole[..len].to_vec();
            shorten(&mut cut);
            assert_eq!(tcp(&cut).map(|(payload, _)| payload), len.checked_sub(66));
        }
    }
}
