//! A limit of answers per second, divided among peers: what one peer causes takes nothing from another, and so tells nothing of it.
//!
//! One counter for all is a side channel. An attacker sends segments in the name of a peer, and then counts how many answers are left for
//! itself: fewer, if those segments were answered. So it learns whether the peer has a connection here, and its numbers (CVE-2016-5696), or
//! whether the port pair has none. Here the peer in whose name a segment came has a share of its own. The shares are fewer than the
//! peers: which peers have one in common is secret, and another each second, and so is how large it is, within half and one and a half of
//! what was configured: that hides what peers behind one address cause.

use crate::isn::Secret;
use base::Instant;
use std::net::IpAddr;

/// Shares of one limit, 8 bytes each: with as many peers as this one of them has another's share in one second of 4,096.
const SHARES: usize = 4096;

/// What is left of a peer's share.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// The second that it is for.
    second: u32,
    left: u32,
}

/// The limit of one kind of answer.
#[derive(Debug)]
pub(crate) struct PeerLimit {
    per_second: u32,
    shares: Box<[Share]>,
}

impl PeerLimit {
    /// About `per_second` answers to each peer: half of it at least, one and a half at most.
    pub(crate) fn new(per_second: u32) -> Self {
        let none = Share { second: u32::MAX, left: 0 };
        Self { per_second: per_second.max(1), shares: vec![none; SHARES].into() }
    }

    /// Takes the right to answer `peer` once from its share. False: nothing is left of it in this second.
    #[must_use]
    pub(crate) fn take(&mut self, now: Instant, secret: &Secret, peer: IpAddr) -> bool {
        let second = (now.as_ns() / 1_000_000_000) as u32;
        let drawn = secret.share(second, peer);
        let share = &mut self.shares[drawn as usize % SHARES];
        if share.second != second {
            let left = self.per_second.div_ceil(2) + (drawn >> 32) as u32 % self.per_second;
            *share = Share { second, left };
        }
        let may = share.left > 0;
        share.left -= u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Duration;
    use std::net::Ipv6Addr;

    const SECRET: Secret = Secret::new([7; 16]);
    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn at(second: u64) -> Instant {
        Instant::ZERO.plus(Duration::from_secs(second))
    }

    /// How many of `tries` answers a peer gets.
    fn taken(limit: &mut PeerLimit, now: Instant, peer: IpAddr, tries: u32) -> u32 {
        (0..tries).filter(|_| limit.take(now, &SECRET, peer)).count() as u32
    }

    #[test]
    fn a_peer_gets_about_so_many_answers_a_second_and_how_many_is_not_foreseeable() {
        let mut limit = PeerLimit::new(1000);
        let counts: Vec<u32> = (0..200).map(|second| taken(&mut limit, at(second), PEER, 5000)).collect();
        assert!(counts.iter().all(|count| (500..1500).contains(count)), "{counts:?}");
        let mean = counts.iter().sum::<u32>() / 200;
        let mut different = counts.clone();
        different.sort_unstable();
        different.dedup();
        assert!(
            (900..1100).contains(&mean) && different.len() > 150,
            "{mean}, {} different",
            different.len()
        );
        assert_eq!(taken(&mut PeerLimit::new(1), at(1), PEER, 9), 1, "the least limit lets one through");
    }

    #[test]
    fn what_one_peer_takes_is_not_missing_for_another() {
        for second in 0..50 {
            let peers = (0..64u32).map(|i| IpAddr::from((0x0A00_0003 + 77 * i).to_be_bytes()));
            let own = |limit: &mut PeerLimit| taken(limit, at(second), PEER, 2000);
            let undisturbed = own(&mut PeerLimit::new(1000));
            let mut limit = PeerLimit::new(1000);
            let is_apart = |peer: &IpAddr| {
                SECRET.share(second as u32, *peer) as usize % SHARES
                    != SECRET.share(second as u32, PEER) as usize % SHARES
            };
            let taken: u32 =
                peers.filter(is_apart).map(|peer| taken(&mut limit, at(second), peer, 2000)).sum();
            assert!(taken > 30 * 500, "{taken}");
            assert_eq!(own(&mut limit), undisturbed);
        }
    }

    /// Two peers with one share do not have the next one in common.
    #[test]
    fn which_peers_have_one_share_changes_each_second() {
        let share = |second, i: u32| SECRET.share(second, IpAddr::from(i.to_be_bytes())) as usize % SHARES;
        let same: Vec<u32> = (1..40_000).filter(|i| share(0, *i) == share(0, 0)).collect();
        assert!(same.len() > 3);
        assert!(same.iter().all(|i| (1..5).any(|second| share(second, *i) != share(second, 0))));
    }

    /// Whoever has one address of an IPv6 network has all of a /64.
    #[test]
    fn a_network_of_ipv6_has_one_share() {
        let mut limit = PeerLimit::new(1000);
        let peer = |last: u16| IpAddr::from(Ipv6Addr::new(0x2001, 0xDB8, 0, 1, last, last, last, last));
        let all: u32 = (0..5000).map(|last| taken(&mut limit, at(3), peer(last), 1)).sum();
        assert!((500..1500).contains(&all), "{all}");
    }
}
