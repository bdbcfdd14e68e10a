//! Machines and switches joined by cables, in virtual time: the next event is at the earliest of all deadlines.

use crate::agenda::Agenda;
use crate::apps::{Application, Ledger};
use crate::load::{Load, Tally};
use crate::pcap::{Capture, Direction};
use crate::router::{Router, Way};
use crate::sight::Sight;
use crate::station::{MachineDebug, Station};
use crate::switch::Switch;
use base::{Duration, Instant};
use link::{Link, LinkConfig};
use std::net::Ipv4Addr;

/// The index of a machine or a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeId(pub usize);

#[derive(Debug)]
enum Node {
    Station(Box<Station>),
    Switch(Switch),
    Router(Router),
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
    /// When the next frame of each cable arrives.
    arrivals: Agenda,
    /// When each station's next turn is due; switches have none.
    turns: Agenda,
    /// Stations that were changed from outside, so that their times are not known.
    touched: Vec<usize>,
    /// Number of stations with an application that is not done.
    busy: usize,
    /// The stations of one instant.
    due: Vec<usize>,
    /// The accounts of what applications have sent and received.
    pub ledger: Ledger,
    /// What has become of the messages of loads.
    pub tally: Tally,
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
            arrivals: Agenda::default(),
            turns: Agenda::default(),
            touched: Vec::new(),
            busy: 0,
            due: Vec::new(),
            ledger: Ledger::default(),
            tally: Tally::default(),
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
        let station = Station::new(mac, machine, watched_mtu);
        let id = self.add_node(name, Node::Station(Box::new(station)));
        self.touched.push(id.0);
        id
    }

    /// Adds a switch without cables, which learns where machines are.
    pub fn add_switch(&mut self, name: &str) -> NodeId {
        self.add_node(name, Node::Switch(Switch::default()))
    }

    /// Adds a router without cables and routes. Routers with the same `seed` choose alike where several ways lead to a destination.
    pub fn add_router(&mut self, name: &str, seed: u64) -> NodeId {
        self.add_node(name, Node::Router(Router::new(seed)))
    }

    /// Adds a way to the addresses with the first `len` bits of `net`: from `router` to the node `via`, which a cable joins to it. If that is
    /// a machine, it has the address `net`.
    ///
    /// # Panics
    /// When `router` is no router, or no cable leads from it to `via`.
    pub fn add_route(&mut self, router: NodeId, net: Ipv4Addr, len: u8, via: NodeId) {
        let mac = match &self.nodes[via.0] {
            Node::Station(station) => Some(station.mac),
            Node::Switch(_) | Node::Router(_) => None,
        };
        let Node::Router(node) = &mut self.nodes[router.0] else { panic!("{router:?} is no router") };
        let cable = node.ports.iter().copied().find(|&port| self.cables[port].to == via.0);
        let cable = cable.expect("a cable from the router to the next node");
        match mac {
            Some(mac) => node.add_neighbour(net, cable, mac),
            None => node.add_route(net, len, cable),
        }
    }

    fn add_node(&mut self, name: &str, node: Node) -> NodeId {
        self.names.push(name.to_owned());
        self.nodes.push(node);
        self.turns.add();
        NodeId(self.nodes.len() - 1)
    }

    /// Joins two nodes; the first configuration is for the direction from `a` to `b`.
    pub fn join(&mut self, a: NodeId, b: NodeId, configs: [LinkConfig; 2], seed: u64) {
        let first = self.cables.len();
        let [there, back] = configs;
        for (i, (config, from, to)) in [(there, a, b), (back, b, a)].into_iter().enumerate() {
            let link = Link::new(config, seed.wrapping_mul(2).wrapping_add(i as u64));
            self.arrivals.add();
            self.cables.push(Cable { link, from: from.0, to: to.0, twin: first + 1 - i });
            match &mut self.nodes[from.0] {
                Node::Station(station) => station.cable = Some(first + i),
                Node::Switch(switch) => switch.add_port(first + i),
                Node::Router(router) => router.ports.push(first + i),
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

    /// A station, to be changed.
    fn station(&mut self, id: NodeId) -> Option<&mut Station> {
        match self.nodes.get_mut(id.0) {
            Some(Node::Station(station)) => {
                self.touched.push(id.0);
                Some(station)
            }
            _ => None,
        }
    }

    /// All stations, to be changed.
    fn stations(&mut self) -> impl Iterator<Item = &mut Station> {
        self.touched.extend(0..self.nodes.len());
        self.nodes.iter_mut().filter_map(|n| if let Node::Station(s) = n { Some(&mut **s) } else { None })
    }

    /// Gives a machine its application.
    pub fn install(&mut self, id: NodeId, application: Application) {
        if let Some(station) = self.station(id) {
            station.application = Some(application);
        }
    }

    /// Gives a machine a load.
    pub fn load(&mut self, id: NodeId, load: Load) {
        if let Some(station) = self.station(id) {
            station.load = Some(load);
        }
    }

    /// The link from one node to another, if a cable joins them.
    #[must_use]
    pub fn link(&self, from: NodeId, to: NodeId) -> Option<&Link> {
        self.cables.iter().find(|cable| (cable.from, cable.to) == (from.0, to.0)).map(|cable| &cable.link)
    }

    /// The flow that sends message `number` of the load on a machine.
    pub fn sight(&mut self, id: NodeId, number: u64) -> Option<Sight> {
        let Some(Node::Station(station)) = self.nodes.get_mut(id.0) else { return None };
        let fd = station.load.as_ref()?.socket_of(number)?;
        station.machine.host()?.sight(fd)
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
        let Self { nodes, ledger, touched, .. } = self;
        touched.push(id.0);
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

    /// True when every application and every load is done, and all their messages have arrived.
    pub fn is_done(&mut self) -> bool {
        self.look_at_touched();
        self.busy == 0 && self.tally.is_over()
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

    /// Notes what has changed of a station: when its turn is due, and whether its application is done.
    fn note(&mut self, index: usize) {
        let Node::Station(station) = &mut self.nodes[index] else { return };
        self.turns.set(index, station.due().max(self.now));
        let is_done = station.is_over();
        self.busy = self.busy + usize::from(station.is_done) - usize::from(is_done);
        station.is_done = is_done;
    }

    fn look_at_touched(&mut self) {
        while let Some(index) = self.touched.pop() {
            self.note(index);
        }
    }

    /// The time of the next event.
    pub fn next_event(&mut self) -> Instant {
        self.look_at_touched();
        self.arrivals.next().min(self.turns.next()).max(self.now)
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

    /// Runs until all applications and loads are done, at most until `limit`. True when they are done.
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

    /// Delivers frames that arrive now to machines and through switches, cable by cable in their order.
    fn deliver(&mut self) {
        let now = self.now;
        while let Some(i) = self.arrivals.pop(now) {
            let cable = &mut self.cables[i];
            let (to, twin) = (cable.to, cable.twin);
            let frame = cable.link.take(now);
            self.arrivals.set(i, cable.link.next_deadline());
            let Some(mut frame) = frame else { continue };
            match &mut self.nodes[to] {
                Node::Station(station) => {
                    if station.takes(&frame) {
                        if let Some(capture) = &mut self.capture {
                            capture.record(now, to, Direction::Inbound, &frame);
                        }
                        station.inject(frame);
                        self.turns.set(to, station.due().max(now));
                    }
                }
                Node::Switch(switch) => {
                    let mut ports = switch.ports_of(&frame, twin);
                    let last = ports.next();
                    // A link without delay delivers the frame at this instant.
                    ports.for_each(|port| self.send(port, frame.clone()));
                    if let Some(port) = last {
                        self.send(port, frame);
                    }
                }
                Node::Router(router) => match router.decide(&mut frame) {
                    Way::By(port) => self.send(port, frame),
                    Way::Back => self.send(twin, frame),
                    Way::Nowhere => {}
                },
            }
        }
    }

    fn send(&mut self, cable: usize, frame: Vec<u8>) {
        let link = &mut self.cables[cable].link;
        link.send(self.now, frame);
        self.arrivals.set(cable, link.next_deadline());
    }

    fn run_machines(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        while let Some(i) = self.turns.pop(self.now) {
            due.push(i);
        }
        for i in due.drain(..) {
            self.run_machine(i);
        }
        self.due = due;
    }

    fn run_machine(&mut self, i: usize) {
        let now = self.now;
        let Node::Station(station) = &mut self.nodes[i] else { return };
        station.turn(now, &mut self.ledger, &mut self.tally);
        while let Some(frame) = station.machine.next_frame() {
            self.frames += 1;
            if let Some(capture) = &mut self.capture {
                capture.record(now, i, Direction::Outbound, &frame);
            }
            if let Some(watch) = &mut station.watch
                && let Err(what) = watch.oracle.sent(&frame, watch.mtu)
                && self.breach.is_none()
            {
                self.breach = Some(format!("{}: {what}", self.names[i]));
            }
            if let Some(cable) = station.cable {
                let link = &mut self.cables[cable].link;
                link.send(now, frame);
                self.arrivals.set(cable, link.next_deadline());
            }
        }
        if let Some(watch) = &mut station.watch {
            watch.oracle.turned();
        }
        self.note(i);
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
