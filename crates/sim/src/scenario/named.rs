//! Scenarios by name: each shows one kind of fault, or one thing that must work.

use super::setting::{Event, Kind, MachineSetting, Setting};
use crate::agents::{AgentSetting, Mind};
use crate::apps::Profile;
use base::Duration;
use link::{Amount, Burst, Flap, LinkConfig, Loss, Probability, Reorder};
use rustix::io::Errno;

/// Options of the command line that change a scenario.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Number of connections; `None`: the scenario's own.
    pub connections: Option<u64>,
}

/// A scenario with a name.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// Its name on the command line.
    pub name: &'static str,
    /// A description for people.
    pub about: &'static str,
    /// Makes the setting of a run from a seed and options.
    pub make: fn(u64, &Options) -> Setting,
}

const fn ms(n: u64) -> Duration {
    Duration::from_ms(n)
}

/// 1 Gbit/s, round-trip time 1 ms.
fn link() -> LinkConfig {
    LinkConfig::rated(1_000_000_000, Duration::from_us(500))
}

fn pair(seed: u64, options: &Options, link: &LinkConfig) -> Setting {
    Setting::pair(seed, link, Profile::Mixed(2_000_000), options.connections.unwrap_or(8))
}

fn with(seed: u64, options: &Options, change: impl FnOnce(&mut LinkConfig)) -> Setting {
    let mut link = link();
    change(&mut link);
    pair(seed, options, &link)
}

/// All scenarios except the random ones.
pub const NAMED: &[Named] = &[
    Named {
        name: "clean",
        about: "bulk and RPC over 1 Gbit/s without mishaps",
        make: |s, o| with(s, o, |_| {}),
    },
    Named {
        name: "lossy",
        about: "each packet is lost with a probability of 3 %",
        make: |s, o| with(s, o, |link| link.loss = Loss::Random(Probability::percent(3))),
    },
    Named {
        name: "bursty",
        about: "losses in bursts of four packets, 2 % in all",
        make: |s, o| with(s, o, |link| link.loss = Loss::Burst(burst())),
    },
    Named {
        name: "reordering",
        about: "every twentieth packet comes up to 2 ms late",
        make: |s, o| {
            with(s, o, |link| link.reorder = Reorder { probability: Probability::percent(5), extra: ms(2) })
        },
    },
    Named {
        name: "duplicating",
        about: "every tenth packet comes twice",
        make: |s, o| with(s, o, |link| link.duplicate = Probability::percent(10)),
    },
    Named {
        name: "corrupting",
        about: "every fiftieth packet has a byte changed, every fiftieth is cut short",
        make: |s, o| {
            with(s, o, |link| {
                link.corrupt = Probability::percent(2);
                link.truncate = Probability::percent(2);
            })
        },
    },
    Named {
        name: "blackhole",
        about: "packets longer than 1200 bytes vanish without a word",
        make: |s, o| with(s, o, |link| link.mtu = Some(1200)),
    },
    Named { name: "flap", about: "the link is up for 1.5 s and down for 1 s, for 20 s", make: flap },
    Named {
        name: "clockjump",
        about: "a machine's clock jumps ahead by 1 to 60 s, again and again",
        make: jumps,
    },
    Named { name: "stopped", about: "a machine does nothing for 1 to 60 s, twice", make: stops },
    Named {
        name: "zero-window",
        about: "a reader sleeps for two minutes, then reads a little at a time, with losses",
        make: zero_window,
    },
    Named {
        name: "half-close",
        about: "a client says that it has finished, then hears 4 MB",
        make: half_close,
    },
    Named {
        name: "moves",
        about: "groups of flows move between four cores all the time, over 10 Gbit/s",
        make: moves,
    },
    Named {
        name: "elastic",
        about: "cores come and go with a load that rises and falls; cores are stopped, processors are taken away",
        make: super::elastic::elastic,
    },
    Named { name: "crash", about: "applications die in the middle", make: crash },
    Named { name: "hostile", about: "a peer that keeps no rule", make: hostile },
    Named { name: "smoltcp", about: "the released crate smoltcp as peer, with losses", make: smoltcp },
    Named {
        name: "incast",
        about: "16 clients answer one server at once through a switch that marks",
        make: incast,
    },
    Named { name: "long-fat", about: "one flow fills 10 Gbit/s x 100 ms; jumbo frames", make: long_fat },
    Named {
        name: "programs",
        about: "a random network, where agents give random programs to all flows and change them",
        make: programs,
    },
    Named {
        name: "program-storm",
        about: "groups of flows move between four cores all the time, and agents give random programs to all of them",
        make: program_storm,
    },
    Named {
        name: "churn",
        about: "connections are opened, used and closed, with faults; --connections 1000000 is the bar",
        make: churn,
    },
];

fn burst() -> Burst {
    Burst {
        enter: Probability::percent(1),
        leave: Probability::percent(25),
        loss_bad: Probability::percent(50),
        loss_good: Probability::NEVER,
    }
}

fn flap(seed: u64, options: &Options) -> Setting {
    let mut setting = with(seed, options, |link| link.flap = Some(Flap { up: ms(1500), down: ms(1000) }));
    setting.tolerated = vec![Errno::HOSTUNREACH];
    setting.calm_at(Duration::from_secs(20))
}

fn jumps(seed: u64, options: &Options) -> Setting {
    let mut setting = pair(seed, options, &LinkConfig::rated(50_000_000, ms(10)));
    let jump = |i: u64| {
        (
            ms(300 + i * 400),
            Event::Jump((seed + i) as usize % 2, Duration::from_secs(1 + (seed + i * 13) % 60)),
        )
    };
    setting.events = (0..6).map(jump).collect();
    setting
}

fn stops(seed: u64, options: &Options) -> Setting {
    let mut setting = pair(seed, options, &LinkConfig::rated(50_000_000, ms(10)));
    let time = |i: u64| Duration::from_secs(1 + (seed * 7 + i * 29) % 60);
    setting.events = vec![
        (ms(300), Event::Stop(0, time(0))),
        (ms(300).plus(time(0)).plus(ms(500)), Event::Stop(1, time(1))),
    ];
    setting
}

fn zero_window(seed: u64, options: &Options) -> Setting {
    let mut link = link();
    link.loss = Loss::Random(Probability::percent(5));
    let profile = Profile::SlowReader(3_000_000, Duration::from_secs(120));
    Setting::pair(seed, &link, profile, options.connections.unwrap_or(4)).calm_at(Duration::from_secs(150))
}

fn half_close(seed: u64, options: &Options) -> Setting {
    Setting::pair(seed, &link(), Profile::HalfClose(4_000_000), options.connections.unwrap_or(4))
}

fn moves(seed: u64, options: &Options) -> Setting {
    let link = LinkConfig::rated(10_000_000_000, Duration::from_us(25));
    let mut setting = pair(seed, options, &link);
    for machine in &mut setting.machines {
        machine.cores = 4;
        machine.steer_delay = Some(Duration::from_us(seed % 3 * 20));
    }
    let every = Duration::from_us(30 + seed % 100);
    let event = |i: u64| (every.times(i), Event::Shift(i as usize % 2, seed.wrapping_mul(1000) + i));
    setting.events = (0..1000).map(event).collect();
    setting
}

fn crash(seed: u64, options: &Options) -> Setting {
    let mut setting = with(seed, options, |link| link.loss = Loss::Random(Probability::percent(1)));
    setting.machines[1].opens = Some((1 << 20, 8, Duration::ZERO));
    setting.profile = Profile::Mixed(200_000);
    setting.tolerated = vec![Errno::CONNRESET, Errno::PIPE, Errno::CONNREFUSED];
    setting.events = vec![(ms(1000), Event::Crash(1)), (ms(1000 + seed % 50), Event::Crash(0))];
    setting
}

fn hostile(seed: u64, options: &Options) -> Setting {
    let mut setting = Setting::pair(seed, &link(), Profile::Bulk(100_000), options.connections.unwrap_or(4));
    setting.machines[1].kind = Kind::Hostile;
    setting.machines[0].opens = Some((options.connections.unwrap_or(4), 4, ms(10)));
    setting.events = vec![(ms(10_000), Event::Calm), (ms(11_000), Event::Crash(0))];
    setting
}

fn smoltcp(seed: u64, options: &Options) -> Setting {
    let mut link = link();
    link.loss = Loss::Random(Probability::per_million(5_000));
    let mut setting = Setting::pair(seed, &link, Profile::Bulk(200_000), options.connections.unwrap_or(8));
    setting.machines[1].kind = Kind::Smoltcp;
    setting.machines[0].opens = Some((4, 4, ms(10)));
    setting
}

fn incast(seed: u64, options: &Options) -> Setting {
    let mut port = link();
    (port.queue_packets, port.ecn_threshold) = (Some(100), Some(Amount::Packets(20)));
    let mut machine = MachineSetting::towpath(&port);
    machine.shared.ecn = true;
    machine.algorithm = congestion::Algorithm::Dctcp;
    let each = options.connections.unwrap_or(16).div_ceil(16);
    let mut setting = Setting::pair(seed, &port, Profile::Bulk(1_000_000), 1);
    setting.machines = vec![machine.clone()];
    setting.machines.extend((0..16).map(|_| machine.clone().opening(each, each as usize)));
    setting
}

fn long_fat(seed: u64, _: &Options) -> Setting {
    let mut link = LinkConfig::rated(10_000_000_000, ms(50));
    link.queue_packets = Some(20_000);
    let mut setting = Setting::pair(seed, &link, Profile::Bulk(5_000_000_000), 1);
    for machine in &mut setting.machines {
        machine.mtu = 9000;
        machine.has_offload = true;
        machine.moderation = Duration::from_us(20);
        machine.region = (64, 1 << 30);
        // 125 MB are in flight when the path is full.
        machine.shared.receive_buffer_max = base::limits::RING_MAX;
    }
    setting.send_ring_max = Some(base::limits::RING_MAX);
    setting
}

fn programs(seed: u64, _: &Options) -> Setting {
    let mut setting = super::random(seed, Kind::Towpath);
    for (i, machine) in setting.machines.iter_mut().enumerate() {
        let staleness = Duration::from_us((seed + i as u64) % 5 * 20);
        machine.agent = Some(AgentSetting::new(staleness, Mind::Random));
    }
    // The least rate that a program can ask for is a segment for each second.
    setting.patience = Duration::from_secs(6 * 3600);
    setting
}

fn program_storm(seed: u64, options: &Options) -> Setting {
    let mut setting = moves(seed, options);
    // The programs make some flows slow, so moves go on for longer and longer.
    let every = Duration::from_us(30 + seed % 100);
    let at = |i: u64| if i < 500 { every.times(i) } else { every.times(500 * (i - 499)) };
    for (i, event) in setting.events.iter_mut().enumerate() {
        event.0 = at(i as u64);
    }
    let mut rng = base::Seed::new(seed ^ 0x7374_6f72_6d00);
    for machine in &mut setting.machines {
        let staleness = Duration::from_us(rng.below(5) * 20);
        machine.agent = Some(AgentSetting::new(staleness, Mind::Random));
        machine.shared.runs_each_ack = rng.below(2) == 0;
        (machine.shared.ecn, machine.shared.accurate_ecn) = (rng.below(2) == 0, rng.below(2) == 0);
    }
    setting.patience = Duration::from_secs(6 * 3600);
    setting
}

fn churn(seed: u64, options: &Options) -> Setting {
    let mut link = LinkConfig::rated(10_000_000_000, Duration::from_us(20));
    link.loss = Loss::Random(Probability::per_million(5_000));
    link.reorder = Reorder { probability: Probability::per_million(5_000), extra: Duration::from_us(200) };
    link.duplicate = Probability::per_million(2_000);
    link.corrupt = Probability::per_million(2_000);
    let count = options.connections.unwrap_or(20_000);
    let mut setting = Setting::pair(seed, &link, Profile::Short, count);
    // The stages end at one hundredth and one tenth of the connections. A leak shows after the first; after one tenth of a million
    // connections all ports have been used, and every table has its final size.
    setting.stages = vec![count / 100, count / 10 - count / 100];
    for machine in &mut setting.machines {
        machine.shared.flows = 65_536;
        machine.region = (4096, 256 << 20);
        // The backlog avoids SYN cookies: with a cookie, a duplicate of the handshake's last segment could open the connection a second
        // time.
        machine.backlog = 4096;
    }
    if let Some((_, at_once, _)) = &mut setting.machines[1].opens {
        *at_once = 512;
    }
    // After TIME-WAIT a late FIN, and a reset that answers a duplicate, may end a connection with an error, as on any network.
    setting.tolerated = vec![Errno::CONNRESET, Errno::PIPE];
    setting.patience = Duration::from_secs(1_000_000);
    setting
}
