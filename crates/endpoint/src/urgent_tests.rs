//! Tests of urgent data between two ends of a pair region: what each read returns, and when.

use super::tests::{ends, send, take};
use super::*;
use base::Seed;
use queue::urgent;
use shm::half_flags::URGENT;

const OOB: Said = Said::URGENT;

fn send_urgent(link: &Endpoint, bytes: &[u8]) {
    assert_eq!(link.push(&[bytes], 0, OOB), Ok(Progress::Done(bytes.len())));
}

fn take_urgent(link: &Endpoint) -> Result<u8, Errno> {
    let mut byte = [0];
    link.pull_urgent(&mut [&mut byte], false).map(|n| if n == 1 { byte[0] } else { b'0' })
}

fn readiness(link: &Endpoint) -> (bool, bool) {
    let now = link.stream_readiness();
    (now & ready::IN != 0, now & ready::PRI != 0)
}

/// MUST-33: "... provide a way for the application to learn how much urgent data remains to be read from the connection, or at least to
/// determine whether more urgent data remains to be read."
#[test]
fn the_last_byte_is_read_ahead_of_its_turn_and_reads_stop_before_it() {
    let (a, b) = ends(5);
    assert_eq!(take_urgent(&b), Err(Errno::INVAL));
    send(&a, b"ab").unwrap();
    send_urgent(&a, b"cd");
    send(&a, b"ef").unwrap();
    assert_eq!((readiness(&b), b.unread_to_mark(), b.is_at_mark()), ((true, true), 3, false));
    let mut byte = [0];
    assert_eq!((b.pull_urgent(&mut [&mut [], &mut byte], true), byte), (Ok(1), *b"d"));
    assert_eq!(take(&b, 2).unwrap(), b"ab");
    assert_eq!(take(&b, 100).unwrap(), b"c");
    assert_eq!((readiness(&b), b.unread_to_mark(), b.is_at_mark()), ((true, true), 0, true));
    assert_eq!(take_urgent(&b), Ok(b'd'));
    assert_eq!(take_urgent(&b), Err(Errno::INVAL));
    assert_eq!((readiness(&b), b.is_at_mark()), ((true, false), true));
    assert_eq!(take(&b, 100).unwrap(), b"ef");
    assert_eq!((readiness(&b), b.is_at_mark(), b.unread()), ((false, false), false, 0));
}

#[test]
fn a_read_that_begins_at_the_mark_skips_the_byte_for_good() {
    let (a, b) = ends(5);
    send_urgent(&a, b"x");
    assert_eq!(readiness(&b), (false, true), "an urgent byte alone is nothing to read");
    let mut out = [0; 9];
    let peek = How { peek: true, discard: 0 };
    assert_eq!(b.pull(&mut [&mut out], 0, peek), Ok(Progress::Wait));
    assert!(b.is_at_mark());
    assert_eq!(take(&b, 9), Err(None));
    assert_eq!((take_urgent(&b), b.unread(), b.is_at_mark()), (Err(Errno::INVAL), 0, false));
    send(&a, b"yz").unwrap();
    assert_eq!(take(&b, 1).unwrap(), b"y");
    a.shut(false, true).unwrap();
    assert_eq!(take(&b, 9).unwrap(), b"z");
    assert_eq!(take(&b, 9).unwrap(), b"");
}

#[test]
fn in_line_the_byte_is_one_as_any_other_but_reads_stop_before_it() {
    let (a, b) = ends(5);
    b.set_inline(true);
    send_urgent(&a, b"abc");
    send(&a, b"d").unwrap();
    assert_eq!((readiness(&b), take_urgent(&b), b.unread_to_mark()), ((true, true), Err(Errno::INVAL), 4));
    assert_eq!(take(&b, 9).unwrap(), b"ab");
    assert!(b.is_at_mark());
    assert_eq!(take(&b, 9).unwrap(), b"cd");
    assert_eq!((readiness(&b), b.is_at_mark()), ((false, false), false));
}

#[test]
fn a_byte_that_is_announced_and_not_here_is_to_come() {
    let (a, b) = ends(5);
    send(&a, b"xy").unwrap();
    urgent::announce(&a.mapped.region, a.mapped.side, a.slot(), 4);
    assert_eq!((take_urgent(&b), readiness(&b), b.unread_to_mark()), (Err(Errno::AGAIN), (true, false), 2));
    assert_eq!(take(&b, 9).unwrap(), b"xy");
    send(&a, b"z!").unwrap();
    assert_eq!((take_urgent(&b), take(&b, 9).unwrap()), (Ok(b'!'), b"z".to_vec()));
    urgent::announce(&a.mapped.region, a.mapped.side, a.slot(), 6);
    a.shut(false, true).unwrap();
    assert_eq!(take_urgent(&b), Ok(b'0'), "the end came first");
}

#[test]
fn who_stands_at_a_mark_passes_it_when_the_next_one_comes() {
    let (a, b) = ends(5);
    send_urgent(&a, b"1");
    assert_eq!(take_urgent(&b), Ok(b'1'));
    send_urgent(&a, b"2");
    assert!(b.is_at_mark());
    assert_eq!(take_urgent(&b), Ok(b'2'));
    assert_eq!(take(&b, 9), Err(None));
    assert_eq!(b.unread(), 0);
    // An urgent byte that was never read with `MSG_OOB` becomes a byte as any other.
    send(&a, b"x").unwrap();
    send_urgent(&a, b"3");
    send_urgent(&a, b"4");
    assert_eq!(take(&b, 9).unwrap(), b"x3");
    assert_eq!(take_urgent(&b), Ok(b'4'));
    // A new mark is announced while the byte of the mark before is the last byte here.
    urgent::announce(
        &a.mapped.region,
        a.mapped.side,
        a.slot(),
        b.block().rx_tail.load(Ordering::Relaxed) + 2,
    );
    assert_eq!((take(&b, 9), b.unread()), (Err(None), 0));
    send(&a, b"5").unwrap();
    assert_eq!((take_urgent(&b), take(&b, 9)), (Ok(b'5'), Err(None)));
}

#[test]
fn a_pointer_that_says_anything_costs_no_byte_but_the_one_it_names() {
    for seed in 0..200 {
        let mut rng = Seed::new(seed);
        let (a, b) = ends(5);
        raise(a.halves().0, URGENT);
        let (mut sent, mut got) = (0u64, 0u64);
        for _ in 0..300 {
            match rng.below(5) {
                0 | 1 => {
                    let bytes: Vec<u8> = (0..rng.below(50)).map(|i| (sent + i) as u8).collect();
                    if let Ok(Progress::Done(n)) = send(&a, &bytes) {
                        sent += n as u64;
                    }
                }
                2 => {
                    let near = sent.wrapping_add(rng.below(40)).wrapping_sub(20);
                    let up = if rng.chance(100_000) { rng.next_u64() } else { near };
                    a.mapped.region.urgent(5).unwrap().up[a.mapped.side.index()].store(up, Ordering::Relaxed);
                }
                3 => {
                    let _ = (take_urgent(&b), b.stream_readiness(), b.unread_to_mark(), b.is_at_mark());
                }
                _ => {
                    b.set_inline(rng.chance(300_000));
                    for byte in take(&b, rng.below(60) as usize).unwrap_or_default() {
                        let skipped = byte.wrapping_sub(got as u8);
                        assert!(u64::from(skipped) <= 20, "seed {seed}");
                        got += u64::from(skipped) + 1;
                    }
                    assert!(got <= sent, "seed {seed}");
                }
            }
            let tail = b.block().rx_tail.load(Ordering::Relaxed);
            assert!(got <= tail && tail <= sent && !b.is_over(), "seed {seed}: {got} {tail} {sent}");
        }
    }
}
