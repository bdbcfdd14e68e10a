//! Which channel carries which bytes of one stream, from the first that the peer has not confirmed to the last that was placed. When a
//! channel dies, its runs are lost, and only they go again over other channels.
//!
//! ```text
//!   acked          B: 2          A: 1        lost          B: 2       placed
//!     |--------------|-------------|-----------|-------------|          runs touch, in order; at most RUNS_MAX
//! ```
//! At every moment the part of a run that has arrived is a beginning of the run: a channel delivers in order, new bytes only lengthen the last
//! run, and a lost run goes again as a whole over one channel. So a receiver has at most one interval ahead of the next byte for each run,
//! also after many channels have died.

use crate::limits::RUNS_MAX;

/// Number of a channel in its session, never used again there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Number(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    start: u64,
    /// The channel was given the bytes before this position; the others are to be placed on it, too.
    given: u64,
    end: u64,
    /// `None`: lost, and any channel may carry it.
    on: Option<Number>,
}

/// Bytes of a stream to be placed on a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Position of the first byte.
    pub start: u64,
    /// One after the last byte.
    pub end: u64,
    /// If set, only this channel may carry the chunk.
    pub must: Option<Number>,
}

/// The runs of one stream; memory is kept when they are confirmed.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    list: Vec<Run>,
    /// Number of runs that are not given to their channel as a whole.
    partial: usize,
}

impl Runs {
    /// The next bytes to place, at most `most`: the first lost ones, else the new ones from `placed` to `edge`.
    #[must_use]
    pub fn next(&self, placed: u64, edge: u64, most: u64) -> Option<Chunk> {
        if self.partial > 0 {
            let run = self.list.iter().find(|run| run.given < run.end)?;
            return Some(Chunk { start: run.given, end: run.end.min(run.given + most), must: run.on });
        }
        let is_full = self.list.len() >= RUNS_MAX;
        let must = if is_full { self.list.last().and_then(|run| run.on) } else { None };
        (placed < edge).then(|| Chunk { start: placed, end: edge.min(placed.saturating_add(most)), must })
    }

    /// The channel now carries the chunk that [`next`](Self::next) gave.
    pub fn place(&mut self, chunk: Chunk, on: Number) {
        let Chunk { start, end, .. } = chunk;
        if self.partial > 0 {
            let lost = self.list.iter_mut().find(|run| run.given < run.end);
            let run = lost.expect("`partial` counts them");
            debug_assert!(run.given == start && end <= run.end && run.on.is_none_or(|other| other == on));
            (run.given, run.on) = (end, Some(on));
            self.partial -= usize::from(run.given == run.end);
            return;
        }
        match self.list.last_mut() {
            Some(last) if last.on == Some(on) => (last.given, last.end) = (end, end),
            _ => self.list.push(Run { start, given: end, end, on: Some(on) }),
        }
    }

    /// The peer has all bytes before `acked`. Tells `freed` how many bytes less each channel has under way.
    pub fn acknowledge(&mut self, acked: u64, mut freed: impl FnMut(Number, u64)) {
        let mut over = 0;
        for run in &mut self.list {
            let before = run.start;
            run.start = run.start.max(acked.min(run.end));
            if let Some(on) = run.on
                && run.start > before
            {
                freed(on, run.given.min(run.start).saturating_sub(before));
            }
            let was_partial = run.given < run.end;
            run.given = run.given.max(run.start);
            self.partial -= usize::from(was_partial && run.given == run.end);
            if run.start < run.end {
                break;
            }
            over += 1;
        }
        self.list.drain(..over);
    }

    /// That channel has died. True: it carried bytes that the peer has not confirmed.
    pub fn lose(&mut self, on: Number) -> bool {
        let mut found = false;
        for run in self.list.iter_mut().filter(|run| run.on == Some(on)) {
            self.partial += usize::from(run.given == run.end);
            (run.on, run.given, found) = (None, run.start, true);
        }
        found
    }

    /// Bytes that channels carry now.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.list.iter().filter(|run| run.on.is_some()).map(|run| run.given - run.start).sum()
    }

    /// Number of runs; at most [`RUNS_MAX`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Tells `freed` how many bytes each channel has under way of a stream that is given up.
    pub fn give_up(&mut self, mut freed: impl FnMut(Number, u64)) {
        for run in &self.list {
            if let Some(on) = run.on {
                freed(on, run.given - run.start);
            }
        }
        self.clear();
    }

    /// Forgets all runs and keeps their memory.
    pub fn clear(&mut self) {
        self.list.clear();
        self.partial = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intervals::Intervals;
    use base::Seed;
    use std::collections::VecDeque;

    const A: Number = Number(1);
    const B: Number = Number(2);

    fn place(runs: &mut Runs, placed: &mut u64, edge: u64, most: u64, on: Number) -> Chunk {
        let chunk = runs.next(*placed, edge, most).expect("something to place");
        runs.place(chunk, on);
        *placed = (*placed).max(chunk.end);
        chunk
    }

    #[test]
    fn only_the_bytes_of_the_dead_channel_go_again() {
        let (mut runs, mut placed) = (Runs::default(), 0);
        for on in [A, B, B, A] {
            place(&mut runs, &mut placed, 40, 10, on);
        }
        assert_eq!(runs.len(), 3, "chunks that follow each other on one channel are one run");
        runs.acknowledge(5, |on, bytes| assert_eq!((on, bytes), (A, 5)));
        assert!(runs.lose(A));
        assert!(!runs.lose(A));
        assert_eq!(place(&mut runs, &mut placed, 40, 3, B), Chunk { start: 5, end: 8, must: None });
        assert_eq!(place(&mut runs, &mut placed, 40, 100, B), Chunk { start: 8, end: 10, must: Some(B) });
        assert_eq!(place(&mut runs, &mut placed, 40, 100, B), Chunk { start: 30, end: 40, must: None });
        assert_eq!(runs.next(placed, 40, 100), None);
        runs.acknowledge(40, |on, _| assert_eq!(on, B));
        assert_eq!(runs.len(), 0);
    }

    /// Four channels that deliver at their own pace and die; bytes that are under way then may still arrive later.
    #[test]
    fn receiver_has_at_most_one_interval_for_each_run_whatever_dies() {
        for seed in 0..200 {
            let (mut random, mut runs, mut placed) = (Seed::new(seed), Runs::default(), 0);
            let mut pipes: Vec<(Number, VecDeque<Chunk>)> =
                (0..4).map(|n| (Number(n), VecDeque::new())).collect();
            let (mut next, mut ahead, mut numbers) = (0, Intervals::default(), 4);
            while next < 60_000 {
                let at = random.below(4) as usize;
                match random.below(40) {
                    0 => {
                        runs.lose(pipes[at].0);
                        pipes[at].0 = Number(numbers);
                        numbers += 1;
                        let survives = random.below(pipes[at].1.len() as u64 + 1) as usize;
                        pipes[at].1.truncate(survives);
                    }
                    1 => runs.acknowledge(next, |_, _| ()),
                    2..20 => {
                        let Some(chunk) = pipes[at].1.pop_front() else { continue };
                        if chunk.start <= next {
                            next = ahead.advance(next.max(chunk.end));
                        } else {
                            assert!(ahead.insert(chunk.start, chunk.end), "seed {seed}: too many intervals");
                        }
                    }
                    _ => {
                        let chunk = runs.next(placed, next + 5_000, 1 + random.below(90));
                        let Some(chunk) = chunk else { continue };
                        let on = chunk.must.unwrap_or(pipes[at].0);
                        runs.place(chunk, on);
                        placed = placed.max(chunk.end);
                        let pipe = pipes.iter_mut().find(|(number, _)| *number == on);
                        pipe.expect("only living channels are named").1.push_back(chunk);
                    }
                }
                assert!(runs.len() <= RUNS_MAX, "seed {seed}: {} runs", runs.len());
                assert!(runs.list.windows(2).all(|pair| pair[0].end == pair[1].start), "seed {seed}");
            }
        }
    }
}
