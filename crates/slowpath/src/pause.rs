//! What to do about time that passed without us: the service was stopped, or its machine was. What came meanwhile waits in the
//! port, unread, so no timer that is due says anything about the peer before the cores had a moment to read it.

use base::{Duration, Instant};

/// Later than this after the deadline it gave, the slow path did not run in between.
const LATE: Duration = Duration::from_ms(50);
/// A gap this long counts as a stop, from which the time that an application grants its peer begins anew.
const LONG: Duration = Duration::from_secs(1);
/// The moment for the cores: some hundred batches.
const GRACE: Duration = Duration::from_ms(10);

/// Whether timers wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pause {
    until: Option<Instant>,
    /// End of the last long gap: nobody's patience was tried while it lasted.
    resumed_at: Instant,
}

impl Pause {
    /// At `now`, when the earliest timer is due at `deadline`: true when timers may be judged. After a gap that is the case a
    /// moment later, once, however late that is: a slow machine must not put its timers off for ever.
    pub(crate) fn may_judge(&mut self, now: Instant, deadline: Instant) -> bool {
        match self.until {
            None if deadline.plus(LATE) < now => {
                self.until = Some(now.plus(GRACE));
                if deadline.plus(LONG) <= now {
                    self.resumed_at = now;
                }
                false
            }
            Some(until) if now < until => false,
            _ => {
                self.until = None;
                true
            }
        }
    }

    /// Waiting that began at `since` counts from here.
    pub(crate) fn waiting_since(&self, since: Instant) -> Instant {
        since.max(self.resumed_at)
    }

    /// When there is something to judge whose earliest timer is due at `deadline`.
    pub(crate) fn next_deadline(&self, deadline: Instant) -> Instant {
        self.until.map_or(deadline, |until| deadline.max(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::ZERO.plus(Duration::from_ms(ms))
    }

    #[test]
    fn timers_on_their_time_are_judged_at_once() {
        let mut pause = Pause::default();
        assert!(pause.may_judge(ms(1000), ms(1000)) && pause.may_judge(ms(1049), ms(1000)));
        assert!(pause.may_judge(ms(10), Instant::NEVER));
        assert_eq!(pause.next_deadline(ms(2000)), ms(2000));
    }

    #[test]
    fn after_a_gap_the_cores_read_first_and_only_once() {
        let mut pause = Pause::default();
        assert!(!pause.may_judge(ms(4000), ms(1000)));
        assert_eq!(pause.next_deadline(ms(1000)), ms(4010));
        assert!(!pause.may_judge(ms(4005), ms(1000)));
        // Late again: still, something has to happen.
        assert!(pause.may_judge(ms(9000), ms(1000)));
        assert!(!pause.may_judge(ms(9900), ms(9500)));
    }
}
