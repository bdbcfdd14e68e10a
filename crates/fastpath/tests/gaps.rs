//! Data ahead of many gaps: kept as far as the window reaches, in gap records that flows borrow and give back.

use crate::harness::{Host, MAC_A, MAC_B, Sock, config, endpoints, install};
use crate::peer::Peer;
use crate::scene::{IRS, ISS, Scene, scene};
use base::{Duration, Instant, Seed};
use fastpath::{Cause, Core, Others};
use flow::{Command, Config, Exception, FlowId, INTERVALS, INTERVALS_MAX};
use port::Capabilities;
use port_memory::{LinkOptions, MemoryPort, link};
use shm::half_flags;
use std::sync::Arc;
use wire::{Endpoint, FourTuple, TcpFlags};

/// Bytes of a piece; every second piece is missing.
const PIECE: u32 = 4;
/// Segments between two rounds of the core.
const TOGETHER: u32 = 16;
/// Gap records of a core with many flows, and those that one peer gets of them: as long as it has less than half of what is idle.
const RECORDS: usize = 256;
const SHARE: usize = RECORDS.div_ceil(3);

fn piece(n: u32) -> [u8; PIECE as usize] {
    [n, n >> 8, n >> 16, !n].map(|byte| byte as u8)
}

/// The peer sends pieces 1, 3, 5, ...: so many gaps.
fn leave_gaps(s: &mut Scene, gaps: u32) {
    for n in 0..gaps {
        let n = 1 + 2 * n;
        s.peer.data(n * PIECE, 0, &piece(n));
        if n % (2 * TOGETHER) == 1 {
            s.poll();
        }
    }
    s.poll();
}

#[test]
fn data_is_kept_beyond_the_gaps_of_the_flows_own_record() {
    let mut s = scene();
    leave_gaps(&mut s, 1000);
    assert_eq!((s.drops(Cause::IntervalsFull), s.host.core.gap_records()), (0, 1));
    let last = 2 * 999 + 1;
    s.peer.data((last + 2) * PIECE, 0, &piece(last + 2));
    let sack = s.poll()[0].sack.clone();
    let blocks: Vec<_> = [2, 0, -2].map(|n| (last as i32 + n) as u32 * PIECE).map(|l| (l, l + PIECE)).into();
    assert_eq!(sack, blocks, "the latest first");
    // A piece in the middle joins two blocks: that block is told first.
    s.peer.data(500 * PIECE, 0, &piece(500));
    assert_eq!(s.poll()[0].sack[0], (499 * PIECE, 502 * PIECE));
    // Only what is missing comes: the stream is whole.
    for n in 0..=1000 {
        s.peer.data(2 * n * PIECE, 0, &piece(2 * n));
        if n % TOGETHER == 0 {
            s.poll();
        }
    }
    s.poll();
    let want: Vec<u8> = (0..last + 3).flat_map(piece).collect();
    assert!(s.recv() == want, "the bytes as they were sent");
    assert_eq!(s.host.core.gap_records(), 0, "without gaps the record goes back");
}

/// More intervals than a gap record holds: the newest is dropped unreported, what was reported is kept (no reneging), and the stream
/// comes whole when the sender fills the gaps.
#[test]
fn an_interval_too_many_is_dropped_and_never_reported() {
    let mut s = scene();
    let count = INTERVALS_MAX as u32;
    leave_gaps(&mut s, count);
    assert_eq!(s.drops(Cause::IntervalsFull), 0);
    let beyond = 2 * count + 1;
    s.peer.data(beyond * PIECE, 0, &piece(beyond));
    assert!(s.poll()[0].sack.iter().all(|block| block.0 != beyond * PIECE));
    assert_eq!(s.drops(Cause::IntervalsFull), 1);
    // Data that joins an interval needs no place.
    s.peer.data(2 * PIECE, 0, &piece(2));
    assert_eq!(s.poll()[0].sack[0], (PIECE, 4 * PIECE));
    for n in 0..beyond + 1 {
        s.peer.data(n * PIECE, 0, &piece(n));
        if n % TOGETHER == 0 {
            s.poll();
        }
    }
    s.poll();
    let want: Vec<u8> = (0..beyond + 1).flat_map(piece).collect();
    assert!(s.recv() == want);
}

/// The segments of one window in any order, in pieces that overlap: as a naive set says.
#[test]
fn any_order_of_many_pieces_gives_the_stream() {
    for seed in 0..4 {
        let mut s = scene();
        let mut rng = Seed::new(seed);
        let stream: Vec<u8> = (0..60_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut order: Vec<usize> = (0..stream.len() / 10).collect();
        (1..order.len()).for_each(|i| order.swap(i, rng.below(i as u64 + 1) as usize));
        let (mut has, mut most) = (vec![false; stream.len()], 0);
        for (i, n) in order.into_iter().enumerate() {
            let (left, right) = (10 * n, (10 * n + 10 + rng.below(4) as usize).min(stream.len()));
            has[left..right].fill(true);
            s.peer.data(left as u32, 0, &stream[left..right]);
            if i % 30 == 29 {
                s.poll();
            }
            most = most.max(s.host.core.intervals(&s.host.keeper.lock(s.id).parts()).len());
            if i % 600 == 29 {
                let edges = (1..has.len()).filter(|at| has[*at] && !has[at - 1]).count();
                let guard = &mut s.host.keeper.lock(s.id);
                let (f, core) = (guard.parts(), &s.host.core);
                assert_eq!(core.intervals(&f).len(), edges, "seed {seed}, {i}");
            }
        }
        s.poll();
        assert!(most > 10 * INTERVALS, "{most} intervals at once");
        assert_eq!(s.drops(Cause::IntervalsFull), 0);
        assert!(s.recv() == stream, "seed {seed}");
    }
}

/// Many flows from many addresses to one host.
struct Crowd {
    host: Host,
    port: MemoryPort,
    peer: Peer,
    now: Instant,
    flows: Vec<(FlowId, Sock, FourTuple)>,
}

fn crowd() -> Crowd {
    let capabilities = Capabilities::plain(1500, MAC_A);
    let (port, far) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
    let (local, remote) = endpoints(false);
    let config = Config { flows: 2 * RECORDS as u32, receive_buffer_initial: 16 << 10, ..config() };
    let host = Host::with_slots(config, capabilities, 64, 2 * RECORDS as u32);
    let peer = Peer::new(far, remote, local, ISS, IRS);
    Crowd { host, port, peer, now: Instant::from_ns(1_000_000), flows: Vec::new() }
}

impl Crowd {
    /// Opens a flow from the address with this number, which sends so many pieces with a gap before each. Returns how many were dropped.
    fn open(&mut self, address: u32, pieces: u32) -> u64 {
        let before = self.host.core.counters().of(Cause::IntervalsFull);
        let i = self.flows.len() as u32;
        let (local, _) = endpoints(false);
        let remote = Endpoint::new(std::net::Ipv4Addr::from(0x0A01_0000 + address).into(), 3000 + i as u16);
        let (id, sock) = self.host.open(self.now, &install(local, remote, 1 + i, MAC_B, IRS, ISS));
        self.peer.tuple = FourTuple::new(remote, local);
        for n in 0..pieces {
            let n = 1 + 2 * n;
            self.peer.data(n * PIECE, 0, &piece(n));
            if n % (2 * TOGETHER) == 1 {
                self.poll();
            }
        }
        self.poll();
        self.flows.push((id, sock, self.peer.tuple));
        self.host.core.counters().of(Cause::IntervalsFull) - before
    }

    fn poll(&mut self) {
        self.now = self.now.plus(Duration::from_us(50));
        self.host.poll(self.now, &mut self.port);
        self.peer.take();
    }
}

const MANY: u32 = 2 * INTERVALS as u32;

#[test]
fn a_peer_with_gaps_on_many_connections_leaves_records_to_others() {
    let mut c = crowd();
    let dropped: Vec<u64> = (0..SHARE + 8).map(|_| c.open(7, MANY)).collect();
    assert!(dropped[..SHARE].iter().all(|n| *n == 0));
    let over = u64::from(MANY) - INTERVALS as u64;
    assert!(dropped[SHARE..].iter().all(|n| *n == over), "those keep as many as their own record holds");
    assert_eq!(c.host.core.gap_records(), SHARE);
    assert_eq!((c.open(8, MANY), c.host.core.gap_records()), (0, SHARE + 1), "another peer");
    // Records that come back are the peer's again: one of two, because the other peer has one now.
    for flow in 0..2 {
        let (id, ..) = c.flows[flow];
        assert!(c.host.keeper.remove(id));
        c.host.commands.push(Command::Drop { flow: id }).unwrap();
        c.poll();
    }
    assert_eq!((c.host.core.gap_records(), c.open(7, MANY), c.open(7, MANY)), (SHARE - 1, 0, over));
}

/// Eight addresses, each with as many connections as it likes, that fall silent: a peer that comes then keeps what it sends.
#[test]
fn peers_that_fall_silent_with_gaps_leave_records_to_the_next() {
    let mut c = crowd();
    let one_more = INTERVALS as u32 + 1;
    for address in 0..8 {
        (0..RECORDS / 8).for_each(|_| {
            c.open(address, one_more);
        });
    }
    assert!(c.host.core.gap_records() > RECORDS / 2);
    let before = c.host.core.gap_records();
    let dropped: u64 = (0..8).map(|_| c.open(99, MANY)).sum();
    assert_eq!((dropped, c.host.core.gap_records()), (0, before + 8));
}

#[test]
fn without_an_idle_record_a_flow_keeps_as_many_intervals_as_its_own_record_holds() {
    let mut c = crowd();
    // Few pieces for each, so that the test is short: one gap more than the own record has places.
    let one_more = INTERVALS as u32 + 1;
    let mut addresses = 0;
    while c.host.core.gap_records() < RECORDS {
        c.open(addresses, one_more);
        addresses += 1;
    }
    assert!(addresses < RECORDS as u32 + 50, "each peer's part suffices, unless two share a counter");
    assert_eq!((c.open(999_999, one_more), c.host.core.gap_records()), (1, RECORDS));
    // It comes whole all the same.
    for n in 0..2 * one_more {
        c.peer.data(n * PIECE, 0, &piece(n));
        if n % TOGETHER == 0 {
            c.poll();
        }
    }
    c.poll();
    let (_, sock, _) = c.flows.last_mut().unwrap();
    let want: Vec<u8> = (0..2 * one_more).flat_map(piece).collect();
    assert_eq!(c.host.recv(sock, usize::MAX), want);
}

/// Ends the flow in a way, and checks that its record has come back.
fn ends(how: impl FnOnce(&mut Scene)) {
    let mut s = scene();
    leave_gaps(&mut s, MANY);
    assert_eq!(s.host.core.gap_records(), 1);
    how(&mut s);
    s.poll();
    assert_eq!(s.host.core.gap_records(), 0);
}

#[test]
fn a_flow_that_ends_gives_its_gap_record_back() {
    let drop_it = |s: &mut Scene| {
        assert!(s.host.keeper.remove(s.id));
        s.host.commands.push(Command::Drop { flow: s.id }).unwrap();
    };
    ends(drop_it);
    // A RST of the peer: the slow path, which is the test, removes the flow.
    ends(|s| {
        s.peer.send(0, 0, TcpFlags::RST, &[]);
        s.poll();
        assert!(s.host.log.iter().any(|e| matches!(e, Exception::PeerReset { .. })));
        drop_it(s);
    });
    // A program that was killed: its slot is released by the service.
    ends(|s| {
        let (_, own) = s.host.region.halves(s.sock.slot).unwrap();
        queue::stream::raise(own, half_flags::RELEASED);
        drop_it(s);
    });
    // Its region is gone before it.
    ends(|s| {
        s.host.commands.push(Command::RemoveRegion { index: 0 }).unwrap();
        s.poll();
        drop_it(s);
    });
    // The peer's FIN comes in order, and it has sent data beyond it.
    ends(|s| s.peer.send(0, 0, TcpFlags::FIN.with(TcpFlags::ACK), &[]));
}

/// Two cores: the flow moves in the middle of a recovery, with its intervals, and its record serves the other core's flows afterwards.
#[test]
fn a_flow_that_moves_takes_its_gaps_along() {
    let mut s = scene();
    let flows = s.host.keeper.flows().clone();
    let capabilities = Capabilities::plain(1500, MAC_A);
    let mut others = Others::join(2, flows.config()).into_iter();
    let mut cores: Vec<(Core, flow::CommandSender, flow::ExceptionReceiver)> = (0..2)
        .map(|i| {
            let (exception_tx, exceptions) = flow::exceptions(64);
            let (mut commands, command_rx) = flow::commands(64);
            commands.push(Command::add_region(0, s.host.region.clone())).unwrap();
            let ends = others.next().unwrap();
            let core = Core::new(i, Arc::clone(&flows), exception_tx, command_rx, capabilities, ends);
            (core, commands, exceptions)
        })
        .collect();
    let round = |s: &mut Scene, cores: &mut Vec<(Core, _, _)>, i: usize| {
        s.now = s.now.plus(Duration::from_us(50));
        cores[i].0.poll(s.now, &mut s.port);
        s.peer.take()
    };
    for n in 0..MANY {
        s.peer.data((1 + 2 * n) * PIECE, 0, &piece(1 + 2 * n));
        if n % TOGETHER == 0 {
            round(&mut s, &mut cores, 0);
        }
    }
    round(&mut s, &mut cores, 0);
    assert_eq!((cores[0].0.gap_records(), cores[1].0.gap_records()), (1, 0));
    cores[0].1.push(Command::Move { flow: s.id, to: 1 }).unwrap();
    round(&mut s, &mut cores, 0);
    // The first round makes the region known to the core, the second takes the flow in.
    (0..2).for_each(|_| drop(round(&mut s, &mut cores, 1)));
    assert_eq!((cores[0].0.gap_records(), cores[1].0.gap_records()), (0, 1));
    assert_eq!(cores[1].0.intervals(&s.host.keeper.lock(s.id).parts()).len(), MANY as usize);
    for n in 0..=MANY {
        s.peer.data(2 * n * PIECE, 0, &piece(2 * n));
        if n % TOGETHER == 0 {
            round(&mut s, &mut cores, 1);
        }
    }
    round(&mut s, &mut cores, 1);
    let want: Vec<u8> = (0..=2 * MANY).flat_map(piece).collect();
    assert!(s.recv() == want);
    assert_eq!((cores[0].0.gap_records(), cores[1].0.gap_records()), (0, 0));
}
