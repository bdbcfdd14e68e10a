//! Two ends of one connection over one pair region, in one process, without a service.

use super::*;
use crate::link::Link;
use crate::region::Mapped;
use base::Seed;
use queue::stream::watch;
use shm::half_flags::{OPEN, RESET};
use shm::{Kind, Params, Region, Side};
use std::collections::VecDeque;
use std::sync::Arc;

const DATA: u64 = 1 << 20;

fn home() -> Arc<Mapped> {
    let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: DATA };
    let region = Arc::new(Region::create(params).unwrap().0);
    Arc::new(Mapped::new(1, Side::One, false, region, 0))
}

/// Both ends of slot `slot` of a fresh pair region.
pub(super) fn ends(slot: u32) -> (Link, Link) {
    let params = Params { kind: Kind::Pair, id: 2, slots: 64, data_len: DATA };
    let region = Arc::new(Region::create(params).unwrap().0);
    let home = home();
    let end = |side, index| {
        let pages = region.page_words() * 64;
        let mapped = Arc::new(Mapped::new(2, side, true, region.clone(), pages));
        let link = Link::new(mapped, slot, home.clone(), index);
        link.begin(true, side == Side::One);
        link.block().holders.store(1, Ordering::Relaxed);
        raise(link.halves().0, OPEN);
        link
    };
    (end(Side::Zero, 1), end(Side::One, 2))
}

pub(super) fn send(link: &Link, bytes: &[u8]) -> Result<Progress, Errno> {
    link.push(&[bytes], 0, Said::default())
}

pub(super) fn take(link: &Link, most: usize) -> Result<Vec<u8>, Option<Errno>> {
    let mut out = vec![0; most];
    match link.pull(&mut [&mut out], 0, How::default()) {
        Ok(Progress::Done(n)) => Ok(out[..n].to_vec()),
        Ok(Progress::Wait) => Err(None),
        Err(e) => Err(Some(e)),
    }
}

#[test]
fn bytes_arrive_in_order_whatever_the_pieces() {
    for seed in 0..30 {
        let mut rng = Seed::new(seed);
        let (a, b) = ends(5);
        let mut oracle = VecDeque::new();
        for _ in 0..2_000 {
            if rng.chance(500_000) {
                let len = 1 + rng.below(20_000) as usize;
                let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                let cut = rng.below(len as u64 + 1) as usize;
                match a.push(&[&bytes[..cut], &bytes[cut..]], 0, Said::default()) {
                    Ok(Progress::Done(n)) => oracle.extend(&bytes[..n]),
                    other => assert_eq!(other, Ok(Progress::Wait), "seed {seed}"),
                }
            } else {
                match take(&b, 1 + rng.below(30_000) as usize) {
                    Ok(got) => assert!(got.iter().all(|x| oracle.pop_front() == Some(*x)), "seed {seed}"),
                    Err(e) => assert_eq!((e, oracle.len()), (None, 0), "seed {seed}"),
                }
            }
            assert_eq!((b.unread(), a.unsent()), (oracle.len(), oracle.len()));
        }
    }
}

#[test]
fn an_idle_connection_owns_no_ring() {
    let (a, b) = ends(5);
    for _ in 0..10 {
        assert_eq!(send(&a, b"request"), Ok(Progress::Done(7)));
        assert_eq!(take(&b, 100).unwrap(), b"request");
        assert_eq!(send(&b, b"reply"), Ok(Progress::Done(5)));
        // The requester's ring goes back with the reply, the replier's with the next request.
        assert_eq!(take(&a, 100).unwrap(), b"reply");
        assert!(a.sender().ring.is_none());
    }
    assert_eq!(send(&a, b"x"), Ok(Progress::Done(1)));
    assert_eq!(take(&b, 100).unwrap(), b"x");
    assert!(b.sender().ring.is_none());
}

#[test]
fn a_full_sender_is_writable_again_only_when_a_quarter_is_free() {
    let (a, b) = ends(5);
    while let Ok(Progress::Done(n)) = send(&a, &[7; 4096]) {
        assert!(n > 0);
    }
    assert_eq!(a.stream_readiness() & ready::OUT, 0);
    assert_eq!(take(&b, 100).unwrap().len(), 100);
    assert_eq!(a.stream_readiness() & ready::OUT, 0);
    while b.unread() > 0 {
        assert!(!take(&b, 1 << 20).unwrap().is_empty());
    }
    assert_ne!(a.stream_readiness() & ready::OUT, 0);
}

#[test]
fn fin_comes_after_the_bytes_and_half_close_leaves_the_other_way_open() {
    let (a, b) = ends(5);
    assert_eq!(send(&a, b"last"), Ok(Progress::Done(4)));
    a.shut(false, true).unwrap();
    assert_eq!(send(&a, b"more"), Err(Errno::PIPE));
    assert_eq!(take(&b, 100).unwrap(), b"last");
    assert_eq!(take(&b, 100).unwrap(), b"");
    assert_eq!(b.stream_readiness() & (ready::IN | ready::RDHUP | ready::HUP), ready::IN | ready::RDHUP);
    assert_eq!(send(&b, b"still"), Ok(Progress::Done(5)));
    assert_eq!(take(&a, 100).unwrap(), b"still");
}

#[test]
fn closing_with_unread_input_resets() {
    let (a, b) = ends(5);
    assert_eq!(send(&a, b"unread"), Ok(Progress::Done(6)));
    assert_eq!(send(&b, b"read before the reset"), Ok(Progress::Done(21)));
    assert!(b.release(1, false));
    assert_ne!(b.halves().0.flags.load(Ordering::Relaxed) & RESET, 0);
    assert_ne!(a.stream_readiness() & ready::ERR, 0);
    assert_eq!(take(&a, 100).unwrap(), b"read before the reset");
    assert_eq!(take(&a, 100), Err(Some(Errno::CONNRESET)));
    assert_eq!(take(&a, 100).unwrap(), b"");
    assert_eq!(send(&a, b"x"), Err(Errno::PIPE));
}

#[test]
fn of_two_holders_the_last_closes() {
    let (a, b) = ends(5);
    a.block().holders.store(0b11, Ordering::Relaxed);
    assert!(!a.release(0b10, false));
    assert_eq!(take(&b, 10), Err(None));
    assert!(a.release(0b01, false));
    assert_eq!(take(&b, 10).unwrap(), b"");
    assert_eq!(a.block().holders.load(Ordering::Relaxed), 0);
}

#[test]
fn a_closed_sockets_bytes_still_arrive_and_its_ring_comes_back() {
    let (a, b) = ends(5);
    assert_eq!(send(&a, b"goodbye"), Ok(Progress::Done(7)));
    assert!(a.release(1, false));
    assert!(!a.mapped.is_swept());
    assert_eq!(take(&b, 100).unwrap(), b"goodbye");
    a.mapped.sweep();
    assert!(a.mapped.is_swept());
}

#[test]
fn sending_to_a_closed_peer_fails_at_the_second_attempt() {
    let (a, b) = ends(5);
    assert!(b.release(1, false));
    assert_eq!(send(&a, b"into the void"), Ok(Progress::Done(13)));
    assert_eq!(send(&a, b"x"), Err(Errno::PIPE));
}

#[test]
fn a_dead_region_resets_everything_in_it() {
    let (a, b) = ends(5);
    assert_eq!(send(&a, b"x"), Ok(Progress::Done(1)));
    b.mapped.dead.store(true, Ordering::Release);
    assert_ne!(b.stream_readiness() & ready::HUP, 0);
    assert_eq!(take(&b, 1).unwrap(), b"x");
    assert_eq!(take(&b, 1), Err(Some(Errno::CONNRESET)));
}

#[test]
fn a_lying_peer_costs_the_connection_not_the_process() {
    let mut rng = Seed::new(3);
    for _ in 0..300 {
        let (a, b) = ends(5);
        assert_eq!(send(&a, b"hello"), Ok(Progress::Done(5)));
        let half = b.halves().1;
        for _ in 0..20 {
            let word = if rng.chance(300_000) { rng.next_u64() } else { rng.below(1 << 22) };
            match rng.below(5) {
                0 => half.tx_head.store(word, Ordering::Relaxed),
                1 => half.rx_tail.store(word, Ordering::Relaxed),
                2 => half.ring[rng.below(2) as usize].store(word, Ordering::Relaxed),
                3 => half.start[rng.below(2) as usize].store(word, Ordering::Relaxed),
                _ => half.flags.store(word as u32, Ordering::Relaxed),
            }
            let _ = (take(&b, 9_000), send(&b, b"answer"), b.stream_readiness(), b.unread(), b.unsent());
        }
    }
}

#[test]
fn peeking_and_discarding() {
    let (a, b) = ends(5);
    assert_eq!(send(&a, b"abcdef"), Ok(Progress::Done(6)));
    let mut out = [0; 3];
    let peek = How { peek: true, discard: 0 };
    assert_eq!(b.pull(&mut [&mut out], 0, peek), Ok(Progress::Done(3)));
    assert_eq!((&out, b.unread()), (b"abc", 6));
    let discard = How { peek: false, discard: 4 };
    assert_eq!(b.pull(&mut [&mut out], 0, discard), Ok(Progress::Done(4)));
    assert_eq!(take(&b, 9).unwrap(), b"ef");
}

#[test]
fn news_rings_whoever_watches() {
    let (a, b) = ends(5);
    watch(b.halves().0, Some(9));
    assert_eq!(send(&a, b"x"), Ok(Progress::Done(1)));
    let mut rung = Vec::new();
    b.mapped.own_bell(9).unwrap().drain(64, |slot| rung.push(slot));
    assert_eq!(rung, [5]);
}

#[test]
fn a_cut_stream_never_looks_like_one_that_was_ended() {
    let (a, b) = ends(5);
    assert_eq!(send(&a, b"half of it"), Ok(Progress::Done(10)));
    a.mapped.dead.store(true, Ordering::Relaxed);
    assert_eq!(send(&a, b"the rest"), Err(Errno::CONNRESET));
    assert!(a.release(1, false));
    assert_eq!(take(&b, 100).unwrap(), b"half of it");
    assert_eq!(take(&b, 100), Err(Some(Errno::CONNRESET)));
    // What was ended before the cut stays a clean end.
    let (a, b) = ends(6);
    a.shut(false, true).unwrap();
    a.mapped.dead.store(true, Ordering::Relaxed);
    assert!(a.release(1, false));
    assert_eq!(take(&b, 100).unwrap(), b"");
}

#[test]
fn a_send_buffer_set_by_the_program_bounds_what_is_unread() {
    for (bytes, most) in [(1, 4608), (5_000, 10_000), (16_384, 32_768)] {
        let (a, b) = ends(5);
        a.set_buffer(bytes);
        assert_eq!(send(&a, &[7; 100_000]), Ok(Progress::Done(most)));
        assert_eq!(send(&a, &[7; 100_000]), Ok(Progress::Wait));
        // Writable with a third of it free.
        let third = most.div_ceil(3);
        take(&b, third - 2).unwrap();
        assert_eq!(a.stream_readiness() & ready::OUT, 0);
        take(&b, 2).unwrap();
        assert_ne!(a.stream_readiness() & ready::OUT, 0);
    }
}
