//! Figures 14 and 15: a load that rises beyond one core and falls again, while the number of cores follows it; and what a change of their number
//! costs a steady flow. In virtual time, with a cost for each packet; the state machine, the moves and the fast path are the service's.

use super::{BEGIN, dropped, percentiles, poisson_gap};
use crate::host::{Host, HostConfig};
use crate::load::{Connections, Job, Load, Message};
use crate::network::{Network, NodeId};
use crate::processors::ProcessorSetting;
use base::{Duration, Instant, Seed};
use link::LinkConfig;
use std::net::{IpAddr, SocketAddr};

const PORT: u16 = 80;
/// Machines that make the load, each over one connection.
const CLIENTS: usize = 48;
/// Connections for which the server has room.
const CONNECTIONS_MOST: u32 = 1 << 14;
/// Bytes of a message: with its number one full segment, which the sender does not hold back.
const MESSAGE: u64 = 1_440;
/// Packets that two messages cost the server: themselves, and one acknowledgement.
const PACKETS_OF_TWO: u64 = 3;
/// Time between two messages of the steady flow.
const STEADY: Duration = Duration::from_us(250);
/// Time between two changes that are asked for, and their number.
const CHANGE_EVERY: Duration = Duration::from_ms(50);
const CHANGES: u64 = 40;
/// Between two looks at the host.
const LOOK: Duration = Duration::from_us(50);

/// The setting of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Steps {
    /// Number of cores and processors.
    pub cores: u8,
    /// Time that a core needs for a packet.
    pub cost: Duration,
    /// Time that the port needs for a new table.
    pub steer_delay: Duration,
    /// Length of each step.
    pub step: Duration,
    /// The higher load, in thousandths of a core; the lower is 500.
    pub load: u64,
    /// Seed of all random choices.
    pub seed: u64,
}

/// How the number of cores followed the load.
#[derive(Clone, Debug, PartialEq)]
pub struct StepsResult {
    /// From the rise of the load until a core more serves its groups; `None`: none did.
    pub added: Option<Duration>,
    /// From the fall of the load until the core has given its groups back.
    pub removed: Option<Duration>,
    /// Number of cores over time: each change, since the beginning.
    pub changes: Vec<(Duration, u8)>,
    /// Messages that did not arrive, frames that moves lost (a core had no room for them), and, if no frame at all was dropped, segments that
    /// came out of order.
    pub lost: [u64; 3],
    /// Frames that found the queue of the interface or of a link full: the load was more than a core's, and the senders had not slowed down yet.
    pub overflow: u64,
    /// Those of them that came while groups moved.
    pub overflow_at_moves: u64,
    /// Longest time that a move held frames back, beyond what the old core still had to do.
    pub held: Duration,
}

/// What changes cost a steady flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChangesResult {
    /// The flow's 99th percentile outside of changes and during them, microseconds.
    pub p99: [f64; 2],
    /// Messages of the flow during changes.
    pub during: usize,
    /// Changes of the number of cores.
    pub changes: u64,
    /// Messages that did not arrive, frames dropped, and segments that came out of order.
    pub lost: [u64; 3],
    /// Longest time that a move held frames back, beyond what the old core still had to do.
    pub held: Duration,
}

/// The network of a run.
struct World {
    network: Network,
    server: NodeId,
    steady: NodeId,
    clients: Vec<NodeId>,
    /// The messages that each client is to send.
    jobs: Vec<Vec<Job>>,
    rng: Seed,
}

fn address(i: usize) -> [(IpAddr, u8); 1] {
    [([10, 0, 0, i as u8 + 1].into(), 24)]
}

impl Steps {
    /// The server, the steady flow's machine and the clients, around a switch.
    fn build(&self) -> World {
        let mut rng = Seed::new(self.seed ^ 0x0073_7465_7073);
        let mut network = Network::new(BEGIN);
        let switch = network.add_switch("switch");
        let link = LinkConfig::rated(10_000_000_000, Duration::from_us(10));
        let mut nodes = Vec::new();
        for i in 0..CLIENTS + 2 {
            let mac = [2, 0, 0, 0, 0, i as u8 + 1];
            let mut config = HostConfig::new(mac, &address(i), rng.next_u64());
            if i == 0 {
                // Until a core more has come, messages wait, and each that comes meanwhile has a connection of its own.
                config.shared.flows = CONNECTIONS_MOST;
                config.slots = CONNECTIONS_MOST;
                config.data_len = u64::from(CONNECTIONS_MOST) << 14;
                config.cores = self.cores;
                config.capabilities.queues = u16::from(self.cores);
                config.capabilities.rss = self.cores > 1;
                config.steer_delay = Some(self.steer_delay);
                let (cost, cores) = (self.cost, self.cores);
                config.processors = Some(ProcessorSetting { cost, allowed: cores, useful: cores });
            }
            let node = network.add(&format!("machine{i}"), mac, Box::new(Host::new(&config, BEGIN)), None);
            network.join(node, switch, [link.clone(), link.clone()], rng.next_u64());
            nodes.push(node);
        }
        network.load(nodes[0], Load::new(Connections::Kept).serving(PORT, 256));
        World {
            network,
            server: nodes[0],
            steady: nodes[1],
            clients: nodes[2..].to_vec(),
            jobs: vec![Vec::new(); CLIENTS],
            rng,
        }
    }

    /// Messages for each second that keep so many thousandths of a core busy.
    fn rate(&self, thousandths: u64) -> u64 {
        thousandths * 2_000_000 / (self.cost.as_ns() * PACKETS_OF_TWO)
    }

    /// One core at half of its load, a higher load, then half of one again: how soon a core comes, and goes.
    #[must_use]
    pub fn run(&self) -> StepsResult {
        let mut world = self.build();
        let rises = BEGIN.plus(self.step);
        let falls = rises.plus(self.step);
        let end = falls.plus(self.step);
        for (from, until, load) in [(BEGIN, rises, 500), (rises, falls, self.load), (falls, end, 500)] {
            world.load(self.rate(load), from, until);
        }
        world.begin(BEGIN);
        let (mut cores, mut changes) = (1, Vec::new());
        let (mut added, mut removed) = (None, None);
        let (mut overflow, mut overflow_at_moves) = (0, 0);
        let mut at = BEGIN;
        while at < end {
            at = at.plus(LOOK);
            world.network.run_until(at);
            let (serving, is_moving) = world.host(|host| (host.serving(), host.is_moving()));
            let lost =
                dropped(&world.network) + world.host(|host| host.moves().lost - host.moves().not_parked);
            if is_moving {
                overflow_at_moves += lost - overflow;
            }
            overflow = lost;
            if serving != cores && !is_moving {
                changes.push((at.since(BEGIN), serving));
                if cores < serving && rises <= at {
                    added = added.or(Some(at.since(rises)));
                } else if serving < cores && falls <= at {
                    removed = removed.or(Some(at.since(falls)));
                }
                cores = serving;
            }
        }
        let ([left, dropped, out_of_order], held) = world.end(end);
        let not_parked = world.host(|host| host.moves().not_parked);
        let lost = [left, not_parked, if dropped == 0 { out_of_order } else { 0 }];
        StepsResult { added, removed, changes, lost, overflow: dropped - not_parked, overflow_at_moves, held }
    }

    /// A steady load of 0.6 cores, and cores that are added and taken back by order: what a steady flow feels of each change.
    #[must_use]
    pub fn changes(&self) -> ChangesResult {
        let mut world = self.build();
        let begin = BEGIN.plus(Duration::from_ms(100));
        let end = begin.plus(CHANGE_EVERY.times(CHANGES));
        world.load(self.rate(600), BEGIN, end);
        let steady = world.begin(end);
        world.network.run_until(begin);
        let mut windows: Vec<(Instant, Instant)> = Vec::new();
        for i in 0..CHANGES {
            let from = begin.plus(CHANGE_EVERY.times(i));
            world.network.run_until(from);
            world.host(|host| host.set_cores(Some(if i % 2 == 0 { 2 } else { 1 })));
            let mut at = from;
            loop {
                at = at.plus(LOOK);
                world.network.run_until(at);
                if !world.host(|host| host.is_moving()) {
                    break;
                }
            }
            windows.push((from, at));
        }
        let (lost, held) = world.end(end);
        let messages = &world.network.tally.messages()[steady..];
        let is_during = |message: &&Message| {
            let ends = message.ended.unwrap_or(Instant::NEVER);
            windows.iter().any(|(from, until)| message.began < *until && *from <= ends)
        };
        let (during, outside): (Vec<&Message>, Vec<&Message>) =
            messages.iter().filter(|message| begin <= message.began).partition(is_during);
        let [p99_outside] = percentiles(outside, [0.99], 1e3);
        let [p99_during] = percentiles(during.iter().copied(), [0.99], 1e3);
        ChangesResult { p99: [p99_outside, p99_during], during: during.len(), changes: CHANGES, lost, held }
    }
}

impl World {
    /// Gives the clients messages for that time, `rate` for each second over all, as a Poisson process.
    fn load(&mut self, rate: u64, from: Instant, until: Instant) {
        let to = SocketAddr::new(address(0)[0].0, PORT);
        let each = 1e9 * CLIENTS as f64 / rate as f64;
        for client in 0..CLIENTS {
            let mut at = from;
            loop {
                at = at.plus(poisson_gap(&mut self.rng, each));
                if until <= at {
                    break;
                }
                self.jobs[client].push(Job::new(at, to, MESSAGE));
            }
        }
    }

    /// Has the machines send, and the steady flow as well until `steady_until`. Returns the number of its first message.
    fn begin(&mut self, steady_until: Instant) -> usize {
        for (client, jobs) in self.clients.iter().zip(&mut self.jobs) {
            let mut jobs = std::mem::take(jobs);
            self.network.tally.enter(&mut jobs);
            self.network.load(*client, Load::new(Connections::Kept).sending(jobs));
        }
        let first = self.network.tally.messages().len();
        let to = SocketAddr::new(address(0)[0].0, PORT);
        let count = steady_until.since(BEGIN).as_ns() / STEADY.as_ns();
        let mut jobs: Vec<Job> =
            (0..count).map(|i| Job::new(BEGIN.plus(STEADY.times(i)), to, MESSAGE)).collect();
        self.network.tally.enter(&mut jobs);
        self.network.load(self.steady, Load::new(Connections::Kept).sending(jobs));
        first
    }

    fn host<R>(&mut self, look: impl FnOnce(&mut Host) -> R) -> R {
        let machine = self.network.machine(self.server).expect("it was added");
        look(machine.host().expect("it is one of ours"))
    }

    /// Lets all messages arrive. Returns what was lost, and how long frames were held back at most.
    fn end(&mut self, at: Instant) -> ([u64; 3], Duration) {
        self.network.run_until(at.plus(Duration::from_secs(1)));
        self.network.check();
        let broken = self.network.breach.is_some() || self.network.tally.failed > 0;
        let left = self.network.tally.messages().iter().filter(|m| m.ended.is_none()).count();
        let dropped = dropped(&self.network);
        let (moves, held) = self.host(|host| (host.moves(), host.held_most()));
        ([left as u64 + u64::from(broken), dropped + moves.lost, moves.out_of_order], held)
    }
}
