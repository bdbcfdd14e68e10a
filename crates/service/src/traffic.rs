//! What went in and out of the port, what was dropped and why, for `towpath stat`.

use crate::meter::Metered;
use port::Stats;
use serde::Serialize;
use slowpath::SlowPath;
use std::collections::BTreeMap;
use wire::DropReason;

/// What one core says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Its fast path.
    pub core: fastpath::Counters,
    /// Its queue of the port.
    pub port: Stats,
    /// Where its time goes.
    pub cycles: Metered,
}

/// Everything about the port, summed over cores.
#[derive(Debug, Default, Serialize)]
pub struct Traffic {
    /// Packets taken from the port; a super-frame is one.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets given to the port.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Segments of established connections handled by the fast path.
    pub segments_in: u64,
    /// Segments it sent.
    pub segments_out: u64,
    /// Of those, acknowledgements without data.
    pub pure_acks_out: u64,
    /// Bytes it sent again.
    pub retransmitted_bytes: u64,
    /// Segments it received out of order.
    pub out_of_order: u64,
    /// Packets dropped, by reason; reasons that never happened are left out.
    pub dropped: BTreeMap<&'static str, u64>,
    /// What the slow path did and refused, by name; what never happened is left out.
    pub slow_path: BTreeMap<&'static str, u64>,
}

impl Traffic {
    /// The sum of what cores and slow path say.
    pub fn sum(cores: &[Counted], slow: &SlowPath) -> Self {
        let mut all = Self::default();
        cores.iter().for_each(|core| all.add(core));
        for (name, n) in slow.counters().iter().filter(|(_, n)| *n > 0) {
            all.slow_path.insert(name, n);
        }
        for reason in DropReason::ALL {
            all.drop(reason.name(), slow.counters().dropped(reason));
            all.slow_path.remove(reason.name());
        }
        all
    }

    fn add(&mut self, counted: &Counted) {
        let Counted { core, port, .. } = counted;
        self.received_packets += port.received_packets;
        self.received_bytes += port.received_bytes;
        self.sent_packets += port.sent_packets;
        self.sent_bytes += port.sent_bytes;
        self.segments_in += core.segments_in;
        self.segments_out += core.segments_out;
        self.pure_acks_out += core.pure_acks_out;
        self.retransmitted_bytes += core.retransmitted_bytes;
        self.out_of_order += core.out_of_order;
        port.drops.iter().for_each(|(cause, n)| self.drop(cause.name(), n));
        DropReason::ALL.iter().for_each(|reason| self.drop(reason.name(), core.dropped(*reason)));
        fastpath::Cause::ALL.iter().for_each(|cause| self.drop(cause.name(), core.of(*cause)));
    }

    fn drop(&mut self, reason: &'static str, n: u64) {
        if n > 0 {
            *self.dropped.entry(reason).or_default() += n;
        }
    }
}
