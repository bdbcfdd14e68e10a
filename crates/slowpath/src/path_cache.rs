//! Destinations that take smaller packets than our link, learned from validated ICMP and from black holes; bounded, and
//! forgotten after a while, because paths change.

use base::{Duration, Instant};
use std::collections::HashMap;
use std::net::IpAddr;

/// RFC 8201 section 4: a larger size "MUST NOT be done less than 5 minutes after a Packet Too Big message has been received ...
/// The recommended setting for this timer is twice its minimum value (10 minutes)".
pub(crate) const EXPIRY: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
struct Entry {
    mtu: u16,
    until: Instant,
}

/// Bytes of the largest IP packet that a path takes, by destination.
#[derive(Debug)]
pub(crate) struct PathCache {
    entries: HashMap<IpAddr, Entry>,
    capacity: usize,
}

impl PathCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), capacity: capacity.max(1) }
    }

    /// Notes that the path to `to` takes packets of at most `mtu` bytes. If the cache is full the oldest entry is removed.
    pub(crate) fn learn(&mut self, now: Instant, to: IpAddr, mtu: u16) {
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&to) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.until).map(|(addr, _)| *addr);
            oldest.and_then(|addr| self.entries.remove(&addr));
        }
        self.entries.insert(to, Entry { mtu, until: now.plus(EXPIRY) });
    }

    /// Bytes of the largest packet that the path to `to` is known to take; `None` when nothing is known.
    pub(crate) fn mtu(&self, now: Instant, to: IpAddr) -> Option<u16> {
        self.entries.get(&to).filter(|entry| now < entry.until).map(|entry| entry.mtu)
    }

    /// The path to `to` takes packets of the link's size: removes its entry.
    pub(crate) fn forget(&mut self, to: IpAddr) {
        self.entries.remove(&to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn secs(s: u64) -> Instant {
        Instant::ZERO.plus(Duration::from_secs(s))
    }

    #[test]
    fn what_was_learned_is_forgotten_after_ten_minutes() {
        let mut cache = PathCache::new(4);
        cache.learn(secs(0), to(1), 1400);
        assert_eq!((cache.mtu(secs(599), to(1)), cache.mtu(secs(600), to(1))), (Some(1400), None));
        assert_eq!(cache.mtu(secs(0), to(2)), None);
        cache.forget(to(1));
        assert_eq!(cache.mtu(secs(0), to(1)), None);
    }

    #[test]
    fn the_cache_is_bounded_and_the_oldest_gives_way() {
        let mut cache = PathCache::new(2);
        for n in 0..200 {
            cache.learn(secs(u64::from(n)), to(n), 1300);
        }
        assert_eq!(cache.entries.len(), 2);
        assert_eq!((cache.mtu(secs(199), to(199)), cache.mtu(secs(199), to(0))), (Some(1300), None));
    }
}
