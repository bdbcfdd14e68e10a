//! The byte stream against an oracle. However rings are lent, replaced and given back, and in whatever pieces bytes are read, they come
//! out as they went in; whatever the other side writes, nothing panics and nothing is read outside its area.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::pages::{Pool, class_of};
use base::Seed;
use base::limits::RING_MIN;
use core::sync::atomic::AtomicU64;
use shm::{Kind, Params, Region, Side};
use std::collections::VecDeque;

fn region() -> Region {
    Region::create(Params { kind: Kind::Pair, id: 1, slots: 64, data_len: 4 << 20 }).unwrap().0
}

struct Ends {
    region: Region,
    sender: Sender,
    pool: Pool,
    tail: u64,
}

impl Ends {
    fn new() -> Self {
        Self { region: region(), sender: Sender::default(), pool: Pool::default(), tail: 0 }
    }

    fn send(&mut self, bytes: &[u8], class: usize) -> usize {
        let r = &self.region;
        let words = |i| -> &AtomicU64 { r.page_word(Side::Zero, i).unwrap() };
        let [own, peer] = &r.slot(3).unwrap().half;
        if let Some(ring) = self.sender.update(peer).unwrap() {
            self.pool.give_back(ring, words);
        }
        if self.sender.space() < bytes.len()
            && self.sender.may_lend()
            && let Some(ring) = self.pool.lend(class, r.page_words() * 64, words)
            && let Some(old) = self.sender.lend(own, ring)
        {
            self.pool.give_back(old, words);
        }
        let n = bytes.len().min(self.sender.space());
        if n > 0 {
            let [(a, an), (b, bn)] = self.sender.ring.unwrap().spans(self.sender.head, n);
            r.write(Side::Zero, a, &bytes[..an]);
            r.write(Side::Zero, b, &bytes[an..an + bn]);
            self.sender.publish(own, n);
        }
        n
    }

    fn receive(&mut self, most: usize) -> Vec<u8> {
        let r = &self.region;
        let [own, peer] = &r.slot(3).unwrap().half;
        let Some(got) = readable(own, self.tail, 4 << 20).unwrap() else { return vec![] };
        let n = got.len.min(most);
        let mut out = vec![0; n];
        let [(a, an), (b, bn)] = got.ring.spans(self.tail, n);
        r.read(Side::Zero, a, &mut out[..an]);
        r.read(Side::Zero, b, &mut out[an..an + bn]);
        self.tail += n as u64;
        let _ = consumed(peer, own, self.tail);
        out
    }
}

#[test]
fn bytes_come_out_as_they_went_in_over_many_rings() {
    for seed in 0..60 {
        let mut rng = Seed::new(seed);
        let mut ends = Ends::new();
        let mut oracle = VecDeque::new();
        for _ in 0..2_000 {
            match rng.below(10) {
                0..5 => {
                    let len = 1 + rng.below(9_000) as usize;
                    let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                    let class = class_of(len) + rng.below(3) as usize;
                    let sent = ends.send(&bytes, class);
                    oracle.extend(&bytes[..sent]);
                }
                5..9 => {
                    for byte in ends.receive(1 + rng.below(12_000) as usize) {
                        assert_eq!(Some(byte), oracle.pop_front(), "seed {seed}");
                    }
                }
                _ => {
                    let r = &ends.region;
                    if let Some(ring) = ends.sender.update(&r.slot(3).unwrap().half[1]).unwrap() {
                        ends.pool.give_back(ring, |i| r.page_word(Side::Zero, i).unwrap());
                    }
                    if let Some(ring) = ends.sender.give_back() {
                        ends.pool.give_back(ring, |i| r.page_word(Side::Zero, i).unwrap());
                    }
                }
            }
        }
    }
}

#[test]
fn a_longer_ring_has_the_same_bytes_for_whoever_looked_before_and_after() {
    let mut e = Ends::new();
    let bytes: Vec<u8> = (0..12_000).map(|i| (i * 31) as u8).collect();
    assert_eq!((e.send(&bytes[..4096], 0), e.send(&bytes[4096..], 1)), (4096, 7904));
    let Ends { region: r, sender, pool, .. } = &mut e;
    let words = |i| -> &AtomicU64 { r.page_word(Side::Zero, i).unwrap() };
    let read = |got: Readable, at: u64| {
        let mut out = vec![0; got.len];
        let [(a, an), (b, bn)] = got.ring.spans(at, got.len);
        r.read(Side::Zero, a, &mut out[..an]);
        r.read(Side::Zero, b, &mut out[an..an + bn]);
        out
    };
    let half = &r.slot(3).unwrap().half[0];
    let looked = readable(half, 4096, 4 << 20).unwrap().unwrap();
    let long = pool.lend(6, r.page_words() * 64, words).unwrap();
    assert!(!sender.may_lend());
    r.write(Side::Zero, long.spans(4096, 7904)[0].0, &bytes[4096..]);
    let short = sender.relocate(half, long).unwrap();
    assert_eq!((looked.ring, sender.space()), (short, (256 << 10) - 7904));
    let now = readable(half, 4096, 4 << 20).unwrap().unwrap();
    assert_eq!((now.ring, now.len), (long, looked.len));
    assert!(read(looked, 4096) == bytes[4096..] && read(now, 4096) == bytes[4096..]);
    assert_eq!(readable(half, 0, 4 << 20).unwrap().map(|r| (r.len, r.total)), Some((4096, 12_000)));
    let more = e.send(&bytes, 0);
    assert_eq!(more, 12_000);
    let all: Vec<u8> =
        std::iter::from_fn(|| Some(e.receive(5_000)).filter(|b| !b.is_empty())).flatten().collect();
    assert!(all == [&bytes[..], &bytes[..]].concat());
}

#[test]
fn garbage_from_the_other_side_is_a_violation_or_a_bounded_read() {
    let mut rng = Seed::new(5);
    let mut ends = Ends::new();
    ends.send(b"something", 0);
    let half = &ends.region.slot(3).unwrap().half;
    for _ in 0..200_000 {
        let word = if rng.chance(500_000) { rng.next_u64() } else { rng.below(1 << 20) };
        match rng.below(6) {
            0 => half[0].tx_head.store(word, Relaxed),
            i @ 1..3 => half[0].ring[i as usize - 1].store(word & (0xff << 32 | 0xfff), Relaxed),
            i @ 3..5 => half[0].start[i as usize - 3].store(word, Relaxed),
            _ => half[1].rx_tail.store(word, Relaxed),
        }
        if let Ok(Some(r)) = readable(&half[0], rng.below(1 << 20), 4 << 20) {
            assert!(r.len as u64 <= r.ring.size() && r.ring.offset() + r.ring.size() <= 4 << 20);
        }
        let mut sender = ends.sender;
        let _ = sender.update(&half[1]);
        assert!(sender.tail <= sender.head && sender.space() <= RING_MIN as usize);
    }
}

#[test]
fn a_stream_goes_on_where_its_sender_stopped() {
    let mut ends = Ends::new();
    ends.send(&[7; 6000], class_of(8192));
    ends.receive(1000);
    let home =
        Region::create(Params { kind: Kind::Application, id: 2, slots: 64, data_len: 1 << 20 }).unwrap().0;
    let block = home.sock(5).unwrap();
    ends.sender.keep(block);
    assert_eq!(Sender::of(block, 4 << 20), ends.sender);
    let own = &ends.region.slot(3).unwrap().half[0];
    assert_eq!(Sender::taken_over(block, own, 4 << 20), Ok(ends.sender));
    ends.send(&[8; 100], 0);
    let own = &ends.region.slot(3).unwrap().half[0];
    assert!(
        Sender::taken_over(block, own, 4 << 20).is_err(),
        "killed after it published, before it took note"
    );
}

#[test]
fn a_hostile_block_is_refused_or_has_positions_that_hold() {
    let home =
        Region::create(Params { kind: Kind::Application, id: 2, slots: 64, data_len: 1 << 20 }).unwrap().0;
    let (block, region) = (home.sock(5).unwrap(), region());
    let own = &region.slot(3).unwrap().half[0];
    let mut rng = Seed::new(5);
    let mut taken = 0;
    for _ in 0..200_000 {
        // Near each other, so that some combinations are valid.
        let mut word = || match rng.below(4) {
            0 => rng.next_u64(),
            _ => rng.below(20_000),
        };
        let ring = word() & 0xff | (12 + word() % 8) << 32 | (word() & 1) << 63;
        let places = [&block.tx_head, &block.tx_tail, &block.tx_start, &block.tx_old];
        places.into_iter().for_each(|place| place.store(word(), Relaxed));
        block.tx_ring.store(ring, Relaxed);
        let published = if word() & 1 == 0 { block.tx_head.load(Relaxed) } else { word() };
        own.tx_head.store(published, Relaxed);
        let Ok(mut sender) = Sender::taken_over(block, own, 1 << 20) else { continue };
        taken += 1;
        assert!(sender.head >= published && sender.tail <= sender.head && sender.start <= sender.head);
        let size = sender.ring.map_or(0, Ring::size);
        assert!(sender.space() as u64 <= size);
        let _ = sender.acknowledge(word());
        assert!(sender.space() as u64 <= size);
    }
    assert!(taken > 100, "{taken} made sense");
}

#[test]
fn unread_input_resets_and_a_cut_stream_does_not_end_like_a_finished_one() {
    use half_flags::{FAILED, FIN, PASSIVE, READ_CLOSED, RELEASED, RESET};
    // Flags of both halves, whether input is unread, whether a reset is asked for; how the stream ends.
    for (own, peer, is_unread, hard, end) in [
        (0, 0, false, false, FIN),
        (0, FIN, false, false, FIN | PASSIVE),
        (FIN, FIN, false, false, FIN),
        (FIN | PASSIVE, FIN, false, false, FIN),
        (0, FIN, true, false, RESET),
        (FIN, 0, true, false, RESET),
        (FIN, 0, false, true, RESET),
        (0, RESET, false, false, RESET),
        (0, FAILED, true, true, RESET),
        (RESET, 0, false, false, RESET),
        (FIN, RESET, true, true, 0),
        (FIN | RESET, 0, true, true, 0),
    ] {
        let bits = closing(own, peer, is_unread, hard);
        assert_eq!(bits, end | READ_CLOSED | RELEASED, "{own:#x} {peer:#x} {is_unread} {hard}");
    }
}

#[test]
fn an_end_is_closed_for_its_owner_once_and_the_other_side_is_told() {
    use half_flags::{FAILED, FIN, OPEN, PASSIVE, READ_CLOSED, RELEASED, RESET};
    let closed = READ_CLOSED | RELEASED;
    // Flags of both halves, whether a reset is asked for, the owner's flags afterwards, and whether the other side is to be told.
    for (own, peer, reset, after, is_told) in [
        (OPEN, OPEN, false, OPEN | FIN | closed, true),
        (OPEN, OPEN, true, OPEN | RESET | closed, true),
        (OPEN, OPEN | FIN, false, OPEN | FIN | PASSIVE | closed, true),
        (OPEN, OPEN | RESET, false, OPEN | RESET | closed, true),
        (OPEN | FIN, OPEN | FAILED, true, OPEN | FIN | closed, true),
        (OPEN | FIN | closed, OPEN, false, OPEN | FIN | closed, true),
        (OPEN | FIN | closed, OPEN | closed, false, OPEN | FIN | closed, false),
        // An owner that writes nonsense.
        (RELEASED, OPEN, false, RESET | closed, true),
        // A connection that the other side has ended, and an idle slot.
        (OPEN | closed, OPEN | RESET, false, OPEN | closed, true),
        (OPEN | closed, FAILED, false, OPEN | closed, true),
        (RELEASED, RELEASED, false, RELEASED, false),
    ] {
        let region = region();
        let [this, other] = &region.slot(3).unwrap().half;
        this.flags.store(own, Relaxed);
        other.flags.store(peer, Relaxed);
        assert_eq!(close_for(this, other, reset), is_told, "{own:#x} {peer:#x}");
        assert_eq!(this.flags.load(Relaxed), after, "{own:#x} {peer:#x}");
    }
}
