//! What a lost segment costs the sockets of one channel, and the same requests over plain connections: the same two hosts, links and programs, in
//! virtual time, so that processors play no part.

use super::World;
use super::host::{Channels, Way, address};
use super::programs::{Plan, Role};
use base::{Duration, Instant, Seed};
use channel::lane::Class;
use link::{LinkConfig, Loss, Probability};

/// What the programs do, and how far the hosts are apart.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Sockets with requests, one after the other on each.
    sockets: u16,
    /// Bytes of a request, and of its answer.
    bytes: u64,
    /// Between an answer and the next request, at the mean.
    pause: Duration,
    /// Requests of all sockets in one run, after a tenth as many that begin it.
    requests: usize,
}

const ROUND_TRIP: Duration = Duration::from_ms(1);
const SMALL: Case =
    Case { name: "64 x 64 B", sockets: 64, bytes: 64, pause: Duration::from_ms(10), requests: 20_000 };
const LARGER: Case = Case { name: "64 x 4 KiB", bytes: 4 << 10, requests: 10_000, ..SMALL };
const BULK: Case =
    Case { name: "8 x 256 KiB", sockets: 8, bytes: 256 << 10, pause: Duration::ZERO, requests: 300 };
const WAYS: [Way; 2] = [Way::Channel(Class::Latency), Way::Plain];

/// How long requests took, in order.
struct Times {
    sorted: Vec<Duration>,
    per_second: f64,
}

impl Times {
    /// The time within which that share, per thousand, of the requests had its answer.
    fn of(&self, share: usize) -> Duration {
        self.sorted[(self.sorted.len() * share / 1_000).min(self.sorted.len() - 1)]
    }

    /// The share of requests, per thousand, that took half a round trip more than those without a loss.
    fn late(&self) -> usize {
        let most = Duration::from_us(1_500);
        let in_time = self.sorted.partition_point(|time| *time < most);
        1_000 * (self.sorted.len() - in_time) / self.sorted.len()
    }
}

/// Runs a case where each packet is lost with that probability, in both directions.
fn measure(case: Case, way: Way, lost_per_million: u32) -> Times {
    let loss = Loss::Random(Probability::per_million(lost_per_million));
    let link = LinkConfig::delayed(Duration::from_ns(ROUND_TRIP.as_ns() / 2)).with_loss(loss);
    let mut world = World::over(1, Channels { number: Some(1), ..Channels::default() }, Seed::new(1), &link);
    for port in 1..=case.sockets {
        let [key, peer_key] = [port, port + 1_000].map(u64::from);
        let plan = Plan { key, peer_key, writes: u64::MAX, reads: u64::MAX, ..Plan::default() };
        let server = Plan { key: peer_key, peer_key: key, role: Role::Server, ..plan };
        world.hosts[1].expected.insert(port, server);
        let client = Plan { role: Role::Client(case.bytes, case.pause), ..plan };
        assert!(world.hosts[0].connect(way, port, address(1), client));
    }
    calls(&mut world, case.requests / 10);
    let began = world.now;
    let mut sorted = calls(&mut world, case.requests);
    let per_second = sorted.len() as f64 * 1e9 / world.now.since(began).as_ns() as f64;
    sorted.sort_unstable();
    Times { sorted, per_second }
}

/// Steps until so many requests more have had their answers. How long each took.
fn calls(world: &mut World, number: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(number);
    while times.len() < number {
        assert!(world.now.since(Instant::ZERO) < Duration::from_secs(3_600));
        world.settle();
        times.extend(world.hosts[0].programs.values_mut().flat_map(|program| program.calls.drain(..)));
    }
    times
}

/// One lost segment delays all sockets of its channel, for about a round trip; over plain connections it delays one, for a retransmission
/// timeout if nothing follows it there.
#[test]
fn a_lost_segment_delays_every_socket_of_its_channel_but_for_a_shorter_time_than_one_of_its_own() {
    let case = Case { requests: 3_000, ..SMALL };
    for way in WAYS {
        assert_eq!(measure(case, way, 0).late(), 0, "{way:?}: nothing is lost");
    }
    let [channel, plain] = WAYS.map(|way| measure(case, way, 10_000));
    assert!(channel.late() > 3 * plain.late() && plain.late() > 0, "{} {}", channel.late(), plain.late());
    assert!(channel.of(990) < ROUND_TRIP.times(4), "{:?}", channel.of(990));
    assert!(plain.of(990) > Duration::from_ms(200), "{:?}: nothing follows a lone request", plain.of(990));
}

#[test]
fn bulk_flows_lose_more_by_sharing_one_congestion_window_where_packets_are_lost() {
    let [channel, plain] = WAYS.map(|way| measure(Case { requests: 100, ..BULK }, way, 10_000).per_second);
    assert!(plain > 2.0 * channel, "{plain} and {channel} transfers a second");
}

/// The table of docs/channels.md.
#[test]
#[ignore = "prints a table, in some minutes"]
fn table() {
    println!(
        "| case | lost | by channel: p50, p90, p99 (ms) | late | per second | plain: p50, p90, p99 (ms) | late | per second |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    for case in [SMALL, LARGER, BULK] {
        for lost in [0, 100, 1_000, 3_000, 10_000] {
            let cells = WAYS.map(|way| {
                let times = measure(case, way, lost);
                let [p50, p90, p99] = [500, 900, 990].map(|share| times.of(share).as_ns() as f64 / 1e6);
                let late = times.late() as f64 / 10.0;
                format!("{p50:.1}, {p90:.1}, {p99:.1} | {late:.1} % | {:.0}", times.per_second)
            });
            println!("| {} | {} % | {} |", case.name, f64::from(lost) / 1e4, cells.join(" | "));
        }
    }
}
