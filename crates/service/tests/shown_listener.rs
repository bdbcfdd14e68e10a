//! A listening socket that processes of different families have, because one has got it from another: each one that shows it accepts.

use crate::common::{App, Conn, Daemon, PATIENCE, can_be_other_users, listener};
use control::{Reply, Request, Unlisten};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketType, sockopt};
use service::{Options, Sharing};
use shm::half_flags::{OPEN, PASSIVE, RESET};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn wish(nonblocking: bool) -> Request {
    Request::Listen { backlog: 8, nonblocking }
}

/// A process that listens.
fn listening(daemon: &Daemon, socket: &TcpListener, nonblocking: bool) -> (App, u32) {
    let mut app = App::new(daemon);
    let (reply, fds) = app.ask_showing(wish(nonblocking), &[socket.as_fd()]);
    let Reply::Listening { queue, is_known: false } = reply else { panic!("{reply:?}") };
    app.map_queue(queue, fds);
    app.rest_at(queue);
    (app, queue)
}

/// A process that shows a socket that the service knows.
fn joining(app: &mut App, socket: &TcpListener) -> u32 {
    let (queue, is_known) = app.show(socket, 8).unwrap();
    assert!(is_known);
    queue
}

fn is_nonblocking(app: &App, queue: u32) -> bool {
    app.memory(queue).is_nonblocking()
}

fn is(client: &App, conn: &Conn, flag: u32) -> bool {
    client.peer_flags(conn) & flag != 0
}

fn converse(client: &mut App, conn: &mut Conn, server: &mut App, queue: u32, address: SocketAddr) {
    let (mut accepted, record) = server.accept_wait(queue);
    assert_eq!(
        (record.region, record.local),
        (server.info.id, address),
        "it continues in the server's memory"
    );
    assert_eq!(server.receive_exact(&mut accepted, 5), b"early");
    server.send(&mut accepted, b"answer");
    assert_eq!(client.receive_exact(conn, 6), b"answer");
    server.close(&accepted);
    client.until("the end arrives", |c| c.receive(conn, 1).is_none());
    client.close(conn);
}

/// The connections lie in the first process's regions; the second claims them, and the service carries them on.
fn hands_over(sharing: Sharing) {
    let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
    let (socket, address) = listener();
    let (first, queue) = listening(&daemon, &socket, true);
    let mut client = App::new(&daemon);
    let mut conns: Vec<Conn> = (0..3).map(|_| client.connect(address)).collect();
    conns.iter_mut().for_each(|conn| client.send(conn, b"early"));
    assert_eq!(first.queue(queue).count(), 3);
    let mut second = App::new(&daemon);
    assert_eq!(joining(&mut second, &socket), queue, "there is one queue for all");
    assert!(is_nonblocking(&second, queue), "as the first one has it");
    for conn in &mut conns {
        converse(&mut client, conn, &mut second, queue, address);
    }
    assert_eq!(first.queue(queue).count(), 0);
    drop((first, second, client));
    drop(socket);
    daemon.until("nothing is left", <[_]>::is_empty);
}

#[test]
fn what_waits_goes_to_the_process_that_comes_to_accept() {
    hands_over(Sharing::Always);
    hands_over(Sharing::Never);
}

/// Two processes of different families that accept from one socket.
struct Two {
    first: App,
    second: App,
    queue: u32,
    address: SocketAddr,
    socket: TcpListener,
}

fn two_families(daemon: &Daemon) -> Two {
    let (socket, address) = listener();
    let (first, queue) = listening(daemon, &socket, false);
    let mut second = App::new(daemon);
    joining(&mut second, &socket);
    Two { first, second, queue, address, socket }
}

#[test]
fn two_families_take_turns_at_one_queue() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
        let Two { mut first, mut second, queue, address, socket: _socket } = two_families(&daemon);
        let mut client = App::new(&daemon);
        let mut conns: Vec<Conn> = (0..6).map(|_| client.connect(address)).collect();
        conns.iter_mut().for_each(|conn| client.send(conn, b"early"));
        for (n, conn) in conns.iter_mut().enumerate() {
            let app = if n % 2 == 0 { &mut first } else { &mut second };
            let (mut accepted, _) = app.accept_wait(queue);
            assert_eq!(app.receive_exact(&mut accepted, 5), b"early", "{sharing:?}");
            app.send(&mut accepted, &[n as u8; 3]);
            assert_eq!(client.receive_exact(conn, 3), [n as u8; 3], "the oldest comes first");
        }
    }
}

#[test]
fn a_process_of_another_user_accepts_from_the_queue() {
    if !can_be_other_users() {
        return;
    }
    for sharing in [Sharing::Always, Sharing::SameUser] {
        let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
        let (socket, address) = listener();
        let (_first, queue) = listening(&daemon, &socket, false);
        let mut other = App::of_user(&daemon, 61_031);
        joining(&mut other, &socket);
        while other.sleep(Duration::from_millis(1)) {}
        assert!(!other.is_news());
        let mut client = App::new(&daemon);
        let mut conn = client.connect(address);
        assert!(other.is_woken_within(PATIENCE));
        other.stay_awake();
        client.send(&mut conn, b"early");
        converse(&mut client, &mut conn, &mut other, queue, address);
    }
}

#[test]
fn what_another_family_was_accepting_when_it_was_killed_waits_again() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
        let Two { mut first, mut second, queue, address, socket: _socket } = two_families(&daemon);
        let mut client = App::new(&daemon);
        let mut conns = [client.connect(address), client.connect(address)];
        let (claimed, taken) = (second.claim(queue).unwrap(), second.claim(queue).unwrap());
        // One that the service has carried on for it, and one that it has not asked for yet.
        let (lost, _) = second.take(queue, taken).unwrap();
        assert_eq!(lost.region, second.info.id);
        drop(second);
        first.until("it waits again", |f| f.queue(queue).is_queued(claimed));
        let (mut here, _) = first.accept_wait(queue);
        client.send(&mut conns[0], b"early");
        assert_eq!(first.receive_exact(&mut here, 5), b"early");
        client.until("the other one has ended with its process", |c| {
            is(c, &conns[1], shm::half_flags::FIN | RESET)
        });
        assert!(first.accept(queue).is_none(), "{sharing:?}");
    }
}

#[test]
fn what_waits_is_kept_while_any_process_has_the_socket() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (first, queue) = listening(&daemon, &socket, true);
    let mut client = App::new(&daemon);
    let mut conn = client.connect(address);
    client.send(&mut conn, b"early");
    drop(first);
    // Meanwhile a process that connects is the kernel's.
    client.until("the first is gone", |c| matches!(c.try_connect(address), Err(Reply::Kernel { .. })));
    assert!(!is(&client, &conn, RESET) && is(&client, &conn, OPEN));
    let mut second = App::new(&daemon);
    assert_eq!(joining(&mut second, &socket), queue);
    assert!(is_nonblocking(&second, queue), "as the first one left it");
    converse(&mut client, &mut conn, &mut second, queue, address);
    let mut last = client.connect(address);
    client.send(&mut last, b"early");
    drop(socket);
    drop(second);
    client.until("no process has it any more", |c| is(c, &last, RESET));
    client.close(&last);
    drop(client);
    daemon.until("nothing is left", <[_]>::is_empty);
}

#[test]
fn a_listener_that_is_one_no_more_keeps_nothing() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (mut first, queue) = listening(&daemon, &socket, false);
    let mut client = App::new(&daemon);
    let conn = client.connect(address);
    assert_eq!(first.unlisten(queue, Unlisten::GivenUp), Reply::Done);
    client.until("it is reset at once", |c| is(c, &conn, RESET));
    // It may begin anew.
    let reply = first.ask_showing(wish(false), &[socket.as_fd()]).0;
    assert!(matches!(reply, Reply::Listening { queue: new, is_known: false } if new != queue), "{reply:?}");
}

/// A listening socket at a port that it names, with `SO_REUSEADDR` or without.
fn named_listener(reuses: bool) -> (TcpListener, SocketAddr) {
    let bound = (20_100..).find_map(|port| {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, reuses).unwrap();
        net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).is_ok().then_some(socket)
    });
    let socket = bound.unwrap();
    net::listen(&socket, 8).unwrap();
    let socket = TcpListener::from(socket);
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// True when a new socket can be bound to the address.
fn is_free(address: SocketAddr, reuses: bool) -> bool {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, reuses).unwrap();
    net::bind(&socket, &address).is_ok()
}

fn is_refused(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused { errno, .. } if *errno == Errno::ADDRINUSE.raw_os_error())
}

/// A listener with one connection that is accepted, and one that waits, stops as `shutdown` does it. Then its port is the connection's.
fn stops(socket: TcpListener, address: SocketAddr, is_named: bool, reuses: bool) {
    let daemon = Daemon::start(Options::default());
    let (mut server, queue) = listening(&daemon, &socket, false);
    let mut client = App::new(&daemon);
    let [conn, waiting] = [0; 2].map(|_| client.connect(address));
    let (accepted, _) = server.accept_wait(queue);
    net::shutdown(&socket, net::Shutdown::Read).unwrap();
    assert_eq!(server.unlisten(queue, Unlisten::Stopped), Reply::Done);
    client.until("what waited is reset", |c| is(c, &waiting, RESET));
    assert!(client.try_connect(address).is_err());
    assert!(!is_free(address, false));
    assert_eq!(is_free(address, true), reuses);
    for again in [false, true] {
        let reply = server.ask(Request::ListenAgain { queue, reuse_address: again }).0;
        assert_eq!(is_refused(&reply), is_named && !(reuses && again), "{is_named} {reuses} {again}");
    }
    let is_still_bound = is_named && !reuses;
    let reply = server.unlisten(queue, Unlisten::Closed);
    assert_eq!(reply == Reply::PortNeeded, is_still_bound, "{is_named} {reuses} {reply:?}");
    drop(socket);
    assert_eq!(server.unlisten(queue, Unlisten::Closed), Reply::Done);
    assert!(!is_free(address, false));
    assert_eq!(is_free(address, true), reuses);
    // The acceptor closes second: nothing needs the port then.
    client.close(&conn);
    server.own_half(&accepted, |half| half.flags.fetch_or(PASSIVE, Ordering::Release));
    server.close(&accepted);
    assert_eq!(client.ask(Request::WantPort { at: address }).0, Reply::Done);
    assert!(is_free(address, false));
    assert_eq!(server.ask(Request::ListenAgain { queue, reuse_address: false }).0, Reply::Done);
}

#[test]
fn the_port_of_a_stopped_listener_is_its_connections() {
    for reuses in [false, true] {
        let (socket, address) = named_listener(reuses);
        stops(socket, address, true, reuses);
    }
    // The kernel takes a port back that it has chosen. The standard library's listeners have `SO_REUSEADDR`.
    let (socket, address) = listener();
    stops(socket, address, false, true);
}

#[test]
fn a_listener_that_is_said_to_have_stopped_and_has_not_may_listen() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = named_listener(false);
    let (mut server, queue) = listening(&daemon, &socket, false);
    let mut client = App::new(&daemon);
    let _conn = client.connect(address);
    let (_accepted, _) = server.accept_wait(queue);
    assert_eq!(server.unlisten(queue, Unlisten::Stopped), Reply::Done);
    assert_eq!(server.ask(Request::ListenAgain { queue, reuse_address: false }).0, Reply::Done);
    let reply = server.ask_showing(wish(false), &[socket.as_fd()]).0;
    assert!(matches!(reply, Reply::Listening { is_known: false, .. }), "{reply:?}");
}

#[test]
fn a_process_that_has_left_comes_back_to_the_same_queue() {
    let daemon = Daemon::start(Options::default());
    let (socket, address) = listener();
    let (mut first, queue) = listening(&daemon, &socket, false);
    let mut second = App::new(&daemon);
    joining(&mut second, &socket);
    assert_eq!(first.unlisten(queue, Unlisten::GivenUp), Reply::Done);
    let mut client = App::new(&daemon);
    let mut conn = client.connect(address);
    client.send(&mut conn, b"early");
    let grant = first.claim(queue).unwrap();
    assert!(first.take(queue, grant).is_none(), "it has left");
    first.queue(queue).finish(grant, first.welcome.application);
    first.queue(queue).push(grant);
    assert_eq!(joining(&mut first, &socket), queue);
    let (mut here, _) = first.accept_wait(queue);
    assert_eq!(first.receive_exact(&mut here, 5), b"early");
}

#[test]
fn no_process_joins_without_the_socket() {
    let daemon = Daemon::start(Options::default());
    let ((socket, _), (other, _)) = (listener(), listener());
    let (_first, queue) = listening(&daemon, &socket, false);
    let mut thief = App::new(&daemon);
    let (new, is_known) = thief.show(&other, 8).unwrap();
    assert!(new != queue && !is_known, "another socket has a queue of its own");
    thief.say(wish(false));
    assert!(
        !(0..100).all(|_| thief.listen_to_pushes() && !thief.sleep(Duration::from_millis(20))),
        "none at all: detached"
    );
}
