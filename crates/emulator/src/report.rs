//! The counters of an emulated link, as text and for JSON.

use crate::lane::Lane;
use link::{Cause, Counters};
use port::Port;
use serde::Serialize;
use std::fmt;

/// The counters of one direction. Packets are counted as on a wire: segments, not super-frames.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Direction {
    /// The direction's configuration, in the text form of links.
    pub link: String,
    /// Packets sent into the link.
    pub offered: u64,
    /// Bytes of these packets' frames.
    pub offered_bytes: u64,
    /// Packets that were delivered.
    pub delivered: u64,
    /// Bytes of these packets' frames.
    pub delivered_bytes: u64,
    /// Packets dropped by the configured loss.
    pub lost: u64,
    /// Packets dropped because the queue was full.
    pub queue_full: u64,
    /// Packets dropped because they were longer than the MTU.
    pub too_long: u64,
    /// Packets dropped because the link was down.
    pub down: u64,
    /// Packets that were marked CE.
    pub marked: u64,
    /// Packets that were sent twice.
    pub duplicated: u64,
    /// Packets held back so that others could overtake them.
    pub reordered: u64,
    /// Packets in which a byte was changed.
    pub corrupted: u64,
    /// Packets that were cut short.
    pub truncated: u64,
    /// The largest number of packets in the queue.
    pub queue_packets_max: u64,
    /// The largest number of bytes in the queue.
    pub queue_bytes_max: u64,
    /// Frames that the emulator itself dropped: it was too slow to take them, they were invalid, or the interface refused them. A run with
    /// such frames is not valid.
    pub failed: u64,
}

/// The counters of both directions.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Seconds since the start.
    pub seconds: f64,
    /// The seed of both directions.
    pub seed: u64,
    /// Counters from the first end to the second.
    pub forward: Direction,
    /// Counters from the second end to the first.
    pub backward: Direction,
}

impl Direction {
    pub(crate) fn of(lane: &Lane, from: &dyn Port, to: &dyn Port) -> Self {
        use port::DropCause::{Device, Malformed, Overrun, Oversized, Unsendable};
        let model = lane.model();
        let counters: &Counters = model.counters();
        let (from, to) = (from.stats().drops, to.stats().drops);
        let received = [Malformed, Oversized, Overrun].map(|cause| from.of(cause));
        let sent = [Unsendable, Device].map(|cause| to.of(cause));
        Self {
            link: model.config().to_string(),
            offered: counters.offered,
            offered_bytes: counters.offered_bytes,
            delivered: counters.delivered,
            delivered_bytes: counters.delivered_bytes,
            lost: counters.of(Cause::Loss),
            queue_full: counters.of(Cause::Queue),
            too_long: counters.of(Cause::Mtu),
            down: counters.of(Cause::Down),
            marked: counters.marked,
            duplicated: counters.duplicated,
            reordered: counters.reordered,
            corrupted: counters.corrupted,
            truncated: counters.truncated,
            queue_packets_max: counters.queue_packets_max,
            queue_bytes_max: counters.queue_bytes_max,
            failed: received.iter().sum::<u64>() + sent.iter().sum::<u64>() + lane.refused(),
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        write!(
            f,
            "in {} packets ({:.1} MB), out {} ({:.1} MB)",
            self.offered,
            megabytes(self.offered_bytes),
            self.delivered,
            megabytes(self.delivered_bytes)
        )?;
        if self.lost > 0 {
            write!(f, ", lost {} ({:.3} %)", self.lost, self.lost as f64 * 100.0 / self.offered as f64)?;
        }
        for (name, count) in [
            ("queue full", self.queue_full),
            ("too long", self.too_long),
            ("link down", self.down),
            ("marked", self.marked),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("corrupted", self.corrupted),
            ("truncated", self.truncated),
            ("longest queue", self.queue_packets_max),
            ("FAILED", self.failed),
        ] {
            if count > 0 {
                write!(f, ", {name} {count}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:.1} s, seed {}", self.seconds, self.seed)?;
        writeln!(f, "  forward  {}: {}", self.forward.link, self.forward)?;
        write!(f, "  backward {}: {}", self.backward.link, self.backward)
    }
}
