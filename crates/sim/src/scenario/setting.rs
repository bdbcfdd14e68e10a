//! A run before it begins: machines, links, applications and events, as plain values that can be printed.

use crate::agents::AgentSetting;
use crate::apps::{Application, Opens, Plans, Profile};
use crate::host::{Host, HostConfig};
use crate::network::{Network, NodeId};
use crate::processors::ProcessorSetting;
use crate::station::MachineDebug;
use base::{Duration, Instant, Seed};
use congestion::Algorithm;
use link::{LinkConfig, Loss, Probability, Reorder};
use port::Capabilities;
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};

/// Time at which runs begin: not zero, so that no code depends on a start at zero.
pub(crate) const BEGIN: Instant = Instant::from_ns(1_000_000_000);
/// The port on which servers listen.
pub(crate) const PORT: u16 = 80;

/// The kind of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One of our hosts.
    Towpath,
    /// A machine with the released crate `smoltcp`.
    Smoltcp,
    /// A peer that breaks the rules of TCP.
    Hostile,
}

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub struct MachineSetting {
    /// The kind of the machine.
    pub kind: Kind,
    /// The configuration that fast path and slow path share.
    pub shared: flow::Config,
    /// The default congestion control algorithm.
    pub algorithm: Algorithm,
    /// Bytes of the largest packet.
    pub mtu: u16,
    /// The interface cuts super-frames into segments (TSO).
    pub has_offload: bool,
    /// The interface merges consecutive segments of a flow.
    pub merges: bool,
    /// The agent that decides about congestion control of its connections, if there is one.
    pub agent: Option<AgentSetting>,
    /// Number of fast-path cores.
    pub cores: u8,
    /// Time that the interface takes to bring moved groups of flows to another core's queue; `None`: groups do not move.
    pub steer_delay: Option<Duration>,
    /// The interface brings one frame in so many to another queue than its flow's; 0: none.
    pub stray_every: u32,
    /// Its processors, if packets cost time and cores come and go with the load.
    pub processors: Option<ProcessorSetting>,
    /// Its application uses a ring instead of sockets.
    pub has_ring: bool,
    /// Slots and payload bytes of its application's region.
    pub region: (u32, u64),
    /// Least time between wake-ups by frames: see [`Network::moderate`].
    pub moderation: Duration,
    /// The link to the network, and the link back.
    pub links: [LinkConfig; 2],
    /// Backlog of its listener.
    pub backlog: usize,
    /// Connections that it opens: their number, how many at once, and the least time between two.
    pub opens: Option<(u64, usize, Duration)>,
    /// Time from the beginning to the first of them.
    pub opens_after: Duration,
}

impl MachineSetting {
    /// One of our hosts, with the same link in both directions.
    #[must_use]
    pub fn towpath(link: &LinkConfig) -> Self {
        Self {
            kind: Kind::Towpath,
            shared: flow::Config { flows: 256, regions: 2, ring_slots: 256, ..flow::Config::default() },
            algorithm: Algorithm::default(),
            mtu: 1500,
            has_offload: false,
            merges: false,
            agent: None,
            cores: 1,
            steer_delay: None,
            stray_every: 0,
            processors: None,
            has_ring: false,
            region: (256, 64 << 20),
            moderation: Duration::ZERO,
            links: [link.clone(), link.clone()],
            backlog: 128,
            opens: None,
            opens_after: Duration::ZERO,
        }
    }

    /// The same machine, opening `count` connections, `at_once` at a time.
    #[must_use]
    pub fn opening(self, count: u64, at_once: usize) -> Self {
        Self { opens: Some((count, at_once, Duration::ZERO)), ..self }
    }
}

/// A fault or event during a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// From now on all links lose, delay and damage nothing.
    Calm,
    /// The clock of this machine jumps ahead by this time.
    Jump(usize, Duration),
    /// This machine is stopped for this time.
    Stop(usize, Duration),
    /// The application of this machine dies.
    Crash(usize),
    /// Groups of flows move between the cores of this machine: which, the number determines.
    Shift(usize, u64),
    /// A core of this machine, by its number modulo the cores, is stopped for this time.
    StopCore(usize, usize, Duration),
    /// A core of the next move of groups on this machine is stopped for this time: true: the old one, before it yields; false: the new one,
    /// before it expects them.
    StopMover(usize, bool, Duration),
    /// From now on the cores of this machine may use so many processors.
    Allow(usize, u8),
    /// From now on other programs on this machine use so many thousandths of processors, and one waits for so many percent of the time.
    Others(usize, u32, u32),
}

/// Everything that determines a run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The machines; the first is the server. More than two are joined by a switch.
    pub machines: Vec<MachineSetting>,
    /// The kind of connections.
    pub profile: Profile,
    /// True: connections use IPv6.
    pub v6: bool,
    /// Events in order of their time since the beginning.
    pub events: Vec<(Duration, Event)>,
    /// Time after the last event in which all connections must end.
    pub patience: Duration,
    /// Largest send ring that senders may lend themselves, bytes; `None`: the usual size.
    pub send_ring_max: Option<u32>,
    /// Numbers of connections per stage. After each stage the run waits until all connections are over, and nothing may remain of them.
    pub stages: Vec<u64>,
    /// Errors that sockets may report.
    pub tolerated: Vec<Errno>,
    /// The seed that determines all random choices.
    pub seed: u64,
}

impl Setting {
    /// A server, and a client that opens `count` connections, over the same link in both directions.
    #[must_use]
    pub fn pair(seed: u64, link: &LinkConfig, profile: Profile, count: u64) -> Self {
        let machines = vec![
            MachineSetting::towpath(&LinkConfig::default()),
            MachineSetting::towpath(link).opening(count, count as usize),
        ];
        Self {
            machines,
            profile,
            v6: false,
            events: Vec::new(),
            patience: Duration::from_secs(300),
            send_ring_max: None,
            stages: Vec::new(),
            tolerated: Vec::new(),
            seed,
        }
    }

    /// The same run, with faults until `at` only.
    #[must_use]
    pub fn calm_at(mut self, at: Duration) -> Self {
        self.events.push((at, Event::Calm));
        self.events.sort_by_key(|(at, _)| *at);
        self
    }

    /// Builds machines, switches and applications. Returns the network and the machines, in order.
    #[must_use]
    pub fn build(&self) -> (Network, Vec<NodeId>) {
        let mut rng = Seed::new(self.seed);
        let mut network = Network::new(BEGIN);
        network.ledger.tolerated.clone_from(&self.tolerated);
        network.ledger.is_lawless = self.machines.iter().any(|machine| machine.kind == Kind::Hostile);
        let nodes: Vec<NodeId> =
            (0..self.machines.len()).map(|i| self.add(&mut network, i, rng.next_u64())).collect();
        if let [server, client] = nodes[..] {
            let [up, down] = self.machines[1].links.clone();
            network.join(client, server, [up, down], rng.next_u64());
        } else {
            let switch = network.add_switch("switch");
            for (i, node) in nodes.iter().enumerate() {
                network.join(*node, switch, self.machines[i].links.clone(), rng.next_u64());
            }
        }
        (network, nodes)
    }

    fn addresses(i: usize) -> [(IpAddr, u8); 2] {
        let i = i as u8 + 1;
        [([10, 0, 0, i].into(), 24), ([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(i)].into(), 64)]
    }

    /// Address and port of the server on machine `i`.
    #[must_use]
    pub fn server(&self, i: usize) -> SocketAddr {
        SocketAddr::new(Self::addresses(i)[usize::from(self.v6)].0, PORT)
    }

    fn add(&self, network: &mut Network, i: usize, seed: u64) -> NodeId {
        let setting = &self.machines[i];
        let mac = [2, 0, 0, 0, 0, i as u8 + 1];
        let machine: Box<dyn MachineDebug> = match setting.kind {
            Kind::Towpath => Box::new(setting.host(mac, &Self::addresses(i), seed, self.send_ring_max)),
            Kind::Smoltcp => Box::new(crate::smoltcp::Smoltcp::new(
                mac,
                &Self::addresses(i),
                setting.mtu,
                network.now(),
                seed,
            )),
            Kind::Hostile => {
                Box::new(crate::hostile::Hostile::new(mac, &Self::addresses(i), self.server(0), seed))
            }
        };
        let name = if i == 0 { "server".to_owned() } else { format!("client{i}") };
        let watched = (setting.kind == Kind::Towpath).then_some(setting.mtu);
        let node = network.add(&name, mac, machine, watched);
        network.moderate(node, setting.moderation);
        if setting.kind != Kind::Hostile {
            network.install(node, self.application(i));
        }
        node
    }

    fn application(&self, i: usize) -> Application {
        // smoltcp forgets its timer, and thus lost data, at every acknowledgement that comes after our FIN (CLOSE-WAIT, CLOSING and
        // LAST-ACK in its `process`): so our FIN must come last.
        let first_is_last = self.machines.iter().any(|machine| machine.kind == Kind::Smoltcp);
        let plans = Plans { profile: self.profile, seed: self.seed, first_is_last };
        let app = Application::new(plans).serving(PORT, self.machines[i].backlog);
        let Some((count, at_once, gap)) = self.machines[i].opens else { return app };
        let first = Plans::first_id(i);
        let to = if i == 0 { 1 } else { 0 };
        let remotes = vec![self.server(to)];
        app.opening(Opens { remotes, ids: first..first + count, at_once, gap, pause_at: None })
            .beginning(BEGIN.plus(self.machines[i].opens_after))
    }
}

impl MachineSetting {
    fn host(&self, mac: [u8; 6], addresses: &[(IpAddr, u8)], seed: u64, send_ring_max: Option<u32>) -> Host {
        let mut config = HostConfig::new(mac, addresses, seed);
        config.ring_most = send_ring_max.unwrap_or(config.ring_most);
        config.shared = self.shared.clone();
        config.slow.algorithm = self.algorithm;
        let plain = Capabilities::plain(self.mtu, mac);
        config.capabilities =
            if self.has_offload { Capabilities { gathers: true, ..plain.with_tso() } } else { plain };
        config.agent.clone_from(&self.agent);
        (config.merges, config.cores) = (self.merges, self.cores);
        (config.steer_delay, config.stray_every) = (self.steer_delay, self.stray_every);
        config.processors = self.processors;
        config.capabilities.queues = u16::from(self.cores);
        config.capabilities.rss = self.cores > 1;
        (config.slots, config.data_len) = self.region;
        let mut host = Host::new(&config, BEGIN);
        if self.has_ring {
            host.use_ring();
        }
        host
    }
}

/// Removes all faults from a link; rate, delay, queue and marking stay.
pub(crate) fn calm(config: &mut LinkConfig) {
    config.loss = Loss::None;
    config.reorder = Reorder::default();
    config.duplicate = Probability::NEVER;
    config.corrupt = Probability::NEVER;
    config.truncate = Probability::NEVER;
    config.flap = None;
    config.outages.clear();
}
