//! The simulations behind figures of the TAS paper (EuroSys 2019, sections 5.5 and 5.6) and of the CCP paper (SIGCOMM 2018, section 7.3): each from
//! a setting and a seed, with plain numbers as result.

mod cluster;
mod incast;
mod shares;
mod single_link;
mod staleness;
mod steps;
mod transfers;

pub use cluster::{Cluster, ClusterResult};
pub use incast::{Incast, IncastResult};
pub use shares::{Shares, SharesResult};
pub use single_link::{SingleLink, SingleLinkResult};
pub use staleness::{Staleness, StalenessResult};
pub use steps::{ChangesResult, Steps, StepsResult};
pub use transfers::{Transfers, TransfersResult};

use crate::load::Message;
use crate::network::Network;
use crate::statistics::percentile;
use base::{Duration, Instant, Seed};
use congestion::{Algorithm, RateSettings};
use link::{Amount, LinkConfig};

/// When every simulation begins.
const BEGIN: Instant = Instant::from_ns(1_000_000_000);
/// Bytes of the longest short flow and the shortest long one.
const SHORT: u64 = 100_000;
const LONG: u64 = 1_000_000;

/// The law that is examined.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Law {
    /// The algorithm of all flows.
    pub algorithm: Algorithm,
    /// Its settings, if it decides a rate.
    pub rates: RateSettings,
}

/// 10 Gbit/s with a queue of 1,000 packets that marks from 65 on: a quarter of a round trip of 100 us each way and link.
fn link(delay_us: u64) -> LinkConfig {
    let mut link = LinkConfig::rated(10_000_000_000, Duration::from_us(delay_us));
    (link.queue_packets, link.ecn_threshold) = (Some(1_000), Some(Amount::Packets(65)));
    link
}

/// A time between two events of a Poisson process, which come `mean_ns` apart on average.
fn poisson_gap(rng: &mut Seed, mean_ns: f64) -> Duration {
    let u = (1 + rng.below(1 << 53)) as f64 / (1u64 << 53) as f64;
    Duration::from_ns((-u.ln() * mean_ns) as u64)
}

/// Percentiles of the times that messages took, in units of `unit_ns` nanoseconds; NaN where no message has arrived.
fn percentiles<'a, const N: usize>(
    messages: impl IntoIterator<Item = &'a Message>,
    shares: [f64; N],
    unit_ns: f64,
) -> [f64; N] {
    let took = messages.into_iter().filter_map(Message::took);
    let mut took: Vec<f64> = took.map(|took| took.as_ns() as f64 / unit_ns).collect();
    took.sort_by(f64::total_cmp);
    shares.map(|share| percentile(&took, share).unwrap_or(f64::NAN))
}

/// Mean completion times, microseconds; NaN where there is no such flow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Times {
    /// Mean of all flows.
    pub all: f64,
    /// Flows shorter than 100 KB.
    pub short: f64,
    /// Flows of 1 MB or more.
    pub long: f64,
    /// Number of flows that were not over at the end.
    pub left: usize,
}

impl Times {
    fn of(messages: &[Message]) -> Self {
        let mean = |is_wanted: &dyn Fn(u64) -> bool| {
            let took = messages.iter().filter(|m| is_wanted(m.bytes)).filter_map(Message::took);
            let took: Vec<f64> = took.map(|took| took.as_ns() as f64 / 1e3).collect();
            took.iter().sum::<f64>() / took.len() as f64
        };
        Self {
            all: mean(&|_| true),
            short: mean(&|bytes| bytes < SHORT),
            long: mean(&|bytes| bytes >= LONG),
            left: messages.iter().filter(|m| m.ended.is_none()).count(),
        }
    }
}

/// Packets that all queues of a network have dropped.
fn dropped(network: &Network) -> u64 {
    network.links().map(|(_, _, link)| link.counters().dropped()).sum()
}
