//! Two hosts with the service's engine of channels, its TCP and ordinary programs, over bad networks in virtual time. Every stream is
//! checked byte by byte; channels are killed at any moment.

mod host;
mod loss;
mod programs;
mod shut;
mod wire;

use base::{Duration, Instant, Seed};
use channel::lane::Class;
use host::{Channels, Host, Way, address, address_on};
use link::LinkConfig;
use programs::{Outcome, Plan};
use wire::{Network, weather};

/// Virtual time after which a run has failed. Two hundred connections through a bad network take some seconds.
const PATIENCE: Duration = Duration::from_secs(900);

/// How long nothing gets through where no session is to survive it.
const DARKNESS: Duration = Duration::from_secs(60);

/// How a run kills channels.
#[derive(Clone, Copy, Debug)]
enum Deaths {
    Never,
    /// One channel at a time, and sometimes all.
    Often,
    /// The same; and once a host dies and starts anew.
    Restart,
    /// The same; and once all ways are dark for so long that no session survives it.
    Darkness,
}

/// The world of one seed.
struct World {
    number: u64,
    seed: Seed,
    now: Instant,
    hosts: [Host; 2],
    network: Network,
    /// Connections that were begun: their ports, with the host that has connected.
    begun: Vec<(u16, usize)>,
    aborted: Vec<u16>,
    kills: u64,
    channels: Channels,
    /// Something has happened that ends sessions, with their sockets.
    may_end: bool,
}

impl World {
    fn new(number: u64, channels: usize) -> Self {
        Self::with(
            number,
            Channels { number: Some(channels), on_all_ways: number.is_multiple_of(3), ..Channels::default() },
        )
    }

    fn with(number: u64, channels: Channels) -> Self {
        let mut seed = Seed::new(number);
        let weather = weather(&mut seed);
        Self::over(number, channels, seed, &weather)
    }

    /// As [`with`](Self::with), over that network.
    fn over(number: u64, channels: Channels, mut seed: Seed, weather: &LinkConfig) -> Self {
        let hosts = [0, 1].map(|host| Host::new(host, channels, &mut seed, Instant::ZERO));
        let network = Network::new(&mut seed, weather);
        Self {
            number,
            seed,
            now: Instant::ZERO,
            hosts,
            network,
            begun: Vec::new(),
            aborted: Vec::new(),
            kills: 0,
            channels,
            may_end: false,
        }
    }

    /// A program of that host connects to the other host, for a few bytes or many.
    fn connect(&mut self, from: usize) {
        let most = if self.seed.chance(200_000) { 300_000 } else { 5_000 };
        let bytes = [0, 0].map(|_| self.seed.below(most));
        let class = if self.seed.chance(500_000) { Class::Latency } else { Class::Throughput };
        self.connect_for(from, class, bytes);
    }

    /// As [`connect`](Self::connect), to write and to read so many bytes.
    fn connect_for(&mut self, from: usize, class: Class, [writes, reads]: [u64; 2]) {
        let port = 10_000 + self.begun.len() as u16;
        let [key, peer_key] = [0, 0].map(|_| self.seed.next_u64());
        let aborts_at = self.seed.chance(50_000).then(|| self.seed.below(reads + 1));
        let plan = Plan { key, peer_key, writes, reads, aborts_at, ..Plan::default() };
        if !self.begin(from, class, port, plan, |there| there) {
            return;
        }
        if self.seed.chance(30_000) {
            self.hosts[from ^ 1].refused.insert(port);
        }
        self.aborted.extend(aborts_at.map(|_| port));
        self.begun.push((port, from));
    }

    /// A program of that host connects by that plan to one of the other host, which does what `there` makes of the plan for the other end.
    fn begin(
        &mut self,
        from: usize,
        class: Class,
        port: u16,
        plan: Plan,
        there: impl FnOnce(Plan) -> Plan,
    ) -> bool {
        let is_begun = self.hosts[from].connect(Way::Channel(class), port, address(from ^ 1), plan);
        let Plan { key, peer_key, writes, reads, .. } = plan;
        let other = Plan { key: peer_key, peer_key: key, writes: reads, reads: writes, ..Plan::default() };
        if is_begun {
            self.hosts[from ^ 1].expected.insert(port, there(other));
        }
        is_begun
    }

    /// One step of time: everything that is due now, and then on to what is due next, at most `pause` later.
    fn step(&mut self, pause: Duration) {
        let Self { seed, now, hosts, .. } = self;
        for host in hosts.iter_mut() {
            host.turns(*now, seed);
            host.run(*now);
        }
        self.pass(self.now.plus(pause));
    }

    /// As [`step`](Self::step), but programs have their turns until they have nothing more to do now, and the next time is that of the next event.
    fn settle(&mut self) {
        let Self { seed, now, hosts, .. } = self;
        for host in hosts.iter_mut() {
            host.run(*now);
            while host.turns(*now, seed) {
                host.run(*now);
            }
        }
        let next = hosts.iter().map(Host::next_call).min().unwrap_or(Instant::NEVER);
        self.pass(next);
    }

    /// Gives what the hosts have sent to the network, passes on to what is due next, `latest` at the latest, and gives them what has come.
    fn pass(&mut self, latest: Instant) {
        let Self { now, hosts, network, .. } = self;
        for (number, host) in hosts.iter_mut().enumerate() {
            while let Some(frame) = host.port.sent.pop_front() {
                network.send(*now, number ^ 1, frame);
            }
        }
        let next = hosts.iter().map(Host::next_deadline).min().unwrap_or(Instant::NEVER);
        let next = next.min(network.next_deadline()).min(latest);
        *now = next.max(now.plus(Duration::from_us(1)));
        for (number, host) in hosts.iter_mut().enumerate() {
            while let Some(frame) = network.receive(*now, number) {
                host.port.received.push_back(frame);
            }
        }
    }

    fn are_programs_over(&self) -> bool {
        self.hosts.iter().all(|host| host.programs.is_empty())
            && self.begun.iter().all(|(port, from)| self.hosts[*from].outcomes.contains_key(port))
    }

    /// Kills one channel, or all, or lets the network lose everything for a while.
    fn harm(&mut self) {
        let host = self.seed.below(2) as usize;
        match self.seed.below(10) {
            0 => self.hosts[host].kill_all(),
            1 => self.network.dark_until = self.now.plus(Duration::from_ms(self.seed.below(1_000))),
            _ if !self.hosts[host].kill(&mut self.seed) => return,
            _ => {}
        }
        self.kills += 1;
    }

    /// A host dies and starts anew.
    fn restart(&mut self, host: usize) {
        self.may_end = true;
        let Self { hosts, channels, seed, .. } = self;
        channels.starts += 1;
        hosts[host].restart(host, *channels, seed);
    }

    /// Nothing gets through, for longer than a silent channel is kept (15 s) and new ones are tried (10 s).
    fn darken(&mut self) {
        self.may_end = true;
        self.network.dark_until = self.now.plus(DARKNESS);
    }

    /// Runs until all programs are over.
    fn run(&mut self, connections: u64, deaths: Deaths) {
        let most = 50 + self.seed.below(2_000);
        let mut left = connections;
        let at = self.seed.below(connections.max(1));
        while left > 0 || !self.are_programs_over() {
            assert!(self.now.since(Instant::ZERO) < PATIENCE, "not over after {PATIENCE:?}");
            if left > 0 && self.seed.chance(100_000) {
                left -= 1;
                let from = self.seed.below(2) as usize;
                self.connect(from);
            }
            if !matches!(deaths, Deaths::Never) && self.seed.chance(1_000) {
                self.harm();
            }
            match deaths {
                Deaths::Restart if left <= at && !self.may_end => self.restart(at as usize % 2),
                Deaths::Darkness if left <= at && !self.may_end => self.darken(),
                _ => {}
            }
            let is_dark = self.now < self.network.dark_until;
            self.step(Duration::from_us(if is_dark { 20_000 } else { most }));
        }
    }

    /// Every connection came to its end as its plan says, whatever happened to channels.
    fn check(&mut self) {
        for (port, from) in self.begun.clone() {
            let is_refused = self.hosts[from ^ 1].refused.contains(&port);
            let [here, there] = [from, from ^ 1].map(|host| self.hosts[host].outcomes.get(&port).copied());
            let whole = Some(Outcome::Whole);
            if self.may_end {
                let is_end =
                    |end| matches!(end, Outcome::Whole | Outcome::Reset | Outcome::Failed(101 | 111));
                assert!(here.is_some_and(is_end), "{port}: {here:?} and {there:?}");
                continue;
            }
            match (is_refused, self.aborted.contains(&port)) {
                // A program that aborts at once may do so before the refusal.
                (true, _) => assert!(here == Some(Outcome::Failed(111)), "{port}: {here:?}"),
                (_, true) => assert!(here == Some(Outcome::Reset) || here == whole, "{port}: {here:?}"),
                _ => assert!((here, there) == (whole, whole), "{port}: {here:?} and {there:?}"),
            }
        }
        for host in &mut self.hosts {
            let seen = host.snapshot();
            assert_eq!((seen.refusals.violations, seen.beyond_credit), (0, 0));
        }
    }

    /// Sessions without sockets end after a minute, with all that belongs to them.
    fn check_leftovers(&mut self) {
        let until = self.now.plus(Duration::from_secs(200));
        while self.now < until {
            self.step(Duration::from_secs(1));
        }
        for host in &mut self.hosts {
            let seen = host.snapshot();
            assert_eq!((seen.census.sessions, seen.census.channels, seen.census.greetings), (0, 0, 0));
            assert!(host.leftovers().is_none(), "{:?}: {:?}", host.leftovers(), host.outcomes);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("at {:?}: replay with SEED={} SEEDS=1", self.now, self.number);
        }
    }
}

/// A number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Random worlds from `SEED` on, `SEEDS` of them: 1,000 take some minutes.
#[test]
fn every_byte_arrives_in_order_whatever_dies() {
    let (first, count) = (number("SEED", 1), number("SEEDS", 40));
    let (mut kills, mut again) = (0, 0);
    for seed in first..first + count {
        let mut world = World::new(seed, 1 + (seed % 4) as usize);
        world.run(5 + seed % 25, Deaths::Often);
        world.check();
        kills += world.kills;
        again += losses(&mut world)[1];
        world.check_leftovers();
    }
    assert!(count < 40 || (kills > count && again > 0), "{kills} deaths, {again} bytes sent again");
}

/// As above, with a host that starts anew, or a darkness that no session survives: no byte is wrong, every program comes to an end, and
/// nothing is left.
#[test]
fn what_ends_sessions_ends_every_socket_and_leaves_nothing() {
    let (first, count) = (number("SEED", 1), number("SEEDS", 40).div_ceil(2));
    let (mut whole, mut reset) = (0, 0);
    for seed in first..first + count {
        let mut world = World::new(seed, 1 + (seed % 4) as usize);
        world.run(5 + seed % 25, if seed % 2 == 0 { Deaths::Restart } else { Deaths::Darkness });
        world.check();
        assert!(world.may_end, "{seed}");
        let outcomes = world.begun.iter().map(|(port, from)| world.hosts[*from].outcomes[port]);
        let (good, bad): (Vec<_>, Vec<_>) = outcomes.partition(|outcome| *outcome == Outcome::Whole);
        (whole, reset) = (whole + good.len(), reset + bad.len());
        world.check_leftovers();
    }
    assert!(count < 20 || (whole > reset / 10 && reset > 0), "{whole} whole, {reset} reset");
}

/// Steps until the program with that port at host 0 is over. Returns what it came to, and the time that it took.
fn wait_for_outcome(world: &mut World, port: u16) -> (Outcome, Duration) {
    let began = world.now;
    loop {
        if let Some(outcome) = world.hosts[0].outcomes.get(&port) {
            return (*outcome, world.now.since(began));
        }
        assert!(world.now.since(Instant::ZERO) < PATIENCE);
        world.step(Duration::from_ms(5));
    }
}

#[test]
fn the_restart_of_a_peer_resets_at_once_and_a_long_darkness_after_ten_seconds_without_a_channel() {
    for seed in 1..=10 {
        let mut world = World::new(seed, 1 + (seed % 3) as usize);
        world.connect_for(0, Class::Throughput, [3_000_000, 3_000_000]);
        (0..400).for_each(|_| world.step(Duration::from_ms(1)));
        assert!(!world.are_programs_over());
        let is_restart = seed % 2 == 0;
        if is_restart {
            world.restart(1);
        } else {
            world.darken();
        }
        let (outcome, time) = wait_for_outcome(&mut world, 10_000);
        assert_eq!(outcome, Outcome::Reset, "{seed}");
        let seconds = if is_restart { 0..5 } else { 10..30 };
        assert!(seconds.contains(&(time.as_ms() / 1_000)), "{seed}: restart {is_restart}: {time:?}");
        world.run(0, Deaths::Never);
        // And afterwards all is as it was.
        while world.now < world.network.dark_until {
            world.step(Duration::from_ms(20));
        }
        let before = world.begun.len();
        world.connect_for(0, Class::Throughput, [3_000, 3_000]);
        world.run(0, Deaths::Never);
        let (port, _) = world.begun[before];
        // Some programs give up on purpose, and some are refused on purpose.
        let is_meant = world.aborted.contains(&port) || world.hosts[1].refused.contains(&port);
        assert!(is_meant || world.hosts[0].outcomes[&port] == Outcome::Whole, "{seed}");
        world.check_leftovers();
    }
}

#[test]
fn a_reader_that_has_stopped_delays_no_other_and_its_writer_is_reset_when_no_credit_comes() {
    for seed in 1..=6 {
        let quiet = LinkConfig::delayed(Duration::from_ms(seed));
        let mut world = World::over(seed, Channels::default(), Seed::new(seed), &quiet);
        // More than the credit at first, and no more behind it than the writer's own ring holds.
        let plan = Plan { key: 1, peer_key: 2, writes: 20_000, leaves: true, ..Plan::default() };
        assert!(world.begin(0, Class::Throughput, 9_000, plan, |there| Plan { stops: true, ..there }));
        for port in 9_001..9_006 {
            let plan = Plan { key: 3, peer_key: 4, writes: 50_000, reads: 50_000, ..Plan::default() };
            assert!(world.begin(0, Class::Throughput, port, plan, |there| there));
            world.begun.push((port, 0));
        }
        let is_over =
            |world: &World, port: &u16| world.hosts.iter().all(|host| host.outcomes.contains_key(port));
        while !world.begun.iter().all(|(port, _)| is_over(&world, port)) {
            assert!(world.now.since(Instant::ZERO) < Duration::from_secs(55), "{seed}: the others wait");
            world.step(Duration::from_ms(1));
        }
        world.check();
        (0..400).for_each(|_| world.step(Duration::from_ms(5)));
        // Its program has closed it long ago; the peer confirms nothing more.
        assert_eq!(world.hosts[0].outcomes.get(&9_000), Some(&Outcome::Whole));
        assert_eq!(world.hosts[0].snapshot().census.sockets, 1, "{seed}");
        while !world.hosts[1].outcomes.contains_key(&9_000) {
            assert!(world.now.since(Instant::ZERO) < Duration::from_secs(130), "{seed}: no reset");
            world.step(Duration::from_ms(100));
        }
        assert_eq!(world.hosts[1].outcomes.get(&9_000), Some(&Outcome::Reset));
        world.check_leftovers();
    }
}

/// A fault of the service itself: no program gets bytes that were not stored.
#[test]
fn bytes_that_cannot_be_stored_reset_their_socket() {
    for seed in 1..=10 {
        let quiet = LinkConfig::delayed(Duration::from_us(200));
        let mut world = World::over(seed, Channels::default(), Seed::new(seed), &quiet);
        let plan = Plan { key: 1, peer_key: 2, writes: 500_000, ..Plan::default() };
        assert!(world.begin(0, Class::Throughput, 10_000, plan, |there| there));
        while world.hosts[1].snapshot().beyond_credit == 0 {
            world.step(Duration::from_us(200));
            // Until bytes come before the program has read, which renews the credit.
            world.hosts[1].take_credit();
        }
        assert_eq!(wait_for_outcome(&mut world, 10_000).0, Outcome::Reset, "{seed}");
        while !world.hosts[1].outcomes.contains_key(&10_000) {
            assert!(world.now.since(Instant::ZERO) < PATIENCE);
            world.step(Duration::from_ms(1));
        }
        assert_eq!(world.hosts[1].outcomes[&10_000], Outcome::Reset, "{seed}");
        assert_eq!(world.hosts[1].snapshot().refusals.violations, 0);
    }
}

/// The numbers of channels of all sessions, those of host 0 first.
fn channels(world: &mut World) -> Vec<usize> {
    let sessions = world.hosts.iter_mut().flat_map(|host| host.snapshot().sessions);
    sessions.map(|session| session.channels.len()).collect()
}

/// Steps until both sides of the only session have that many channels.
fn wait_for_channels(world: &mut World, number: usize) {
    while channels(world) != [number; 2] {
        assert!(world.now.since(Instant::ZERO) < PATIENCE, "{:?}", channels(world));
        world.step(Duration::from_ms(1));
    }
}

/// Channels lost and bytes sent again, of all sessions of both hosts.
fn losses(world: &mut World) -> [u64; 2] {
    let sessions = world.hosts.iter_mut().flat_map(|host| host.snapshot().sessions);
    let counters = sessions.map(|session| session.counters);
    counters.fold([0; 2], |[lost, again], more| [lost + more.channels_lost, again + more.bytes_again])
}

#[test]
fn one_of_several_channels_dies_and_no_socket_notices() {
    let mut again = 0;
    for seed in 1..=20 {
        let mut world = World::new(seed, 3);
        world.connect_for(0, Class::Throughput, [2_000_000, 2_000_000]);
        wait_for_channels(&mut world, 3);
        assert!(!world.are_programs_over());
        assert!(world.hosts[(seed % 2) as usize].kill(&mut world.seed));
        world.run(0, Deaths::Never);
        world.check();
        // Each side notices the death, the idle one by its next PING.
        while losses(&mut world)[0] < 2 {
            assert!(world.now.since(Instant::ZERO) < PATIENCE);
            world.step(Duration::from_ms(1));
        }
        assert_eq!(losses(&mut world)[0], 2, "{seed}: one channel has died");
        again += losses(&mut world)[1];
        wait_for_channels(&mut world, 3);
    }
    assert!(again > 0, "what was under way went again");
}

/// The peer's addresses of the only session's channels, at the host that has opened it.
fn addresses(world: &mut World) -> Vec<std::net::IpAddr> {
    let sessions = world.hosts[0].snapshot().sessions;
    let mut all: Vec<_> =
        sessions.iter().flat_map(|session| session.channels.iter().map(|channel| channel.address)).collect();
    all.sort_unstable();
    all
}

/// Steps until the channels of the only session go to these ways of the other host.
fn wait_for_ways(world: &mut World, ways: [u8; 2]) {
    while addresses(world) != ways.map(|way| address_on(1, way)) {
        assert!(world.now.since(Instant::ZERO) < PATIENCE, "{:?}", addresses(world));
        world.step(Duration::from_ms(1));
    }
}

#[test]
fn a_way_that_dies_moves_its_bytes_to_the_other_and_no_socket_notices() {
    for seed in 1..=20 {
        let way = (seed % 2) as u8;
        let mut world = World::with(seed, Channels { on_all_ways: true, ..Channels::default() });
        world.connect_for(0, Class::Throughput, [4_000_000, 4_000_000]);
        wait_for_ways(&mut world, [0, 1]);
        assert!(!world.are_programs_over());
        world.network.dark_way = Some(way);
        let died = world.now;
        wait_for_ways(&mut world, [way ^ 1; 2]);
        let after = world.now.since(died);
        assert!(after < Duration::from_secs(12), "{seed}: channels leave the dead way after {after:?}");
        world.run(0, Deaths::Never);
        world.check();
        world.network.dark_way = None;
        wait_for_ways(&mut world, [0, 1]);
    }
}

/// The most channels that the only session had, and why it had as many as it had at last, while twenty sockets carry bytes one way: of host 0,
/// which opens them, or to it. Looks from a quarter of a second on, when the
/// network has been full, until the first of them is over: the last ones may not fill the network.
fn channels_under_load(link: &LinkConfig, is_upload: bool) -> (usize, &'static str) {
    let full = Channels { is_full: true, ..Channels::default() };
    let mut world = World::over(1, full, Seed::new(1), link);
    let bytes = if is_upload { [400_000, 0] } else { [0, 400_000] };
    for port in 1..=20 {
        let [writes, reads] = bytes;
        let plan = Plan { key: port, peer_key: 100 + port, writes, reads, ..Plan::default() };
        assert!(world.begin(0, Class::Throughput, port as u16, plan, |there| there));
    }
    let (mut most, mut why) = (0, "");
    while world.hosts[0].outcomes.is_empty() {
        assert!(world.now.since(Instant::ZERO) < PATIENCE);
        world.step(Duration::from_us(500));
        let session = world.hosts[0].snapshot().sessions.pop();
        let wanted = session.and_then(|session| session.wanted);
        if let Some(wanted) = wanted.filter(|_| world.now.since(Instant::ZERO) > Duration::from_ms(250)) {
            (most, why) = (most.max(wanted.0), wanted.1);
        }
    }
    (most, why)
}

#[test]
fn no_channel_is_added_while_the_network_is_the_limit_in_either_direction() {
    let wide = LinkConfig::delayed(Duration::from_ms(5));
    let narrow =
        LinkConfig { queue_packets: Some(60), ..LinkConfig::rated(20_000_000, Duration::from_ms(5)) };
    for is_upload in [true, false] {
        let (most, why) = channels_under_load(&narrow, is_upload);
        assert_eq!(most, 1, "upload {is_upload}: {why}");
        let (most, why) = channels_under_load(&wide, is_upload);
        assert!(most > 1, "upload {is_upload}: {why}");
    }
}
