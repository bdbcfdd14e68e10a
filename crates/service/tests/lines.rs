//! Connections that are made without asking: what the service grants, what it knows of them, and what it takes back.

use crate::common::{App, Conn, Daemon, listener};
use control::{AcceptRecord, Grant, Push, RECORD_LEN, Reply, Report, Request, Unlisten};
use queue::stream::raise;
use rustix::fd::AsFd;
use service::{Options, Sharing};
use shm::Half;
use shm::half_flags::{FIN, LENT, OPEN, READ_CLOSED, RELEASED};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

fn daemon() -> Daemon {
    Daemon::start(Options::default())
}

fn halves(app: &App, region: u32, slot: u32) -> &[Half; 2] {
    &app.region_of(region).slot(slot).unwrap().half
}

fn flags(app: &App, region: u32, slot: u32, side: usize) -> u32 {
    halves(app, region, slot)[side].flags.load(Ordering::Acquire)
}

fn end(region: u32, slot: u32, side: usize) -> Conn {
    Conn { region, slot, side, sender: Default::default(), tail: 0 }
}

/// A client that has connected twice, and the line that was granted then: both its ends.
struct Met {
    daemon: Daemon,
    server: App,
    client: App,
    address: SocketAddr,
    queue: u32,
    tail: u64,
    lines: [Conn; 2],
    grants: Vec<Grant>,
    _socket: std::net::TcpListener,
}

fn meet(daemon: Daemon, backlog: u32) -> Met {
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, backlog);
    let mut tail = 0;
    client.connect(address);
    assert_eq!(client.lent, None, "who comes once needs none");
    let (first, record) = server.accept_wait(queue, &mut tail);
    assert_eq!(record.line, 0);
    client.connect(address);
    let lent = client.lent.clone().unwrap();
    let (_, record) = server.accept_wait(queue, &mut tail);
    assert_eq!(record.line, 1 + lent.line);
    assert_eq!(u64::from(lent.most), u64::from(backlog).div_ceil(2));
    let lines = [0, 1].map(|side| end(first.region, lent.line, side));
    assert_eq!(lent.grants, [], "no port is taken before the acceptor has the line");
    raise(&halves(&server, first.region, lent.line)[1], OPEN);
    client.connect(address);
    let lent = client.lent.clone().unwrap();
    assert_eq!(server.accept_wait(queue, &mut tail).1.line, 0);
    Met { daemon, server, client, address, queue, tail, lines, grants: lent.grants, _socket: socket }
}

impl Met {
    /// Connects by the line, with that socket block.
    fn connect(&mut self, sock: u32) -> [Conn; 2] {
        let (region, Grant { slot, port }) = (self.lines[0].region, self.grants.pop().unwrap());
        let both = halves(&self.client, region, slot);
        let seen = both.each_ref().map(|half| half.flags.load(Ordering::Acquire));
        assert_eq!(seen, [RELEASED, RELEASED | LENT]);
        both.iter().for_each(Half::clear);
        both[0].flags.store(OPEN, Ordering::Release);
        both[1].flags.store(OPEN | LENT, Ordering::Release);
        let block = self.client.region.sock(sock).unwrap();
        let (local, peer) = (SocketAddr::new(self.address.ip(), port), self.address);
        block.slot.store(slot, Ordering::Relaxed);
        block.region.store(region, Ordering::Relaxed);
        block.holders.store(1, Ordering::Release);
        let record = AcceptRecord { region, slot, side: 1, local: peer, peer: local, time: 0, line: 0 };
        self.client.send(&mut self.lines[0], &record.to_bytes());
        [end(region, slot, 0), end(region, slot, 1)]
    }

    fn take(&mut self) -> AcceptRecord {
        let bytes = self.server.receive_exact(&mut self.lines[1], RECORD_LEN);
        AcceptRecord::from_bytes(&bytes.try_into().unwrap()).unwrap()
    }

    fn line_flags(&self, side: usize) -> u32 {
        flags(&self.client, self.lines[0].region, self.lines[0].slot, side)
    }
}

#[test]
fn connections_made_by_a_line_are_counted_and_listed() {
    let mut met = meet(daemon(), 100);
    let before = met.daemon.report(Report::Statistics)["accelerated"].as_u64().unwrap();
    let port = format!("127.0.0.1:{}", met.grants.last().unwrap().port);
    let mut ends: Vec<[Conn; 2]> = (0..3).map(|n| met.connect(100 + n)).collect();
    let waiting = |daemon: &Daemon| {
        let sockets = daemon.report(Report::Sockets);
        let all = sockets.as_array().unwrap();
        all.iter().find(|s| s["kind"] == "listener").unwrap()["recv_queue"].as_u64()
    };
    assert_eq!(waiting(&met.daemon), Some(3));
    let slots: Vec<u32> = (0..3).map(|_| met.take().slot).collect();
    assert_eq!(slots, ends.iter().map(|[c, _]| c.slot).collect::<Vec<_>>());
    assert_eq!(waiting(&met.daemon), Some(0));
    let [there, here] = &mut ends[0];
    met.client.send(there, b"request");
    assert_eq!(met.server.receive_exact(here, 7), b"request");
    let address = met.address.to_string();
    met.daemon.until("both ends are listed", |sockets| {
        let is = |s: &serde_json::Value, a: &str, b: &str| s["local"] == a && s["remote"] == b;
        sockets.iter().any(|s| is(s, &port, &address) && s["bytes_out"] == 7)
            && sockets.iter().any(|s| is(s, &address, &port) && s["bytes_in"] == 7)
    });
    let counted = met.daemon.report(Report::Statistics)["accelerated"].as_u64().unwrap();
    assert_eq!(counted - before, 6, "three made and three accepted");
    for [there, here] in &ends {
        met.client.close(there);
        met.server.close(here);
    }
    // Lent slots are no sockets as long as nobody uses them.
    met.daemon.until("listener and the first three are left", |sockets| sockets.len() == 7);
}

#[test]
fn who_connects_often_asks_seldom() {
    let options = Options { region_slots: Some(8_192), ..Options::default() };
    let mut met = meet(Daemon::start(options), 100);
    let mut steps = vec![met.grants.len()];
    for _ in 0..8 {
        met.client.connect(met.address);
        steps.push(met.client.lent.as_ref().unwrap().grants.len());
    }
    assert_eq!(
        steps,
        [8, 8, 16, 32, 64, 128, 240, 240, 240],
        "as many as there are, and as one message takes"
    );
}

#[test]
fn a_line_is_taken_back_when_somebody_else_listens_there() {
    let mut met = meet(daemon(), 100);
    assert_eq!(met.line_flags(1) & (FIN | READ_CLOSED), 0);
    let mut other = App::new(&met.daemon);
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    let elsewhere = SocketAddr::new("127.0.0.2".parse().unwrap(), met.address.port());
    rustix::net::bind(&socket, &elsewhere).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    other.listen(&socket.into(), 8);
    assert_eq!(met.line_flags(1) & (FIN | READ_CLOSED), FIN, "asked again, what is in the line is accepted");
    met.client.connect(met.address);
    assert_eq!(
        met.client.lent.as_ref().map(|l| l.line == met.lines[0].slot),
        Some(false),
        "there is a new one"
    );
}

#[test]
fn a_line_ends_with_its_listener_and_another_backlog_is_another_bound() {
    let mut met = meet(daemon(), 100);
    met.server.unlisten(met.queue, Unlisten::GivenUp);
    assert_eq!(met.line_flags(1) & (FIN | READ_CLOSED), FIN | READ_CLOSED);
    assert!(met.client.try_connect(met.address).is_err());

    let mut met = meet(daemon(), 100);
    met.server.listen(&met._socket, 16);
    assert_eq!(met.line_flags(1) & (FIN | READ_CLOSED), FIN);
    met.client.connect(met.address);
    assert_eq!(met.client.lent.as_ref().map(|lent| lent.most), Some(8));
}

#[test]
fn what_waits_in_a_line_counts_for_the_backlog() {
    let mut met = meet(daemon(), 8);
    for n in 0..3 {
        met.connect(100 + n);
    }
    let asked: Vec<Conn> = (0..8).map(|_| met.client.connect(met.address)).collect();
    let open = |app: &App| asked.iter().filter(|c| app.peer_flags(c) & OPEN != 0).count();
    assert_eq!(open(&met.client), 6);
    met.take();
    met.server.ring_service(met.queue);
    met.client.until("one more is let in", |c| open(c) == 7);
}

#[test]
fn the_death_of_either_side_ends_its_connections_and_the_region() {
    let mut met = meet(daemon(), 100);
    let ends: Vec<[Conn; 2]> = (0..3).map(|n| met.connect(100 + n)).collect();
    for _ in 0..2 {
        met.take();
    }
    drop(std::mem::replace(&mut met.client, App::new(&met.daemon)));
    let (region, queue) = (met.lines[0].region, met.queue);
    let mut server = met.server;
    server.until("all of them end", |s| ends.iter().all(|[_, here]| s.peer_flags(here) & FIN != 0));
    let third = server.receive_exact(&mut met.lines[1], RECORD_LEN);
    assert_eq!(third.len(), RECORD_LEN);
    ends.iter().for_each(|[_, here]| server.close(here));
    // The first two.
    for slot in 0..8 {
        let half = &halves(&server, region, slot)[1];
        if half.flags.load(Ordering::Acquire) & RELEASED == 0 && slot != met.lines[1].slot {
            raise(half, FIN | READ_CLOSED | RELEASED);
        }
    }
    server.until("the region is taken back", |s| {
        s.listen_to_pushes() && s.pushes.contains(&Push::Revoked { region })
    });
    assert!(met.tail > 0 && queue > 0);

    let mut met = meet(daemon(), 100);
    let [there, _] = met.connect(100);
    drop(met.server);
    met.client.until("it is reset", |c| c.peer_flags(&there) & (FIN | RELEASED) == FIN | RELEASED);
    assert_ne!(flags(&met.client, met.lines[0].region, met.lines[0].slot, 1) & READ_CLOSED, 0);
}

#[test]
fn the_slot_of_a_connection_that_may_move_is_lent_no_more() {
    let mut met = meet(daemon(), 100);
    let [there, _] = met.connect(100);
    let fd =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    let left = control::Left {
        region: there.region,
        slot: there.slot,
        side: 0,
        home: met.client.info.id,
        sock: 100,
    };
    assert_eq!(met.client.ask_showing(Request::Leave(left), &[fd.as_fd()]).0, Reply::Done);
    assert_eq!(flags(&met.client, there.region, there.slot, 1) & LENT, 0);
    // It may wait to be accepted yet.
    let request = Request::Grants { region: there.region, line: met.lines[1].slot, slot: there.slot };
    let Reply::Grants { grants, .. } = met.server.ask(request).0 else { panic!("the line is gone") };
    assert_eq!(grants.first().map(|grant| grant.slot), Some(there.slot));
}

#[test]
fn strangers_and_processes_with_children_get_no_line() {
    for options in [
        Options { sharing: Some(Sharing::Never), ..Options::default() },
        Options { max_sockets: Some(6), ..Options::default() },
    ] {
        let daemon = Daemon::start(options);
        let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
        let (socket, address) = listener();
        server.listen(&socket, 100);
        for _ in 0..3 {
            client.connect(address);
            assert_eq!(client.lent, None);
        }
    }
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    server.listen(&socket, 100);
    server.region.header().holders_taken.fetch_or(0b11, Ordering::SeqCst);
    for _ in 0..3 {
        client.connect(address);
        assert_eq!(client.lent, None);
    }
}

#[test]
fn a_listener_has_few_lines() {
    let daemon = daemon();
    let mut server = App::new(&daemon);
    let (socket, address) = listener();
    server.listen(&socket, 100);
    let mut granted = 0;
    let clients: Vec<App> = (0..12)
        .map(|_| {
            let mut client = App::new(&daemon);
            for _ in 0..2 {
                client.connect(address);
            }
            granted += usize::from(client.lent.is_some());
            client
        })
        .collect();
    assert_eq!((clients.len(), granted), (12, 8));
}
