use super::*;
use crate::fixture::{checksums_are_right, super_frame, tcp};
use proptest::prelude::*;

fn cut(frame: &PacketBuf) -> Vec<PacketBuf> {
    let mut segmenter = Segmenter::new(frame).expect("a good super-frame");
    let mut segments = Vec::new();
    while segmenter.remaining(frame) > 0 {
        let remaining = segmenter.remaining(frame);
        let mut out = PacketBuf::with_capacity(2000);
        assert!(segmenter.next_into(frame, &mut out));
        assert_eq!(segmenter.remaining(frame), remaining - 1);
        segments.push(out);
    }
    assert!(!segmenter.next_into(frame, &mut PacketBuf::with_capacity(2000)));
    segments
}

proptest! {
    #[test]
    fn segments_say_what_the_super_frame_says(
        v4: bool, seq: u32, flags: u8, options in 0usize..=10,
        payload in proptest::collection::vec(any::<u8>(), 0..20_000), size in 1u16..1800,
    ) {
        let size = size.max(payload.len() as u16 / 500);
        let frame = super_frame(tcp(v4, flags, seq, options * 4, &payload), size);
        let headers = usize::from(frame.meta.gso.expect("set").header_len);
        let segments = cut(&frame);
        let count = segments.len();
        prop_assert_eq!(count, payload.len().div_ceil(usize::from(size)).max(1));
        let joined: Vec<u8> = segments.iter().flat_map(|s| s.frame()[headers..].to_vec()).collect();
        prop_assert_eq!(&joined, &payload);
        for (i, segment) in segments.iter().enumerate() {
            let bytes = segment.frame();
            let layout = Layout::of(bytes).expect("TCP");
            prop_assert!(checksums_are_right(bytes));
            prop_assert_eq!(read_u32(bytes, layout.tcp + 4), Some(seq.wrapping_add(i as u32 * u32::from(size))));
            let mut expected = flags;
            if i > 0 { expected &= !TCP_CWR; }
            if i + 1 < count { expected &= !(TCP_FIN | TCP_PSH); }
            prop_assert_eq!(bytes[layout.tcp + 13], expected);
            let (at, len) = if v4 { (2, bytes.len() - 14) } else { (4, bytes.len() - 54) };
            prop_assert_eq!(read_u16(bytes, 14 + at), Some(len as u16));
            if v4 { prop_assert_eq!(read_u16(bytes, 18), Some(0xFFFE_u16.wrapping_add(i as u16))); }
            prop_assert_eq!(segment.meta.gso, None);
        }
    }

    #[test]
    fn runs_consist_of_the_same_segments(
        v4: bool, flags: u8, payload in proptest::collection::vec(any::<u8>(), 0..9_000), size in 100u16..1800,
        lengths in proptest::collection::vec(1usize..9, 1..9),
    ) {
        let mut frame = super_frame(tcp(v4, flags, 7, 12, &payload), size);
        frame.meta.gso = frame.meta.gso.map(|gso| Gso { ecn: flags & TCP_CWR != 0, ..gso });
        let whole = Segmenter::new(&frame).expect("a good super-frame");
        let (count, mut first, mut segments) = (whole.count(&frame), 0, Vec::new());
        for &length in lengths.iter().cycle() {
            let length = length.min(count - first);
            if length == 0 { break; }
            let mut run = PacketBuf::new();
            prop_assert!(whole.run_into(&frame, first, length, &mut run));
            prop_assert!(crate::Capabilities::plain(1900, [0; 6]).with_tso().admits(&run));
            if length == 1 {
                prop_assert!(crate::complete_checksum(&mut run));
                segments.push(run);
            } else {
                let is_marked = run.meta.gso.is_some_and(|gso| gso.ecn);
                prop_assert_eq!(is_marked, first == 0 && flags & TCP_CWR != 0);
                segments.extend(cut(&run));
            }
            first += length;
        }
        let bytes = |all: &[PacketBuf]| all.iter().map(|p| p.frame().to_vec()).collect::<Vec<_>>();
        prop_assert_eq!(bytes(&segments), bytes(&cut(&frame)));
        prop_assert!(!whole.run_into(&frame, count - 1, 2, &mut PacketBuf::new()));
    }

    #[test]
    fn hostile_super_frames_do_not_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), v4: bool, size: u16, header: u16, patch: bool,
    ) {
        let mut frame = if patch { tcp(v4, 0, 0, 0, &bytes) } else { PacketBuf::with_capacity(256) };
        if patch { bytes.iter().for_each(|&b| { let at = usize::from(b) % frame.len(); frame.frame_mut()[at] ^= b; }); }
        else { prop_assert!(frame.fill(&bytes)); }
        let kind = if v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
        for header_len in [header, 54, 74] {
            frame.meta.gso = Some(Gso { kind, segment_size: size, header_len, ecn: false });
            if let Ok(mut segmenter) = Segmenter::new(&frame) {
                let mut out = PacketBuf::with_capacity(300);
                while segmenter.next_into(&frame, &mut out) {}
            }
        }
    }
}

#[test]
fn metadata_that_contradicts_the_headers_is_refused() {
    let good = || super_frame(tcp(true, 0x10, 1, 12, &[7; 3000]), 1000);
    assert!(Segmenter::new(&good()).is_ok());
    let refused = |change: fn(&mut Gso)| {
        let mut frame = good();
        change(frame.meta.gso.as_mut().expect("set"));
        Segmenter::new(&frame).err()
    };
    assert_eq!(refused(|g| g.kind = GsoKind::TcpV6), Some(SegmentError::Malformed));
    assert_eq!(refused(|g| g.segment_size = 0), Some(SegmentError::Malformed));
    assert_eq!(refused(|g| g.header_len = 54), Some(SegmentError::Malformed));
    assert_eq!(refused(|g| g.segment_size = 0xFFFF), Some(SegmentError::Malformed));
    let plain = tcp(true, 0, 0, 0, &[]);
    assert_eq!(Segmenter::new(&plain).err(), Some(SegmentError::NotSuperFrame));
}

#[test]
fn vlan_tags_are_kept() {
    let inner = super_frame(tcp(false, 0x18, 9, 0, &[3; 2500]), 1000);
    let mut frame = PacketBuf::new();
    let tagged = [&inner.frame()[..12], &[0x81, 0x00, 0, 5], &inner.frame()[12..]].concat();
    assert!(frame.fill(&tagged));
    frame.meta = inner.meta;
    frame.meta.gso.as_mut().expect("set").header_len += 4;
    let segments = cut(&frame);
    assert_eq!(segments.len(), 3);
    assert!(segments.iter().all(|s| s.frame()[12..16] == [0x81, 0, 0, 5] && checksums_are_right(s.frame())));
}
