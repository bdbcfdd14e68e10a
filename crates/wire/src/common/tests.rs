use super::*;
use crate::{Endpoint, FourTuple, IpParameters, MacAddr, Packet, TxChecksum, emit_tcp};
use proptest::prelude::*;

extern crate std;
use std::vec;
use std::vec::Vec;

fn headers() -> impl Strategy<Value = CommonHeaders> {
    let macs = (any::<[u8; 6]>(), any::<[u8; 6]>());
    let ip =
        (any::<[u8; 4]>(), any::<[u8; 4]>(), 0u8..64, any::<u8>(), any::<u8>(), any::<u16>(), any::<bool>());
    let tcp = (any::<[u16; 4]>(), any::<u32>(), any::<u32>(), any::<u16>());
    (macs, ip, tcp, any::<[u32; 2]>()).prop_map(|(macs, ip, (ports, seq, ack, flags), ts)| CommonHeaders {
        src_mac: macs.0,
        dst_mac: macs.1,
        src: ip.0,
        dst: ip.1,
        dscp: ip.2,
        ecn: Ecn::from_bits(ip.3),
        hop_limit: ip.4,
        identification: ip.5,
        dont_fragment: ip.6,
        tcp: TcpHeader {
            src_port: ports[0],
            dst_port: ports[1],
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: TcpFlags::from_bits(flags),
            window: ports[2],
            urgent: ports[3],
        },
        timestamps: Timestamps { value: ts[0], echo: ts[1] },
    })
}

/// Builds a frame, with its checksum complete or left to the port.
fn written(headers: &CommonHeaders, payload: &[u8], is_complete: bool) -> Vec<u8> {
    let mut frame = vec![0; CommonHeaders::LEN];
    headers.emit(payload.len(), frame.first_chunk_mut().expect("of that length"));
    frame.extend_from_slice(payload);
    if is_complete {
        CommonHeaders::complete(&mut frame);
    }
    frame
}

fn read(frame: &[u8], rx: RxChecksum) -> Option<TcpPacket> {
    let mut packet = TcpPacket::EMPTY;
    packet.read_common(frame, rx).then_some(packet)
}

#[test]
fn nothing_is_left_of_the_packet_before() {
    let mut h = [0; CommonHeaders::LEN];
    let mut before = TcpPacket::EMPTY;
    before.options.sack.push(crate::SackBlock::default());
    (before.options.mss, before.options.window_scale, before.options.sack_permitted) =
        (Some(1), Some(2), true);
    let headers = CommonHeaders {
        src_mac: [1; 6],
        dst_mac: [2; 6],
        src: [10, 0, 0, 1],
        dst: [10, 0, 0, 2],
        dscp: 0,
        ecn: Ecn::NotEct,
        hop_limit: 64,
        identification: 7,
        dont_fragment: true,
        tcp: before.header,
        timestamps: Timestamps { value: 3, echo: 4 },
    };
    headers.emit(0, &mut h);
    assert!(before.read_common(&h, RxChecksum::Partial));
    assert_eq!(Some(before), read(&h, RxChecksum::Partial));
}

proptest! {
    #[test]
    fn the_same_bytes_are_written_as_field_by_field(
        h in headers(), payload in proptest::collection::vec(any::<u8>(), 0..99), is_complete: bool
    ) {
        let ends = |addr: [u8; 4], port| Endpoint::new(addr.into(), port);
        let tuple = FourTuple::new(ends(h.src, h.tcp.src_port), ends(h.dst, h.tcp.dst_port));
        let parameters = IpParameters {
            dscp: h.dscp,
            ecn: h.ecn,
            hop_limit: h.hop_limit,
            identification: h.identification,
            dont_fragment: h.dont_fragment,
            ..IpParameters::new(MacAddr(h.src_mac), MacAddr(h.dst_mac))
        };
        let options = TcpOptions::with_timestamps(h.timestamps.value, h.timestamps.echo);
        let mut frame = vec![0; CommonHeaders::LEN];
        frame.extend_from_slice(&payload);
        let tx = if is_complete { TxChecksum::Full } else { TxChecksum::Partial };
        let len = emit_tcp(&parameters, &tuple, &h.tcp, &options, payload.len(), tx, &mut frame);
        prop_assert_eq!(len, Ok(CommonHeaders::LEN));
        prop_assert_eq!(written(&h, &payload, is_complete), frame);
    }

    #[test]
    fn the_same_is_read_as_layer_by_layer_or_nothing(
        h in headers(),
        payload in proptest::collection::vec(any::<u8>(), 0..99),
        is_complete: bool,
        damage in proptest::option::of((0usize..170, any::<u8>())),
        cut in 0usize..120,
    ) {
        let mut frame = written(&h, &payload, is_complete);
        let rx = if is_complete { RxChecksum::Verify } else { RxChecksum::Partial };
        prop_assert!(read(&frame, rx).is_some());
        if let Some((at, byte)) = damage
            && let Some(place) = frame.get_mut(at)
        {
            *place = byte;
        }
        for len in [frame.len(), cut.min(frame.len())] {
            let found = read(&frame[..len], rx);
            let expected = Packet::parse(&frame[..len], rx);
            if let Some(found) = found {
                prop_assert_eq!(Some(&found), expected.as_ref().ok().and_then(Packet::tcp));
            }
        }
    }
}
