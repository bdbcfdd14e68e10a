//! What agents and this service have said to each other, kept only while `towpath cc record` goes on asking for it.

use base::{Duration, Instant};
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt::Write as _;

/// Datagrams are kept so long after the last question.
const KEPT_FOR: Duration = Duration::from_secs(2);
/// Bytes of datagrams and names that are kept at most; more push the oldest out.
const BYTES_MAX: usize = 8 << 20;

/// The way of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    ToAgent,
    FromAgent,
}

#[derive(Debug)]
struct Said {
    at: Instant,
    way: Way,
    agent: Vec<u8>,
    bytes: Vec<u8>,
}

impl Said {
    fn len(&self) -> usize {
        size_of::<Self>() + self.agent.len() + self.bytes.len()
    }
}

/// One datagram as the command gets it.
#[derive(PartialEq, Eq, Debug, Serialize)]
pub struct SaidShown {
    ns: u64,
    way: Way,
    agent: String,
    /// Its bytes, two hexadecimal digits each.
    hex: String,
}

/// The answer to a question.
#[derive(PartialEq, Eq, Debug, Serialize)]
pub struct Part {
    /// The number of the next datagram, with which the next question goes on.
    next: u64,
    /// Datagrams that are not kept any more.
    lost: u64,
    said: Vec<SaidShown>,
}

/// The datagrams; see the module.
#[derive(Debug)]
pub struct Transcript {
    said: VecDeque<Said>,
    bytes: usize,
    /// Number of datagrams noted so far.
    next: u64,
    /// No question since then.
    over_at: Instant,
}

impl Default for Transcript {
    fn default() -> Self {
        Self { said: VecDeque::new(), bytes: 0, next: 0, over_at: Instant::ZERO }
    }
}

impl Transcript {
    /// A datagram has gone or come.
    pub fn note(&mut self, now: Instant, way: Way, agent: &[u8], bytes: &[u8]) {
        if self.over_at <= now {
            if !self.said.is_empty() {
                (self.said, self.bytes) = (VecDeque::new(), 0);
            }
            return;
        }
        let said = Said { at: now, way, agent: agent.to_vec(), bytes: bytes.to_vec() };
        self.bytes += said.len();
        self.said.push_back(said);
        self.next += 1;
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.said.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }

    /// The datagrams from number `from` on, which are forgotten then; `None`: keep from now on.
    pub fn take(&mut self, now: Instant, from: Option<u64>) -> Part {
        self.over_at = now.plus(KEPT_FOR);
        let first = self.next - self.said.len() as u64;
        let from = from.unwrap_or(self.next);
        let known = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX).min(self.said.len());
        self.said.drain(..known);
        self.bytes = 0;
        let said = self.said.drain(..).map(|said| shown(&said)).collect();
        Part { next: self.next, lost: first.saturating_sub(from), said }
    }
}

fn shown(said: &Said) -> SaidShown {
    let mut hex = String::with_capacity(2 * said.bytes.len());
    for byte in &said.bytes {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    let agent = String::from_utf8_lossy(&said.agent).into_owned();
    SaidShown { ns: said.at.as_ns(), way: said.way, agent, hex }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    fn hex(part: &Part) -> Vec<&str> {
        part.said.iter().map(|said| said.hex.as_str()).collect()
    }

    #[test]
    fn datagrams_are_kept_while_there_are_questions() {
        let mut transcript = Transcript::default();
        transcript.note(ms(1), Way::ToAgent, b"a", &[1]);
        let begun = transcript.take(ms(2), None);
        assert_eq!((begun.next, begun.lost, begun.said.len()), (0, 0, 0));
        transcript.note(ms(3), Way::ToAgent, b"a", &[2, 255]);
        transcript.note(ms(4), Way::FromAgent, b"a", &[]);
        let part = transcript.take(ms(5), Some(begun.next));
        assert_eq!((part.next, part.lost, hex(&part)), (2, 0, vec!["02ff", ""]));
        assert_eq!((part.said[1].way, part.said[1].ns), (Way::FromAgent, 4_000_000));
        transcript.note(ms(6), Way::ToAgent, b"a", &[3]);
        transcript.note(ms(6 + 2000), Way::ToAgent, b"a", &[4]);
        assert!(transcript.said.is_empty(), "the command is gone");
    }

    #[test]
    fn what_is_pushed_out_is_counted() {
        let mut transcript = Transcript::default();
        transcript.take(ms(0), None);
        for _ in 0..3 {
            transcript.note(ms(1), Way::ToAgent, b"a", &vec![7; BYTES_MAX / 2]);
        }
        let part = transcript.take(ms(2), Some(0));
        assert_eq!((part.next, part.lost, part.said.len()), (3, 2, 1));
        assert_eq!(transcript.take(ms(3), Some(3)), Part { next: 3, lost: 0, said: Vec::new() });
    }
}
