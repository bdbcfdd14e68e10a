//! Intervals of data ahead of gaps, in any order and for any number of places: they are those of a naive set of bytes, and what is told of them is true.
#![no_main]

use base::SeqNumber;
use flow::{Ahead, Interval, sack_order};
use libfuzzer_sys::fuzz_target;

/// Bytes of the window; each step of the input is four bytes.
const WINDOW: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let [places, start, steps @ ..] = data else { return };
    let (mut ahead, start) = (Ahead::NONE, u32::MAX - 16 * u32::from(*start));
    let mut held = vec![Interval::default(); usize::from(*places)];
    let (mut bytes, mut next) = (vec![false; WINDOW + 2], 0usize);
    let seq = |at: usize| SeqNumber(start.wrapping_add(at as u32));
    for step in steps.chunks_exact(4) {
        let left = usize::from(u16::from_le_bytes([step[0], step[1]])) % WINDOW;
        let right = (left + 1 + usize::from(u16::from_le_bytes([step[2], step[3]])) % 300).min(WINDOW);
        if right <= next {
            continue;
        }
        let left = left.max(next);
        if left == next {
            // Data in order.
            bytes[left..right].fill(true);
            let reached = ahead.borrowed(&mut held).reach(seq(right));
            next = (right..).find(|at| !bytes[*at]).expect("the last byte never comes");
            assert_eq!(reached, seq(next));
        } else if ahead.borrowed(&mut held).add(Interval { left: seq(left), right: seq(right) }) {
            bytes[left..right].fill(true);
            let first = sack_order(ahead.used(&held), &ahead.latest, 4).next().expect("one was added");
            assert!(first.has(seq(left)) && first.has(seq(right - 1)), "the latest first");
        } else {
            assert_eq!(usize::from(ahead.count), held.len(), "refused only without a place");
            assert!(!bytes[left - 1..right + 1].iter().any(|has| *has), "what joins needs no place");
        }
        let edges = (next..WINDOW).filter(|at| !bytes[*at] && bytes[at + 1]);
        let found: Vec<SeqNumber> = ahead.used(&held).iter().map(|held| held.left).collect();
        assert_eq!(found, edges.map(|at| seq(at + 1)).collect::<Vec<_>>());
        let told: Vec<Interval> = sack_order(ahead.used(&held), &ahead.latest, 4).collect();
        assert_eq!(told.len(), found.len().min(4));
    }
});
