//! When each of many things is due: a heap of times instead of a search through all things.
//!
//! A thing has at most one valid entry in the heap: the earliest time that it was ever set to since it last came out. If it was set to a
//! later time meanwhile, it is put back when that entry comes up.

use base::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Things by index, each with the time at which it is due.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
    /// When each thing is due, and the time of its valid entry in the heap; `NEVER`: it has none.
    times: Vec<(Instant, Instant)>,
}

impl Agenda {
    /// Adds the thing with the next index. It is not due.
    pub(crate) fn add(&mut self) {
        self.times.push((Instant::NEVER, Instant::NEVER));
    }

    /// The thing is due at `at`, not at the time before.
    pub(crate) fn set(&mut self, index: usize, at: Instant) {
        let (due, entry) = &mut self.times[index];
        *due = at;
        if at < *entry {
            *entry = at;
            self.heap.push(Reverse((at, index as u32)));
        }
    }

    /// When the first thing is due.
    pub(crate) fn next(&mut self) -> Instant {
        while let Some(&Reverse((at, index))) = self.heap.peek() {
            let (due, entry) = &mut self.times[index as usize];
            if *entry == at && *due == at {
                return at;
            }
            self.heap.pop();
            if *entry == at {
                *entry = *due;
                if *due != Instant::NEVER {
                    self.heap.push(Reverse((*due, index)));
                }
            }
        }
        Instant::NEVER
    }

    /// Takes out the first thing that is due by `now`: of those that are due at one time, the one with the lowest index.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<usize> {
        if now < self.next() {
            return None;
        }
        let Reverse((_, index)) = self.heap.pop()?;
        self.times[index as usize] = (Instant::NEVER, Instant::NEVER);
        Some(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seed;

    /// Oracle: a table that is searched.
    #[test]
    fn agrees_with_a_search() {
        let (mut agenda, mut table, mut rng) = (Agenda::default(), [Instant::NEVER; 12], Seed::new(4));
        table.iter().for_each(|_| agenda.add());
        let mut now = 0;
        for _ in 0..20_000 {
            let i = rng.below(12) as usize;
            match rng.below(4) {
                0 => {
                    table[i] = Instant::NEVER;
                    agenda.set(i, Instant::NEVER);
                }
                1 | 2 => {
                    table[i] = Instant::from_ns(now + rng.below(30));
                    agenda.set(i, table[i]);
                }
                _ => now += rng.below(20),
            }
            let first = table.iter().min().copied().expect("twelve");
            assert_eq!(agenda.next(), first);
            let now = Instant::from_ns(now);
            let due = (0..12).filter(|i| table[*i] <= now).min_by_key(|i| (table[*i], *i));
            if rng.below(2) == 0 {
                assert_eq!(agenda.pop(now), due);
                due.into_iter().for_each(|i| table[i] = Instant::NEVER);
            }
        }
    }
}
