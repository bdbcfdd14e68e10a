//! The numbers of a run: of each flow, of the queue, and how evenly flows share.

use crate::race::{Flow, Race, Sample};
use sim::statistics::{jain, percentile};

/// Looks over which a curve of throughput is the mean.
const SMOOTHED: usize = 5;

/// What a flow got, from the time at which all flows had begun to the end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowFigures {
    /// Payload bits per second that arrived.
    pub throughput: f64,
    /// Mean of the smoothed round-trip time, milliseconds.
    pub rtt_mean_ms: f64,
    /// Below it lie 95 % of the looks at the smoothed round-trip time, milliseconds.
    pub rtt_p95_ms: f64,
    /// Mean of the congestion window, bytes.
    pub cwnd_mean: f64,
    /// Part of the time in which nothing but the receiver's window held data back.
    pub bounded: f64,
}

/// The queue in the same time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct QueueFigures {
    /// Mean number of packets.
    pub mean: f64,
    /// Below it lie 95 % of the looks, packets.
    pub p95: usize,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    if count > 0.0 { sum / count } else { 0.0 }
}

impl Race {
    /// The first look at which all flows had begun.
    fn first(&self) -> usize {
        let last = self.flows.iter().map(|flow| flow.began.as_ns()).max().unwrap_or(0);
        (last.div_ceil(self.every.as_ns()) as usize).min(self.queue.len().saturating_sub(1))
    }

    /// What a flow got.
    #[must_use]
    pub fn flow_figures(&self, flow: &Flow) -> FlowFigures {
        let seen: &[Sample] = flow.samples.get(self.first()..).unwrap_or_default();
        let received = |sample: Option<&Sample>| sample.map_or(0, |sample| sample.received);
        let bytes = received(seen.last()) - received(seen.first());
        let seconds = seen.len().saturating_sub(1) as f64 * self.every.as_ns() as f64 / 1e9;
        let held = |sample: Option<&Sample>| sample.map_or(0, |sample| sample.window_bound.as_ns());
        let held_ns = held(seen.last()).saturating_sub(held(seen.first()));
        let ms = |sample: &Sample| f64::from(sample.rtt_us) / 1e3;
        let mut rtts: Vec<f64> = seen.iter().filter(|sample| sample.rtt_us > 0).map(ms).collect();
        rtts.sort_by(f64::total_cmp);
        FlowFigures {
            throughput: if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 },
            rtt_mean_ms: mean(rtts.iter().copied()),
            rtt_p95_ms: percentile(&rtts, 0.95).unwrap_or(0.0),
            bounded: if seconds > 0.0 { held_ns as f64 / 1e9 / seconds } else { 0.0 },
            cwnd_mean: mean(seen.iter().map(|sample| f64::from(sample.cwnd))),
        }
    }

    /// The queue of the bottleneck.
    #[must_use]
    pub fn queue_figures(&self) -> QueueFigures {
        let mut seen = self.queue.get(self.first()..).unwrap_or_default().to_vec();
        seen.sort_unstable();
        let mean = mean(seen.iter().map(|packets| *packets as f64));
        QueueFigures { mean, p95: percentile(&seen, 0.95).unwrap_or(0) }
    }

    /// Payload bits per second of each flow, in order.
    #[must_use]
    pub fn throughputs(&self) -> Vec<f64> {
        self.flows.iter().map(|flow| self.flow_figures(flow).throughput).collect()
    }

    /// Part of the time, as a mean over all flows, in which nothing but the receiver's window held data back: then the buffers decide about
    /// the throughput, and no algorithm.
    #[must_use]
    pub fn bounded(&self) -> f64 {
        mean(self.flows.iter().map(|flow| self.flow_figures(flow).bounded))
    }

    /// Jain's index of fairness over the throughputs of all flows: 1 is equal.
    #[must_use]
    pub fn jain(&self) -> f64 {
        jain(&self.throughputs())
    }

    /// The throughputs of all flows over the bottleneck's rate, which also carries headers; `None` for a trace.
    #[must_use]
    pub fn utilisation(&self) -> Option<f64> {
        let rate = self.setting.path.rate()? as f64;
        Some(self.throughputs().iter().sum::<f64>() / rate)
    }

    /// Payload bits per second of a flow around each look.
    pub(crate) fn throughput_curve<'a>(&'a self, flow: &'a Flow) -> impl Iterator<Item = f64> + 'a {
        let of = |i: usize| if i == 0 { 0 } else { flow.samples[i - 1].received };
        (1..=flow.samples.len()).map(move |i| {
            let before = i.saturating_sub(SMOOTHED);
            let seconds = (i - before) as f64 * self.every.as_ns() as f64 / 1e9;
            (of(i) - of(before)) as f64 * 8.0 / seconds
        })
    }
}
