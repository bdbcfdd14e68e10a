//! Epoll sets in which the service watches sockets of other processes, by their `SO_COOKIE`. The kernel drops a socket from a set when the
//! last process closes its descriptor, and reports a listening socket that stops listening at once.

use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Several epoll sets. A cookie always maps to the same set, so that a look at one socket reads only that set's `fdinfo`.
#[derive(Clone, Debug)]
pub struct Alive {
    sets: Arc<[OwnedFd]>,
}

impl Alive {
    /// Makes `count` empty epoll sets.
    pub fn open(count: usize) -> rustix::io::Result<Self> {
        let sets: rustix::io::Result<Vec<OwnedFd>> =
            (0..count).map(|_| epoll::create(epoll::CreateFlags::CLOEXEC)).collect();
        Ok(Self { sets: sets?.into() })
    }

    /// The descriptors of all epoll sets.
    pub fn sets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sets.iter().map(|set| set.as_fd())
    }

    /// Index of the set that holds the sockets with that cookie.
    fn place(&self, cookie: u64) -> usize {
        (cookie % self.sets.len() as u64) as usize
    }

    /// Watches the socket `fd`. It stays in the set after the service closes `fd`, for as long as another process has it open.
    pub fn watch(&self, fd: &OwnedFd, cookie: u64) -> rustix::io::Result<()> {
        // No event mask: the kernel always reports EPOLLHUP and EPOLLERR. Edge-triggered: once for each change of the socket.
        let flags = epoll::EventFlags::ET;
        match epoll::add(&self.sets[self.place(cookie)], fd, epoll::EventData::new_u64(cookie), flags) {
            // The socket is in the set already.
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    /// Cookies of sockets that have reported a hang-up since the last call: listening sockets that no longer listen.
    pub fn ended(&self) -> Vec<u64> {
        let mut events = Vec::with_capacity(64);
        let mut cookies = Vec::new();
        for set in self.sets.iter() {
            let timeout = rustix::event::Timespec::default();
            let _ = epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
            cookies.extend(events.drain(..).map(|event: epoll::Event| event.data.u64()));
        }
        cookies
    }

    /// Returns those of `cookies` that no process has an open descriptor of any more. Empty where the kernel shows no `fdinfo`.
    pub fn forsaken(&self, cookies: &[u64]) -> HashSet<u64> {
        let places: HashSet<usize> = cookies.iter().map(|cookie| self.place(*cookie)).collect();
        let living: HashMap<usize, Option<HashSet<u64>>> =
            places.into_iter().map(|place| (place, self.living(place))).collect();
        let is_gone = |cookie: &u64| {
            let set = living.get(&self.place(*cookie)).and_then(Option::as_ref);
            set.is_some_and(|set| !set.contains(cookie))
        };
        cookies.iter().copied().filter(is_gone).collect()
    }

    fn living(&self, place: usize) -> Option<HashSet<u64>> {
        let set = self.sets.get(place)?.as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{set}")).ok()?;
        let cookie = |line: &str| {
            let word = line.strip_prefix("tfd:")?.split("data:").nth(1)?.split_whitespace().next()?;
            u64::from_str_radix(word, 16).ok()
        };
        Some(text.lines().filter_map(cookie).collect())
    }
}

/// Epoll sets that watch sockets of other processes.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Listening sockets, in one set: it is readable when one of them no longer listens.
    pub listeners: Alive,
    /// Sockets of connections that were left with the service.
    pub connections: Alive,
}

impl Watched {
    /// Makes both kinds of sets, without members.
    pub fn open() -> rustix::io::Result<Self> {
        Ok(Self { listeners: Alive::open(1)?, connections: Alive::open(16)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket};
    use std::net::TcpListener;

    #[test]
    fn the_kernel_knows_which_descriptors_are_still_open() {
        const SETS: u64 = 16;
        let alive = Alive::open(SETS as usize).unwrap();
        let sockets: Vec<OwnedFd> =
            (0..3).map(|_| socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()).collect();
        let cookies = [7, 7 + SETS, 8];
        for (fd, cookie) in sockets.iter().zip(cookies) {
            // The service gets a descriptor of its own and closes it; the test's own one stays open.
            alive.watch(&fd.try_clone().unwrap(), cookie).unwrap();
        }
        assert!(alive.forsaken(&cookies).is_empty());
        let mut sockets = sockets.into_iter();
        drop(sockets.next());
        assert_eq!(alive.forsaken(&cookies), HashSet::from([7]));
        drop(sockets);
        assert_eq!(alive.forsaken(&cookies).len(), 3);
        assert!(alive.forsaken(&[9]).contains(&9), "one that was never there");
    }

    #[test]
    fn a_listening_socket_that_is_shut_down_is_told_each_time() {
        let alive = Alive::open(1).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = OwnedFd::from(listener);
        alive.watch(&fd.try_clone().unwrap(), 5).unwrap();
        assert!(alive.ended().is_empty());
        for _ in 0..2 {
            rustix::net::shutdown(&fd, rustix::net::Shutdown::Read).unwrap();
            assert_eq!(alive.ended(), [5]);
            assert!(alive.ended().is_empty(), "told once");
            rustix::net::listen(&fd, 1).unwrap();
        }
        assert!(alive.ended().is_empty());
    }
}
