//! Turns the beginning of a super-frame into a valid frame, for a receiver that gets only the beginning.

use crate::checksum::update_u16;
use crate::{EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, TcpFlags};

/// Offset of the total length in the IPv4 header, and of the payload length in the IPv6 header.
const V4_LENGTH: usize = 2;
const V6_LENGTH: usize = 4;
const V4_CHECKSUM: usize = 10;
/// Offset of the low flags byte in the TCP header.
const FLAGS: usize = 13;

/// Turns a TCP segment without its end into a shorter valid segment; the missing bytes count as lost. Adjusts the IP length and IPv4's
/// checksum, and clears FIN, which belongs behind the last byte. TCP's checksum stays: it was verified on the whole frame. Does not
/// change a complete frame, or one without TCP directly behind its IP header.
pub fn shorten(frame: &mut [u8]) {
    let Ok(ethernet) = EthernetHeader::parse(frame) else { return };
    let rest = frame.get_mut(ethernet.header_len()..).unwrap_or_default();
    let tcp = match ethernet.ethertype {
        EtherType::IPV4 => shorten_v4(rest),
        EtherType::IPV6 => shorten_v6(rest),
        _ => None,
    };
    let flags = tcp.and_then(|tcp| rest.get_mut(tcp + FLAGS));
    // A segment with SYN is left as it is: SYN together with FIN is invalid, and the receiver must see that.
    if let Some(flags) = flags.filter(|flags| **flags & TcpFlags::SYN.bits() as u8 == 0) {
        *flags &= !(TcpFlags::FIN.bits() as u8);
    }
}

/// Shortens an IPv4 packet. Returns the offset of the TCP header, or `None` if nothing was shortened.
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
