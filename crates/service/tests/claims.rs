//! What a program may claim: addresses, listening places and a network namespace are what the kernel says of its sockets.

use crate::common::{App, Daemon, close_listener, listener};
use control::{Reply, Request, SocketOptions};
use queue::stream::watch;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketType, shutdown, socket, sockopt};
use service::Options;
use shm::half_flags::RESET;
use std::net::{SocketAddr, TcpListener};

fn daemon() -> Daemon {
    Daemon::start(Options::default())
}

fn tcp() -> OwnedFd {
    socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

fn bound(to: &str) -> (OwnedFd, SocketAddr) {
    let socket = tcp();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    sockopt::set_ip_freebind(&socket, true).unwrap();
    rustix::net::bind(&socket, &to.parse::<SocketAddr>().unwrap()).unwrap();
    let at = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    (socket, at)
}

fn connect_from(app: &mut App, from: &OwnedFd, remote: SocketAddr) -> Reply {
    app.ask_showing(
        Request::Connect { remote, options: SocketOptions::default(), has_looked: true },
        &[from.as_fd()],
    )
    .0
}

fn errno(reply: &Reply) -> Option<Errno> {
    match reply {
        Reply::Refused { errno, .. } => Some(Errno::from_raw_os_error(*errno)),
        _ => None,
    }
}

#[test]
fn a_connection_comes_from_where_the_kernel_has_bound_its_socket() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let (from, at) = bound("127.0.0.7:0");
    let Reply::Connecting { local, .. } = connect_from(&mut client, &from, address) else { panic!() };
    let (_, record) = server.accept_wait(queue);
    assert_eq!((local, record.peer, record.local), (at, at, address));
}

#[test]
fn an_address_that_is_none_of_the_hosts_is_no_source() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    server.listen(&socket, 8);
    // The kernel binds them (`IP_FREEBIND`), and refuses to connect from there.
    for (to, says) in [("198.51.100.8:0", Errno::NETUNREACH), ("224.0.0.1:0", Errno::INVAL)] {
        let (from, _) = bound(to);
        assert_eq!(errno(&connect_from(&mut client, &from, address)), Some(says), "{to}");
    }
}

#[test]
fn no_two_connections_have_the_same_ends() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let [(socket, address), (other, elsewhere)] = [listener(), listener()];
    server.listen(&socket, 8);
    server.ask_showing(Request::Listen { backlog: 8, nonblocking: false }, &[other.as_fd()]);
    let (first, at) = bound("127.0.0.1:0");
    assert!(matches!(connect_from(&mut client, &first, address), Reply::Connecting { .. }));
    let (second, _) = bound(&at.to_string());
    assert_eq!(errno(&connect_from(&mut client, &second, address)), Some(Errno::ADDRNOTAVAIL));
    let mut third = App::new(&daemon);
    assert_eq!(
        errno(&connect_from(&mut third, &second, address)),
        Some(Errno::ADDRNOTAVAIL),
        "of any process"
    );
    assert!(matches!(connect_from(&mut third, &second, elsewhere), Reply::Connecting { .. }));
}

#[test]
fn a_socket_that_listens_no_more_gets_nothing() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    server.listen(&socket, 8);
    client.connect(address);
    shutdown(&socket, Shutdown::Read).unwrap();
    assert!(matches!(client.try_connect(address), Err(Reply::Kernel { .. })));
    // The place is another's now, whatever the first process says.
    let mut heir = App::new(&daemon);
    let place = TcpListener::bind(address).unwrap();
    let queue = heir.listen(&place, 8);
    for _ in 0..4 {
        client.connect(address);
        assert_eq!(heir.accept_wait(queue).1.local, address);
    }
}

#[test]
fn a_socket_that_is_closed_without_a_word_gets_nothing() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    server.listen(&socket, 8);
    close_listener(socket);
    assert!(matches!(client.try_connect(address), Err(Reply::Kernel { .. })), "nothing listens there");
    // A listener of the kernel's alone has taken the place.
    let place = TcpListener::bind(address).unwrap();
    assert!(matches!(client.try_connect(address), Err(Reply::Kernel { .. })));
    let mut heir = App::new(&daemon);
    let queue = heir.listen(&place, 8);
    client.connect(address);
    assert_eq!(heir.accept_wait(queue).1.local, address);
}

#[test]
fn of_wildcard_and_address_the_kernel_chooses() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let wildcard = tcp();
    sockopt::set_socket_reuseport(&wildcard, true).unwrap();
    rustix::net::bind(&wildcard, &"0.0.0.0:0".parse::<SocketAddr>().unwrap()).unwrap();
    rustix::net::listen(&wildcard, 8).unwrap();
    let wildcard = TcpListener::from(wildcard);
    let queue = server.listen(&wildcard, 8);
    let port = wildcard.local_addr().unwrap().port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    client.connect(address);
    assert_eq!(server.accept_wait(queue).1.local, address);
    // The address alone is the kernel's.
    let exact = tcp();
    sockopt::set_socket_reuseport(&exact, true).unwrap();
    rustix::net::bind(&exact, &address).unwrap();
    rustix::net::listen(&exact, 8).unwrap();
    assert!(matches!(client.try_connect(address), Err(Reply::Kernel { .. })));
    client.connect(SocketAddr::from(([127, 0, 0, 2], port)));
}

#[test]
fn a_bound_socket_is_no_listener() {
    let daemon = daemon();
    let mut app = App::new(&daemon);
    let (socket, _) = bound("127.0.0.1:0");
    let answer = app.ask_showing(Request::Listen { backlog: 8, nonblocking: false }, &[socket.as_fd()]).0;
    assert!(matches!(answer, Reply::Kernel { .. }));
}

#[test]
fn each_grant_has_a_port_of_its_own_and_the_table_says_so() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 64);
    client.connect(address);
    client.connect(address);
    let (_, record) = server.accept_wait(queue);
    let lent = client.lent.clone().unwrap();
    assert!(!lent.grants.is_empty());
    for grant in &lent.grants {
        let told = server.record(queue, grant.grant).unwrap();
        assert_eq!(client.record(queue, grant.grant), Some(told), "both sides read the same");
        assert_eq!((told.region, told.slot, told.side), (record.region, grant.slot, 1));
        assert_eq!((told.local, told.peer), (address, SocketAddr::new(lent.source, grant.port)));
    }
    let mut ports: Vec<u16> = lent.grants.iter().map(|grant| grant.port).collect();
    ports.push(record.peer.port());
    ports.push(client.local.unwrap().port());
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), lent.grants.len() + 2, "each connection has its own");
}

#[test]
fn a_process_without_the_socket_can_do_nothing_to_its_queue() {
    let daemon = daemon();
    let (mut server, mut client, mut thief) = (App::new(&daemon), App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 64);
    client.connect(address);
    for grant in 0..4 {
        assert!(matches!(thief.ask(Request::Take { queue, grant }).0, Reply::Refused { .. }));
    }
    let application = server.welcome.application;
    let context = server.context;
    let waker = Request::QueueWaker { queue, application, context };
    assert!(matches!(thief.ask(waker).0, Reply::Refused { .. }));
    thief.say(Request::Accepted { queue });
    thief.ask(Request::Region { region: 1 << 20 });
    client.connect(address);
    for _ in 0..2 {
        assert_eq!(server.accept_wait(queue).1.local, address);
    }
}

#[test]
#[expect(deprecated, reason = "the other one is unsafe, for flags that are not used here")]
fn an_accept_queue_of_another_namespace_is_out_of_reach() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    server.listen(&socket, 8);
    client.connect(address);
    let path = daemon.path.clone();
    let inside = std::thread::spawn(move || {
        // A network namespace concerns new sockets of this thread only.
        if rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).is_err() {
            return None;
        }
        let own = TcpListener::bind("0.0.0.0:0").unwrap();
        let (line, shown) = (Daemon::dial_at(&path), tcp());
        Some((line, own, shown))
    });
    let Some((line, own, shown)) = inside.join().unwrap() else {
        eprintln!("skipped: this user may not make a network namespace");
        return;
    };
    // A process that made its line elsewhere.
    let mut stranger = App::on(line, None, 0);
    assert!(matches!(stranger.try_connect(address), Err(Reply::Kernel { .. })));
    // One that has changed over: its sockets are of the new namespace.
    assert!(matches!(connect_from(&mut client, &shown, address), Reply::Kernel { .. }));
    for app in [&mut stranger, &mut client] {
        let answer = app.ask_showing(Request::Listen { backlog: 8, nonblocking: false }, &[own.as_fd()]).0;
        assert!(matches!(answer, Reply::Kernel { .. }));
    }
    // A socket that it was given counts as what it is.
    let (ours, _) = bound("127.0.0.1:0");
    assert!(matches!(connect_from(&mut stranger, &ours, address), Reply::Connecting { .. }));
}

#[test]
fn a_connection_that_moves_keeps_its_addresses() {
    let daemon = daemon();
    let (mut server, mut client, mut heir) = (App::new(&daemon), App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    client.connect(address);
    let (here, record) = server.accept_wait(queue);
    let fd = tcp();
    let block = server.region.sock(5).unwrap();
    block.region.store(here.region, std::sync::atomic::Ordering::Relaxed);
    block.slot.store(here.slot, std::sync::atomic::Ordering::Relaxed);
    block.holders.store(1 << server.welcome.holder | shm::TRUST, std::sync::atomic::Ordering::Relaxed);
    let left = control::Left { region: here.region, slot: here.slot, side: 1, home: server.info.id, sock: 5 };
    assert_eq!(server.ask_showing(Request::Leave(left), &[fd.as_fd()]).0, Reply::Done);
    let Reply::Moved { slot, local, peer, .. } =
        heir.ask_showing(Request::Present { sock: 5 }, &[fd.as_fd()]).0
    else {
        panic!()
    };
    assert_eq!((local, peer), (address, record.peer));
    let half = &heir.region.slot(slot).unwrap().half[1];
    watch(half, Some(heir.context));
    assert_eq!(
        heir.region.slot(slot).unwrap().half[0].flags.load(std::sync::atomic::Ordering::Relaxed) & RESET,
        0
    );
}
