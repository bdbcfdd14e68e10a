//! What programs hold back within one host, and whom the service has to speak for.

use crate::common::{App, Conn, Daemon, listener};
use control::Report;
use queue::{Doorbell, Wake};
use service::{Options, Sharing};
use shm::half_flags::{FIN, NEAR, PUSHING};
use shm::sock_state::HELD;
use shm::{HELD_CONTEXT, Side};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Writes `bytes` behind what was sent and announces nothing: the library's `TCP_CORK`. There is a ring with room.
fn hold(app: &App, conn: &mut Conn, sock: u32, bytes: &[u8]) {
    let region = app.region_of(conn.region);
    let [(a, an), (b, _)] = conn.sender.ring.unwrap().spans(conn.sender.head, bytes.len());
    let side = Side::from_index(conn.side as u8).unwrap();
    region.write(side, a, &bytes[..an]);
    region.write(side, b, &bytes[an..]);
    conn.sender.withhold(bytes.len());
    let block = app.region.sock(sock).unwrap();
    block.slot.store(conn.slot, Ordering::Relaxed);
    block.region.store(conn.region, Ordering::Relaxed);
    block.holders.store(1 << app.welcome.holder, Ordering::Relaxed);
    conn.sender.keep(block);
    block.state.store(HELD, Ordering::Release);
    if Doorbell::of(&app.region, Side::Zero, HELD_CONTEXT).unwrap().ring(sock) == Wake::Needed {
        rustix::io::write(&app.service_wakers[0], &1u64.to_ne_bytes()).unwrap();
    }
}

/// A server's end and a client's, through which a word has gone.
fn joined(server: &mut App, client: &mut App) -> (Conn, Conn) {
    let (socket, address) = listener();
    let queue = server.listen(&socket, 8);
    let mut there = client.connect(address);
    let (mut here, _) = server.accept_wait(queue);
    client.send(&mut there, b"seen");
    assert_eq!(server.receive_exact(&mut here, 4), b"seen");
    (here, there)
}

fn both(test: impl Fn(&Daemon, &mut App, App)) {
    for sharing in [Sharing::SameUser, Sharing::Never] {
        let daemon = Daemon::start(Options { sharing: Some(sharing), ..Options::default() });
        let (mut server, client) = (App::new(&daemon), App::new(&daemon));
        test(&daemon, &mut server, client);
    }
}

#[test]
fn what_nobody_comes_back_to_goes_after_200_ms() {
    both(|_, server, mut client| {
        let (mut here, mut there) = joined(server, &mut client);
        let is_relayed = there.region == client.info.id;
        assert_eq!(
            client.peer_flags(&there) & NEAR != 0,
            is_relayed,
            "who sends is told that it holds back itself"
        );
        for word in [b"held", b"then", b"last"] {
            let begin = Instant::now();
            hold(&client, &mut there, 3, word);
            assert_eq!(server.receive_told(&mut here, 4), word);
            // The service looks every 50 ms.
            assert!(begin.elapsed() > Duration::from_millis(120), "{:?}", begin.elapsed());
            client.own_half(&there, |own| assert_eq!(own.flags.load(Ordering::Relaxed) & PUSHING, 0));
        }
    });
}

#[test]
fn the_service_falls_asleep_when_nothing_is_held_and_is_woken_again() {
    let daemon = Daemon::start(Options::default());
    let (mut server, mut client) = (App::new(&daemon), App::new(&daemon));
    let (mut here, mut there) = joined(&mut server, &mut client);
    for _ in 0..2 {
        let sleeps =
            |app: &App| app.region.context(Side::Zero, HELD_CONTEXT).unwrap().sleeping.load(Ordering::SeqCst);
        client.until("it waits for the bell", |client| sleeps(client) == 1);
        hold(&client, &mut there, 3, b"held");
        assert_eq!(sleeps(&client), 0);
        assert_eq!(server.receive_exact(&mut here, 4), b"held");
    }
}

#[test]
fn the_dead_have_sent_what_they_held_back() {
    both(|daemon, server, mut client| {
        let (mut here, mut there) = joined(server, &mut client);
        hold(&client, &mut there, 3, b"last words");
        drop(client);
        server.until("the end", |server| server.peer_flags(&here) & FIN != 0);
        assert_eq!(server.receive_exact(&mut here, 10), b"last words");
        assert_eq!(server.receive(&mut here, 10), None);
        server.close(&here);
        daemon.until("only the listener is left", |sockets| sockets.len() == 1);
    });
}

#[test]
fn nobody_lets_go_of_what_is_anothers() {
    let daemon = Daemon::start(Options::default());
    let (mut server, mut client, mut hostile) = (App::new(&daemon), App::new(&daemon), App::new(&daemon));
    let (mut here, mut there) = joined(&mut server, &mut client);
    let (_mine, _) = joined(&mut server, &mut hostile);
    let (region, slots) = (&hostile.region, hostile.region.layout().params.slots);
    // It says of every socket that it holds back what is the client's, and rings, until the service has looked so often that the time
    // limit of held bytes is long over.
    let (begin, mut looks) = (Instant::now(), 0);
    while looks < 10 || begin.elapsed() < Duration::from_millis(500) {
        let bell = Doorbell::of(region, Side::Zero, HELD_CONTEXT).unwrap();
        for index in 0..slots {
            let block = region.sock(index).unwrap();
            block.region.store(there.region, Ordering::Relaxed);
            block.slot.store(there.slot, Ordering::Relaxed);
            block.tx_head.store(u64::MAX, Ordering::Relaxed);
            block.state.store(u32::MAX, Ordering::Relaxed);
            if bell.ring(index) == Wake::Needed {
                rustix::io::write(&hostile.service_wakers[0], &1u64.to_ne_bytes()).unwrap();
            }
        }
        client.until("the service looks", |_| !bell.has_news());
        looks += 1;
    }
    client.own_half(&there, |own| assert_eq!(own.tx_head.load(Ordering::Relaxed), 4));
    client.send(&mut there, b"still");
    assert_eq!(server.receive_exact(&mut here, 5), b"still");
    assert!(daemon.report(Report::Statistics)["detached"].as_u64().is_some(), "the service answers");
}
