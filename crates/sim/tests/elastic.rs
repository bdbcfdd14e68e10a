//! Cores that come and go with the load. SEED and SEEDS choose other seeds.

use base::Duration;
use sim::figure::Steps;
use sim::scenario::{Options, Report, Run, setting};

/// A number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Runs seeds of a scenario: each must pass.
fn run(name: &str, count: u64) -> Vec<Report> {
    let first = number("SEED", 1);
    let one = |seed| {
        let mut run = Run::new(setting(name, seed, &Options::default()).expect("a scenario of that name"));
        let report = run.finish();
        let replay = format!("{}replay: towpath sim {name} --seed {seed}", run.describe());
        assert_eq!(report.failure, None, "{replay}");
        report
    };
    (first..first + number("SEEDS", count)).map(one).collect()
}

/// The run itself fails when a byte is lost, a segment comes out of order, a flow is in the lists of two cores, cores serve without
/// processors, their number changes too soon, or what brought nothing is tried again too soon.
#[test]
fn cores_come_and_go_with_the_load_and_nothing_is_lost() {
    let reports = run("elastic", 24);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let [changes, groups] = [sum(|r| r.changes), sum(|r| r.moved[0])];
    let [flows, given_up] = [sum(|r| r.moved[1]), sum(|r| r.moved[2])];
    eprintln!("{changes} changes, {groups} groups, {flows} flows, {given_up} given up");
}

/// A load of 0.5, 1.5 and 0.5 cores (figures 14 and 15 of the TAS paper).
#[test]
fn a_core_comes_with_the_load_and_goes_with_it() {
    let steps = Steps {
        cores: 2,
        cost: Duration::from_us(20),
        steer_delay: Duration::from_ms(7),
        step: Duration::from_ms(600),
        seed: number("SEED", 1),
    };
    let result = steps.run();
    eprintln!("{result:?}");
    eprintln!("{:?}", steps.changes());
}
