//! The wire between two simulated hosts: ports in memory, and a network that loses, delays, repeats and reorders frames by a seed.

use base::{Duration, Instant, Seed};
use port::{Batch, Capabilities, Lent, PacketBuf, Port, Stats};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Frames that may wait for the network before `reserve` fails.
const TRANSMIT_RING: usize = 256;

/// A port for tests: its wire is two queues of frames.
#[derive(Debug)]
pub struct Frames {
    capabilities: Capabilities,
    /// Frames that have come.
    pub received: VecDeque<Vec<u8>>,
    /// Frames for the network.
    pub sent: VecDeque<Vec<u8>>,
    reserved: PacketBuf,
}

impl Frames {
    /// A port without offloads for frames of 1,500 bytes.
    pub fn new(mac: [u8; 6]) -> Self {
        let capabilities = Capabilities::plain(1_500, mac);
        let reserved = PacketBuf::with_capacity(1_600);
        Self { capabilities, received: VecDeque::new(), sent: VecDeque::new(), reserved }
    }
}

impl Port for Frames {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, batch: &mut Batch) -> usize {
        batch.clear();
        while !batch.is_full() {
            let Some(frame) = self.received.pop_front() else { break };
            let Some(slot) = batch.slot() else { break };
            assert!(slot.fill(&frame));
            slot.meta = Default::default();
            batch.push_slot();
        }
        batch.len()
    }

    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        self.reserved.clear();
        (self.sent.len() < TRANSMIT_RING).then_some(&mut self.reserved)
    }

    fn commit_with(&mut self, payload: Lent<'_>) {
        assert!(self.reserved.append(payload) && port::complete_checksum(&mut self.reserved));
        self.sent.push_back(self.reserved.frame().to_vec());
    }

    fn flush(&mut self) {}

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// What the network does to frames.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Frames lost, per million.
    loss: u32,
    /// Frames that come twice, per million.
    twice: u32,
    /// Delay of each frame, and what is added to it at most: more than the time between two frames, so that they overtake each other.
    delay: Duration,
    jitter_us: u64,
}

impl Weather {
    /// Weather by a seed, from a good network to a bad one.
    pub fn of(seed: &mut Seed) -> Self {
        let bad = seed.below(3) as u32;
        Self {
            loss: bad * seed.below(15_000) as u32,
            twice: bad * seed.below(5_000) as u32,
            delay: Duration::from_us(20 + seed.below(5_000)),
            jitter_us: if seed.chance(500_000) { 1 } else { 1 + seed.below(2_000) },
        }
    }
}

/// A frame on its way: when it arrives, its number, the host that it is for, and its bytes.
type Way = Reverse<(Instant, u64, usize, Vec<u8>)>;

/// The network between the two hosts.
#[derive(Debug)]
pub struct Network {
    weather: Weather,
    seed: Seed,
    ways: BinaryHeap<Way>,
    number: u64,
    /// All frames are lost until then.
    pub dark_until: Instant,
}

impl Network {
    /// A network without frames.
    pub fn new(seed: u64, weather: Weather) -> Self {
        Self { weather, seed: Seed::new(seed), ways: BinaryHeap::new(), number: 0, dark_until: Instant::ZERO }
    }

    /// Takes a frame for that host.
    pub fn send(&mut self, now: Instant, to: usize, frame: &[u8]) {
        if now < self.dark_until || self.seed.chance(self.weather.loss) {
            return;
        }
        let copies = 1 + u32::from(self.seed.chance(self.weather.twice));
        for _ in 0..copies {
            let jitter = Duration::from_us(self.seed.below(self.weather.jitter_us));
            self.number += 1;
            let at = now.plus(self.weather.delay).plus(jitter);
            self.ways.push(Reverse((at, self.number, to, frame.to_vec())));
        }
    }

    /// The next frame that has arrived, with its host.
    pub fn receive(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        self.ways.peek().filter(|Reverse((at, ..))| *at <= now)?;
        self.ways.pop().map(|Reverse((_, _, to, frame))| (to, frame))
    }

    /// When the next frame arrives.
    pub fn next_deadline(&self) -> Instant {
        self.ways.peek().map_or(Instant::NEVER, |Reverse((at, ..))| *at)
    }
}
