//! Epoll sets in which the service watches sockets of other processes, by their `SO_COOKIE`. The kernel drops a socket from a set when the
//! last process closes its descriptor, and reports a listening socket that stops listening at once.
//!
//! The kernel tells what a set still has by the set's `fdinfo`, a line for each socket. So that a look at one socket costs the same however
//! many there are, a set has few sockets, all of one user. A socket is added after the service has decided to keep what it stands for.

use crate::registry::process::descriptors::Charge;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Most sockets in one set. A look at a set of so many takes about 20 us.
const SET_MAX: usize = 32;

/// Sockets that are watched, in sets.
#[derive(Debug)]
pub struct Alive {
    sets: BTreeMap<u32, Set>,
    /// The set of each socket, by cookie.
    places: HashMap<u64, u32>,
    users: HashMap<u32, Sets>,
    next: u32,
    /// An epoll set of all sets: readable when a watched socket has reported a hang-up. `None`: hang-ups are not asked for.
    ended: Option<OwnedFd>,
    /// How many sockets each look was about.
    #[cfg(test)]
    pub asked: Vec<usize>,
}

#[derive(Debug)]
struct Set {
    fd: Arc<OwnedFd>,
    uid: u32,
    _charge: Charge,
    /// The cookies in it; true: the socket has been added.
    sockets: HashMap<u64, bool>,
}

/// The sets of one user.
#[derive(Debug, Default)]
struct Sets {
    all: Vec<u32>,
    /// The place in `all` of the set that is filled now.
    turn: usize,
}

/// Adds the socket `fd` to a set. It stays there after this process closes `fd`, for as long as another process has it open.
pub fn watch(set: BorrowedFd<'_>, fd: &OwnedFd, cookie: u64) -> rustix::io::Result<()> {
    // No event mask: the kernel always reports EPOLLHUP and EPOLLERR. Edge-triggered: once for each change of the socket.
    match epoll::add(set, fd, epoll::EventData::new_u64(cookie), epoll::EventFlags::ET) {
        // The socket is in the set already.
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// The events that a set reports now, by their data.
fn events_of(set: BorrowedFd<'_>) -> Vec<u64> {
    let mut events = Vec::with_capacity(64);
    let timeout = rustix::event::Timespec::default();
    let _ = epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
    events.into_iter().map(|event: epoll::Event| event.data.u64()).collect()
}

impl Set {
    /// Forgets the sockets that the kernel has dropped. Changes nothing where the kernel shows no `fdinfo`.
    fn look(&mut self) -> Vec<u64> {
        let path = format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd());
        let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
        let cookie = |line: &str| {
            let word = line.strip_prefix("tfd:")?.split("data:").nth(1)?.split_whitespace().next()?;
            u64::from_str_radix(word, 16).ok()
        };
        let living: HashSet<u64> = text.lines().filter_map(cookie).collect();
        let is_gone = |(cookie, is_added): (&u64, &bool)| *is_added && !living.contains(cookie);
        let gone: Vec<u64> = self.sockets.iter().filter(|socket| is_gone(*socket)).map(|(c, _)| *c).collect();
        self.sockets.retain(|cookie, _| !gone.contains(cookie));
        gone
    }
}

impl Alive {
    /// Watches nothing yet. With `tells_ends` hang-ups of the sockets can be heard.
    pub fn open(tells_ends: bool) -> rustix::io::Result<Self> {
        let ended = tells_ends.then(|| epoll::create(epoll::CreateFlags::CLOEXEC)).transpose()?;
        Ok(Self {
            sets: BTreeMap::new(),
            places: HashMap::new(),
            users: HashMap::new(),
            next: 0,
            ended,
            #[cfg(test)]
            asked: Vec::new(),
        })
    }

    /// The descriptor that is readable when a socket has reported a hang-up.
    pub fn ends(&self) -> Option<BorrowedFd<'_>> {
        self.ended.as_ref().map(|set| set.as_fd())
    }

    /// Number of sets that user has, each with a descriptor.
    #[cfg(test)]
    pub fn sets_of(&self, uid: u32) -> usize {
        self.users.get(&uid).map_or(0, |sets| sets.all.len())
    }

    /// Chooses the set for a socket that is shown now and that the service keeps for user `uid`. `None`: the socket is watched already. Else
    /// it counts as watched from now on; [`Self::added`] says whether it was.
    ///
    /// # Errors
    /// The kernel's error, or EMFILE: a further set is needed, and `charge` gives none for its descriptor.
    pub fn place(
        &mut self,
        cookie: u64,
        uid: u32,
        charge: impl FnOnce() -> Option<Charge>,
    ) -> rustix::io::Result<Option<Arc<OwnedFd>>> {
        if self.places.contains_key(&cookie) {
            return Ok(None);
        }
        let id = match self.with_room(uid) {
            Some(id) => id,
            None => self.new_set(uid, charge().ok_or(Errno::MFILE)?)?,
        };
        let Some(set) = self.sets.get_mut(&id) else { return Err(Errno::INVAL) };
        set.sockets.insert(cookie, false);
        self.places.insert(cookie, id);
        Ok(Some(set.fd.clone()))
    }

    /// A set of that user with room. Looks into one full set at most.
    fn with_room(&mut self, uid: u32) -> Option<u32> {
        let has_room =
            |sets: &BTreeMap<u32, Set>, id| sets.get(&id).is_some_and(|set| set.sockets.len() < SET_MAX);
        let sets = self.users.get_mut(&uid)?;
        let id = *sets.all.get(sets.turn)?;
        if has_room(&self.sets, id) {
            return Some(id);
        }
        sets.turn = (sets.turn + 1) % sets.all.len();
        let next = sets.all[sets.turn];
        self.look_at(next);
        has_room(&self.sets, next).then_some(next)
    }

    fn new_set(&mut self, uid: u32, charge: Charge) -> rustix::io::Result<u32> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let id = self.next;
        if let Some(ended) = &self.ended {
            epoll::add(ended, &fd, epoll::EventData::new_u64(u64::from(id)), epoll::EventFlags::IN)?;
        }
        self.next = self.next.wrapping_add(1);
        self.sets.insert(id, Set { fd: Arc::new(fd), uid, _charge: charge, sockets: HashMap::new() });
        let sets = self.users.entry(uid).or_default();
        sets.turn = sets.all.len();
        sets.all.push(id);
        Ok(id)
    }

    /// The socket was added to the set that was chosen, or was not.
    pub fn added(&mut self, cookie: u64, is_added: bool) {
        let Some(set) = self.places.get(&cookie).and_then(|id| self.sets.get_mut(id)) else { return };
        if is_added {
            set.sockets.insert(cookie, true);
            return;
        }
        set.sockets.remove(&cookie);
        self.places.remove(&cookie).into_iter().for_each(|id| self.close_if_empty(id));
    }

    /// Forgets what the kernel has dropped from a set. A set without sockets is kept if its user has no other.
    fn look_at(&mut self, id: u32) {
        let Some(set) = self.sets.get_mut(&id) else { return };
        let gone = set.look();
        for cookie in gone {
            self.places.remove(&cookie);
        }
    }

    fn close_if_empty(&mut self, id: u32) {
        let Some(Set { uid, .. }) = self.sets.get(&id).filter(|set| set.sockets.is_empty()) else { return };
        if let Some(sets) = self.users.get_mut(uid) {
            sets.all.retain(|other| *other != id);
            sets.turn = 0;
            if sets.all.is_empty() {
                self.users.remove(uid);
            }
        }
        if let (Some(set), Some(ended)) = (self.sets.remove(&id), &self.ended) {
            let _ = epoll::delete(ended, &set.fd);
        }
    }

    /// Cookies of sockets that have reported a hang-up since the last call: listening sockets that no longer listen.
    pub fn ended(&self) -> Vec<u64> {
        let Some(ended) = &self.ended else { return Vec::new() };
        let sets = events_of(ended.as_fd()).into_iter().filter_map(|id| self.sets.get(&(id as u32)));
        sets.flat_map(|set| events_of(set.fd.as_fd())).collect()
    }

    /// Returns those of `cookies` that no process has an open descriptor of any more. Empty where the kernel shows no `fdinfo`. Looks into
    /// as many sets as there are cookies at most.
    pub fn forsaken(&mut self, cookies: &[u64]) -> HashSet<u64> {
        #[cfg(test)]
        self.asked.push(cookies.len());
        let sets: HashSet<u32> =
            cookies.iter().filter_map(|cookie| self.places.get(cookie).copied()).collect();
        sets.iter().for_each(|id| self.look_at(*id));
        let gone = cookies.iter().copied().filter(|cookie| !self.places.contains_key(cookie)).collect();
        sets.into_iter().for_each(|id| self.close_if_empty(id));
        gone
    }
}

/// The sockets of other processes that the service watches.
#[derive(Debug)]
pub struct Watched {
    /// Listening sockets.
    pub listeners: Alive,
    /// Sockets of connections that were left with the service.
    pub connections: Alive,
}

impl Watched {
    /// Watches nothing yet.
    pub fn open() -> rustix::io::Result<Self> {
        Ok(Self { listeners: Alive::open(true)?, connections: Alive::open(false)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::process::descriptors::{Descriptors, Payer};
    use rustix::net::{AddressFamily, SocketType, socket};
    use std::net::TcpListener;

    const USER: u32 = 7;

    fn charge() -> Option<Charge> {
        let who = Payer { uid: USER, has_share: false };
        Descriptors::open().charge(who, 1, 0)
    }

    fn unused() -> OwnedFd {
        socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
    }

    /// The service gets a descriptor of its own and closes it; the test's own one stays open.
    fn add(alive: &mut Alive, fd: &OwnedFd, cookie: u64) {
        let set = alive.place(cookie, USER, charge).unwrap().expect("it is new");
        watch(set.as_fd(), &fd.try_clone().unwrap(), cookie).unwrap();
        alive.added(cookie, true);
    }

    #[test]
    fn the_kernel_knows_which_descriptors_are_still_open() {
        let mut alive = Alive::open(false).unwrap();
        let sockets: Vec<OwnedFd> = (0..3).map(|_| unused()).collect();
        let cookies = [7, 8, 9];
        sockets.iter().zip(cookies).for_each(|(fd, cookie)| add(&mut alive, fd, cookie));
        assert!(alive.forsaken(&cookies).is_empty());
        let mut sockets = sockets.into_iter();
        drop(sockets.next());
        assert_eq!(alive.forsaken(&cookies), HashSet::from([7]));
        drop(sockets);
        assert_eq!(alive.forsaken(&cookies).len(), 3);
        assert!(alive.forsaken(&[10]).contains(&10), "one that was never there");
        assert_eq!(alive.sets_of(USER), 0, "a set without sockets is closed");
    }

    #[test]
    fn a_set_has_few_sockets_of_one_user_and_is_filled_again() {
        let mut alive = Alive::open(false).unwrap();
        let mut sockets: Vec<OwnedFd> = (0..3 * SET_MAX).map(|_| unused()).collect();
        sockets.iter().zip(0..).for_each(|(fd, cookie)| add(&mut alive, fd, cookie));
        assert_eq!(alive.sets_of(USER), 3);
        assert!(alive.sets.values().all(|set| set.sockets.len() == SET_MAX));
        assert_eq!(alive.place(0, USER, || None).unwrap().map(|_| ()), None, "it is there already");
        assert_eq!(alive.place(1000, USER, || None).map(|_| ()), Err(Errno::MFILE), "no set has room");
        let other = alive.place(1001, USER + 1, charge).unwrap();
        assert!(other.is_some() && (alive.sets_of(USER), alive.sets_of(USER + 1)) == (3, 1));
        // The user's sockets are closed one after the other, and new ones come: no further set is made.
        for cookie in 2000..2000 + 3 * SET_MAX as u64 {
            drop(sockets.remove(0));
            let fd = unused();
            add(&mut alive, &fd, cookie);
            sockets.push(fd);
        }
        assert!(alive.sets_of(USER) <= 6, "{}", alive.sets_of(USER));
    }

    #[test]
    fn a_socket_that_is_about_to_be_added_counts_as_open() {
        let mut alive = Alive::open(true).unwrap();
        assert!(alive.place(5, USER, charge).unwrap().is_some());
        assert!(alive.forsaken(&[5]).is_empty());
        alive.added(5, false);
        assert_eq!((alive.forsaken(&[5]), alive.sets_of(USER)), (HashSet::from([5]), 0));
    }

    #[test]
    fn a_listening_socket_that_is_shut_down_is_told_each_time() {
        let mut alive = Alive::open(true).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = OwnedFd::from(listener);
        add(&mut alive, &fd, 5);
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
