//! What a network interface does with received frames before software sees them: it spreads flows over its queues, and merges segments.
//!
//! ```text
//!   | headers | 1000..2448 |  | headers | 2448..3896 |  | headers | 3896..4000 PSH |       on the wire
//!   | headers | 1000..4000                        PSH |                                     as the fast path gets them
//! ```

use port::{Checksum, Gso, GsoKind, PacketMeta};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use wire::{FourTuple, IpProtocol, Packet, RxChecksum, TcpFlags, TcpHeader, TcpPacket, checksum};

/// Largest number of payload bytes in a merged frame: Linux's `GRO_LEGACY_MAX_SIZE` less headers.
const MERGED_MAX: usize = 64_000;
/// Offsets of the total length and the checksum in the IPv4 header, and of the payload length in the IPv6 header.
const V4_LENGTH: usize = 2;
const V4_CHECKSUM: usize = 10;
const V6_LENGTH: usize = 4;
const TCP_FLAGS: usize = 13;

/// The queue, out of `queues`, for a frame: both directions of a flow get the same one; frames without TCP get the first.
pub(crate) fn queue_of(frame: &[u8], queues: usize) -> usize {
    if queues == 1 {
        return 0;
    }
    let Some(packet) = tcp_of(frame, RxChecksum::Verified) else { return 0 };
    let tuple @ FourTuple { src, dst } = packet.tuple();
    let mut hasher = DefaultHasher::new();
    if (src.addr, src.port) < (dst.addr, dst.port) { tuple } else { tuple.reversed() }.hash(&mut hasher);
    (hasher.finish() % queues as u64) as usize
}

/// The group of a frame; `None` for frames without TCP.
pub(crate) fn group_of(frame: &[u8]) -> Option<u8> {
    tcp_of(frame, RxChecksum::Verified).map(|packet| packet.tuple().group())
}

/// Merges into `frame` the frames that follow it in `waiting`, as far as [`follows`] allows. Returns the merged frame's metadata; `None`
/// when there is nothing to merge.
pub(crate) fn merge(frame: &mut Vec<u8>, waiting: &mut VecDeque<Vec<u8>>) -> Option<PacketMeta> {
    let first = tcp_of(frame, RxChecksum::Verify)?;
    let segment_size = first.payload.len();
    frame.truncate(first.payload.end as usize);
    let mut last = first;
    let mut flags = first.header.flags;
    while let Some(next) = waiting.front().and_then(|next| tcp_of(next, RxChecksum::Verify)) {
        let has_room = frame.len() - first.payload.start as usize + next.payload.len() <= MERGED_MAX;
        if !has_room || last.payload.len() != segment_size || !follows(&first, &last, &next) {
            break;
        }
        let bytes = waiting.pop_front()?;
        frame.extend_from_slice(next.payload.of(&bytes));
        flags = flags.with(next.header.flags);
        last = next;
    }
    if last == first {
        return None;
    }
    let start = first.ip.payload.start as usize;
    frame[start + TCP_FLAGS] = flags.bits() as u8;
    fix_lengths(frame, &first);
    let gso = Gso {
        kind: if first.ip.src.is_ipv4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 },
        segment_size: segment_size as u16,
        header_len: first.payload.start as u16,
        ecn: false,
    };
    // As a TAP gives merged frames: the kernel has verified the checksums of the segments, and the merged frame's own checksum is not
    // computed.
    let checksum = Checksum::Partial { start: start as u16, offset: TcpHeader::CHECKSUM_OFFSET as u16 };
    Some(PacketMeta { checksum, gso: Some(gso), flow_hash: None })
}

fn tcp_of(frame: &[u8], rx: RxChecksum) -> Option<TcpPacket> {
    Packet::parse(frame, rx).ok()?.tcp().copied()
}

/// True when `next` may be merged behind `last`, by the rule of Linux's `tcp_gro_receive`: the very next bytes of the same flow with the
/// same acknowledgement, window, options and ECN bits, and only ACK, PSH and FIN flags; PSH or FIN ends the merging.
fn follows(first: &TcpPacket, last: &TcpPacket, next: &TcpPacket) -> bool {
    let (a, b) = (&last.header, &next.header);
    let ends = TcpFlags::PSH.with(TcpFlags::FIN);
    // Congestion flags must be the same; CWR of RFC 3168 belongs to one segment alone, and counts of RFC 9768 with that bit go with it.
    let counts = TcpFlags::ACK.with(TcpFlags::ECE).with(TcpFlags::AE);
    a.flags.contains(TcpFlags::ACK)
        && counts.contains(a.flags)
        && b.flags.without(ends) == a.flags
        && next.tuple() == first.tuple()
        && b.seq == a.seq.plus(last.payload.len() as u32)
        && (b.ack, b.window) == (a.ack, a.window)
        && next.options == first.options
        && (next.ip.ecn, next.ip.hop_limit) == (first.ip.ecn, first.ip.hop_limit)
        && next.payload.start == first.payload.start
        && (1..=first.payload.len()).contains(&next.payload.len())
}

/// Sets the lengths and checksums in the headers of a frame that has grown.
fn fix_lengths(frame: &mut [u8], packet: &TcpPacket) {
    let (start, end) = (packet.ip.payload.start as usize, frame.len());
    // The IP header follows Ethernet's; these links carry no VLAN tags and no IPv6 extension headers.
    let ip = start - if packet.ip.src.is_ipv4() { 20 } else { 40 };
    if packet.ip.src.is_ipv4() {
        frame[ip + V4_LENGTH..][..2].copy_from_slice(&((end - ip) as u16).to_be_bytes());
        frame[ip + V4_CHECKSUM..][..2].fill(0);
        let sum = checksum::of(&frame[ip..start]);
        frame[ip + V4_CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[ip + V6_LENGTH..][..2].copy_from_slice(&((end - start) as u16).to_be_bytes());
    }
    let pseudo = checksum::pseudo(packet.ip.src, packet.ip.dst, IpProtocol::TCP, end - start);
    let is_filled = pseudo.is_some_and(|pseudo| {
        checksum::fill_partial(pseudo, &mut frame[start..], TcpHeader::CHECKSUM_OFFSET)
    });
    debug_assert!(is_filled, "the first segment had a checksum");
}
