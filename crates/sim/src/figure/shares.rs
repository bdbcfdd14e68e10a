//! Two applications of one machine receive over one link, each over some flows that never end: the windows that the peers of each are offered,
//! and what each gets.

use super::{BEGIN, dropped, poisson_gap};
use crate::load::{Connections, Job, Load};
use crate::network::Network;
use crate::statistics::jain;
use crate::topology::{Arm, Fabric, HostSetting, PORT};
use base::{Duration, Instant, Seed};
use congestion::Algorithm;
use link::LinkConfig;
use std::net::SocketAddr;

/// Mean time between the opens of one application's flows.
const GAP_NS: f64 = 100_000.0;

/// The setting of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shares {
    /// Number of flows of each application; 0: it does nothing.
    pub flows: [u32; 2],
    /// Rate of the receiver's link, bits per second.
    pub rate: u64,
    /// Time before the first look.
    pub warm_up: Duration,
    /// Time in which the receiver is looked at.
    pub time: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// What the applications got.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SharesResult {
    /// Mean sum of the windows offered for each application, bytes.
    pub windows: [f64; 2],
    /// Bytes that each application received.
    pub bytes: [u64; 2],
    /// Payload bits per second that both received.
    pub goodput: f64,
    /// Packets dropped by all queues.
    pub dropped: u64,
    /// Mean number of packets in the receiver's queue.
    pub queue: f64,
}

impl SharesResult {
    /// The index of fairness between the applications, by the windows offered.
    #[must_use]
    pub fn jain_of_windows(&self) -> f64 {
        jain(&self.windows)
    }

    /// The index of fairness between the applications, by the bytes received.
    #[must_use]
    pub fn jain_of_bytes(&self) -> f64 {
        jain(&self.bytes.map(|bytes| bytes as f64))
    }
}

impl Shares {
    /// Runs the simulation from beginning to end.
    #[must_use]
    pub fn run(&self) -> SharesResult {
        let mut fabric = self.build();
        let receiver = fabric.members[0];
        let network = &mut fabric.network;
        let begin = BEGIN.plus(self.warm_up);
        network.run_until(begin);
        let before = self.received(network);
        let (mut windows, mut queue, mut looks) = ([0.0; 2], 0, 0);
        let mut at = begin;
        while at < begin.plus(self.time) {
            at = at.plus(Duration::from_ms(1));
            network.run_until(at);
            queue += network.link(receiver.router, receiver.node).map_or(0, |link| link.queued(at));
            looks += 1;
            let host = network.machine(receiver.node).and_then(|machine| machine.host());
            let Some(host) = host else { continue };
            for (sum, application) in windows.iter_mut().zip(0..) {
                *sum += host.offered(application) as f64;
            }
        }
        let after = self.received(network);
        let bytes = [0, 1].map(|i| after[i] - before[i]);
        SharesResult {
            windows: windows.map(|sum| sum / f64::from(looks)),
            bytes,
            goodput: (bytes[0] + bytes[1]) as f64 * 8e9 / self.time.as_ns() as f64,
            dropped: dropped(network),
            queue: queue as f64 / f64::from(looks),
        }
    }

    /// Bytes that each application has received so far.
    fn received(&self, network: &Network) -> [u64; 2] {
        let (first, second) = network.tally.messages().split_at(self.flows[0] as usize);
        [first, second].map(|messages| messages.iter().map(|message| message.received).sum())
    }

    fn build(&self) -> Fabric {
        let host = |flows| HostSetting {
            flows,
            ring_slots: 4_096,
            data_len: 256 << 20,
            ..HostSetting::new(Algorithm::Cubic)
        };
        let most = self.flows[0].max(self.flows[1]);
        let receiver = HostSetting { applications: 2, ..host(most) };
        let delay = Duration::from_us(25);
        // No packet is lost: windows alone bound what waits. The senders' own links hinder nothing.
        let mut down = LinkConfig::rated(self.rate, delay);
        down.queue_packets = None;
        let up = LinkConfig::rated(4 * self.rate, delay);
        let arms: Vec<Arm> = [receiver, host(self.flows[0].max(1)), host(self.flows[1].max(1))]
            .map(|host| Arm { host, up: up.clone(), down: down.clone() })
            .into();
        let mut fabric = Fabric::star_of(&arms, self.seed, BEGIN);
        let members = fabric.members.clone();
        let to = [0, 1].map(|i| SocketAddr::new(members[0].socket().ip(), PORT + i));
        let load = to.iter().fold(Load::new(Connections::Fresh), |load, to| load.serving(to.port(), 4_096));
        fabric.network.load(members[0].node, load);
        let mut rng = Seed::new(self.seed ^ 0x7368_6172_6573);
        for ((flows, to), sender) in self.flows.into_iter().zip(to).zip(&members[1..]) {
            let mut at = BEGIN;
            let mut next = || -> Instant {
                at = at.plus(poisson_gap(&mut rng, GAP_NS));
                at
            };
            let mut jobs: Vec<Job> = (0..flows).map(|_| Job::new(next(), to, u64::MAX)).collect();
            fabric.network.tally.enter(&mut jobs);
            fabric.network.load(sender.node, Load::new(Connections::Fresh).sending(jobs));
        }
        fabric
    }
}
