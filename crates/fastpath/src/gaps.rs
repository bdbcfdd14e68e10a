//! Gap records: where a flow keeps the intervals of its data ahead of gaps when they are more than its own record holds.
//!
//! Each peer address may have a part of the records only: a peer that leaves thousands of gaps on many connections takes none from the others. A flow
//! that gets no record goes on with the intervals of its own.

use crate::core::Core;
use crate::lender::{Lender, Stock};
use base::SeqNumber;
use flow::{Ahead, Config, FlowMut, FlowTable, INTERVALS, INTERVALS_MAX, Interval, Intervals, state};

/// Gap records for each core, and of a service with many cores: so many flows at a time can have more than `INTERVALS` gaps. 32 KiB each, of which the
/// kernel gives memory for what was used.
const RECORDS_EACH: usize = 256;
const RECORDS_MAX: usize = 1024;
/// One part in so many of the records may serve one peer address.
const PEERS: usize = 8;
/// log2 of the number of counters for peer addresses. Peers whose addresses fall on one counter share its part; a secret decides which.
const COUNTERS_LOG2: u32 = 10;
/// A flow with so few intervals gives its record back.
const FEW: u16 = INTERVALS as u16 / 2;

/// A gap record, borrowed by one flow.
#[derive(Debug)]
pub(crate) struct GapRecord {
    /// As long as the part that this flow has used, and no longer than `INTERVALS_MAX`, for which there is room.
    held: Vec<Interval>,
    /// The counter of the peer's address.
    counter: u16,
}

/// The gap records of a core.
#[derive(Debug)]
pub(crate) struct Gaps {
    records: Lender<GapRecord>,
    /// Number of records that each counter's peers have at this core.
    peers: Box<[u16]>,
    /// Most records of one counter at this core.
    share: u16,
    /// The secret of `counter_of`.
    key: u64,
}

/// What `Gaps` of all cores share.
#[derive(Clone, Debug)]
pub(crate) struct GapStock {
    records: Stock<GapRecord>,
    cores: u8,
}

impl GapRecord {
    // SETUP: made with the cores.
    fn new() -> Self {
        Self { held: Vec::with_capacity(INTERVALS_MAX), counter: 0 }
    }
}

/// Number of gap records of a service with so many cores.
fn count(config: &Config, cores: u8) -> usize {
    (config.flows as usize).min(usize::from(cores) * RECORDS_EACH).min(RECORDS_MAX)
}

impl GapStock {
    /// The records for `cores` cores.
    // SETUP: made with the cores.
    pub(crate) fn new(config: &Config, cores: u8) -> Self {
        Self { records: Stock::new(count(config, cores), GapRecord::new), cores }
    }
}

impl Gaps {
    /// The records of a core that is alone.
    // SETUP: made with the core.
    pub(crate) fn new(config: &Config) -> Self {
        Self::with(Lender::new(count(config, 1), GapRecord::new), 1)
    }

    /// The records of a core that shares them with others.
    // SETUP: made with the core.
    pub(crate) fn shared(stock: GapStock) -> Self {
        Self::with(Lender::shared(stock.records), stock.cores)
    }

    // SETUP: made with the core.
    fn with(records: Lender<GapRecord>, cores: u8) -> Self {
        let share = (records.count() / usize::from(cores.max(1)) / PEERS).max(1) as u16;
        Self { records, peers: vec![0; 1 << COUNTERS_LOG2].into(), share, key: 1 }
    }

    /// Takes the secret from the table's keys, the same for all cores.
    // SETUP: called once, with the core.
    pub(crate) fn set_key(&mut self, table: &FlowTable) {
        self.key = table.hash_v4(b"gap records.") | 1;
    }

    /// The flow's intervals, in order.
    pub(crate) fn used<'a>(&'a self, ahead: &'a Ahead) -> &'a [Interval] {
        match self.records.of(ahead.record) {
            None => ahead.used(&ahead.own),
            Some(record) => ahead.used(&record.held),
        }
    }

    /// Adds an interval to the flow's. False when there is no place for it.
    #[must_use]
    pub(crate) fn add(&mut self, f: &mut FlowMut<'_>, new: Interval) -> bool {
        if self.change(&mut f.cold.ahead, |intervals| intervals.add(new)) {
            return true;
        }
        f.cold.ahead.record == 0 && self.lend(f) && self.change(&mut f.cold.ahead, |i| i.add(new))
    }

    /// Takes out the intervals that `next` has reached. Returns the first sequence number from `next` on that has not come.
    #[must_use]
    pub(crate) fn reach(&mut self, ahead: &mut Ahead, next: SeqNumber) -> SeqNumber {
        let end = self.change(ahead, |intervals| intervals.reach(next));
        if ahead.record != 0 && ahead.count <= FEW {
            self.fold(ahead);
        }
        end
    }

    /// Forgets all intervals of the flow, and takes its record back.
    #[inline]
    pub(crate) fn clear(&mut self, ahead: &mut Ahead) {
        ahead.count = 0;
        if ahead.record != 0 {
            self.fold(ahead);
        }
    }

    fn change<R>(&mut self, ahead: &mut Ahead, what: impl FnOnce(&mut Intervals<'_>) -> R) -> R {
        let Some(record) = self.records.of_mut(ahead.record) else {
            return what(&mut ahead.own());
        };
        let held = &mut record.held;
        if usize::from(ahead.first) + usize::from(ahead.count) == held.len() && held.len() < INTERVALS_MAX {
            held.push(Interval::default());
        }
        what(&mut ahead.borrowed(held))
    }

    /// Lends a record to the flow, which has none, and moves its intervals there. False when none is idle, or its peer has its part already.
    #[cold]
    #[must_use]
    fn lend(&mut self, f: &mut FlowMut<'_>) -> bool {
        let counter = self.counter_of(f);
        if self.peers[usize::from(counter)] >= self.share {
            return false;
        }
        let Some(mut record) = self.records.idle() else { return false };
        let ahead = &mut f.cold.ahead;
        record.counter = counter;
        record.held.clear();
        record.held.extend_from_slice(ahead.used(&ahead.own));
        ahead.first = 0;
        self.put_in(ahead, Some(record));
        true
    }

    /// Moves the flow's intervals, which are few, back into its own record, and takes the gap record back.
    #[cold]
    fn fold(&mut self, ahead: &mut Ahead) {
        let Some(record) = self.take_out(ahead) else { return };
        let used = ahead.used(&record.held);
        ahead.own[..used.len()].copy_from_slice(used);
        ahead.first = 0;
        self.records.give_back(record);
    }

    /// Takes the record of a flow that leaves this core out, with what it says; the flow's own record counts on it until `put_in`.
    pub(crate) fn take_out(&mut self, ahead: &mut Ahead) -> Option<GapRecord> {
        let record = self.records.take_out(&mut ahead.record)?;
        self.peers[usize::from(record.counter)] -= 1;
        Some(record)
    }

    /// Takes in the record of a flow that comes to this core.
    pub(crate) fn put_in(&mut self, ahead: &mut Ahead, record: Option<GapRecord>) {
        let Some(record) = record else { return };
        self.peers[usize::from(record.counter)] += 1;
        ahead.record = self.records.put_in(record);
    }

    /// The counter of the flow's peer: of its address, or of the first half of an IPv6 address, because one host has all of the second.
    fn counter_of(&self, f: &FlowMut<'_>) -> u16 {
        let v4 = u64::from(u32::from_le_bytes(f.tx.peer_v4)) | 1 << 32;
        let v6 = || f.addresses.peer.first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
        let number = if f.rx.has(state::V6) { v6() } else { v4 };
        // Multiplication by a secret odd number, of which the upper bits count: two addresses collide with a chance of two in the number of counters.
        (number.wrapping_mul(self.key) >> (u64::BITS - COUNTERS_LOG2)) as u16
    }
}

impl Core {
    /// The intervals of data that the flow, which this core serves, has received ahead of gaps. For checks of their invariants.
    #[must_use]
    pub fn intervals<'a>(&'a self, f: &'a FlowMut<'_>) -> &'a [Interval] {
        self.state.gaps.used(&f.cold.ahead)
    }

    /// Number of gap records that flows of this core have borrowed.
    #[must_use]
    pub fn gap_records(&self) -> usize {
        self.state.gaps.records.lent()
    }
}
