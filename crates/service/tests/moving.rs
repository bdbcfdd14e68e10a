//! Connections that go from one process to another with their descriptor.

use crate::common::{App, Conn, Daemon, listener};
use control::{Left, LineError, Reply, Request, ToApplication};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use service::{Options, Sharing};
use shm::half_flags::{FIN, OPEN, RELEASED, RESET};
use shm::{MOVED, TRUST};
use std::sync::atomic::{AtomicU32, Ordering};

/// The placeholder that a program would have.
fn placeholder() -> OwnedFd {
    socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

/// Writes the connection's state into block `sock`, as the library does with every call.
fn keep(app: &App, conn: &Conn, sock: u32) {
    let block = app.region.sock(sock).unwrap();
    block.region.store(conn.region, Ordering::Relaxed);
    block.slot.store(conn.slot, Ordering::Relaxed);
    block.rx_tail.store(conn.tail, Ordering::Relaxed);
    conn.sender.keep(block);
    // Another connection may have moved from it.
    [&block.tx_lock, &block.rx_lock].iter().for_each(|lock| lock.store(0, Ordering::Relaxed));
}

/// Leaves the connection, whose state is in block `sock`.
fn leave(app: &mut App, conn: &Conn, sock: u32, fd: &OwnedFd) -> Reply {
    keep(app, conn, sock);
    app.region.sock(sock).unwrap().holders.store(1 << app.welcome.holder | TRUST, Ordering::Relaxed);
    let left = Left { region: conn.region, slot: conn.slot, side: conn.side as u8, home: app.info.id, sock };
    app.ask_showing(Request::Leave(left), &[fd.as_fd()]).0
}

fn present(app: &mut App, fd: &OwnedFd, sock: u32) -> Result<Conn, Reply> {
    let fresh = Conn::new(0, 0, 1);
    keep(app, &fresh, sock);
    app.region.sock(sock).unwrap().holders.store(1 << app.welcome.holder, Ordering::Relaxed);
    match app.ask_showing(Request::Present { sock }, &[fd.as_fd()]).0 {
        Reply::Moved { slot, .. } => Ok(Conn { region: app.info.id, slot, ..fresh }),
        reply => Err(reply),
    }
}

/// Leaves a connection that no process has a descriptor of then, and waits until it ends: by then the service has looked which of those that
/// were left before still have one.
fn another_ends(daemon: &Daemon) {
    let (mut server, here, mut client, there) = connected(daemon);
    let fd = placeholder();
    assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
    drop((client, fd));
    server.until("the end of a connection that no process has", |s| s.peer_flags(&here) & RELEASED != 0);
}

/// A server, its end, a client and its end.
fn connected(daemon: &Daemon) -> (App, Conn, App, Conn) {
    let (mut server, mut client) = (App::new(daemon), App::new(daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let there = client.connect(address);
    let (here, _) = server.accept_wait(queue);
    (server, here, client, there)
}

fn goes_on(sharing: Sharing) {
    let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
    let (mut server, mut here, mut client, mut there) = connected(&daemon);
    let fd = placeholder();
    client.send(&mut there, b"unread by the server");
    client.send(&mut there, b"unread by the client");
    server.send(&mut here, b"for whoever is there");
    assert_eq!(server.receive_exact(&mut here, 20), b"unread by the server");
    assert_eq!(client.receive_exact(&mut there, 4), b"for ");
    assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
    drop(client);
    let mut next = App::new(&daemon);
    let mut moved = present(&mut next, &fd, 11).unwrap();
    assert_eq!(next.receive_exact(&mut moved, 16), b"whoever is there");
    next.send(&mut moved, b" and more");
    assert_eq!(server.receive_exact(&mut here, 29), b"unread by the client and more");
    let bulk: Vec<u8> = (0..400_000u32).map(|i| i as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(server.receive_exact(&mut here, bulk.len()), bulk));
        next.send(&mut moved, &bulk);
    });
    // And once more, from its new place.
    assert_eq!(leave(&mut next, &moved, 11, &fd), Reply::Done);
    let mut last = App::new(&daemon);
    let mut again = present(&mut last, &fd, 12).unwrap();
    drop(next);
    server.send(&mut here, b"to the last");
    assert_eq!(last.receive_exact(&mut again, 11), b"to the last");
    last.close(&again);
    server.until("the end comes through", |s| s.receive(&mut here, 10).is_none());
    server.close(&here);
    daemon.until("nothing is left of it", |sockets| sockets.len() == 1);
}

#[test]
fn a_connection_goes_on_with_who_shows_its_descriptor() {
    goes_on(Sharing::Always);
}

#[test]
fn a_relayed_connection_goes_on_with_who_shows_its_descriptor() {
    goes_on(Sharing::Never);
}

/// Publishes bytes, resets, and rings once: the other end must read all bytes behind which it sees the reset.
fn resets_behind_bytes((mut sender, mut from): (App, Conn), (mut reader, mut to): (App, Conn)) {
    reader.send(&mut to, b"never read");
    let (slot, side) = (from.slot, from.side);
    let came =
        |s: &App| s.region_of(from.region).slot(slot).unwrap().half[side ^ 1].tx_head.load(Ordering::Acquire);
    let before = from.tail;
    sender.until("unread input", |s| came(s) == before + 10);
    let bytes: Vec<u8> = (0..30_000u32).map(|i| (i / 7) as u8).collect();
    assert_eq!(sender.publish(&mut from, &bytes), bytes.len());
    sender.close(&from);
    reader.until("the reset", |r| r.peer_flags(&to) & RESET != 0);
    assert!(reader.receive_exact(&mut to, bytes.len()) == bytes);
    assert_eq!(reader.receive(&mut to, 1), Some(Vec::new()), "no byte more, and no end of the stream");
}

#[test]
fn bytes_before_a_reset_come_through_all_relays_in_a_row() {
    for (sharing, moves) in
        [(Sharing::Never, 0), (Sharing::Never, 1), (Sharing::Never, 2), (Sharing::Always, 2)]
    {
        for is_servers in [true, false] {
            let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
            let (server, here, mut client, mut there) = connected(&daemon);
            let fd = placeholder();
            for _ in 0..moves {
                assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
                let mut next = App::new(&daemon);
                there = present(&mut next, &fd, 9).unwrap();
                client = next;
            }
            let (server, client) = ((server, here), (client, there));
            match is_servers {
                true => resets_behind_bytes(server, client),
                false => resets_behind_bytes(client, server),
            }
        }
    }
}

#[test]
fn a_connection_ends_when_nobody_has_its_descriptor() {
    let daemon = Daemon::start(Options::default());
    let (mut server, here, mut client, there) = connected(&daemon);
    let fd = placeholder();
    assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
    drop(client);
    another_ends(&daemon);
    assert_eq!(server.peer_flags(&here) & (FIN | RESET), 0, "this process has the descriptor");
    drop(fd);
    server.until("its end", |s| s.peer_flags(&here) & RELEASED != 0);
}

#[test]
fn of_those_who_have_its_descriptor_the_last_that_shows_it_has_the_connection() {
    let daemon = Daemon::start(Options::default());
    let (mut server, mut here, mut client, there) = connected(&daemon);
    let fd = placeholder();
    assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
    let mut next = App::new(&daemon);
    let locks = |app: &App, sock| {
        let block = app.region.sock(sock).unwrap();
        (block.tx_lock.load(Ordering::Relaxed), block.rx_lock.load(Ordering::Relaxed))
    };
    // In the middle of a call the connection stays.
    client.region.sock(9).unwrap().rx_lock.store(77, Ordering::Relaxed);
    assert!(matches!(present(&mut next, &fd, 5), Err(Reply::Refused { .. })));
    assert_eq!(locks(&client, 9), (0, 77));
    client.region.sock(9).unwrap().rx_lock.store(0, Ordering::Relaxed);
    let mut moved = present(&mut next, &fd, 5).unwrap();
    assert_eq!(locks(&client, 9), (MOVED, MOVED));
    server.send(&mut here, b"for both");
    assert_eq!(next.receive_exact(&mut moved, 4), b"for ");
    next.send(&mut moved, b"from next ");
    keep(&next, &moved, 5);
    // The first one uses its own descriptor again, with what is unread; then the other one.
    let mut back = present(&mut client, &fd, 10).unwrap();
    assert_eq!(locks(&next, 5), (MOVED, MOVED));
    assert_eq!(client.receive_exact(&mut back, 4), b"both");
    client.send(&mut back, b"from first ");
    keep(&client, &back, 10);
    let mut again = present(&mut next, &fd, 6).unwrap();
    next.send(&mut again, b"and again");
    assert_eq!(server.receive_exact(&mut here, 30), b"from next from first and again");
    keep(&next, &again, 6);
    // Who has it dies, and so does who had it first: another one has the descriptor.
    drop(next);
    daemon.until_applications(2);
    let mut back = present(&mut client, &fd, 11).unwrap();
    server.send(&mut here, b"still there");
    assert_eq!(client.receive_exact(&mut back, 11), b"still there");
    keep(&client, &back, 11);
    drop(client);
    another_ends(&daemon);
    assert_eq!(server.peer_flags(&here) & (FIN | RESET), 0, "this process has the descriptor");
    drop(fd);
    server.until("its end", |s| s.peer_flags(&here) & RELEASED != 0);
    assert_eq!(server.peer_flags(&here) & RESET, 0, "everything was read");
    server.close(&here);
    daemon.until("nothing is left of it", |sockets| sockets.len() == 1);
}

/// Whatever way it has come, a connection that is read goes through one relay, and of those who had it nothing is kept.
#[test]
fn relays_in_a_row_become_one() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
        let (mut server, mut here, mut client, mut there) = connected(&daemon);
        let fd = placeholder();
        client.send(&mut there, b"0");
        assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
        for i in 1..=40u8 {
            let mut next = App::new(&daemon);
            let mut moved = present(&mut next, &fd, 5).unwrap();
            server.send(&mut here, &[i; 100]);
            assert_eq!(next.receive_exact(&mut moved, 90), [i; 90]);
            next.send(&mut moved, &[i]);
            keep(&next, &moved, 5);
            // What is left unread the next one gets.
            let mut other = App::new(&daemon);
            let mut moved = present(&mut other, &fd, 6).unwrap();
            assert_eq!(other.receive_exact(&mut moved, 10), [i; 10]);
            keep(&other, &moved, 6);
        }
        let sent: Vec<u8> = std::iter::once(b'0').chain(1..=40).collect();
        assert_eq!(server.receive_exact(&mut here, 41), sent);
        let relays = if sharing == Sharing::Always { 1 } else { 2 };
        daemon.until("one relay is left", |s| s.iter().filter(|s| s["kind"] == "relay").count() == relays);
        drop((client, fd));
        server.until("its end", |s| s.receive(&mut here, 1).is_none());
        server.close(&here);
        daemon.until("nothing is left of it", |sockets| sockets.len() == 1);
    }
}

/// A process that keeps on taking connections over and closing them has its memory back.
#[test]
fn rings_of_connections_that_were_taken_over_are_free_again() {
    let daemon = Daemon::start(Options::default());
    let mut next = App::new(&daemon);
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    for _ in 0..64 {
        let there = client.connect(address);
        let (mut here, _) = server.accept_wait(queue);
        let fd = placeholder();
        assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
        let mut moved = present(&mut next, &fd, 5).unwrap();
        next.send(&mut moved, &[7; 65_536]);
        keep(&next, &moved, 5);
        next.region.sock(5).unwrap().holders.fetch_and(TRUST, Ordering::SeqCst);
        client.region.sock(9).unwrap().holders.fetch_and(TRUST, Ordering::SeqCst);
        drop(fd);
        next.say(Request::LetGo);
        assert_eq!(server.receive_exact(&mut here, 65_536), [7; 65_536]);
        server.until("its end", |s| s.receive(&mut here, 1).is_none());
        server.close(&here);
        let (next, client) = (next.region.sock(5).unwrap(), client.region.sock(9).unwrap());
        let holders = || next.holders.load(Ordering::SeqCst) | client.holders.load(Ordering::SeqCst);
        daemon.until("nothing is left of it", |sockets| sockets.len() == 1 && holders() == 0);
    }
}

#[test]
fn positions_that_make_no_sense_end_the_connection_alone() {
    let daemon = Daemon::start(Options::default());
    let (mut server, here, mut client, mut there) = connected(&daemon);
    let fd = placeholder();
    client.send(&mut there, b"some bytes");
    there.sender.head += 4096;
    assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
    let mut next = App::new(&daemon);
    assert!(matches!(present(&mut next, &fd, 5), Err(Reply::Refused { .. })));
    server.until("the reset", |s| s.peer_flags(&here) & RESET != 0);
    assert!(matches!(present(&mut next, &fd, 5), Err(Reply::Kernel { .. })), "it is forgotten");
    drop(client);
}

#[test]
fn nobody_gives_away_what_is_not_theirs() {
    let daemon = Daemon::start(Options::default());
    let (mut server, here, mut client, there) = connected(&daemon);
    let fd = placeholder();
    assert!(matches!(present(&mut server, &fd, 5), Err(Reply::Kernel { .. })), "no connection was left");
    assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
    assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done, "said twice");
    // The server has the descriptor, too: it cannot pass its own connection off for the client's.
    assert!(matches!(leave(&mut server, &here, 9, &fd), Reply::Refused { .. }));
    assert_eq!(server.region.sock(9).unwrap().holders.load(Ordering::Relaxed) & TRUST, 0);
    let thief = App::new(&daemon);
    let left = Left { region: there.region, slot: there.slot, side: 0, home: thief.info.id, sock: 3 };
    let message = control::ToService { number: 0, request: Request::Leave(left) };
    thief.line.send(&message, &[placeholder().as_fd()], true).unwrap();
    let end = std::time::Instant::now() + crate::common::PATIENCE;
    loop {
        match thief.line.receive::<ToApplication>(false) {
            Err(LineError::WouldBlock) => {
                assert!(std::time::Instant::now() < end, "the thief is not detached");
            }
            Err(_) => break,
            Ok(_) => {}
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(present(&mut App::new(&daemon), &fd, 5).is_ok(), "it is the client's all the same");
    drop((client, thief));
}

/// Two who have the descriptor: one sends it on while the other takes the connection.
#[test]
fn who_leaves_what_has_just_gone_on_is_late_and_no_thief() {
    let daemon = Daemon::start(Options::default());
    let (mut server, mut here, mut client, there) = connected(&daemon);
    let fd = placeholder();
    assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
    let mut next = App::new(&daemon);
    let moved = present(&mut next, &fd, 5).unwrap();
    keep(&next, &moved, 5);
    let back = present(&mut client, &fd, 10).unwrap();
    keep(&client, &back, 10);
    daemon.until("one relay is left", |s| s.iter().filter(|s| s["kind"] == "relay").count() == 1);
    // As the library does before it says so.
    next.region.sock(5).unwrap().holders.fetch_or(TRUST, Ordering::Relaxed);
    assert_eq!(leave(&mut next, &moved, 5, &fd), Reply::Done);
    assert_eq!(next.region.sock(5).unwrap().holders.load(Ordering::Relaxed) & TRUST, 0);
    assert!(
        matches!(leave(&mut next, &moved, 5, &placeholder()), Reply::Refused { .. }),
        "of that nothing is known"
    );
    let mut third = App::new(&daemon);
    let mut moved = present(&mut third, &fd, 6).unwrap();
    third.send(&mut moved, b"goes on");
    assert_eq!(server.receive_exact(&mut here, 7), b"goes on");
    drop((client, next));
}

#[test]
fn a_connection_that_is_being_made_is_had_when_it_is_made() {
    let daemon = Daemon::start(Options::default());
    let (mut server, mut here, mut client, there) = connected(&daemon);
    let fd = placeholder();
    // What the client sees of a handshake over a port that is not over yet.
    let flags = |server: &App, how: &dyn Fn(&AtomicU32)| {
        how(&server.region_of(here.region).slot(here.slot).unwrap().half[here.side].flags);
    };
    flags(&server, &|flags: &AtomicU32| {
        flags.fetch_and(!OPEN, Ordering::SeqCst);
    });
    assert_eq!(leave(&mut client, &there, 9, &fd), Reply::Done);
    drop(client);
    let mut next = App::new(&daemon);
    let in_progress = Errno::INPROGRESS.raw_os_error();
    let answer = present(&mut next, &fd, 5);
    assert!(matches!(answer, Err(Reply::Refused { errno, .. }) if errno == in_progress));
    flags(&server, &|flags: &AtomicU32| {
        flags.fetch_or(OPEN, Ordering::SeqCst);
    });
    let mut moved = present(&mut next, &fd, 5).unwrap();
    next.send(&mut moved, b"made");
    assert_eq!(server.receive_exact(&mut here, 4), b"made");
}
