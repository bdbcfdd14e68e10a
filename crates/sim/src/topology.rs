//! Networks of many of our hosts around routers: a star, and a tree of three levels. Their wires are not watched by oracles.

use crate::agents::AgentSetting;
use crate::host::{Host, HostConfig};
use crate::network::{Network, NodeId};
use base::limits::RING_MAX;
use base::{Instant, Seed};
use congestion::{Algorithm, RateSettings};
use link::LinkConfig;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The port on which loads listen.
pub const PORT: u16 = 80;
/// The address of every router, as a gateway.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 254);
/// Slots of the rings between a core and the slow path: enough for a few hundred events at one instant.
const RING_SLOTS: usize = 16;
/// Most machines below one router: the last byte of their address names them.
const BELOW_MAX: usize = 254;

/// What all hosts of a network are like.
#[derive(Clone, Debug)]
pub struct HostSetting {
    /// Congestion control of all flows.
    pub algorithm: Algorithm,
    /// Settings of laws that decide a rate.
    pub rates: RateSettings,
    /// Number of applications of a host, each with a region of its own.
    pub applications: u16,
    /// Most flows of a host, and of each of its applications.
    pub flows: u32,
    /// Slots of the rings between core and slow path; more than [`Default`]'s for hosts to which hundreds of flows connect at once.
    pub ring_slots: usize,
    /// Bytes of each side's payload area: a multiple of 1 MiB.
    pub data_len: u64,
    /// Bytes of the largest receive window of a connection; the ring from which it sends may be twice as long. A power of two; `None`: what
    /// [`HostConfig::new`] has.
    pub buffer: Option<u32>,
    /// Whether a flow's window falls after a pause (RFC 5681 section 4.1).
    pub slow_start_after_idle: bool,
    /// The agent that decides about all flows of a host, if there is one; each host has one of its own.
    pub agent: Option<AgentSetting>,
}

impl HostSetting {
    /// Small hosts of up to 62 flows with this algorithm: each takes less than 3 MB.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        let rates = RateSettings::default();
        Self {
            algorithm,
            rates,
            applications: 1,
            flows: 62,
            ring_slots: RING_SLOTS,
            data_len: 16 << 20,
            buffer: None,
            slow_start_after_idle: true,
            agent: None,
        }
    }

    fn host(&self, mac: [u8; 6], addr: Ipv4Addr, seed: u64, now: Instant) -> Host {
        let mut config = HostConfig::new(mac, &[(IpAddr::V4(addr), 32)], seed);
        config.shared.rates = self.rates;
        config.shared.ring_slots = self.ring_slots;
        config.shared.ecn = true;
        config.shared.slow_start_after_idle = self.slow_start_after_idle;
        // One slot is the control slot, and one flow more may be in TIME-WAIT.
        config.slots = (self.flows + 2).next_power_of_two().max(64);
        config.shared.flows = config.slots;
        config.applications = self.applications;
        config.shared.regions = config.shared.regions.max(self.applications);
        config.data_len = self.data_len;
        if let Some(bytes) = self.buffer {
            let shared = &mut config.shared;
            shared.receive_buffer_max = bytes;
            shared.receive_buffer_initial = shared.receive_buffer_initial.min(bytes);
            // Twice: whatever holds a flow back for want of a buffer is then the receiver's window, which the sender's record counts.
            config.ring_most = bytes.saturating_mul(2).min(RING_MAX);
        }
        config.slow.algorithm = self.algorithm;
        config.agent.clone_from(&self.agent);
        config.slow.gateway_v4 = Some(GATEWAY);
        // A load's connections close by the thousand; nothing here depends on the wait after it.
        config.slow.time_wait = base::Duration::from_ms(10);
        Host::new(&config, now)
    }
}

/// A machine and its address.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// The machine in the network.
    pub node: NodeId,
    /// Its IPv4 address, without neighbours on its link.
    pub addr: Ipv4Addr,
    /// The router that it is joined to.
    pub router: NodeId,
}

impl Member {
    /// Where its load listens.
    #[must_use]
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.addr), PORT)
    }
}

/// A machine and the link between it and its router.
#[derive(Clone, Debug)]
pub struct Arm {
    /// What the machine is like.
    pub host: HostSetting,
    /// The link from the machine to its router.
    pub up: LinkConfig,
    /// The link from the router to the machine.
    pub down: LinkConfig,
}

impl Arm {
    /// A machine with the same link in both directions.
    fn new(host: &HostSetting, link: &LinkConfig) -> Self {
        Self { host: host.clone(), up: link.clone(), down: link.clone() }
    }
}

/// A network with its machines.
#[derive(Debug)]
pub struct Fabric {
    /// The network, with routes to every machine.
    pub network: Network,
    /// The machines, router by router.
    pub members: Vec<Member>,
    rng: Seed,
}

/// A tree of three levels.
///
/// ```text
///   cores            | core | core | ...                each upper router of a pod has its own share of the cores
///   pods             | upper | upper |  | upper ...     every lower router of a pod is joined to every upper one
///                    | lower | lower |  | lower ...
///   machines          | | |   | | |
/// ```
#[derive(Clone, Debug)]
pub struct Tree {
    /// Number of pods, which only cores join.
    pub pods: usize,
    /// Lower routers of a pod.
    pub lower: usize,
    /// Upper routers of a pod.
    pub upper: usize,
    /// Routers of the top level; a multiple of `upper`.
    pub cores: usize,
    /// Machines of a lower router, at most 254.
    pub machines: usize,
    /// From a machine to its router, and back.
    pub edge: LinkConfig,
    /// Between lower and upper routers.
    pub middle: LinkConfig,
    /// Between upper routers and cores.
    pub top: LinkConfig,
}

impl Fabric {
    fn new(seed: u64, now: Instant) -> Self {
        Self { network: Network::new(now), members: Vec::new(), rng: Seed::new(seed) }
    }

    /// A star of machines with the same link, in both directions, around one router.
    ///
    /// # Panics
    /// For more than 254 machines.
    #[must_use]
    pub fn star(hosts: &[HostSetting], link: &LinkConfig, seed: u64, now: Instant) -> Self {
        let arms: Vec<Arm> = hosts.iter().map(|host| Arm::new(host, link)).collect();
        Self::star_of(&arms, seed, now)
    }

    /// A star of machines with links of their own around one router.
    ///
    /// # Panics
    /// For more than 254 machines.
    #[must_use]
    pub fn star_of(arms: &[Arm], seed: u64, now: Instant) -> Self {
        let mut fabric = Self::new(seed, now);
        let router = fabric.network.add_router("router", seed);
        fabric.populate(router, 0, arms);
        fabric
    }

    /// A tree of equal machines.
    ///
    /// # Panics
    /// When the numbers of `tree` do not fit together.
    #[must_use]
    pub fn tree(tree: &Tree, host: &HostSetting, seed: u64, now: Instant) -> Self {
        assert!(tree.cores.is_multiple_of(tree.upper), "the cores are shared out evenly");
        let mut fabric = Self::new(seed, now);
        let cores: Vec<NodeId> = (0..tree.cores).map(|i| fabric.add_router(&format!("core{i}"))).collect();
        let arms = vec![Arm::new(host, &tree.edge); tree.machines];
        for pod in 0..tree.pods {
            fabric.add_pod(tree, pod, &cores, &arms);
        }
        fabric
    }

    fn add_router(&mut self, name: &str) -> NodeId {
        let seed = self.rng.next_u64();
        self.network.add_router(name, seed)
    }

    fn add_pod(&mut self, tree: &Tree, pod: usize, cores: &[NodeId], arms: &[Arm]) {
        let uppers: Vec<NodeId> =
            (0..tree.upper).map(|i| self.add_router(&format!("upper{pod}.{i}"))).collect();
        let each = cores.len() / tree.upper;
        for (upper, cores) in uppers.iter().zip(cores.chunks(each)) {
            for core in cores {
                self.join(*upper, *core, &tree.top);
                self.network.add_route(*upper, Ipv4Addr::UNSPECIFIED, 0, *core);
            }
        }
        for i in 0..tree.lower {
            let rack = pod * tree.lower + i;
            let lower = self.add_router(&format!("lower{rack}"));
            let net = address(rack, 0);
            for (j, upper) in uppers.iter().enumerate() {
                self.join(lower, *upper, &tree.middle);
                self.network.add_route(lower, Ipv4Addr::UNSPECIFIED, 0, *upper);
                self.network.add_route(*upper, net, 24, lower);
                for core in &cores[j * each..(j + 1) * each] {
                    self.network.add_route(*core, net, 24, *upper);
                }
            }
            self.populate(lower, rack, arms);
        }
    }

    fn join(&mut self, a: NodeId, b: NodeId, link: &LinkConfig) {
        self.join_by(a, b, [link.clone(), link.clone()]);
    }

    fn join_by(&mut self, a: NodeId, b: NodeId, links: [LinkConfig; 2]) {
        let seed = self.rng.next_u64();
        self.network.join(a, b, links, seed);
    }

    /// Adds the machines of one router.
    fn populate(&mut self, router: NodeId, rack: usize, arms: &[Arm]) {
        assert!(arms.len() <= BELOW_MAX, "at most 254 machines below one router");
        for (i, arm) in arms.iter().enumerate() {
            let addr = address(rack, i + 1);
            let [_, a, b, c] = addr.octets();
            let mac = [2, 0, 0, a, b, c];
            let (seed, now) = (self.rng.next_u64(), self.network.now());
            let machine = Box::new(arm.host.host(mac, addr, seed, now));
            let node = self.network.add(&addr.to_string(), mac, machine, None);
            self.join_by(node, router, [arm.up.clone(), arm.down.clone()]);
            self.network.add_route(router, addr, 32, node);
            self.members.push(Member { node, addr, router });
        }
    }
}

/// The address of machine `i` below router `rack`; `i` of 0 is the router's prefix of 24 bits.
fn address(rack: usize, i: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(10 << 24 | (rack as u32) << 8 | i as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Connections, Job, Load};
    use base::Duration;

    const BEGIN: Instant = Instant::from_ns(1_000_000_000);

    /// Every machine sends a message to every other, through two, four or six links.
    #[test]
    fn every_machine_of_a_tree_reaches_every_other() {
        let link = LinkConfig::rated(10_000_000_000, Duration::from_us(1));
        let (edge, middle, top) = (link.clone(), link.clone(), link);
        let tree = Tree { pods: 2, lower: 2, upper: 2, cores: 4, machines: 2, edge, middle, top };
        for connections in [Connections::Fresh, Connections::Kept] {
            let mut fabric = Fabric::tree(&tree, &HostSetting::new(Algorithm::Dctcp), 7, BEGIN);
            let members = fabric.members.clone();
            for from in &members {
                let to = members.iter().filter(|to| to.addr != from.addr);
                let twice = to.flat_map(|to| [(to, 0), (to, 50)]);
                let job = |(to, ms): (&Member, u64)| {
                    Job::new(BEGIN.plus(Duration::from_ms(ms)), to.socket(), 20_000)
                };
                let mut jobs: Vec<Job> = twice.map(job).collect();
                fabric.network.tally.enter(&mut jobs);
                let load = Load::new(connections).serving(PORT, 64).sending(jobs);
                fabric.network.load(from.node, load);
            }
            assert!(fabric.network.run_to_end(BEGIN.plus(Duration::from_secs(5))));
            let messages = fabric.network.tally.messages();
            assert_eq!(messages.len(), 8 * 7 * 2);
            assert!(messages.iter().all(|m| m.received == 20_000 && m.took().is_some()));
            assert_eq!(fabric.network.tally.failed, 0);
            let carried = |link: &link::Link| link.counters().delivered > 0;
            let used = fabric.network.links().filter(|(_, _, link)| carried(link)).count();
            let all = fabric.network.links().count();
            assert!(used * 10 > all * 9, "{used} of {all} directions carried something");
        }
    }
}
