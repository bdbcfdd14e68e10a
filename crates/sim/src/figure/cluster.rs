//! Figure 12: a tree of three levels in which every machine sends flows to machines drawn at random.

use super::{BEGIN, Law, Times, dropped, link};
use crate::load::{Arrivals, Connections, Job, Load, Sizes};
use crate::topology::{Fabric, HostSetting, PORT, Tree};
use base::{Duration, Seed};
use link::LinkConfig;

/// Mean times of a machine's on-off process.
const ON: Duration = Duration::from_ms(5);
const OFF: Duration = Duration::from_ms(5);

/// The setting of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cluster {
    /// The law that all flows follow.
    pub law: Law,
    /// Number of pods, of four lower routers and two upper ones each; the paper's 2,560 machines are 16 pods of 40 machines a router.
    pub pods: usize,
    /// Number of machines below each lower router.
    pub machines: usize,
    /// Share of the top links' rate that is used.
    pub load: f64,
    /// Time in which flows begin.
    pub time: Duration,
    /// How long flows may take after that.
    pub patience: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ClusterResult {
    /// Completion times of the flows, by length.
    pub times: Times,
    /// Number of flows that began.
    pub flows: usize,
    /// Number of machines, from pods, routers and machines of each.
    pub machines: usize,
    /// Frames that machines have sent.
    pub frames: u64,
    /// Frames that links have delivered.
    pub hops: u64,
    /// Packets dropped by all queues.
    pub dropped: u64,
}

impl Cluster {
    /// Lower routers of a pod, upper ones, and cores in all.
    const LOWER: usize = 4;
    const UPPER: usize = 2;
    const CORES: usize = 16;

    /// The tree: between lower and upper routers there is a quarter of the machines' rate (the paper's oversubscription of 1:4), and above
    /// them as much again.
    fn tree(&self) -> Tree {
        let edge = link(5);
        let of_rate = |bits: u64| LinkConfig { rate_bits_per_second: Some(bits), ..edge.clone() };
        let pod = self.machines as u64 * Self::LOWER as u64 * 10_000_000_000 / 4;
        Tree {
            pods: self.pods,
            lower: Self::LOWER,
            upper: Self::UPPER,
            cores: Self::CORES,
            machines: self.machines,
            middle: of_rate(pod / (Self::LOWER * Self::UPPER) as u64),
            top: of_rate(pod / Self::CORES as u64),
            edge,
        }
    }

    /// Runs the simulation from beginning to end.
    #[must_use]
    pub fn run(&self) -> ClusterResult {
        let host = HostSetting { rates: self.law.rates, ..HostSetting::new(self.law.algorithm) };
        let mut fabric = Fabric::tree(&self.tree(), &host, self.seed, BEGIN);
        let members = fabric.members.clone();
        let network = &mut fabric.network;
        let sizes = Sizes::Pareto { shape: 1.2, least: 10_000, most: 10_000_000 };
        // A machine's share of the top links, of which flows within its pod use nothing.
        let below = self.machines * Self::LOWER;
        let share_above = (members.len() - below) as f64 / (members.len() - 1) as f64;
        let bytes_per_second = self.load * 10e9 / 4.0 / 8.0 / share_above;
        let mean = bytes_per_second / sizes.mean();
        let arrivals = Arrivals::OnOff { per_second: 2.0 * mean, on: ON, off: OFF };
        let end = BEGIN.plus(self.time);
        let mut rng = Seed::new(self.seed ^ 0x0063_6C75_7374_6572);
        for (i, sender) in members.iter().enumerate() {
            let mut jobs: Vec<Job> = Vec::new();
            for at in arrivals.draw(&mut rng, BEGIN, end) {
                let other = rng.below(members.len() as u64 - 1) as usize;
                let to = members[if other < i { other } else { other + 1 }].socket();
                jobs.push(Job::new(at, to, sizes.draw(&mut rng)));
            }
            network.tally.enter(&mut jobs);
            network.load(sender.node, Load::new(Connections::Fresh).serving(PORT, 256).sending(jobs));
        }
        let _ = network.run_to_end(end.plus(self.patience));
        ClusterResult {
            times: Times::of(network.tally.messages()),
            flows: network.tally.messages().len(),
            machines: members.len(),
            frames: network.frames,
            hops: network.links().map(|(_, _, link)| link.counters().delivered).sum(),
            dropped: dropped(network),
        }
    }
}
