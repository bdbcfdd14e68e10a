//! The scoreboard: what is known of the sequence numbers in flight, as runs in order (RFC 2018, RFC 6675, RFC 8985).
//!
//! ```text
//!   snd_una                                                    snd_max
//!   ---|##Again##|-----|##Held##|##Lost##|##Held##|---------------|
//!      sent again       reported  to be             sent once, nothing heard
//!                                 sent again
//! ```
//! A flow without losses has no runs at all. Every change goes through [`Board::set`], which keeps the byte sums.
//!
//! The number of runs is bounded, and yet a change that repair depends on is never refused: what was sent again must not stay `Lost`, or it
//! would be sent for ever. A full board joins two runs elsewhere ([`Board::join`]). Only a report of the peer may find no room; it then counts
//! as not heard.

use crate::lender::{Lender, Stock};
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
        Self(Lender::new(count(config, 1), || Box::new(Record::EMPTY)))
    }

    /// The records of a core that shares them with others. It has a number for each record of all.
    // SETUP: made with the core.
    pub(crate) fn shared(stock: RecordStock) -> Self {
        Self(Lender::shared(stock.0))
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
    fn board<'a>(&'a mut self, cold: &'a mut Cold) -> Board<'a> {
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

    /// One after the highest byte that the peer has reported by SACK, or `snd_una`.
    pub(crate) fn highest(&self, f: &FlowMut<'_>) -> SeqNumber {
        let held = self.runs(f.cold).iter().rev().find(|run| run.kind == Kind::Held);
        held.map_or(f.tx.snd_una, |run| run.right)
    }
}

impl State {
    /// Marks `range` as `kind`, or as unknown for `None`. Whatever room the board has, no byte of `range` keeps its kind.
    pub(crate) fn set_runs(&mut self, cold: &mut Cold, range: Interval, kind: Option<Kind>) {
        let at = if kind == Some(Kind::Again) { self.now_us() } else { 0 };
        self.set_runs_at(cold, range, kind, at);
    }

    fn set_runs_at(&mut self, cold: &mut Cold, range: Interval, kind: Option<Kind>, at: u32) {
        let joined = self.records.board(cold).set(range, kind, at, self.now_us);
        if joined > 0 {
            self.counters.runs_joined += u64::from(joined);
            // Which sending was answered is known of fewer bytes: no longer enough to call the whole repair needless.
            cold.recovery.was_needed = true;
        }
    }

    /// Turns each piece of `range` that satisfies `is_it` into `kind`. True when there was any. A piece that becomes `Lost` keeps in
    /// `Run::at` whether it was sent again before.
    pub(crate) fn turn_runs(
        &mut self,
        cold: &mut Cold,
        mut range: Interval,
        kind: Option<Kind>,
        is_it: impl Fn(Option<Run>) -> bool,
    ) -> bool {
        let mut any = false;
        while let Some((piece, run)) = self.records.find_run(cold, range, &is_it) {
            let is_again = kind == Some(Kind::Lost) && run.is_some_and(|run| run.was_sent_again());
            self.set_runs_at(cold, piece, kind, u32::from(is_again));
            // Forward only: what joining has made of the runs before does not come again.
            (any, range.left) = (true, piece.right);
        }
        any
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

/// True when the runs touch and differ by their times only.
fn is_alike(a: Run, b: Run) -> bool {
    a.right == b.left && (a.kind, a.is_joined) == (b.kind, b.is_joined)
}

struct Board<'a> {
    runs: &'a mut [Run],
    count: &'a mut u16,
    /// Bytes of runs of each [`Kind`], indexed by it.
    sums: [&'a mut u32; 3],
    lost_total: &'a mut u32,
}

/// A change of the board that is worked out and not made yet: `pieces` take the places of the runs `begin..end`.
struct Change {
    begin: usize,
    end: usize,
    pieces: [Option<Run>; 3],
    /// The runs that overlap the range.
    first: usize,
    last: usize,
}

impl Board<'_> {
    /// Marks `range`. If there is no room for it, joins neighbours among the other runs, at the time `now`, and returns how many.
    fn set(&mut self, range: Interval, kind: Option<Kind>, at: u32, now: u32) -> u32 {
        for joined in 0.. {
            if self.try_set(range, kind, at) {
                return joined;
            }
            // Each time there is one run fewer, and where only two are left any change finds room.
            let pair = self.alike().unwrap_or_else(|| self.cheapest(range));
            self.join(pair, now);
        }
        unreachable!("a board with two runs has room")
    }

    /// Marks `range` as held. False, and nothing of it marked, when there is no room even after neighbours of one kind were joined.
    #[must_use]
    fn hold(&mut self, range: Interval) -> bool {
        loop {
            if self.try_set(range, Some(Kind::Held), 0) {
                return true;
            }
            let Some(pair) = self.alike() else { return false };
            self.join(pair, 0);
        }
    }

    /// Marks `range` if there is room.
    #[must_use]
    fn try_set(&mut self, range: Interval, kind: Option<Kind>, at: u32) -> bool {
        let Change { begin, end, pieces, first, last } = self.change(range, kind, at);
        let n = usize::from(*self.count);
        let count = n - (end - begin) + pieces.iter().flatten().count();
        if count > self.runs.len() {
            return false;
        }
        self.count(first, last, range, kind);
        self.runs.copy_within(end..n, count - (n - end));
        for (i, piece) in pieces.into_iter().flatten().enumerate() {
            self.runs[begin + i] = piece;
        }
        *self.count = count as u16;
        true
    }

    /// What marking `range` changes.
    fn change(&self, range: Interval, kind: Option<Kind>, at: u32) -> Change {
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
        let mut new = kind.map(|kind| Run { left, right, at, kind, is_joined: false });
        if let Some(new) = &mut new {
            let is_like = |run: &Run| (run.kind, run.at, run.is_joined) == (new.kind, new.at, new.is_joined);
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
        Change { begin, end, pieces: [head, new, tail], first, last }
    }

    /// Of neighbours that touch and are of one kind, the pair whose times differ least, by its first run: joining them costs the difference
    /// of their times.
    fn alike(&self) -> Option<usize> {
        let runs = &self.runs[..usize::from(*self.count)];
        let pairs = runs.windows(2).enumerate().filter(|(_, pair)| is_alike(pair[0], pair[1]));
        pairs
            .min_by_key(|(_, pair)| (pair[0].at.wrapping_sub(pair[1].at) as i32).unsigned_abs())
            .map(|(i, _)| i)
    }

    /// Of all neighbours that lie outside `range`, the pair of which least bytes are not in flight yet: the last of these, for it is
    /// repaired last. If all overlap the range, the first pair.
    fn cheapest(&self, range: Interval) -> usize {
        let runs = &self.runs[..usize::from(*self.count)];
        let pairs = runs.windows(2).enumerate();
        let outside = pairs.filter(|(_, pair)| {
            pair[1].right.is_at_or_before(range.left) || range.right.is_at_or_before(pair[0].left)
        });
        let gone = |run: &Run| if run.kind == Kind::Again { 0 } else { run.right.since(run.left) };
        let costs = outside.map(|(i, pair)| (i, gone(&pair[0]) + gone(&pair[1])));
        costs.reduce(|least, pair| if pair.1 <= least.1 { pair } else { least }).map_or(0, |(i, _)| i)
    }

    /// Makes one run of `runs[i]`, the next one, and what lies between. If they were alike, it is of their kind, with the later of their
    /// times. Otherwise all of it counts as in flight from now on, or from when the part that was sent again was: nothing becomes `Lost` or
    /// `Held` here, so that the flow sends too little rather than too much.
    fn join(&mut self, i: usize, now: u32) {
        let (a, b) = (self.runs[i], self.runs[i + 1]);
        let is_alike = is_alike(a, b);
        let kind = if is_alike { a.kind } else { Kind::Again };
        let times = [a, b].into_iter().filter(|run| run.kind == kind).map(|run| SeqNumber(run.at));
        let at = times.reduce(SeqNumber::later_of).map_or(now, |SeqNumber(at)| at);
        let is_joined = !is_alike || a.is_joined;
        self.count(i, i + 2, Interval { left: a.left, right: b.right }, Some(kind));
        self.runs[i] = Run { left: a.left, right: b.right, at, kind, is_joined };
        let n = usize::from(*self.count);
        self.runs.copy_within(i + 2..n, i + 1);
        *self.count -= 1;
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

    const BYTES: usize = 300;

    fn pool(loss_records: u16) -> Records {
        Records::new(&Config { loss_records, ..Config::default() })
    }

    /// What the board says of each byte: kind, time, and whether runs were joined there.
    type Bytes = Vec<Option<(Kind, u32, bool)>>;

    fn bytes_of(records: &Records, cold: &Cold, start: SeqNumber) -> Bytes {
        let mut found = vec![None; BYTES];
        let whole = Interval { left: start, right: start.plus(BYTES as u32) };
        records.pieces(cold, whole, |piece, run| {
            let (left, right) = (piece.left.since(start) as usize, piece.right.since(start) as usize);
            found[left..right].fill(run.map(|run| (run.kind, run.at, run.is_joined)));
        });
        found
    }

    fn assert_sums(cold: &Cold, bytes: &Bytes) {
        let sum = |kind| bytes.iter().flatten().filter(|byte| byte.0 == kind).count() as u32;
        let r = &cold.recovery;
        assert_eq!((r.held, r.lost, r.again), (sum(Kind::Held), sum(Kind::Lost), sum(Kind::Again)));
    }

    /// What a full board may do to bytes that a change does not mean: they count as in flight. Nothing becomes lost, held or unknown.
    fn assert_only_joined(before: &Bytes, after: &Bytes) {
        for (old, new) in before.iter().zip(after) {
            let kind = |byte: &Option<(Kind, u32, bool)>| byte.map(|byte| byte.0);
            let is_joined = new.is_some_and(|(kind, _, is_joined)| kind == Kind::Again && is_joined);
            assert!(kind(old) == kind(new) || is_joined, "{old:?} became {new:?}");
        }
    }

    /// Oracle: one entry per byte. A third of the boards have four runs only.
    #[test]
    fn runs_agree_with_an_array_of_bytes_and_a_full_board_takes_each_change() {
        let window = congestion::Window::new(congestion::Algorithm::Reno, 1448, Instant::ZERO);
        let mut rng = Seed::new(5);
        let (mut joins, mut refused) = (0, 0);
        for round in 0..60 {
            let start = SeqNumber(u32::MAX - 150 + round);
            let (mut records, mut cold) = (pool(u16::from(round % 3 != 0)), Cold::new(window, Instant::ZERO));
            let mut bytes: Bytes = vec![None; BYTES];
            for now in 10..410 {
                let left = rng.below(299) as usize;
                let right = (left + 1 + rng.below(40) as usize).min(BYTES);
                let kind =
                    [None, Some(Kind::Held), Some(Kind::Lost), Some(Kind::Again)][rng.below(4) as usize];
                let at = if kind == Some(Kind::Again) { rng.below(3) as u32 } else { 0 };
                let range = Interval { left: start.plus(left as u32), right: start.plus(right as u32) };
                let (joined, is_taken) = if kind == Some(Kind::Held) {
                    (0, records.hold(&mut cold, range))
                } else {
                    (records.board(&mut cold).set(range, kind, at, now), true)
                };
                let found = bytes_of(&records, &cold, start);
                assert_sums(&cold, &found);
                if is_taken {
                    bytes[left..right].fill(kind.map(|kind| (kind, at, false)));
                    assert_eq!(found[left..right], bytes[left..right], "whatever room there is");
                }
                assert_only_joined(&bytes, &found);
                // A report joins runs of one kind only, and the pool's records are long enough for these bytes.
                assert!(joined == 0 || cold.loss_record == 0);
                assert!(joined > 0 || cold.loss_record == 0 || found == bytes);
                (joins, refused, bytes) = (joins + joined, refused + u32::from(!is_taken), found);
            }
            records.take_back(&mut cold);
            assert_eq!(records.0.lent(), 0);
        }
        assert!(joins > 100 && refused > 100, "{joins} {refused}");
    }

    /// Where joining runs of one kind is enough nothing but times is lost: the hole that is being repaired grows segment by segment.
    #[test]
    fn a_hole_is_repaired_on_four_runs_with_nothing_lost_but_times() {
        let window = congestion::Window::new(congestion::Algorithm::Reno, 1, Instant::ZERO);
        let (mut records, mut cold) = (pool(0), Cold::new(window, Instant::ZERO));
        let range = |left: u32, right| Interval { left: SeqNumber(left), right: SeqNumber(right) };
        let _ = records.board(&mut cold).set(range(0, 700), Some(Kind::Lost), 0, 0);
        assert!(records.hold(&mut cold, range(700, 1400)));
        for i in 0..700 {
            let _ = records.board(&mut cold).set(range(i, i + 1), Some(Kind::Again), 5 + i, 5 + i);
            assert_eq!((cold.recovery.lost, cold.recovery.held, cold.recovery.again), (699 - i, 700, i + 1));
        }
        assert!(records.runs(&cold).iter().all(|run| !run.is_joined));
    }
    #[test]
    fn a_peer_with_losses_on_many_connections_leaves_loss_records_to_others() {
        const ALL: usize = 512;
        let mut records = pool(ALL as u16);
        let mut lent_to = |peer, most: usize| {
            let window = congestion::Window::new(congestion::Algorithm::Reno, 1, Instant::ZERO);
            let cold = || Cold { peer, ..Cold::new(window, Instant::ZERO) };
            (0..most).take_while(|_| records.lend(&mut cold())).count()
        };
        assert_eq!(lent_to(1, ALL), ALL.div_ceil(3));
        // After eight such peers the next finds some.
        (2..9).for_each(|peer| assert!(lent_to(peer, ALL) > 0, "{peer}"));
        assert!(lent_to(9, ALL) > 5);
    }
}
