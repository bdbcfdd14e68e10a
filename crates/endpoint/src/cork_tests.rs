//! Bytes held back between two ends in one process, and what lets them go.

use crate::cork::LOOPBACK_MSS;
use crate::stream::tests::{ends, send, take};
use crate::stream::{Progress, Said};
use crate::{Endpoint, state};
use base::Seed;
use queue::held::{held_from, let_go_for};
use shm::half_flags::FIN;
use shm::{HELD_CONTEXT, Side};
use std::sync::atomic::Ordering;

const MORE: Said = Said::MORE;
const MSS: usize = LOOPBACK_MSS as usize;

fn send_more(link: &Endpoint, bytes: &[u8]) -> Result<Progress, rustix::io::Errno> {
    link.push(&[bytes], 0, MORE)
}

/// Blocks of which the service was told that they hold bytes back.
fn announced(link: &Endpoint) -> Vec<u32> {
    let mut all = Vec::new();
    link.home.bell(Side::Zero, HELD_CONTEXT).unwrap().drain(64, |index| all.push(index));
    all
}

#[test]
fn more_waits_for_a_call_that_does_not_say_so() {
    let (a, b) = ends(3);
    let before = b.pulse();
    assert_eq!(send_more(&a, &[1; 10]), Ok(Progress::Done(10)));
    assert_eq!((b.unread(), a.unsent(), take(&b, 64)), (0, 10, Err(None)));
    assert_eq!((b.pulse(), announced(&a)), (before, vec![1]));
    assert_eq!(a.push(&[&[]], 0, Said::default()), Ok(Progress::Done(0)));
    assert_eq!(b.unread(), 0, "a call without bytes pushes nothing");
    send(&a, &[2; 6]).unwrap();
    assert_eq!((b.unread(), a.state() & state::HELD), (16, 0));
    assert_eq!(take(&b, 64).unwrap().len(), 16);
    assert!(announced(&a).is_empty());
}

#[test]
fn a_cork_holds_until_it_is_taken_away_or_no_delay_is_set_anew() {
    let (a, b) = ends(3);
    a.set_cork(true);
    send(&a, &[1; 10]).unwrap();
    send(&a, &[1; 10]).unwrap();
    assert_eq!(b.unread(), 0);
    a.set_no_delay(true);
    assert_eq!(b.unread(), 20);
    send(&a, &[1; 10]).unwrap();
    assert_eq!(b.unread(), 20, "the cork still stands");
    a.set_cork(false);
    assert_eq!(b.unread(), 30);
    send(&a, &[1; 10]).unwrap();
    assert_eq!(b.unread(), 40);
}

#[test]
fn whole_segments_go() {
    let (a, b) = ends(3);
    a.set_cork(true);
    send(&a, &[1; MSS - 1]).unwrap();
    assert_eq!(b.unread(), 0);
    send(&a, &[1; 2]).unwrap();
    assert_eq!((b.unread(), a.unsent()), (MSS, MSS + 1));
    assert_eq!(take(&b, 2 * MSS).unwrap().len(), MSS);
    a.set_cork(false);
    assert_eq!(b.unread(), 1);
    take(&b, 64).unwrap();
    send_more(&a, &[1; MSS + 5]).unwrap();
    assert_eq!(b.unread(), MSS + 5, "its acknowledgement would let the rest go at once");
}

#[test]
fn small_pieces_fill_a_segment_without_a_reader() {
    let (a, b) = ends(3);
    a.set_cork(true);
    let mut sent = 0;
    while sent + 1_000 < MSS {
        assert_eq!(send(&a, &[1; 1_000]), Ok(Progress::Done(1_000)));
        sent += 1_000;
        assert_eq!(b.unread(), 0, "{sent} bytes");
    }
    send(&a, &[1; 1_000]).unwrap();
    assert_eq!(b.unread(), MSS);
}

#[test]
fn urgent_data_and_the_end_of_the_stream_wait_for_nothing() {
    let (a, b) = ends(3);
    a.set_cork(true);
    send(&a, &[1; 10]).unwrap();
    a.push(&[&[2]], 0, MORE | Said::URGENT).unwrap();
    assert_eq!(a.halves().0.tx_head.load(Ordering::Relaxed), 11);
    send(&a, &[1; 10]).unwrap();
    a.shut(false, true).unwrap();
    assert_eq!((b.unread(), b.halves().1.flags.load(Ordering::Relaxed) & FIN), (21, FIN));
    let (a, b) = ends(4);
    send_more(&a, &[1; 10]).unwrap();
    a.release(1, false);
    assert_eq!(take(&b, 64).unwrap().len(), 10);
    assert_eq!(take(&b, 64), Ok(vec![]), "then the end");
}

#[test]
fn who_waits_for_space_holds_nothing_back() {
    let (a, b) = ends(3);
    a.set_buffer(3_000);
    a.set_cork(true);
    let mut sent = 0;
    while let Ok(Progress::Done(n)) = send(&a, &[1; 500]) {
        sent += n;
    }
    assert_eq!((sent, b.unread()), (6_000, 6_000));
}

#[test]
fn nothing_is_lost_or_early_whoever_lets_go() {
    for seed in 0..40 {
        let mut rng = Seed::new(seed);
        let (a, b) = ends(5);
        let (mut written, mut read, mut is_corked) = (0usize, 0usize, false);
        for _ in 0..1_500 {
            let most = if rng.chance(100_000) { 90_000 } else { 3_000 };
            let len = 1 + rng.below(most) as usize;
            let bytes: Vec<u8> = (written..written + len).map(|at| at as u8).collect();
            match rng.below(8) {
                0 => {
                    is_corked = !is_corked;
                    a.set_cork(is_corked);
                    assert!(is_corked || b.unread() == written - read);
                }
                1 => a.set_no_delay(true),
                2 => {
                    // Lets bytes go as the service does.
                    let (own, block) = (a.halves().0, a.block());
                    if let Some(from) = held_from(own, block) {
                        assert!(let_go_for(own, block, from, || true));
                        assert_eq!(b.unread(), written - read);
                    }
                }
                3 | 4 => {
                    for byte in take(&b, len).unwrap_or_default() {
                        assert_eq!(byte, read as u8, "seed {seed}");
                        read += 1;
                    }
                }
                more => {
                    let said = if more == 5 { MORE } else { Said::empty() };
                    if let Ok(Progress::Done(n)) = a.push(&[&bytes], 0, said) {
                        written += n;
                    }
                    assert!(is_corked || more == 5 || b.unread() == written - read, "seed {seed}");
                }
            }
            assert!(written - read - b.unread() < MSS, "seed {seed}: less than a segment is held");
            assert_eq!(a.unsent(), written - read);
        }
    }
}
