//! The seeds of the fuzz target `channel_frames`, as an ordinary test: each shape of session, what the fuzzer has kept, and random changes of it.

use crate::support::replay::replay;
use base::Seed;
use std::path::{Path, PathBuf};

/// Says which seed file a test was at when it panicked.
struct At(PathBuf);

impl Drop for At {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("at the seed {}, or a change of it", self.0.display());
        }
    }
}

#[test]
fn committed_seeds_keep_every_bound_in_each_shape_of_session() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/channel_frames");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    // The random changes of a file depend on its number: a folder has no order of its own.
    paths.sort_unstable();
    let (mut number, mut frames) = (0, 0);
    for path in paths {
        let data = std::fs::read(&path).unwrap();
        let _at = At(path);
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
