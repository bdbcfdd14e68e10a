//! Connections that are made without asking: what the service grants, what it knows of them, and what it takes back.

use crate::common::{App, Conn, Daemon, can_be_other_users, listener};
use control::{Grant, Push, Reply, Report, Request, Unlisten};
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketType, sockopt};
use service::{Options, Sharing};
use shm::half_flags::{FIN, LENT, OPEN, READ_CLOSED, RELEASED, RESET};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;

fn daemon() -> Daemon {
    Daemon::start(Options::default())
}

fn flags(app: &App, region: u32, slot: u32, side: usize) -> u32 {
    app.region_of(region).slot(slot).unwrap().half[side].flags.load(Ordering::Acquire)
}

/// A client that has connected twice, and what it was granted then.
struct Met {
    daemon: Daemon,
    server: App,
    client: App,
    address: SocketAddr,
    queue: u32,
    region: u32,
    epoch: u32,
    grants: Vec<Grant>,
    _socket: TcpListener,
}

fn meet_at(daemon: Daemon, socket: TcpListener, backlog: u32) -> Met {
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let address = socket.local_addr().unwrap();
    let queue = server.listen(&socket, backlog);
    let first = client.connect(address);
    assert_eq!(client.lent, None, "a process that connects once needs none");
    client.connect(address);
    let lent = client.lent.clone().unwrap();
    assert_eq!((lent.queue, lent.is_new, lent.source), (queue, true, address.ip()));
    for _ in 0..2 {
        server.accept_wait(queue);
    }
    let (region, epoch, grants) = (first.region, lent.epoch, lent.grants);
    Met { daemon, server, client, address, queue, region, epoch, grants, _socket: socket }
}

fn meet(daemon: Daemon, backlog: u32) -> Met {
    meet_at(daemon, listener().0, backlog)
}

impl Met {
    /// Connects by a grant, with that socket block.
    fn connect(&mut self, sock: u32) -> Conn {
        let grant = self.grants.pop().unwrap();
        self.client.connect_direct(self.queue, self.region, grant, sock)
    }

    /// The server sleeps, and nothing has come meanwhile.
    fn fall_asleep(&mut self) {
        while self.server.sleep(std::time::Duration::from_millis(1)) {}
        assert!(!self.server.is_news(), "it sleeps");
    }

    /// A connection wakes the server, which accepts it.
    fn connect_to_sleeper(&mut self, sock: u32) {
        self.connect(sock);
        assert!(self.server.is_woken_within(crate::common::PATIENCE), "{sock}");
        self.server.stay_awake();
        assert!(self.server.accept(self.queue).is_some());
    }

    fn epoch(&self) -> u32 {
        self.client.memory(self.queue).epoch()
    }

    fn waiting(&self) -> u64 {
        let sockets = self.daemon.report(Report::Sockets);
        let all = sockets.as_array().unwrap();
        all.iter().find(|s| s["kind"] == "listener").unwrap()["recv_queue"].as_u64().unwrap()
    }
}

#[test]
fn connections_made_directly_are_listed_and_accepted_in_their_order() {
    let mut met = meet(daemon(), 100);
    let port = format!("127.0.0.1:{}", met.grants.last().unwrap().port);
    let mut theirs: Vec<Conn> = (0..3).map(|n| met.connect(100 + n)).collect();
    assert_eq!(met.waiting(), 3);
    let mut ours: Vec<Conn> = (0..3).map(|_| met.server.accept_wait(met.queue).0).collect();
    let slots = |all: &[Conn]| all.iter().map(|conn| (conn.region, conn.slot)).collect::<Vec<_>>();
    assert_eq!(slots(&ours), slots(&theirs));
    assert_eq!(met.waiting(), 0);
    met.client.send(&mut theirs[0], b"request");
    assert_eq!(met.server.receive_exact(&mut ours[0], 7), b"request");
    let address = met.address.to_string();
    met.daemon.until("both ends are listed", |sockets| {
        let is = |s: &serde_json::Value, a: &str, b: &str| s["local"] == a && s["remote"] == b;
        sockets.iter().any(|s| is(s, &port, &address) && s["bytes_out"] == 7)
            && sockets.iter().any(|s| is(s, &address, &port) && s["bytes_in"] == 7)
    });
    for (there, here) in theirs.iter().zip(&ours) {
        met.client.close(there);
        met.server.close(here);
    }
    // Lent slots are no sockets as long as they have no connection.
    met.daemon.until("listener and the first two are left", |sockets| sockets.len() == 5);
}

#[test]
fn connections_made_directly_are_counted() {
    let mut met = meet(daemon(), 100);
    let before = met.daemon.report(Report::Statistics)["accelerated"].as_u64().unwrap();
    met.client.region.header().direct[0].store(3, Ordering::Relaxed);
    met.server.region.header().direct[1].store(2, Ordering::Relaxed);
    let counted = met.daemon.report(Report::Statistics)["accelerated"].as_u64().unwrap();
    assert_eq!(counted - before, 5, "three made and two accepted");
    met.connect(100);
}

#[test]
fn a_direct_connection_wakes_the_process_that_sleeps_at_the_queue() {
    let mut met = meet(daemon(), 100);
    // The first time the service wakes the sleeper, and from then on the connector does.
    for n in 0..3 {
        met.fall_asleep();
        met.connect_to_sleeper(100 + n);
    }
}

/// It lacked descriptors when one came, has closed all, and asks for all again.
#[test]
fn a_sleeper_that_asks_again_for_what_wakes_it_gets_what_connectors_write() {
    let mut met = meet(daemon(), 100);
    for n in 0..4 {
        met.fall_asleep();
        if n == 2 {
            let [before, after] = met.server.ask_again_for_wakers();
            assert!(before > 0 && before == after, "{before} {after}");
            met.fall_asleep();
        }
        met.connect_to_sleeper(100 + n);
    }
}

#[test]
fn a_slot_is_used_again_with_the_same_grant() {
    let mut met = meet(daemon(), 100);
    let grant = *met.grants.last().unwrap();
    for round in 0..50u8 {
        let mut there = met.client.connect_direct(met.queue, met.region, grant, 100);
        let (mut here, record) = met.server.accept_wait(met.queue);
        assert_eq!((record.slot, record.peer.port()), (grant.slot, grant.port));
        met.client.send(&mut there, &[round; 10]);
        assert_eq!(met.server.receive_exact(&mut here, 10), [round; 10]);
        met.client.close(&there);
        met.server.until("the end comes", |s| s.receive(&mut here, 1).is_none());
        met.server.close(&here);
    }
}

#[test]
fn a_process_that_connects_often_asks_seldom() {
    let options = Options { region_slots: Some(8_192), ..Options::default() };
    let mut met = meet(Daemon::start(options), 100);
    let mut steps = vec![met.grants.len()];
    for _ in 0..8 {
        met.client.connect(met.address);
        let lent = met.client.lent.as_ref().unwrap();
        assert!(!lent.is_new, "it has the queue's memory");
        steps.push(lent.grants.len());
    }
    assert_eq!(
        steps,
        [8, 8, 16, 32, 64, 128, 160, 160, 160],
        "as many as there are, and as one message takes"
    );
}

#[test]
fn grants_are_taken_back_when_another_process_listens_at_the_port() {
    let mut met = meet(daemon(), 100);
    assert_eq!(met.epoch(), met.epoch);
    let mut other = App::new(&met.daemon);
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let elsewhere = SocketAddr::new("127.0.0.2".parse().unwrap(), met.address.port());
    rustix::net::bind(&socket, &elsewhere).unwrap();
    rustix::net::listen(&socket, 8).unwrap();
    other.listen(&socket.into(), 8);
    assert_ne!(met.epoch(), met.epoch, "the client must ask again");
    met.client.connect(met.address);
    let lent = met.client.lent.clone().unwrap();
    assert_eq!(lent.epoch, met.epoch(), "the answer is the same, for the new epoch");
    met.epoch = lent.epoch;
    met.connect(100);
    for _ in 0..2 {
        assert!(met.server.accept(met.queue).is_some());
    }
}

fn reusing(at: &str) -> TcpListener {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    rustix::net::bind(&socket, &at.parse::<SocketAddr>().unwrap()).unwrap();
    rustix::net::listen(&socket, 128).unwrap();
    socket.into()
}

#[test]
fn a_second_socket_at_the_address_ends_direct_connections_to_the_first() {
    let mut met = meet_at(daemon(), reusing("127.0.0.1:0"), 100);
    let second = reusing(&met.address.to_string());
    let mut other = App::new(&met.daemon);
    let queue = other.listen(&second, 100);
    assert_ne!(met.epoch(), met.epoch);
    for _ in 0..10 {
        met.client.connect(met.address);
        assert_eq!(met.client.lent, None, "the service chooses between the two");
    }
    let taken = [(&mut met.server, met.queue), (&mut other, queue)]
        .map(|(app, queue)| std::iter::from_fn(|| app.accept(queue)).count());
    assert!(taken.iter().sum::<usize>() == 10 && taken.iter().all(|n| *n > 0), "{taken:?}");
}

#[test]
fn a_process_of_another_family_that_joins_ends_direct_connections() {
    let mut met = meet(daemon(), 100);
    let there = met.connect(100);
    let mut foreign = App::new(&met.daemon);
    assert_eq!(foreign.show(&met._socket, 100).unwrap(), (met.queue, true));
    assert_ne!(met.epoch(), met.epoch);
    met.client.connect(met.address);
    assert_eq!(met.client.lent, None, "the foreign process cannot map the client's region");
    // What was made directly before is accepted by either of them.
    assert_eq!(foreign.accept_wait(met.queue).1.local, met.address);
    assert_eq!(met.server.accept_wait(met.queue).1.local, met.address);
    assert_eq!(met.client.peer_flags(&there) & RESET, 0);
}

/// Another process, without the library, still has the socket: the connector must learn at once that the kernel's connections are meant.
#[test]
fn the_death_of_the_last_process_that_accepts_takes_grants_back() {
    let Met { daemon: _daemon, server, mut client, queue, epoch, _socket, .. } = meet(daemon(), 100);
    // Each process takes its own holder bit before it could take one for a child.
    server.region.header().holders_taken.fetch_or(1 << server.welcome.holder, Ordering::SeqCst);
    drop(server);
    client.until("it must ask again", |c| c.memory(queue).epoch() != epoch);
}

#[test]
fn the_end_of_a_listener_resets_what_waits_direct_connections_too() {
    let mut met = meet(daemon(), 100);
    let asked = met.client.connect(met.address);
    let mut direct: Vec<Conn> = (0..3).map(|n| met.connect(100 + n)).collect();
    let (mut kept, _) = met.server.accept_wait(met.queue);
    let (mut taken, _) = met.server.accept_wait(met.queue);
    assert_eq!((kept.slot, taken.slot), (asked.slot, direct[0].slot));
    let mut there = direct.remove(0);
    assert_eq!(met.server.unlisten(met.queue, Unlisten::GivenUp), Reply::Done);
    assert_eq!(met.epoch(), 0);
    let reset = |c: &App, conn: &Conn| c.peer_flags(conn) & (RESET | RELEASED) == RESET | RELEASED;
    assert!(direct.iter().all(|conn| reset(&met.client, conn)));
    for (here, there) in [(&mut kept, &mut Conn::new(asked.region, asked.slot, 0)), (&mut taken, &mut there)]
    {
        met.client.send(there, b"still");
        assert_eq!(met.server.receive_exact(here, 5), b"still");
    }
    assert!(met.client.try_connect(met.address).is_err());
    // A connector that came too late finds its grant, and resets its connection itself.
    let grant = met.grants.pop().unwrap();
    met.client.open_direct(met.region, grant, 110);
    let queue = met.client.queue(met.queue);
    assert!(queue.push(grant.grant) && queue.withdraw(grant.grant));
    assert!(
        met.client.listen_to_pushes() && met.client.pushes.contains(&Push::Revoked { region: met.queue })
    );
}

#[test]
fn a_connector_that_is_killed_before_it_sets_the_bit_has_connected() {
    let mut met = meet(daemon(), 100);
    let grant = met.grants.pop().unwrap();
    let mut there = met.client.open_direct(met.region, grant, 100);
    met.client.publish(&mut there, b"last words");
    while met.server.sleep(std::time::Duration::from_millis(1)) {}
    assert!(!met.server.is_news(), "the server sleeps");
    let words = met.client.memory(met.queue).words();
    let ticket = words.next.fetch_add(1, Ordering::SeqCst);
    words.states[grant.grant as usize].store(shm::grant_state::QUEUED | ticket, Ordering::SeqCst);
    drop(met.client);
    assert!(met.server.is_woken_within(crate::common::PATIENCE));
    met.server.stay_awake();
    let (mut here, record) = met.server.accept_wait(met.queue);
    assert_eq!((record.slot, record.peer.port()), (grant.slot, grant.port));
    assert_eq!(met.server.receive_exact(&mut here, 10), b"last words");
    assert_ne!(met.server.peer_flags(&here) & FIN, 0);
}

/// A slot had a connection that the service set up; both ends have closed it, and then the slot is lent.
#[test]
fn a_lent_slot_stays_lent_when_the_service_notices_an_accept_late() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 4);
    for _ in 0..3 {
        let there = client.connect(address);
        // To a small backlog nothing is lent.
        assert_eq!(client.lent, None);
        let (here, _) = server.accept_wait(queue);
        client.close(&there);
        server.close(&here);
    }
    // The slots are swept; the service has yet to hear of the last accepts.
    daemon.until("only the listener is left", |sockets| sockets.len() == 1);
    let (other, place) = listener();
    let next = server.listen(&other, 100);
    client.connect(place);
    let region = server.accept_wait(next).0.region;
    let lent = client.lent.clone().unwrap();
    client.connect(address);
    server.accept_wait(queue);
    // The service sweeps when a report is made, too; a connection that it sets up then must not get a lent slot.
    daemon.report(Report::Sockets);
    let used: Vec<u32> = (0..20).map(|_| client.connect(address).slot).collect();
    assert!(lent.grants.iter().all(|grant| !used.contains(&grant.slot)), "{lent:?} {used:?}");
    for (n, grant) in lent.grants.iter().enumerate() {
        client.connect_direct(next, region, *grant, 100 + n as u32);
        assert_eq!(server.accept_wait(next).1.slot, grant.slot);
    }
}

#[test]
fn another_backlog_is_another_bound() {
    let mut met = meet(daemon(), 100);
    met.server.listen(&met._socket, 16);
    assert_ne!(met.epoch(), met.epoch);
    assert_eq!(met.client.memory(met.queue).backlog(), 16);
    met.server.listen(&met._socket, 4);
    met.client.connect(met.address);
    assert_eq!(met.client.lent, None, "too few for direct connections");
}

#[test]
fn direct_connections_that_wait_count_for_the_backlog() {
    let mut met = meet(daemon(), 8);
    for n in 0..3 {
        met.connect(100 + n);
    }
    let asked: Vec<Conn> = (0..8).map(|_| met.client.connect(met.address)).collect();
    let open = |app: &App| asked.iter().filter(|c| app.peer_flags(c) & OPEN != 0).count();
    assert_eq!(open(&met.client), 6);
    met.server.accept_wait(met.queue);
    met.client.until("one more is let in", |c| open(c) == 7);
}

#[test]
fn the_death_of_the_connector_ends_its_connections_and_the_region() {
    let mut met = meet(daemon(), 100);
    let theirs: Vec<Conn> = (0..3).map(|n| met.connect(100 + n)).collect();
    let mut ours: Vec<Conn> = (0..2).map(|_| met.server.accept_wait(met.queue).0).collect();
    let (region, queue) = (met.region, met.queue);
    drop(met.client);
    let mut server = met.server;
    server.until("both of them end", |s| ours.iter().all(|here| s.peer_flags(here) & FIN != 0));
    let (third, _) = server.accept_wait(queue);
    assert_eq!(third.slot, theirs[2].slot, "it can be accepted after its connector's death");
    ours.push(third);
    ours.iter().for_each(|here| server.close(here));
    // The first two.
    for slot in 0..16 {
        let half = &server.region_of(region).slot(slot).unwrap().half[1];
        if half.flags.load(Ordering::Acquire) & (RELEASED | LENT) == 0 {
            queue::stream::raise(half, FIN | READ_CLOSED | RELEASED);
        }
    }
    server.until("the region is taken back", |s| {
        s.listen_to_pushes() && s.pushes.contains(&Push::Revoked { region })
    });
}

#[test]
fn the_death_of_the_acceptor_ends_direct_connections() {
    let mut met = meet(daemon(), 100);
    let waits = met.connect(100);
    drop((met.server, met._socket));
    met.client.until("it is reset", |c| c.peer_flags(&waits) & RELEASED != 0);
    assert_eq!(met.client.memory(met.queue).epoch(), 0);
}

#[test]
fn the_slot_of_a_connection_that_may_move_is_lent_no_more() {
    let mut met = meet(daemon(), 100);
    let there = met.connect(100);
    let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let left = control::Left {
        region: there.region,
        slot: there.slot,
        side: 0,
        home: met.client.info.id,
        sock: 100,
    };
    assert_eq!(met.client.ask_showing(Request::Leave(left), &[fd.as_fd()]).0, Reply::Done);
    assert_eq!(flags(&met.client, there.region, there.slot, 1) & LENT, 0);
    // It waits to be accepted yet.
    let (here, record) = met.server.accept_wait(met.queue);
    assert_eq!((here.slot, record.local), (there.slot, met.address));
}

#[test]
fn strangers_and_processes_with_children_connect_by_asking() {
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
            assert!(client.lent.as_ref().is_none_or(|lent| lent.grants.is_empty()));
        }
    }
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    server.listen(&socket, 100);
    client.region.header().holders_taken.fetch_or(0b11, Ordering::SeqCst);
    for _ in 0..3 {
        client.connect(address);
        assert_eq!(client.lent, None, "a child would use the same grants");
    }
    if can_be_other_users() {
        let mut other = App::of_user(&daemon, 61_021);
        for _ in 0..3 {
            other.connect(address);
            assert_eq!(other.lent, None, "another user's");
        }
    }
}
