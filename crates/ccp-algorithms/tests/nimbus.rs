//! Nimbus: elastic others or not.

use ccp_agent::{Agent, Duration};
use ccp_algorithms::nimbus::Nimbus;

use crate::model::{Cross, Path, World, ms};

const LINK: f64 = 48.0;

fn agent() -> Agent {
    let mut agent = Agent::new();
    agent.add(Nimbus { link: Some((LINK * 125_000.0) as u64) }).expect("no mistakes");
    agent
}

/// The part of the time between two times in which the flow took others for elastic.
fn elastic_part(world: &World, from_ms: u64, until_ms: u64) -> f64 {
    let (mut is_elastic, mut since, mut sum) = (false, ms(from_ms), Duration::ZERO);
    for event in &world.log {
        let line = event.to_string();
        let at = event.at.max(ms(from_ms)).min(ms(until_ms));
        if line.contains("others are") {
            if is_elastic {
                sum = sum.plus(at.since(since));
            }
            (is_elastic, since) = (line.contains("others are elastic"), at);
        }
    }
    if is_elastic {
        sum = sum.plus(ms(until_ms).since(since));
    }
    sum.as_ms() as f64 / (until_ms - from_ms) as f64
}

#[test]
fn alone_nimbus_keeps_its_queue_short() {
    let mut world = World::with(Path::new(LINK, 50, 2.0), agent());
    world.flow_of(1, "nimbus", 0, 100_000);
    world.run(40_000);
    let sender = &world.senders[&1];
    let (rate, queue) = (sender.mbit(ms(10_000), ms(40_000)), sender.queue_ms(ms(10_000), ms(40_000)));
    assert!(rate > 0.85 * LINK && queue < 25.0, "{rate} Mbit/s, {queue} ms");
}

/// Ten paths with others that send at a constant rate. (Elastic others: see the module's documentation.)
#[test]
fn others_at_a_constant_rate_are_inelastic() {
    for seed in 0..10 {
        let mut world = World::with(Path::new(LINK, 40 + 3 * seed, 2.0), agent());
        world.flow_of(1, "nimbus", 0, 100_000);
        let rate = (LINK * 125_000.0) as u64 * (30 + 3 * seed) / 100;
        world.cross(Cross { rate, from: ms(1000 + 137 * seed), until: ms(100_000) });
        world.run(25_000);
        let part = elastic_part(&world, 10_000, 25_000);
        assert!(part < 0.1, "elastic for {part} of the time, seed {seed}");
    }
}
