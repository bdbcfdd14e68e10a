//! Two hosts on a wire, mostly without delay: the calls of sockets do what Linux's do.

use base::{Duration, Instant};
use sim::{Errno, Fd, Host, HostConfig, Leftovers};
use std::collections::VecDeque;
use std::net::SocketAddr;

struct Pair {
    hosts: [Host; 2],
    now: Instant,
    /// One way.
    delay: Duration,
    /// Frames under way, when they arrive and where.
    wire: VecDeque<(Instant, usize, Vec<u8>)>,
    /// Number of long frames that have gone to the second host. Every second one of those with numbers in `lost` is lost.
    long: u32,
    lost: std::ops::Range<u32>,
}

fn pair() -> Pair {
    pair_with(true)
}

fn pair_with(timestamps: bool) -> Pair {
    let now = Instant::from_ns(1_000_000_000);
    let host = |i: u8| {
        let addresses = [([10, 0, 0, i].into(), 24), ([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(i)].into(), 64)];
        let mut config = HostConfig::new([2, 0, 0, 0, 0, i], &addresses, u64::from(i));
        config.shared.timestamps = timestamps;
        Host::new(&config, now)
    };
    Pair { hosts: [host(1), host(2)], now, delay: Duration::ZERO, wire: VecDeque::new(), long: 0, lost: 0..0 }
}

impl Pair {
    /// Runs both for `time`.
    fn run(&mut self, time: Duration) {
        let until = self.now.plus(time);
        loop {
            while self.wire.front().is_some_and(|(at, ..)| *at <= self.now)
                && let Some((_, to, frame)) = self.wire.pop_front()
            {
                self.hosts[to].inject(&frame);
            }
            for me in 0..2 {
                self.hosts[me].run(self.now);
                self.hosts[me].check().unwrap();
                while let Some(frame) = self.hosts[me].next_frame() {
                    self.long += u32::from(me == 0 && frame.len() > 1000);
                    let is_long = me == 0 && frame.len() > 1000;
                    if is_long && self.lost.contains(&self.long) && self.long.is_multiple_of(2) {
                        continue;
                    }
                    self.wire.push_back((self.now.plus(self.delay), 1 - me, frame));
                }
            }
            let arrival = self.wire.front().map_or(Instant::NEVER, |(at, ..)| *at);
            let next = self.hosts[0].next_deadline().min(self.hosts[1].next_deadline()).min(arrival);
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
        pair.hosts[0].shutdown(client, libc::SHUT_WR).unwrap();
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

/// A start that is too quick for a long path loses every second segment of a window. The receiver keeps all that has come, as far as its window
/// reaches, so that the sender repeats what was lost and little more.
#[test]
fn a_lossy_start_of_a_long_path_throws_nothing_away_that_has_come() {
    const LOST: u32 = 200;
    let mut pair = pair();
    let (_, client, accepted) = pair.connected("10.0.0.2:80");
    pair.delay = Duration::from_ms(10);
    pair.lost = 600..600 + 2 * LOST;
    let mut piece = vec![0; 1 << 20];
    let (mut sent, mut got) = (0u64, 0u64);
    while sent < 8 << 20 || got < sent {
        if sent < 8 << 20 {
            sent += pair.hosts[0].send(client, &[1; 65_536], 0).unwrap_or(0) as u64;
        }
        pair.run(Duration::from_us(200));
        got += pair.hosts[1].receive(accepted, &mut piece, 0).unwrap_or(0) as u64;
    }
    let receiver = pair.hosts[1].counters();
    assert_eq!((got, receiver.of(fastpath::Cause::IntervalsFull)), (sent, 0));
    let (lost, again) = (u64::from(LOST) * 1448, pair.hosts[0].counters().retransmitted_bytes);
    assert!(pair.long > 600 + 2 * LOST && again >= lost, "{again} bytes were sent again");
    assert!(again <= lost + lost / 4, "{again} bytes were sent again, {lost} were lost");
}

/// What `TCP_INFO` says of the round trip that the receiver of data measures, microseconds.
fn receiver_rtt(host: &mut Host, fd: Fd) -> u32 {
    let mut info = [0; 96];
    assert_eq!(host.option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info), Ok(96));
    u32::from_ne_bytes(info[92..].try_into().unwrap())
}

#[test]
fn the_receivers_round_trip_is_the_paths() {
    for (timestamps, delay_ms) in [(true, 10), (false, 10), (true, 60), (false, 60)] {
        let mut pair = pair_with(timestamps);
        let (_, client, accepted) = pair.connected("10.0.0.2:80");
        pair.delay = Duration::from_ms(delay_ms);
        let mut piece = vec![0; 1 << 20];
        // A small request in a while shows nothing.
        for _ in 0..20 {
            pair.hosts[0].send(client, b"request", 0).unwrap();
            pair.run(Duration::from_ms(300));
            assert_eq!(pair.hosts[1].receive(accepted, &mut piece, 0), Ok(7));
        }
        assert_eq!(receiver_rtt(&mut pair.hosts[1], accepted), 0);
        for _ in 0..2_000 {
            pair.hosts[0].send(client, &[1; 65_536], 0).ok();
            pair.run(Duration::from_ms(1));
            pair.hosts[1].receive(accepted, &mut piece, 0).ok();
        }
        let (rtt, path) = (receiver_rtt(&mut pair.hosts[1], accepted), 2_000 * delay_ms as u32);
        // The clock of timestamps has steps of a millisecond; acknowledgements wait for a second segment.
        assert!((path..path + path / 10).contains(&rtt), "{rtt} us over {path} us, timestamps {timestamps}");
        assert_eq!(receiver_rtt(&mut pair.hosts[0], client), 0, "who receives no data");
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
    assert_eq!(
        (pair.hosts[1].told(accepted, libc::FIONREAD), pair.hosts[0].told(client, libc::TIOCOUTQ)),
        (Some(1), Some(1))
    );
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
