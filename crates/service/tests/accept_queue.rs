//! One accept queue for all processes that hold a listening socket: each connection is accepted once, whichever of them leaves or dies.

use crate::common::{App, Conn, Daemon, listener};
use control::{AcceptRecord, Push, Reply, Request, SocketOptions, Unlisten};
use service::{Options, Sharing};
use shm::half_flags::{ACCEPTED, OPEN, RESET};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A process that listens, and that is about to fork.
fn server(daemon: &Daemon, backlog: u32) -> (App, u32, TcpListener, SocketAddr) {
    let mut parent = App::new(daemon);
    parent.region.header().holders_taken.fetch_or(0b11, Ordering::SeqCst);
    let (socket, address) = listener();
    let queue = parent.listen(&socket, backlog);
    (parent, queue, socket, address)
}

/// Gives an accepted connection a socket block of the process, as the library does.
fn hold(app: &App, conn: &Conn, record: &AcceptRecord) {
    let block = app.region.sock(9).unwrap();
    block.region.store(conn.region, Ordering::Relaxed);
    block.slot.store(conn.slot, Ordering::Relaxed);
    let [local, peer] = [record.local, record.peer].map(|address| u32::from(address.port()));
    block.ports.store(local << 16 | peer, Ordering::Relaxed);
    block.holders.store(1 << app.welcome.holder, Ordering::SeqCst);
}

fn converse(server: &mut App, here: &mut Conn, client: &mut App, there: &mut Conn, word: &[u8]) {
    client.send(there, word);
    assert_eq!(server.receive_exact(here, word.len()), word);
    server.send(here, word);
    assert_eq!(client.receive_exact(there, word.len()), word);
}

#[test]
fn a_forked_child_accepts_from_its_parents_queue_each_connection_once() {
    let daemon = Daemon::start(Options::default());
    let (mut parent, queue, _socket, address) = server(&daemon, 64);
    let mut child = parent.child(&daemon, queue, 1);
    let mut client = App::new(&daemon);
    let mut theirs: Vec<Conn> = (0..40).map(|_| client.connect(address)).collect();
    let mut ours = Vec::new();
    for n in 0..theirs.len() {
        let by_child = n % 3 == 0;
        let app = if by_child { &mut child } else { &mut parent };
        ours.push((by_child, app.accept(queue).expect("it waits").0));
    }
    assert!(parent.accept(queue).is_none() && child.accept(queue).is_none());
    for (n, ((by_child, here), there)) in ours.iter_mut().zip(&mut theirs).enumerate() {
        assert_eq!(here.slot, there.slot, "the oldest comes first");
        let app = if *by_child { &mut child } else { &mut parent };
        converse(app, here, &mut client, there, &[n as u8; 50]);
    }
}

/// Two processes that accept at the same time, and one that connects meanwhile, by asking and directly.
#[test]
fn two_processes_that_accept_at_the_same_time_share_the_connections() {
    const ALL: usize = 300;
    let daemon = Daemon::start(Options::default());
    let (parent, queue, _socket, address) = server(&daemon, 64);
    let child = parent.child(&daemon, queue, 1);
    let accepted = std::sync::atomic::AtomicUsize::new(0);
    let accept = |mut app: App| {
        let mut slots = Vec::new();
        let end = std::time::Instant::now() + crate::common::PATIENCE;
        while accepted.load(Ordering::SeqCst) < ALL {
            assert!(std::time::Instant::now() < end, "a connection is lost");
            match app.accept(queue) {
                Some((conn, record)) => {
                    accepted.fetch_add(1, Ordering::SeqCst);
                    slots.push((conn.slot, record.peer.port()));
                }
                None => {
                    app.sleep(Duration::from_millis(20));
                }
            }
        }
        (app, slots)
    };
    let mut all = std::thread::scope(|scope| {
        let workers = [parent, child].map(|app| scope.spawn(|| accept(app)));
        let mut client = App::new(&daemon);
        let mut direct = 0;
        for n in 0..ALL {
            let lent = client.lent.as_mut().and_then(|lent| Some((lent.epoch, lent.grants.pop()?)));
            let region = client.pairs.keys().next().copied();
            match (lent, region) {
                (Some((epoch, grant)), Some(region)) if client.memory(queue).epoch() == epoch => {
                    client.connect_direct(queue, region, grant, 100 + n as u32);
                    direct += 1;
                }
                _ => drop(client.connect(address)),
            }
        }
        assert!(direct > ALL / 4, "{direct}");
        let done = workers.map(|worker| worker.join().unwrap());
        done.map(|(app, slots)| (app, slots)).into_iter().flat_map(|(_, slots)| slots).collect::<Vec<_>>()
    });
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), ALL, "no connection is accepted twice");
}

#[test]
fn a_process_that_sleeps_is_woken_and_of_exclusive_sleepers_one() {
    let daemon = Daemon::start(Options::default());
    let (mut parent, queue, _socket, address) = server(&daemon, 8);
    let mut child = parent.child(&daemon, queue, 1);
    for app in [&mut parent, &mut child] {
        app.leave_rest(queue);
        app.is_exclusive = true;
        app.rest_at(queue);
        while app.sleep(Duration::from_millis(1)) {}
        assert!(!app.is_news());
    }
    let mut client = App::new(&daemon);
    let mut first = Vec::new();
    for _ in 0..2 {
        client.connect(address);
        let asleep = [&parent, &child].map(|app| app.sleeps_at(queue));
        first.push(asleep);
    }
    first.sort_unstable();
    assert!(first[0] == [false, false], "the second connection wakes the second: {first:?}");
    assert_eq!(first[1].iter().filter(|sleeps| **sleeps).count(), 1, "the first connection wakes one");
    for app in [&mut parent, &mut child] {
        assert!(app.is_woken_within(crate::common::PATIENCE));
        app.stay_awake();
        assert!(app.accept(queue).is_some());
    }
}

/// How far a process has come with an accept when it is killed.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Its state in the queue says so, and the bit is still set.
    Claimed,
    BitCleared,
    /// It has marked the connection as its own.
    Marked,
}

fn die_while_accepting(at: At, sharing: Sharing) {
    let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
    let (mut parent, queue, _socket, address) = server(&daemon, 8);
    let child = parent.child(&daemon, queue, 1);
    let mut client = App::new(&daemon);
    let mut theirs: Vec<Conn> = (0..2).map(|_| client.connect(address)).collect();
    while parent.sleep(Duration::from_millis(1)) {}
    let (grant, next) = match at {
        At::Claimed => {
            let words = parent.memory(queue).words();
            let claimed = shm::grant_state::CLAIMED | child.welcome.application;
            let before = words.states[0].swap(claimed, Ordering::SeqCst);
            assert_ne!(before & shm::grant_state::QUEUED, 0);
            (0, 1)
        }
        At::BitCleared | At::Marked => (child.claim(queue).unwrap(), 1),
    };
    let record = parent.record(queue, grant).unwrap();
    if let At::Marked = at {
        let region = if record.region == parent.info.id {
            &parent.region
        } else {
            // The child maps the region of its parent's connections.
            assert_eq!((record.region, record.slot), (theirs[0].region, theirs[0].slot));
            client.region_of(record.region)
        };
        region.slot(record.slot).unwrap().half[1].flags.fetch_or(ACCEPTED, Ordering::SeqCst);
    }
    drop(child);
    parent.until("what the child had claimed waits again", |p| p.queue(queue).is_queued(grant));
    let (mut here, again) = parent.accept_wait(queue);
    assert_eq!(again, record, "and before the others");
    converse(&mut parent, &mut here, &mut client, &mut theirs[0], b"hello");
    let (mut here, _) = parent.accept_wait(queue);
    converse(&mut parent, &mut here, &mut client, &mut theirs[next], b"world");
    assert!(parent.accept(queue).is_none());
}

#[test]
fn what_a_process_was_accepting_when_it_was_killed_another_process_accepts() {
    for at in [At::Claimed, At::BitCleared, At::Marked] {
        die_while_accepting(at, Sharing::Always);
        die_while_accepting(at, Sharing::Never);
    }
}

#[test]
fn what_a_dead_process_had_accepted_is_closed_and_not_accepted_again() {
    let daemon = Daemon::start(Options::default());
    let (mut parent, queue, _socket, address) = server(&daemon, 8);
    let mut child = parent.child(&daemon, queue, 1);
    let mut client = App::new(&daemon);
    let there = client.connect(address);
    let grant = child.claim(queue).unwrap();
    let (here, record) = child.set_up(queue, grant).unwrap();
    hold(&child, &here, &record);
    // It is killed before the last step.
    drop(child);
    client.until("it is closed", |c| c.peer_flags(&there) & shm::half_flags::RELEASED != 0);
    parent.until("its grant is free", |p| p.queue(queue).is_idle(grant));
    assert!(parent.accept(queue).is_none());
}

/// One process of the family leaves or dies; another one goes on with what waits.
fn goes_on(dies: bool) {
    let daemon = Daemon::start(Options::default());
    // One more than the backlog is let in; the others wait.
    let (mut parent, queue, _socket, address) = server(&daemon, 1);
    let mut old = parent.child(&daemon, queue, 1);
    let mut new = parent.child(&daemon, queue, 2);
    assert_eq!(parent.unlisten(queue, Unlisten::Closed), Reply::Done);
    let mut client = App::new(&daemon);
    let mut served = client.connect(address);
    let (mut here, record) = old.accept_wait(queue);
    hold(&old, &here, &record);
    let mut conns: Vec<Conn> = (0..4).map(|_| client.connect(address)).collect();
    let is_open = |client: &App, conn: &Conn| client.peer_flags(conn) & OPEN != 0;
    client.until("two are let in", |c| conns.iter().filter(|conn| is_open(c, conn)).count() == 2);
    let early: Vec<u8> = (0..40_000u32).map(|i| (i * 7) as u8).collect();
    for conn in &mut conns {
        if is_open(&client, conn) {
            client.send(conn, &early[..1000]);
        }
    }
    let mut old = if dies {
        drop(old);
        None
    } else {
        assert_eq!(old.unlisten(queue, Unlisten::GivenUp), Reply::Done);
        Some(old)
    };
    for conn in &mut conns {
        // They come in the order in which they were asked for.
        let (mut accepted, record) = new.accept_wait(queue);
        assert_eq!((accepted.slot, record.local), (conn.slot, address));
        client.until("it is let in", |c| is_open(c, conn));
        new.send(&mut accepted, b"answer");
        assert_eq!(client.receive_exact(conn, 6), b"answer");
        let sent = if conn.sender.head == 0 { 0 } else { 1000 };
        client.send(conn, &early[sent..]);
        assert!(new.receive_exact(&mut accepted, early.len()) == early, "nothing is lost or comes twice");
        new.close(&accepted);
        client.until("the end arrives", |c| c.receive(conn, 1).is_none());
        client.close(conn);
    }
    if let Some(old) = &mut old {
        // What it had accepted is its own.
        client.send(&mut served, b"still");
        assert_eq!(old.receive_exact(&mut here, 5), b"still");
        old.close(&here);
    }
    client.close(&served);
    drop((old, client));
    daemon.until("only listeners are left", |s| s.iter().all(|s| s["kind"] == "listener"));
    drop((parent, new, _socket));
    daemon.until("nothing is left", <[_]>::is_empty);
}

#[test]
fn what_a_worker_has_not_accepted_is_another_ones() {
    goes_on(false);
}

#[test]
fn what_a_dead_worker_has_not_accepted_is_another_ones() {
    goes_on(true);
}

#[test]
fn what_waits_when_the_last_process_has_gone_is_reset_with_the_socket() {
    let daemon = Daemon::start(Options::default());
    let (parent, queue, socket, address) = server(&daemon, 8);
    let mut first = parent.child(&daemon, queue, 1);
    let mut client = App::new(&daemon);
    let conn = client.connect(address);
    let mut second = parent.child(&daemon, queue, 2);
    first.unlisten(queue, Unlisten::GivenUp);
    second.unlisten(queue, Unlisten::GivenUp);
    assert_eq!(client.peer_flags(&conn) & RESET, 0, "the server itself listens");
    drop((first, second));
    assert_eq!(client.peer_flags(&conn) & RESET, 0);
    drop(parent);
    client.sleep(Duration::from_millis(20));
    assert_eq!(client.peer_flags(&conn) & RESET, 0, "some process has the socket, and may show it");
    drop(socket);
    client.until("no process is left to accept it", |c| c.peer_flags(&conn) & RESET != 0);
    client.close(&conn);
}

#[test]
fn a_child_stops_a_listener_for_all() {
    let daemon = Daemon::start(Options::default());
    let (mut parent, queue, _socket, address) = server(&daemon, 8);
    let mut client = App::new(&daemon);
    let mut child_ = parent.child(&daemon, queue, 1);
    let mut sibling = parent.child(&daemon, queue, 2);
    let conns: Vec<Conn> = (0..4).map(|_| client.connect(address)).collect();
    while parent.sleep(Duration::from_millis(1)) {}
    parent.stay_awake();
    parent.rest_at(queue);
    assert_eq!(sibling.unlisten(queue, Unlisten::Stopped), Reply::Done);
    for conn in &conns {
        client.until("what waits is reset", |c| c.peer_flags(conn) & RESET != 0);
    }
    assert_eq!([&parent, &child_, &sibling].map(|app| app.memory(queue).epoch()), [0; 3]);
    parent.until("the parent hears of it", |p| p.pushes.contains(&Push::Revoked { region: queue }));
    assert!(client.try_connect(address).is_err(), "no socket listens");
    // Another listener in the meantime, with which the old queue is not confused.
    let (other, place) = listener();
    let new = child_.listen(&other, 8);
    assert_ne!(new, queue);
    assert_eq!(child_.unlisten(queue, Unlisten::Closed), Reply::Done);
    let conn = client.connect(place);
    assert_eq!(child_.accept_wait(new).0.slot, conn.slot);
    assert_eq!(parent.unlisten(queue, Unlisten::Closed), Reply::Done, "said twice it does no harm");
}

#[test]
fn a_listener_that_defers_accepts_gets_each_connection_at_once() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
        let (mut parent, queue, _socket, address) = server(&daemon, 8);
        let mut child = parent.child(&daemon, queue, 1);
        let options = SocketOptions { defer_accept: 3600, ..SocketOptions::default() };
        parent.say(Request::SetOptions { region: queue, slot: 0, options });
        parent.ask(Request::Region { region: 1 << 20 });
        let mut client = App::new(&daemon);
        let (mut silent, mut speaking) = (client.connect(address), client.connect(address));
        client.send(&mut speaking, b"at once");
        let (mut first, _) = parent.accept_wait(queue);
        let (mut second, _) = child.accept_wait(queue);
        assert_eq!(child.receive_exact(&mut second, 7), b"at once", "{sharing:?}");
        converse(&mut parent, &mut first, &mut client, &mut silent, b"later");
        converse(&mut child, &mut second, &mut client, &mut speaking, b"again");
    }
}
