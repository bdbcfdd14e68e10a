//! The wire between two simulated hosts: ports in memory, and a network that loses, delays, repeats and reorders frames by a seed.

use base::{Duration, Instant, Seed};
use link::{Link, LinkConfig, Loss, Probability, Reorder};
use port::{Batch, Capabilities, Lent, PacketBuf, Port, Stats};
use std::collections::VecDeque;

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

/// A link by a seed, from a good one to a bad one. Its jitter may be more than the time between two frames, which then overtake each other.
pub fn weather(seed: &mut Seed) -> LinkConfig {
    let bad = seed.below(3) as u32;
    let mut most = |parts: u64| Probability::per_million(bad * seed.below(parts) as u32);
    let (loss, duplicate) = (Loss::Random(most(15_000)), most(5_000));
    let delay = Duration::from_us(20 + seed.below(5_000));
    let jitter = Duration::from_us(if seed.chance(500_000) { 0 } else { seed.below(2_000) });
    // With every frame "held back", for no time, each arrives when its own delay is over, whatever was sent before.
    let reorder = Reorder { probability: Probability::ALWAYS, extra: Duration::ZERO };
    LinkConfig { duplicate, jitter, reorder, ..LinkConfig::delayed(delay).with_loss(loss) }
}

/// The network between the two hosts.
#[derive(Debug)]
pub struct Network {
    /// The link to each host.
    links: [Link; 2],
    /// All frames are lost until then.
    pub dark_until: Instant,
    /// All frames to addresses on that way are lost.
    pub dark_way: Option<u8>,
}

/// The way that a frame goes, by the address that it is for: the third byte of an IPv4 address, in an ARP message as in a packet.
fn way(frame: &[u8]) -> Option<u8> {
    const ARP: &[u8] = &[8, 6];
    let target = if frame.get(12..14)? == ARP { 38 } else { 30 };
    frame.get(target + 2).copied()
}

impl Network {
    /// A network without frames.
    pub fn new(seed: &mut Seed, weather: &LinkConfig) -> Self {
        let links = [0, 1].map(|_| Link::new(weather.clone(), seed.next_u64()));
        Self { links, dark_until: Instant::ZERO, dark_way: None }
    }

    /// Takes a frame for that host.
    pub fn send(&mut self, now: Instant, to: usize, frame: Vec<u8>) {
        let is_lost = self.dark_way.is_some_and(|dark| way(&frame) == Some(dark));
        if self.dark_until <= now && !is_lost {
            self.links[to].send(now, frame);
        }
    }

    /// The next frame for that host that has arrived.
    pub fn receive(&mut self, now: Instant, to: usize) -> Option<Vec<u8>> {
        self.links[to].take(now)
    }

    /// When the next frame arrives.
    pub fn next_deadline(&self) -> Instant {
        self.links.iter().map(Link::next_deadline).min().unwrap_or(Instant::NEVER)
    }
}
