//! Descriptors of other processes, known by their cookies, for as long as somebody has them: the service keeps them in epoll sets, where
//! each vanishes with its last holder.

use rustix::event::epoll;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// They are spread over so many sets, so that a look at one of them need not read of all. A set is a descriptor of the service's.
#[derive(Debug, Default)]
pub struct Alive<const SETS: u64> {
    sets: HashMap<u64, OwnedFd>,
}

impl<const SETS: u64> Alive<SETS> {
    /// Remembers `fd` while somebody else has it, too.
    pub fn watch(&mut self, fd: &OwnedFd, cookie: u64) -> rustix::io::Result<()> {
        let set = match self.sets.entry(cookie % SETS) {
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
        let set = self.sets.get(&place)?.as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{set}")).ok()?;
        let cookie = |line: &str| {
            let word = line.strip_prefix("tfd:")?.split("data:").nth(1)?.split_whitespace().next()?;
            u64::from_str_radix(word, 16).ok()
        };
        Some(text.lines().filter_map(cookie).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket};

    #[test]
    fn who_has_a_descriptor_the_kernel_knows() {
        const SETS: u64 = 64;
        let mut alive = Alive::<SETS>::default();
        let sockets: Vec<OwnedFd> =
            (0..3).map(|_| socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()).collect();
        let cookies = [7, 7 + SETS, 8];
        for (fd, cookie) in sockets.iter().zip(cookies) {
            // As the service gets it: a descriptor of its own, which it closes.
            alive.watch(&fd.try_clone().unwrap(), cookie).unwrap();
        }
        assert!(alive.forsaken(&cookies).is_empty());
        let mut sockets = sockets.into_iter();
        drop(sockets.next());
        assert_eq!(alive.forsaken(&cookies), HashSet::from([7]));
        drop(sockets);
        assert_eq!(alive.forsaken(&cookies).len(), 3);
        assert!(alive.forsaken(&[9]).is_empty(), "of which nothing is known");
    }
}
