//! Two hosts with hubs and applications over the transport of `lossy`, in virtual time.

use super::apps::{ACCEPTS, App, Apps, Ask, Outcome, Plan, REFUSES, open};
use super::lossy::{Host, Net, Weather, address};
use base::{Duration, Instant, Seed};
use channel::drive::round;
use channel::hub::{Census, Over};
use channel::session::{ECONNREFUSED, Ended};
use channel::{Class, Config, Hub, Lane, News, Sharing};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Errno of a reset by an application.
const ERRNO: u32 = channel::session::ECONNRESET;

pub struct Side {
    pub hub: Hub,
    pub host: Host,
    pub apps: Apps,
    pub over: Vec<Over>,
    epoch: u64,
}

pub struct World {
    pub now: Instant,
    pub seed: Seed,
    pub net: Rc<RefCell<Net>>,
    pub sides: [Side; 2],
    plans: BTreeMap<u16, Plan>,
    next_number: u16,
    window_max: u64,
    /// Time that a core takes for a round at least.
    pause: Duration,
    config: Config,
    /// True: something has happened that may end sessions.
    pub may_end: bool,
}

/// A window that lets the socket's bytes through in some dozens of rounds.
fn window(seed: &mut Seed, most: u64, plan: &Plan) -> u64 {
    let least = 1 + plan.totals[0].max(plan.totals[1]) / 20;
    least + seed.below(most)
}

impl World {
    pub fn new(number: u64, weather: Weather, config: &Config) -> Self {
        let mut seed = Seed::new(number);
        let net = Net::new(seed.next_u64(), weather);
        let room = 600 + seed.below(70_000) as usize;
        let side = |host: usize| {
            let own = Config { seed: [host as u8 + 1; 32], epoch: 100 + host as u64, ..config.clone() };
            Side {
                hub: Hub::new(own),
                host: Host { host, net: net.clone(), room, scratch: Vec::new() },
                apps: Apps::default(),
                over: Vec::new(),
                epoch: 100 + host as u64,
            }
        };
        let sides = [side(0), side(1)];
        let window_max = 64 + seed.below(40_000);
        let pause = Duration::from_us(1 + seed.below(1_000));
        let config = config.clone();
        Self {
            now: Instant::ZERO,
            seed,
            net,
            sides,
            plans: BTreeMap::new(),
            next_number: 0,
            window_max,
            pause,
            config,
            may_end: false,
        }
    }

    /// Opens a socket from that host to the other one.
    pub fn open(&mut self, from: usize, class: Class, port: u16, plan: Plan) -> Option<u64> {
        let window = window(&mut self.seed, self.window_max, &plan);
        let lane = Lane::of(address(from ^ 1), class, 1, Sharing::SameUser);
        let side = &mut self.sides[from];
        let id = side.hub.session_for(self.now, lane).ok()?;
        self.next_number += 1;
        let tag = side.apps.tag();
        let session = side.hub.session(id).expect("a session");
        let socket = session.open(tag, open(self.next_number, port), window).ok()?;
        self.plans.insert(self.next_number, plan);
        side.apps.all.insert(tag, App::new(id, socket, self.next_number, 0, plan, window));
        Some(tag)
    }

    /// Each application of that host has its turn with some probability.
    pub fn turns(&mut self, host: usize) {
        let Side { hub, apps, .. } = &mut self.sides[host];
        let tags: Vec<u64> =
            apps.all.iter().filter(|(_, app)| app.outcome.is_none()).map(|(tag, _)| *tag).collect();
        for tag in tags {
            if self.seed.chance(300_000) {
                continue;
            }
            let (id, socket) = (apps.all[&tag].session, apps.all[&tag].socket);
            for ask in apps.turn(tag, &mut self.seed) {
                let Some(session) = hub.session(id) else { continue };
                match ask {
                    Ask::Written(head) => session.written(socket, head),
                    Ask::Finish => session.finish(socket),
                    Ask::Credit(edge) => session.credit(socket, edge),
                    Ask::Reset => session.reset(self.now, socket, ERRNO),
                }
            }
        }
    }

    /// One round of that host's core, and what its events ask for.
    pub fn serve(&mut self, host: usize) {
        let side = &mut self.sides[host];
        while let Some((channel, peer)) = side.host.accept() {
            side.hub.accepted(self.now, channel, peer, true);
        }
        let mut rounds = 0;
        loop {
            let channels = side.host.channels();
            if !round(self.now, &mut side.hub, &mut side.host, &(), &channels, &mut side.apps) {
                break;
            }
            rounds += 1;
            assert!(rounds < 10_000, "a core never comes to rest");
        }
        while let Some(over) = side.hub.poll_over() {
            assert!(!matches!(over.why, Ended::Violation(_)), "an honest peer was blamed: {over:?}");
            let is_right = self.may_end || over.why == Ended::Drained;
            assert!(is_right, "a session ended without a reason: {over:?} {:?}", side.hub);
            side.over.push(over);
        }
        while let Some((id, event)) = side.hub.poll_event(self.now) {
            match event.news {
                News::Incoming(open) => {
                    let tag = side.apps.tag();
                    let session = side.hub.session(id).expect("a session with an event");
                    if open.to.port() == REFUSES {
                        assert!(session.refuse(event.socket, ECONNREFUSED));
                        continue;
                    }
                    let plan = self.plans[&open.from_port];
                    let window = window(&mut self.seed, self.window_max, &plan);
                    assert!(session.accept(event.socket, tag, window));
                    side.apps.all.insert(tag, App::new(id, event.socket, open.from_port, 1, plan, window));
                }
                news => side.apps.news(event.tag, news, self.may_end),
            }
        }
        for (_, session) in side.hub.sessions() {
            session.check().expect("invariants");
        }
    }

    /// Goes on to the next thing that happens, at most `step` later.
    pub fn step(&mut self, step: Duration) {
        for host in 0..2 {
            self.turns(host);
        }
        for host in 0..2 {
            self.serve(host);
        }
        let hubs = self.sides.iter().map(|side| side.hub.next_deadline());
        let next = hubs.chain([self.net.borrow().next_event(), self.now.plus(step)]).min().expect("several");
        self.now = next.max(self.now.plus(self.pause));
        self.net.borrow_mut().now = self.now;
    }

    /// The host dies and starts anew: its sockets are gone, and it does not know its sessions.
    pub fn restart(&mut self, host: usize) {
        self.net.borrow_mut().kill_host(host);
        let side = &mut self.sides[host];
        side.epoch += 10;
        side.hub =
            Hub::new(Config { seed: [side.epoch as u8; 32], epoch: side.epoch, ..self.config.clone() });
        side.apps.all.values_mut().for_each(|app| {
            app.outcome.get_or_insert(Outcome::Reset(0));
        });
        self.may_end = true;
    }

    /// Runs until all applications are done, then shuts both hubs down, and checks that nothing is left.
    pub fn finish(&mut self) {
        let until = self.now.plus(Duration::from_secs(200));
        while !self.sides.iter().all(|side| side.apps.is_done()) {
            assert!(self.now < until, "sockets never end: {:?}", self.waiting());
            self.step(Duration::from_ms(5));
        }
        for side in &mut self.sides {
            side.hub.shut(self.now);
        }
        let until = self.now.plus(Duration::from_secs(60));
        let is_left = |world: &Self| world.sides.iter().any(|side| side.hub.census() != Census::default());
        while is_left(self) || self.net.borrow().wires() > 0 {
            assert!(
                self.now < until,
                "left over: {:?}",
                [self.sides[0].hub.census(), self.sides[1].hub.census()]
            );
            self.step(Duration::from_ms(50));
        }
        self.judge();
    }

    fn waiting(&self) -> Vec<String> {
        let apps = self.sides.iter().flat_map(|side| side.apps.all.values());
        let waiting = apps.filter(|app| app.outcome.is_none());
        let text =
            waiting.map(|app| format!("{} end {} open {} {:?}", app.number, app.end, app.is_open, app.plan));
        let sessions =
            self.sides.iter().flat_map(|side| side.hub.sessions().map(|(_, session)| format!("{session:?}")));
        text.chain(sessions).collect()
    }

    /// Both ends of a socket must agree on its end, as far as nothing has ended its session.
    fn judge(&self) {
        let [a, b] = &self.sides;
        a.apps.read_rest();
        b.apps.read_rest();
        if self.may_end {
            return;
        }
        let mut ends: BTreeMap<u16, [Option<Outcome>; 2]> = BTreeMap::new();
        for app in a.apps.all.values().chain(b.apps.all.values()) {
            let pair = ends.entry(app.number).or_default();
            assert_eq!(pair[app.end], None, "socket {} has two ends of one kind", app.number);
            pair[app.end] = app.outcome;
        }
        for (number, pair) in ends {
            let plan = &self.plans[&number];
            let is_right = match pair {
                [Some(Outcome::Closed), Some(Outcome::Closed)] => true,
                [Some(Outcome::Refused), None] => true,
                _ => plan.reset.is_some(),
            };
            assert!(is_right, "socket {number}: {pair:?} with {plan:?}");
        }
    }

    /// A random socket from either host.
    pub fn open_random(&mut self, size: u64) {
        let plan = Plan::random(&mut self.seed, size);
        let from = self.seed.below(2) as usize;
        let class = if self.seed.chance(300_000) { Class::Latency } else { Class::Throughput };
        let port = if self.seed.chance(50_000) { REFUSES } else { ACCEPTS };
        self.open(from, class, port, plan);
    }
}
