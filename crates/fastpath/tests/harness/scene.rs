//! One flow and a peer under the test's hand.

use crate::harness::{Host, MAC_A, MAC_B, Sock, config, endpoints, install};
use crate::peer::{Got, Peer};
use base::{Duration, Instant};
use fastpath::Cause;
use flow::Cold;
use port::Capabilities;
use port_memory::{LinkOptions, MemoryPort, link};

/// Payload of a full segment.
pub const MSS: u32 = 1448;

pub const ISS: u32 = u32::MAX - 700; // The peer's numbers wrap soon; ours too.
pub const IRS: u32 = u32::MAX - 2000;

pub struct Scene {
    pub host: Host,
    pub port: MemoryPort,
    pub peer: Peer,
    pub sock: Sock,
    pub id: flow::FlowId,
    pub now: Instant,
}

pub fn scene_with(
    change: impl FnOnce(&mut flow::Install),
    capabilities: Capabilities,
    config: flow::Config,
) -> Scene {
    scene_in(8, change, capabilities, config)
}

/// With so many MiB of memory on each side.
pub fn scene_in(
    memory_mib: u64,
    change: impl FnOnce(&mut flow::Install),
    capabilities: Capabilities,
    config: flow::Config,
) -> Scene {
    let (port, far) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
    let (local, remote) = endpoints(false);
    let mut host = Host::new(config, capabilities, memory_mib);
    let mut what = install(local, remote, 5, MAC_B, IRS, ISS);
    change(&mut what);
    let now = Instant::from_ns(5_000_000_000);
    let (id, sock) = host.open(now, &what);
    host.nodelay(&sock);
    Scene { host, port, peer: Peer::new(far, remote, local, ISS, IRS), sock, id, now }
}

pub fn scene() -> Scene {
    scene_with(|_| {}, Capabilities::plain(1500, MAC_A), config())
}

impl Scene {
    /// The flow's seldom used part, without a program.
    pub fn cold(&self) -> Cold {
        Cold { program: None, ..*self.host.keeper.lock(self.id).parts().cold }
    }
    /// The congestion window in segments.
    pub fn cwnd(&self) -> u32 {
        self.host.keeper.lock(self.id).parts().tx.cwnd / MSS
    }
    /// The peer acknowledges `ack` segments and reports `blocks`.
    pub fn reports(&mut self, ack: u32, blocks: &[(u32, u32)]) {
        self.peer.sack = blocks.iter().map(|(l, r)| (l * MSS, r * MSS)).collect();
        self.peer.ack(0, ack * MSS);
    }
    pub fn poll(&mut self) -> Vec<Got> {
        self.host.poll(self.now, &mut self.port);
        self.peer.take()
    }
    pub fn after(&mut self, d: Duration) -> Vec<Got> {
        self.now = self.now.plus(d);
        self.poll()
    }
    pub fn send(&mut self, bytes: &[u8]) -> Vec<Got> {
        assert_eq!(self.host.send(&mut self.sock, bytes, 64 << 10), bytes.len());
        self.poll()
    }
    pub fn recv(&mut self) -> Vec<u8> {
        self.host.recv(&mut self.sock, usize::MAX)
    }
    pub fn drops(&self, cause: Cause) -> u64 {
        self.host.core.counters().of(cause)
    }
}
