//! Application regions whose slow-path doorbells must be looked at: those whose waker was written, those that rang again while they were looked
//! at, and those of killed processes, for which nothing is written to the waker (the application holds that eventfd, too, and could make a
//! write of the service's wait).

use std::collections::{HashSet, VecDeque};

/// Most regions that are looked at between two looks at other events: a program can ring without end, and have many regions do so.
pub const HEARD_MOST: usize = 16;

/// The regions, each once, in the order in which they came.
#[derive(Debug, Default)]
pub struct Unheard {
    order: VecDeque<u32>,
    all: HashSet<u32>,
}

impl Unheard {
    /// That region must be looked at, after all that wait already.
    pub fn add(&mut self, region: u32) {
        if self.all.insert(region) {
            self.order.push_back(region);
        }
    }

    /// True when no region waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Takes the regions that are looked at now.
    pub fn take(&mut self) -> Vec<u32> {
        let some: Vec<u32> = self.order.drain(..self.order.len().min(HEARD_MOST)).collect();
        for region in &some {
            self.all.remove(region);
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_that_ring_without_end_take_turns_with_others() {
        let mut unheard = Unheard::default();
        (0..100).for_each(|region| unheard.add(region));
        unheard.add(200);
        let mut looks = 0;
        loop {
            let some = unheard.take();
            looks += 1;
            assert!(!some.is_empty() && some.len() <= HEARD_MOST, "{}", some.len());
            if some.contains(&200) {
                break;
            }
            // Each of them rings again, twice.
            some.iter().chain(&some).for_each(|region| unheard.add(*region));
        }
        assert_eq!(looks, 101_usize.div_ceil(HEARD_MOST));
        while !unheard.take().is_empty() {}
        assert!(unheard.is_empty() && unheard.all.is_empty());
    }
}
