//! Two applications of one host through the service: connect, bytes, backlog, ends, deaths.

use crate::common::{App, Conn, Daemon, PATIENCE, hello, listener};
use control::{KernelReason, Parent, Push, Reply, Report, Request, Unlisten};
use rustix::fd::AsFd;
use rustix::thread::futex;
use service::Options;
use shm::half_flags::{FIN, OPEN, RESET};
use std::sync::atomic::Ordering;
use std::time::Instant;

fn daemon() -> Daemon {
    Daemon::start(Options::default())
}

#[test]
fn bytes_go_both_ways_through_a_pair_region() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let mut there = client.connect(address);
    assert_ne!(client.peer_flags(&there) & OPEN, 0, "connect succeeds before it is accepted");
    let (mut here, record) = server.accept_wait(queue);
    assert_eq!((record.local, Some(record.peer)), (address, client.local));
    client.send(&mut there, b"request");
    assert_eq!(server.receive_exact(&mut here, 7), b"request");
    server.send(&mut here, b"reply");
    assert_eq!(client.receive_exact(&mut there, 5), b"reply");
    daemon.until("both ends are listed", |sockets| {
        let of = |key: &str, what: &str| sockets.iter().filter(|s| s[key] == what).count();
        of("kind", "pair") == 2 && of("state", "ESTABLISHED") == 2 && of("state", "LISTEN") == 1
    });
    client.close(&there);
    server.until("the end arrives", |s| s.receive(&mut here, 10).is_none());
    server.close(&here);
    daemon.until("the slot is swept", |sockets| sockets.len() == 1);
    let counts = daemon.report(Report::Statistics);
    assert_eq!((counts["accelerated"].as_u64(), counts["fallen_back"].as_u64()), (Some(3), Some(0)));
}

#[test]
fn a_sleeping_peer_is_woken() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let asleep = std::thread::spawn(move || {
        let mut accepted = None;
        server.until_told("the connection wakes", |server| {
            accepted = server.accept(queue);
            accepted.is_some()
        });
        let (mut conn, _) = accepted.unwrap();
        for _ in 0..50 {
            let request = server.receive_told(&mut conn, 100);
            server.send(&mut conn, &request);
        }
    });
    let mut conn = client.connect(address);
    for i in 0..50u8 {
        client.send(&mut conn, &[i; 100]);
        assert_eq!(client.receive_told(&mut conn, 100), [i; 100]);
    }
    asleep.join().unwrap();
}

#[test]
fn without_an_accelerated_listener_the_kernel_does_it() {
    let daemon = daemon();
    let mut app = App::new(&daemon);
    let (socket, address) = listener();
    for to in [address, "192.0.2.1:80".parse().unwrap()] {
        assert!(matches!(app.try_connect(to).map(|_| ()), Err(Reply::Kernel { .. })));
    }
    rustix::net::shutdown(&socket, rustix::net::Shutdown::Read).unwrap();
    let answer = app.ask_showing(Request::Listen { backlog: 1, nonblocking: false }, &[socket.as_fd()]).0;
    assert!(matches!(answer, Reply::Kernel { .. }), "a place belongs to a socket that listens there");
    for inode in [11, 12, 11] {
        app.say(Request::FellBack { reason: KernelReason::Rule(inode as u32), inode });
    }
    let _ = app.ask(Request::Region { region: 1 << 20 });
    let counts = daemon.report(Report::Statistics);
    assert_eq!((counts["accelerated"].as_u64(), counts["fallen_back"].as_u64()), (Some(0), Some(3)));
    let explained = daemon.report(Report::Explain);
    assert_eq!(explained["applications"][0]["kernel"]["11"]["Rule"], 11);
    assert_eq!(explained["applications"][0]["pid"], std::process::id());
}

#[test]
fn what_limits_a_connection_is_explained() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let mut there = client.connect(address);
    let local = client.local.unwrap();
    let (mut here, _) = server.accept_wait(queue);
    let limits = || {
        let explained = daemon.report(Report::Explain);
        let sockets = explained["sockets"].as_array().unwrap().clone();
        let of = |remote: &str| {
            let mut found = sockets.iter().filter(|s| s["remote"].as_str().unwrap().starts_with(remote));
            found.next().unwrap()["limited_by"].as_str().unwrap().to_owned()
        };
        (of("*"), of(&address.to_string()), of(&local.to_string()))
    };
    assert_eq!(limits(), ("connections".into(), "application".into(), "application".into()));
    client.send(&mut there, b"request");
    assert_eq!(limits(), ("connections".into(), "peer-reader".into(), "reader".into()));
    assert_eq!(server.receive_exact(&mut here, 7), b"request");
    assert_eq!(limits(), ("connections".into(), "application".into(), "application".into()));
    let plain = daemon.report(Report::Sockets);
    assert!(plain[0].get("limited_by").is_none(), "ss stays as it was");
}

#[test]
fn the_backlog_holds_one_more_than_it_says_and_the_rest_wait() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 2);
    let conns: Vec<_> = (0..100).map(|_| client.connect(address)).collect();
    let open = |client: &App| conns.iter().filter(|c| client.peer_flags(c) & OPEN != 0).count();
    assert_eq!(open(&client), 3);
    for n in 1..=100 {
        server.accept_wait(queue);
        client.until("one more is let in", |c| open(c) == (3 + n).min(100));
    }
    assert!(server.accept(queue).is_none());
}

#[test]
fn closing_a_listener_resets_what_was_not_accepted() {
    let daemon = daemon();
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 1);
    let conns: Vec<_> = (0..4).map(|_| client.connect(address)).collect();
    let (_kept, _) = server.accept_wait(queue);
    server.unlisten(queue, Unlisten::GivenUp);
    let reset = |c: &App| conns.iter().filter(|x| c.peer_flags(x) & RESET != 0).count();
    client.until("three are reset", |c| reset(c) == 3);
    assert!(client.try_connect(address).is_err());
}

#[test]
fn death_is_told_and_leaves_nothing() {
    let daemon = daemon();
    let mut server = App::new(&daemon);
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    for round in 0..20 {
        let mut client = App::new(&daemon);
        let mut read_all = client.connect(address);
        let unread = client.connect(address);
        let (mut a, _) = server.accept_wait(queue);
        let (mut b, _) = server.accept_wait(queue);
        client.send(&mut read_all, b"last words");
        server.send(&mut b, b"never read");
        drop(client);
        server.until_told("the peers see the death", |s| {
            s.peer_flags(&b) & RESET != 0 && s.peer_flags(&a) & FIN != 0
        });
        let revoked = Push::Revoked { region: a.region };
        assert!(!server.pushes.contains(&revoked), "round {round}: only when the dead was forgotten");
        assert_eq!(server.receive_exact(&mut a, 10), b"last words", "what was sent before death arrives");
        let _ = unread;
        server.close(&a);
        server.close(&b);
        daemon.until("only the listener is left", |sockets| sockets.len() == 1);
        server.until("the pair region ends", |s| {
            s.pushes.contains(&Push::Revoked { region: a.region }) && s.listen_to_pushes()
        });
        server.pairs.clear();
        server.pools.clear();
    }
    let counts = daemon.report(Report::Statistics);
    assert_eq!(counts["applications"].as_u64(), Some(1));
}

/// A server with many short-lived clients must not grow, however busy it is.
#[test]
fn memory_shared_with_the_dead_ends_while_others_keep_connecting() {
    let daemon = daemon();
    let (mut server, mut busy) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let mut mortal = App::new(&daemon);
    let _held = mortal.connect(address);
    let (left, _) = server.accept_wait(queue);
    drop(mortal);
    server.until("the server sees the end", |s| s.peer_flags(&left) & FIN != 0);
    server.close(&left);
    let end = Instant::now() + PATIENCE;
    while !(server.listen_to_pushes() && server.pushes.contains(&Push::Revoked { region: left.region })) {
        let theirs = busy.connect(address);
        let (ours, _) = server.accept_wait(queue);
        busy.close(&theirs);
        server.close(&ours);
        assert!(Instant::now() < end, "put off by what others do");
    }
}

#[test]
fn a_forked_child_keeps_the_listener_that_its_parent_leaves() {
    let daemon = daemon();
    let (mut parent, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = parent.listen(&socket, 8);
    let mut child = parent.child(&daemon, queue, 1);
    let _first = client.connect(address);
    assert_eq!(parent.accept_wait(queue).1.local, address);
    let _next = client.connect(address);
    assert_eq!(child.accept_wait(queue).1.local, address);
    drop(parent);
    daemon.until("the listener lives on in the child", |s| s.iter().any(|s| s["kind"] == "listener"));
    let _second = client.connect(address);
    assert_eq!(child.accept_wait(queue).1.local, address);
    drop((child, socket));
    daemon.until("it ends with its last holder", |s| !s.iter().any(|s| s["kind"] == "listener"));
    // A stranger cannot join the family.
    let line = daemon.dial();
    let stranger = Parent { application: client.welcome.application, secret: 0, holder: 1 };
    let hello = control::ToService { number: 1, request: hello(Some(stranger)) };
    line.send(&hello, &[], true).unwrap();
    assert!(matches!(line.receive::<control::ToApplication>(true), Err(control::LineError::Closed)));
}

/// The first process of nginx listens, forks, and never reads its control line: what it was told of each client would fill the line.
#[test]
fn a_parent_that_accepts_nothing_is_told_nothing_of_its_childs_clients() {
    let daemon = daemon();
    let mut parent = App::new(&daemon);
    let (socket, address) = listener();
    let queue = parent.listen(&socket, 8);
    let mut child = parent.child(&daemon, queue, 1);
    let mut client = App::new(&daemon);
    let _theirs = client.connect(address);
    let (ours, _) = child.accept_wait(queue);
    drop(client);
    child.until("the client's end is seen", |c| c.peer_flags(&ours) & FIN != 0);
    child.close(&ours);
    let revoked = Push::Revoked { region: ours.region };
    child.until("the pair region ends", |c| c.listen_to_pushes() && c.pushes.contains(&revoked));
    // What was pushed to the parent came before this answer.
    assert!(matches!(parent.ask(Request::Info { region: 0, slot: 0 }).0, Reply::Refused { .. }));
    assert!(parent.pushes.is_empty(), "{:?}", parent.pushes);
}

#[test]
fn a_private_service_leaves_with_its_last_application() {
    private_service_leaves(drop);
}

#[test]
fn a_private_service_leaves_as_soon_after_a_detached_application() {
    private_service_leaves(|line| {
        line.send(&control::ToService { number: 2, request: hello(None) }, &[], true).unwrap();
    });
}

/// Starts a private service with one application, which ends by `end`, and checks how long the service stays.
fn private_service_leaves(end: impl FnOnce(control::Line)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("service/c");
    let options = Options { control: Some(path.clone()), private: Some(true), ..Options::default() };
    let small = Options { region_slots: Some(64), region_mib: Some(1), ..Options::default() };
    let thread = crate::common::serve(options.or(small).resolve().unwrap());
    let line = {
        use rustix::net::*;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        control::Line::new(fd)
    };
    line.send(&control::ToService { number: 1, request: hello(None) }, &[], true).unwrap();
    line.receive::<control::ToApplication>(true).unwrap();
    let begin = Instant::now();
    end(line);
    thread.join().unwrap();
    // One second; it stays for ten when no application has come.
    assert!((900..9_000).contains(&begin.elapsed().as_millis()));
    assert!(!path.exists());
}

#[test]
fn where_policy_forbids_sharing_the_service_copies() {
    let daemon = Daemon::start(Options { sharing: Some(service::Sharing::Never), ..Options::default() });
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let mut there = client.connect(address);
    assert_eq!(there.region, client.info.id, "it lives in the application's own region");
    let (mut here, record) = server.accept_wait(queue);
    assert_eq!((record.region, record.local), (server.info.id, address));
    // More than all buffers hold: backpressure both ways, every byte in order.
    let bytes: Vec<u8> = (0..6_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let expected = bytes.clone();
    let echo = std::thread::spawn(move || {
        let got = server.receive_exact(&mut here, expected.len());
        assert!(got == expected, "bytes arrive in order");
        server.send(&mut here, b"thanks");
        server.until("the half close arrives", |s| s.receive(&mut here, 1).is_none());
        server.send(&mut here, b"bye");
        server.close(&here);
        server
    });
    client.send(&mut there, &bytes);
    assert_eq!(client.receive_exact(&mut there, 6), b"thanks");
    client.shut_down(&there);
    assert_eq!(client.receive_exact(&mut there, 3), b"bye");
    client.until("the end arrives", |c| c.receive(&mut there, 1).is_none());
    client.close(&there);
    let mut server = echo.join().unwrap();
    daemon.until("only the listener is left", |s| s.len() == 1);
    assert!(daemon.report(Report::Statistics)["relayed_bytes"].as_u64().unwrap() >= 6_000_009);
    // Death: what was sent arrives, then the end; unread input becomes a reset.
    let mut dying = App::new(&daemon);
    let (mut told, unread) = (dying.connect(address), dying.connect(address));
    let (mut a, _) = server.accept_wait(queue);
    let (mut b, _) = server.accept_wait(queue);
    dying.send(&mut told, b"last words");
    server.send(&mut b, b"never read");
    dying.until("it arrives", |d| {
        d.region.slot(unread.slot).unwrap().half[0].tx_head.load(Ordering::Acquire) == 10
    });
    drop(dying);
    server.until_told("reset", |s| s.peer_flags(&b) & RESET != 0 && s.peer_flags(&a) & FIN != 0);
    assert_eq!(server.receive_exact(&mut a, 10), b"last words");
    server.close(&a);
    server.close(&b);
    daemon.until("only the listener is left", |s| s.len() == 1);
}

/// Has a thread sleep at the slot of `conn`, as a thread without a context does. Returns the thread, once it is about to.
fn nap_at(app: App, conn: Conn) -> std::thread::JoinHandle<(App, Conn)> {
    let seen = app.own_half(&conn, |half| queue::nap::begin(half, 1));
    let (about_to, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        about_to.send(()).unwrap();
        app.own_half(&conn, |half| {
            while half.context.load(Ordering::SeqCst) == seen {
                let _ = futex::wait(&half.context, futex::Flags::empty(), seen, None);
            }
        });
        (app, conn)
    });
    told.recv().unwrap();
    thread
}

#[test]
fn a_thread_that_naps_is_woken_by_a_relay_and_by_the_death_of_its_peer() {
    for sharing in [service::Sharing::Never, service::Sharing::SameUser] {
        let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
        let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
        let (socket, address) = listener();
        let queue = server.listen(&socket, 8);
        let mut there = client.connect(address);
        let (here, _) = server.accept_wait(queue);
        let (mut server, mut here) = match sharing {
            service::Sharing::Never => {
                let asleep = nap_at(server, here);
                client.send(&mut there, b"news");
                asleep.join().unwrap()
            }
            _ => {
                client.send(&mut there, b"news");
                (server, here)
            }
        };
        assert_eq!(server.receive_exact(&mut here, 4), b"news");
        let asleep = nap_at(server, here);
        drop(client);
        let (server, here) = asleep.join().unwrap();
        assert_ne!(server.peer_flags(&here) & (FIN | RESET), 0);
    }
}
