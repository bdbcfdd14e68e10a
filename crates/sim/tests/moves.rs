//! Groups of flows that move between cores while their packets come. SEED and SEEDS choose other seeds.

use sim::scenario::{Options, Run, setting};

/// A number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Runs seeds of a scenario. Returns the groups and flows that have moved in all, and the moves given up.
fn run(name: &str, count: u64) -> [u64; 3] {
    let mut moved = [0; 3];
    let first = number("SEED", 1);
    for seed in first..first + number("SEEDS", count) {
        let mut run = Run::new(setting(name, seed, &Options::default()).expect("a scenario of that name"));
        let report = run.finish();
        let replay = format!("{}replay: towpath sim {name} --seed {seed}", run.describe());
        assert_eq!(report.failure, None, "{replay}");
        (0..3).for_each(|i| moved[i] += report.moved[i]);
    }
    moved
}

/// The run itself fails when a segment comes out of order, a byte is lost, or a flow is in the lists of two cores.
#[test]
fn moves_change_no_order_and_lose_nothing() {
    let [groups, flows, given_up] = run("moves", 10);
    assert!(groups > 10_000 && flows > 1_000, "{groups} groups and {flows} flows have moved");
    assert_eq!(given_up, 0, "no core was stopped");
}

#[test]
fn random_runs_move_flows_and_give_moves_up_when_a_core_is_stopped() {
    let [groups, flows, given_up] = run("random", 300);
    assert!(groups > 1_000 && flows > 1_000 && given_up > 0, "{groups} {flows} {given_up}");
}
