//! The scoreboard: what is known of the sequence numbers in flight, as runs in order (RFC 2018, RFC 6675, RFC 8985).
//!
//! ```text
//!   snd_una                                                    snd_max
//!   ---|##Again##|-----|##Held##|##Lost##|##Held##|---------------|
//!      sent again       reported  to be             sent once, nothing heard
//!                                 sent again
//! ```
//! A flow without losses has no runs at all. Every change goes through [`Board::set`], which keeps the byte sums.

use base::SeqNumber;
use flow::{Cold, FlowMut, Interval, Kind, RUNS, Run};
use std::sync::Arc;

/// Runs of a borrowed record: at 5 % loss enough for a window of 5,000 segments. Ranges beyond that are not recorded: their bytes
/// are retransmitted too often or too late, but never lost.
pub(crate) const RUNS_MAX: usize = 512;
/// Send-time marks of a borrowed record.
const MARKS: usize = 32;
/// Loss records for each core, and of a service with many cores: at most so many flows at a time can have windows of more than one burst, or many
/// holes, recorded. 8.3 KiB each; a flow that finds none free goes on with less knowledge.
const RECORDS_EACH: usize = 512;
const RECORDS_MAX: usize = 2048;
const NONE: Run = Run { left: SeqNumber(0), right: SeqNumber(0), at: 0, kind: Kind::Held };

/// Bytes from the end of the mark before up to `end` were sent at `at`, or at most a sixteenth of a round trip later.
#[derive(Clone, Copy, Debug)]
struct Mark {
    end: SeqNumber,
    at: u32,
}

/// Idle records that a core keeps at most when several cores share them, and how many it takes from them, or returns, at once.
const CACHE: usize = 64;
const SHARE: usize = 32;

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

/// The idle loss records that all cores of a service share.
// SETUP: the lock is only tried; a core that does not get it goes on with the records that it has.
#[derive(Clone, Debug)]
pub(crate) struct Stock {
    idle: Arc<std::sync::Mutex<Vec<Box<Record>>>>,
    /// Number of records in all.
    count: usize,
}

impl Stock {
    /// The records for `cores` cores.
    // SETUP: made with the cores.
    pub(crate) fn new(flows: usize, cores: u8) -> Self {
        let count = flows.min(usize::from(cores) * RECORDS_EACH).min(RECORDS_MAX);
        let idle = (0..count).map(|_| Box::new(Record::EMPTY)).collect();
        Self { idle: Arc::new(std::sync::Mutex::new(idle)), count }
    }

    /// Moves up to `SHARE` records to `idle`. None when another core is at it just now.
    #[cold]
    fn fill(&self, idle: &mut Vec<Box<Record>>) {
        if let Ok(mut all) = self.idle.try_lock() {
            let left = all.len().saturating_sub(SHARE);
            idle.extend(all.drain(left..));
        }
    }

    /// Moves `SHARE` records back from `idle`, unless another core is at it just now.
    #[cold]
    fn spill(&self, idle: &mut Vec<Box<Record>>) {
        if let Ok(mut all) = self.idle.try_lock() {
            all.extend(idle.drain(idle.len().saturating_sub(SHARE)..));
        }
    }
}

/// The loss records of a core: those that its flows have borrowed, by number, and its cache of idle ones.
#[derive(Debug)]
pub(crate) struct Records {
    lent: Box<[Option<Box<Record>>]>,
    /// Numbers of `lent` without a record.
    free: Vec<u16>,
    idle: Vec<Box<Record>>,
    /// The records of all cores, if there are several.
    stock: Option<Stock>,
}

impl Records {
    // SETUP: made with the core.
    pub(crate) fn new(flows: usize) -> Self {
        let Stock { idle, count } = Stock::new(flows, 1);
        let idle = Arc::into_inner(idle).and_then(|idle| idle.into_inner().ok()).unwrap_or_default();
        Self { idle, ..Self::numbers(count) }
    }

    /// The records of a core that shares them with others. It has a number for each record of all.
    // SETUP: made with the core.
    pub(crate) fn shared(stock: Stock) -> Self {
        let records = Self::numbers(stock.count);
        Self { idle: Vec::with_capacity(stock.count), stock: Some(stock), ..records }
    }

    // SETUP: made with the core.
    fn numbers(count: usize) -> Self {
        let lent = (0..count).map(|_| None).collect();
        Self { lent, free: (0..count as u16).rev().collect(), idle: Vec::new(), stock: None }
    }

    /// Lends an idle record to the flow, unless it has one, and moves its runs there. False when no record is idle.
    fn lend(&mut self, cold: &mut Cold) -> bool {
        if cold.loss_record != 0 {
            return true;
        }
        if let (true, Some(stock)) = (self.idle.is_empty(), &self.stock) {
            stock.fill(&mut self.idle);
        }
        let Some(mut record) = self.idle.pop() else { return false };
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
        let record = self.take_out(cold);
        self.idle.extend(record);
        cold.runs = 0;
        (cold.recovery.held, cold.recovery.lost, cold.recovery.again) = (0, 0, 0);
        if let (true, Some(stock)) = (self.idle.len() > CACHE, &self.stock) {
            stock.spill(&mut self.idle);
        }
    }

    /// Takes the record of a flow that leaves this core out, with what it says; the flow's own record counts on it until `put_in`.
    pub(crate) fn take_out(&mut self, cold: &mut Cold) -> Option<Box<Record>> {
        let number = cold.loss_record.checked_sub(1)?;
        cold.loss_record = 0;
        self.free.push(number);
        self.lent[usize::from(number)].take()
    }

    /// Takes in the record of a flow that comes to this core.
    pub(crate) fn put_in(&mut self, cold: &mut Cold, record: Option<Box<Record>>) {
        let Some(record) = record else { return };
        let number = self.free.pop().expect("a core has a number for each record of all cores");
        self.lent[usize::from(number)] = Some(record);
        cold.loss_record = number + 1;
    }

    /// Records that bytes before `end` without a mark were sent at `sent_at`; bytes from `end` on are being sent now.
    #[cold]
    pub(crate) fn mark(&mut self, f: &mut FlowMut<'_>, end: SeqNumber) {
        if !self.lend(f.cold) {
            return;
        }
        let Some(record) = self.lent[usize::from(f.cold.loss_record - 1)].as_deref_mut() else { return };
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
        self.lent.get(usize::from(cold.loss_record).checked_sub(1)?)?.as_deref()
    }

    /// The flow's runs, in order.
    pub(crate) fn runs<'a>(&'a self, cold: &'a Cold) -> &'a [Run] {
        let all = self.of(cold).map_or(&cold.recovery.runs[..], |r| &r.runs);
        &all[..usize::from(cold.runs)]
    }

    /// The flow's scoreboard, for changing it; borrows a record when the flow's own runs may not suffice.
    fn board<'a>(&'a mut self, cold: &'a mut Cold) -> Board<'a> {
        if usize::from(cold.runs) + 2 > RUNS {
            self.lend(cold);
        }
        let recovery = &mut cold.recovery;
        let number = usize::from(cold.loss_record).wrapping_sub(1);
        let runs = match self.lent.get_mut(number).and_then(Option::as_deref_mut) {
            None => &mut recovery.runs[..],
            Some(record) => &mut record.runs,
        };
        let sums = [&mut recovery.held, &mut recovery.lost, &mut recovery.again];
        Board { runs, count: &mut cold.runs, sums, lost_total: &mut recovery.lost_total }
    }

    /// Marks `[left, right)` as `kind`, or as unknown for `None`. False, and nothing changed, when there is no room for more runs.
    pub(crate) fn set(&mut self, cold: &mut Cold, range: Interval, kind: Option<Kind>, at: u32) -> bool {
        self.board(cold).set(range, kind, at)
    }

    /// Calls `take` for each piece of `range` that lies in one run or in none, in order.
    pub(crate) fn pieces(&self, cold: &Cold, range: Interval, mut take: impl FnMut(Interval, Option<Run>)) {
        let mut left = range.left;
        for run in self.runs(cold) {
            if run.right.is_at_or_before(left) {
                continue;
            }
            if range.right.is_at_or_before(run.left) {
                break;
            }
            if left.is_before(run.left) {
                take(Interval { left, right: run.left }, None);
                left = run.left;
            }
            let right = if run.right.is_before(range.right) { run.right } else { range.right };
            take(Interval { left, right }, Some(*run));
            left = right;
        }
        if left.is_before(range.right) {
            take(Interval { left, right: range.right }, None);
        }
    }

    /// The first piece of `range` that satisfies `is_it`.
    pub(crate) fn find(
        &self,
        cold: &Cold,
        range: Interval,
        is_it: impl Fn(Option<Run>) -> bool,
    ) -> Option<Interval> {
        self.find_run(cold, range, is_it).map(|(piece, _)| piece)
    }

    fn find_run(
        &self,
        cold: &Cold,
        range: Interval,
        is_it: impl Fn(Option<Run>) -> bool,
    ) -> Option<(Interval, Option<Run>)> {
        let mut found = None;
        self.pieces(cold, range, |piece, run| {
            if found.is_none() && is_it(run) {
                found = Some((piece, run));
            }
        });
        found
    }

    /// Turns each piece of `range` that satisfies `is_it` into `kind`. True when there was any. A piece that becomes `Lost` keeps in
    /// `Run::at` whether it was sent again before.
    pub(crate) fn turn(
        &mut self,
        cold: &mut Cold,
        mut range: Interval,
        kind: Option<Kind>,
        is_it: impl Fn(Option<Run>) -> bool,
    ) -> bool {
        let mut any = false;
        while let Some((piece, run)) = self.find_run(cold, range, &is_it) {
            let is_again = kind == Some(Kind::Lost) && run.is_some_and(|run| run.was_sent_again());
            if !self.set(cold, piece, kind, u32::from(is_again)) {
                break;
            }
            (any, range.left) = (true, piece.right);
        }
        any
    }

    /// One after the highest byte that the peer has reported by SACK, or `snd_una`.
    pub(crate) fn highest(&self, f: &FlowMut<'_>) -> SeqNumber {
        let held = self.runs(f.cold).iter().rev().find(|run| run.kind == Kind::Held);
        held.map_or(f.tx.snd_una, |run| run.right)
    }
}

impl Record {
    const EMPTY: Self = Self {
        runs: [NONE; RUNS_MAX],
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

struct Board<'a> {
    runs: &'a mut [Run],
    count: &'a mut u16,
    /// Bytes of runs of each [`Kind`], indexed by it.
    sums: [&'a mut u32; 3],
    lost_total: &'a mut u32,
}

impl Board<'_> {
    fn set(&mut self, range: Interval, kind: Option<Kind>, at: u32) -> bool {
        let (left, right) = (range.left, range.right);
        let n = usize::from(*self.count);
        let mut begin = self.runs[..n].iter().position(|run| left.is_before(run.right)).unwrap_or(n);
        let behind = self.runs[begin..n].iter().position(|run| right.is_at_or_before(run.left));
        let mut end = behind.map_or(n, |i| begin + i);
        let (first, last) = (begin, end);
        let head = self.runs[first..last].first().filter(|run| run.left.is_before(left));
        let mut head = head.map(|run| Run { right: left, ..*run });
        let tail = self.runs[first..last].last().filter(|run| right.is_before(run.right));
        let mut tail = tail.map(|run| Run { left: right, ..*run });
        let mut new = kind.map(|kind| Run { left, right, at, kind });
        if let Some(new) = &mut new {
            let is_like = |run: &Run| run.kind == new.kind && run.at == new.at;
            let before = head.or_else(|| self.runs[..first].last().copied().filter(|run| run.right == left));
            let after = tail.or_else(|| self.runs[last..n].first().copied().filter(|run| run.left == right));
            let (before, after) = (before.filter(is_like), after.filter(is_like));
            if let Some(before) = before {
                new.left = before.left;
                begin -= usize::from(head.take().is_none());
            }
            if let Some(after) = after {
                new.right = after.right;
                end += usize::from(tail.take().is_none());
            }
        }
        let pieces = [head, new, tail];
        let count = n - (end - begin) + pieces.iter().flatten().count();
        if count > self.runs.len() {
            return false;
        }
        self.count(first, last, range, kind);
        let behind = count - (n - end);
        self.runs.copy_within(end..n, behind);
        for (i, piece) in pieces.into_iter().flatten().enumerate() {
            self.runs[begin + i] = piece;
        }
        *self.count = count as u16;
        true
    }

    /// Subtracts the bytes of `range` from the sums of their old kinds and adds them to that of the new one.
    fn count(&mut self, first: usize, last: usize, range: Interval, kind: Option<Kind>) {
        let lost_before = *self.sums[Kind::Lost as usize];
        for run in &self.runs[first..last] {
            let right = if run.right.is_before(range.right) { run.right } else { range.right };
            let len = right.since(run.left.later_of(range.left));
            *self.sums[run.kind as usize] -= len;
        }
        if let Some(kind) = kind {
            *self.sums[kind as usize] += range.right.since(range.left);
        }
        let more = self.sums[Kind::Lost as usize].saturating_sub(lost_before);
        *self.lost_total = self.lost_total.wrapping_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Instant, Seed};

    /// Oracle: one entry per byte.
    #[test]
    fn runs_agree_with_an_array_of_bytes() {
        let window = congestion::Window::new(congestion::Algorithm::Reno, 1448, Instant::ZERO);
        let mut rng = Seed::new(5);
        for round in 0..60 {
            let start = u32::MAX - 150 + round;
            let (mut records, mut cold) =
                (Records::new(usize::from(round % 3 != 0)), Cold::new(window, Instant::ZERO));
            let mut bytes: Vec<Option<(Kind, u32)>> = vec![None; 300];
            for _ in 0..400 {
                let left = rng.below(299) as usize;
                let right = (left + 1 + rng.below(40) as usize).min(300);
                let kind =
                    [None, Some(Kind::Held), Some(Kind::Lost), Some(Kind::Again)][rng.below(4) as usize];
                let at = if kind == Some(Kind::Again) { rng.below(3) as u32 } else { 0 };
                let seq = |i: usize| SeqNumber(start.wrapping_add(i as u32));
                if records.set(&mut cold, Interval { left: seq(left), right: seq(right) }, kind, at) {
                    bytes[left..right].fill(kind.map(|kind| (kind, at)));
                } else {
                    assert!(usize::from(cold.runs) + 2 > RUNS && cold.loss_record == 0);
                }
                let mut found = vec![None; 300];
                let whole = Interval { left: seq(0), right: seq(300) };
                records.pieces(&cold, whole, |piece, run| {
                    let (l, r) = (piece.left.since(seq(0)) as usize, piece.right.since(seq(0)) as usize);
                    found[l..r].fill(run.map(|run| (run.kind, run.at)));
                });
                assert_eq!(found, bytes);
                let sum = |kind| bytes.iter().flatten().filter(|b| b.0 == kind).count() as u32;
                assert_eq!((cold.recovery.held, cold.recovery.lost), (sum(Kind::Held), sum(Kind::Lost)));
            }
            records.take_back(&mut cold);
            assert_eq!(records.idle.len(), records.lent.len());
        }
    }
}
