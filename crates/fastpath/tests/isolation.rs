//! Small requests beside bulk flows, and the flows of one application beside those of another: what each waits for, in frames and bytes.

use crate::harness::{Host, MAC_A, MAC_B, Sock, config, endpoints, install};
use crate::peer::Peer;
use crate::scene::{IRS, ISS, MSS};
use base::limits::BATCH;
use base::{Duration, Instant};
use flow::{AppRegion, Command, Config, FlowId, FrameReason, Limits, RateLimit, class};
use port::{Capabilities, Direction, Line, Port, Tracer};
use port_memory::{LinkOptions, link};
use shm::{Kind, Params, Region};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use wire::{Endpoint, FourTuple, TcpFlags};

/// Number of bulk flows. The flow after them carries small requests.
const BULK: usize = 8;
/// Bytes of others that may be handled from a request's arrival to its bell, and from the answer's bell to its commit, in sum.
const BYTES_MAX: usize = 64 << 10;
/// The same in frames.
const FRAMES_MAX: usize = 32;

/// Bytes of headers of a frame over IPv4 with timestamps.
const HEADERS: usize = 66;
/// Slots of each region.
const SLOTS: u32 = 64;
/// MiB of each side of each region.
const MIB: u64 = 64;

/// A frame that came or went, without acknowledgements that were sent.
#[derive(Clone, Copy, Debug)]
struct Passed {
    is_sent: bool,
    /// TCP ports of source and destination.
    ports: [u16; 2],
    /// Payload of the frame, bytes.
    len: usize,
}

struct Flow {
    id: FlowId,
    sock: Sock,
    /// As the peer sees it.
    tuple: FourTuple,
    /// Index of its application.
    owner: usize,
    /// Bytes that the peer has sent.
    sent: u32,
}

/// Flows of several applications, and one peer that speaks for all of their other ends.
struct Crowd {
    host: Host,
    port: Box<dyn Port>,
    passed: Arc<Mutex<Vec<Passed>>>,
    peer: Peer,
    flows: Vec<Flow>,
    /// The regions of the applications. The host acts for the application of the region that it has.
    regions: Vec<Arc<AppRegion>>,
    /// Number of segments of no flow that have come.
    without_flow: u16,
    now: Instant,
}

/// Opens a flow for each entry of `owners`, the number of its application.
fn crowd(owners: &[usize]) -> Crowd {
    crowd_within(owners, &[])
}

/// As [`crowd`]; `limits` bound what the applications after the first send.
fn crowd_within(owners: &[usize], limits: &[Limits]) -> Crowd {
    let capabilities = Capabilities::plain(1500, MAC_A);
    let (port, far) = link(&LinkOptions { capabilities, slots: 4096, ..LinkOptions::default() }).unwrap();
    let (local, remote) = endpoints(false);
    // Windows stay as a test sets them.
    let config = Config { slow_start_after_idle: false, ..config() };
    let mut host = Host::with_slots(config, capabilities, MIB, SLOTS);
    let mut regions = vec![host.region.clone()];
    for index in 1..=owners.iter().copied().max().unwrap() {
        let params =
            Params { kind: Kind::Application, id: index as u64 + 1, slots: SLOTS, data_len: MIB << 20 };
        let limits = limits.get(index - 1).cloned().unwrap_or_else(Limits::none);
        let region = Arc::new(AppRegion::with_limits(Region::create(params).unwrap().0, limits));
        region.set_watermark(MIB << 20);
        host.commands.push(Command::add_region(index as u16, region.clone())).unwrap();
        regions.push(region);
    }
    let now = Instant::from_ns(5_000_000_000);
    let mut flows = Vec::new();
    for (i, owner) in owners.iter().copied().enumerate() {
        let there = Endpoint::new(remote.addr, 2000 + i as u16);
        let mut what = install(local, there, 1 + i as u32, MAC_B, IRS, ISS);
        what.region = owner as u16;
        host.region = regions[owner].clone();
        let (id, sock) = host.open(now, &what);
        host.nodelay(&sock);
        flows.push(Flow { id, sock, tuple: FourTuple::new(there, local), owner, sent: 0 });
    }
    host.region = regions[0].clone();
    let passed = Arc::new(Mutex::new(Vec::new()));
    let seen = passed.clone();
    let port = Box::new(Tracer::new(port, move |line: Line<'_>| {
        let frame = line.packet.frame();
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let len = frame.len() - HEADERS;
        let is_sent = line.direction == Direction::Sent;
        if len > 0 || !is_sent {
            seen.lock().unwrap().push(Passed { is_sent, ports: [port(34), port(36)], len });
        }
    }));
    let peer = Peer::new(far, remote, local, ISS, IRS);
    Crowd { host, port, passed, peer, flows, regions, without_flow: 0, now }
}

impl Crowd {
    /// One round of the core, a microsecond after the last.
    fn poll(&mut self) {
        self.now = self.now.plus(Duration::from_us(1));
        self.host.poll(self.now, self.port.as_mut());
    }

    /// The peer of a flow sends a full segment, or `payload`.
    fn arrive(&mut self, flow: usize, payload: &[u8]) {
        let f = &mut self.flows[flow];
        self.peer.tuple = f.tuple;
        let ms = (self.now.as_us() / 1000) as u32;
        self.peer.ts = Some((ms, ms));
        self.peer.data(f.sent, 0, payload);
        f.sent += payload.len() as u32;
    }

    /// The flow's application writes as much as a ring of a MiB takes.
    fn write(&mut self, flow: usize, bytes: &[u8]) {
        let f = &mut self.flows[flow];
        self.host.region = self.regions[f.owner].clone();
        self.host.send(&mut f.sock, bytes, bytes.len());
    }

    fn read(&mut self, flow: usize) -> Vec<u8> {
        let f = &mut self.flows[flow];
        self.host.region = self.regions[f.owner].clone();
        self.host.recv(&mut f.sock, usize::MAX)
    }

    /// Bytes that the flow has sent.
    fn sent(&self, flow: usize) -> u64 {
        let mut guard = self.host.keeper.lock(self.flows[flow].id);
        let f = guard.parts();
        f.tx.tx_una + u64::from(f.tx.in_flight())
    }

    /// The peers acknowledge all that was sent.
    fn acknowledge(&mut self) {
        for flow in 0..self.flows.len() {
            let sent = self.sent(flow) as u32;
            self.peer.tuple = self.flows[flow].tuple;
            self.peer.ack(self.flows[flow].sent, sent);
        }
        self.poll();
        self.poll();
        self.open_wide();
    }

    /// Gives the flows congestion and receive windows that hinder nothing.
    fn open_wide(&mut self) {
        for f in &self.flows {
            let mut guard = self.host.keeper.lock(f.id);
            let tx = guard.parts().tx;
            (tx.cwnd, tx.snd_wnd) = (64 << 20, 64 << 20);
        }
    }

    /// True when a request of that flow goes before the frames of other flows that wait in the port.
    fn goes_ahead(&mut self, flow: usize) -> bool {
        // Whatever waited in the port.
        while self.flows.iter().any(|f| self.host.keeper.lock(f.id).parts().rx.rx_head < u64::from(f.sent)) {
            self.poll();
        }
        self.read(flow);
        let others: Vec<usize> = (0..BULK).filter(|other| *other != flow).collect();
        (0..512).for_each(|i| self.arrive(others[i % others.len()], &[7; MSS as usize]));
        self.poll();
        self.arrive(flow, b"request");
        self.poll();
        self.read(flow) == b"request"
    }

    /// The bulk flows receive, and are read, until their receive windows have grown.
    fn grow_windows(&mut self) {
        let has_grown = |all: &Self, flow: usize| {
            1 << all.host.keeper.lock(all.flows[flow].id).parts().rx.window_log2
                > config().receive_buffer_initial
        };
        for _ in 0..100 {
            for flow in 0..BULK {
                (0..32).for_each(|_| self.arrive(flow, &[7; MSS as usize]));
                self.poll();
                self.poll();
                self.read(flow);
            }
            self.now = self.now.plus(Duration::from_ms(2));
            if (0..BULK).all(|flow| has_grown(self, flow)) {
                return;
            }
        }
        panic!("the windows of bulk flows do not grow");
    }
}

#[test]
fn a_request_behind_512_frames_of_bulk_flows_waits_for_few_of_them() {
    let mut all = crowd(&[0; BULK + 1]);
    all.open_wide();
    all.grow_windows();
    while all.host.core.counters().packets < u64::from(all.flows.iter().map(|f| f.sent).sum::<u32>() / MSS) {
        all.poll();
    }
    (0..BULK).for_each(|flow| drop(all.read(flow)));
    (0..512).for_each(|i| all.arrive(i % BULK, &[7; MSS as usize]));
    (0..BULK).for_each(|flow| all.write(flow, &[8; 256 << 10]));
    all.poll();
    all.arrive(BULK, b"request");
    all.passed.lock().unwrap().clear();
    while all.read(BULK) != b"request" {
        all.poll();
    }
    all.write(BULK, b"answer");
    while all.sent(BULK) < 6 {
        all.poll();
    }
    let passed = all.passed.lock().unwrap().clone();
    let answer = passed.iter().position(|p| p.ports == [1000, 2000 + BULK as u16] && p.is_sent).unwrap();
    let others: Vec<_> =
        passed[..answer].iter().filter(|p| !p.ports.contains(&(2000 + BULK as u16))).collect();
    let bytes: usize = others.iter().map(|p| p.len).sum();
    assert!(others.len() <= FRAMES_MAX && bytes <= BYTES_MAX, "{bytes} bytes in {} frames", others.len());
    // The bulk flows lose nothing by it.
    for _ in 0..100 {
        all.poll();
        all.peer.take();
        all.acknowledge();
    }
    let unread: usize = (0..BULK).map(|flow| all.read(flow).len()).sum();
    assert_eq!(unread, 512 * MSS as usize);
    assert_eq!((0..BULK).map(|flow| all.sent(flow)).sum::<u64>(), BULK as u64 * (256 << 10));
}

#[test]
fn a_round_sends_no_more_than_its_bytes_and_one_turn() {
    let mut all = crowd(&[0; BULK + 1]);
    all.open_wide();
    (0..BULK).for_each(|flow| all.write(flow, &[8; 1 << 20]));
    for _ in 0..200 {
        let sent = all.host.core.counters().bytes_out;
        all.poll();
        all.peer.take();
        assert!(all.host.core.counters().bytes_out - sent <= 128 << 10);
    }
    assert_eq!((0..BULK).map(|flow| all.sent(flow)).sum::<u64>(), BULK as u64 * (1 << 20));
}

#[test]
fn an_application_with_48_flows_sends_no_more_than_one_with_a_single_flow() {
    let owners: Vec<usize> = (0..49).map(|flow| usize::from(flow > 0)).collect();
    let mut all = crowd(&owners);
    all.open_wide();
    for _ in 0..2000 {
        (0..49).for_each(|flow| {
            // More than is sent in a round waits in each flow.
            let f = &all.flows[flow];
            if f.sock.tx.head < all.sent(flow) + (128 << 10) {
                all.write(flow, &[8; 256 << 10]);
            }
        });
        all.poll();
        all.peer.take();
        all.acknowledge();
    }
    let sent: Vec<u64> = (0..49).map(|flow| all.sent(flow)).collect();
    let (one, many) = (sent[0], sent[1..].iter().sum::<u64>());
    assert!(one.abs_diff(many) < many / 20, "{one} and {many}");
    let (least, most) = (sent[1..].iter().min().unwrap(), sent[1..].iter().max().unwrap());
    assert!(most - least <= 2 * (64 << 10), "{least} {most}");
}

/// Fills all flows again and again for `rounds` of a microsecond, and acknowledges. Returns the bytes that each has sent.
fn fill(all: &mut Crowd, rounds: usize) -> Vec<u64> {
    let flows = all.flows.len();
    let before: Vec<u64> = (0..flows).map(|flow| all.sent(flow)).collect();
    let end = all.now.plus(Duration::from_us(rounds as u64));
    while all.now < end {
        for flow in 0..flows {
            if all.flows[flow].sock.tx.head < all.sent(flow) + (512 << 10) {
                all.write(flow, &[8; 512 << 10]);
            }
        }
        // While the windows are wide.
        (0..6).for_each(|_| all.poll());
        all.peer.take();
        all.acknowledge();
    }
    (0..flows).map(|flow| all.sent(flow) - before[flow]).collect()
}

fn rate(bytes_per_second: u64) -> Arc<RateLimit> {
    Arc::new(RateLimit::new(NonZeroU64::new(bytes_per_second).unwrap()))
}

#[test]
fn the_flows_of_a_limited_application_send_its_rate_together_and_others_do_not_wait_for_them() {
    // 400 MB/s, and 200 MB/s for two applications of one user.
    let user = rate(200_000_000);
    let limits = [rate(400_000_000), user.clone(), user].map(|bucket| Limits::new(Box::new([bucket]), 1));
    let mut all = crowd_within(&[0, 1, 1, 1, 1, 2, 3, 3], &limits);
    all.open_wide();
    let sent = fill(&mut all, 9_000);
    let (one, two) = (sent[1..5].iter().sum::<u64>(), sent[5..].iter().sum::<u64>());
    // A burst, and what each flow may overdraw.
    let more = 256 << 10;
    assert!((3_500_000..3_600_000 + more).contains(&one), "{sent:?}");
    assert!((1_700_000..1_800_000 + more).contains(&two), "{sent:?}");
    assert!(sent[1..5].iter().all(|bytes| bytes.abs_diff(one / 4) < one / 20), "{sent:?}");
    assert!(sent[0] > 10 * one, "without a limit a flow sends at every turn: {sent:?}");
}

#[test]
fn a_core_whose_flows_all_wait_for_their_rate_is_idle_until_then() {
    let mut all = crowd_within(&[1, 1], &[Limits::new(Box::new([rate(1_000_000)]), 1)]);
    all.open_wide();
    all.write(0, &[8; 256 << 10]);
    all.write(1, &[8; 256 << 10]);
    let (end, mut rounds) = (all.now.plus(Duration::from_ms(200)), 0);
    while all.now < end {
        rounds += 1;
        let progress = all.host.core.poll(all.now, all.port.as_mut());
        all.now = progress.deadline.max(all.now.plus(Duration::from_us(1)));
        all.peer.take();
    }
    let sent = all.sent(0) + all.sent(1);
    assert!((200_000..300_000).contains(&sent), "{sent}");
    assert!(rounds < 1000, "a segment of each flow takes a round or two: {rounds}");
    // An application that comes in the place of a resting one begins anew.
    all.host.commands.push(Command::RemoveRegion { index: 1 }).unwrap();
    all.poll();
    let params = Params { kind: Kind::Application, id: 9, slots: SLOTS, data_len: MIB << 20 };
    let region = Arc::new(AppRegion::new(Region::create(params).unwrap().0));
    all.host.commands.push(Command::add_region(1, region)).unwrap();
    let progress = all.host.core.poll(all.now, all.port.as_mut());
    assert!(!progress.is_busy() || progress.commands > 0);
}

#[test]
fn an_application_with_three_shares_sends_more_than_one_with_one() {
    let mut all = crowd_within(&[0, 0, 1], &[Limits::new(Box::default(), 3)]);
    all.open_wide();
    let sent = fill(&mut all, 3_000);
    let (one, three) = (sent[0] + sent[1], sent[2]);
    // In two of eight rounds the windows are narrow, and a turn is over after one of them.
    assert!(three > 2 * one, "{sent:?}");
}

/// Bytes that a flow of class `traffic` sends in the round after it has written `bytes`, beside flows that wait for their turn.
fn sent_at_once(traffic: u8, bytes: usize) -> u64 {
    let mut all = crowd(&[0; BULK + 1]);
    all.open_wide();
    all.host.keeper.lock(all.flows[BULK].id).parts().tx.traffic = traffic;
    (0..BULK).for_each(|flow| all.write(flow, &[8; 1 << 20]));
    all.poll();
    all.write(BULK, &vec![9; bytes]);
    all.poll();
    all.sent(BULK)
}

#[test]
fn a_flow_goes_before_others_as_far_as_its_class_allows() {
    let message = 3 * u64::from(MSS);
    assert_eq!(sent_at_once(0, 3 * MSS as usize), message);
    assert_eq!(sent_at_once(class::BULK, 3 * MSS as usize), 0);
    assert_eq!(sent_at_once(0, 40 << 10), 0, "more than a message");
    assert_eq!(sent_at_once(class::EXPRESS, 40 << 10), 40 << 10);
    assert_eq!(sent_at_once(class::EXPRESS, 80 << 10), 0, "a class is no way around the turns");
    assert_eq!(sent_at_once(class::EXPRESS | 20, 40 << 10), 40 << 10, "whatever its code point");
}

#[test]
fn a_request_of_a_bulk_flow_goes_before_others_if_it_asks_for_that_and_no_request_of_one_that_asks_to_wait() {
    for (traffic, goes_ahead) in [(0, false), (class::EXPRESS, true)] {
        let mut all = crowd(&[0; BULK + 1]);
        all.open_wide();
        all.grow_windows();
        all.host.keeper.lock(all.flows[0].id).parts().tx.traffic = traffic;
        assert_eq!(all.goes_ahead(0), goes_ahead, "{traffic}");
    }
    for (traffic, goes_ahead) in [(0, true), (class::BULK, false)] {
        let mut all = crowd(&[0; BULK + 1]);
        all.open_wide();
        all.grow_windows();
        all.host.keeper.lock(all.flows[BULK].id).parts().tx.traffic = traffic;
        assert_eq!(all.goes_ahead(BULK), goes_ahead, "{traffic}");
    }
}

/// An application that asks to go before others, and writes a request of 16 KiB again as soon as the last one has left, takes nothing from the
/// turns of another one that moves many bytes.
#[test]
fn requests_without_end_leave_the_backlog_its_turns() {
    let mut all = crowd(&[0, 0, 1]);
    all.open_wide();
    all.host.keeper.lock(all.flows[2].id).parts().tx.traffic = class::EXPRESS;
    let before: Vec<u64> = (0..3).map(|flow| all.sent(flow)).collect();
    for _ in 0..2_000 {
        for flow in 0..2 {
            if all.flows[flow].sock.tx.head < all.sent(flow) + (512 << 10) {
                all.write(flow, &[8; 512 << 10]);
            }
        }
        if all.flows[2].sock.tx.head == all.sent(2) {
            all.write(2, &[9; 16 << 10]);
        }
        all.poll();
        all.peer.take();
        all.acknowledge();
    }
    let sent: Vec<u64> = (0..3).map(|flow| all.sent(flow) - before[flow]).collect();
    assert!(sent[2] > 2_000 * (8 << 10), "requests go on: {sent:?}");
    assert!(sent[0] + sent[1] >= sent[2], "{sent:?}");
    assert!(sent[0].abs_diff(sent[1]) < sent[0] / 4, "{sent:?}");
}

/// A flow that pretends to be small: its application reads at once, and its peer sends two requests of 11.6 kB as soon as the last two are
/// handled: more would not fit into its window before the application has read. Frames of bulk flows wait all the time. Returns the most bytes by which it was
/// ahead of them, and the number of requests.
fn gained_by_requests(traffic: u8) -> (u64, usize) {
    let mut all = crowd(&[0, 0, 0, 0, 0, 0, 0, 0, 1]);
    all.open_wide();
    all.grow_windows();
    while all.host.core.counters().packets < u64::from(all.flows.iter().map(|f| f.sent).sum::<u32>() / MSS) {
        all.poll();
    }
    (0..BULK).for_each(|flow| drop(all.read(flow)));
    all.host.keeper.lock(all.flows[BULK].id).parts().tx.traffic = traffic;
    let bytes_in = |all: &Crowd, flow: usize| all.host.keeper.lock(all.flows[flow].id).parts().rx.rx_head;
    let (mut gained_most, mut requests) = (0, 0);
    (0..512).for_each(|i| all.arrive(i % BULK, &[7; MSS as usize]));
    all.poll();
    let begun: u64 = (0..BULK).map(|flow| bytes_in(&all, flow)).sum();
    for round in 0..200 {
        if bytes_in(&all, BULK) == u64::from(all.flows[BULK].sent) {
            (0..2 * 8).for_each(|_| all.arrive(BULK, &[9; MSS as usize]));
            requests += 2;
        }
        // So many of theirs wait in each round.
        let handled: u64 = (0..BULK).map(|flow| bytes_in(&all, flow)).sum();
        let sent: u64 = (0..BULK).map(|flow| u64::from(all.flows[flow].sent)).sum();
        let missing = 512 - ((sent - handled) / u64::from(MSS)) as usize;
        (0..missing).for_each(|i| all.arrive((round + i) % BULK, &[7; MSS as usize]));
        all.poll();
        all.peer.take();
        (0..=BULK).for_each(|flow| drop(all.read(flow)));
        let others = (0..BULK).map(|flow| bytes_in(&all, flow)).sum::<u64>() - begun;
        gained_most = gained_most.max(bytes_in(&all, BULK).saturating_sub(others));
    }
    (gained_most, requests)
}

/// A round that takes this flow's packets first is followed by a round that takes the others' packets.
#[test]
fn requests_without_end_that_arrive_gain_no_more_than_64_kib_against_bulk_flows() {
    for traffic in [0, class::EXPRESS] {
        let (gained, requests) = gained_by_requests(traffic);
        assert!(gained > 16 << 10 && requests > 100, "it goes before others: {gained}, {requests}");
        assert!(gained <= BYTES_MAX as u64, "{gained}");
    }
}

impl Crowd {
    /// Segments come that belong to no flow, each of another port of the peer's host.
    fn arrive_without_flow(&mut self, count: usize, flags: TcpFlags, payload: &[u8]) {
        self.peer.ts = Some((1, 0));
        for _ in 0..count {
            self.without_flow += 1;
            self.peer.tuple.src.port = 10_000 + self.without_flow;
            self.peer.send(0, 0, flags, payload);
        }
    }

    /// Number of frames that have come out of the port, and of those, how many were of no flow.
    fn received(&self) -> (usize, usize) {
        (self.host.core.counters().packets as usize, self.host.frames.len())
    }
}

/// Bulk flows whose windows have grown, with 512 frames in the port behind a batch that was full.
fn crowded() -> Crowd {
    let mut all = crowd(&[0; BULK + 1]);
    all.open_wide();
    all.grow_windows();
    while all.host.core.counters().packets < u64::from(all.flows.iter().map(|f| f.sent).sum::<u32>() / MSS) {
        all.poll();
    }
    (0..BULK).for_each(|flow| drop(all.read(flow)));
    (0..512).for_each(|i| all.arrive(i % BULK, &[7; MSS as usize]));
    all.poll();
    all
}

#[test]
fn each_segment_of_a_handshake_reaches_the_slow_path_before_the_bulk_frames_that_came_before_it() {
    let syn_ack = TcpFlags::SYN.with(TcpFlags::ACK);
    for (flags, reason) in [
        (TcpFlags::SYN, FrameReason::Syn),
        (syn_ack, FrameReason::UnknownFlow),
        (TcpFlags::ACK, FrameReason::UnknownFlow),
    ] {
        let mut all = crowded();
        all.arrive_without_flow(1, flags, &[]);
        let (before, _) = all.received();
        all.poll();
        assert_eq!(all.received(), (before + 1, 1), "{flags:?}: none of the 480 frames before it");
        assert_eq!(all.host.frames[0].0, reason);
    }
}

/// A flood of SYNs gets at most half of a batch, so that a request gets through in the same round. Each second round prefers nothing.
#[test]
fn a_flood_of_syns_leaves_express_and_bulk_flows_their_share_of_each_round() {
    let mut all = crowded();
    let bulk_in = |all: &Crowd| -> u64 {
        (0..BULK).map(|flow| all.host.keeper.lock(all.flows[flow].id).parts().rx.rx_head).sum()
    };
    let mut requests = Vec::new();
    for round in 0..10 {
        all.arrive_without_flow(200, TcpFlags::SYN, &[]);
        all.arrive(BULK, b"request");
        let (bulk, (packets, syns)) = (bulk_in(&all), all.received());
        all.poll();
        let (packets, syns) = (all.received().0 - packets, all.received().1 - syns);
        let is_short = round % 2 == 0;
        // The request is the packet that is neither a SYN nor a bulk flow's.
        let frames = ((bulk_in(&all) - bulk) / u64::from(MSS)) as usize;
        assert_eq!((syns, frames), (BATCH / 2, if is_short { 0 } else { BATCH }), "round {round}");
        assert_eq!(packets, BATCH / 2 + frames + 1, "round {round}");
        requests.extend(all.read(BULK));
        assert_eq!(requests.len(), (round + 1) * b"request".len(), "round {round}");
    }
}

/// A segment of no flow that found no place before others keeps its own: none is lost, and each is handled once.
#[test]
fn all_syns_of_a_flood_reach_the_slow_path_in_the_end_and_each_once() {
    let mut all = crowded();
    all.arrive_without_flow(300, TcpFlags::SYN, &[]);
    while all.received().0 < all.flows.iter().map(|f| (f.sent / MSS) as usize).sum::<usize>() + 300 {
        all.poll();
    }
    let mut frames: Vec<_> = all.host.frames.iter().map(|(_, frame)| frame.clone()).collect();
    frames.sort();
    frames.dedup();
    assert_eq!((frames.len(), all.host.frames.len()), (300, 300));
    assert_eq!((0..BULK).map(|flow| all.read(flow).len()).sum::<usize>(), 512 * MSS as usize);
}

/// A burst of connects, larger than what one look takes: each look takes as many as the first, and none of them has its place behind bulk.
#[test]
fn all_syns_of_a_burst_reach_the_slow_path_before_the_bulk_frames_that_came_before_them() {
    let mut all = crowded();
    let syns = 8 * BATCH / 2;
    all.arrive_without_flow(syns, TcpFlags::SYN, &[]);
    let (before, _) = all.received();
    for round in 1..=8 {
        all.poll();
        assert_eq!(all.received().1, round * BATCH / 2, "round {round}");
    }
    let bulk = all.received().0 - before - syns;
    assert_eq!(bulk, 4 * BATCH, "of the 480 frames before them, those of each second round");
}

/// Segments of no flow that begin no connection, and what will be dropped, take no place from SYNs.
#[test]
fn a_syn_behind_a_flood_of_other_segments_of_no_flow_is_taken_at_the_first_look() {
    let mut all = crowded();
    all.arrive_without_flow(200, TcpFlags::ACK, &[]);
    all.arrive_without_flow(1, TcpFlags::SYN, &[]);
    all.poll();
    let of = |reason| all.host.frames.iter().filter(|frame| frame.0 == reason).count();
    assert_eq!((of(FrameReason::Syn), of(FrameReason::UnknownFlow)), (1, BATCH / 4));
}

#[test]
fn a_syn_behind_a_flood_for_another_station_is_taken_at_the_first_look() {
    let mut all = crowded();
    all.peer.ts = Some((1, 0));
    let known = all.peer.tuple.src.port;
    for i in 0..200 {
        all.peer.tuple.src.port = 20_000 + i;
        let mut frame = all.peer.frame(0, 0, TcpFlags::SYN, &[]);
        frame[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
        all.peer.inject(&frame);
    }
    all.peer.tuple.src.port = known;
    all.arrive_without_flow(1, TcpFlags::SYN, &[]);
    let (before, _) = all.received();
    all.poll();
    assert_eq!(all.received(), (before + 1, 1));
}
