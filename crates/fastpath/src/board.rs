//! The scoreboard: what is known of the sequence numbers in flight, as runs in order (RFC 2018, RFC 6675, RFC 8985).
//!
//! ```text
//!   snd_una                                                    snd_max
//!   ---|##Again##|-----|##Held##|##Lost##|##Held##|---------------|
//!      sent again       reported  to be             sent once, nothing heard
//!                                 sent again
//! ```
//! A flow without losses has no runs at all. Every change goes through [`Board`], which keeps the byte sums.

use crate::lender::{Lender, Part, Stock};
use crate::runs::{Board, Pieces};
use crate::setup::State;
use base::SeqNumber;
use flow::{Cold, Config, FlowMut, Interval, Kind, RUNS, Run};

/// Runs of a borrowed record: at 5 % loss enough for a window of 5,000 segments. Of more ranges some are joined: their bytes are
/// retransmitted needlessly or late.
pub(crate) const RUNS_MAX: usize = 512;
/// Send-time marks of a borrowed record.
const MARKS: usize = 32;
/// Largest number of loss records of a service with many cores. 8.3 KiB each; a flow that finds none free goes on with less knowledge.
const RECORDS_MAX: usize = 2048;

/// Flows with windows of several bursts have one, so one peer may be where most flows go: it gets seven eighths of what is idle.
const PART: Part = Part { times: 1, of: 7 };
/// Bytes from the end of the mark before up to `end` were sent at `at`, or at most a sixteenth of a round trip later.
#[derive(Clone, Copy, Debug)]
struct Mark {
    end: SeqNumber,
    at: u32,
}

/// A loss record, borrowed by one flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    runs: [Run; RUNS_MAX],
    /// A ring buffer of `count` marks, the oldest at `first`.
    marks: [Mark; MARKS],
    first: u8,
    count: u8,
    /// If marks were dropped for lack of room: the send times of bytes before this number are not known.
    unknown: Option<SeqNumber>,
}

/// The loss records that all cores share.
#[derive(Clone, Debug)]
pub(crate) struct RecordStock(Stock<Box<Record>>);

/// The loss records of a core. Each peer may have a part of them only: one with losses on many connections leaves some to the others.
#[derive(Debug)]
pub(crate) struct Records(Lender<Box<Record>>);

/// Number of loss records of a service with so many cores.
fn count(config: &Config, cores: u8) -> usize {
    let most = usize::from(cores) * usize::from(config.loss_records);
    most.min(config.flows as usize).min(RECORDS_MAX)
}

impl RecordStock {
    /// The records for `cores` cores.
    // SETUP: made with the cores.
    pub(crate) fn new(config: &Config, cores: u8) -> Self {
        Self(Stock::new(count(config, cores), || Box::new(Record::EMPTY)))
    }
}

impl Records {
    // SETUP: made with the core.
    pub(crate) fn new(config: &Config) -> Self {
        Self(Lender::new(count(config, 1), PART, || Box::new(Record::EMPTY)))
    }

    /// The records of a core that shares them with others. It has a number for each record of all.
    // SETUP: made with the core.
    pub(crate) fn shared(stock: RecordStock) -> Self {
        Self(Lender::shared(stock.0, PART))
    }

    /// Lends an idle record to the flow, unless it has one, and moves its runs there. False when no record is idle, or its peer has its part already.
    #[must_use]
    fn lend(&mut self, cold: &mut Cold) -> bool {
        if cold.loss_record != 0 {
            return true;
        }
        let Some(mut record) = self.0.idle(cold.peer) else { return false };
        record.runs[..RUNS].copy_from_slice(&cold.recovery.runs);
        (record.first, record.count, record.unknown) = (0, 0, None);
        self.put_in(cold, Some(record));
        true
    }

    /// Takes the flow's record back: all its data is acknowledged, or the flow is removed.
    #[inline]
    pub(crate) fn take_back(&mut self, cold: &mut Cold) {
        if cold.loss_record != 0 {
            self.take_lent_back(cold);
        }
    }

    /// As `take_back`, for a flow that has a record. Not inlined: a request and its answer need none.
    #[inline(never)]
    fn take_lent_back(&mut self, cold: &mut Cold) {
        if let Some(record) = self.take_out(cold) {
            self.0.give_back(record);
        }
        cold.runs = 0;
        (cold.recovery.held, cold.recovery.lost, cold.recovery.again) = (0, 0, 0);
    }

    /// Takes the record of a flow that leaves this core out, with what it says; the flow's own record counts on it until `put_in`.
    pub(crate) fn take_out(&mut self, cold: &mut Cold) -> Option<Box<Record>> {
        self.0.take_out(&mut cold.loss_record)
    }

    /// Takes in the record of a flow that comes to this core.
    pub(crate) fn put_in(&mut self, cold: &mut Cold, record: Option<Box<Record>>) {
        let Some(record) = record else { return };
        cold.loss_record = self.0.put_in(record, cold.peer);
    }

    /// Records that bytes before `end` without a mark were sent at `sent_at`; bytes from `end` on are being sent now.
    #[cold]
    pub(crate) fn mark(&mut self, f: &mut FlowMut<'_>, end: SeqNumber) {
        if !self.lend(f.cold) {
            return;
        }
        let Some(record) = self.0.of_mut(f.cold.loss_record) else { return };
        while record.count > 0 && record.marks[usize::from(record.first)].end.is_at_or_before(f.tx.snd_una) {
            record.drop_oldest();
        }
        record.unknown = record.unknown.filter(|end| f.tx.snd_una.is_before(*end));
        if usize::from(record.count) == MARKS {
            record.unknown = Some(record.marks[usize::from(record.first)].end);
            record.drop_oldest();
        }
        let at = (usize::from(record.first) + usize::from(record.count)) % MARKS;
        record.marks[at] = Mark { end, at: f.cold.sent_at };
        record.count += 1;
    }

    /// End and send time of each burst in flight, the oldest first; the last ends at `snd_max`. Times in microseconds modulo 2^32.
    pub(crate) fn bursts<'a>(&'a self, f: &FlowMut<'_>) -> impl Iterator<Item = (SeqNumber, u32)> + use<'a> {
        let record = self.of(f.cold);
        let last = (f.tx.snd_max, f.cold.sent_at);
        let marks = record
            .into_iter()
            .flat_map(|r| (0..usize::from(r.count)).map(|i| r.marks[(usize::from(r.first) + i) % MARKS]));
        marks.map(|mark| (mark.end, mark.at)).chain([last])
    }

    /// When `seq` was first sent, microseconds modulo 2^32.
    pub(crate) fn sent_at(&self, f: &FlowMut<'_>, seq: SeqNumber) -> u32 {
        self.bursts(f).find(|(end, _)| seq.is_before(*end)).map_or(f.cold.sent_at, |(_, at)| at)
    }

    /// As `sent_at`, for a round-trip measurement: `None` if the mark was dropped for lack of room, so that the time is not known.
    pub(crate) fn measured_at(&self, f: &FlowMut<'_>, seq: SeqNumber) -> Option<u32> {
        let unknown = self.of(f.cold).and_then(|record| record.unknown);
        unknown.is_none_or(|end| end.is_at_or_before(seq)).then(|| self.sent_at(f, seq))
    }

    fn of(&self, cold: &Cold) -> Option<&Record> {
        self.0.of(cold.loss_record).map(Box::as_ref)
    }

    /// The flow's runs, in order.
    pub(crate) fn runs<'a>(&'a self, cold: &'a Cold) -> &'a [Run] {
        let all = self.of(cold).map_or(&cold.recovery.runs[..], |r| &r.runs);
        &all[..usize::from(cold.runs)]
    }

    /// The flow's scoreboard, for changing it; borrows a record when the flow's own runs may not suffice.
    pub(crate) fn board<'a>(&'a mut self, cold: &'a mut Cold) -> Board<'a> {
        // Without a record the flow's own runs have to do: some are joined.
        let _ = usize::from(cold.runs) + 2 > RUNS && self.lend(cold);
        let recovery = &mut cold.recovery;
        let runs = match self.0.of_mut(cold.loss_record) {
            None => &mut recovery.runs[..],
            Some(record) => &mut record.runs,
        };
        let sums = [&mut recovery.held, &mut recovery.lost, &mut recovery.again];
        Board { runs, count: &mut cold.runs, sums, lost_total: &mut recovery.lost_total }
    }

    /// Notes that the peer has reported `range`. False, and no byte of it noted, when there is no room: the report counts as not heard.
    #[must_use]
    pub(crate) fn hold(&mut self, cold: &mut Cold, range: Interval) -> bool {
        self.board(cold).hold(range)
    }

    /// Each piece of `range` that lies in one run or in none, in order.
    pub(crate) fn pieces<'a>(&'a self, cold: &'a Cold, range: Interval) -> Pieces<'a> {
        Pieces::new(self.runs(cold), range)
    }

    /// The first piece of `range` that satisfies `is_it`.
    pub(crate) fn find(
        &self,
        cold: &Cold,
        range: Interval,
        is_it: impl Fn(Option<Run>) -> bool,
    ) -> Option<Interval> {
        self.pieces(cold, range).find(|(_, run)| is_it(*run)).map(|(piece, _)| piece)
    }

    /// Turns each piece of `range` that satisfies `is_it` into `kind` at the time `now`. True when there was any; and how many runs were joined.
    /// A piece that becomes `Lost` keeps in `Run::at` whether it was sent again before.
    #[must_use]
    pub(crate) fn turn(
        &mut self,
        cold: &mut Cold,
        mut range: Interval,
        kind: Option<Kind>,
        is_it: impl Fn(Option<Run>) -> bool,
        now: u32,
    ) -> (bool, u32) {
        let (mut any, mut joined) = (false, 0);
        while let Some((piece, run)) = self.pieces(cold, range).find(|(_, run)| is_it(*run)) {
            let is_again = kind == Some(Kind::Lost) && run.is_some_and(|run| run.was_sent_again());
            joined += self.board(cold).set(piece, kind, u32::from(is_again), now);
            // Forward only: what joining has made of the runs before does not come again.
            (any, range.left) = (true, piece.right);
        }
        (any, joined)
    }

    /// True when no flow has a record.
    #[cfg(test)]
    pub(crate) fn are_all_idle(&self) -> bool {
        self.0.lent() == 0
    }

    /// One after the highest byte that the peer has reported by SACK, or `snd_una`.
    pub(crate) fn highest(&self, f: &FlowMut<'_>) -> SeqNumber {
        let held = self.runs(f.cold).iter().rev().find(|run| run.kind == Kind::Held);
        held.map_or(f.tx.snd_una, |run| run.right)
    }
}

impl State {
    /// Marks `range` as `kind`, or as unknown for `None`. Whatever room the board has, no byte of `range` keeps its kind.
    pub(crate) fn set_runs(&mut self, cold: &mut Cold, range: Interval, kind: Option<Kind>) {
        let (at, now) = (if kind == Some(Kind::Again) { self.now_us() } else { 0 }, self.now_us());
        let joined = self.records.board(cold).set(range, kind, at, now);
        self.note_joined(cold, joined);
    }

    /// As [`Records::turn`]. True when there was any such piece.
    #[must_use]
    pub(crate) fn turn_runs(
        &mut self,
        cold: &mut Cold,
        range: Interval,
        kind: Option<Kind>,
        is_it: impl Fn(Option<Run>) -> bool,
    ) -> bool {
        let (any, joined) = self.records.turn(cold, range, kind, is_it, self.now_us);
        self.note_joined(cold, joined);
        any
    }

    fn note_joined(&mut self, cold: &mut Cold, joined: u32) {
        if joined > 0 {
            self.counters.runs_joined += u64::from(joined);
            // Which sending was answered is known of fewer bytes: no longer enough to call the whole repair needless.
            cold.recovery.was_needed = true;
        }
    }
}

impl Record {
    const EMPTY: Self = Self {
        runs: [Run::NOTHING; RUNS_MAX],
        marks: [Mark { end: SeqNumber(0), at: 0 }; MARKS],
        first: 0,
        count: 0,
        unknown: None,
    };

    fn drop_oldest(&mut self) {
        self.first = (self.first + 1) % MARKS as u8;
        self.count -= 1;
    }
}
