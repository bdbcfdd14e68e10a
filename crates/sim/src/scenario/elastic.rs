//! A server on which packets cost time and cores come and go with the load. Clients begin and end at times that the seed draws.

use super::named::Options;
use super::setting::{Event, MachineSetting, Setting};
use crate::apps::Profile;
use crate::processors::ProcessorSetting;
use base::{Duration, Seed};
use link::{LinkConfig, Loss, Probability};

/// The load changes for so long, ms.
const CHANGES_MS: u64 = 3_000;

/// The run of a seed.
pub(super) fn elastic(seed: u64, options: &Options) -> Setting {
    let mut rng = Seed::new(seed ^ 0x0065_6c61_7374_6963);
    let mut link = LinkConfig::rated(10_000_000_000, Duration::from_us(200 + rng.below(800)));
    // In most runs no segment may come out of order.
    if rng.below(4) == 0 {
        link.loss = Loss::Random(Probability::percent(1));
    }
    let profile = Profile::PingPong(100 + rng.below(400), 64 + rng.below(1_000));
    let mut setting = Setting::pair(seed, &link, profile, 1);
    let client = MachineSetting::towpath(&link);
    setting.machines = vec![server(&mut rng, &link)];
    for _ in 0..2 + rng.below(4) {
        let at_once = 1 + rng.below(50);
        let count = options.connections.unwrap_or(at_once * (1 + rng.below(3)));
        let opens_after = Duration::from_ms(rng.below(CHANGES_MS));
        setting
            .machines
            .push(MachineSetting { opens_after, ..client.clone().opening(count, at_once as usize) });
    }
    befall(&mut rng, &mut setting);
    setting
}

/// Two to four cores, mostly with a processor each.
fn server(rng: &mut Seed, link: &LinkConfig) -> MachineSetting {
    let cores = 2 + rng.below(3) as u8;
    let mut server = MachineSetting::towpath(link);
    server.cores = cores;
    server.steer_delay = Some(Duration::from_us([0, 1, 50, 2_000, 7_000][rng.below(5) as usize]));
    server.has_offload = rng.below(2) == 0;
    server.merges = rng.below(4) == 0;
    server.backlog = 1_024;
    (server.shared.flows, server.region) = (1_024, (1_024, 64 << 20));
    let allowed = if rng.below(4) == 0 { 1 + rng.below(u64::from(cores)) as u8 } else { cores };
    // Cores that bring nothing: memory or the port is the limit.
    let useful = if rng.below(4) == 0 { 1 + rng.below(2) as u8 } else { cores };
    let cost = Duration::from_us(30 + rng.below(120));
    server.processors = Some(ProcessorSetting { cost, allowed, useful });
    server
}

/// Processors are taken away and given back, other programs come, cores are stopped for up to a second.
fn befall(rng: &mut Seed, setting: &mut Setting) {
    let cores = u64::from(setting.machines[0].cores);
    let at = |rng: &mut Seed| Duration::from_ms(rng.below(CHANGES_MS));
    if rng.below(3) == 0 {
        let taken = at(rng);
        setting.events.push((taken, Event::Allow(0, 1 + rng.below(cores) as u8)));
        let given = taken.plus(Duration::from_ms(500 + rng.below(3_000)));
        setting.events.push((given, Event::Allow(0, cores as u8)));
    }
    if rng.below(4) == 0 {
        let come = at(rng);
        let (used, pressure) = (rng.below(cores * 1_000) as u32, rng.below(60) as u32);
        setting.events.push((come, Event::Others(0, used, pressure)));
        let gone = come.plus(Duration::from_ms(200 + rng.below(3_000)));
        setting.events.push((gone, Event::Others(0, 0, 0)));
    }
    if rng.below(3) == 0 {
        let time = Duration::from_us(1 << rng.below(21));
        let mishap = match rng.below(3) {
            0 => Event::StopCore(0, rng.below(cores) as usize, time),
            which => Event::StopMover(0, which == 1, time),
        };
        setting.events.push((at(rng), mishap));
    }
    setting.events.sort_by_key(|(at, _)| *at);
}
