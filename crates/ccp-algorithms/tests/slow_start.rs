//! CCP paper, Figure 5: slow start in three places, 48 Mbit/s and 100 ms.

use ccp_agent::Instant;
use ccp_algorithms::slow_start::{SlowStart, Way};

use crate::model::{MSS, Path, World, ms};

fn windows(way: Way) -> Vec<f64> {
    let mut world = World::new(Path::new(48.0, 100, 4.0), SlowStart(way));
    world.flow(1, 0, 100_000);
    world.run(1000);
    let at = |round: u64| ms(100 * round + 95);
    let sender = &world.senders[&1];
    let in_flight = |at: Instant| sender.sample_at(at).in_flight as f64 / MSS as f64;
    (0..5).map(|round| in_flight(at(round))).collect()
}

#[test]
fn the_window_in_the_datapath_doubles_each_round_trip() {
    let seen = windows(Way::Window);
    assert_eq!(seen, [10.0, 20.0, 40.0, 80.0, 160.0]);
}

#[test]
fn reports_of_a_round_trip_lag_one_behind() {
    let (seen, ideal) = (windows(Way::Agent), windows(Way::Window));
    for round in 1..5 {
        assert!(seen[round] >= ideal[round - 1] && seen[round] <= ideal[round], "{seen:?} of {ideal:?}");
    }
}

#[test]
fn the_rate_doubles_each_round_trip() {
    let seen = windows(Way::Rate);
    for pair in seen[1..].windows(2) {
        assert!(pair[1] / pair[0] > 1.6 && pair[1] / pair[0] < 2.4, "{seen:?}");
    }
}

#[test]
fn each_ends_at_the_first_loss() {
    for way in Way::ALL {
        let mut world = World::new(Path::new(48.0, 100, 1.0), SlowStart(way));
        world.flow(1, 0, 100_000);
        world.run(10_000);
        let program = world.agent.flows()[0].program.clone();
        assert_eq!(program.as_deref(), Some("hold"), "{way:?}");
        let lines = world.log.iter().filter(|event| event.to_string().contains("left slow start"));
        assert_eq!(lines.count(), 1, "{way:?}");
    }
}
