//! The de-framer finds the same frames however the bytes are split, and any bytes are frames or a violation.

use channel::bytes::Input;
use channel::deframer::{Deframer, Item};
use channel::frame::{HEADER_LEN, Header, Kind};
use channel::open::Open;
use channel::violation::Violation;
use proptest::prelude::*;

/// What was found, DATA put together again.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Found {
    Frame(Header, Vec<u8>),
    Bad(Violation),
}

fn bytes_of(input: Input<'_>) -> Vec<u8> {
    let mut bytes = vec![0; input.len()];
    input.copy_to(&mut bytes);
    bytes
}

fn find(pieces: &[&[u8]]) -> (Vec<Found>, Deframer) {
    let (mut deframer, mut found) = (Deframer::default(), Vec::new());
    for piece in pieces {
        let mut input = Input::Own(piece);
        loop {
            match deframer.next(&mut input) {
                Ok(Some(Item::Control { header, body })) => found.push(Found::Frame(header, body.to_vec())),
                Ok(Some(Item::Data { header, before: 0, bytes })) => {
                    found.push(Found::Frame(header, bytes_of(bytes)));
                }
                Ok(Some(Item::Data { header, before, bytes })) => match found.last_mut() {
                    Some(Found::Frame(first, body)) if *first == header => {
                        assert_eq!(body.len(), before as usize);
                        body.extend(bytes_of(bytes));
                    }
                    other => panic!("bytes {before} of {header:?} behind {other:?}"),
                },
                Ok(None) => {
                    assert!(input.is_empty(), "bytes are left over");
                    break;
                }
                Err(violation) => {
                    found.push(Found::Bad(violation));
                    return (found, deframer);
                }
            }
        }
    }
    (found, deframer)
}

fn data(socket: u32, argument: u64, body: &[u8]) -> Vec<u8> {
    let header = Header { length: body.len() as u32, kind: Kind::Data, socket, argument };
    [&header.encode()[..], body].concat()
}

/// One frame of each kind of body.
fn frames() -> Vec<u8> {
    let open = Open { from_port: 7, to: ([10, 0, 0, 2], 80).into(), options: 0 };
    let credit = Header { length: 8, kind: Kind::Credit, socket: 3, argument: 9 };
    [
        Header::bare(Kind::Ping, 0, 5).encode().to_vec(),
        open.encode(1, 4_096).to_vec(),
        data(1, 0, b"request"),
        [&credit.encode()[..], &77u64.to_le_bytes()].concat(),
        data(3, 1 << 40, &[9; 40]),
        Header::bare(Kind::Fin, 3, 1 << 41).encode().to_vec(),
    ]
    .concat()
}

#[test]
fn every_split_into_three_finds_the_same_frames() {
    let bytes = frames();
    let (whole, deframer) = find(&[&bytes]);
    assert!(whole.len() == 6 && deframer.is_between_frames());
    for first in 0..=bytes.len() {
        for second in first..=bytes.len() {
            let (found, _) = find(&[&bytes[..first], &bytes[first..second], &bytes[second..]]);
            assert_eq!(found, whole, "split at {first} and {second}");
        }
    }
}

#[test]
fn every_truncation_finds_a_beginning_and_waits() {
    let bytes = frames();
    let (whole, _) = find(&[&bytes]);
    for end in 0..bytes.len() {
        let (found, _) = find(&[&bytes[..end]]);
        assert!(found.iter().all(|frame| matches!(frame, Found::Frame(..))));
        let complete = found.iter().zip(&whole).filter(|(a, b)| a == b).count();
        assert!(complete + 1 >= found.len(), "only the last may be cut");
    }
}

#[test]
fn a_length_beyond_the_bound_is_found_with_the_header() {
    let mut bytes = data(1, 0, b"x");
    bytes[..3].copy_from_slice(&61_441u32.to_le_bytes()[..3]);
    let bad = Found::Bad(Violation::Length { kind: Kind::Data, length: 61_441 });
    assert_eq!(find(&[&bytes[..HEADER_LEN]]).0, [bad]);
}

proptest! {
    #[test]
    fn any_bytes_are_frames_or_a_violation_and_splits_do_not_matter(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
        kinds in proptest::collection::vec(0u8..13, 0..8),
        cuts in proptest::collection::vec(0usize..400, 0..12),
    ) {
        // Plausible headers at the beginning, so that bodies are reached.
        for (i, kind) in kinds.iter().enumerate() {
            if let Some(header) = bytes.get_mut(i * 16..i * 16 + 4) {
                header.copy_from_slice(&[0, 0, 0, *kind]);
            }
        }
        let (whole, _) = find(&[&bytes]);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        prop_assert_eq!(find(&pieces).0, whole);
    }
}
