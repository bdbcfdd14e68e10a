//! Lines for the user on standard error: `TOWPATH_LOG=off|error|warn|info|debug`, `error` by default.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// How important a line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// An error: something is broken.
    Error = 1,
    /// Something will not be accelerated although it could.
    Warn = 2,
    /// A decision about a socket.
    Info = 3,
    /// All else, for debugging.
    Debug = 4,
}

/// The variable with the level of the log.
const LOG_ENV: &str = "TOWPATH_LOG";
/// The words that are levels, each at its number.
const LEVELS: [&str; 5] = ["off", "error", "warn", "info", "debug"];

fn level_of(word: &str) -> Option<usize> {
    LEVELS.iter().position(|level| *level == word)
}

/// The largest [`Level`] that is written; 0: no line is.
pub(crate) fn limit() -> u8 {
    static LIMIT: OnceLock<u8> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let word = control::variables::text(LOG_ENV);
        word.and_then(|word| level_of(&word)).map_or(Level::Error as u8, |level| level as u8)
    })
}

/// Logs an error when the variable is set to a word that is no level.
pub(crate) fn check_level() {
    let word = control::variables::text(LOG_ENV).filter(|word| !word.is_empty() && level_of(word).is_none());
    if let Some(word) = word {
        let (levels, near) = (LEVELS.join(", "), control::known::nearest(&word, LEVELS));
        let meant = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
        log(Level::Error, format_args!("{LOG_ENV}={word}{meant}: give one of {levels}; error it is"));
    }
}

/// Most errors and warnings of a process in one minute: peers bring them about, as many as they like.
const LINES: u32 = 20;

/// Number of such lines in this minute. Without a lock: signal handlers log, too.
#[derive(Debug)]
struct Minute {
    /// Which minute of the monotonic clock, from 1.
    number: AtomicU64,
    written: AtomicU32,
    left_out: AtomicU64,
}

/// What is written for a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Say {
    Line,
    /// The line, after a note that so many were left out before.
    AfterLeftOut(u64),
    /// The line, and a note that more are left out.
    Last,
    Nothing,
}

impl Minute {
    const fn new() -> Self {
        Self { number: AtomicU64::new(0), written: AtomicU32::new(0), left_out: AtomicU64::new(0) }
    }

    /// Counts a line. Threads that log at once may write one line more.
    fn line(&self, minute: u64) -> Say {
        let known = self.number.load(Relaxed);
        if known != minute && self.number.compare_exchange(known, minute, Relaxed, Relaxed).is_ok() {
            self.written.store(1, Relaxed);
            let left_out = self.left_out.swap(0, Relaxed);
            return if left_out > 0 { Say::AfterLeftOut(left_out) } else { Say::Line };
        }
        if self.written.load(Relaxed) >= LINES {
            self.left_out.fetch_add(1, Relaxed);
            return Say::Nothing;
        }
        if self.written.fetch_add(1, Relaxed) + 1 == LINES { Say::Last } else { Say::Line }
    }
}

/// Says that standard error must not be written to at this moment: descriptor 2 is a connection. Set by the library that replaces sockets.
pub static MUTE: OnceLock<fn() -> bool> = OnceLock::new();

/// Writes one line, in one system call; errors and warnings at most `LINES` a minute.
pub fn log(level: Level, text: std::fmt::Arguments<'_>) {
    static MINUTE: Minute = Minute::new();
    // Descriptor 2 may be a connection: a write to its placeholder fails, with SIGPIPE.
    if level as u8 > limit() || MUTE.get().is_some_and(|is_mute| is_mute()) {
        return;
    }
    if level > Level::Warn {
        return write(text);
    }
    let minute = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec as u64 / 60 + 1;
    let say = MINUTE.line(minute);
    if let Say::AfterLeftOut(n) = say {
        write(format_args!("and {n} more lines before"));
    }
    if say != Say::Nothing {
        write(text);
    }
    if say == Say::Last {
        write(format_args!("more lines are left out for a minute"));
    }
}

fn write(text: std::fmt::Arguments<'_>) {
    let mut line = [0u8; 512];
    let mut rest = &mut line[..511];
    // A line that is too long is cut.
    let _ = write!(rest, "towpath[{}]: {text}", crate::sys::pid().unwrap_or(0));
    let left = rest.len();
    let used = 511 - left;
    line[used] = b'\n';
    let _ = rustix::io::write(crate::sys::borrow(2), &line[..=used]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_misbehaves_all_the_time_fills_no_standard_error() {
        let minute = Minute::new();
        let said: Vec<Say> = (0..17_602).map(|_| minute.line(5)).collect();
        let written = said.iter().filter(|say| **say != Say::Nothing).count();
        assert_eq!((written, said[19]), (LINES as usize, Say::Last));
        assert_eq!(minute.line(6), Say::AfterLeftOut(17_602 - u64::from(LINES)));
        assert_eq!(minute.line(6), Say::Line);
        assert_eq!(minute.line(9), Say::Line, "nothing was left out");
    }
}
