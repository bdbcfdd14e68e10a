//! Bursts of segments that no peer sends again, at a host whose slow path is slower than its core: nothing of them is lost.

use base::{Duration, Instant};
use fastpath::Cause;
use sim::{Errno, Fd, Host, HostConfig, Leftovers};
use slowpath::Count;

const CLIENT: usize = 0;
const SERVER: usize = 1;
const SOL_SOCKET: i32 = 1;
const SO_LINGER: i32 = 13;

/// A client and a server without a wire between them. All that the client sends at one moment comes as one burst.
struct Pair {
    hosts: [Host; 2],
    now: Instant,
}

impl Pair {
    /// The server has a ring of so many exceptions, of which its slow path takes `most` for each round of its core.
    fn new(ring_slots: usize, most: usize) -> Self {
        let now = Instant::from_ns(1_000_000_000);
        let host = |i: u8| {
            let mut config = HostConfig::new([2, 0, 0, 0, 0, i], &[([10, 0, 0, i].into(), 24)], u64::from(i));
            (config.slots, config.shared.flows, config.data_len) = (4096, 4096, 256 << 20);
            if usize::from(i) == SERVER + 1 {
                (config.shared.ring_slots, config.exceptions_most) = (ring_slots, most);
            } else {
                config.shared.ring_slots = 8192;
            }
            Host::new(&config, now)
        };
        Self { hosts: [host(1), host(2)], now }
    }

    /// Runs both for `time`.
    fn run(&mut self, time: Duration) {
        let until = self.now.plus(time);
        loop {
            for me in [CLIENT, SERVER] {
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

    /// One of them runs, and what it sends goes to `take` with the other.
    fn step(&mut self, me: usize, mut take: impl FnMut(&mut Host, &[u8])) {
        self.hosts[me].run(self.now);
        while let Some(frame) = self.hosts[me].next_frame() {
            take(&mut self.hosts[1 - me], &frame);
        }
    }

    fn listen(&mut self) -> Fd {
        let listener = self.hosts[SERVER].socket(false);
        self.hosts[SERVER].bind(listener, "10.0.0.2:80".parse().unwrap()).unwrap();
        self.hosts[SERVER].listen(listener, 4095).unwrap();
        listener
    }

    /// So many connections are asked for at one moment.
    fn connect(&mut self, count: usize) -> Vec<Fd> {
        let connect = |host: &mut Host| {
            let fd = host.socket(false);
            assert_eq!(host.connect(fd, "10.0.0.2:80".parse().unwrap()), Err(Errno::INPROGRESS));
            fd
        };
        (0..count).map(|_| connect(&mut self.hosts[CLIENT])).collect()
    }

    fn accept(&mut self, listener: Fd) -> Vec<Fd> {
        std::iter::from_fn(|| self.hosts[SERVER].accept(listener).ok().map(|(fd, _)| fd)).collect()
    }

    fn connected(&mut self, count: usize) -> (Fd, Vec<Fd>, Vec<Fd>) {
        let listener = self.listen();
        let (mut clients, mut accepted) = (Vec::new(), Vec::new());
        // A few at a time: a small ring loses SYNs, which are sent again.
        while accepted.len() < count {
            clients.extend(self.connect(2));
            self.run(Duration::from_ms(1));
            accepted.extend(self.accept(listener));
        }
        assert_eq!((clients.len(), self.lost()), (count, 0));
        (listener, clients, accepted)
    }

    fn lost(&self) -> u64 {
        self.hosts[SERVER].counters().of(Cause::ExceptionLost)
    }

    fn flows(&self) -> usize {
        self.hosts[SERVER].slow().census().connections
    }

    /// The server closes its connections, the last ends that are open, and then its listener.
    fn close_server(mut self, accepted: &[Fd], listener: Fd) {
        close(&mut self.hosts[SERVER], accepted);
        self.run(Duration::from_ms(1));
        assert_eq!(self.flows(), 0);
        close(&mut self.hosts[SERVER], &[listener]);
        self.end();
    }

    fn end(mut self) {
        self.run(Duration::from_secs(200));
        let now = self.now;
        for host in &mut self.hosts {
            assert_eq!(host.retire(now), Leftovers::default());
        }
    }
}

/// Closes all at one moment.
fn close(host: &mut Host, fds: &[Fd]) {
    fds.iter().for_each(|fd| host.close(*fd).unwrap());
}

/// A RST is sent once. Its flow's record keeps what it came to until the slow path has room to hear of it.
#[test]
fn a_burst_of_resets_ends_every_connection() {
    let mut pair = Pair::new(8, 1);
    let (listener, clients, accepted) = pair.connected(300);
    for fd in &accepted {
        assert_eq!(pair.hosts[SERVER].send(*fd, b"never read", 0), Ok(10));
    }
    pair.run(Duration::from_ms(1));
    // With unread data: resets, as on Linux.
    close(&mut pair.hosts[CLIENT], &clients);
    pair.run(Duration::from_secs(1));
    for fd in &accepted {
        assert_eq!(pair.hosts[SERVER].receive(*fd, &mut [0; 16], 0), Err(Errno::CONNRESET));
    }
    assert_eq!((pair.lost(), pair.hosts[SERVER].slow().counters().of(Count::ResetsTaken)), (0, 300));
    pair.close_server(&accepted, listener);
}

/// The same of FINs, of which each end's last acknowledgement is the only one.
#[test]
fn a_burst_of_fins_ends_every_connection() {
    let mut pair = Pair::new(8, 1);
    let (listener, clients, accepted) = pair.connected(300);
    close(&mut pair.hosts[CLIENT], &clients);
    pair.run(Duration::from_ms(1));
    for fd in &accepted {
        assert_eq!(pair.hosts[SERVER].receive(*fd, &mut [0; 16], 0), Ok(0));
    }
    close(&mut pair.hosts[SERVER], &accepted);
    pair.run(Duration::from_ms(100));
    assert_eq!((pair.lost(), pair.flows()), (0, 0));
    close(&mut pair.hosts[SERVER], &[listener]);
    pair.end();
}

/// As many SYNs as there may be half-open connections wait for a slow path that is late.
#[test]
fn a_burst_of_syns_is_answered_without_one_being_sent_again() {
    let mut pair = Pair::new(flow::Config::default().ring_slots, 1);
    let (listener, mut clients, mut accepted) = pair.connected(2);
    clients.extend(pair.connect(900));
    pair.run(Duration::from_ms(1));
    accepted.extend(pair.accept(listener));
    assert_eq!((accepted.len(), pair.lost()), (902, 0));
    assert_eq!(pair.hosts[CLIENT].slow().counters().of(Count::SynRetransmits), 0);
    close(&mut pair.hosts[CLIENT], &clients);
    close(&mut pair.hosts[SERVER], &accepted);
    close(&mut pair.hosts[SERVER], &[listener]);
    pair.end();
}

/// A peer that resets a connection right behind its handshake does so before there is a flow record to note the reset in. What is lost
/// of it then is asked for again.
#[test]
fn resets_behind_handshakes_end_every_connection_though_some_are_lost() {
    let mut pair = Pair::new(8, 1);
    // The client knows its neighbour from then on.
    let (listener, mut clients, mut accepted) = pair.connected(2);
    let mut late = Vec::new();
    for _ in 0..30 {
        clients.extend(pair.connect(1));
        pair.step(CLIENT, |server, frame| server.inject(frame));
        pair.step(SERVER, |client, frame| client.inject(frame));
        pair.step(CLIENT, |_, frame| late.push(frame.to_vec()));
    }
    let value = [1i32, 0].map(i32::to_ne_bytes).concat();
    for fd in &clients {
        pair.hosts[CLIENT].set_option(*fd, SOL_SOCKET, SO_LINGER, &value).unwrap();
    }
    close(&mut pair.hosts[CLIENT], &clients);
    pair.step(CLIENT, |_, frame| late.push(frame.to_vec()));
    // 30 last steps of handshakes, and behind them all resets.
    assert_eq!(late.len(), 30 + 32);
    late.iter().for_each(|frame| pair.hosts[SERVER].inject(frame));
    // When the last step of a handshake is lost, the server hears of it at its next SYN-ACK.
    pair.run(Duration::from_secs(3));
    accepted.extend(pair.accept(listener));
    for fd in &accepted {
        assert_eq!(pair.hosts[SERVER].receive(*fd, &mut [0; 16], 0), Err(Errno::CONNRESET));
    }
    assert!(pair.lost() > 0 && accepted.len() > 2, "the ring was to overflow");
    pair.close_server(&accepted, listener);
}

/// The ring's half that SYNs may use holds as many as are answered before cookies are all that is left.
#[test]
fn a_ring_holds_as_many_syns_as_there_are_half_open_connections() {
    let half = flow::Config::default().ring_slots / 2;
    assert!(slowpath::Config::default().half_open_max <= half);
}
