//! Linked lists of flows through arrays made at start: adding or removing a flow needs no allocation and no search.

/// End of a list; 0 means "not in it", so that untouched pages stay untouched.
const END: u32 = u32::MAX;

/// The links between the flows of lists. Several lists may share them if a flow is in one of these lists at a time.
#[derive(Debug)]
pub(crate) struct Links {
    /// Indexed by flow; one cache line each, because flows come in any order: the links to the next and previous flow, each plus 1, and
    /// the flow's value. Plain numbers, so that the kernel's zeroed pages serve as empty entries.
    places: Box<[[u64; 2]]>,
}

/// The first and the last flow of a list, each plus 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    first: u32,
    last: u32,
}

impl Ends {
    /// The ends of an empty list.
    pub(crate) const EMPTY: Self = Self { first: END, last: END };

    /// The first flow of the list.
    #[inline]
    pub(crate) fn first(self) -> Option<u32> {
        (self.first != END).then(|| self.first - 1)
    }
}

impl Links {
    // SETUP: made with the core.
    pub(crate) fn new(flows: usize) -> Self {
        Self { places: vec![[0; 2]; flows].into_boxed_slice() }
    }

    /// True when the flow is in one of the lists.
    #[inline]
    pub(crate) fn contains(&self, flow: u32) -> bool {
        self.next(flow) != 0
    }

    /// The value that the flow came with.
    #[inline]
    pub(crate) fn value(&self, flow: u32) -> u64 {
        self.places[flow as usize][1]
    }

    /// Adds a flow that is in no list at the end of the list `ends`.
    #[inline(always)]
    pub(crate) fn push_back(&mut self, ends: &mut Ends, flow: u32, value: u64) {
        self.places[flow as usize] = [links(END, ends.last), value];
        match ends.last {
            END => ends.first = flow + 1,
            last => self.set_next(last, flow + 1),
        }
        ends.last = flow + 1;
    }

    /// Puts a flow that is in no list at the front of the list `ends`.
    #[inline]
    pub(crate) fn push_front(&mut self, ends: &mut Ends, flow: u32, value: u64) {
        self.places[flow as usize] = [links(ends.first, END), value];
        match ends.first {
            END => ends.last = flow + 1,
            first => self.set_prev(first, flow + 1),
        }
        ends.first = flow + 1;
    }

    /// Takes a flow out of the list `ends`. False when it is in no list.
    #[inline(always)]
    pub(crate) fn remove(&mut self, ends: &mut Ends, flow: u32) -> bool {
        let word = self.places[flow as usize][0];
        let (next, prev) = (word as u32, (word >> 32) as u32);
        if next == 0 {
            return false;
        }
        match prev {
            END => ends.first = next,
            prev => self.set_next(prev, next),
        }
        match next {
            END => ends.last = prev,
            next => self.set_prev(next, prev),
        }
        self.places[flow as usize][0] = 0;
        true
    }

    /// Puts a flow that is in no list behind the flow `after`, plus 1, of the list `ends`.
    fn insert_after(&mut self, ends: &mut Ends, after: u32, flow: u32, value: u64) {
        let next = self.next(after - 1);
        self.places[flow as usize] = [links(next, after), value];
        self.set_next(after, flow + 1);
        match next {
            END => ends.last = flow + 1,
            next => self.set_prev(next, flow + 1),
        }
    }

    /// The link to the flow before, plus 1; or `END`.
    fn prev(&self, flow: u32) -> u32 {
        (self.places[flow as usize][0] >> 32) as u32
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

/// A first-in-first-out list of flows, each with a time, from which any flow can leave at once.
#[derive(Debug)]
pub(crate) struct List {
    links: Links,
    ends: Ends,
    len: u32,
}

impl List {
    // SETUP: made with the core.
    pub(crate) fn new(flows: usize) -> Self {
        Self { links: Links::new(flows), ends: Ends::EMPTY, len: 0 }
    }

    #[inline]
    pub(crate) fn contains(&self, flow: u32) -> bool {
        self.links.contains(flow)
    }

    /// Hints the processor to fetch a flow's entry.
    #[inline]
    pub(crate) fn prefetch(&self, flow: u32) {
        if let Some(place) = self.links.places.get(flow as usize) {
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
        self.ends.first().map(|flow| (flow, self.links.value(flow)))
    }

    /// The flows of the list, from first to last.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let place = |place: u32| (place != END).then_some(place);
        std::iter::successors(place(self.ends.first), move |at| place(self.links.next(at - 1)))
            .map(|at| at - 1)
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
        if !self.contains(flow) {
            self.links.push_back(&mut self.ends, flow, at);
            self.len += 1;
        }
    }

    /// Puts a flow at the front, wherever it was.
    #[inline]
    pub(crate) fn push_front(&mut self, flow: u32, at: u64) {
        self.remove(flow);
        self.links.push_front(&mut self.ends, flow, at);
        self.len += 1;
    }

    /// Adds a flow by its time, in a list by time. A flow that is in the list already keeps the earlier time. If its place is not among the
    /// last `NEAR`, it comes to the front, no later than the first: its time comes too early, but that of no flow comes late.
    pub(crate) fn insert(&mut self, flow: u32, at: u64) {
        /// Places of the list that are looked at.
        const NEAR: usize = 64;
        if self.contains(flow) {
            if self.at(flow) <= at {
                return;
            }
            self.remove(flow);
        }
        let mut after = self.ends.last;
        for _ in 0..NEAR {
            if after == END || self.links.value(after - 1) <= at {
                break;
            }
            after = self.links.prev(after - 1);
        }
        let is_near = after == END || self.links.value(after - 1) <= at;
        match (is_near, self.front()) {
            (true, _) if after != END => {
                self.links.insert_after(&mut self.ends, after, flow, at);
                self.len += 1;
            }
            (false, Some((_, first))) => self.push_front(flow, at.min(first)),
            _ => self.push_front(flow, at),
        }
    }

    /// The time of a flow that is in the list.
    pub(crate) fn at(&self, flow: u32) -> u64 {
        self.links.value(flow)
    }

    /// Takes a flow out, if it is in the list.
    #[inline(always)]
    pub(crate) fn remove(&mut self, flow: u32) {
        if self.links.remove(&mut self.ends, flow) {
            self.len -= 1;
        }
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
            assert!(list.iter().eq(oracle.iter().copied()));
        }
    }

    #[test]
    fn a_flow_is_inserted_by_its_time_and_never_makes_another_late() {
        let flows = 200;
        let (mut list, mut rng) = (List::new(flows), Seed::new(2));
        for flow in 0..flows as u32 {
            let at = rng.below(1000);
            let before: Vec<u64> = list.iter().map(|flow| list.links.value(flow)).collect();
            list.insert(flow, at);
            let times: Vec<u64> = list.iter().map(|flow| list.links.value(flow)).collect();
            assert!(times.is_sorted() && times.len() == before.len() + 1);
            let is_near = before.len() <= 64 || before[before.len() - 65] <= at;
            let expected = if is_near { at } else { at.min(before[0]) };
            assert_eq!((list.contains(flow), list.at(flow)), (true, expected));
            list.remove(flow);
            assert_eq!((list.contains(flow), list.len() as usize), (false, before.len()));
            list.insert(flow, at);
        }
    }

    #[test]
    fn a_flow_that_is_inserted_again_keeps_the_earlier_time() {
        let mut list = List::new(4);
        for (flow, at) in [(0, 10), (1, 20), (2, 30), (1, 25), (2, 5)] {
            list.insert(flow, at);
        }
        assert!(list.iter().eq([2, 0, 1]));
        assert_eq!(([0, 1, 2].map(|flow| list.at(flow)), list.len()), ([10, 20, 5], 3));
    }
}
