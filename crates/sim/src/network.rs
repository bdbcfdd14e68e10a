//! Machines and switches joined by cables, in virtual time: the next event is at the earliest of all deadlines.

use crate::apps::{Application, Ledger};
use crate::machine::Machine;
use crate::oracle::WireOracle;
use crate::pcap::{Capture, Direction};
use base::{Duration, Instant};
use link::{Link, LinkConfig};
use std::collections::HashMap;

/// A machine and its application that are still busy after this many turns at one instant never come to rest.
const TURNS_MAX: usize = 100_000;

/// The index of a machine or a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeId(pub usize);

/// A machine with its application and its own clock.
#[derive(Debug)]
struct Station {
    machine: Box<dyn MachineDebug>,
    application: Option<Application>,
    oracle: Option<(WireOracle, u16)>,
    mac: [u8; 6],
    /// By how much its clock is ahead of the network's.
    ahead: Duration,
    /// The machine does not run before this time.
    stopped_until: Instant,
    /// Frames wake the machine no sooner than this after its last run, as with interrupt moderation.
    moderation: Duration,
    ran_at: Instant,
    has_input: bool,
    cable: Option<usize>,
}

/// A machine that implements `Debug`.
pub trait MachineDebug: Machine + std::fmt::Debug {}
impl<M: Machine + std::fmt::Debug> MachineDebug for M {}

#[derive(Debug)]
enum Node {
    Station(Box<Station>),
    Switch { ports: Vec<usize>, table: HashMap<[u8; 6], usize> },
}

/// One direction of a cable.
#[derive(Debug)]
struct Cable {
    link: Link,
    from: usize,
    to: usize,
    /// Index of the other direction.
    twin: usize,
}

/// The network; see the module.
#[derive(Debug)]
pub struct Network {
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    now: Instant,
    /// The accounts of what applications have sent and received.
    pub ledger: Ledger,
    /// All frames on the wire are written here, if set.
    pub capture: Option<Capture>,
    /// The first violation seen on a wire or in a flow record.
    pub breach: Option<String>,
    /// Number of frames that machines have sent.
    pub frames: u64,
    names: Vec<String>,
}

impl Network {
    /// An empty network at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            nodes: Vec::new(),
            cables: Vec::new(),
            now,
            ledger: Ledger::default(),
            capture: None,
            breach: None,
            frames: 0,
            names: Vec::new(),
        }
    }

    /// The present time of the network.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Names of all nodes, in order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Adds a machine. With `watched_mtu` its wire is watched by an oracle, and no packet may be longer than this.
    pub fn add(
        &mut self,
        name: &str,
        mac: [u8; 6],
        machine: Box<dyn MachineDebug>,
        watched_mtu: Option<u16>,
    ) -> NodeId {
        self.names.push(name.to_owned());
        self.nodes.push(Node::Station(Box::new(Station {
            machine,
            application: None,
            oracle: watched_mtu.map(|mtu| (WireOracle::default(), mtu)),
            mac,
            ahead: Duration::ZERO,
            stopped_until: Instant::ZERO,
            moderation: Duration::ZERO,
            ran_at: Instant::ZERO,
            has_input: false,
            cable: None,
        })));
        NodeId(self.nodes.len() - 1)
    }

    /// Adds a switch without cables.
    pub fn add_switch(&mut self, name: &str) -> NodeId {
        self.names.push(name.to_owned());
        self.nodes.push(Node::Switch { ports: Vec::new(), table: HashMap::new() });
        NodeId(self.nodes.len() - 1)
    }

    /// Joins two nodes; the first configuration is for the direction from `a` to `b`.
    pub fn join(&mut self, a: NodeId, b: NodeId, configs: [LinkConfig; 2], seed: u64) {
        let first = self.cables.len();
        let [there, back] = configs;
        for (i, (config, from, to)) in [(there, a, b), (back, b, a)].into_iter().enumerate() {
            let link = Link::new(config, seed.wrapping_mul(2).wrapping_add(i as u64));
            self.cables.push(Cable { link, from: from.0, to: to.0, twin: first + 1 - i });
            match &mut self.nodes[from.0] {
                Node::Station(station) => station.cable = Some(first + i),
                Node::Switch { ports, .. } => ports.push(first + i),
            }
        }
    }

    /// Changes the configuration of every link with `change`.
    pub fn change_links(&mut self, mut change: impl FnMut(&mut LinkConfig)) {
        for cable in &mut self.cables {
            let mut config = cable.link.config().clone();
            change(&mut config);
            cable.link.change(config);
        }
    }

    /// All links with the names of their ends, in the order of joining, both directions of each.
    pub fn links(&self) -> impl Iterator<Item = (&str, &str, &Link)> {
        self.cables.iter().map(|c| (self.names[c.from].as_str(), self.names[c.to].as_str(), &c.link))
    }

    fn station(&mut self, id: NodeId) -> Option<&mut Station> {
        match self.nodes.get_mut(id.0) {
            Some(Node::Station(station)) => Some(station),
            _ => None,
        }
    }

    fn stations(&mut self) -> impl Iterator<Item = &mut Station> {
        self.nodes.iter_mut().filter_map(|n| if let Node::Station(s) = n { Some(&mut **s) } else { None })
    }

    /// Gives a machine its application.
    pub fn install(&mut self, id: NodeId, application: Application) {
        if let Some(station) = self.station(id) {
            station.application = Some(application);
        }
    }

    /// Moves the clock of a machine ahead.
    pub fn jump(&mut self, id: NodeId, by: Duration) {
        if let Some(station) = self.station(id) {
            station.ahead = station.ahead.plus(by);
        }
    }

    /// Stops a machine for `time`; frames that arrive meanwhile wait in its interface.
    pub fn stop(&mut self, id: NodeId, time: Duration) {
        let until = self.now.plus(time);
        if let Some(station) = self.station(id) {
            station.stopped_until = until;
        }
    }

    /// Sets the least time between two wake-ups of a machine by frames.
    pub fn moderate(&mut self, id: NodeId, every: Duration) {
        if let Some(station) = self.station(id) {
            station.moderation = every;
        }
    }

    /// The time on a machine's own clock.
    pub fn local_time(&mut self, id: NodeId) -> Instant {
        let now = self.now;
        self.station(id).map_or(now, |station| now.plus(station.ahead))
    }

    /// Kills the application of a machine; the machine continues.
    pub fn kill(&mut self, id: NodeId) {
        let Self { nodes, ledger, .. } = self;
        let Some(Node::Station(station)) = nodes.get_mut(id.0) else { return };
        if let Some(app) = &mut station.application {
            app.kill(ledger);
        }
        if let Some(host) = station.machine.host() {
            host.crash();
        }
    }

    /// A machine, for inspection or direct calls.
    pub fn machine(&mut self, id: NodeId) -> Option<&mut (dyn MachineDebug + '_)> {
        Some(&mut *self.station(id)?.machine)
    }

    /// Calls [`Application::open_more`] of every application.
    pub fn open_more(&mut self, count: Option<u64>) {
        let applications = self.stations().filter_map(|station| station.application.as_mut());
        applications.for_each(|application| application.open_more(count));
    }

    /// True when every application is done.
    pub fn is_done(&mut self) -> bool {
        self.stations().all(|station| station.application.as_ref().is_none_or(Application::is_done))
    }

    /// Number of connects that had to wait for a port or a slot.
    pub fn refused(&mut self) -> u64 {
        self.stations().filter_map(|station| station.application.as_ref()).map(|app| app.refused).sum()
    }

    /// Closes the listeners of all applications.
    pub fn close_listeners(&mut self) {
        for station in self.stations() {
            if let (Some(app), Some(stack)) = (&mut station.application, station.machine.stack()) {
                app.close(stack);
            }
        }
    }

    /// The time of the next event.
    #[must_use]
    pub fn next_event(&self) -> Instant {
        let links = self.cables.iter().map(|cable| cable.link.next_deadline());
        let nodes = self.nodes.iter().map(|node| match node {
            Node::Station(station) => station.due(),
            Node::Switch { .. } => Instant::NEVER,
        });
        links.chain(nodes).min().unwrap_or(Instant::NEVER).max(self.now)
    }

    /// Runs until `until`, or until the first violation.
    pub fn run_until(&mut self, until: Instant) {
        while self.breach.is_none() && self.ledger.breach.is_none() {
            let next = self.next_event();
            if until < next {
                break;
            }
            self.now = next;
            self.deliver();
            self.run_machines();
        }
        self.now = self.now.max(until);
    }

    /// Runs until all applications are done, at most until `limit`. True when they are done.
    pub fn run_to_end(&mut self, limit: Instant) -> bool {
        while self.breach.is_none() && self.ledger.breach.is_none() {
            if self.is_done() {
                return true;
            }
            let next = self.next_event();
            if limit < next {
                self.now = limit;
                return false;
            }
            self.now = next;
            self.deliver();
            self.run_machines();
        }
        false
    }

    /// Delivers frames that arrive now to machines and through switches.
    fn deliver(&mut self) {
        let now = self.now;
        let mut i = 0;
        while i < self.cables.len() {
            let cable = &mut self.cables[i];
            let (to, twin) = (cable.to, cable.twin);
            let Some(frame) = cable.link.poll(now) else {
                i += 1;
                continue;
            };
            match &mut self.nodes[to] {
                Node::Station(station) => {
                    if station.takes(frame) {
                        if let Some(capture) = &mut self.capture {
                            capture.record(now, to, Direction::Inbound, frame);
                        }
                        station.inject(frame);
                    }
                }
                Node::Switch { ports, table } => {
                    let frame = frame.to_vec();
                    for out in route(&frame, twin, ports, table) {
                        self.cables[out].link.offer(now, &frame);
                        // A link without delay delivers the frame at this instant: its turn comes again.
                        i = i.min(out);
                    }
                }
            }
        }
    }

    fn run_machines(&mut self) {
        for i in 0..self.nodes.len() {
            let Node::Station(station) = &mut self.nodes[i] else { continue };
            if self.now < station.due() {
                continue;
            }
            station.turn(self.now, &mut self.ledger);
            let now = self.now;
            while let Some(frame) = station.machine.next_frame() {
                self.frames += 1;
                if let Some(capture) = &mut self.capture {
                    capture.record(now, i, Direction::Outbound, &frame);
                }
                if let Some((oracle, mtu)) = &mut station.oracle
                    && let Err(what) = oracle.sent(&frame, *mtu)
                    && self.breach.is_none()
                {
                    self.breach = Some(format!("{}: {what}", self.names[i]));
                }
                if let Some(cable) = station.cable {
                    self.cables[cable].link.offer(now, &frame);
                }
            }
            if let Some((oracle, _)) = &mut station.oracle {
                oracle.turned();
            }
        }
    }

    /// Checks the records of all our hosts.
    pub fn check(&mut self) {
        let mut found = None;
        for (i, node) in self.nodes.iter_mut().enumerate() {
            let Node::Station(station) = node else { continue };
            if let Some(Err(what)) = station.machine.host().map(|host| host.check()) {
                found = found.or(Some(format!("{}: {what}", self.names[i])));
            }
        }
        self.breach = self.breach.take().or(found);
    }

    /// Describes everything that is still open, for the message of a run that hangs.
    pub fn describe(&mut self) -> String {
        let mut text = String::new();
        for (i, node) in self.nodes.iter_mut().enumerate() {
            let Node::Station(station) = node else { continue };
            let ids: Vec<u64> = station.application.iter().flat_map(Application::ids).take(20).collect();
            text.push_str(&format!("\n  {}: connections {ids:?}", self.names[i]));
            let Some(host) = station.machine.host() else { continue };
            text.push_str(&host.describe());
        }
        for (id, ends) in self.ledger.open().iter().take(10) {
            text.push_str(&format!("\n  connection {id}: {ends:?}"));
        }
        text
    }
}

/// The cables by which a switch sends on a frame that came in by the twin of the cable `from`.
fn route(frame: &[u8], from: usize, ports: &[usize], table: &mut HashMap<[u8; 6], usize>) -> Vec<usize> {
    let (Some(dst), Some(src)) =
        (frame.first_chunk::<6>(), frame.get(6..12).and_then(|b| b.first_chunk::<6>()))
    else {
        return Vec::new();
    };
    table.insert(*src, from);
    match table.get(dst) {
        Some(&port) => vec![port],
        None => ports.iter().copied().filter(|port| *port != from).collect(),
    }
}

impl Station {
    /// True for frames to this station's address, to a group, or to all.
    fn takes(&self, frame: &[u8]) -> bool {
        let is_for_us = frame.first_chunk::<6>().is_some_and(|dst| dst[0] & 1 == 1 || *dst == self.mac);
        // ARP has no checksum of its own. A damaged ARP frame, which a real link's frame check sequence would find, is dropped here.
        let is_arp = frame.get(12..14) == Some(&[0x08, 0x06]);
        is_for_us && (!is_arp || frame.get(22..28) == frame.get(6..12))
    }

    fn inject(&mut self, frame: &[u8]) {
        if let Some((oracle, _)) = &mut self.oracle {
            oracle.received(frame);
        }
        self.machine.inject(frame);
        self.has_input = true;
    }

    /// When the station's next turn is due, in the network's time.
    fn due(&self) -> Instant {
        let input = if self.has_input { self.ran_at.plus(self.moderation) } else { Instant::NEVER };
        let application = self.application.as_ref().map_or(Instant::NEVER, Application::next_deadline);
        let own = match self.machine.next_deadline().min(application) {
            Instant::NEVER => Instant::NEVER,
            at => Instant::from_ns(at.as_ns().saturating_sub(self.ahead.as_ns())),
        };
        own.min(input).max(self.stopped_until)
    }

    fn turn(&mut self, network_now: Instant, ledger: &mut Ledger) {
        let now = network_now.plus(self.ahead);
        (self.ran_at, self.has_input) = (network_now, false);
        for _ in 0..TURNS_MAX {
            self.machine.run(now);
            let (Some(app), Some(stack)) = (&mut self.application, self.machine.stack()) else { return };
            if !app.turn(now, stack, ledger) {
                return;
            }
        }
        ledger.breach(|| "an application and its stack never come to rest".to_owned());
    }
}
