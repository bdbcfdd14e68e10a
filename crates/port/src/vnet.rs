//! The virtio-net header in front of every frame (virtio 1.2 section 5.1.6), little-endian.
//!
//! ```text
//!    0      1         2        4         6           8            10
//!    | flags| gso type| hdr len| gso size| csum start| csum offset|
//! ```

use crate::{Checksum, Gso, GsoKind, PacketMeta};

/// Length of the virtio-net header in bytes, without the count of merged buffers, which Linux's descriptors do not use.
pub const VNET_HEADER_LEN: usize = 10;

const FLAG_NEEDS_CHECKSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// The header of a frame to send.
pub(crate) fn encode(meta: &PacketMeta) -> [u8; VNET_HEADER_LEN] {
    let mut header = [0; VNET_HEADER_LEN];
    if let Checksum::Partial { start, offset } = meta.checksum {
        header[0] = FLAG_NEEDS_CHECKSUM;
        header[6..8].copy_from_slice(&start.to_le_bytes());
        header[8..10].copy_from_slice(&offset.to_le_bytes());
    }
    if let Some(gso) = meta.gso {
        let kind = match gso.kind {
            GsoKind::TcpV4 => GSO_TCP_V4,
            GsoKind::TcpV6 => GSO_TCP_V6,
        };
        header[1] = if gso.ecn { kind | GSO_ECN } else { kind };
        header[2..4].copy_from_slice(&gso.header_len.to_le_bytes());
        header[4..6].copy_from_slice(&gso.segment_size.to_le_bytes());
    }
    header
}

/// The metadata in the header of a received frame; `None` when it contradicts the frame, or names an offload that was not requested.
#[must_use]
pub fn decode(header: &[u8; VNET_HEADER_LEN], frame: &[u8]) -> Option<PacketMeta> {
    let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let checksum = match header[0] & (FLAG_NEEDS_CHECKSUM | FLAG_DATA_VALID) {
        0 => Checksum::Unknown,
        FLAG_DATA_VALID => Checksum::Valid,
        _ => {
            let (start, offset) = (field(6), field(8));
            let end = usize::from(start) + usize::from(offset) + 2;
            (end <= frame.len()).then_some(Checksum::Partial { start, offset })?
        }
    };
    let kind = match header[1] & !GSO_ECN {
        GSO_NONE => return Some(PacketMeta { checksum, ..PacketMeta::default() }),
        GSO_TCP_V4 => GsoKind::TcpV4,
        GSO_TCP_V6 => GsoKind::TcpV6,
        _ => return None,
    };
    let Checksum::Partial { start, .. } = checksum else { return None };
    // The header's own length field is a hint (section 5.1.6.4.1): Linux writes the length of the first fragment there.
    let tcp_words = usize::from(frame.get(usize::from(start) + 12)? >> 4);
    let header_len = usize::from(start) + tcp_words * 4;
    let segment_size = field(4);
    let is_good = tcp_words >= 5 && header_len <= frame.len() && segment_size > 0;
    let gso = Gso {
        kind,
        segment_size,
        header_len: u16::try_from(header_len).ok()?,
        ecn: header[1] & GSO_ECN != 0,
    };
    is_good.then_some(PacketMeta { checksum, gso: Some(gso), flow_hash: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(start: usize) -> Vec<u8> {
        let mut frame = vec![0; 3000];
        frame[start + 12] = 0x80;
        frame
    }

    #[test]
    fn what_is_sent_can_be_read_back() {
        for (kind, start) in [(GsoKind::TcpV4, 34), (GsoKind::TcpV6, 54)] {
            for ecn in [false, true] {
                let gso = Gso { kind, segment_size: 1448, header_len: start + 32, ecn };
                let checksum = Checksum::Partial { start, offset: 16 };
                let meta = PacketMeta { checksum, gso: Some(gso), flow_hash: None };
                assert_eq!(decode(&encode(&meta), &frame(usize::from(start))), Some(meta));
            }
        }
        let plain = PacketMeta::default();
        assert_eq!(decode(&encode(&plain), &[]), Some(plain));
        assert_eq!(decode(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]).map(|m| m.checksum), Some(Checksum::Valid));
    }

    #[test]
    fn headers_that_contradict_the_frame_are_refused() {
        let good = [1, 1, 0, 0, 0xA8, 5, 34, 0, 16, 0];
        assert!(decode(&good, &frame(34)).is_some());
        for (at, value) in [(0, 0), (0, 2), (1, 3), (1, 5), (1, 0x7F), (7, 0xFF), (9, 0xFF), (6, 33)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(decode(&bad, &frame(34)), None, "byte {at} = {value}");
        }
        let mut no_size = good;
        no_size[4..6].fill(0);
        assert_eq!(decode(&no_size, &frame(34)), None);
        assert_eq!(decode(&good, &frame(34)[..51]), None);
    }

    proptest! {
        #[test]
        fn no_header_panics(header: [u8; VNET_HEADER_LEN], frame in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(PacketMeta { checksum: Checksum::Partial { start, offset }, .. }) = decode(&header, &frame) {
                prop_assert!(usize::from(start) + usize::from(offset) + 2 <= frame.len());
            }
        }
    }
}
