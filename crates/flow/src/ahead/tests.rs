use super::*;
use base::Seed;

/// The intervals as a set of bytes: the oracle.
struct Bytes {
    has: Vec<bool>,
    next: usize,
}

impl Bytes {
    fn take(&mut self, left: usize, right: usize) {
        self.has[left..right].fill(true);
    }

    fn reach(&mut self, next: usize) -> usize {
        self.next = (next..).find(|at| !self.has[*at]).unwrap();
        self.next
    }

    fn intervals(&self) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        let mut at = self.next;
        while at < self.has.len() {
            let right = (at..self.has.len()).find(|i| !self.has[*i]).unwrap_or(self.has.len());
            if right > at {
                all.push((at, right));
            }
            at = right + 1;
        }
        all
    }
}

struct Scene {
    ahead: Ahead,
    held: Vec<Interval>,
    bytes: Bytes,
    start: u32,
}

impl Scene {
    fn new(places: usize, bytes: usize, start: u32) -> Self {
        let bytes = Bytes { has: vec![false; bytes + 1], next: 0 };
        Self { ahead: Ahead::NONE, held: vec![Interval::default(); places], bytes, start }
    }

    fn seq(&self, at: usize) -> SeqNumber {
        SeqNumber(self.start.wrapping_add(at as u32))
    }

    fn add(&mut self, left: usize, right: usize) -> bool {
        let new = Interval { left: self.seq(left), right: self.seq(right) };
        let added = self.ahead.borrowed(&mut self.held).add(new);
        if added {
            self.bytes.take(left, right);
        }
        added
    }

    fn used(&self) -> Vec<(usize, usize)> {
        let at = |seq: SeqNumber| seq.since(self.seq(0)) as usize;
        self.ahead.used(&self.held).iter().map(|held| (at(held.left), at(held.right))).collect()
    }

    fn told(&self, most: usize) -> Vec<(usize, usize)> {
        let at = |seq: SeqNumber| seq.since(self.seq(0)) as usize;
        let used = self.ahead.used(&self.held);
        sack_order(used, &self.ahead.latest, most).map(|b| (at(b.left), at(b.right))).collect()
    }
}

#[test]
fn intervals_agree_with_a_set_of_bytes() {
    for seed in 0..300 {
        let mut rng = Seed::new(seed);
        let places = [1, 2, 5, 32, 100][seed as usize % 5];
        let size = 600;
        let mut s = Scene::new(places, size, u32::MAX - 300 + seed as u32);
        for _ in 0..300 {
            let next = s.bytes.next;
            if next + 2 >= size {
                break;
            }
            if rng.chance(150_000) {
                // Data in order: it may cover intervals, in part or whole.
                let end = (next + 1 + rng.below(40) as usize).min(size - 1);
                s.bytes.take(next, end);
                let end = s.seq(end);
                let reached = s.ahead.borrowed(&mut s.held).reach(end);
                let oracle = s.bytes.reach(next);
                assert_eq!(reached, s.seq(oracle), "seed {seed}");
            } else {
                let left = next + 1 + rng.below((size - next - 2) as u64) as usize;
                let long = if rng.chance(100_000) { 200 } else { 8 };
                let right = (left + 1 + rng.below(long) as usize).min(size);
                let before = s.used();
                if !s.add(left, right) {
                    assert_eq!((before.len(), s.used()), (places, before.clone()), "only when full");
                    let is_apart = before.iter().all(|(l, r)| right < *l || *r < left);
                    assert!(is_apart, "seed {seed}: what joins needs no place");
                } else {
                    let first = s.told(4)[0];
                    assert!(
                        first.0 <= left && right <= first.1,
                        "seed {seed}: the block of what has come last"
                    );
                }
            }
            assert_eq!(s.used(), s.bytes.intervals(), "seed {seed}");
            let told = s.told(4);
            assert_eq!(told.len(), s.used().len().min(4), "seed {seed}: as many as there are");
            assert!(told.iter().enumerate().all(|(i, b)| s.used().contains(b) && !told[..i].contains(b)));
        }
    }
}

#[test]
fn blocks_are_told_the_latest_first() {
    let mut s = Scene::new(8, 1000, 5);
    for left in [500, 100, 300, 700, 900] {
        assert!(s.add(left, left + 100));
    }
    assert_eq!(s.told(4), [(900, 1000), (700, 800), (300, 400), (100, 200)]);
    // A block that changes goes first; those that have become one are told once, and the highest other follows.
    assert!(s.add(200, 300));
    assert_eq!(s.told(4), [(100, 400), (900, 1000), (700, 800), (500, 600)]);
    assert_eq!(s.told(3), [(100, 400), (900, 1000), (700, 800)]);
}

#[test]
fn every_place_is_used_wherever_the_intervals_lie() {
    let mut s = Scene::new(INTERVALS, 10_000, u32::MAX - 3_000);
    // A flow in recovery for long: one gap closes, another comes.
    for n in 0..200 {
        let left = 40 * n + 10;
        assert!(s.add(left, left + 10), "{n}");
        if s.used().len() == INTERVALS {
            assert!(!s.add(9_000, 9_001));
            let lowest = s.used()[0];
            s.bytes.take(s.bytes.next, lowest.0);
            let (next, oracle) = (s.seq(lowest.0), s.bytes.reach(lowest.0));
            let reached = s.ahead.borrowed(&mut s.held).reach(next);
            assert_eq!(reached, s.seq(oracle));
        }
    }
    assert_eq!(s.used(), s.bytes.intervals());
}
