//! Limits the log lines that a user's processes can cause: some per minute and user, then only their number. Reads no clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines for one user and window.
const LINES: u32 = 20;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(60);
/// Most users with a window of their own; all further users share one.
const USERS: usize = 256;
/// Key of the shared window; no user has this number.
const OTHERS: u32 = u32::MAX;

/// Decision about one log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Say {
    /// Write the line to the log.
    Line,
    /// So many lines of the window before were left out: log their number, then the line.
    AfterLeftOut(u64),
    /// Log the line, and that further lines of this window are left out.
    Last,
    /// Write nothing; the line is only counted.
    Nothing,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    written: u32,
    left_out: u64,
}

/// The windows of all users.
#[derive(Debug, Default)]
pub struct LogLimit {
    users: HashMap<u32, Window>,
}

impl LogLimit {
    /// Decides about a log line that user `uid` has caused.
    pub fn line(&mut self, uid: u32, now: Instant) -> Say {
        if self.users.len() >= USERS && !self.users.contains_key(&uid) {
            self.users.retain(|_, w| now.duration_since(w.since) < WINDOW || w.left_out > 0);
        }
        let has_room = self.users.len() < USERS || self.users.contains_key(&uid);
        let new = Window { since: now, written: 0, left_out: 0 };
        let window = self.users.entry(if has_room { uid } else { OTHERS }).or_insert(new);
        if now.duration_since(window.since) >= WINDOW {
            let left_out = window.left_out;
            *window = Window { since: now, written: 1, left_out: 0 };
            return if left_out > 0 { Say::AfterLeftOut(left_out) } else { Say::Line };
        }
        window.written += 1;
        match window.written {
            ..LINES => Say::Line,
            LINES => Say::Last,
            _ => {
                window.written = LINES;
                window.left_out += 1;
                Say::Nothing
            }
        }
    }
}

/// `log_for!(limit, now, uid, warn, "...")`: logs a line that user `uid` has caused, within the limits.
macro_rules! log_for {
    ($limit:expr, $now:expr, $uid:expr, $level:ident, $($text:tt)+) => {{
        let uid = $uid;
        let say = $limit.line(uid, $now);
        if let $crate::registry::log_limit::Say::AfterLeftOut(n) = say {
            tracing::$level!(uid, "and {n} more lines about this user before");
        }
        if say != $crate::registry::log_limit::Say::Nothing {
            tracing::$level!($($text)+);
        }
        if say == $crate::registry::log_limit::Say::Last {
            tracing::$level!(uid, "more lines about this user are left out for a minute");
        }
    }};
}
pub(crate) use log_for;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_lines_of_one_user_few_are_written_and_the_rest_are_counted() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let said: Vec<Say> = (0..1254).map(|_| limit.line(7, start)).collect();
        assert_eq!(said.iter().filter(|say| **say == Say::Line).count(), 19);
        assert_eq!(said.iter().position(|say| *say == Say::Last), Some(19));
        assert_eq!(limit.line(8, start), Say::Line, "other users are heard");
        assert_eq!(limit.line(7, start + WINDOW), Say::AfterLeftOut(1234));
        assert_eq!(limit.line(7, start + WINDOW), Say::Line);
        assert_eq!(limit.line(7, start + 3 * WINDOW), Say::Line, "nothing was left out");
    }

    #[test]
    fn very_many_users_cannot_fill_log_or_memory() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let written = (0..100_000u32).filter(|uid| limit.line(*uid, start) != Say::Nothing).count();
        assert!(written <= USERS + LINES as usize, "{written}");
        assert!(limit.users.len() <= USERS + 1);
    }
}
