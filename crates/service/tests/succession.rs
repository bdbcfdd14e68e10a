//! What waits in the accept queue of one process when that process stops to listen, or dies, and others listen on.

use crate::common::{App, Conn, Daemon, listener};
use control::{Parent, Reply, Request, SocketOptions, Unlisten};
use service::{Options, Sharing};
use shm::half_flags::{OPEN, RESET};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A child of `parent`, which listens at `queue`, and its own queue, which it watches.
fn worker(daemon: &Daemon, parent: &App, queue: u32, holder: u8) -> (App, u32) {
    let place = Parent { application: parent.welcome.application, secret: parent.welcome.secret, holder };
    let mut app = App::with(daemon, Some(place), u32::from(holder));
    let shared = app.ask(Request::ShareListener { region: parent.info.id, slot: queue }).0;
    let Reply::Listening { slot } = shared else { panic!("{shared:?}") };
    queue::stream::watch(&app.region.slot(slot).unwrap().half[1], Some(u32::from(holder)));
    (app, slot)
}

/// A server that leaves it to its workers to accept.
fn server(daemon: &Daemon, backlog: u32) -> (App, u32, TcpListener, SocketAddr) {
    let mut parent = App::new(daemon);
    let (socket, address) = listener();
    let queue = parent.listen(&socket, backlog);
    queue::stream::watch(&parent.region.slot(queue).unwrap().half[1], None);
    let block = parent.region.sock(1).unwrap();
    block.region.store(parent.info.id, Ordering::Relaxed);
    block.slot.store(queue, Ordering::Relaxed);
    block.holders.store(0b111, Ordering::SeqCst);
    (parent, queue, socket, address)
}

fn goes_on(sharing: Sharing, dies: bool) {
    let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
    // One more than the backlog is let in; the others wait.
    let (mut parent, queue, _socket, address) = server(&daemon, 1);
    let (mut old, old_queue) = worker(&daemon, &parent, queue, 1);
    let (mut new, new_queue) = worker(&daemon, &parent, queue, 2);
    let watch = |app: &App, context| {
        queue::stream::watch(&app.region.slot(new_queue).unwrap().half[1], context);
    };
    // What comes while nobody waits goes to the first, who watches: there is no queue that both look at.
    watch(&new, None);
    assert_eq!(parent.unlisten(queue, Unlisten::Closed).0, Reply::Done);
    let mut client = App::new(&daemon);
    let mut served = client.connect(address);
    let (mut here, _) = old.accept_wait(old_queue, &mut 0);
    let mut conns: Vec<Conn> = (0..4).map(|_| client.connect(address)).collect();
    let is_open = |client: &App, conn: &Conn| client.peer_flags(conn) & OPEN != 0;
    client.until("two are let in", |c| conns.iter().filter(|conn| is_open(c, conn)).count() == 2);
    let early: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    for conn in &mut conns {
        if is_open(&client, conn) {
            client.send(conn, &early[..1000]);
        }
    }
    watch(&new, Some(2));
    let mut old = if dies {
        drop(old);
        None
    } else {
        old.unlisten(old_queue, Unlisten::GivenUp);
        Some(old)
    };
    let mut tail = 0;
    for _ in 0..4 {
        let (mut accepted, record) = new.accept_wait(new_queue, &mut tail);
        assert_eq!((record.region, record.local), (new.info.id, address));
        client.until("all are let in", |c| conns.iter().all(|conn| is_open(c, conn)));
        // They come in the order in which they were asked for.
        let conn = conns.iter_mut().find(|conn| conn.tail == 0).unwrap();
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
    drop((parent, new));
    daemon.until("nothing is left", <[_]>::is_empty);
}

#[test]
fn what_a_worker_has_not_accepted_is_another_ones() {
    goes_on(Sharing::Always, false);
}

#[test]
fn what_a_dead_worker_has_not_accepted_is_another_ones() {
    goes_on(Sharing::Always, true);
}

#[test]
fn the_same_where_the_service_copies() {
    goes_on(Sharing::Never, false);
    goes_on(Sharing::Never, true);
}

#[test]
fn the_last_one_resets() {
    let daemon = Daemon::start(Options::default());
    let (parent, queue, socket, address) = server(&daemon, 8);
    let (mut first, first_queue) = worker(&daemon, &parent, queue, 1);
    let mut client = App::new(&daemon);
    let conn = client.connect(address);
    let (mut second, second_queue) = worker(&daemon, &parent, queue, 2);
    first.unlisten(first_queue, Unlisten::GivenUp);
    second.unlisten(second_queue, Unlisten::GivenUp);
    assert_eq!(client.peer_flags(&conn) & RESET, 0, "the server itself listens");
    drop((first, second));
    assert_eq!(client.peer_flags(&conn) & RESET, 0);
    drop(parent);
    client.sleep(Duration::from_millis(20));
    assert_eq!(client.peer_flags(&conn) & RESET, 0, "somebody has the socket, and may show it");
    drop(socket);
    client.until("nobody is left to accept it", |c| c.peer_flags(&conn) & RESET != 0);
    client.close(&conn);
}

#[test]
fn what_its_owner_leaves_is_its_childrens() {
    let daemon = Daemon::start(Options::default());
    let (mut parent, queue, _socket, address) = server(&daemon, 8);
    let leave = |parent: &mut App| parent.unlisten(queue, Unlisten::Closed).0;
    let kept = leave(&mut parent);
    assert!(matches!(kept, Reply::Listening { slot } if slot == queue), "nobody has a queue yet: {kept:?}");
    let mut client = App::new(&daemon);
    let mut conn = client.connect(address);
    // A child reads its parent's queue, as it reads its connections.
    let (mut here, record) = parent.accept_wait(queue, &mut 0);
    assert_eq!(record.local, address);
    client.send(&mut conn, b"well");
    assert_eq!(parent.receive_exact(&mut here, 4), b"well");
    let (mut child, own) = worker(&daemon, &parent, queue, 1);
    let gone = leave(&mut parent);
    assert!(matches!(gone, Reply::Done), "there is an heir: {gone:?}");
    let second = client.connect(address);
    let (_, record) = child.accept_wait(own, &mut 0);
    assert_eq!((record.region, record.slot), (second.region, second.slot));
}

#[test]
fn a_child_stops_a_listener_for_all() {
    let daemon = Daemon::start(Options::default());
    let (mut parent, queue, _socket, address) = server(&daemon, 8);
    let mut client = App::new(&daemon);
    let first = client.connect(address);
    let (mut child, own) = worker(&daemon, &parent, queue, 1);
    let (mut sibling, _) = worker(&daemon, &parent, queue, 2);
    let conns = [first, client.connect(address), client.connect(address), client.connect(address)];
    let stop = Request::Unlisten { region: parent.info.id, slot: queue, because: Unlisten::Stopped };
    assert_eq!(sibling.ask(stop).0, Reply::Done);
    for conn in &conns {
        client.until("what waits anywhere is reset", |c| c.peer_flags(conn) & RESET != 0);
    }
    assert!(client.try_connect(address).is_err(), "nobody listens");
    // Another listener in the meantime, with which the child's old queue is not confused.
    let (other, place) = listener();
    let new = child.listen(&other, 8);
    assert_ne!(new, own);
    assert_eq!(child.unlisten(own, Unlisten::Closed).0, Reply::Done);
    let conn = client.connect(place);
    assert_eq!(child.accept_wait(new, &mut 0).1.slot, conn.slot);
    assert_eq!(parent.unlisten(queue, Unlisten::Closed).0, Reply::Done, "said twice it does no harm");
}

/// A worker that is idle when a connection comes may be busy when that says something.
#[test]
fn what_waits_for_its_first_bytes_comes_where_all_workers_look() {
    let daemon = Daemon::start(Options::default());
    let (mut parent, queue, _socket, address) = server(&daemon, 8);
    let (child, _) = worker(&daemon, &parent, queue, 1);
    child.region.context(shm::Side::One, 1).unwrap().sleeping.store(1, Ordering::SeqCst);
    let options = SocketOptions { defer_accept: 20, ..SocketOptions::default() };
    parent.say(Request::SetOptions { region: parent.info.id, slot: queue, options });
    parent.ask(Request::Region { region: parent.info.id });
    let mut client = App::new(&daemon);
    let conn = client.connect(address);
    assert!(client.deferred);
    client.say(Request::Announce { region: conn.region, slot: conn.slot });
    let (here, _) = parent.accept_wait(queue, &mut 0);
    assert_eq!((here.region, here.slot), (conn.region, conn.slot));
}
