//! Gap records: where a flow keeps the intervals of its data ahead of gaps when they are more than its own record holds.
//!
//! Each peer may have a part of the records only (`lender.rs`): a peer that leaves thousands of gaps on many connections leaves some to the others. A
//! flow that gets no record goes on with the intervals of its own.

use crate::core::Core;
use crate::lender::{Lender, Part, Stock};
use base::SeqNumber;
use flow::{Ahead, Cold, Config, FlowMut, INTERVALS, INTERVALS_MAX, Interval, Intervals};

/// Gap records for each core, and of a service with many cores: so many flows at a time can have more than `INTERVALS` gaps. 32 KiB each, of which the
/// kernel gives memory for what was used.
const RECORDS_EACH: usize = 256;
const RECORDS_MAX: usize = 1024;
/// A peer on a connection without many losses needs none, so one gets a third of what is idle.
const PART: Part = Part { times: 2, of: 1 };
/// A flow with so few intervals gives its record back.
const FEW: u16 = INTERVALS as u16 / 2;

/// A gap record, borrowed by one flow.
#[derive(Debug)]
pub(crate) struct GapRecord {
    /// As long as the part that this flow has used, and no longer than `INTERVALS_MAX`, for which there is room.
    held: Vec<Interval>,
}

/// The gap records of a core.
#[derive(Debug)]
pub(crate) struct Gaps(Lender<GapRecord>);

/// The gap records that all cores share.
#[derive(Clone, Debug)]
pub(crate) struct GapStock(Stock<GapRecord>);

impl GapRecord {
    // SETUP: made with the cores.
    fn new() -> Self {
        Self { held: Vec::with_capacity(INTERVALS_MAX) }
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
        Self(Stock::new(count(config, cores), GapRecord::new))
    }
}

impl Gaps {
    /// The records of a core that is alone.
    // SETUP: made with the core.
    pub(crate) fn new(config: &Config) -> Self {
        Self(Lender::new(count(config, 1), PART, GapRecord::new))
    }

    /// The records of a core that shares them with others.
    // SETUP: made with the core.
    pub(crate) fn shared(stock: GapStock) -> Self {
        Self(Lender::shared(stock.0, PART))
    }

    /// The flow's intervals, in order.
    pub(crate) fn used<'a>(&'a self, ahead: &'a Ahead) -> &'a [Interval] {
        match self.0.of(ahead.record) {
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
        f.cold.ahead.record == 0 && self.lend(f.cold) && self.change(&mut f.cold.ahead, |i| i.add(new))
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
        let Some(record) = self.0.of_mut(ahead.record) else {
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
    fn lend(&mut self, cold: &mut Cold) -> bool {
        let Some(mut record) = self.0.idle(cold.peer) else { return false };
        let ahead = &mut cold.ahead;
        record.held.clear();
        record.held.extend_from_slice(ahead.used(&ahead.own));
        ahead.first = 0;
        self.put_in(cold, Some(record));
        true
    }

    /// Moves the flow's intervals, which are few, back into its own record, and takes the gap record back.
    #[cold]
    fn fold(&mut self, ahead: &mut Ahead) {
        let Some(record) = self.take_out(ahead) else { return };
        let used = ahead.used(&record.held);
        ahead.own[..used.len()].copy_from_slice(used);
        ahead.first = 0;
        self.0.give_back(record);
    }

    /// Takes the record of a flow that leaves this core out, with what it says; the flow's own record counts on it until `put_in`.
    pub(crate) fn take_out(&mut self, ahead: &mut Ahead) -> Option<GapRecord> {
        self.0.take_out(&mut ahead.record)
    }

    /// Takes in the record of a flow that comes to this core.
    pub(crate) fn put_in(&mut self, cold: &mut Cold, record: Option<GapRecord>) {
        let Some(record) = record else { return };
        cold.ahead.record = self.0.put_in(record, cold.peer);
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
        self.state.gaps.0.lent()
    }
}
