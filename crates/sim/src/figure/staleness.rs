//! CCP's figure 14: fifty machines send one message each to one machine at nearly the same time, with windows that are decided in the datapath,
//! or by an agent that hears reports from time to time, and answers late.

use super::{BEGIN, dropped};
use crate::agents::{AgentSetting, Mind, reno_in_datapath, reno_of_agent};
use crate::load::{Connections, HEADER, Job, Load, Message};
use crate::topology::{Fabric, HostSetting, PORT};
use base::{Duration, Seed};
use congestion::Algorithm;
use link::LinkConfig;
use std::sync::Arc;

const SENDERS: usize = 50;
/// Bytes of payload in a full segment.
const MSS: u64 = 1448;
/// "We used our microbenchmarks ... to set the staleness to 20 us" (CCP paper, section 7.3).
const STALENESS: Duration = Duration::from_us(20);
/// Delay of each of the four links of a round trip of 20 us.
const LINK_DELAY: Duration = Duration::from_us(5);
/// How long messages may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The setting of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Staleness {
    /// Gigabits per second of all links: 10 or 40 in the paper.
    pub gigabits: u64,
    /// Segments of each message.
    pub packets: u64,
    /// Packets that each queue takes. The paper says nothing of its queues.
    pub queue: u32,
    /// Time between reports; `None`: the datapath decides.
    pub interval: Option<Duration>,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StalenessResult {
    /// When the last message was complete, microseconds after it had begun.
    pub tail_us: f64,
    /// Mean time of all messages, microseconds.
    pub mean_us: f64,
    /// Packets dropped by all queues.
    pub dropped: u64,
}

impl Staleness {
    /// Runs the simulation from beginning to end.
    ///
    /// # Panics
    /// If a message is not complete after a long time.
    #[must_use]
    pub fn run(&self) -> StalenessResult {
        let agent = match self.interval {
            Some(interval) => AgentSetting::new(STALENESS, Mind::Agent(reno_of_agent(interval))),
            None => AgentSetting::new(Duration::ZERO, Mind::Gives(Arc::new(reno_in_datapath()))),
        };
        let sender = HostSetting { agent: Some(agent), ..HostSetting::new(Algorithm::Reno) };
        let receiver =
            HostSetting { ring_slots: 256, data_len: 64 << 20, ..HostSetting::new(Algorithm::Reno) };
        let mut hosts = vec![receiver];
        hosts.extend(std::iter::repeat_n(sender, SENDERS));
        let mut link = LinkConfig::rated(self.gigabits * 1_000_000_000, LINK_DELAY);
        link.queue_packets = Some(self.queue);
        let mut fabric = Fabric::star(&hosts, &link, self.seed, BEGIN);
        let members = fabric.members.clone();
        let network = &mut fabric.network;
        network.load(members[0].node, Load::new(Connections::Fresh).serving(PORT, 256));
        // "a small random jitter to flow start times (< 10 us with 10 Gbit/s bandwidth and < 2.5 us with 40 Gbit/s bandwidth)".
        let mut rng = Seed::new(self.seed ^ 0x0073_7461_6C65);
        let jitter_ns = 100_000 / self.gigabits.max(1);
        // So long that segments are full: a last one of a few bytes would wait alone for its acknowledgement.
        let bytes = self.packets * MSS - HEADER as u64;
        for sender in &members[1..] {
            let at = BEGIN.plus(Duration::from_ms(1)).plus(Duration::from_ns(rng.below(jitter_ns.max(1))));
            // Before it one of a byte, so that the first round trip that is measured is not that of a neighbour's address.
            let to = members[0].socket();
            let mut jobs = vec![Job::new(BEGIN, to, 1), Job::new(at, to, bytes)];
            network.tally.enter(&mut jobs);
            network.load(sender.node, Load::new(Connections::Fresh).sending(jobs));
        }
        let _ = network.run_to_end(BEGIN.plus(PATIENCE));
        let took: Vec<f64> = network
            .tally
            .messages()
            .iter()
            .filter(|message| message.bytes == bytes)
            .map(|message: &Message| message.took().expect("every message comes").as_ns() as f64 / 1e3)
            .collect();
        StalenessResult {
            tail_us: took.iter().copied().fold(0.0, f64::max),
            mean_us: took.iter().sum::<f64>() / took.len() as f64,
            dropped: dropped(network),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(interval_us: Option<u64>, packets: u64, queue: u32, seed: u64) -> StalenessResult {
        let interval = interval_us.map(Duration::from_us);
        Staleness { gigabits: 10, packets, queue, interval, seed }.run()
    }

    /// 50 messages of 10 segments fill 606 us of the link; nothing is decided before they are over.
    #[test]
    fn short_messages_are_over_before_anything_is_decided() {
        let (inside, agent) = (run(None, 10, 1_000, 1).tail_us, run(Some(500), 10, 1_000, 1).tail_us);
        assert!(
            (600.0..1_200.0).contains(&inside) && (agent / inside - 1.0).abs() < 0.02,
            "{inside} {agent}"
        );
    }

    #[test]
    fn an_agent_that_hears_often_is_little_slower_and_one_seed_gives_one_result() {
        let (inside, agent) = (run(None, 100, 60_000, 1).tail_us, run(Some(10), 100, 60_000, 1).tail_us);
        assert!(inside > 6_000.0 && agent / inside < 1.5, "{inside} {agent}");
        assert_eq!(agent, run(Some(10), 100, 60_000, 1).tail_us);
    }

    /// A fifth of all packets is dropped. Lost tails are found by probes, not by timeouts of 200 ms.
    #[test]
    fn losses_are_repaired_long_before_a_timeout() {
        for interval in [None, Some(10), Some(100), Some(500)] {
            for seed in 1..=3 {
                let result = run(interval, 100, 1_000, seed);
                assert!(result.dropped > 900 && result.tail_us < 20_000.0, "{interval:?} {seed} {result:?}");
            }
        }
    }
}
