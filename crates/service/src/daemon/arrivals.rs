//! How fast each user makes control lines. A user that connects and closes without end would keep the control thread at accepting: lines beyond its
//! rate are closed before anything else is done for them. Reads no clock.

use crate::registry::registration::User;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines a second of one user, in the long run: more than programs can make that say hello, also where a server forks for each connection, which makes two
/// for each. A child loses the connections that it has inherited when its line is closed.
const RATE: u32 = 10_000;
/// So many more at once: thousands of programs that start together are all served.
const BURST: u32 = 20_000;
const EACH: Duration = Duration::from_nanos(1_000_000_000 / RATE as u64);
/// Users remembered, beside those that are ahead of their rate now.
const KEPT: usize = 64;

/// By user: when its last line would have come at an even rate.
#[derive(Debug, Default)]
pub struct Arrivals {
    due: HashMap<User, Instant>,
    forget_at: usize,
}

impl Arrivals {
    /// A line of that user has come. False: it is one too many.
    pub fn comes(&mut self, user: User, now: Instant) -> bool {
        if user.is_administrator {
            return true;
        }
        if self.due.len() >= self.forget_at.max(KEPT) {
            self.due.retain(|_, due| *due > now);
            self.forget_at = 2 * self.due.len();
        }
        let due = self.due.entry(user).or_insert(now);
        let next = (*due).max(now) + EACH;
        let may = next.saturating_duration_since(now) <= EACH * (BURST + 1);
        if may {
            *due = next;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn user(uid: u32) -> User {
        User { uid, is_administrator: false }
    }

    /// How many of `count` lines that come at once may.
    fn come(arrivals: &mut Arrivals, who: User, count: u32, now: Instant) -> u32 {
        (0..count).map(|_| u32::from(arrivals.comes(who, now))).sum()
    }

    #[test]
    fn a_burst_is_served_then_a_rate_and_other_users_have_their_own() {
        let (mut arrivals, now) = (Arrivals::default(), Instant::now());
        assert_eq!(come(&mut arrivals, user(7), 100_000, now), BURST + 1);
        assert_eq!(come(&mut arrivals, user(7), 100, now), 0, "what is refused costs nothing");
        assert_eq!(come(&mut arrivals, user(8), 1, now), 1);
        let later = now + Duration::from_secs(1);
        assert_eq!(come(&mut arrivals, user(7), 100_000, later), RATE);
        assert_eq!(come(&mut arrivals, user(7), 100_000, later + Duration::from_secs(100)), BURST + 1);
        let root = User { uid: 0, is_administrator: true };
        assert_eq!(come(&mut arrivals, root, 100_000, now), 100_000);
    }

    #[test]
    fn users_that_are_not_ahead_are_forgotten() {
        let (mut arrivals, now) = (Arrivals::default(), Instant::now());
        for n in 0..10_000 {
            arrivals.comes(user(n), now + EACH * 2 * n);
            assert!(arrivals.due.len() <= KEPT);
        }
        come(&mut arrivals, user(7), BURST + 1, now);
        assert!((0..1000).all(|n| arrivals.comes(user(20_000 + n), now + EACH * n / 10)));
        assert!(!arrivals.comes(user(7), now), "who is ahead is remembered");
    }
}
