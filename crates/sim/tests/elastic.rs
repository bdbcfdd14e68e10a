//! Cores that come and go with the load. SEED and SEEDS choose other seeds.

use base::Duration;
use link::LinkConfig;
use sim::apps::Profile;
use sim::figure::Steps;
use sim::scenario::{Event, MachineSetting, Options, Report, Run, Setting, setting};
use sim::{ProcessorSetting, Why};

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
    let reports = run("elastic", 16);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let [changes, groups] = [sum(|r| r.changes), sum(|r| r.moved[0])];
    let [flows, given_up] = [sum(|r| r.moved[1]), sum(|r| r.moved[2])];
    let says = format!("{changes} changes, {groups} groups, {flows} flows, {given_up} given up");
    assert!(changes >= 30 && groups >= 1_000 && flows >= 300 && given_up > 0, "{says}");
    println!("{says}");
}

/// Two cores; packets take 20 us, the port 7 ms for a new table.
const STEPS: Steps = Steps {
    cores: 2,
    cost: Duration::from_us(20),
    steer_delay: Duration::from_ms(7),
    step: Duration::from_ms(600),
    load: 1_500,
    seed: 1,
};

/// A load of 0.5 cores, then of more than one, then of 0.5 (figures 14 and 15 of the TAS paper). Also where the first core's queue never gets
/// empty while its groups move: with 1.9 cores' load on it.
#[test]
fn a_core_comes_with_the_load_and_goes_with_it() {
    for load in [1_500, 1_900] {
        let result = Steps { load, seed: number("SEED", 1), ..STEPS }.run();
        let says = format!("load {load}: {result:?}");
        assert!(result.added.is_some_and(|time| time <= Duration::from_ms(200)), "{says}");
        assert!(result.removed.is_some_and(|time| time <= Duration::from_ms(500)), "{says}");
        assert_eq!(result.changes.len(), 2, "{says}");
        assert_eq!((result.lost, result.overflow), ([0; 3], 0), "{says}");
        // A round of 64 KiB of packets, of which each third is acknowledged by one more.
        assert!(result.held <= Duration::from_ms(2), "{says}");
    }
}

/// A load of three cores comes to one, and the port needs 150 ms to steer: the queue in front of the core is full while groups move. What found no room is sent again,
/// and nothing else is lost.
#[test]
fn a_queue_that_overflows_while_groups_move_costs_only_what_found_no_room() {
    let result =
        Steps { load: 3_000, steer_delay: Duration::from_ms(150), seed: number("SEED", 1), ..STEPS }.run();
    assert!(result.added.is_some() && result.overflow_at_moves > 0, "{result:?}");
    assert_eq!(result.lost[..2], [0, 0], "{result:?}");
}

/// Cores are added and taken back all the time: a steady flow is not held up by more than 30 % in its 99th percentile.
#[test]
fn a_steady_flow_hardly_feels_a_change() {
    let result = Steps { seed: number("SEED", 1), ..STEPS }.changes();
    let [outside, during] = result.p99;
    assert!(during <= 1.3 * outside, "{result:?}");
    assert!(result.changes >= 40 && result.during >= 500, "{result:?}");
    assert_eq!(result.lost, [0; 3], "{result:?}");
    assert!(result.held <= Duration::from_ms(1), "{result:?}");
}

/// A server with two cores, and a client with connections that keep more than one busy, for as many requests each.
fn busy(useful: u8, requests: u64, events: &[(u64, Event)]) -> Setting {
    let link = LinkConfig::rated(10_000_000_000, Duration::from_us(500));
    let mut setting = Setting::pair(1, &link, Profile::PingPong(requests, 200), 40);
    setting.machines = vec![MachineSetting::towpath(&link), MachineSetting::towpath(&link).opening(40, 40)];
    let server = &mut setting.machines[0];
    (server.cores, server.steer_delay) = (2, Some(Duration::from_ms(1)));
    server.processors = Some(ProcessorSetting { cost: Duration::from_us(50), allowed: 2, useful });
    setting.events = events.iter().map(|(ms, event)| (Duration::from_ms(*ms), *event)).collect();
    setting
}

/// The run of a setting, which must pass: its report, and the changes of the server's cores as milliseconds, cores and reason.
fn changes_of(setting: Setting) -> (Report, Vec<(u64, u8, Why)>) {
    let mut run = Run::new(setting);
    let report = run.finish();
    assert_eq!(report.failure, None, "{}", run.describe());
    let changes = run.changes(0).into_iter().map(|past| {
        let since = past.at.as_ns() / 1_000_000 - 1_000;
        (since, past.change.cores, past.change.why)
    });
    (report, changes.collect())
}

#[test]
fn a_core_that_brings_nothing_is_tried_ever_later() {
    let (_, changes) = changes_of(busy(1, 1_500, &[]));
    let added: Vec<u64> = changes.iter().filter(|(_, _, why)| *why == Why::Busy).map(|c| c.0).collect();
    let taken_back = changes.iter().filter(|(_, _, why)| *why == Why::BroughtNothing).count();
    assert!(added.len() >= 3 && taken_back >= added.len() - 1, "{changes:?}");
    let gaps: Vec<u64> = added.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().zip([1_000, 2_000, 4_000, 8_000]).all(|(gap, least)| *gap >= least), "{changes:?}");
}

/// Stopped for a second while it expects groups, or while it yields them: the move is given up, and made later.
#[test]
fn a_core_that_is_stopped_while_groups_move_costs_that_move_only() {
    for yields in [false, true] {
        let stop = Event::StopMover(0, yields, Duration::from_secs(1));
        let (report, changes) = changes_of(busy(2, 1_500, &[(0, stop)]));
        assert!(report.moved[2] >= 1, "no move was given up: {changes:?}");
        assert!(report.moved[0] >= 30 && report.moved[1] >= 10, "{:?} moved, {changes:?}", report.moved);
        assert_eq!(changes.first().map(|(_, cores, _)| *cores), Some(2), "{changes:?}");
    }
}

#[test]
fn when_processors_are_taken_away_no_more_cores_serve() {
    let (report, changes) =
        changes_of(busy(2, 1_500, &[(500, Event::Allow(0, 1)), (3_000, Event::Allow(0, 2))]));
    let less = changes.iter().position(|(_, cores, why)| (*cores, *why) == (1, Why::FewerProcessors));
    let less = less.unwrap_or_else(|| panic!("one core serves on one processor: {changes:?}"));
    assert!((500..1_700).contains(&changes[less].0), "{changes:?}");
    let more = changes[less..].iter().find(|(_, _, why)| *why == Why::Busy);
    assert!(more.is_some_and(|(at, cores, _)| *at >= 3_000 && *cores == 2), "{changes:?}");
    assert_eq!(report.moved[2], 0);
}

/// Other programs keep the second processor busy: the service stays at one core.
#[test]
fn what_other_programs_need_is_left_to_them() {
    let (_, changes) = changes_of(busy(2, 500, &[(0, Event::Others(0, 900, 10))]));
    assert_eq!(changes, []);
}
