//! Two whole stacks, slow path and fast path each, over a link in memory: strangers at first, with ARP, handshakes, bulk both
//! ways, half close in random order and TIME-WAIT; on a perfect link and on a bad one.

use base::{Duration, Instant, Seed};
use fastpath::{Core, Others};
use flow::{AppRegion, ExceptionReceiver, Flows};
use port::{Capabilities, FaultRates, Faults, Port};
use port_memory::{LinkOptions, link};
use queue::pages::{Pool, class_of};
use queue::stream::{self, Sender};
use queue::{Doorbell, Wake};
use shm::{Kind, Params, Region, Side, half_flags};
use slowpath::{Config, Connect, Count, Event, FlowOptions, How, OwnAddress, Owner, SlowPath};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use wire::{Endpoint, MacAddr};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0x0A], [2, 0, 0, 0, 0, 0x0B]];
const RING: usize = 128 << 10;

/// One socket of an application, and how far it has come.
#[derive(Default)]
struct Sock {
    stream: u64,
    tx: Sender,
    rx_tail: u64,
    sent: usize,
    is_shut: bool,
    is_eof: bool,
    is_released: bool,
}

struct Host {
    slow: SlowPath,
    core: Core,
    exceptions: ExceptionReceiver,
    region: Arc<AppRegion>,
    pool: Pool,
    port: Box<dyn Port>,
    socks: BTreeMap<u32, Sock>,
    released: BTreeSet<u32>,
    ends: Vec<How>,
    refused: u32,
    is_drained: bool,
    next_slot: u32,
    deadline: Instant,
}

fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}

fn byte(stream: u64, from: usize, i: usize) -> u8 {
    (i as u64).wrapping_mul(0x9E37_79B9).wrapping_add(stream * 7 + from as u64).rotate_right(9) as u8
}

impl Host {
    fn new(index: usize, port: Box<dyn Port>, shared: &flow::Config) -> Self {
        let flows = Arc::new(Flows::new(shared.clone(), [3, index as u64]));
        let (exception_tx, exceptions) = flow::exceptions(shared.ring_slots);
        let (command_tx, command_rx) = flow::commands(shared.ring_slots);
        let config = Config {
            mac: MacAddr(MACS[index]),
            addresses: vec![OwnAddress { addr: ip(index), prefix_len: 24 }],
            secret: [index as u8 + 1; 16],
            ..Config::default()
        };
        let core = Core::new(
            0,
            flows.clone(),
            exception_tx,
            command_rx,
            port.capabilities(),
            Others::alone(flows.config()),
        );
        let mut slow = SlowPath::new(config, flows, vec![command_tx], Instant::ZERO);
        let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 64 << 20 };
        let region = Arc::new(AppRegion::new(Region::create(params).unwrap().0));
        region.set_watermark(64 << 20);
        assert!(slow.add_region(0, &region));
        Self {
            slow,
            core,
            exceptions,
            region,
            pool: Pool::default(),
            port,
            socks: BTreeMap::new(),
            released: BTreeSet::new(),
            ends: Vec::new(),
            refused: 0,
            is_drained: false,
            next_slot: 1,
            deadline: Instant::ZERO,
        }
    }

    fn slot(&mut self) -> Owner {
        self.next_slot += 1;
        let (_, own) = self.region.halves(self.next_slot).unwrap();
        stream::watch(own, Some(1));
        Owner { region: 0, slot: self.next_slot, core: 0 }
    }

    fn connect(&mut self, now: Instant, remote: Endpoint) -> Endpoint {
        let owner = self.slot();
        let token = u64::from(owner.slot);
        let what = Connect { token, local: None, remote, owner, options: FlowOptions::default() };
        self.slow.connect(now, &what).unwrap()
    }

    /// One round of the core and of the slow path. True when something happened.
    fn poll(&mut self, now: Instant) -> bool {
        let progress = self.core.poll(now, &mut *self.port);
        self.core.wakes().for_each(drop);
        let Self { slow, exceptions, .. } = self;
        let mut count = 0;
        while exceptions.pop(|e, frame| slow.handle_exception(now, 0, e, frame)).is_some() {
            count += 1;
        }
        slow.handle_timers(now);
        while let Some(event) = self.slow.poll_event() {
            count += 1;
            self.on_event(now, event);
        }
        while self.slow.poll_news().is_some() {}
        self.deadline = progress.deadline.min(self.slow.next_deadline());
        progress.is_busy() || count > 0
    }

    fn on_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Established { token, .. } => {
                let local = self.local_port(token as u32);
                self.socks.insert(token as u32, Sock { stream: u64::from(local), ..Sock::default() });
            }
            Event::Incoming { remote, pending, .. } => {
                let owner = self.slot();
                let stream = u64::from(remote.port);
                self.slow.accept(now, pending, owner).unwrap();
                self.socks.insert(owner.slot, Sock { stream, ..Sock::default() });
            }
            Event::Closed { how, .. } => self.ends.push(how),
            Event::Released { slot, .. } => assert!(self.released.insert(slot), "released twice"),
            Event::ConnectFailed { .. } => {
                // On a terrible link three questions for the neighbour may all be lost: try again, as an application would.
                self.refused += 1;
                self.connect(now, Endpoint::new(ip(1), 80));
            }
            Event::RegionDrained { .. } => self.is_drained = true,
            other => panic!("{other:?}"),
        }
    }

    fn local_port(&self, slot: u32) -> u16 {
        let mut port = 0;
        self.slow.for_each_socket(|socket| {
            if socket.owner.is_some_and(|owner| owner.slot == slot) {
                port = socket.local.port;
            }
        });
        port
    }

    fn ring(&self, slot: u32) {
        let region = self.region.region();
        let (service, _) = self.region.halves(slot).unwrap();
        let Some(context) = stream::watcher(service) else { return };
        let block = region.context(Side::Zero, context).unwrap();
        let _: Wake = Doorbell::new(block, region.layout().words_per_group).ring(slot);
    }

    /// The application's turn with one socket. True when it did something.
    fn serve(&mut self, me: usize, slot: u32, total: usize, most: usize, waits_for_eof: bool) -> bool {
        let mut sock = self.socks.remove(&slot).unwrap();
        let sent = self.send(&mut sock, slot, me, total);
        let got = self.receive(&mut sock, slot, me, most);
        let (service, own) = self.region.halves(slot).unwrap();
        let mut is_busy = sent + got > 0;
        if sock.sent == total && !sock.is_shut && (!waits_for_eof || sock.is_eof) {
            (sock.is_shut, is_busy) = (true, true);
            stream::raise(own, half_flags::FIN);
            self.ring(slot);
        }
        let flags = service.flags.load(Acquire);
        assert_eq!(flags & (half_flags::RESET | half_flags::FAILED), 0, "host {me} slot {slot}");
        if flags & half_flags::FIN != 0 && service.tx_head.load(Acquire) == sock.rx_tail {
            sock.is_eof = true;
        }
        if sock.is_shut && sock.is_eof && !sock.is_released {
            assert_eq!(sock.rx_tail as usize, total, "host {me} slot {slot}");
            (sock.is_released, is_busy) = (true, true);
            stream::raise(own, half_flags::READ_CLOSED | half_flags::RELEASED);
            self.ring(slot);
        }
        self.socks.insert(slot, sock);
        is_busy
    }

    fn send(&mut self, sock: &mut Sock, slot: u32, me: usize, total: usize) -> usize {
        let shared = self.region.region();
        let word = |i| shared.page_word(Side::One, i).unwrap();
        let (service, own) = self.region.halves(slot).unwrap();
        if let Some(old) = sock.tx.update(service).unwrap() {
            self.pool.give_back(old, word);
        }
        if sock.tx.ring.is_none() {
            let ring = self.pool.lend(class_of(RING), shared.page_words() * 64, word).unwrap();
            assert_eq!(sock.tx.lend(own, ring), None);
        }
        let n = (total - sock.sent).min(sock.tx.space());
        if n > 0 {
            let bytes: Vec<u8> = (sock.sent..sock.sent + n).map(|i| byte(sock.stream, me, i)).collect();
            let [(a, a_len), (b, _)] = sock.tx.ring.unwrap().spans(sock.tx.head, n);
            shared.write(Side::One, a, &bytes[..a_len]);
            shared.write(Side::One, b, &bytes[a_len..]);
            sock.tx.publish(own, n);
            sock.sent += n;
            self.ring(slot);
        }
        n
    }

    fn receive(&mut self, sock: &mut Sock, slot: u32, me: usize, most: usize) -> usize {
        let shared = self.region.region();
        let (service, own) = self.region.halves(slot).unwrap();
        let mut done = 0;
        while let Some(got) =
            stream::readable(service, sock.rx_tail, shared.layout().params.data_len).unwrap()
        {
            let n = got.len.min(most - done);
            if n == 0 {
                break;
            }
            let mut piece = vec![0; n];
            let [(a, a_len), (b, _)] = got.ring.spans(sock.rx_tail, n);
            shared.read(Side::Zero, a, &mut piece[..a_len]);
            shared.read(Side::Zero, b, &mut piece[a_len..]);
            for (i, got) in piece.iter().enumerate() {
                let at = sock.rx_tail as usize + i;
                assert_eq!(*got, byte(sock.stream, 1 - me, at), "host {me} slot {slot} byte {at}");
            }
            sock.rx_tail += n as u64;
            done += n;
            if stream::consumed(own, service, sock.rx_tail) {
                self.ring(slot);
            }
        }
        done
    }

    fn is_done(&self, connections: usize) -> bool {
        self.released.len() == connections && self.slow.sizes()[2] == 0
    }
}

struct Plan {
    seed: u64,
    rates: FaultRates,
    capabilities: Capabilities,
    connections: usize,
    total: usize,
    change: fn(&mut flow::Config),
}

impl Plan {
    fn plain(seed: u64) -> Self {
        let capabilities = Capabilities::plain(1500, MACS[0]);
        Self { seed, rates: FaultRates::NONE, capabilities, connections: 4, total: 1 << 20, change: |_| {} }
    }
}

fn hosts(plan: &Plan) -> [Host; 2] {
    let options = LinkOptions {
        capabilities: plan.capabilities,
        peer_mac: MACS[1],
        slots: 512,
        ..LinkOptions::default()
    };
    let (a, b) = link(&options).unwrap();
    let mut shared = flow::Config { flows: 64, regions: 2, ring_slots: 256, ..flow::Config::default() };
    (plan.change)(&mut shared);
    let bad = |port, seed| Box::new(Faults::new(port, seed, FaultRates::NONE, plan.rates));
    [Host::new(0, bad(a, plan.seed), &shared), Host::new(1, bad(b, !plan.seed), &shared)]
}

/// Connects, moves `total` bytes each way, closes in random order, and waits until nothing is left. Returns the time of the
/// transfer.
fn run(plan: &Plan) -> Duration {
    let mut rng = Seed::new(plan.seed);
    let mut hosts = hosts(plan);
    let mut now = Instant::from_ns(1_000_000);
    let start = now;
    let server = Endpoint::new(ip(1), 80);
    hosts[1].slow.listen(server, 9, 128).unwrap();
    for _ in 0..plan.connections {
        hosts[0].connect(now, server);
    }
    // Who waits for the other's FIN before it sends its own: at most one of the two.
    let order: Vec<u64> = (0..64).map(|_| rng.below(3)).collect();
    let limit = now.plus(Duration::from_secs(900));
    while !hosts.iter().all(|host| host.is_done(plan.connections)) {
        assert!(now < limit, "seed {}: stuck: {}", plan.seed, describe(&hosts));
        let mut is_busy = false;
        for (me, host) in hosts.iter_mut().enumerate() {
            is_busy |= host.poll(now);
            let slots: Vec<u32> = host.socks.keys().copied().filter(|s| !host.socks[s].is_released).collect();
            for slot in slots {
                let most = if rng.chance(900_000) { 1 << 20 } else { 1 + rng.below(5000) as usize };
                let waits = order[host.socks[&slot].stream as usize % 64] == me as u64;
                is_busy |= host.serve(me, slot, plan.total, most, waits);
            }
        }
        let next = hosts[0].deadline.min(hosts[1].deadline);
        now =
            if is_busy { now.plus(Duration::from_us(20)) } else { next.max(now.plus(Duration::from_us(20))) };
    }
    let time = now.since(start);
    settle(plan, &mut hosts, now);
    time
}

/// TIME-WAIT passes, nothing else is left.
fn settle(plan: &Plan, hosts: &mut [Host; 2], mut now: Instant) {
    let is_clean = hosts.iter().flat_map(|host| &host.ends).all(|how| *how == How::Finished);
    // After so many losses in a row that a FIN backs off beyond TIME-WAIT, it meets a stranger and is reset, as anywhere.
    let is_hopeless = plan.rates.loss > 50_000;
    assert!(
        is_clean || is_hopeless,
        "seed {}: {:?} {}",
        plan.seed,
        [&hosts[0].ends, &hosts[1].ends],
        describe(hosts)
    );
    let waited: u64 = hosts.iter().map(|host| host.slow.counters().of(Count::TimeWaits)).sum();
    assert!(
        (plan.connections as u64..=2 * plan.connections as u64).contains(&waited),
        "somebody closed first"
    );
    for _ in 0..4 {
        now = now.plus(Duration::from_secs(40));
        for host in hosts.iter_mut() {
            host.poll(now);
        }
    }
    for host in hosts {
        assert_eq!(host.slow.sizes(), [0, 0, 0, 0]);
        assert!(host.refused == 0 || plan.rates.loss > 20_000);
        assert_eq!(host.slow.counters().of(Count::CoreBusy), 0);
    }
}

fn describe(hosts: &[Host; 2]) -> String {
    let mut text = String::new();
    for host in hosts {
        host.slow.for_each_socket(|socket| text.push_str(&format!("\n  {socket:?}")));
        for (slot, sock) in &host.socks {
            let Sock { sent, rx_tail, is_shut, is_eof, is_released, .. } = sock;
            text.push_str(&format!("\n  slot {slot}: {sent} {rx_tail} {is_shut} {is_eof} {is_released}"));
        }
        let counts = host.slow.counters().iter().filter(|(_, n)| *n > 0);
        counts.for_each(|(name, n)| text.push_str(&format!("\n  {name} {n}")));
    }
    text
}

/// Opens `connections` and lets both ends send for a while.
fn mid_transfer(plan: &Plan) -> ([Host; 2], Instant) {
    let mut hosts = hosts(plan);
    let mut now = Instant::from_ns(1_000_000);
    hosts[1].slow.listen(Endpoint::new(ip(1), 80), 9, 128).unwrap();
    for _ in 0..plan.connections {
        hosts[0].connect(now, Endpoint::new(ip(1), 80));
    }
    for _ in 0..60 {
        now = now.plus(Duration::from_us(20));
        for (me, host) in hosts.iter_mut().enumerate() {
            host.poll(now);
            let slots: Vec<u32> = host.socks.keys().copied().collect();
            slots.into_iter().for_each(|slot| {
                host.serve(me, slot, plan.total, 3000, false);
            });
        }
    }
    assert!(hosts.iter().all(|host| host.socks.len() == plan.connections));
    (hosts, now)
}

/// The applications of host 1 see a reset and let go; afterwards no record is left anywhere.
fn expect_resets(hosts: &mut [Host; 2], mut now: Instant, connections: usize) {
    for _ in 0..50 {
        now = now.plus(Duration::from_us(20));
        hosts.iter_mut().for_each(|host| {
            host.poll(now);
        });
    }
    for &slot in hosts[1].socks.keys() {
        let (service, own) = hosts[1].region.halves(slot).unwrap();
        assert_ne!(service.flags.load(Acquire) & half_flags::RESET, 0);
        stream::raise(own, half_flags::READ_CLOSED | half_flags::RELEASED);
        hosts[1].ring(slot);
    }
    for _ in 0..50 {
        now = now.plus(Duration::from_us(20));
        hosts.iter_mut().for_each(|host| {
            host.poll(now);
        });
    }
    for host in hosts {
        assert_eq!((host.slow.sizes(), host.released.len()), ([0, 0, 0, 0], connections));
    }
}

#[test]
fn reset_in_the_middle() {
    let plan = Plan { total: 1 << 24, ..Plan::plain(1) };
    let (mut hosts, now) = mid_transfer(&plan);
    for &slot in hosts[0].socks.keys() {
        let (_, own) = hosts[0].region.halves(slot).unwrap();
        stream::raise(own, half_flags::RESET | half_flags::READ_CLOSED | half_flags::RELEASED);
        hosts[0].ring(slot);
    }
    expect_resets(&mut hosts, now, plan.connections);
}

#[test]
fn a_region_taken_away_in_the_middle() {
    let plan = Plan { total: 1 << 24, ..Plan::plain(2) };
    let (mut hosts, now) = mid_transfer(&plan);
    hosts[0].slow.remove_region(now, 0);
    expect_resets(&mut hosts, now, plan.connections);
    assert!(hosts[0].is_drained);
    let region = hosts[0].region.clone();
    assert_eq!(region.lent(), 0);
    assert!(hosts[0].slow.add_region(0, &region));
}

#[test]
fn perfect_link() {
    for seed in 0..4 {
        // 40 us there and back, 8 MiB: a single timeout on the way, of 200 ms, would show.
        let time = run(&Plan::plain(seed));
        assert!(time < Duration::from_ms(50), "seed {seed}: {} us", time.as_us());
    }
}

#[test]
fn perfect_link_with_offloads() {
    let capabilities = Capabilities::plain(1500, MACS[0]).with_tso();
    run(&Plan { capabilities, ..Plan::plain(7) });
}

#[test]
fn without_any_option() {
    let change = |c: &mut flow::Config| (c.sack, c.timestamps, c.window_scaling) = (false, false, false);
    run(&Plan { change, ..Plan::plain(8) });
    run(&Plan { change, rates: FaultRates::losing(10_000), ..Plan::plain(9) });
}

#[test]
fn rings_between_the_paths_may_be_tiny() {
    let change = |c: &mut flow::Config| c.ring_slots = 8;
    for seed in 0..4 {
        run(&Plan { change, connections: 16, total: 100_000, ..Plan::plain(seed) });
        run(&Plan {
            change,
            rates: FaultRates::losing(10_000),
            connections: 16,
            total: 9000,
            ..Plan::plain(seed)
        });
    }
}

#[test]
fn lossy_link() {
    for seed in 0..8 {
        let time = run(&Plan { rates: FaultRates::losing(10_000), ..Plan::plain(seed) });
        assert!(time < Duration::from_secs(10), "seed {seed}: {} ms", time.as_ms());
    }
}

#[test]
fn bad_link() {
    let rates = FaultRates {
        loss: 10_000,
        duplicate: 20_000,
        reorder: 50_000,
        corrupt: 1_000,
        truncate: 500,
        ..FaultRates::NONE
    };
    for seed in 0..8 {
        run(&Plan { rates, ..Plan::plain(seed) });
    }
}

#[test]
fn handshakes_and_ends_on_a_terrible_link() {
    let rates = FaultRates { loss: 200_000, duplicate: 100_000, reorder: 100_000, ..FaultRates::NONE };
    for seed in 0..20 {
        run(&Plan { rates, connections: 8, total: 1000, ..Plan::plain(seed) });
    }
}

/// A path that takes smaller packets than the link and says nothing of it: RFC 4821 section 1's "black hole".
#[test]
fn a_black_hole_costs_seconds_not_the_connection() {
    let tso = Capabilities::plain(1500, MACS[0]).with_tso();
    for (mtu, capabilities, limit_ms) in [
        (1300, Capabilities::plain(1500, MACS[0]), 10_000),
        (1300, tso, 10_000),
        (1492, Capabilities::plain(1500, MACS[0]), 10_000),
        (1060, Capabilities::plain(1500, MACS[0]), 20_000),
    ] {
        let rates = FaultRates { mtu, ..FaultRates::NONE };
        let time = run(&Plan { rates, capabilities, total: 4 << 20, ..Plan::plain(u64::from(mtu)) });
        assert!(time < Duration::from_ms(limit_ms), "mtu {mtu}: {} ms", time.as_ms());
    }
}

/// Goes on until everything has arrived and ended; bounded.
fn finish(plan: &Plan, hosts: &mut [Host; 2], mut now: Instant) {
    let limit = now.plus(Duration::from_secs(30));
    while !hosts.iter().all(|host| host.is_done(plan.connections)) {
        assert!(now < limit, "stuck: {}", describe(hosts));
        for (me, host) in hosts.iter_mut().enumerate() {
            host.poll(now);
            let slots: Vec<u32> = host.socks.keys().copied().filter(|s| !host.socks[s].is_released).collect();
            slots.into_iter().for_each(|slot| {
                host.serve(me, slot, plan.total, 1 << 20, me == 1);
            });
        }
        now = now.plus(Duration::from_us(20));
    }
}

fn again(host: &Host) -> (u64, u64) {
    (host.slow.counters().of(Count::Timeouts), host.core.counters().retransmitted_bytes)
}

#[test]
fn a_service_that_was_stopped_reads_before_it_judges() {
    for seconds in [1, 3, 60] {
        let plan = Plan { total: 1 << 21, ..Plan::plain(seconds) };
        let (mut hosts, mut now) = mid_transfer(&plan);
        let before = again(&hosts[0]);
        // Host 1 acknowledges what was on its way, and waits for more.
        for _ in 0..20 {
            now = now.plus(Duration::from_us(20));
            hosts[1].poll(now);
        }
        now = now.plus(Duration::from_secs(seconds));
        // Its threads wake up in any order: here the one with the timers is the first.
        hosts[0].slow.handle_timers(now);
        assert_eq!(hosts[0].slow.counters().of(Count::Timeouts), before.0);
        finish(&plan, &mut hosts, now);
        assert_eq!(again(&hosts[0]), before, "nothing was lost, so nothing is sent again");
        assert!(hosts.iter().flat_map(|host| &host.ends).all(|how| *how == How::Finished));
    }
}

/// "The host MUST set RTO <- RTO * 2 ('back off the timer')" (RFC 6298 section 5.5).
#[test]
fn a_peer_stopped_for_a_minute_is_asked_ever_more_rarely_and_the_flow_goes_on() {
    let plan = Plan { total: 1 << 21, ..Plan::plain(3) };
    let (mut hosts, mut now) = mid_transfer(&plan);
    let (timeouts, bytes) = again(&hosts[0]);
    let end = now.plus(Duration::from_secs(60));
    while now < end {
        hosts[0].poll(now);
        now = hosts[0].deadline.max(now.plus(Duration::from_us(100)));
    }
    let flows = plan.connections as u64;
    // 0.2 + 0.4 + ... + 51.2 s: eight fit into a minute.
    assert!(again(&hosts[0]).0 - timeouts <= 8 * flows, "{:?}", again(&hosts[0]));
    assert!(again(&hosts[0]).1 - bytes <= 24 * 1460 * flows, "{:?}", again(&hosts[0]));
    finish(&plan, &mut hosts, end);
    assert!(hosts.iter().flat_map(|host| &host.ends).all(|how| *how == How::Finished));
}

/// More seeds than every run of the tests can afford: `cargo test -p towpath-slowpath --test all stacks:: -- --ignored`.
#[test]
#[ignore = "3,000 seeds take 15 seconds"]
fn soak() {
    let mut rng = Seed::new(20);
    for seed in 1000..4000 {
        let mut rate = |most: u64| rng.below(most) as u32;
        let rates = FaultRates {
            loss: rate(150_000),
            duplicate: rate(100_000),
            reorder: rate(150_000),
            corrupt: rate(10_000),
            truncate: rate(5_000),
            ..FaultRates::NONE
        };
        let total = 1 + rng.below(60_000) as usize;
        run(&Plan { rates, connections: 6, total, ..Plan::plain(seed) });
    }
}
