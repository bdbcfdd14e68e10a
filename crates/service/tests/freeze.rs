//! Descriptors, eventfds and memory that a program could make the service wait for: it goes on serving others meanwhile.

use crate::common::{App, Daemon, hello, listener};
use control::{Line, Reply, Report, Request, ToService};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{SendFlags, sockopt};
use service::Options;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
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

/// What an attacking process does.
const HELLOS: &str = "hellos";
const BEHIND: &str = "behind";
const HELLO: &str = "hello";

/// The place of the control socket and the kind of attack, for the attacking process.
const PLACE: &str = "TOWPATH_TEST_PLACE";
const KIND: &str = "TOWPATH_TEST_KIND";

/// A process that attacks. It is one of its own because the service's helper threads copy the descriptor table of the process that they
/// start in: with the attacker's sockets in it a helper of any test's service would be the one that closes them last, and waits.
struct Attacker(Child);

impl Attacker {
    /// Starts the attack, and waits until all is said.
    fn start(daemon: &Daemon, kind: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "freeze::attack", "--ignored", "--nocapture"])
            .env(PLACE, &daemon.path)
            .env(KIND, kind)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("all is said")), "{kind}");
        Self(child)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // A killed process does not wait for its sockets.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says something with a lingering descriptor on a new line, and closes the descriptor: where the service was quick, the last close is
/// this process's, and a thread of its own waits.
fn dial_and_say(place: &Path, says: impl FnOnce(&Line, &OwnedFd)) -> (Line, TcpStream) {
    let ((fd, there), line) = (lingering(), Daemon::dial_at(place));
    says(&line, &fd);
    std::thread::spawn(move || drop(fd));
    (line, there)
}

#[test]
#[ignore = "what an attacking process runs"]
fn attack() {
    let (Some(place), Ok(kind)) = (std::env::var_os(PLACE), std::env::var(KIND)) else { return };
    let place = Path::new(&place);
    let say = |request| {
        dial_and_say(place, |line, fd| {
            line.send(&ToService { number: 1, request }, &[fd.as_fd()], true).unwrap();
        })
    };
    let kept: Vec<_> = match kind.as_str() {
        HELLO => vec![say(hello(None))],
        // Before a hello, with a hello, and with what is a message of that kind.
        HELLOS => (0..20)
            .map(|round| match round % 3 {
                0 => say(hello(None)),
                1 => say(Request::Present { sock: 1 }),
                _ => say(Request::Refused),
            })
            .collect(),
        _ => (0..20)
            .map(|_| {
                dial_and_say(place, |line, fd| {
                    rustix::net::send(line, b"this is no message", SendFlags::empty()).unwrap();
                    // The service may have closed the line already.
                    let _ =
                        line.send(&ToService { number: 2, request: Request::Refused }, &[fd.as_fd()], true);
                })
            })
            .collect(),
    };
    println!("all is said");
    // Until it is killed.
    let _ = std::io::stdin().read(&mut [0]);
    drop(kept);
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
    let _attacker = Attacker::start(&daemon, HELLOS);
    serves(&daemon);
    for _ in 0..3 {
        let mut there = client.connect(address);
        let (mut here, _) = server.accept_wait(queue);
        client.send(&mut there, b"request");
        assert_eq!(server.receive_exact(&mut here, 7), b"request");
    }
}

#[test]
fn descriptors_behind_the_message_for_which_a_line_is_closed_keep_nobody_waiting() {
    let daemon = Daemon::start(Options::default());
    let _attacker = Attacker::start(&daemon, BEHIND);
    serves(&daemon);
}

#[test]
fn a_service_ends_while_its_helpers_are_stuck() {
    let daemon = Daemon::start(Options::default());
    let _attacker = Attacker::start(&daemon, HELLO);
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
    let (here, _) = server.accept_wait(queue);
    // A relative goes on with the connection, so the service announces what the dead may have left unsaid.
    let block = client.region.sock(1).unwrap();
    block.region.store(there.region, std::sync::atomic::Ordering::Relaxed);
    block.slot.store(there.slot, std::sync::atomic::Ordering::Relaxed);
    block.holders.store(0b11, std::sync::atomic::Ordering::SeqCst);
    let (application, secret) = (client.welcome.application, client.welcome.secret);
    let child = App::with(&daemon, Some(control::Parent { application, secret, holder: 1 }), 1);
    for bell in client.service_wakers.iter().chain(&child.service_wakers).chain([&client.woken, &child.woken])
    {
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
    for bell in server
        .service_wakers
        .iter()
        .chain(&client.service_wakers)
        .chain(&heir.service_wakers)
        .chain([&heir.woken])
    {
        fill(bell);
    }
    // A connection by the service's relay, which then moves: the service stands for its holder, and rings in its name.
    let mut there = client.connect(address);
    let (here, _) = server.accept_wait(queue);
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
    let (mut here, _) = other.accept_wait(queue);
    peer.send(&mut there, b"request");
    assert_eq!(other.receive_exact(&mut here, 7), b"request");
    drop(daemon);
}
