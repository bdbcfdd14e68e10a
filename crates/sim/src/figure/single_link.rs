//! Figure 11: flows of Pareto's lengths over one link: completion times and the queue.

use super::{BEGIN, Law, Times, dropped, link};
use crate::load::{Arrivals, Connections, Job, Load, Sizes};
use crate::topology::{Fabric, HostSetting, PORT};
use base::{Duration, Seed};

const SENDERS: usize = 4;
/// How long flows may take after the last has begun.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks at the queue.
const LOOK: Duration = Duration::from_us(50);

/// The setting of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SingleLink {
    /// The law that all flows follow.
    pub law: Law,
    /// Share of the link's rate that the flows' bytes are.
    pub load: f64,
    /// Time in which flows begin.
    pub time: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SingleLinkResult {
    /// Completion times of the flows, by length.
    pub times: Times,
    /// Number of flows that began.
    pub flows: usize,
    /// Mean number of packets in the queue.
    pub queue: f64,
    /// The longest queue, packets.
    pub queue_max: u64,
    /// Packets dropped by all queues.
    pub dropped: u64,
}

impl SingleLink {
    /// Runs the simulation from beginning to end.
    ///
    /// # Panics
    /// Never: every machine has its router.
    #[must_use]
    pub fn run(&self) -> SingleLinkResult {
        let host = HostSetting {
            rates: self.law.rates,
            flows: 2_046,
            ring_slots: 1_024,
            data_len: 512 << 20,
            ..HostSetting::new(self.law.algorithm)
        };
        let mut fabric = Fabric::star(&vec![host; 1 + SENDERS], &link(25), self.seed, BEGIN);
        let members = fabric.members.clone();
        let receiver = members[0];
        let network = &mut fabric.network;
        network.load(receiver.node, Load::new(Connections::Fresh).serving(PORT, 4_096));
        let sizes = Sizes::Pareto { shape: 1.2, least: 10_000, most: 10_000_000 };
        let per_second = self.load * 10e9 / 8.0 / sizes.mean() / SENDERS as f64;
        let end = BEGIN.plus(self.time);
        let mut rng = Seed::new(self.seed ^ 0x7061_7265_746F);
        for sender in &members[1..] {
            let times = Arrivals::Poisson(per_second).draw(&mut rng, BEGIN, end);
            let mut jobs: Vec<Job> =
                times.iter().map(|at| Job::new(*at, receiver.socket(), sizes.draw(&mut rng))).collect();
            network.tally.enter(&mut jobs);
            network.load(sender.node, Load::new(Connections::Fresh).sending(jobs));
        }
        let (mut at, mut queue, mut looks) = (BEGIN, 0, 0);
        while at < end {
            at = at.plus(LOOK);
            network.run_until(at);
            queue += network.link(receiver.router, receiver.node).map_or(0, |link| link.queued(at));
            looks += 1;
        }
        let _ = network.run_to_end(end.plus(PATIENCE));
        let last = network.link(receiver.router, receiver.node).expect("every machine has its router");
        SingleLinkResult {
            times: Times::of(network.tally.messages()),
            flows: network.tally.messages().len(),
            queue: queue as f64 / f64::from(looks),
            queue_max: last.counters().queue_packets_max,
            dropped: dropped(network),
        }
    }
}
