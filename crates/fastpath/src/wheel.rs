//! Flows ordered by the time of their turn, in two timer wheels.
//!
//! ```text
//!   near   1024 slots of 2^14 ns    about one full segment at 1 Gbit/s each, 17 ms in all
//!   far    1024 slots of 2^20 ns    1 s in all: a flow moves to the near wheel before its time comes
//! ```
//! The far wheel exists because tens of thousands of flows wait for longer than the near wheel spans: with the near wheel alone,
//! each was visited at every turn of it, six times for each request.

use base::Instant;

const SLOTS: u64 = 1024;
const WORDS: usize = SLOTS as usize / 64;
const NEAR_LOG2: u32 = 14;
const FAR_LOG2: u32 = 20;

/// End of a slot's list; 0 means "in no slot", so that zeroed pages stay untouched.
const END: u32 = u32::MAX;
/// In a flow's link to the previous flow: it is the first; the low bits name its slot, those of the far wheel after those of the near.
const FIRST: u32 = 1 << 31;

/// A timer wheel of `SLOTS` slots of `1 << log2` ns.
#[derive(Debug)]
struct Wheel {
    log2: u32,
    /// The first flow of each slot, plus 1; or `END`.
    heads: Box<[u32]>,
    occupied: [u64; WORDS],
    /// The first tick that has not expired.
    cursor: u64,
    /// A lower bound of the ticks for which flows wait.
    first: u64,
}

/// Flows, each with the time of its turn.
#[derive(Debug)]
pub(crate) struct Pacer {
    wheels: [Wheel; 2],
    /// Indexed by flow; one cache line each: the links to the next and previous flow of its slot, each plus 1, and its time. Plain
    /// numbers, so that the kernel's zeroed pages serve as empty entries.
    places: Box<[[u64; 2]]>,
    count: u32,
}

impl Wheel {
    // SETUP: made with the core.
    fn new(log2: u32) -> Self {
        let heads = vec![END; SLOTS as usize].into_boxed_slice();
        Self { log2, heads, occupied: [0; WORDS], cursor: 0, first: u64::MAX }
    }

    /// The slot for the time `at`, no earlier than the next slot and no later than the last; marks it as occupied.
    fn slot(&mut self, at: u64) -> usize {
        let tick = (at >> self.log2).clamp(self.cursor + 1, self.cursor + SLOTS - 1);
        let slot = (tick % SLOTS) as usize;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.first = self.first.min(tick);
        slot
    }

    /// Empties the first occupied slot, if its time has passed by `now`, and returns its first flow.
    #[inline]
    fn pop(&mut self, now: u64) -> Option<u32> {
        let tick = now >> self.log2;
        if tick < self.first {
            self.cursor = self.cursor.max(tick);
            return None;
        }
        self.pop_slot(tick)
    }

    fn pop_slot(&mut self, tick: u64) -> Option<u32> {
        let found = self.find_first();
        if tick < found {
            (self.first, self.cursor) = (found, self.cursor.max(tick));
            return None;
        }
        let slot = (found % SLOTS) as usize;
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        // A flow of this slot that is inserted again must go to a later slot.
        self.cursor = found;
        self.first = self.find_first();
        Some(std::mem::replace(&mut self.heads[slot], END))
    }

    /// The tick of the first occupied slot, or `u64::MAX`.
    fn find_first(&self) -> u64 {
        let start = (self.cursor % SLOTS) as usize;
        let ahead = u64::MAX << (start % 64);
        for i in 0..=WORDS {
            let word = (start / 64 + i) % WORDS;
            let mask = [ahead, u64::MAX, !ahead][usize::from(i > 0) + usize::from(i == WORDS)];
            let bits = self.occupied[word] & mask;
            if bits != 0 {
                let slot = (word * 64) as u64 + u64::from(bits.trailing_zeros());
                return self.cursor + (slot + SLOTS - start as u64) % SLOTS;
            }
        }
        u64::MAX
    }
}

impl Pacer {
    // SETUP: made with the core.
    pub(crate) fn new(flows: usize) -> Self {
        Self {
            wheels: [Wheel::new(NEAR_LOG2), Wheel::new(FAR_LOG2)],
            places: vec![[0; 2]; flows].into_boxed_slice(),
            count: 0,
        }
    }

    /// Gives the flow a turn at `at`, or in the next slot if that is later. A flow that waits already for an earlier turn keeps it.
    pub(crate) fn wait(&mut self, flow: u32, at: Instant) {
        let [links, before] = self.places[flow as usize];
        if links as u32 != 0 {
            if before <= at.as_ns() {
                return;
            }
            self.remove(flow);
        }
        self.count += 1;
        self.insert(flow, at.as_ns());
    }

    fn insert(&mut self, flow: u32, at: u64) {
        let is_far = at >> NEAR_LOG2 >= self.wheels[0].cursor + SLOTS;
        let wheel = usize::from(is_far);
        let slot = self.wheels[wheel].slot(at);
        let after = std::mem::replace(&mut self.wheels[wheel].heads[slot], flow + 1);
        let first = FIRST | (wheel as u64 * SLOTS) as u32 | slot as u32;
        self.places[flow as usize] = [u64::from(after) | u64::from(first) << 32, at];
        if after != END {
            self.set_before(after, flow + 1);
        }
    }

    /// Sets the link to the previous flow; `place` is a flow plus 1.
    fn set_before(&mut self, place: u32, before: u32) {
        let word = &mut self.places[place as usize - 1][0];
        *word = u64::from(*word as u32) | u64::from(before) << 32;
    }

    /// True when the flow waits.
    #[inline]
    pub(crate) fn contains(&self, flow: u32) -> bool {
        self.places[flow as usize][0] as u32 != 0
    }

    /// The time of the turn of a flow that waits.
    #[inline]
    pub(crate) fn at(&self, flow: u32) -> Instant {
        Instant::from_ns(self.places[flow as usize][1])
    }

    /// Number of flows that wait.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// Takes out the flows that are due by `now`, and gives each to `take`.
    #[inline]
    pub(crate) fn expire(&mut self, now: Instant, mut take: impl FnMut(u32)) {
        let now = now.as_ns();
        let mut give = |pacer: &mut Self, flow| {
            pacer.count -= 1;
            take(flow);
        };
        while let Some(first) = self.wheels[0].pop(now) {
            self.empty(first, |pacer, flow, _| give(pacer, flow));
        }
        while let Some(first) = self.wheels[1].pop(now) {
            self.empty(first, |pacer, flow, at| {
                if at >> NEAR_LOG2 <= now >> NEAR_LOG2 { give(pacer, flow) } else { pacer.insert(flow, at) }
            });
        }
    }

    /// Takes out all flows of a slot, from `first` on, and gives each to `take` with its time.
    fn empty(&mut self, first: u32, mut take: impl FnMut(&mut Self, u32, u64)) {
        let mut place = first;
        while place != END {
            let [links, at] = std::mem::take(&mut self.places[place as usize - 1]);
            take(self, place - 1, at);
            place = links as u32;
        }
    }

    /// Takes a flow out, if it waits.
    pub(crate) fn remove(&mut self, flow: u32) {
        let [links, _] = std::mem::take(&mut self.places[flow as usize]);
        let (after, before) = (links as u32, (links >> 32) as u32);
        if after == 0 {
            return;
        }
        self.count -= 1;
        if after != END {
            self.set_before(after, before);
        }
        if before & FIRST == 0 {
            let word = &mut self.places[before as usize - 1][0];
            *word = *word >> 32 << 32 | u64::from(after);
            return;
        }
        let slot = (before & !FIRST) as usize;
        let (wheel, slot) = (&mut self.wheels[slot / SLOTS as usize], slot % SLOTS as usize);
        wheel.heads[slot] = after;
        if after == END {
            wheel.occupied[slot / 64] &= !(1 << (slot % 64));
        }
    }

    /// A lower bound of the time of the first flow's turn.
    pub(crate) fn next_deadline(&self) -> Instant {
        if self.count == 0 {
            return Instant::NEVER;
        }
        let at = |wheel: &Wheel| wheel.first << wheel.log2;
        let [near, far] = &self.wheels;
        Instant::from_ns(at(near).min(at(far)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lists::List;
    use base::Seed;

    fn us(n: u64) -> Instant {
        Instant::from_ns(n * 1000)
    }

    #[test]
    fn flows_come_out_when_their_time_has_come_and_not_before() {
        let (mut pacer, mut ready) = (Pacer::new(8), List::new(8));
        pacer.expire(us(5_000), |flow| ready.push_back(flow, 0));
        for (flow, at) in [(0, 5_100), (1, 5_050), (2, 90_000), (3, 5_060), (4, 3_000_000)] {
            pacer.wait(flow, us(at));
        }
        pacer.remove(3);
        assert!(pacer.next_deadline() <= us(5_050));
        pacer.expire(us(5_020), |flow| ready.push_back(flow, 0));
        assert_eq!(ready.front(), None);
        pacer.expire(us(5_070), |flow| ready.push_back(flow, 0));
        assert_eq!(ready.pop_due(0), Some(1));
        pacer.expire(us(5_120), |flow| ready.push_back(flow, 0));
        assert_eq!((ready.pop_due(0), ready.pop_due(0)), (Some(0), None));
        // Beyond the near wheel's span: exact all the same.
        pacer.expire(us(89_980), |flow| ready.push_back(flow, 0));
        assert_eq!(ready.front(), None);
        assert!(pacer.next_deadline() <= us(90_000));
        pacer.expire(us(90_020), |flow| ready.push_back(flow, 0));
        assert_eq!(ready.pop_due(0), Some(2));
        // Beyond the far wheel's span.
        pacer.expire(us(2_999_980), |flow| ready.push_back(flow, 0));
        assert_eq!((ready.front(), pacer.len()), (None, 1));
        pacer.expire(us(3_000_020), |flow| ready.push_back(flow, 0));
        assert_eq!((ready.pop_due(0), pacer.next_deadline()), (Some(4), Instant::NEVER));
    }

    /// Oracle: every flow's time. A flow comes out in the slot of its time or the next; asking at the deadlines misses none.
    #[test]
    fn pacer_agrees_with_a_table_of_times() {
        let (mut pacer, mut ready, mut rng) = (Pacer::new(64), List::new(64), Seed::new(5));
        let (mut times, mut now) = ([None; 64], 1_000_000u64);
        for _ in 0..100_000 {
            let flow = rng.below(64) as u32;
            match rng.below(4) {
                0 | 1 => {
                    let most = [20_000, 1 << 20, 1 << 26, 1 << 32][rng.below(4) as usize];
                    let at = now + rng.below(most);
                    times[flow as usize] = Some(times[flow as usize].map_or(at, |before| at.min(before)));
                    pacer.wait(flow, Instant::from_ns(at));
                }
                2 if rng.below(8) == 0 => {
                    times[flow as usize] = None;
                    pacer.remove(flow);
                }
                2 => {
                    let next = pacer.next_deadline();
                    let first = times.iter().flatten().min();
                    assert!(first.is_none_or(|first| next.as_ns() <= (*first).max(now + (1 << NEAR_LOG2))));
                    now = if next == Instant::NEVER { now } else { now.max(next.as_ns()) };
                }
                _ => {
                    let most = 1 << [10, 16, 22, 31][rng.below(4) as usize];
                    now += rng.below(most);
                }
            }
            pacer.expire(Instant::from_ns(now), |flow| ready.push_back(flow, 0));
            while let Some(flow) = ready.pop_due(0) {
                let at = times[flow as usize].take().expect("it waited");
                assert!(at >> NEAR_LOG2 <= now >> NEAR_LOG2, "not before its time");
            }
            let late = |at: &u64| (*at >> NEAR_LOG2) + 1 < now >> NEAR_LOG2;
            assert!(!times.iter().flatten().any(late), "nobody is forgotten");
            assert_eq!(pacer.len() as usize, times.iter().flatten().count());
        }
    }
}
