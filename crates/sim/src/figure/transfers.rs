//! CCP's figure 11: messages of very different lengths over connections that stay, across one long link: completion times. The paper has 50
//! connections; here a message takes one that is idle, or a new one if there is none.

use super::{BEGIN, LONG, percentiles};
use crate::agents::{AgentMaker, AgentSetting, Mind};
use crate::load::{Arrivals, Connections, Job, Load, Sizes};
use crate::topology::{Arm, Fabric, HostSetting, PORT};
use base::{Duration, Seed};
use congestion::Algorithm;
use link::LinkConfig;

/// "192 Mbit/s, 100 ms", of which the messages take half.
const RATE: u64 = 192_000_000;
const RTT: Duration = Duration::from_ms(100);
const LOAD: f64 = 0.5;
/// Bytes of the bottleneck's queue: one bandwidth-delay product.
const QUEUE: u64 = RATE / 8 / 10;
/// Bytes of the longest short message.
const SHORT: u64 = 10_000;
/// How long messages may take after the last has begun.
const PATIENCE: Duration = Duration::from_secs(60);

/// The setting of a run.
#[derive(Clone, Debug)]
pub struct Transfers {
    /// The agent that decides; `None`: Reno in the datapath.
    pub agent: Option<AgentMaker>,
    /// Number of messages that are sent.
    pub messages: usize,
    /// Time from a report until the agent's answer is in force.
    pub staleness: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The result of a run: 50th, 75th and 95th percentile of completion times, milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TransfersResult {
    /// Completion times of all messages.
    pub all: [f64; 3],
    /// Messages of at most 10 KB.
    pub short: [f64; 3],
    /// Messages of more than 1 MB.
    pub long: [f64; 3],
    /// Number of messages that were not over at the end.
    pub left: usize,
}

/// "97,606 flows of at most 10 KB have 487 MB in all, 2,299 flows of at most 1 MB 306 MB, 95 longer ones 907 MB" (CCP paper, figure 11): lengths
/// that are uniform between these bounds have these means.
fn sizes() -> Sizes {
    Sizes::Empirical(vec![
        (SHORT, 0.976_06),
        (100_000, 0.991_69),
        (500_000, 0.999_05),
        (LONG, 0.999_05),
        (18_000_000, 1.0),
    ])
}

impl Transfers {
    /// Runs the simulation from beginning to end.
    #[must_use]
    pub fn run(&self) -> TransfersResult {
        let mut fabric = self.build();
        let (receiver, sender) = (fabric.members[0], fabric.members[1]);
        let sizes = sizes();
        let per_second = LOAD * RATE as f64 / 8.0 / sizes.mean();
        let time = Duration::from_ns((self.messages as f64 / per_second * 1e9) as u64);
        let end = BEGIN.plus(time);
        let mut rng = Seed::new(self.seed ^ 0x7472_616E_7366);
        let mut jobs: Vec<Job> = Arrivals::Poisson(per_second)
            .draw(&mut rng, BEGIN, end)
            .into_iter()
            .map(|at| Job::new(at, receiver.socket(), sizes.draw(&mut rng)))
            .collect();
        let network = &mut fabric.network;
        network.tally.enter(&mut jobs);
        network.load(receiver.node, Load::new(Connections::Kept).serving(PORT, 4_096));
        network.load(sender.node, Load::new(Connections::Kept).sending(jobs));
        let _ = network.run_to_end(end.plus(PATIENCE));
        let messages = network.tally.messages();
        let of = |is_wanted: fn(u64) -> bool| {
            let wanted = messages.iter().filter(|message| is_wanted(message.bytes));
            percentiles(wanted, [0.5, 0.75, 0.95], 1e6)
        };
        TransfersResult {
            all: of(|_| true),
            short: of(|bytes| bytes <= SHORT),
            long: of(|bytes| bytes > LONG),
            left: messages.iter().filter(|message| message.ended.is_none()).count(),
        }
    }
}

impl Transfers {
    /// A receiver behind the bottleneck, and a sender.
    fn build(&self) -> Fabric {
        let agent = self.agent.clone().map(|maker| AgentSetting::new(self.staleness, Mind::Agent(maker)));
        let host = |agent| HostSetting {
            flows: 2_046,
            ring_slots: 1_024,
            data_len: 512 << 20,
            // "To ensure that the kernel-native congestion control ran under the same conditions as the CCP implementation, we disabled
            // the slow-start-after-idle option" (section 7.1.2).
            slow_start_after_idle: false,
            agent,
            ..HostSetting::new(Algorithm::Reno)
        };
        let delay = Duration::from_ns(RTT.as_ns() / 2);
        let mut bottleneck = LinkConfig::rated(RATE, delay);
        (bottleneck.queue_packets, bottleneck.queue_bytes) = (None, Some(QUEUE));
        let plain = LinkConfig::default();
        let receiver = Arm { host: host(None), up: LinkConfig::delayed(delay), down: bottleneck };
        let sender = Arm { host: host(agent), up: plain.clone(), down: plain };
        Fabric::star_of(&[receiver, sender], self.seed, BEGIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_papers_means() {
        let mut rng = Seed::new(1);
        let drawn: Vec<u64> = (0..200_000).map(|_| sizes().draw(&mut rng)).collect();
        let mean = |is_it: fn(u64) -> bool| {
            let them: Vec<u64> = drawn.iter().copied().filter(|bytes| is_it(*bytes)).collect();
            them.iter().sum::<u64>() as f64 / them.len() as f64
        };
        let within = |found: f64, papers: f64| (found / papers - 1.0).abs() < 0.1;
        assert!(within(mean(|bytes| bytes <= SHORT), 487e6 / 97_606.0));
        assert!(within(mean(|bytes| bytes > SHORT && bytes <= LONG), 306e6 / 2_299.0));
        assert!(within(mean(|bytes| bytes > LONG), 907e6 / 95.0));
    }

    #[test]
    fn all_messages_come_and_short_ones_take_a_round_trip() {
        let result = Transfers { agent: None, messages: 300, staleness: Duration::ZERO, seed: 1 }.run();
        assert_eq!(result.left, 0);
        assert!((50.0..210.0).contains(&result.short[0]), "{result:?}");
    }
}
