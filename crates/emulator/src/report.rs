//! What the emulated link has done, for people and for programs.

use crate::lane::Lane;
use link::{Cause, Counters};
use port::Port;
use serde::Serialize;
use std::fmt;

/// One direction. Packets count as a wire would carry them: segments, not super-frames.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Direction {
    /// What it is like, in the text form of links.
    pub link: String,
    /// Packets that came in.
    pub offered: u64,
    /// Bytes of their frames.
    pub offered_bytes: u64,
    /// Packets that went out.
    pub delivered: u64,
    /// Bytes of their frames.
    pub delivered_bytes: u64,
    /// Dropped by the configured loss.
    pub lost: u64,
    /// Dropped by the full queue.
    pub queue_full: u64,
    /// Dropped since they were too long.
    pub too_long: u64,
    /// Dropped while the link was down.
    pub down: u64,
    /// Marked CE.
    pub marked: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// With a byte changed.
    pub corrupted: u64,
    /// Cut short.
    pub truncated: u64,
    /// Most packets in the queue.
    pub queue_packets_max: u64,
    /// Most bytes in the queue.
    pub queue_bytes_max: u64,
    /// Frames that the emulator itself dropped, none in a run that is to be trusted: it was too slow to take them, they were
    /// of no kind that it knows, or the interface refused them.
    pub failed: u64,
}

/// Both directions.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Since the start.
    pub seconds: f64,
    /// The seed.
    pub seed: u64,
    /// From the first end to the second.
    pub forward: Direction,
    /// From the second end to the first.
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
