//! The seeds of the fuzz target `channel_frames`, as an ordinary test: each shape of session, what the fuzzer has kept, and random changes of it.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

mod support;

use base::Seed;
use std::path::Path;
use support::replay::replay;

#[test]
fn committed_seeds_keep_every_bound_in_each_shape_of_session() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/channel_frames");
    let (mut number, mut frames) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let data = std::fs::read(entry.unwrap().path()).unwrap();
        number += 1;
        frames += replay(&data);
        for shape in 0..32 {
            let mut other = data.clone();
            other[0] = shape | (data[0] & 0xE0);
            replay(&other);
        }
        let mut seed = Seed::new(number);
        for _ in 0..200 {
            let mut other = data.clone();
            let at = seed.below(other.len() as u64) as usize;
            other[at] = seed.next_u64() as u8;
            replay(&other);
        }
    }
    assert!(number >= 11 && frames > number as usize, "{number} seeds, {frames} frames");
}
