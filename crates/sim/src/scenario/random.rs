//! A random run: the seed determines everything.

use super::setting::{Event, Kind, MachineSetting, Setting};
use crate::apps::Profile;
use base::{Duration, Seed};
use congestion::Algorithm;
use link::{Amount, Burst, Flap, LinkConfig, Loss, Probability, Reorder};
use rustix::io::Errno;

/// Congestion control of the machines.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Cubic,
    Algorithm::Reno,
    Algorithm::Dctcp,
    Algorithm::RateDctcp,
    Algorithm::Timely,
    Algorithm::Bbr,
];

/// Latest time after the beginning for injected faults, ms.
const STORM_MS: u64 = 20_000;

/// The run of seed `seed`, with peers of that kind.
#[must_use]
pub fn random(seed: u64, kind: Kind) -> Setting {
    let mut rng = Seed::new(seed ^ 0x0074_6f77_7061_7468);
    let clients = if kind == Kind::Towpath && rng.below(4) == 0 { 2 + rng.below(2) as usize } else { 1 };
    let mut machines = vec![machine(&mut rng, Kind::Towpath)];
    machines.extend((0..clients).map(|_| machine(&mut rng, kind)));
    for client in &mut machines[1..] {
        let count = 1 + rng.below(8);
        let gap = Duration::from_us(rng.below(50_000));
        client.opens = Some((count, 1 + rng.below(count) as usize, gap));
    }
    if rng.below(3) == 0 || kind == Kind::Hostile {
        machines[0].opens = Some((1 + rng.below(4), 4, Duration::from_ms(rng.below(50))));
    }
    if kind == Kind::Smoltcp {
        // smoltcp sends no window probes, so a lost window update would stop it for good. With these buffers our window never closes.
        let shared = &mut machines[0].shared;
        (shared.receive_buffer_initial, shared.receive_buffer_max) = (256 << 10, 1 << 20);
    }
    let storm = Duration::from_ms(500 + rng.below(STORM_MS));
    let mut setting = Setting {
        profile: profile(&mut rng, kind),
        v6: kind != Kind::Hostile && rng.below(3) == 0,
        events: vec![(storm, Event::Calm)],
        patience: Duration::from_secs(900),
        send_ring_max: None,
        stages: Vec::new(),
        tolerated: tolerated(kind),
        seed,
        machines,
    };
    befall(&mut rng, &mut setting, kind, storm);
    // From generators of their own: the rest of the run of a seed stays what it was.
    shift(&mut Seed::new(seed ^ 0x636f_7265_7320_6d76), &mut setting, storm);
    let mut rng = Seed::new(seed ^ 0x7269_6e67);
    setting.machines.iter_mut().for_each(|machine| machine.has_ring = rng.below(3) == 0);
    let mut rng = Seed::new(seed ^ 0x0061_6363_7572_6174);
    for machine in &mut setting.machines {
        machine.shared.accurate_ecn = rng.below(2) == 0;
    }
    // In a third of all runs flows find few loss records, or none.
    let mut rng = Seed::new(seed ^ 0x6c6f_7373);
    if rng.below(3) == 0 {
        let few = |machine: &mut MachineSetting| machine.shared.loss_records = rng.below(3) as u16;
        setting.machines.iter_mut().for_each(few);
    }
    setting
}

/// In half of all runs our hosts have two to four cores, and groups of flows move between them, at any time of the run.
fn shift(rng: &mut Seed, setting: &mut Setting, storm: Duration) {
    if rng.below(2) == 0 {
        return;
    }
    let stray_every = if rng.below(4) == 0 { 1 + rng.below(50) as u32 } else { 0 };
    let ours = |machine: &&mut MachineSetting| machine.kind == Kind::Towpath;
    for machine in setting.machines.iter_mut().filter(ours) {
        machine.cores = 2 + rng.below(3) as u8;
        machine.stray_every = stray_every;
        machine.steer_delay = Some(Duration::from_us([0, 1, 50, 2_000, 20_000][rng.below(5) as usize]));
    }
    let machines = setting.machines.len() as u64;
    // Most connections are short: as many moves in each doubling of the time.
    let at = |rng: &mut Seed| Duration::from_ns(rng.below(storm.as_ns()) >> rng.below(16));
    for _ in 0..1 + (rng.below(1000) >> rng.below(10)) {
        let event = Event::Shift(rng.below(machines) as usize, rng.next_u64());
        setting.events.push((at(rng), event));
    }
    if rng.below(4) == 0 {
        let time = Duration::from_us(1 << rng.below(21));
        let event = Event::StopCore(rng.below(machines) as usize, rng.below(4) as usize, time);
        setting.events.push((at(rng), event));
    }
    setting.events.sort_by_key(|(at, _)| *at);
}

fn profile(rng: &mut Seed, kind: Kind) -> Profile {
    match rng.below(8) {
        0 => Profile::Short,
        1 => Profile::PingPong(1 + rng.below(50), 1 + rng.below(4000)),
        2 => Profile::Both(rng.below(150_000)),
        _ if kind == Kind::Smoltcp => Profile::Bulk(rng.below(200_000)),
        _ => Profile::Mixed(1 + rng.below(200_000)),
    }
}

/// Errors that faults may cause. In a storm of 20 s, with losses of tens of percent and links that go down, a handshake, an address
/// resolution or the last segments of an orphan may be given up, and the other end gets a reset. Mild faults can do the same, but rarely.
fn tolerated(kind: Kind) -> Vec<Errno> {
    let mut errors = vec![Errno::TIMEDOUT, Errno::HOSTUNREACH, Errno::CONNRESET, Errno::PIPE, Errno::NOTCONN];
    if kind != Kind::Towpath {
        errors.extend([Errno::CONNREFUSED, Errno::CONNABORTED, Errno::PROTO, Errno::NOPROTOOPT]);
    }
    errors
}

fn befall(rng: &mut Seed, setting: &mut Setting, kind: Kind, storm: Duration) {
    let machines = setting.machines.len() as u64;
    let some_time = |rng: &mut Seed| Duration::from_ns(rng.below(storm.as_ns()));
    if rng.below(8) == 0 {
        let by = Duration::from_ms(1000 + rng.below(59_000));
        setting.events.push((some_time(rng), Event::Jump(rng.below(machines) as usize, by)));
    }
    if rng.below(8) == 0 {
        let time = Duration::from_ms(1 + rng.below(30_000));
        setting.events.push((some_time(rng), Event::Stop(rng.below(machines) as usize, time)));
    }
    if rng.below(10) == 0 && kind == Kind::Towpath {
        setting.events.push((some_time(rng), Event::Crash(1 + rng.below(machines - 1) as usize)));
        // The listener of that application ends too.
        setting.tolerated.push(Errno::CONNREFUSED);
    }
    if kind == Kind::Hostile {
        // Whatever the peer does, nothing may remain when the application ends.
        setting.events.push((storm.plus(Duration::from_secs(1)), Event::Crash(0)));
    }
    setting.events.sort_by_key(|(at, _)| *at);
}

fn machine(rng: &mut Seed, kind: Kind) -> MachineSetting {
    let mut setting = MachineSetting::towpath(&LinkConfig::default());
    setting.kind = kind;
    setting.links = [link(rng), link(rng)];
    // A small MTU that ICMP does not report, as where ICMP is filtered. smoltcp does no black hole detection, so only packets to it are
    // dropped.
    if rng.below(8) == 0 {
        let holes = if kind == Kind::Smoltcp { &mut setting.links[1..] } else { &mut setting.links[..] };
        holes
            .iter_mut()
            .for_each(|link| link.mtu = Some([1280, 1300, 1400, 1492, 4000][rng.below(5) as usize]));
    }
    let shared = &mut setting.shared;
    shared.sack = rng.below(5) > 0;
    shared.timestamps = rng.below(5) > 0;
    shared.window_scaling = rng.below(5) > 0;
    shared.ecn = rng.below(2) == 0;
    shared.receive_buffer_max = 4096 << rng.below(9);
    shared.receive_buffer_initial = shared.receive_buffer_max.min(4096 << rng.below(6));
    setting.algorithm = ALGORITHMS[rng.below(ALGORITHMS.len() as u64) as usize];
    setting.mtu = [1500, 1500, 1500, 1280, 9000][rng.below(5) as usize];
    setting.has_offload = rng.below(3) == 0;
    setting.merges = rng.below(3) == 0;
    setting.cores = if rng.below(3) == 0 { 2 } else { 1 };
    setting.moderation = Duration::from_us([0, 0, 10, 100][rng.below(4) as usize]);
    setting
}

fn link(rng: &mut Seed) -> LinkConfig {
    // From 2 Mbit/s to 8 Gbit/s, from 5 us to 80 ms one way.
    let rate = 2_000_000u64 << rng.below(13);
    let delay = Duration::from_us(5 << rng.below(15));
    let mut config = LinkConfig::rated(rate, delay);
    config.queue_packets = Some(8 << rng.below(8));
    if rng.below(4) == 0 {
        config.ecn_threshold = Some(Amount::Packets(4 << rng.below(5)));
    }
    if rng.below(3) == 0 {
        config.jitter = Duration::from_us(1 << rng.below(12));
    }
    config.loss = loss(rng);
    let some = |rng: &mut Seed, most: u64| match rng.below(4) {
        0 => Probability::per_million(rng.below(most) as u32),
        _ => Probability::NEVER,
    };
    config.reorder.probability = some(rng, 100_000);
    config.duplicate = some(rng, 50_000);
    config.corrupt = some(rng, 30_000);
    config.truncate = some(rng, 20_000);
    if config.reorder.probability != Probability::NEVER {
        config.reorder = Reorder { extra: Duration::from_us(1 << rng.below(16)), ..config.reorder };
    }
    if rng.below(12) == 0 {
        let time = |rng: &mut Seed| Duration::from_ms(1 + rng.below(3000));
        config.flap = Some(Flap { up: time(rng), down: time(rng) });
    }
    config
}

fn loss(rng: &mut Seed) -> Loss {
    match rng.below(6) {
        0 | 1 => Loss::Random(Probability::per_million(rng.below(100_000) as u32)),
        2 => Loss::Burst(Burst {
            enter: Probability::per_million(rng.below(10_000) as u32),
            leave: Probability::percent(10 + rng.below(60) as u32),
            loss_bad: Probability::percent(50 + rng.below(51) as u32),
            loss_good: Probability::NEVER,
        }),
        _ => Loss::None,
    }
}
