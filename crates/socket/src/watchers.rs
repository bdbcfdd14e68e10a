//! Who wants to know what happens to a socket: nobody, most of the time, or one set; then no memory of its own is needed.

use crate::client::lock;
use crate::context::Context;
use crate::epoll::Set;
use crate::few::Few;
use crate::sock::{Moving, Sock};
use queue::stream::watch;
use rustix::fd::RawFd;
use std::mem;
use std::sync::{Arc, MutexGuard, Weak};

/// See the module.
#[derive(Debug, Default)]
pub enum Watchers {
    /// The usual case of a thread per connection that is busy, and of a socket not yet in a set.
    #[default]
    Nobody,
    /// One thread that sleeps right now.
    Thread(Arc<Context>),
    /// One set that holds it, with the descriptor it knows it by.
    Set(Weak<Set>, RawFd),
    /// More than one of either.
    Many(Box<Crowd>),
}

/// Several of them.
#[derive(Debug, Default)]
pub struct Crowd {
    /// In the order in which they fell asleep.
    threads: Vec<Arc<Context>>,
    /// In the order in which it was added.
    sets: Vec<(Weak<Set>, RawFd)>,
}

const _: () = assert!(size_of::<Watchers>() == 16);

impl Watchers {
    /// A thread is about to sleep.
    pub fn add_thread(&mut self, context: Arc<Context>) {
        match self {
            Self::Nobody => *self = Self::Thread(context),
            Self::Many(crowd) => crowd.threads.push(context),
            _ => self.change(|crowd| crowd.threads.push(context)),
        }
    }

    /// It sleeps no more; once if it sleeps several times. Beside a set the room for it stays: it will sleep again.
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

    /// A set holds it; how many do now.
    pub fn add_set(&mut self, set: Weak<Set>, fd: RawFd) -> usize {
        match self {
            Self::Nobody => *self = Self::Set(set, fd),
            _ => self.change(|crowd| crowd.sets.push((set, fd))),
        }
        self.sets().count()
    }

    /// It holds it no more by that descriptor.
    pub fn remove_set(&mut self, set: &Set, fd: RawFd) {
        let is_it = |s: &Weak<Set>, f: RawFd| f == fd && std::ptr::eq(s.as_ptr(), set);
        match self {
            Self::Nobody | Self::Thread(_) => {}
            Self::Set(s, f) if is_it(s, *f) => *self = Self::Nobody,
            Self::Set(..) => {}
            Self::Many(_) => self.change(|crowd| crowd.sets.retain(|(s, f)| !is_it(s, *f))),
        }
    }

    /// No thread sleeps here: in a forked child.
    pub fn forget_threads(&mut self) {
        match self {
            Self::Nobody | Self::Set(..) => {}
            Self::Thread(_) => *self = Self::Nobody,
            Self::Many(_) => self.change(|crowd| crowd.threads.clear()),
        }
    }

    /// Threads that sleep right now.
    pub fn threads(&self) -> impl DoubleEndedIterator<Item = &Arc<Context>> {
        let (one, many) = match self {
            Self::Thread(context) => (Some(context), &[][..]),
            Self::Many(crowd) => (None, &crowd.threads[..]),
            Self::Nobody | Self::Set(..) => (None, &[][..]),
        };
        one.into_iter().chain(many)
    }

    /// Sets that are still there.
    pub fn sets(&self) -> impl Iterator<Item = (Arc<Set>, RawFd)> {
        let (one, many) = match self {
            Self::Set(set, fd) => (Some((set, *fd)), &[][..]),
            Self::Many(crowd) => (None, &crowd.sets[..]),
            Self::Nobody | Self::Thread(_) => (None, &[][..]),
        };
        let all = one.into_iter().chain(many.iter().map(|(set, fd)| (set, *fd)));
        all.filter_map(|(set, fd)| Some((set.upgrade()?, fd)))
    }

    /// Changes them as a crowd, and makes the form small again where one or none is left.
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
    /// A set wants to know.
    pub fn join_set(&self, set: Weak<Set>, fd: RawFd) {
        let mut moving = lock(&self.moving);
        if moving.watchers.add_set(set, fd) > 1 {
            crate::fork::dispute();
        }
        self.announce(&moving.watchers);
    }

    /// A set does not want to know any more. What it was told last, others may be waiting for.
    pub fn leave_set(&self, set: &Set, fd: RawFd) {
        let mut moving = lock(&self.moving);
        moving.watchers.remove_set(set, fd);
        self.announce_left(moving);
    }

    /// Another context speaks for a set now, or the role was just decided: threads that sleep on it look where its news comes now.
    pub fn announce_again(&self) {
        let moving = lock(&self.moving);
        self.announce(&moving.watchers);
        moving.watchers.threads().for_each(|context| context.wake());
    }

    /// A thread is about to sleep on it: it is told first, and passes on to the others what it is told.
    pub fn enter(&self, context: &Arc<Context>) {
        let mut moving = lock(&self.moving);
        moving.watchers.add_thread(context.clone());
        self.announce(&moving.watchers);
    }

    /// It sleeps no more.
    pub fn leave(&self, context: &Arc<Context>) {
        let mut moving = lock(&self.moving);
        moving.watchers.remove_thread(context);
        self.announce_left(moving);
    }

    /// Who has just gone was told, perhaps: the others look for themselves.
    fn announce_left(&self, moving: MutexGuard<'_, Moving>) {
        self.announce(&moving.watchers);
        let alone = matches!(moving.watchers, Watchers::Nobody);
        drop(moving);
        if !alone {
            self.pass_on();
        }
    }

    /// Everybody who wants to know looks again.
    pub fn pass_on(&self) {
        let (threads, sets): (Few<_, 2>, Few<_, 2>) = {
            let moving = lock(&self.moving);
            (moving.watchers.threads().cloned().collect(), moving.watchers.sets().collect())
        };
        threads.iter().for_each(|context| context.wake());
        sets.iter().for_each(|(set, fd)| set.poke(*fd));
    }

    /// True when one of our sets holds it.
    pub fn is_in_set(&self) -> bool {
        lock(&self.moving).watchers.sets().next().is_some()
    }

    /// Sets that hold it.
    pub fn sets(&self) -> Vec<(Arc<Set>, RawFd)> {
        lock(&self.moving).watchers.sets().collect()
    }

    /// Writes into our half who is told: the thread that came last, else the first set.
    fn announce(&self, watchers: &Watchers) {
        let Some(link) = self.link().filter(|_| !self.is_closed()) else { return };
        let thread = watchers.threads().next_back().map(|c| c.number);
        let context = thread.or_else(|| watchers.sets().find_map(|(set, _)| set.context_number()));
        if !link.has_moved() {
            watch(link.halves().0, context);
        }
        if link.is_queue() {
            crate::listener::each_other_queue(self, link, |queue| watch(queue.halves().0, context));
        }
    }
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
