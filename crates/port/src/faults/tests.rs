use super::*;
use crate::fixture::{Queues, checksums_are_right, super_frame, tcp};
use crate::{DropCause, complete_checksum};

const PACKETS: u32 = 20_000;

fn numbered(i: u32) -> PacketBuf {
    let mut packet = tcp(true, 0x10, i, 0, &[5; 40]);
    assert!(complete_checksum(&mut packet));
    packet
}

fn number_of(packet: &PacketBuf) -> u32 {
    u32::from_be_bytes(packet.frame()[38..42].try_into().expect("four bytes"))
}

/// Sends numbered packets through the injector; returns the packets that came out and the counts.
fn send(rates: FaultRates, seed: u64) -> (Vec<PacketBuf>, FaultCounts) {
    let inner = Queues { room: usize::MAX, ..Queues::default() };
    let mut port = Faults::new(inner, seed, FaultRates::NONE, rates);
    for i in 0..PACKETS {
        port.set_now(Instant::from_ns(u64::from(i) * 1000));
        let buf = port.reserve().expect("room without end");
        assert!(buf.copy_from(&numbered(i)));
        port.commit();
    }
    port.set_now(Instant::NEVER);
    port.flush();
    let counts = port.transmit_counts();
    (port.into_inner().outgoing, counts)
}

/// As `send`, for packets that are received.
fn receive(rates: FaultRates, seed: u64) -> Vec<PacketBuf> {
    let mut port = Faults::new(Queues::default(), seed, rates, FaultRates::NONE);
    let (mut out, mut batch) = (Vec::new(), Batch::with_capacity(256));
    for i in 0..PACKETS {
        port.inner.incoming.push_back(numbered(i));
        if i % 20 == 19 || i + 1 == PACKETS {
            port.set_now(if i + 1 == PACKETS { Instant::NEVER } else { Instant::ZERO });
            while port.receive(&mut batch) > 0 {
                for packet in batch.packets() {
                    let mut copy = PacketBuf::with_capacity(packet.len());
                    assert!(copy.copy_from(packet));
                    out.push(copy);
                }
            }
        }
    }
    assert!(!port.receive.is_holding());
    out
}

fn about(count: u64, per_million: u32) -> bool {
    let expected = u64::from(PACKETS) * u64::from(per_million) / 1_000_000;
    count.abs_diff(expected) < expected / 5
}

#[test]
fn same_seed_same_faults() {
    let rates = FaultRates {
        loss: 10_000,
        duplicate: 10_000,
        reorder: 50_000,
        corrupt: 10_000,
        truncate: 10_000,
        ..FaultRates::NONE
    };
    let frames = |packets: Vec<PacketBuf>| packets.iter().map(|p| p.frame().to_vec()).collect::<Vec<_>>();
    assert_eq!(frames(send(rates, 5).0), frames(send(rates, 5).0));
    assert_ne!(frames(send(rates, 5).0), frames(send(rates, 6).0));
    assert_eq!(frames(receive(rates, 5)), frames(receive(rates, 5)));
}

#[test]
fn loss_and_duplication_strike_as_often_as_asked() {
    let (out, counts) = send(FaultRates::losing(50_000), 1);
    assert!(about(counts.lost, 50_000), "{counts:?}");
    assert_eq!(out.len() as u64 + counts.lost, u64::from(PACKETS));
    let (out, counts) = send(FaultRates { duplicate: 50_000, ..FaultRates::NONE }, 1);
    assert!(about(counts.duplicated, 50_000), "{counts:?}");
    assert_eq!(out.len() as u64, u64::from(PACKETS) + counts.duplicated);
    assert!(about(u64::from(PACKETS) - receive(FaultRates::losing(50_000), 3).len() as u64, 50_000));
}

#[test]
fn reordering_loses_nothing_and_stays_within_its_distance() {
    let rates =
        FaultRates { reorder: 50_000, reorder_distance: 4, hold_max: Duration::MAX, ..FaultRates::NONE };
    let (out, counts) = send(rates, 2);
    assert!(about(counts.reordered, 50_000), "{counts:?}");
    for packets in [out, receive(rates, 2)] {
        let mut numbers: Vec<u32> = packets.iter().map(number_of).collect();
        let late = numbers.iter().enumerate().map(|(at, &n)| at as i64 - i64::from(n)).max().expect("some");
        assert!((1..=5).contains(&late), "{late}");
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..PACKETS));
    }
}

#[test]
fn damage_changes_one_byte_or_the_length() {
    let (out, counts) = send(FaultRates { corrupt: 50_000, ..FaultRates::NONE }, 9);
    assert!(about(counts.corrupted, 50_000), "{counts:?}");
    let differing = out.iter().zip(0..).filter(|(p, i)| {
        let differences = p.frame().iter().zip(numbered(*i).frame()).filter(|(a, b)| a != b).count();
        assert!(differences <= 1);
        differences == 1
    });
    assert_eq!(differing.count() as u64, counts.corrupted);
    let (out, counts) = send(FaultRates { truncate: 50_000, ..FaultRates::NONE }, 9);
    let full = numbered(0).len();
    assert!(about(counts.truncated, 50_000), "{counts:?}");
    assert_eq!(out.iter().filter(|p| p.len() < full && !p.is_empty()).count() as u64, counts.truncated);
}

#[test]
fn corrupted_packet_with_partial_checksum_is_not_trusted() {
    let rates = FaultRates { corrupt: 1_000_000, ..FaultRates::NONE };
    let mut port = Faults::new(Queues::default(), 3, rates, FaultRates::NONE);
    let mut batch = Batch::new();
    let mut wrong = 0;
    for _ in 0..100 {
        port.inner.incoming.push_back(tcp(true, 0x10, 1, 0, &[1; 1000]));
        assert_eq!(port.receive(&mut batch), 1);
        assert!(!batch.packets()[0].meta.checksum.is_trusted());
        wrong += u32::from(
            crate::headers::Layout::of(batch.packets()[0].frame()).is_some()
                && !checksums_are_right(batch.packets()[0].frame()),
        );
    }
    assert!(wrong > 90, "{wrong}");
}

#[test]
fn arp_is_not_corrupted() {
    let rates = FaultRates { corrupt: 1_000_000, ..FaultRates::NONE };
    let mut port = Faults::new(Queues::default(), 3, rates, FaultRates::NONE);
    let mut batch = Batch::new();
    let mut request = numbered(0);
    request.frame_mut()[12..14].copy_from_slice(&wire::EtherType::ARP.0.to_be_bytes());
    port.inner.incoming.push_back(numbered(0));
    port.inner.incoming.push_back(request);
    assert_eq!(port.receive(&mut batch), 2);
    assert_ne!(batch.packets()[0].frame(), numbered(0).frame());
    assert_eq!(batch.packets()[1].frame()[14..], numbered(0).frame()[14..]);
    assert_eq!(port.receive_counts().corrupted, 1);
}

#[test]
fn loss_is_decided_per_segment_of_a_super_frame() {
    let rates = FaultRates::losing(200_000);
    let inner = Queues { room: 10, ..Queues::default() };
    let mut port = Faults::new(inner, 4, rates, rates);
    let frame = super_frame(tcp(true, 0x10, 0, 12, &vec![8; 60_000]), 1000);
    assert!(port.reserve().expect("room").copy_from(&frame));
    port.commit();
    assert_eq!(port.inner.outgoing.len(), 10);
    assert!(port.reserve().is_none(), "the rest of the super-frame waits for room");
    port.inner.room = 1000;
    port.flush();
    assert!(port.reserve().is_some());
    let counts = port.transmit_counts();
    assert_eq!(counts.seen, 60);
    assert_eq!(port.inner.outgoing.len() as u64, 60 - counts.lost);
    assert!((4..=20).contains(&counts.lost), "{counts:?}");
    assert!(port.inner.outgoing.iter().all(|p| p.meta.gso.is_none() && checksums_are_right(p.frame())));

    port.inner.incoming.push_back(frame);
    let (mut batch, mut received) = (Batch::new(), 0);
    while port.receive(&mut batch) > 0 {
        received += batch.len() as u64;
    }
    assert_eq!(received, 60 - port.receive_counts().lost);
    assert_eq!(port.stats().drops.of(DropCause::Injected), counts.lost + port.receive_counts().lost);
}

#[test]
fn held_packet_comes_out_when_its_time_is_over() {
    let rates = FaultRates { reorder: 1_000_000, ..FaultRates::NONE };
    let mut port = Faults::new(Queues::default(), 4, rates, FaultRates::NONE);
    let mut batch = Batch::new();
    port.inner.incoming.push_back(numbered(0));
    assert_eq!(port.receive(&mut batch), 0);
    assert_eq!(port.arm(), Wait::Not);
    assert_eq!(port.next_deadline(), Instant::ZERO.plus(rates.hold_max));
    port.set_now(port.next_deadline());
    assert_eq!(port.receive(&mut batch), 1);
    assert_eq!((port.next_deadline(), port.arm()), (Instant::NEVER, Wait::Readable));
}
