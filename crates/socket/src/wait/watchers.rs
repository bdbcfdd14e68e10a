//! The threads and epoll sets that are told of a socket's news: usually none, or one set; then no extra memory is needed.

use crate::epoll::Set;
use crate::socket::{Moving, Sock};
use queue::nap;
use queue::stream::watch;
use rustix::fd::RawFd;
use session::lock;
use session::sleeper::Context;
use session::sys::small_vec::Few;
use shm::{Half, TRUST_CONTEXT};
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, Weak};

/// The watchers of one socket.
#[derive(Debug, Default)]
pub enum Watchers {
    /// No watcher: the usual case of a busy thread per connection, and of a socket not yet in a set.
    #[default]
    Nobody,
    /// One thread that sleeps now.
    Thread(Arc<Context>),
    /// One epoll set that holds the socket, and the descriptor under which it does.
    Set(Weak<Set>, RawFd),
    /// Several threads or sets.
    Many(Box<Crowd>),
}

/// The watchers of a socket that has more than one.
#[derive(Debug, Default)]
pub struct Crowd {
    /// Sleeping threads, in the order in which they fell asleep.
    threads: Vec<Arc<Context>>,
    /// Sets that hold the socket, with the descriptor, in the order in which it was added.
    sets: Vec<(Weak<Set>, RawFd)>,
}

const _: () = assert!(size_of::<Watchers>() == 16);

impl Watchers {
    /// Adds a thread that is about to sleep.
    pub fn add_thread(&mut self, context: Arc<Context>) {
        match self {
            Self::Nobody => *self = Self::Thread(context),
            Self::Many(crowd) => crowd.threads.push(context),
            _ => self.change(|crowd| crowd.threads.push(context)),
        }
    }

    /// Removes a thread that no longer sleeps (one entry, if it has several). With a set left the memory is kept: it will sleep again.
    pub fn remove_thread(&mut self, context: &Arc<Context>) {
        let remove = |crowd: &mut Crowd| {
            if let Some(i) = crowd.threads.iter().rposition(|c| Arc::ptr_eq(c, context)) {
                crowd.threads.remove(i);
            }
        };
        match self {
            Self::Nobody | Self::Set(..) => {}
            Self::Thread(only) if Arc::ptr_eq(only, context) => *self = Self::Nobody,
            Self::Thread(_) => {}
            Self::Many(crowd) if crowd.sets.is_empty() => self.change(remove),
            Self::Many(crowd) => remove(crowd),
        }
    }

    /// Adds a set that holds the socket; returns how many do now.
    pub fn add_set(&mut self, set: Weak<Set>, fd: RawFd) -> usize {
        match self {
            Self::Nobody => *self = Self::Set(set, fd),
            _ => self.change(|crowd| crowd.sets.push((set, fd))),
        }
        self.sets().count()
    }

    /// Removes the set's entry for the descriptor `fd`.
    pub fn remove_set(&mut self, set: &Set, fd: RawFd) {
        let is_it = |s: &Weak<Set>, f: RawFd| f == fd && std::ptr::eq(s.as_ptr(), set);
        match self {
            Self::Nobody | Self::Thread(_) => {}
            Self::Set(s, f) if is_it(s, *f) => *self = Self::Nobody,
            Self::Set(..) => {}
            Self::Many(_) => self.change(|crowd| crowd.sets.retain(|(s, f)| !is_it(s, *f))),
        }
    }

    /// Removes all threads: in a forked child none of them exists.
    pub fn forget_threads(&mut self) {
        match self {
            Self::Nobody | Self::Set(..) => {}
            Self::Thread(_) => *self = Self::Nobody,
            Self::Many(_) => self.change(|crowd| crowd.threads.clear()),
        }
    }

    /// The threads that sleep now.
    pub fn threads(&self) -> impl DoubleEndedIterator<Item = &Arc<Context>> {
        let (one, many) = match self {
            Self::Thread(context) => (Some(context), &[][..]),
            Self::Many(crowd) => (None, &crowd.threads[..]),
            Self::Nobody | Self::Set(..) => (None, &[][..]),
        };
        one.into_iter().chain(many)
    }

    /// The sets that still exist.
    pub fn sets(&self) -> impl Iterator<Item = (Arc<Set>, RawFd)> {
        let (one, many) = match self {
            Self::Set(set, fd) => (Some((set, *fd)), &[][..]),
            Self::Many(crowd) => (None, &crowd.sets[..]),
            Self::Nobody | Self::Thread(_) => (None, &[][..]),
        };
        let all = one.into_iter().chain(many.iter().map(|(set, fd)| (set, *fd)));
        all.filter_map(|(set, fd)| Some((set.upgrade()?, fd)))
    }

    /// Changes the watchers as a [`Crowd`], and goes back to the small form if at most one is left.
    fn change(&mut self, how: impl FnOnce(&mut Crowd)) {
        let mut crowd = match mem::take(self) {
            Self::Nobody => Box::default(),
            Self::Thread(context) => Box::new(Crowd { threads: vec![context], sets: Vec::new() }),
            Self::Set(set, fd) => Box::new(Crowd { threads: Vec::new(), sets: vec![(set, fd)] }),
            Self::Many(crowd) => crowd,
        };
        how(&mut crowd);
        *self = match (crowd.threads.len(), crowd.sets.len()) {
            (1, 0) => crowd.threads.pop().map_or(Self::Nobody, Self::Thread),
            (0, 1) => crowd.sets.pop().map_or(Self::Nobody, |(set, fd)| Self::Set(set, fd)),
            (0, 0) => Self::Nobody,
            _ => Self::Many(crowd),
        };
    }
}

impl Sock {
    /// Adds an epoll set that holds the socket.
    pub fn join_set(&self, set: Weak<Set>, fd: RawFd) {
        let mut moving = lock(&self.moving);
        if moving.watchers.add_set(set, fd) > 1 {
            session::host::dispute();
        }
        self.announce(&moving.watchers);
    }

    /// Removes an epoll set. The news that it was told last may concern other watchers, so they look as well.
    pub fn leave_set(&self, set: &Set, fd: RawFd) {
        let mut moving = lock(&self.moving);
        moving.watchers.remove_set(set, fd);
        self.announce_left(moving);
    }

    /// After a set got another context, or the role was decided: writes the watcher again, and wakes the sleeping threads, which then
    /// listen to the doorbell of the socket's present region.
    pub fn announce_again(&self) {
        let moving = lock(&self.moving);
        self.announce(&moving.watchers);
        moving.watchers.threads().for_each(|context| context.wake());
    }

    /// Adds a thread that is about to sleep: the other side now tells this thread, which passes news on to the other watchers.
    /// Returns the word on which the thread naps if its context is bare.
    pub fn enter(&self, context: &Arc<Context>) -> u32 {
        let mut moving = lock(&self.moving);
        moving.watchers.add_thread(context.clone());
        self.announce(&moving.watchers)
    }

    /// Removes a thread that no longer sleeps.
    pub fn leave(&self, context: &Arc<Context>) {
        let mut moving = lock(&self.moving);
        moving.watchers.remove_thread(context);
        self.announce_left(moving);
    }

    /// After a watcher was removed: it may have been the one that was told, so the other watchers look for themselves.
    fn announce_left(&self, moving: MutexGuard<'_, Moving>) {
        self.announce(&moving.watchers);
        let alone = matches!(moving.watchers, Watchers::Nobody);
        drop(moving);
        if !alone {
            self.pass_on();
        }
    }

    /// Makes every watcher look at the socket.
    pub fn pass_on(&self) {
        let (threads, sets): (Few<_, 2>, Few<_, 2>) = {
            let moving = lock(&self.moving);
            (moving.watchers.threads().cloned().collect(), moving.watchers.sets().collect())
        };
        threads.iter().for_each(|context| context.wake());
        sets.iter().for_each(|(set, fd)| set.poke(*fd));
    }

    /// True when one of our epoll sets holds the socket.
    pub fn is_in_set(&self) -> bool {
        lock(&self.moving).watchers.sets().next().is_some()
    }

    /// The epoll sets that hold the socket, with the descriptor.
    pub fn sets(&self) -> Vec<(Arc<Set>, RawFd)> {
        lock(&self.moving).watchers.sets().collect()
    }

    /// Writes into this side's half what the other side tells: the thread that came last, else the first set. Returns what stands there.
    fn announce(&self, watchers: &Watchers) -> u32 {
        let Some(link) = self.link().filter(|_| !self.is_closed()) else { return 0 };
        if link.has_moved() {
            return 0;
        }
        let own = link.halves().0;
        let thread = watchers.threads().next_back();
        let written = match thread.map(|context| (context.is_bare(), context.number)) {
            Some((true, _)) => nap::begin(own, session::nap::name(link.slot())),
            Some((false, number)) => announce_context(own, Some(number)),
            None => {
                let set = watchers.sets().find_map(|(set, _)| set.context_number());
                // Threads of other processes may nap on: they are told until they are woken.
                let is_shared = set.is_none() && session::host::may_dispute();
                match own.context.load(Ordering::Relaxed) {
                    naps if is_shared && nap::is_nap(naps) => naps,
                    _ => announce_context(own, set),
                }
            }
        };
        if link.has_moved() {
            // The service has taken the connection meanwhile, and is told now. Its watcher may have been overwritten here.
            return announce_context(own, Some(TRUST_CONTEXT));
        }
        written
    }
}

fn announce_context(own: &Half, context: Option<u32>) -> u32 {
    watch(own, context);
    context.map_or(0, |context| context + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptors(watchers: &Watchers) -> Vec<RawFd> {
        watchers.sets().map(|(_, fd)| fd).collect()
    }

    #[test]
    fn one_set_needs_no_memory_and_several_are_kept_apart() {
        let (a, b) = (Set::new(-1), Set::new(-1));
        let mut watchers = Watchers::default();
        assert_eq!(watchers.add_set(Arc::downgrade(&a), 3), 1);
        assert!(matches!(watchers, Watchers::Set(..)));
        assert_eq!(watchers.add_set(Arc::downgrade(&b), 3), 2);
        assert_eq!(watchers.add_set(Arc::downgrade(&a), 4), 3);
        watchers.remove_set(&b, 4);
        assert_eq!(descriptors(&watchers), [3, 3, 4]);
        watchers.remove_set(&a, 3);
        watchers.remove_set(&b, 3);
        assert_eq!(descriptors(&watchers), [4]);
        assert!(matches!(watchers, Watchers::Set(..)));
        watchers.forget_threads();
        assert_eq!(watchers.threads().count(), 0);
        watchers.remove_set(&a, 4);
        assert!(matches!(watchers, Watchers::Nobody));
    }

    #[test]
    fn a_set_that_is_gone_is_not_told() {
        let (a, b) = (Set::new(-1), Set::new(-1));
        let mut watchers = Watchers::default();
        watchers.add_set(Arc::downgrade(&a), 3);
        watchers.add_set(Arc::downgrade(&b), 4);
        drop(a);
        assert_eq!(descriptors(&watchers), [4]);
    }
}
