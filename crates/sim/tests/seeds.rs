//! Every scenario, and a few random seeds: in a debug build, with overflow checks; `scripts/test` runs thousands in release.

use sim::scenario::{NAMED, Options, Run, setting};

fn pass(name: &str, seed: u64, options: &Options) {
    let setting = setting(name, seed, options).expect("a scenario of that name");
    let mut run = Run::new(setting);
    let report = run.finish();
    let failure = report.failure.unwrap_or_default();
    assert!(failure.is_empty(), "{failure}\n{}replay: towpath sim {name} --seed {seed}", run.describe());
}

#[test]
fn random_seeds_pass() {
    let first: u64 = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let count: u64 = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    (first..first + count).for_each(|seed| pass("random", seed, &Options::default()));
}

#[test]
fn named_scenarios_pass() {
    // Long ones are for release builds.
    let is_short = |name: &str| !["long-fat", "churn"].contains(&name);
    for named in NAMED.iter().filter(|named| is_short(named.name)) {
        pass(named.name, 1, &Options::default());
    }
    pass("churn", 1, &Options { connections: Some(1000) });
}

#[test]
fn a_seed_is_a_run() {
    let run = |seed| {
        let report = Run::new(setting("random", seed, &Options::default()).expect("random")).finish();
        (report.frames, report.bytes, report.seconds.to_bits(), report.connections)
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}
