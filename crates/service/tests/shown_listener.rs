//! A listening socket that processes which share no memory have, because one has got it from another: whoever shows it accepts.

use crate::common::{App, Conn, Daemon, listener};
use control::{Reply, Request, Unlisten};
use rustix::fd::AsFd;
use service::{Options, Sharing};
use shm::half_flags::{OPEN, RESET};
use shm::sock_flags::NONBLOCK;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A process that listens, whose socket block says so.
fn listening(daemon: &Daemon, socket: &TcpListener, flags: u32) -> (App, u32) {
    let mut app = App::new(daemon);
    let queue = app.listen(socket, 8);
    name(&app, queue, flags);
    (app, queue)
}

fn name(app: &App, queue: u32, flags: u32) {
    let block = app.region.sock(1).unwrap();
    block.flags.store(flags, Ordering::Relaxed);
    block.slot.store(queue, Ordering::Relaxed);
    block.region.store(app.info.id, Ordering::Relaxed);
    block.holders.store(1, Ordering::SeqCst);
}

fn wish() -> Request {
    Request::Listen { sock: 1, backlog: 8 }
}

/// One that comes to a socket that is known. Says whether that does not block.
fn joining(daemon: &Daemon, socket: &TcpListener) -> (App, u32, bool) {
    let mut app = App::new(daemon);
    let reply = app.ask_showing(wish(), &[socket.as_fd()]).0;
    let Reply::Joined { slot, nonblocking } = reply else { panic!("{reply:?}") };
    queue::stream::watch(&app.region.slot(slot).unwrap().half[1], Some(app.context));
    name(&app, slot, 0);
    (app, slot, nonblocking)
}

fn is(client: &App, conn: &Conn, flag: u32) -> bool {
    client.peer_flags(conn) & flag != 0
}

fn converse(
    client: &mut App,
    conn: &mut Conn,
    server: &mut App,
    (queue, tail): (u32, &mut u64),
    address: SocketAddr,
) {
    let (mut accepted, record) = server.accept_wait(queue, tail);
    assert_eq!(
        (record.region, record.local),
        (server.info.id, address),
        "it comes by the server's own memory"
    );
    assert_eq!(server.receive_exact(&mut accepted, 5), b"early");
    server.send(&mut accepted, b"answer");
    assert_eq!(client.receive_exact(conn, 6), b"answer");
    server.close(&accepted);
    client.until("the end arrives", |c| c.receive(conn, 1).is_none());
    client.close(conn);
}

fn hands_over(sharing: Sharing) {
    let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
    let (socket, address) = listener();
    let (first, queue) = listening(&daemon, &socket, NONBLOCK);
    let mut client = App::new(&daemon);
    let mut conns: Vec<Conn> = (0..3).map(|_| client.connect(address)).collect();
    conns.iter_mut().for_each(|conn| client.send(conn, b"early"));
    let half = |first: &App, i: usize| {
        let half = &first.region.slot(queue).unwrap().half[i];
        (half.tx_head.load(Ordering::Relaxed), half.rx_tail.load(Ordering::Relaxed))
    };
    assert_ne!(half(&first, 0).0, half(&first, 1).1, "they wait where nobody accepts");
    let (mut second, other, nonblocking) = joining(&daemon, &socket);
    assert!(nonblocking, "as the first one has it");
    assert_eq!(half(&first, 0).0, half(&first, 1).1, "nothing is left there");
    assert_eq!(first.region.sock(1).unwrap().rx_tail.load(Ordering::Relaxed), half(&first, 0).0);
    let mut tail = 0;
    for conn in &mut conns {
        converse(&mut client, conn, &mut second, (other, &mut tail), address);
    }
    drop((first, second, client));
    daemon.until("nothing is left", <[_]>::is_empty);
}

#[test]
fn what_waits_goes_to_whoever_comes_to_accept() {
    hands_over(Sharing::Always);
    hands_over(Sharing::Never);
}

#[test]
fn what_one_lets_wait_goes_to_another_who_sleeps() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (_first, _) = listening(&daemon, &socket, 0);
    let (mut second, queue, _) = joining(&daemon, &socket);
    let mut client = App::new(&daemon);
    let mut conns: Vec<Conn> = (0..6).map(|_| client.connect(address)).collect();
    conns.iter_mut().for_each(|conn| client.send(conn, b"early"));
    let mut tail = 0;
    // The first one never accepts.
    for _ in 0..conns.len() {
        let (mut accepted, _) = second.accept_wait(queue, &mut tail);
        assert_eq!(second.receive_exact(&mut accepted, 5), b"early");
        second.close(&accepted);
    }
}

#[test]
fn who_is_in_the_middle_of_accepting_keeps_what_waits() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (mut first, queue) = listening(&daemon, &socket, 0);
    let mut client = App::new(&daemon);
    let mut conn = client.connect(address);
    client.send(&mut conn, b"early");
    first.region.sock(1).unwrap().rx_lock.store(77, Ordering::SeqCst);
    let (mut second, other, _) = joining(&daemon, &socket);
    let (mut accepted, _) = first.accept_wait(queue, &mut 0);
    assert_eq!(first.receive_exact(&mut accepted, 5), b"early");
    assert!(second.accept(other, &mut 0).is_none());
}

#[test]
fn what_waits_is_kept_while_anybody_has_the_socket() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (first, _) = listening(&daemon, &socket, NONBLOCK);
    let mut client = App::new(&daemon);
    let mut conn = client.connect(address);
    client.send(&mut conn, b"early");
    drop(first);
    // Meanwhile whoever connects is the kernel's.
    client.until("the first is gone", |c| matches!(c.try_connect(address), Err(Reply::Kernel { .. })));
    assert!(!is(&client, &conn, RESET) && is(&client, &conn, OPEN));
    let (mut second, queue, nonblocking) = joining(&daemon, &socket);
    assert!(nonblocking, "as the first one left it");
    converse(&mut client, &mut conn, &mut second, (queue, &mut 0), address);
    let mut last = client.connect(address);
    client.send(&mut last, b"early");
    drop(socket);
    drop(second);
    client.until("nobody has it any more", |c| is(c, &last, RESET));
    client.close(&last);
    drop(client);
    daemon.until("nothing is left", <[_]>::is_empty);
}

#[test]
fn a_listener_that_is_one_no_more_keeps_nothing() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (mut first, queue) = listening(&daemon, &socket, 0);
    let mut client = App::new(&daemon);
    let conn = client.connect(address);
    assert_eq!(first.unlisten(queue, Unlisten::GivenUp).0, Reply::Done);
    client.until("it is reset at once", |c| is(c, &conn, RESET));
    // It may begin anew.
    assert!(matches!(first.ask_showing(wish(), &[socket.as_fd()]).0, Reply::Listening { .. }));
}

#[test]
fn nobody_joins_without_the_socket() {
    let daemon = Daemon::start(Options::default());
    let ((socket, _), (other, _)) = (listener(), listener());
    let (_first, _) = listening(&daemon, &socket, 0);
    let mut thief = App::new(&daemon);
    let shown = [other.as_fd()];
    let answer = thief.ask_showing(wish(), &shown).0;
    assert!(matches!(answer, Reply::Listening { .. }), "another socket has a place of its own: {answer:?}");
    thief.say(wish());
    assert!(
        !(0..100).all(|_| thief.listen_to_pushes() && !thief.sleep(Duration::from_millis(20))),
        "none at all: detached"
    );
}
