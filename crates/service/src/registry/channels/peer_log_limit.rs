//! The limit of log lines about peers: a peer can cause as many channels that do not come through their handshake, and sessions that end, as it
//! likes. Reads no clock and writes nothing.

use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Within one such period, the same for all peers, a peer is named once for each reason.
const PERIOD: Duration = Duration::from_secs(60);
/// Most lines about one peer in that time: each reason once, and some violations that differ in their numbers.
const OF_PEER_MAX: usize = 16;
/// Most lines about all peers in that time.
const LINES_MAX: usize = 128;

/// What the log has said of peers since the period began.
#[derive(Debug, Default)]
pub struct PeerLogLimit {
    since: Option<Instant>,
    named: Vec<(IpAddr, String)>,
    /// Channels and sessions without a line of their own.
    unnamed: u64,
}

impl PeerLogLimit {
    /// The line for the log that says `what` of the peer; `None`: the log has enough of it. The counters have all.
    pub fn line(&mut self, now: Instant, peer: IpAddr, what: String) -> Option<String> {
        let mut more = String::new();
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            if self.unnamed > 0 {
                more = format!(" (and {} more before, for reasons already named)", self.unnamed);
            }
            *self = Self { since: Some(now), ..Self::default() };
        }
        let of_peer = self.named.iter().filter(|(named, _)| *named == peer).count();
        let is_named = self.named.iter().any(|named| (named.0, &named.1) == (peer, &what));
        if is_named || of_peer >= OF_PEER_MAX || self.named.len() >= LINES_MAX {
            self.unnamed += 1;
            return None;
        }
        let line = format!("{what}{more}");
        self.named.push((peer, what));
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn a_reason_is_named_once_a_minute_for_each_peer() {
        let (start, mut limit) = (Instant::now(), PeerLogLimit::default());
        let mut line = |now, peer, why: &str| limit.line(now, peer, why.to_owned());
        assert_eq!(line(start, PEER, "wrong secret").as_deref(), Some("wrong secret"));
        assert_eq!(line(start + PERIOD / 2, PEER, "wrong secret"), None);
        assert!(line(start, PEER, "given up").is_some());
        assert!(line(start, IpAddr::from([10, 0, 0, 3]), "wrong secret").is_some());
        let later = line(start + PERIOD, PEER, "wrong secret");
        assert!(later.is_some_and(|line| line.contains("and 1 more before")));
    }

    #[test]
    fn a_peer_with_ever_new_faults_leaves_lines_to_the_others() {
        let (start, mut limit) = (Instant::now(), PeerLogLimit::default());
        let mut lines = |peer: IpAddr| {
            (0..256).filter_map(|kind| limit.line(start, peer, format!("type {kind}"))).count()
        };
        assert_eq!(lines(PEER), OF_PEER_MAX);
        assert_eq!(lines(IpAddr::from([10, 0, 0, 3])), OF_PEER_MAX);
        let others: usize = (0..=255).map(|last| lines(IpAddr::from([10, 1, 0, last]))).sum();
        assert_eq!(others, LINES_MAX - 2 * OF_PEER_MAX);
    }
}
