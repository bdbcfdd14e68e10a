//! Linked lists of flows through arrays made at start: adding or removing a flow needs no allocation and no search.

/// End of a list; 0 means "not in it", so that untouched pages stay untouched.
const END: u32 = u32::MAX;

/// A first-in-first-out list of flows, each with a time, from which any flow can leave at once.
#[derive(Debug)]
pub(crate) struct List {
    /// Indexed by flow; one cache line each, because flows come in any order: the links to the next and previous flow, each plus 1, and
    /// the flow's time. Plain numbers, so that the kernel's zeroed pages serve as empty entries.
    places: Box<[[u64; 2]]>,
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    // SETUP: made with the core.
    pub(crate) fn new(flows: usize) -> Self {
        Self { places: vec![[0; 2]; flows].into_boxed_slice(), head: END, tail: END, len: 0 }
    }

    #[inline]
    pub(crate) fn contains(&self, flow: u32) -> bool {
        self.next(flow) != 0
    }

    /// Hints the processor to fetch a flow's entry.
    #[inline]
    pub(crate) fn prefetch(&self, flow: u32) {
        if let Some(place) = self.places.get(flow as usize) {
            flow::prefetch(place);
        }
    }

    /// Number of flows in the list.
    #[inline]
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// The first flow, and its time.
    #[inline]
    pub(crate) fn front(&self) -> Option<(u32, u64)> {
        (self.head != END).then(|| (self.head - 1, self.places[self.head as usize - 1][1]))
    }

    /// The flows of the list, from first to last.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let place = |place: u32| (place != END).then_some(place);
        std::iter::successors(place(self.head), move |at| place(self.next(at - 1))).map(|at| at - 1)
    }

    /// The last flow of the list.
    #[inline]
    pub(crate) fn back(&self) -> Option<u32> {
        (self.tail != END).then(|| self.tail - 1)
    }

    /// The first flow, if its time has come.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<u32> {
        let (flow, at) = self.front()?;
        (at <= now).then(|| {
            self.remove(flow);
            flow
        })
    }

    /// Adds a flow at the end, unless it is in the list.
    #[inline(always)]
    pub(crate) fn push_back(&mut self, flow: u32, at: u64) {
        if self.contains(flow) {
            return;
        }
        self.places[flow as usize] = [links(END, self.tail), at];
        match self.tail {
            END => self.head = flow + 1,
            tail => self.set_next(tail, flow + 1),
        }
        self.tail = flow + 1;
        self.len += 1;
    }

    /// Puts a flow at the front, wherever it was.
    #[inline]
    pub(crate) fn push_front(&mut self, flow: u32, at: u64) {
        self.remove(flow);
        self.places[flow as usize] = [links(self.head, END), at];
        match self.head {
            END => self.tail = flow + 1,
            head => self.set_prev(head, flow + 1),
        }
        self.head = flow + 1;
        self.len += 1;
    }

    /// Takes a flow out, if it is in the list.
    #[inline(always)]
    pub(crate) fn remove(&mut self, flow: u32) {
        let word = self.places[flow as usize][0];
        let (next, prev) = (word as u32, (word >> 32) as u32);
        if next == 0 {
            return;
        }
        match prev {
            END => self.head = next,
            prev => self.set_next(prev, next),
        }
        match next {
            END => self.tail = prev,
            next => self.set_prev(next, prev),
        }
        self.places[flow as usize][0] = 0;
        self.len -= 1;
    }

    #[inline]
    fn next(&self, flow: u32) -> u32 {
        self.places[flow as usize][0] as u32
    }

    /// Sets the link to the next flow; `place` is a flow plus 1.
    #[inline]
    fn set_next(&mut self, place: u32, next: u32) {
        let word = &mut self.places[place as usize - 1][0];
        *word = *word >> 32 << 32 | u64::from(next);
    }

    /// Sets the link to the previous flow; `place` is a flow plus 1.
    #[inline]
    fn set_prev(&mut self, place: u32, prev: u32) {
        let word = &mut self.places[place as usize - 1][0];
        *word = links(*word as u32, prev);
    }
}

#[inline]
const fn links(next: u32, prev: u32) -> u64 {
    next as u64 | (prev as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seed;
    use std::collections::VecDeque;

    #[test]
    fn list_agrees_with_a_deque() {
        let (mut list, mut oracle, mut rng) = (List::new(16), VecDeque::new(), Seed::new(9));
        for step in 0..50_000u64 {
            let flow = rng.below(16) as u32;
            match rng.below(4) {
                0 => {
                    list.push_back(flow, step);
                    if !oracle.contains(&flow) {
                        oracle.push_back(flow);
                    }
                }
                1 => {
                    list.push_front(flow, 0);
                    oracle.retain(|f| *f != flow);
                    oracle.push_front(flow);
                }
                2 => {
                    list.remove(flow);
                    oracle.retain(|f| *f != flow);
                }
                _ => assert_eq!(list.pop_due(step), oracle.pop_front()),
            }
            assert_eq!(list.front().map(|f| f.0), oracle.front().copied());
            assert!(list.iter().eq(oracle.iter().copied()));
        }
    }
}
