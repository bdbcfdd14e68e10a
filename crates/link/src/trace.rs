//! Packet-delivery traces in Mahimahi's format: the times at which a recorded line could send.

use base::{Duration, Instant};
use std::fmt;

/// Bytes that one opportunity carries.
pub(crate) const OPPORTUNITY_BYTES: u32 = 1_500;
/// The most lines of a trace: an hour at 40 Mbit/s, or five minutes at 0.5 Gbit/s.
const LINES_MAX: usize = 16_000_000;

/// The times at which a line sends: each is an opportunity to send 1500 bytes.
///
/// The text has one time per line in whole milliseconds from the beginning, in ascending order; a time that occurs n times means n
/// opportunities. After its last time the trace repeats. Bytes left over in an opportunity carry the next packet if that waits already; an
/// opportunity for which no packet waits is lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    name: String,
    times_ms: Box<[u32]>,
}

/// The reason why a text is not a trace. Lines count from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceError {
    /// The text has no line.
    Empty,
    /// A line is not a whole number of milliseconds.
    NotANumber(usize),
    /// A line's time is before that of an earlier line.
    Falls(usize),
    /// All times are 0, so the trace would have no duration.
    NoTime,
    /// The trace has more lines than allowed.
    TooLong,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the trace is empty: give one time in milliseconds per line"),
            Self::NotANumber(line) => {
                write!(f, "line {line} of the trace is not a whole number of milliseconds below 2^32")
            }
            Self::Falls(line) => write!(f, "line {line} of the trace goes back in time: sort its lines"),
            Self::NoTime => f.write_str("the trace ends at 0 ms: its last line must be later"),
            Self::TooLong => write!(f, "the trace has more than {LINES_MAX} lines: cut it"),
        }
    }
}

impl std::error::Error for TraceError {}

impl Trace {
    /// Reads a trace; `name` is its name in reports, usually the file's name.
    ///
    /// # Errors
    /// When `text` is not a trace.
    pub fn parse(name: &str, text: &str) -> Result<Self, TraceError> {
        let mut times_ms: Vec<u32> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let time = line.parse().map_err(|_| TraceError::NotANumber(at + 1))?;
            if times_ms.last().is_some_and(|&last| time < last) {
                return Err(TraceError::Falls(at + 1));
            }
            if times_ms.len() == LINES_MAX {
                return Err(TraceError::TooLong);
            }
            times_ms.push(time);
        }
        match times_ms.last() {
            None => Err(TraceError::Empty),
            Some(0) => Err(TraceError::NoTime),
            Some(_) => Ok(Self { name: name.to_owned(), times_ms: times_ms.into_boxed_slice() }),
        }
    }

    /// The trace's name in reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The mean rate in bits per second, rounded up: no line has a rate of 0.
    #[must_use]
    pub fn rate_mean(&self) -> u64 {
        let bits = self.times_ms.len() as u128 * u128::from(OPPORTUNITY_BYTES) * 8;
        (bits * 1_000).div_ceil(u128::from(self.period_ms().max(1))) as u64
    }

    fn period_ms(&self) -> u64 {
        self.times_ms.last().map_or(1, |&last| u64::from(last))
    }

    /// The time of opportunity number `index`, counted from 0 through all repetitions.
    pub(crate) fn time(&self, index: u64) -> Instant {
        let lines = self.times_ms.len() as u64;
        let within = self.times_ms[(index % lines) as usize];
        let ms = (index / lines).saturating_mul(self.period_ms()).saturating_add(u64::from(within));
        Instant::ZERO.plus(Duration::from_ms(ms))
    }

    /// The number of the first opportunity at or after `at`.
    pub(crate) fn first_from(&self, at: Instant) -> u64 {
        let ms = at.as_ns().div_ceil(1_000_000);
        // The end of a repetition is both the time of its last line and, if the trace has lines with 0, the first time of the next
        // repetition.
        let round = ms.saturating_sub(1) / self.period_ms();
        let within = ms - round * self.period_ms();
        let line = self.times_ms.partition_point(|&time| u64::from(time) < within);
        round * self.times_ms.len() as u64 + line as u64
    }
}

#[cfg(test)]
mod tests {
    use super::{Trace, TraceError};
    use base::{Duration, Instant};

    fn at_ms(ms: u64) -> Instant {
        Instant::ZERO.plus(Duration::from_ms(ms))
    }

    #[test]
    fn the_rate_of_a_line_that_hardly_ever_sends_is_not_0() {
        assert_eq!(Trace::parse("t", "60059999").map(|trace| trace.rate_mean()), Ok(1));
        assert_eq!(Trace::parse("t", "1\n2\n").map(|trace| trace.rate_mean()), Ok(12_000_000));
    }

    #[test]
    fn trace_begins_again_after_its_last_time() {
        let trace = Trace::parse("t", "0\n3\n3\n10\n").unwrap();
        let times: Vec<u64> = (0..9).map(|index| trace.time(index).as_ms()).collect();
        assert_eq!(times, [0, 3, 3, 10, 10, 13, 13, 20, 20]);
        assert_eq!(trace.rate_mean(), 4 * 1500 * 8 * 100);
    }

    #[test]
    fn first_opportunity_is_never_in_the_past_and_never_skips_one() {
        for text in ["0\n3\n3\n10\n", "1\n", "2\n2\n5\n", "5\n5\n5\n"] {
            let trace = Trace::parse("t", text).unwrap();
            for ms in 0..100 {
                let first = trace.first_from(at_ms(ms));
                assert!(at_ms(ms) <= trace.time(first), "{text:?} at {ms}");
                assert!(first == 0 || trace.time(first - 1) < at_ms(ms), "{text:?} at {ms}");
                let later = trace.first_from(at_ms(ms).plus(Duration::from_ns(1)));
                assert!(at_ms(ms) < trace.time(later));
            }
        }
    }

    #[test]
    fn bad_traces_are_refused_with_their_line() {
        assert_eq!(Trace::parse("t", "\n"), Err(TraceError::Empty));
        assert_eq!(Trace::parse("t", "1\nx\n"), Err(TraceError::NotANumber(2)));
        assert_eq!(Trace::parse("t", "1\n-1\n"), Err(TraceError::NotANumber(2)));
        assert_eq!(Trace::parse("t", "2\n1\n"), Err(TraceError::Falls(2)));
        assert_eq!(Trace::parse("t", "0\n0\n"), Err(TraceError::NoTime));
    }
}
