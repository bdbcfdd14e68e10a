//! Cuts packets to the machine into segments, as a network card would have received them.

use port::{Gso, GsoKind, PacketBuf, Segmenter};
use wire::EthernetHeader;

/// Cuts `frame` into frames with at most `mss` bytes of payload.
pub(crate) fn cut(frame: Vec<u8>, mss: Option<u16>) -> Vec<Vec<u8>> {
    let header_len =
        frame.get(EthernetHeader::LEN..).and_then(headers).map_or(0, |n| EthernetHeader::LEN + n);
    let payload = frame.len().saturating_sub(header_len);
    let is_tcp = header_len > 0;
    let Some(mss) = mss.filter(|mss| is_tcp && usize::from(*mss) < payload) else { return vec![frame] };
    let mut whole = PacketBuf::with_capacity(frame.len());
    let mut piece = PacketBuf::with_capacity(frame.len());
    if !whole.fill(&frame) {
        return vec![frame];
    }
    let kind = if frame[EthernetHeader::LEN] >> 4 == 4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    whole.meta.gso = Some(Gso { kind, segment_size: mss, header_len: header_len as u16, ecn: false });
    let Ok(mut segments) = Segmenter::new(&whole) else { return vec![frame] };
    std::iter::from_fn(|| segments.next_into(&whole, &mut piece).then(|| piece.frame().to_vec())).collect()
}

/// Bytes of the IP header (without extension headers) and the TCP header; `None` if the packet is not TCP.
fn headers(packet: &[u8]) -> Option<usize> {
    let (at, protocol) = match packet.first()? >> 4 {
        4 => (usize::from(packet[0] & 15) * 4, *packet.get(9)?),
        _ => (40, *packet.get(6)?),
    };
    let tcp = packet.get(at..).filter(|tcp| tcp.len() >= 20 && protocol == 6)?;
    Some(at + usize::from(tcp[12] >> 4) * 4)
}

#[cfg(test)]
mod tests {
    use super::cut;

    /// An Ethernet frame with an IPv4 packet and a TCP segment with PSH.
    fn frame(payload: usize) -> Vec<u8> {
        let mut frame = vec![0; 54 + payload];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
        frame[23] = 6;
        (frame[46], frame[47]) = (0x50, 0x18);
        frame
    }

    #[test]
    fn pieces_are_no_longer_than_a_segment_and_the_last_one_has_the_push() {
        let pieces = cut(frame(2500), Some(1000));
        let lengths: Vec<_> = pieces.iter().map(|piece| (piece.len() - 54, piece[47] & 8 != 0)).collect();
        assert_eq!(lengths, [(1000, false), (1000, false), (500, true)]);
        assert_eq!(cut(frame(2500), None), [frame(2500)]);
        assert_eq!(cut(frame(1000), Some(1000)), [frame(1000)]);
        assert_eq!(cut(vec![0; 30], Some(10)), [vec![0; 30]]);
    }
}
