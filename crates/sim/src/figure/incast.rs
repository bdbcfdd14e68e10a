//! Figure 13: four machines send over many connections to one; what each connection gets in each tenth of a second.

use super::{BEGIN, Law, dropped, link, poisson_gap};
use crate::load::{Connections, Job, Load};
use crate::statistics::{jain, percentile};
use crate::topology::{Fabric, HostSetting, PORT};
use base::{Duration, Instant, Seed};

const SENDERS: usize = 4;
/// Mean time between the opens of one sender: all at once would overflow the queue with initial windows.
const GAP_NS: u64 = 400_000;

/// The setting of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Incast {
    /// The law that all flows follow.
    pub law: Law,
    /// Number of connections, over all senders.
    pub flows: u32,
    /// Time before the first window.
    pub warm_up: Duration,
    /// Number of windows of 100 ms.
    pub windows: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

/// What connections got, over all windows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct IncastResult {
    /// The mean of the windows' index of fairness.
    pub jain: f64,
    /// The first percentile over the median.
    pub p1_of_median: f64,
    /// The median over the fair share of what arrived.
    pub median_of_fair: f64,
    /// Payload bits per second that arrived in the windows.
    pub goodput: f64,
    /// Packets dropped by all queues.
    pub dropped: u64,
    /// Mean number of packets in the receiver's queue, looked at each millisecond.
    pub queue: f64,
}

impl Incast {
    /// Runs the simulation from beginning to end.
    #[must_use]
    pub fn run(&self) -> IncastResult {
        let mut fabric = self.build();
        let receiver = fabric.members[0];
        let network = &mut fabric.network;
        let opened = GAP_NS * u64::from(self.flows) / SENDERS as u64;
        let mut at = BEGIN.plus(Duration::from_ns(opened)).plus(self.warm_up);
        network.run_until(at);
        let received = |network: &crate::Network| -> Vec<u64> {
            network.tally.messages().iter().map(|message| message.received).collect()
        };
        let (mut shares, mut fairness) = (Vec::new(), Vec::new());
        let (mut before, mut queue) = (received(network), 0);
        for _ in 0..self.windows {
            for _ in 0..100 {
                at = at.plus(Duration::from_ms(1));
                network.run_until(at);
                queue += network.link(receiver.router, receiver.node).map_or(0, |link| link.queued(at));
            }
            let after = received(network);
            let window: Vec<f64> = after.iter().zip(&before).map(|(a, b)| (a - b) as f64).collect();
            fairness.push(jain(&window));
            shares.extend(window);
            before = after;
        }
        let total: f64 = shares.iter().sum();
        let fair = total / shares.len() as f64;
        shares.sort_by(f64::total_cmp);
        let at_rank = |share| percentile(&shares, share).unwrap_or(f64::NAN);
        IncastResult {
            jain: fairness.iter().sum::<f64>() / fairness.len() as f64,
            p1_of_median: at_rank(0.01) / at_rank(0.5),
            median_of_fair: at_rank(0.5) / fair,
            goodput: total * 8.0 / (self.windows as f64 / 10.0),
            dropped: dropped(network),
            queue: queue as f64 / (self.windows * 100) as f64,
        }
    }

    fn build(&self) -> Fabric {
        let flows = self.flows.next_multiple_of(SENDERS as u32);
        let host = |flows| HostSetting {
            rates: self.law.rates,
            flows,
            ring_slots: 1_024,
            data_len: 512 << 20,
            ..HostSetting::new(self.law.algorithm)
        };
        let mut hosts = vec![host(flows)];
        hosts.extend((0..SENDERS).map(|_| host(flows / SENDERS as u32)));
        let mut fabric = Fabric::star(&hosts, &link(25), self.seed, BEGIN);
        let members = fabric.members.clone();
        let mut rng = Seed::new(self.seed ^ 0x0069_6E63_6173_7400);
        let to = members[0].socket();
        fabric.network.load(members[0].node, Load::new(Connections::Fresh).serving(PORT, 4_096));
        for (i, sender) in members[1..].iter().enumerate() {
            let mut at = BEGIN;
            let mut next = || -> Instant {
                at = at.plus(poisson_gap(&mut rng, GAP_NS as f64));
                at
            };
            let count = (self.flows as usize + SENDERS - 1 - i) / SENDERS;
            let mut jobs: Vec<Job> = (0..count).map(|_| Job::new(next(), to, u64::MAX)).collect();
            fabric.network.tally.enter(&mut jobs);
            fabric.network.load(sender.node, Load::new(Connections::Fresh).sending(jobs));
        }
        fabric
    }
}
