//! Pauses of the service or of its machine. Packets received in the meantime wait in the port, unread, so a timer that has expired
//! says nothing about the peer until the cores have had time to read them.

use base::{Duration, Instant};

/// If timers are handled later than this after their deadline, the slow path was not running.
const LATE: Duration = Duration::from_ms(50);
/// After a gap this long, the times that an application grants its peer begin anew.
const LONG: Duration = Duration::from_secs(1);
/// Time given to the cores to read the waiting packets: some hundred batches.
const GRACE: Duration = Duration::from_ms(10);

/// Whether timers must wait because of a gap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pause {
    until: Option<Instant>,
    /// End of the last long gap: user timeouts do not count the time before it.
    resumed_at: Instant,
}

impl Pause {
    /// True when timers may be handled at `now`; the earliest is due at `deadline`. After a gap: false once, then true after
    /// `GRACE`, however late that call is, because a slow machine must not postpone its timers for ever.
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

    /// The time from which on a wait that began at `since` counts.
    pub(crate) fn waiting_since(&self, since: Instant) -> Instant {
        since.max(self.resumed_at)
    }

    /// When timers may be handled, if the earliest is due at `deadline`.
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
        // Late again: timers are handled all the same.
        assert!(pause.may_judge(ms(9000), ms(1000)));
        assert!(!pause.may_judge(ms(9900), ms(9500)));
    }
}
