//! `TCP_DEFER_ACCEPT` within one host: who has said nothing is not accepted.

use crate::common::{App, Conn, Daemon, PATIENCE, listener};
use control::{Request, SocketOptions};
use queue::stream::raise;
use service::{Options, Sharing};
use shm::half_flags::{FIN, OPEN, READ_CLOSED, RELEASED, RESET};
use std::time::{Duration, Instant};

struct Deferring {
    server: App,
    client: App,
    at: std::net::SocketAddr,
    queue: u32,
    _socket: std::net::TcpListener,
    daemon: Daemon,
}

fn deferring(options: Options, seconds: u16) -> Deferring {
    let daemon = Daemon::start(options);
    let (mut server, client) = (App::new(&daemon), App::new(&daemon));
    let (socket, at) = listener();
    let queue = server.listen(&socket, 8);
    let told = SocketOptions { defer_accept: seconds, ..SocketOptions::default() };
    server.say(Request::SetOptions { region: queue, slot: 0, options: told });
    // What is asked after it is answered after it.
    server.ask(Request::Region { region: server.info.id });
    Deferring { server, client, at, queue, _socket: socket, daemon }
}

impl Deferring {
    fn connect(&mut self) -> Conn {
        let conn = self.client.connect(self.at);
        assert!(self.client.deferred);
        assert_eq!(self.client.lent, None, "a direct connector would not wait");
        self.client.until("it is established", |client| client.peer_flags(&conn) & OPEN != 0);
        conn
    }

    fn announce(&self, conn: &Conn) {
        self.client.say(Request::Announce { region: conn.region, slot: conn.slot });
    }

    /// True if the service has carried out what the client told it, and nothing waits.
    fn is_empty(&mut self) -> bool {
        self.client.ask(Request::Region { region: self.client.info.id });
        self.server.accept(self.queue).is_none()
    }
}

#[test]
fn who_has_said_nothing_is_not_accepted() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let mut d = deferring(Options { sharing: Some(sharing), ..Options::default() }, 20);
        let (quiet, mut other) = (d.connect(), d.connect());
        assert!(d.is_empty(), "{sharing:?}");
        d.client.send(&mut other, b"first bytes");
        d.announce(&other);
        let (mut here, _) = d.server.accept_wait(d.queue);
        assert_eq!(d.server.receive_exact(&mut here, 11), b"first bytes");
        // Once is enough.
        d.announce(&other);
        assert!(d.is_empty());
        d.client.own_half(&quiet, |half| raise(half, FIN));
        d.client.tell(&quiet);
        d.announce(&quiet);
        d.server.accept_wait(d.queue);
    }
}

#[test]
fn after_its_time_it_is_accepted_as_it_is() {
    let mut d = deferring(Options::default(), 1);
    let begin = Instant::now();
    d.connect();
    assert!(d.is_empty());
    d.server.accept_wait(d.queue);
    assert!(begin.elapsed() >= Duration::from_secs(1));
}

#[test]
fn who_has_reset_it_is_forgotten() {
    let mut d = deferring(Options::default(), 20);
    let conn = d.connect();
    d.client.own_half(&conn, |half| raise(half, RESET | READ_CLOSED | RELEASED));
    d.announce(&conn);
    assert!(d.is_empty());
}

#[test]
fn whose_listener_has_gone_hears_of_it_when_it_speaks() {
    let mut d = deferring(Options::default(), 20);
    let mut conn = d.connect();
    d.server.unlisten(d.queue, control::Unlisten::Stopped);
    assert_eq!(d.client.peer_flags(&conn) & RESET, 0);
    d.client.send(&mut conn, b"to nobody");
    d.announce(&conn);
    d.client.until("it is reset", |client| client.peer_flags(&conn) & RESET != 0);
}

#[test]
fn a_stranger_announces_nothing() {
    let mut d = deferring(Options::default(), 20);
    let conn = d.connect();
    let mut stranger = App::new(&d.daemon);
    stranger.say(Request::Announce { region: conn.region, slot: conn.slot });
    stranger.ask(Request::Region { region: stranger.info.id });
    assert!(d.is_empty());
}

#[test]
fn whichever_process_accepts_has_the_first_bytes() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let mut d = deferring(Options { sharing: Some(sharing), ..Options::default() }, 20);
        let mut second = App::new(&d.daemon);
        let queue = second.listen(&d._socket, 8);
        let mut all: Vec<Conn> = (0..6).map(|_| d.connect()).collect();
        assert!(d.is_empty());
        for conn in all.iter_mut().rev() {
            d.client.send(conn, b"bytes");
            d.announce(conn);
        }
        let mut heard = 0;
        let begin = Instant::now();
        while heard < all.len() && begin.elapsed() < PATIENCE {
            let here = d.server.accept(d.queue);
            let there = second.accept(queue);
            for (app, conn) in [(&mut d.server, here), (&mut second, there)] {
                if let Some((mut conn, _)) = conn {
                    assert_eq!(app.receive_exact(&mut conn, 5), b"bytes", "{sharing:?}");
                    heard += 1;
                }
            }
        }
        assert_eq!(heard, all.len(), "{sharing:?}");
    }
}

#[test]
fn who_dies_is_announced() {
    for sharing in [Sharing::Always, Sharing::Never] {
        let mut d = deferring(Options { sharing: Some(sharing), ..Options::default() }, 20);
        let conn = d.connect();
        assert!(d.is_empty());
        let Deferring { mut server, client, queue, at, .. } = d;
        drop((conn, client));
        assert_eq!(server.accept_wait(queue).1.local, at);
    }
}

#[test]
fn more_than_may_wait_to_be_accepted_do_not_wait() {
    let mut d = deferring(Options::default(), 20);
    let all: Vec<bool> = (0..20).map(|_| (d.client.connect(d.at), d.client.deferred).1).collect();
    assert_eq!(all.iter().filter(|deferred| **deferred).count(), 9, "as many as the backlog says, and one");
    d.server.accept_wait(d.queue);
}
