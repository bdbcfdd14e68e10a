//! PSH of segments that were one burst.
//!
//! packetdrill's scripts are written for what a packet socket of Linux sees: super-frames, before they are cut. PSH belongs to
//! the whole of one, and a shorter tail is none of it while Nagle's rule may hold it back. The tool puts cut segments together again by the flags of the first, so every segment of a contiguous
//! burst that ends with PSH shows it; what the machine sends is judged in no other way.

use crate::stack::Sent;

const PSH: u8 = 0x08;

/// What a segment has to share with the one behind it.
#[derive(Clone, Copy)]
struct Segment {
    /// Where its TCP header begins.
    at: usize,
    seq: u32,
    payload: usize,
    flags: u8,
}

/// Marks the bursts of one instant.
pub(crate) fn mark(sent: &mut [Sent]) {
    for i in (1..sent.len()).rev() {
        let (before, behind) = sent.split_at_mut(i);
        let (Some(one), Some(two)) = (before.last_mut(), behind.first()) else { return };
        let (Some(a), Some(b)) = (segment(&one.packet), segment(&two.packet)) else { continue };
        let is_cut = a.payload == b.payload
            && b.payload > 0
            && a.seq.wrapping_add(a.payload as u32) == b.seq
            && a.flags | PSH == b.flags
            && one.packet.get(a.at..a.at + 4) == two.packet.get(b.at..b.at + 4);
        if is_cut && a.flags & PSH == 0 {
            set_push(&mut one.packet, a.at);
        }
    }
}

/// The TCP segment of an IP packet without extension headers.
fn segment(packet: &[u8]) -> Option<Segment> {
    let (at, protocol) = match packet.first()? >> 4 {
        4 => (usize::from(packet[0] & 15) * 4, *packet.get(9)?),
        _ => (40, *packet.get(6)?),
    };
    let tcp = packet.get(at..).filter(|tcp| tcp.len() >= 20 && protocol == 6)?;
    let header = usize::from(tcp[12] >> 4) * 4;
    let seq = u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?);
    Some(Segment { at, seq, payload: tcp.len().checked_sub(header)?, flags: tcp[13] })
}

/// RFC 1624: `HC' = ~(~HC + ~m + m')`
fn set_push(packet: &mut [u8], at: usize) {
    let Some(tcp) = packet.get_mut(at..).filter(|tcp| tcp.len() >= 20) else { return };
    let word = |tcp: &[u8], i: usize| u32::from(u16::from_be_bytes([tcp[i], tcp[i + 1]]));
    let old = word(tcp, 12);
    tcp[13] |= PSH;
    let mut sum = (!word(tcp, 16) & 0xFFFF) + (!old & 0xFFFF) + word(tcp, 12);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    tcp[16..18].copy_from_slice(&(!sum as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::mark;
    use crate::stack::Sent;
    use base::Instant;

    /// A segment whose checksum is that of its header and zeros, without the pseudo-header.
    fn sent(port: u8, seq: u32, payload: usize, flags: u8) -> Sent {
        let mut packet = vec![0; 40 + payload];
        packet[0] = 0x45;
        packet[9] = 6;
        packet[21] = port;
        packet[24..28].copy_from_slice(&seq.to_be_bytes());
        packet[32] = 0x50;
        packet[33] = flags;
        let sum = checksum(&packet[20..]);
        packet[36..38].copy_from_slice(&sum.to_be_bytes());
        Sent { at: Instant::from_ns(0), packet }
    }

    fn checksum(bytes: &[u8]) -> u16 {
        let mut sum: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum();
        while sum >> 16 != 0 {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        !sum as u16
    }

    fn flags(sent: &[Sent]) -> Vec<u8> {
        sent.iter().map(|one| one.packet[33]).collect()
    }

    #[test]
    fn every_segment_of_a_burst_that_ends_with_psh_shows_it_and_its_checksum_holds() {
        let mut burst = [sent(1, 0, 1000, 0x10), sent(1, 1000, 1000, 0x10), sent(1, 2000, 1000, 0x18)];
        mark(&mut burst);
        assert_eq!(flags(&burst), [0x18, 0x18, 0x18]);
        assert!(burst.iter().all(|one| checksum(&one.packet[20..]) == 0));
    }

    #[test]
    fn segments_that_were_not_cut_from_one_stay_as_they_are() {
        let ack = [sent(1, 0, 0, 0x10), sent(1, 0, 10, 0x18)];
        let apart = [sent(1, 0, 1000, 0x10), sent(1, 2000, 1000, 0x18)];
        let other = [sent(1, 0, 1000, 0x10), sent(2, 1000, 1000, 0x18)];
        let end = [sent(1, 0, 1000, 0x10), sent(1, 1000, 1000, 0x19)];
        let growing = [sent(1, 0, 10, 0x10), sent(1, 10, 1000, 0x18)];
        let tail = [sent(1, 0, 1000, 0x10), sent(1, 1000, 10, 0x18)];
        for mut pair in [ack, apart, other, end, growing, tail] {
            mark(&mut pair);
            assert_eq!(pair[0].packet[33], 0x10);
        }
    }
}
