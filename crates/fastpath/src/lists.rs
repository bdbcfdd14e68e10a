//! Lists of flows through arrays made at start: to be in one costs a flow no memory and no search.

/// End of a list; 0 means "not in it", so that untouched pages stay untouched.
const END: u32 = u32::MAX;

/// A first-in-first-out list of flows, each with a time, from which any flow can leave at once.
#[derive(Debug)]
pub(crate) struct List {
    next: Box<[u32]>,
    prev: Box<[u32]>,
    at: Box<[u64]>,
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    // SETUP: made with the core.
    pub(crate) fn new(flows: usize) -> Self {
        Self {
            next: vec![0; flows].into_boxed_slice(),
            prev: vec![0; flows].into_boxed_slice(),
            at: vec![0; flows].into_boxed_slice(),
            head: END,
            tail: END,
            len: 0,
        }
    }

    #[inline]
    pub(crate) fn contains(&self, flow: u32) -> bool {
        self.next[flow as usize] != 0
    }

    /// Flows in it.
    #[inline]
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// The first flow and its time.
    #[inline]
    pub(crate) fn front(&self) -> Option<(u32, u64)> {
        (self.head != END).then(|| (self.head - 1, self.at[self.head as usize - 1]))
    }

    /// The last flow.
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
    #[inline]
    pub(crate) fn push_back(&mut self, flow: u32, at: u64) {
        if self.contains(flow) {
            return;
        }
        let i = flow as usize;
        (self.at[i], self.next[i], self.prev[i]) = (at, END, self.tail);
        match self.tail {
            END => self.head = flow + 1,
            tail => self.next[tail as usize - 1] = flow + 1,
        }
        self.tail = flow + 1;
        self.len += 1;
    }

    /// Puts a flow at the front, wherever it was.
    #[inline]
    pub(crate) fn push_front(&mut self, flow: u32, at: u64) {
        self.remove(flow);
        let i = flow as usize;
        (self.at[i], self.prev[i], self.next[i]) = (at, END, self.head);
        match self.head {
            END => self.tail = flow + 1,
            head => self.prev[head as usize - 1] = flow + 1,
        }
        self.head = flow + 1;
        self.len += 1;
    }

    /// Takes a flow out, if it is in the list.
    #[inline]
    pub(crate) fn remove(&mut self, flow: u32) {
        let i = flow as usize;
        let (next, prev) = (self.next[i], self.prev[i]);
        if next == 0 {
            return;
        }
        match prev {
            END => self.head = next,
            p => self.next[p as usize - 1] = next,
        }
        match next {
            END => self.tail = prev,
            n => self.prev[n as usize - 1] = prev,
        }
        self.next[i] = 0;
        self.len -= 1;
    }
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
        }
    }
}
