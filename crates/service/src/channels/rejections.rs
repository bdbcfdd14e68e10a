//! Which of the channels that are refused in their handshake get a line in the log. Reads no clock and writes nothing.

use channel::violation::Rejection;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Time for which a peer is not named again for the same reason.
const PERIOD: Duration = Duration::from_secs(60);
/// Most lines about one peer in that time: each reason once, and some violations that differ in their numbers.
const OF_PEER_MAX: usize = 16;
/// Most lines about all peers in that time.
const LINES_MAX: usize = 128;

/// What the log has named since the period began.
#[derive(Debug, Default)]
pub struct Rejections {
    since: Option<Instant>,
    named: Vec<(IpAddr, Rejection)>,
    /// Channels without a line of their own.
    unnamed: u64,
}

impl Rejections {
    /// The line for the log about that channel; `None`: the log has enough about it. The counters have every channel.
    pub fn line(&mut self, now: Instant, peer: IpAddr, why: Rejection) -> Option<String> {
        let mut more = String::new();
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            if self.unnamed > 0 {
                more = format!(" (and {} more before, for reasons already named)", self.unnamed);
            }
            *self = Self { since: Some(now), ..Self::default() };
        }
        let of_peer = self.named.iter().filter(|(named, _)| *named == peer).count();
        let is_named = self.named.contains(&(peer, why));
        if is_named || of_peer >= OF_PEER_MAX || self.named.len() >= LINES_MAX {
            self.unnamed += 1;
            return None;
        }
        self.named.push((peer, why));
        Some(format!("a channel did not come through its handshake: {why}{more}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use channel::violation::{Refusal, Violation};

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const WRONG: Rejection = Rejection::Refused(Refusal::Secret);

    #[test]
    fn a_reason_is_named_once_a_minute_for_each_peer() {
        let (start, mut log) = (Instant::now(), Rejections::default());
        assert!(log.line(start, PEER, WRONG).is_some_and(|line| line.contains("secret")));
        assert_eq!(log.line(start + PERIOD / 2, PEER, WRONG), None);
        assert!(log.line(start, PEER, Rejection::GivenUp).is_some());
        assert!(log.line(start, IpAddr::from([10, 0, 0, 3]), WRONG).is_some());
        let later = log.line(start + PERIOD, PEER, WRONG);
        assert!(later.is_some_and(|line| line.contains("and 1 more before")));
    }

    #[test]
    fn a_peer_with_ever_new_faults_leaves_lines_to_the_others() {
        let (start, mut log) = (Instant::now(), Rejections::default());
        let mut lines = |peer: IpAddr| {
            let faults = (0..=255).map(|kind| Rejection::Violation(Violation::Type(kind)));
            faults.filter_map(|why| log.line(start, peer, why)).count()
        };
        assert_eq!(lines(PEER), OF_PEER_MAX);
        assert_eq!(lines(IpAddr::from([10, 0, 0, 3])), OF_PEER_MAX);
        let others: usize = (0..=255).map(|last| lines(IpAddr::from([10, 1, 0, last]))).sum();
        assert_eq!(others, LINES_MAX - 2 * OF_PEER_MAX);
    }
}
