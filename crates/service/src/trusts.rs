//! What the service knows of connections on their way from one process to another: where each was left, who carries it on, and
//! whether anybody still has its descriptor. Decides nothing.

use control::Left;
use rustix::event::epoll;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Pauses between looks at descriptors that perhaps nobody has any more: whoever has let go is about to close.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));
/// Sets over which the descriptors are spread, so that a look at one of them need not read of all.
const SETS: u64 = 64;

/// A connection that was left, or may be taken away from where it is.
#[derive(Clone, Copy, Debug)]
pub struct Trust {
    /// Of its descriptor; 0: nobody has ever accepted it.
    pub cookie: u64,
    /// Where it is, or was.
    pub left: Left,
    /// The processes whose regions it lies in.
    pub owners: [u32; 2],
    /// Their family.
    pub family: u32,
    /// Carried on by that relay, for its new holder.
    pub relay: Option<u32>,
}

impl Trust {
    /// Region, slot and side.
    pub fn place(&self) -> (u32, u32, u8) {
        (self.left.region, self.left.slot, self.left.side)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Trusts {
    all: HashMap<u64, Trust>,
    /// The latest of each descriptor: a connection may be handed on again and again.
    by_cookie: HashMap<u64, u64>,
    next: u64,
    /// The descriptors, by cookie, for as long as somebody has them.
    alive: HashMap<u64, OwnedFd>,
    /// The next pause; none: the longest.
    pause: Option<Duration>,
    /// Regions may be nobody's any more.
    pub changed: bool,
}

impl Trusts {
    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Trust)> {
        self.all.iter().map(|(key, trust)| (*key, trust))
    }

    /// The processes whose regions are still needed.
    pub fn owners(&self) -> impl Iterator<Item = u32> {
        self.all.values().flat_map(|t| t.owners)
    }

    /// True when some connection of that family was left.
    pub fn has_family(&self, family: u32) -> bool {
        self.all.values().any(|t| t.family == family)
    }

    /// The latest of that descriptor.
    pub fn find(&self, cookie: u64) -> Option<(u64, Trust)> {
        let key = self.by_cookie.get(&cookie)?;
        Some((*key, *self.all.get(key)?))
    }

    /// What that relay carries on.
    pub fn behind(&self, relay: u32) -> Option<(u64, Trust)> {
        self.iter().find(|(_, t)| t.relay == Some(relay)).map(|(key, t)| (key, *t))
    }

    /// One more: the latest of its descriptor.
    pub fn add(&mut self, trust: Trust) {
        self.next += 1;
        self.all.insert(self.next, trust);
        if trust.cookie != 0 {
            self.by_cookie.insert(trust.cookie, self.next);
        }
    }

    /// That relay carries it on.
    pub fn carried(&mut self, key: u64, relay: u32) {
        if let Some(trust) = self.all.get_mut(&key) {
            trust.relay = Some(relay);
        }
    }

    /// One fewer.
    pub fn remove(&mut self, key: u64) -> Option<Trust> {
        let trust = self.all.remove(&key)?;
        if self.by_cookie.get(&trust.cookie) == Some(&key) {
            self.by_cookie.remove(&trust.cookie);
        }
        self.changed = true;
        Some(trust)
    }

    /// Remembers `fd` while somebody else has it, too.
    pub fn watch(&mut self, fd: &OwnedFd, cookie: u64) -> rustix::io::Result<()> {
        let set = match self.alive.entry(cookie % SETS) {
            Entry::Occupied(set) => set.into_mut(),
            Entry::Vacant(place) => place.insert(epoll::create(epoll::CreateFlags::CLOEXEC)?),
        };
        match epoll::add(&*set, fd, epoll::EventData::new_u64(cookie), epoll::EventFlags::empty()) {
            // Known from an earlier journey.
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    /// Of these, the cookies whose descriptors nobody has any more. None where the kernel does not say.
    pub fn forsaken(&self, cookies: &[u64]) -> HashSet<u64> {
        let places: HashSet<u64> = cookies.iter().map(|cookie| cookie % SETS).collect();
        let living: HashMap<u64, Option<HashSet<u64>>> =
            places.into_iter().map(|place| (place, self.living(place))).collect();
        let is_gone = |cookie: &u64| {
            living.get(&(cookie % SETS)).and_then(Option::as_ref).is_some_and(|set| !set.contains(cookie))
        };
        cookies.iter().copied().filter(is_gone).collect()
    }

    fn living(&self, place: u64) -> Option<HashSet<u64>> {
        let set = self.alive.get(&place)?.as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{set}")).ok()?;
        let cookie = |line: &str| {
            let word = line.strip_prefix("tfd:")?.split("data:").nth(1)?.split_whitespace().next()?;
            u64::from_str_radix(word, 16).ok()
        };
        Some(text.lines().filter_map(cookie).collect())
    }

    /// Somebody has just let go: their descriptors are closed in a moment.
    pub fn hurry(&mut self) {
        self.pause = Some(PAUSE.0);
    }

    /// When to look again.
    pub fn later(&mut self, now: Instant) -> Instant {
        let pause = self.pause.unwrap_or(PAUSE.1);
        self.pause = Some((pause * 2).min(PAUSE.1));
        now + pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket};

    #[test]
    fn who_has_a_descriptor_the_kernel_knows() {
        let mut trusts = Trusts::default();
        let sockets: Vec<OwnedFd> =
            (0..3).map(|_| socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()).collect();
        let cookies = [7, 7 + SETS, 8];
        for (fd, cookie) in sockets.iter().zip(cookies) {
            // As the service gets it: a descriptor of its own, which it closes.
            trusts.watch(&fd.try_clone().unwrap(), cookie).unwrap();
        }
        assert!(trusts.forsaken(&cookies).is_empty());
        let mut sockets = sockets.into_iter();
        drop(sockets.next());
        assert_eq!(trusts.forsaken(&cookies), HashSet::from([7]));
        drop(sockets);
        assert_eq!(trusts.forsaken(&cookies).len(), 3);
        assert!(trusts.forsaken(&[9]).is_empty(), "of which nothing is known");
    }
}
