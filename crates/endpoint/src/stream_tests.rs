//! Two ends of one connection over one pair region, in one process, without a service.

use super::*;
use crate::host::{Host, Solitary};
use crate::region::{Bell, Mapped};
use crate::{Endpoint, ring_reclaim};
use base::Seed;
use queue::nap;
use queue::stream::watch;
use shm::half_flags::{OPEN, RESET};
use shm::{Kind, Params, Region, Side};
use std::collections::VecDeque;
use std::sync::Arc;

const DATA: u64 = 1 << 20;
static HOST: Host = Host::new(&Solitary);

fn home() -> Arc<Mapped> {
    let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: DATA };
    let region = Arc::new(Region::create(params).unwrap().0);
    Arc::new(Mapped::new(&HOST, Side::One, region, 0))
}

/// Both ends of slot `slot` of a fresh pair region.
pub(crate) fn ends(slot: u32) -> (Endpoint, Endpoint) {
    let mut ends = ends_of([slot]);
    ends.remove(0)
}

/// Both ends of each of `slots`, all in one fresh pair region.
fn ends_of(slots: impl IntoIterator<Item = u32>) -> Vec<(Endpoint, Endpoint)> {
    let region = pair();
    let pages = region.page_words() * 64;
    let sides = [Side::Zero, Side::One].map(|side| Mapped::new(&HOST, side, region.clone(), pages));
    ends_in(sides, slots)
}

fn pair() -> Arc<Region> {
    let params = Params { kind: Kind::Pair, id: 2, slots: 64, data_len: DATA };
    Arc::new(Region::create(params).unwrap().0)
}

/// Both ends of slot `slot` in a region as both sides have mapped it.
fn ends_in(sides: [Mapped; 2], slots: impl IntoIterator<Item = u32>) -> Vec<(Endpoint, Endpoint)> {
    let (home, sides) = (home(), sides.map(Arc::new));
    let end = |side: Side, slot, index| {
        let link = Endpoint::new(sides[side.index()].clone(), slot, home.clone(), index);
        link.begin(true, side == Side::One);
        link.block().holders.store(1, Ordering::Relaxed);
        raise(link.halves().0, OPEN);
        link
    };
    let blocks = (1..).step_by(2);
    slots
        .into_iter()
        .zip(blocks)
        .map(|(slot, i)| (end(Side::Zero, slot, i), end(Side::One, slot, i + 1)))
        .collect()
}

pub(crate) fn send(link: &Endpoint, bytes: &[u8]) -> Result<Progress, Errno> {
    link.push(&[bytes], 0, Said::default())
}

pub(crate) fn take(link: &Endpoint, most: usize) -> Result<Vec<u8>, Option<Errno>> {
    let mut out = vec![0; most];
    match link.pull(&mut [&mut out], 0, How::default()) {
        Ok(Progress::Done(n)) => Ok(out[..n].to_vec()),
        Ok(Progress::Wait) => Err(None),
        Err(e) => Err(Some(e)),
    }
}

#[test]
fn without_memory_nothing_is_sent_and_nobody_is_kept() {
    let region = pair();
    let sides = [Side::Zero, Side::One].map(|side| Mapped::new(&HOST, side, region.clone(), 0));
    let (a, _b) = ends_in(sides, [5]).remove(0);
    for said in [Said::empty(), Said::AT_ONCE] {
        assert_eq!(a.push(&[b"waits"], 0, said), Ok(Progress::Wait));
    }
}

#[test]
fn what_a_child_leaves_lent_comes_back_when_it_is_read() {
    let region = pair();
    let pages = region.page_words() * 64;
    let sides = [
        Mapped::new(&HOST, Side::Zero, region.clone(), pages),
        Mapped::new(&HOST, Side::One, region.clone(), pages).inherited(),
    ];
    let mut ends = ends_in(sides, [5, 6, 7]);
    for (_, child) in &ends {
        assert_eq!(send(child, &[1; 10_000]), Ok(Progress::Done(10_000)));
    }
    let (mapped, home) = (ends[0].1.mapped.clone(), ends[0].1.home.clone());
    home.region.header().hand.store(63, Ordering::Relaxed);
    let lent = || mapped.lent_pages();
    assert_eq!(lent(), 3 * 4);
    // Three holders: one closes, one is killed (the service clears its bit), one lives.
    assert!(ends[0].1.release(1, false));
    ends[1].1.block().holders.store(0, Ordering::Relaxed);
    ring_reclaim::collect(&home, &mapped, 1);
    assert_eq!(lent(), 3 * 4, "nothing is read yet");
    for (reader, _) in &ends {
        assert_eq!(take(reader, 20_000), Ok(vec![1; 10_000]));
    }
    ring_reclaim::collect(&home, &mapped, 1);
    assert_eq!(lent(), 4, "the living one's");
    let (_, child) = ends.remove(2);
    assert!(child.release(1, false));
    assert_eq!(lent(), 0, "nobody reads what is read");
    let is_free = |link: &Endpoint| link.block().region.load(Ordering::Relaxed) == 0;
    assert!(is_free(&child) && ends.iter().all(|(_, child)| is_free(child)));
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
                let said = if seed % 2 == 1 { Said::AT_ONCE } else { Said::empty() };
                match a.push(&[&bytes[..cut], &bytes[cut..]], 0, said) {
                    Ok(Progress::Done(n)) => oracle.extend(&bytes[..n]),
                    other => assert_eq!(other, Ok(Progress::Wait), "seed {seed}"),
                }
            } else if rng.chance(20_000) {
                a.lengthen(rng.below(50_000) as usize).unwrap();
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
        // The requester's ring goes back when it reads the reply, the replier's when it reads the next request.
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
fn a_sender_without_space_is_told_once_it_finds_enough() {
    let (a, b) = ends(5);
    queue::stream::watch(a.halves().0, Some(1));
    while send(&a, &[7; 1 << 20]) != Ok(Progress::Wait) {}
    let bell = a.mapped.own_bell(1).unwrap();
    let rings =
        |most| (take(&b, most).is_ok(), bell.drain(64, |_| {}), a.stream_readiness() & ready::OUT != 0);
    let quarter = a.sender().ring.unwrap().size() as usize / 4;
    assert_eq!(rings(32), (true, 0, false), "it would find too little");
    assert_eq!(rings(quarter - 33), (true, 0, false));
    assert_eq!((rings(1), rings(1)), ((true, 1, true), (true, 1, true)), "and again until it writes");
}

#[test]
fn news_takes_the_nap_of_the_other_side_once_and_leaves_contexts_as_they_are() {
    let (a, b) = ends(5);
    let word = &b.halves().0.context;
    let seen = nap::begin(b.halves().0, 77);
    assert!(nap::is_nap(seen) && nap::begin(b.halves().0, 78) == seen, "threads share the word");
    assert_eq!(send(&a, b"x"), Ok(Progress::Done(1)));
    assert_eq!(word.load(Ordering::SeqCst), 0);
    assert_ne!(
        nap::begin(b.halves().0, 78),
        seen,
        "a thread that has not slept yet does not sleep on this one"
    );
    a.mapped
        .ring(Bell { context: word.load(Ordering::SeqCst) - 1, word: 0, bits: 1 << 5 })
        .unwrap_or_default();
    assert_eq!(word.load(Ordering::SeqCst), 0, "a bell for several slots wakes, too");
    watch(b.halves().0, Some(1));
    assert_eq!(send(&a, b"y"), Ok(Progress::Done(1)));
    assert_eq!((word.load(Ordering::SeqCst), b.mapped.own_bell(1).unwrap().drain(64, |_| ())), (2, 1));
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

/// Sends small pieces until there is no space. Returns the bytes sent before the last piece, and in all.
fn fill(link: &Endpoint, sent: &mut Vec<u8>, said: Said) -> (usize, usize) {
    let before = sent.len();
    loop {
        let piece: Vec<u8> = (0..100).map(|i| (sent.len() + i * 7) as u8).collect();
        match link.push(&[&piece], 0, said).unwrap() {
            Progress::Done(n) => sent.extend(&piece[..n]),
            Progress::Wait => return (before, sent.len()),
        }
    }
}

#[test]
fn who_writes_little_by_little_and_is_not_read_gets_a_longer_ring_in_the_end() {
    let (a, b) = ends(5);
    let mut sent = Vec::new();
    let mut fill = || fill(&a, &mut sent, Said::default());
    let (_, short) = fill();
    assert!(short < 20_000, "two rings, both short");
    a.lengthen(100).unwrap();
    let (before, long) = fill();
    assert!(before == short && long > 200_000, "{before} {long}");
    assert_eq!(take(&b, 5_000).unwrap(), sent[..5_000]);
    // The reader may still read the short ring.
    a.mapped.sweep();
    assert!(!a.mapped.is_swept());
    assert_eq!(take(&b, short - 5_000).unwrap(), sent[5_000..short]);
    a.mapped.sweep();
    assert!(a.mapped.is_swept());
    assert_eq!(take(&b, long).unwrap(), sent[short..]);
}

#[test]
fn who_does_not_wait_is_told_that_there_is_no_space_only_in_the_longest_ring() {
    let (a, b) = ends(5);
    let mut sent = Vec::new();
    let mut fill = || fill(&a, &mut sent, Said::AT_ONCE);
    let (_, long) = fill();
    assert!(long > 200_000, "{long}");
    assert_eq!((a.stream_readiness() & ready::OUT, fill()), (0, (long, long)));
    a.lengthen(100).unwrap();
    assert_eq!(fill(), (long, long), "who was told so finds it so");
    assert_eq!(take(&b, 1_000).unwrap().len(), 1_000);
    assert_eq!(a.stream_readiness() & ready::OUT, 0, "much less than a quarter");
    let mut read = 1_000;
    while read < long {
        read += take(&b, 50_000).unwrap().len();
    }
    assert_ne!(a.stream_readiness() & ready::OUT, 0);
    let (before, again) = fill();
    assert!(before == long && again > long + 200_000, "{before} {again}");
    assert_eq!(take(&b, 1 << 20).unwrap(), sent[long..again]);
}

#[test]
fn programs_that_let_much_lie_unread_leave_memory_for_others() {
    let ends = ends_of(1..=30);
    let fill = |link: &Endpoint, piece| {
        let said = Said::AT_ONCE;
        let once = || match link.push(&[&vec![7; piece]], 0, said).unwrap() {
            Progress::Done(n) => Some(n),
            Progress::Wait => None,
        };
        std::iter::from_fn(once).sum::<usize>()
    };
    let (little, much): (Vec<_>, Vec<_>) = ends.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    let by_steps: Vec<_> = little.into_iter().map(|(_, (a, _))| fill(a, 100)).collect();
    let at_once: Vec<_> = much.into_iter().map(|(_, (a, _))| fill(a, DATA as usize)).collect();
    assert!(by_steps[0] > 200_000 && at_once[0] > 50_000, "{by_steps:?} {at_once:?}");
    assert!(by_steps.iter().chain(&at_once).all(|n| *n >= 8_192), "{by_steps:?} {at_once:?}");
    assert_eq!(take(&ends[29].1, 9_000).unwrap().len(), 8_192);
    assert_eq!(fill(&ends[29].0, 10), 8_192);
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
    // A stream that was shut before the region died still ends cleanly.
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
        // Writable when a third of the buffer is free.
        let third = most.div_ceil(3);
        take(&b, third - 2).unwrap();
        assert_eq!(a.stream_readiness() & ready::OUT, 0);
        take(&b, 2).unwrap();
        assert_ne!(a.stream_readiness() & ready::OUT, 0);
    }
}
