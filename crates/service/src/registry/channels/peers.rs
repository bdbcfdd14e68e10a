//! What this service knows of the channel services of other hosts: whether one is there, and when to ask again. Sends nothing and reads no
//! clock.

use channel::session::Ended;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Time for which a host without a channel service, or with one that refuses, is not asked again.
const PAUSE: Duration = Duration::from_secs(60);
/// Most hosts remembered. Beyond it those that need not be known are forgotten first.
const PEERS_MAX: usize = 4_096;

/// What is known of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Nothing: it is to be asked.
    Unknown,
    /// It was asked and has not answered.
    Asked,
    /// It has a channel service that speaks with this one.
    Speaks,
    /// It has none, or one that refuses, for this reason.
    Silent(Ended),
}

#[derive(Clone, Copy, Debug)]
struct Known {
    standing: Standing,
    since: Instant,
}

/// All hosts that were asked.
#[derive(Debug, Default)]
pub struct Peers {
    all: HashMap<IpAddr, Known>,
}

impl Peers {
    /// What is known of a host now.
    pub fn standing(&self, now: Instant, peer: IpAddr) -> Standing {
        match self.all.get(&peer) {
            Some(known) if !known.is_stale(now) => known.standing,
            _ => Standing::Unknown,
        }
    }

    /// The host is asked for a session.
    pub fn ask(&mut self, now: Instant, peer: IpAddr) {
        self.note(now, peer, Standing::Asked);
    }

    /// The host has agreed on a session.
    pub fn speaks(&mut self, now: Instant, peer: IpAddr) {
        self.note(now, peer, Standing::Speaks);
    }

    /// A session with the host is over. One that has merely had nothing to do says nothing against the host, and one that a restart has ended
    /// says only that the host is to be asked again.
    pub fn over(&mut self, now: Instant, peer: IpAddr, why: Ended) {
        match why {
            Ended::Drained => {}
            Ended::Restarted => drop(self.all.remove(&peer)),
            _ => self.note(now, peer, Standing::Silent(why)),
        }
    }

    fn note(&mut self, now: Instant, peer: IpAddr, standing: Standing) {
        if self.all.len() >= PEERS_MAX && !self.all.contains_key(&peer) {
            self.all.retain(|_, known| known.standing == Standing::Speaks && !known.is_stale(now));
        }
        if self.all.len() < PEERS_MAX || self.all.contains_key(&peer) {
            self.all.insert(peer, Known { standing, since: now });
        }
    }

    /// All hosts and what is known of them, for reports.
    pub fn iter(&self, now: Instant) -> impl Iterator<Item = (IpAddr, Standing)> {
        self.all
            .iter()
            .filter(move |(_, known)| !known.is_stale(now))
            .map(|(peer, known)| (*peer, known.standing))
    }
}

impl Known {
    fn is_stale(&self, now: Instant) -> bool {
        matches!(self.standing, Standing::Silent(_)) && now.saturating_duration_since(self.since) >= PAUSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn a_silent_peer_is_asked_again_after_sixty_seconds() {
        let (start, mut peers) = (Instant::now(), Peers::default());
        assert_eq!(peers.standing(start, PEER), Standing::Unknown);
        peers.ask(start, PEER);
        assert_eq!(peers.standing(start, PEER), Standing::Asked);
        peers.over(start, PEER, Ended::Unreachable);
        assert_eq!(peers.standing(start + PAUSE / 2, PEER), Standing::Silent(Ended::Unreachable));
        assert_eq!(peers.standing(start + PAUSE, PEER), Standing::Unknown);
    }

    #[test]
    fn an_idle_session_that_ends_says_nothing_against_the_peer() {
        let (now, mut peers) = (Instant::now(), Peers::default());
        peers.speaks(now, PEER);
        peers.over(now, PEER, Ended::Drained);
        assert_eq!(peers.standing(now + 10 * PAUSE, PEER), Standing::Speaks);
    }

    #[test]
    fn a_peer_that_has_restarted_is_asked_at_once() {
        let (now, mut peers) = (Instant::now(), Peers::default());
        peers.speaks(now, PEER);
        peers.over(now, PEER, Ended::Restarted);
        assert_eq!(peers.standing(now, PEER), Standing::Unknown);
    }

    #[test]
    fn the_table_of_peers_is_bounded() {
        let (now, mut peers) = (Instant::now(), Peers::default());
        for i in 0..3 * PEERS_MAX as u32 {
            peers.ask(now, IpAddr::from(i.to_be_bytes()));
        }
        assert!(peers.iter(now).count() <= PEERS_MAX);
    }
}
