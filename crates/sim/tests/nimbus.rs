//! Nimbus beside others at one bottleneck, over the real stack: flows that react to its pulses (Cubic), and traffic that does not.

use base::{Duration, Instant, Seed};
use ccp_agent::{Agent, Event};
use ccp_algorithms::nimbus::Nimbus;
use congestion::Algorithm;
use link::LinkConfig;
use sim::load::{Arrivals, Connections, Job, Load};
use sim::topology::{Arm, Fabric, HostSetting, PORT};
use sim::{AgentMaker, AgentSetting, Mind};

const BEGIN: Instant = Instant::from_ns(1_000_000_000);
/// Bytes per second of the bottleneck: 48 Mbit/s.
const LINK: u64 = 6_000_000;
const STALENESS: Duration = Duration::from_us(20);
/// Seconds of a run, and from which on the detector is judged: it needs 5 s of samples, and then sees only the time that it judges.
const SECONDS: u64 = 40;
const JUDGED_FROM: u64 = 12;
/// Bytes of a short flow: no more than an initial window, so that it is over before any acknowledgement could slow it down.
const SHORT: u64 = 14_480;

/// What Nimbus shares the bottleneck with.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Others {
    /// Flows of Cubic without an end.
    Cubic(usize),
    /// Short flows of a Poisson process, percent of the link.
    Poisson(u64),
    /// Messages of a short flow's length at equal distances, percent of the link, over connections that stay.
    Even(u64),
}

impl Others {
    fn jobs(self, to: std::net::SocketAddr, rng: &mut Seed) -> Vec<Job> {
        let begin = BEGIN.plus(Duration::from_ms(500 + rng.below(1_000)));
        let end = BEGIN.plus(Duration::from_secs(SECONDS));
        match self {
            Self::Cubic(flows) => vec![Job::new(begin, to, u64::MAX); flows],
            Self::Even(percent) => {
                let every = Duration::from_ns(SHORT * 100 * 1_000_000_000 / (LINK * percent));
                let times = std::iter::successors(Some(begin), |at| Some(at.plus(every)));
                times.take_while(|at| *at < end).map(|at| Job::new(at, to, SHORT)).collect()
            }
            Self::Poisson(percent) => {
                let per_second = (LINK * percent / 100) as f64 / SHORT as f64;
                let times = Arrivals::Poisson(per_second).draw(rng, begin, end);
                times.into_iter().map(|at| Job::new(at, to, SHORT)).collect()
            }
        }
    }
}

/// The part of the time in which Nimbus took the others for elastic.
fn elastic_part(others: Others, seed: u64) -> f64 {
    let mut rng = Seed::new(seed ^ 0x6E69_6D62);
    let rtt = Duration::from_ms(40 + rng.below(40));
    let maker = AgentMaker::new(|| {
        let mut agent = Agent::new();
        agent.add(Nimbus { link: Some(LINK) }).unwrap();
        agent
    });
    let receiver = HostSetting { flows: 4_000, ring_slots: 256, ..HostSetting::new(Algorithm::Cubic) };
    let agent = Some(AgentSetting::new(STALENESS, Mind::Agent(maker)));
    let nimbus = HostSetting { agent, ..HostSetting::new(Algorithm::Cubic) };
    let other = HostSetting { flows: 4_000, ring_slots: 256, ..HostSetting::new(Algorithm::Cubic) };
    let half = Duration::from_ns(rtt.as_ns() / 2);
    let mut down = LinkConfig::rated(8 * LINK, half);
    down.queue_bytes = Some(2 * LINK * rtt.as_us() / 1_000_000);
    let plain = LinkConfig::default();
    let arms = [
        Arm { host: receiver, up: LinkConfig::delayed(half), down },
        Arm { host: nimbus, up: plain.clone(), down: plain.clone() },
        Arm { host: other, up: plain.clone(), down: plain },
    ];
    let mut fabric = Fabric::star_of(&arms, seed, BEGIN);
    let [to, own, other] = [0, 1, 2].map(|i| fabric.members[i]);
    let network = &mut fabric.network;
    let connections = if matches!(others, Others::Even(_)) { Connections::Kept } else { Connections::Fresh };
    network.load(to.node, Load::new(connections).serving(PORT, 256));
    let mut jobs = vec![Job::new(BEGIN, to.socket(), u64::MAX)];
    network.tally.enter(&mut jobs);
    network.load(own.node, Load::new(Connections::Fresh).sending(jobs));
    let mut jobs = others.jobs(to.socket(), &mut rng);
    network.tally.enter(&mut jobs);
    network.load(other.node, Load::new(connections).sending(jobs));
    network.run_until(BEGIN.plus(Duration::from_secs(SECONDS)));
    assert_eq!(network.tally.failed, 0);
    let own = network.machine(own.node).unwrap().host().unwrap().agent().unwrap();
    let events: Vec<Event> = std::iter::from_fn(|| own.poll_event()).collect();
    assert_eq!(own.counters().events_lost, 0);
    part(&events)
}

/// The part of the judged time that the log calls elastic. Nimbus begins in the mode for elastic others.
fn part(events: &[Event]) -> f64 {
    let at = |seconds: u64| BEGIN.plus(Duration::from_secs(seconds));
    let (from, end) = (at(JUDGED_FROM), at(SECONDS));
    let (mut is_elastic, mut since, mut sum) = (true, from, Duration::ZERO);
    let mut close = |is_elastic: bool, since: Instant, until: Instant| {
        if is_elastic {
            sum = sum.plus(until.since(since));
        }
    };
    for event in events {
        let line = event.to_string();
        let Some(is_now) = line.contains("others are").then(|| line.contains("are elastic")) else {
            continue;
        };
        let at = event.at.max(from).min(end);
        close(is_elastic, since, at);
        (is_elastic, since) = (is_now, at);
    }
    close(is_elastic, since, end);
    sum.as_ms() as f64 / ((SECONDS - JUDGED_FROM) * 1000) as f64
}

/// How many of ten seeds are judged rightly for nine tenths of the time.
fn right(of_seed: impl Fn(u64) -> Others) -> (usize, Vec<f64>) {
    let parts: Vec<f64> = (1..=10).map(|seed| elastic_part(of_seed(seed), seed)).collect();
    let is_elastic = matches!(of_seed(1), Others::Cubic(_));
    let right = |part: &&f64| if is_elastic { **part > 0.9 } else { **part < 0.1 };
    (parts.iter().filter(right).count(), parts)
}

#[test]
fn cubic_is_elastic() {
    let (right, parts) = right(|seed| Others::Cubic(1 + seed as usize % 2));
    assert!(right >= 9, "{parts:?}");
}

#[test]
fn short_flows_at_random_are_inelastic() {
    let (right, parts) = right(|seed| Others::Poisson(20 + 4 * seed));
    assert!(right >= 9, "{parts:?}");
}

#[test]
fn short_flows_at_equal_distances_are_inelastic() {
    let (right, parts) = right(|seed| Others::Even(20 + 4 * seed));
    assert!(right >= 9, "{parts:?}");
}
