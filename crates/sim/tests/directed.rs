//! The corpus of the fuzz target `tcp_segments`, and as many random strings as CI has time for.

use base::Seed;
use sim::directed::{Outcome, run};
use std::path::Path;

/// Random strings: some ten seconds.
const STRINGS: u64 = 10_000;

/// A random string; every other one begins with handshakes, so that it does not end among strangers.
fn string(seed: u64) -> Vec<u8> {
    // Two bytes of switches; then, for each peer that opens: a SYN, an acknowledgement, a segment with data.
    const OPENINGS: [[u8; 12]; 4] = [
        [0, 4, 1, 0, 0, 4, 0, 0, 0, 4, 3, 5],
        [0, 5, 1, 0, 0, 5, 0, 0, 0, 5, 3, 5],
        [0, 6, 1, 0, 0, 6, 0, 0, 0, 6, 3, 5],
        [0, 7, 1, 0, 0, 7, 0, 0, 0, 7, 3, 5],
    ];
    let mut random = Seed::new(seed);
    let mut bytes = vec![random.next_u64() as u8, 0];
    if seed % 2 == 1 {
        bytes.extend(OPENINGS.as_flattened());
    }
    let len = 16 + random.below(700) as usize;
    bytes.extend((0..len).map(|_| random.next_u64() as u8));
    bytes
}

/// What a fuzzer has found, smallest first, by name: a file that fails stays here for ever.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/tcp_segments"));
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    found.sort();
    found
}

#[test]
fn segments_of_the_corpus_do_no_harm() {
    let corpus = corpus();
    assert!(corpus.len() >= 20, "the seeds are kept in fuzz/seeds/tcp_segments");
    let mut all = Outcome::default();
    for (name, bytes) in corpus {
        let outcome = run(&bytes).unwrap_or_else(|what| panic!("fuzz/seeds/tcp_segments/{name}: {what}"));
        all.accepted += outcome.accepted;
        all.opened += outcome.opened;
        all.received += outcome.received;
    }
    // The corpus reaches both kinds of opening, and data.
    assert!(all.accepted > 10 && all.opened > 10 && all.received > 1000, "{all:?}");
}

#[test]
fn random_segments_do_no_harm() {
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + STRINGS {
        if let Err(what) = run(&string(seed)) {
            panic!("{what}\nreplay: SEED={seed} cargo test -p towpath-sim --test all directed::");
        }
    }
}
