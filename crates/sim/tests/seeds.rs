//! Every scenario, and thousands of random seeds, with debug assertions and overflow checks. SEED and SEEDS choose others.

use sim::scenario::{NAMED, Options, Run, setting};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

/// Failures shown of one scenario.
const SHOWN: usize = 5;

/// What must not have happened, with the command that replays it.
fn failure(name: &str, seed: u64, options: &Options) -> Option<String> {
    let setting = setting(name, seed, options).expect("a scenario of that name");
    let mut run = Run::new(setting);
    // A panic has already been printed.
    let failure = catch_unwind(AssertUnwindSafe(|| run.finish().failure)).unwrap_or(Some("panic".to_owned()));
    failure.map(|what| format!("{what}\n{}replay: towpath sim {name} --seed {seed}", run.describe()))
}

fn pass(name: &str, seed: u64, options: &Options) {
    let failure = failure(name, seed, options).unwrap_or_default();
    assert!(failure.is_empty(), "{failure}");
}

/// A number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn many(name: &str, count: u64) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let (first, count) = (number("SEED", 1), number("SEEDS", count));
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let mut seeds = (first + thread..first + count).step_by(threads as usize);
            let failures = &failures;
            scope.spawn(move || {
                let enough = || failures.lock().is_ok_and(|failures| failures.len() >= SHOWN);
                while let Some(seed) = seeds.next().filter(|_| !enough()) {
                    let failure = failure(name, seed, &Options::default());
                    failures.lock().expect("nobody panics with it").extend(failure);
                }
            });
        }
    });
    let failures = failures.into_inner().expect("nobody panics with it");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn random_seeds_pass() {
    many("random", 1000);
}

#[test]
fn random_seeds_with_a_hostile_peer_pass() {
    many("random-hostile", 500);
}

/// Beyond the numbers that the tests above go through.
#[test]
fn seeds_that_failed_once_pass() {
    // The oracle took the number of a reset, which answered an acknowledgement of what was never sent, for one of the stream.
    pass("random-hostile", 3749, &Options::default());
}

#[test]
fn random_seeds_with_random_programs_pass() {
    many("programs", 300);
}

/// Flows with programs, reports that are due and marks of what was sent go from core to core.
#[test]
fn programs_survive_a_storm_of_moves() {
    many("program-storm", 60);
}

#[test]
fn random_seeds_with_smoltcp_pass() {
    many("random-smoltcp", 300);
}

#[test]
fn named_scenarios_pass() {
    // Long ones are for release builds (scripts/test).
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
