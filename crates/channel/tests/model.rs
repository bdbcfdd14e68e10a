//! Two services over bad networks, thousands of seeds. Each byte comes once and in order, none beyond its credit, none of another socket;
//! nothing is left over. SEED and SEEDS choose others; a failure names its seed.

use crate::support::lossy::{Weather, address_on};
use crate::support::world::World;
use base::{Duration, Seed};
use channel::Config;
use channel::scheduler::Policy;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a run does to the two services beside their work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// Channels come and go, one or all of them; each loss can be mended in time.
    Channels,
    /// A host restarts.
    Restart,
    /// For longer than a session waits, no channel can be made.
    Partition,
}

fn config(seed: &mut Seed) -> Config {
    let policies = [Policy::Sticky, Policy::Shortest, Policy::RoundRobin];
    Config {
        secret: seed.chance(500_000).then(|| b"secret".to_vec()),
        largest_frame: 4_096 + seed.below(57_345) as u32,
        throughput: policies[seed.below(3) as usize],
        hosts: if seed.chance(500_000) {
            vec![]
        } else {
            (0..2).map(|host| (0..3).map(|way| address_on(host, way)).collect()).collect()
        },
        ..Config::new([0; 32], 0)
    }
}

fn run(number: u64, trouble: Trouble) -> World {
    let mut seed = Seed::new(number ^ 0xC0FFEE);
    let weather = Weather {
        delay_max: Duration::from_us(50 + seed.below(20_000)),
        capacity: 1_024 + seed.below(100_000) as usize,
        create_fails: if seed.chance(500_000) { 300_000 } else { 0 },
        is_cut: false,
    };
    let config = config(&mut seed);
    let mut world = World::new(number, weather, &config);
    let sockets = 1 + seed.below(8);
    let size = [500, 5_000, 40_000][seed.below(3) as usize];
    let kills = [5_000, 30_000, 150_000][seed.below(3) as usize];
    let mut left = sockets;
    let steps = 60 + seed.below(120);
    let at = seed.below(steps);
    for step in 0..steps {
        if left > 0 && seed.chance(400_000) {
            left -= 1;
            world.open_random(size);
        }
        if seed.chance(kills) {
            world.net.borrow_mut().kill(seed.chance(300_000));
        }
        if trouble == Trouble::Channels && seed.chance(20_000) {
            // The first way is the only one to begin a session over.
            let way = (1 + seed.below(4)) as u8;
            world.net.borrow_mut().kill_way(Some(way).filter(|way| *way < 3));
        }
        if seed.chance(40_000) {
            let channels = 1 + seed.below(4) as usize;
            let now = world.now;
            let host = seed.below(2) as usize;
            let ids: Vec<_> = world.sides[host].hub.sessions().map(|(id, _)| id).collect();
            for id in ids {
                world.sides[host].hub.session(id).unwrap().want_channels(now, channels);
            }
        }
        match trouble {
            Trouble::Restart if step == at => world.restart(seed.below(2) as usize),
            Trouble::Partition if step == at => {
                world.may_end = true;
                world.net.borrow_mut().weather.is_cut = true;
                world.net.borrow_mut().kill(true);
                let until = world.now.plus(Duration::from_secs(9 + seed.below(4)));
                while world.now < until {
                    world.step(Duration::from_ms(200));
                }
                world.net.borrow_mut().weather.is_cut = false;
            }
            _ => {}
        }
        world.step(Duration::from_us(100 + seed.below(3_000)));
    }
    world.net.borrow_mut().weather.create_fails = 0;
    world.finish();
    world
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn many(trouble: Trouble, count: u64) {
    let (first, count) = (number("SEED", 1), number("SEEDS", count));
    let failures = |seeds: std::iter::StepBy<std::ops::Range<u64>>| {
        let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(*seed, trouble))).is_err();
        seeds.filter(fails).take(5).collect::<Vec<u64>>()
    };
    let mut failed: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..2).map(|i| scope.spawn(move || failures((first + i..first + count).step_by(2)))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    failed.sort_unstable();
    let again = failed
        .first()
        .map(|seed| format!("SEED={seed} SEEDS=1 cargo test -p towpath-channel --test all model::"));
    assert!(failed.is_empty(), "{trouble:?}: seeds {failed:?} fail; replay: {}", again.unwrap_or_default());
}

#[test]
fn channels_die_and_no_socket_notices() {
    many(Trouble::Channels, 4_000);
}

#[test]
fn a_restart_resets_what_was_open() {
    many(Trouble::Restart, 1_000);
}

#[test]
fn a_partition_ends_sessions_and_leaves_nothing() {
    many(Trouble::Partition, 600);
}
