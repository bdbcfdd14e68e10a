//! Limits how fast each user begins connections, where the policy asks for it. Reads no clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Most users remembered. A further user takes the place of the one that would wait least: that one may be a burst ahead again.
const KEPT: usize = 1024;
/// How far ahead of an even rate a user may be: a burst of one second's connections.
const AHEAD: Duration = Duration::from_secs(1);

/// By user: when its last connection would have been due at an even rate.
#[derive(Debug, Default)]
pub struct Rates {
    due: HashMap<u32, Instant>,
}

impl Rates {
    /// True when user `uid`, limited to `rate` connections per second, may begin one now; that one is counted.
    pub fn begin(&mut self, uid: u32, rate: u32, now: Instant) -> bool {
        if rate == u32::MAX {
            return true;
        }
        let Some(pause) = Duration::from_secs(1).checked_div(rate) else { return false };
        let due = self.due.get(&uid).copied().unwrap_or(now).max(now) + pause;
        let may = due <= now + AHEAD;
        if may {
            self.make_room(uid, now);
            self.due.insert(uid, due);
        }
        may
    }

    /// Forgets users, so that there is room for `uid`.
    fn make_room(&mut self, uid: u32, now: Instant) {
        if self.due.len() < KEPT || self.due.contains_key(&uid) {
            return;
        }
        self.due.retain(|_, due| now < *due);
        let first = self.due.iter().min_by_key(|(_, due)| **due).map(|(uid, _)| *uid);
        if let Some(first) = first.filter(|_| self.due.len() >= KEPT) {
            self.due.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_begins_as_many_as_its_rate_says_and_no_other_user_pays_for_it() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let begun = |rates: &mut Rates, uid, now| (0..100).filter(|_| rates.begin(uid, 10, now)).count();
        assert_eq!(begun(&mut rates, 1, start), 10);
        assert_eq!(begun(&mut rates, 2, start), 10);
        assert_eq!(begun(&mut rates, 1, start + Duration::from_millis(500)), 5);
        assert_eq!(begun(&mut rates, 1, start + Duration::from_secs(60)), 10, "nothing is saved up");
        assert!(!rates.begin(3, 0, start) && rates.begin(3, u32::MAX, start));
    }

    #[test]
    fn users_that_come_and_go_are_forgotten() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        (0..10_000).for_each(|uid| assert!(rates.begin(uid, 1, start + AHEAD * uid)));
        assert!(rates.due.len() <= KEPT);
    }

    #[test]
    fn users_that_all_come_at_once_do_not_grow_the_table() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let at = |uid| start + Duration::from_micros(u64::from(uid));
        (0..10_000).for_each(|uid| assert!(rates.begin(uid, 1, at(uid))));
        assert_eq!(rates.due.len(), KEPT);
        assert!(!rates.begin(9_999, 1, at(10_000)), "the latest are remembered");
        assert!(rates.begin(0, 1, at(10_000)), "the first is not");
        assert_eq!(rates.due.len(), KEPT);
    }
}
