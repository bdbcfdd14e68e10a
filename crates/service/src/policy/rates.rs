//! Limits how fast each user begins connections, where the policy asks for it. Reads no clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Most users remembered; then those that may begin a connection at once are forgotten.
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
        if self.due.len() >= KEPT {
            self.due.retain(|_, due| now < *due);
        }
        let due = self.due.get(&uid).copied().unwrap_or(now).max(now) + pause;
        let may = due <= now + AHEAD;
        if may {
            self.due.insert(uid, due);
        }
        may
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
}
