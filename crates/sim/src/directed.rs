//! One host; a string of bytes decides what its peers, its applications and its clock do. This is the body of the fuzz target
//! `tcp_segments`, and of the test that repeats its corpus.
//!
//! ```text
//!   bytes --> steps: a segment from one of the peers | time passes | an application calls | an ICMP error | any frame
//!                                   |
//!             host.run, frames out, what the peers know of the connection, oracles
//! ```
//! The bytes name fields relative to the numbers that a real peer would send, so that the fuzzer reaches deep states without guessing
//! sequence numbers; any field may also be given as a plain number. For all bytes, the host must not panic, must come to rest, must
//! keep its invariants, must not send more segments than it got to a peer that has acknowledged nothing, and must hold no
//! resources when everything is closed and all timers have expired.

mod input;
mod peers;

use crate::host::{Host, HostConfig};
use crate::sockets::Fd;
use base::{Duration, Instant};
pub(crate) use input::Input;
use peers::{Peer, Peers, Step};
use std::net::{IpAddr, SocketAddr};

/// The host's address; its peers are on the same link.
pub(crate) const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
/// The port on which the host listens.
pub(crate) const PORT: u16 = 80;
/// The host's Ethernet address.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const START: Instant = Instant::from_ns(1_000_000_000_000);
/// Largest number of steps; the rest of a longer string is ignored.
const STEPS_MAX: usize = 256;
/// Time for everything to end once all sockets are closed: the last retransmission, TIME-WAIT and a margin.
const END: Duration = Duration::from_secs(3600);
/// Largest number of times that the host is woken until a given time.
const WAKES_MAX: usize = 100_000;
const PASSES: [Duration; 8] = [
    Duration::from_us(1),
    Duration::from_ms(1),
    Duration::from_ms(40),
    Duration::from_ms(200),
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(61),
    Duration::from_secs(600),
];

/// What happened in a run, so that a test can see that the run reached something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Number of steps taken.
    pub steps: usize,
    /// Connections that peers opened and applications accepted.
    pub accepted: usize,
    /// Connections that applications opened.
    pub opened: usize,
    /// Bytes that applications received.
    pub received: usize,
    /// Frames that the host sent.
    pub sent: usize,
}

struct World {
    host: Host,
    now: Instant,
    peers: Peers,
    listener: Fd,
    sockets: Vec<Fd>,
    outcome: Outcome,
}

/// Runs the steps that `bytes` describe.
///
/// # Errors
/// A description of the oracle that does not hold.
pub fn run(bytes: &[u8]) -> Result<Outcome, String> {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input)?;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input)?;
        world.outcome.steps += 1;
    }
    world.end()
}

impl World {
    fn new(input: &mut Input<'_>) -> Result<Self, String> {
        let switches = input.byte();
        let mut config = HostConfig::new(MAC, &[(HOST, 24)], u64::from(input.byte()));
        config.data_len = 4 << 20;
        let is_on = |bit: u8| switches & bit == 0;
        let shared = &mut config.shared;
        (shared.sack, shared.timestamps, shared.window_scaling) = (is_on(1), is_on(2), is_on(4));
        shared.ecn = !is_on(8);
        shared.receive_buffer_max = 1 << 18;
        shared.receive_buffer_initial = 1 << 16;
        config.slow.half_open_per_listener = if is_on(16) { 16 } else { 2 };
        let mut host = Host::new(&config, START);
        let listener = host.socket(false);
        let failed = |error| format!("the listener: {error}");
        host.bind(listener, SocketAddr::new(HOST, PORT)).map_err(failed)?;
        host.listen(listener, 4).map_err(failed)?;
        let peers = Peers::new();
        let mut world =
            Self { host, now: START, peers, listener, sockets: Vec::new(), outcome: Outcome::default() };
        world.settle(None)?;
        Ok(world)
    }

    fn step(&mut self, input: &mut Input<'_>) -> Result<(), String> {
        match input.byte() % 16 {
            0..8 => {
                let step = Step::read(input);
                let peer = step.peer;
                let frame = self.peers.segment(&step);
                self.deliver(frame, peer)
            }
            8 => {
                let (peer, frame) = self.peers.icmp_error(input);
                self.deliver(frame, peer)
            }
            9 => {
                let frame = input.bytes(64);
                self.host.inject(&frame);
                self.settle(None)
            }
            10..12 => {
                let until = self.now.plus(PASSES[usize::from(input.byte()) % PASSES.len()]);
                self.pass(until)
            }
            12 => {
                // The clock jumps, or the service was stopped: nothing ran in between.
                self.now = self.now.plus(PASSES[usize::from(input.byte()) % PASSES.len()]);
                self.settle(None)
            }
            _ => {
                self.call(input);
                self.settle(None)
            }
        }
    }

    fn deliver(&mut self, frame: Vec<u8>, peer: Peer) -> Result<(), String> {
        self.host.inject(&frame);
        self.settle(Some(peer))
    }

    /// Lets the host work at this instant and checks its output. `from` is the peer that has just sent one segment, if any.
    fn settle(&mut self, from: Option<Peer>) -> Result<(), String> {
        let mut to_stranger = 0;
        loop {
            self.host.run(self.now);
            let mut is_quiet = true;
            while let Some(frame) = self.host.next_frame() {
                is_quiet = false;
                self.outcome.sent += 1;
                if let Some(answer) = crate::neighbour(&frame, peers::PEER_MAC) {
                    self.host.inject(&answer);
                } else if self
                    .peers
                    .learn(&frame)
                    .is_some_and(|to| Some(to) == from && self.peers.is_stranger(to))
                {
                    to_stranger += 1;
                }
            }
            self.take_accepted();
            if is_quiet && self.host.next_deadline() > self.now {
                break;
            }
        }
        // A peer that has not shown that it receives our segments must not make the host send more segments than it sent.
        if to_stranger > 1 {
            return Err(format!("{to_stranger} segments answer one of a stranger"));
        }
        let half_open = self.host.leftovers().slow.half_open;
        if half_open > 16 {
            return Err(format!("{half_open} half-open connections for a backlog of 16"));
        }
        self.host.check()
    }

    fn take_accepted(&mut self) {
        while let Ok((fd, _)) = self.host.accept(self.listener) {
            self.outcome.accepted += 1;
            self.sockets.push(fd);
        }
    }

    fn pass(&mut self, until: Instant) -> Result<(), String> {
        for _ in 0..WAKES_MAX {
            let next = self.host.next_deadline().min(until);
            self.now = next.max(self.now);
            self.settle(None)?;
            if self.now >= until {
                return Ok(());
            }
        }
        Err(format!("woken {WAKES_MAX} times before {until:?} is reached"))
    }

    /// An application makes a call. The result of the call does not matter here, only that it returns.
    fn call(&mut self, input: &mut Input<'_>) {
        let (what, which) = (input.byte(), usize::from(input.byte()));
        let fd = self.sockets.get(which % self.sockets.len().max(1)).copied();
        match (what % 8, fd) {
            (0, _) => {
                let fd = self.host.socket(false);
                let (to, port) = self.peers.address(which);
                let bound = self.host.bind(fd, SocketAddr::new(HOST, port));
                let _ = self.host.connect(fd, to);
                self.outcome.opened += usize::from(bound.is_ok());
                self.sockets.push(fd);
            }
            (1 | 2, Some(fd)) => {
                let _ = self.host.send(fd, &vec![what; 1 + usize::from(input.byte()) * 64], 0);
            }
            (3 | 4, Some(fd)) => {
                let mut room = vec![0; 1 + usize::from(input.byte()) * 256];
                self.outcome.received += self.host.receive(fd, &mut room, 0).unwrap_or(0);
            }
            (5, Some(fd)) => {
                // `SHUT_RD`, `SHUT_WR` and `SHUT_RDWR` are 0, 1 and 2.
                let _ = self.host.shutdown(fd, i32::from(input.byte() % 3));
            }
            (6, Some(fd)) => {
                let _ = self.host.close(fd);
                self.sockets.retain(|other| *other != fd);
            }
            (7, Some(fd)) => {
                let (name, value) = (i32::from(input.byte() % 38), i32::from(input.word()));
                let _ = self.host.set_option(fd, libc::IPPROTO_TCP, name, &value.to_ne_bytes());
            }
            _ => {}
        }
    }

    /// Closes everything; the peers stay silent until all timers have expired.
    fn end(mut self) -> Result<Outcome, String> {
        for fd in std::mem::take(&mut self.sockets) {
            let _ = self.host.close(fd);
        }
        let _ = self.host.close(self.listener);
        self.settle(None)?;
        let until = self.now.plus(END);
        self.pass(until)?;
        let left = self.host.retire(self.now);
        if left.slow.records + left.slow.half_open + left.slow.openings + left.slow.time_wait + left.slots > 0
        {
            return Err(format!("left at the end: {left:?}"));
        }
        if left.receive_bytes > 0 || left.send_pages > 0 {
            return Err(format!("memory left at the end: {left:?}"));
        }
        Ok(self.outcome)
    }
}
