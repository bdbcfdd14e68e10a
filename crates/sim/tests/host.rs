//! Two hosts on a wire without delay: the calls of sockets do what Linux's do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use base::{Duration, Instant};
use sim::{Errno, Fd, Host, HostConfig, Leftovers, Shutdown};
use std::net::SocketAddr;

struct Pair {
    hosts: [Host; 2],
    now: Instant,
}

fn pair() -> Pair {
    let now = Instant::from_ns(1_000_000_000);
    let host = |i: u8| {
        let addresses = [([10, 0, 0, i].into(), 24), ([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(i)].into(), 64)];
        Host::new(&HostConfig::new([2, 0, 0, 0, 0, i], &addresses, u64::from(i)), now)
    };
    Pair { hosts: [host(1), host(2)], now }
}

impl Pair {
    /// Runs both for `time`.
    fn run(&mut self, time: Duration) {
        let until = self.now.plus(time);
        loop {
            for me in 0..2 {
                self.hosts[me].run(self.now);
                self.hosts[me].check().unwrap();
                while let Some(frame) = self.hosts[me].next_frame() {
                    self.hosts[1 - me].inject(&frame);
                }
            }
            let next = self.hosts[0].next_deadline().min(self.hosts[1].next_deadline());
            if next > until {
                break;
            }
            self.now = self.now.max(next);
        }
        self.now = until;
    }

    fn connected(&mut self, server: &str) -> (Fd, Fd, Fd) {
        let server: SocketAddr = server.parse().unwrap();
        let listener = self.hosts[1].socket(server.is_ipv6());
        self.hosts[1].bind(listener, server).unwrap();
        self.hosts[1].listen(listener, 8).unwrap();
        let client = self.hosts[0].socket(server.is_ipv6());
        assert_eq!(self.hosts[0].connect(client, server), Err(Errno::INPROGRESS));
        self.run(Duration::from_ms(1));
        assert_eq!(self.hosts[0].connect(client, server), Ok(()));
        let (accepted, peer) = self.hosts[1].accept(listener).unwrap();
        assert_eq!(Some(peer), self.hosts[0].local_addr(client));
        (listener, client, accepted)
    }

    /// Nothing is left once TIME-WAIT has passed.
    fn end(mut self) {
        self.run(Duration::from_secs(200));
        let now = self.now;
        for host in &mut self.hosts {
            assert_eq!(host.retire(now), Leftovers::default());
        }
    }
}

#[test]
fn bytes_go_both_ways_and_nothing_is_left() {
    for server in ["10.0.0.2:80", "[fd00::2]:80"] {
        let mut pair = pair();
        let (listener, client, accepted) = pair.connected(server);
        let text = b"a stream is bytes in order".repeat(10_000);
        let mut got = Vec::new();
        let mut sent = 0;
        let mut piece = vec![0; 65_536];
        while got.len() < text.len() {
            if let Ok(n) = pair.hosts[0].send(client, &text[sent..], 0) {
                sent += n;
            }
            pair.run(Duration::from_ms(1));
            if let Ok(n) = pair.hosts[1].receive(accepted, &mut piece, 0) {
                got.extend_from_slice(&piece[..n]);
            }
        }
        assert!(got == text);
        pair.hosts[0].shutdown(client, Shutdown::Write).unwrap();
        pair.run(Duration::from_ms(1));
        assert_eq!(pair.hosts[1].receive(accepted, &mut piece, 0), Ok(0));
        assert_eq!(pair.hosts[1].send(accepted, b"still open", 0), Ok(10));
        pair.hosts[1].close(accepted).unwrap();
        pair.run(Duration::from_ms(1));
        assert_eq!(pair.hosts[0].receive(client, &mut piece, 0), Ok(10));
        assert_eq!(pair.hosts[0].receive(client, &mut piece, 0), Ok(0));
        pair.hosts[0].close(client).unwrap();
        pair.hosts[1].close(listener).unwrap();
        pair.end();
    }
}

#[test]
fn a_port_without_listener_refuses() {
    let mut pair = pair();
    let client = pair.hosts[0].socket(false);
    let server = "10.0.0.2:81".parse().unwrap();
    assert_eq!(pair.hosts[0].connect(client, server), Err(Errno::INPROGRESS));
    assert_eq!(pair.hosts[0].connect(client, server), Err(Errno::ALREADY));
    pair.run(Duration::from_ms(1));
    assert_eq!(pair.hosts[0].next_news(), Some(client));
    assert_eq!(pair.hosts[0].connect(client, server), Err(Errno::CONNREFUSED));
    pair.hosts[0].close(client).unwrap();
    pair.end();
}

#[test]
fn a_crash_resets_what_was_not_read_and_leaves_nothing() {
    let mut pair = pair();
    let (_, client, _) = pair.connected("10.0.0.2:80");
    pair.hosts[0].send(client, b"never read", 0).unwrap();
    pair.run(Duration::from_ms(1));
    pair.hosts[1].crash();
    pair.run(Duration::from_ms(1));
    assert_eq!(pair.hosts[0].receive(client, &mut [0; 8], 0), Err(Errno::CONNRESET));
    pair.hosts[0].close(client).unwrap();
    pair.end();
}

#[test]
fn news_are_told_once_and_readiness_says_which() {
    let mut pair = pair();
    let (_, client, accepted) = pair.connected("10.0.0.2:80");
    while pair.hosts[1].next_news().is_some() {}
    assert_eq!(pair.hosts[1].readiness(accepted) & libc::EPOLLIN as u32, 0);
    pair.hosts[0].send(client, b"x", 0).unwrap();
    pair.run(Duration::from_ms(1));
    assert_eq!(pair.hosts[1].next_news(), Some(accepted));
    assert_eq!(pair.hosts[1].next_news(), None);
    assert_ne!(pair.hosts[1].readiness(accepted) & libc::EPOLLIN as u32, 0);
    assert_eq!((pair.hosts[1].unread(accepted), pair.hosts[0].unsent(client)), (1, 1));
}

#[test]
fn a_full_accept_queue_takes_one_more_than_its_backlog() {
    let mut pair = pair();
    let server: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let listener = pair.hosts[1].socket(false);
    pair.hosts[1].bind(listener, server).unwrap();
    pair.hosts[1].listen(listener, 1).unwrap();
    for _ in 0..5 {
        let client = pair.hosts[0].socket(false);
        let _ = pair.hosts[0].connect(client, server);
    }
    pair.run(Duration::from_ms(10));
    let mut accepted = Vec::new();
    while let Ok((fd, _)) = pair.hosts[1].accept(listener) {
        accepted.push(fd);
    }
    assert_eq!(accepted.len(), 2);
    pair.run(Duration::from_secs(10));
    assert!(pair.hosts[1].accept(listener).is_ok(), "the peers' SYN comes again");
}

#[test]
fn linger_zero_resets() {
    let mut pair = pair();
    let (listener, client, accepted) = pair.connected("10.0.0.2:80");
    let linger = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
    pair.hosts[0].set_option(client, libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
    pair.hosts[0].close(client).unwrap();
    pair.run(Duration::from_ms(1));
    assert_eq!(pair.hosts[1].receive(accepted, &mut [0; 8], 0), Err(Errno::CONNRESET));
    pair.hosts[1].close(accepted).unwrap();
    pair.hosts[1].close(listener).unwrap();
    pair.end();
}
