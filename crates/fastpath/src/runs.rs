//! The runs of a scoreboard (`board`), in order: looking for some of them, and every change of them.
//!
//! The number of runs is bounded, and yet a change that repair depends on is never refused: what was sent again must not stay `Lost`, or it
//! would be sent for ever. A full board joins two runs elsewhere ([`Board::join`]). Only a report of the peer may find no room; it then counts
//! as not heard.
//!
//! A peer chooses how many runs there are, up to all that there is room for, so a place is looked for by halves: what one segment of the peer
//! causes to be changed may be every one of them.

use base::SeqNumber;
use flow::{Interval, Kind, Run};

/// Number of the `runs` that end at or before `seq`.
fn ended(runs: &[Run], seq: SeqNumber) -> usize {
    runs.partition_point(|run| is_visited(run).right.is_at_or_before(seq))
}

/// The run; tests count how many are looked at.
#[inline(always)]
fn is_visited(run: &Run) -> &Run {
    #[cfg(test)]
    tests::VISITS.with(|visits| visits.set(visits.get() + 1));
    run
}

/// The pieces of a range that lie in one run or in none, in order.
#[derive(Clone, Debug)]
pub(crate) struct Pieces<'a> {
    /// The runs that end behind what is left of the range.
    runs: &'a [Run],
    left: SeqNumber,
    right: SeqNumber,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(runs: &'a [Run], range: Interval) -> Self {
        Self { runs: &runs[ended(runs, range.left)..], left: range.left, right: range.right }
    }
}

impl Iterator for Pieces<'_> {
    type Item = (Interval, Option<Run>);

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.left;
        if !left.is_before(self.right) {
            return None;
        }
        let next = self.runs.first().map(is_visited).filter(|run| run.left.is_before(self.right));
        let run = next.filter(|run| run.left.is_at_or_before(left)).copied();
        let end = match (run, next) {
            (Some(run), _) => run.right,
            (None, Some(next)) => next.left,
            (None, None) => self.right,
        };
        self.left = if end.is_before(self.right) { end } else { self.right };
        self.runs = &self.runs[usize::from(run.is_some())..];
        Some((Interval { left, right: self.left }, run))
    }
}

/// True when the runs touch and differ by their times only.
fn is_alike(a: Run, b: Run) -> bool {
    a.right == b.left && (a.kind, a.is_joined) == (b.kind, b.is_joined)
}

/// The scoreboard of one flow.
#[derive(Debug)]
pub(crate) struct Board<'a> {
    pub(crate) runs: &'a mut [Run],
    pub(crate) count: &'a mut u16,
    /// Bytes of runs of each [`Kind`], indexed by it.
    pub(crate) sums: [&'a mut u32; 3],
    pub(crate) lost_total: &'a mut u32,
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
    pub(crate) fn set(&mut self, range: Interval, kind: Option<Kind>, at: u32, now: u32) -> u32 {
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
    pub(crate) fn hold(&mut self, range: Interval) -> bool {
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
        let mut begin = ended(&self.runs[..n], left);
        let overlapping = self.runs[begin..n].partition_point(|run| is_visited(run).left.is_before(right));
        let mut end = begin + overlapping;
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

    /// The first of the two neighbouring runs that touch, are of one kind and differ least in time. Joining them loses only that
    /// difference.
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
    use crate::board::{RUNS_MAX, Records};
    use base::{Instant, Seed};
    use flow::{Cold, Config};
    use std::cell::Cell;

    thread_local! {
        /// Runs looked at by this test's thread.
        pub(super) static VISITS: Cell<u64> = const { Cell::new(0) };
    }

    const BYTES: usize = 300;

    fn pool(loss_records: u16) -> Records {
        Records::new(&Config { loss_records, ..Config::default() })
    }

    /// What the board says of each byte: kind, time, and whether runs were joined there.
    type Bytes = Vec<Option<(Kind, u32, bool)>>;

    fn bytes_of(records: &Records, cold: &Cold, start: SeqNumber) -> Bytes {
        let mut found = vec![None; BYTES];
        let whole = Interval { left: start, right: start.plus(BYTES as u32) };
        for (piece, run) in records.pieces(cold, whole) {
            let (left, right) = (piece.left.since(start) as usize, piece.right.since(start) as usize);
            found[left..right].fill(run.map(|run| (run.kind, run.at, run.is_joined)));
        }
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
            assert!(records.are_all_idle());
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

    /// Every second range is reported, and all between them are found lost, sent again, and so on: a segment of the peer may cause each of
    /// these changes, and the work for it grows with the number of ranges and hardly with that of runs.
    #[test]
    fn turning_every_run_of_a_full_board_looks_at_a_few_runs_for_each() {
        let window = congestion::Window::new(congestion::Algorithm::Reno, 1, Instant::ZERO);
        let (mut records, mut cold) = (pool(1), Cold::new(window, Instant::ZERO));
        let range = |left: u32, right| Interval { left: SeqNumber(left), right: SeqNumber(right) };
        let holes = RUNS_MAX as u32 / 2;
        for n in 0..holes {
            assert!(records.hold(&mut cold, range(2 * n + 1, 2 * n + 2)));
        }
        let all = range(0, 2 * holes);
        let is_lost = |run: Option<Run>| run.is_some_and(|run| run.kind == Kind::Lost);
        for n in 0..6 {
            let before = VISITS.get();
            let (found, runs) = if n % 2 == 0 {
                (records.turn(&mut cold, all, Some(Kind::Lost), |run| run.is_none(), 9), 2 * holes)
            } else {
                (records.turn(&mut cold, all, None, is_lost, 9), holes)
            };
            assert_eq!((found, u32::from(cold.runs)), ((true, 0), runs));
            let visits = VISITS.get() - before;
            assert!(visits < u64::from(holes) * 40, "{visits} runs looked at");
        }
    }
}
