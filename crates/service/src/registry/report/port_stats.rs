//! Counts of the port: what was received, sent and dropped, for `towpath stat`.

use crate::cores::meter::Metered;
use port::Stats;
use serde::Serialize;
use slowpath::SlowPath;
use std::collections::BTreeMap;
use wire::DropReason;

/// The counters of one core.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Counters of its fast path.
    pub core: fastpath::Counters,
    /// Counters of its queue of the port.
    pub port: Stats,
    /// The account of its time.
    pub cycles: Metered,
}

/// The counts of the port, summed over all cores.
#[derive(Debug, Default, Serialize)]
pub struct Traffic {
    /// Packets received from the port; a super-frame is one packet.
    pub received_packets: u64,
    /// Bytes of the received packets.
    pub received_bytes: u64,
    /// Packets given to the port; a super-frame is one packet.
    pub sent_packets: u64,
    /// Bytes of the sent packets.
    pub sent_bytes: u64,
    /// Segments of established connections that the fast path has received.
    pub segments_in: u64,
    /// Segments that the fast path has sent.
    pub segments_out: u64,
    /// Those of `segments_out` that are acknowledgements without data.
    pub pure_acks_out: u64,
    /// Bytes that the fast path has retransmitted.
    pub retransmitted_bytes: u64,
    /// Ranges of lost and repaired bytes that were recorded together for lack of room: they are retransmitted needlessly or late, never
    /// for ever. A peer with very many gaps causes it, or losses of more connections at a time than there are loss records.
    pub loss_ranges_joined: u64,
    /// Segments that the fast path has received out of order.
    pub out_of_order: u64,
    /// Runs of programs of congestion control that overflow, underflow or a division by zero has stopped.
    pub program_faults: u64,
    /// Dropped packets by reason; reasons with no drops are left out.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Counters of the slow path by name; those that are 0 are left out.
    pub slow_path: BTreeMap<&'static str, u64>,
}

impl Traffic {
    /// The slow path's counters.
    pub fn of_slow_path(slow: &SlowPath) -> Self {
        let mut all = Self::default();
        for (name, n) in slow.counters().iter().filter(|(_, n)| *n > 0) {
            all.slow_path.insert(name, n);
        }
        for reason in DropReason::ALL {
            all.drop(reason.name(), slow.counters().dropped(reason));
            all.slow_path.remove(reason.name());
        }
        all
    }

    /// Adds the counters of a core.
    pub fn add(&mut self, counted: &Counted) {
        let Counted { core, port, .. } = counted;
        self.received_packets += port.received_packets;
        self.received_bytes += port.received_bytes;
        self.sent_packets += port.sent_packets;
        self.sent_bytes += port.sent_bytes;
        self.segments_in += core.segments_in;
        self.segments_out += core.segments_out;
        self.pure_acks_out += core.pure_acks_out;
        self.retransmitted_bytes += core.retransmitted_bytes;
        self.loss_ranges_joined += core.runs_joined;
        self.out_of_order += core.out_of_order;
        self.program_faults += core.program_faults;
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
