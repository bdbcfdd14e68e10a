//! Descriptors, eventfds and memory that a program could make the service wait for: it goes on serving others meanwhile.

use crate::common::{App, Daemon, hello, listener};
use control::{Line, Reply, Report, Request, ToService};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{SendFlags, sockopt};
use service::Options;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A connection of the kernel's: its last close waits for a minute, because nothing reads at the other end. Returns both ends.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (there, _) = listener.accept().unwrap();
    sockopt::set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
    stream.set_nonblocking(true).unwrap();
    while (&stream).write(&[0; 1 << 16]).is_ok() {}
    (stream.into(), there)
}

/// Says something with a descriptor on a new line. Where the service was quick, the last close is this process's: a thread of its own waits.
fn dial_and_say(daemon: &Daemon, request: Request, fd: OwnedFd) -> Line {
    let line = daemon.dial();
    line.send(&ToService { number: 1, request }, &[fd.as_fd()], true).unwrap();
    std::thread::spawn(move || drop(fd));
    line
}

/// New programs register, ask and are answered. Their user's helper is the one that sticks, so they show nothing.
fn serves(daemon: &Daemon) {
    let mut new = App::new(daemon);
    assert!(matches!(new.ask(Request::Region { region: 1 << 20 }).0, Reply::Refused { .. }));
    assert!(daemon.report(Report::Statistics)["applications"].as_u64().unwrap() >= 1);
}

#[test]
fn a_close_that_waits_keeps_nobody_else_waiting() {
    let daemon = Daemon::start(Options::default());
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 64);
    let mut kept = Vec::new();
    for round in 0..20 {
        // Before a hello, with a hello, and with what is a message of that kind.
        let (fd, there) = lingering();
        let request = match round % 3 {
            0 => hello(None),
            1 => Request::Present { sock: 1 },
            _ => Request::Refused,
        };
        kept.push((dial_and_say(&daemon, request, fd), there));
    }
    serves(&daemon);
    let mut tail = 0;
    for _ in 0..3 {
        let mut there = client.connect(address);
        let (mut here, _) = server.accept_wait(queue, &mut tail);
        client.send(&mut there, b"request");
        assert_eq!(server.receive_exact(&mut here, 7), b"request");
    }
}

#[test]
fn descriptors_behind_the_message_for_which_a_line_is_closed_keep_nobody_waiting() {
    let daemon = Daemon::start(Options::default());
    let mut kept = Vec::new();
    for _ in 0..20 {
        let (fd, there) = lingering();
        let line = daemon.dial();
        rustix::net::send(&line, b"this is no message", SendFlags::empty()).unwrap();
        // The service may have closed the line already.
        let _ = line.send(&ToService { number: 2, request: Request::Refused }, &[fd.as_fd()], true);
        std::thread::spawn(move || drop(fd));
        kept.push((line, there));
    }
    serves(&daemon);
}

#[test]
fn a_service_ends_while_its_helpers_are_stuck() {
    let (fd, _there) = lingering();
    let daemon = Daemon::start(Options::default());
    let _line = dial_and_say(&daemon, hello(None), fd);
    serves(&daemon);
    // Dropping it asks the service to leave, and waits until it has.
    drop(daemon);
}

/// Fills an eventfd that the process shares with the service: the next write to it waits.
fn fill(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &(u64::MAX - 1).to_ne_bytes());
    let _ = rustix::fs::fcntl_setfl(bell, rustix::fs::OFlags::empty());
}

#[test]
fn eventfds_that_a_process_has_filled_keep_nobody_waiting_at_its_end() {
    let daemon = Daemon::start(Options::default());
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let there = client.connect(address);
    let (here, _) = server.accept_wait(queue, &mut 0);
    // A relative goes on with the connection, so the service announces what the dead may have left unsaid.
    let block = client.region.sock(1).unwrap();
    block.region.store(there.region, std::sync::atomic::Ordering::Relaxed);
    block.slot.store(there.slot, std::sync::atomic::Ordering::Relaxed);
    block.holders.store(0b11, std::sync::atomic::Ordering::SeqCst);
    let (application, secret) = (client.welcome.application, client.welcome.secret);
    let child = App::with(&daemon, Some(control::Parent { application, secret, holder: 1 }), 1);
    for bell in client.bells.iter().chain(&child.bells).chain([&client.woken, &child.woken]) {
        fill(bell);
    }
    drop(child);
    serves(&daemon);
    drop(client);
    serves(&daemon);
    server.until("the end is seen", |s| s.peer_flags(&here) & shm::half_flags::RELEASED != 0);
}

#[test]
fn an_eventfd_that_its_holder_has_filled_stops_no_core() {
    let daemon = Daemon::start(Options::default());
    let (mut server, mut client, mut heir) = (App::new(&daemon), App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    for bell in server.bells.iter().chain(&client.bells).chain(&heir.bells).chain([&heir.woken]) {
        fill(bell);
    }
    // A connection by the service's relay, which then moves: the service stands for its holder, and rings in its name.
    let mut there = client.connect(address);
    let (here, _) = server.accept_wait(queue, &mut 0);
    let fd =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    let block = server.region.sock(5).unwrap();
    block.region.store(here.region, std::sync::atomic::Ordering::Relaxed);
    block.slot.store(here.slot, std::sync::atomic::Ordering::Relaxed);
    block.holders.store(1 << server.welcome.holder | shm::TRUST, std::sync::atomic::Ordering::Relaxed);
    let left = control::Left { region: here.region, slot: here.slot, side: 1, home: server.info.id, sock: 5 };
    server.ask_showing(Request::Leave(left), &[fd.as_fd()]);
    let reply = heir.ask_showing(Request::Present { sock: 5 }, &[fd.as_fd()]).0;
    assert!(matches!(reply, Reply::Moved { .. }), "{reply:?}");
    client.send(&mut there, b"request");
    // Others are served by the same core.
    let (mut other, mut peer) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = other.listen(&socket, 8);
    let mut there = peer.connect(address);
    let (mut here, _) = other.accept_wait(queue, &mut 0);
    peer.send(&mut there, b"request");
    assert_eq!(other.receive_exact(&mut here, 7), b"request");
    drop(daemon);
}
