//! Sets in sets, and sets that are polled.
//!
//! The kernel's set holds the inner set's kernel descriptor: the kernel looks for loops and depth, and reports kernel events of the inner
//! set. For accelerated sockets we ask the inner sets, down to the last: bells ring for news that turn out to be none. So no descriptor of
//! ours may lie in a kernel's set that others look into. A thread that waits here waits as for several descriptors: on the kernel's set,
//! and on its own context, which follows those of all the sets.

use super::Set;
use super::kernel_set::{SETS, event, mark};
use crate::epoll::interest::{EDGE, ONCE};
use crate::wait::{self, Parties, Party};
use endpoint::stream::ready;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::fork_locks::Held;
use session::sleeper::Context;
use session::sys;
use session::sys::small_vec::Few;
use session::{detached, host, lock};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// Most levels of sets below the outermost, Linux's `EP_MAX_NESTS`: the kernel refuses more.
pub const SETS_DEEP: u32 = 4;

/// How a set relates to other sets.
#[derive(Debug, Default)]
pub(super) struct Family {
    /// The sets in this set.
    members: Mutex<Vec<Member>>,
    has_members: AtomicBool,
    /// The sets that hold this set, or held it.
    pub(super) outer: Mutex<Vec<Weak<Set>>>,
    /// The set holds others, is in another, or is polled.
    related: AtomicBool,
    /// Threads that sleep on this set, or are about to.
    pub(super) staying: AtomicU32,
    /// Threads that are waking those (see `rouse`).
    pub(super) rousing: AtomicU32,
}

impl Family {
    /// True when another set, or `poll`, looks into the kernel's set.
    pub(super) fn is_related(&self) -> bool {
        self.related.load(Ordering::SeqCst)
    }

    /// True when this set holds other sets.
    pub(super) fn has_members(&self) -> bool {
        self.has_members.load(Ordering::Acquire)
    }

    /// In a forked child: none of the threads that slept is here.
    pub(super) fn renew(&self) {
        self.staying.store(0, Ordering::SeqCst);
        self.rousing.store(0, Ordering::SeqCst);
    }
}

/// The result of a look at the accelerated part of a set.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// A wait would report an event.
    pub is_ready: bool,
    /// Number of reportable events so far.
    edges: u64,
}

/// A set that another set holds.
#[derive(Debug, Clone)]
struct Member {
    /// The descriptor under which it was added.
    fd: RawFd,
    set: Arc<Set>,
    /// Wanted events and flags, as given to `epoll_ctl`.
    events: u32,
    /// The data word, as given to `epoll_ctl`.
    data: u64,
    /// False once `EPOLLONESHOT` has reported.
    armed: bool,
    /// Edge-triggered: `Seen::edges` at the last report.
    reported: Option<u64>,
}

impl Member {
    fn is(&self, fd: RawFd, set: &Arc<Set>) -> bool {
        self.fd == fd && Arc::ptr_eq(&self.set, set)
    }

    /// The wanted events to report now; 0: none.
    fn due(&self, seen: Seen) -> u32 {
        let is_news = self.events & EDGE == 0 || self.reported != Some(seen.edges);
        if self.armed && seen.is_ready && is_news { self.events & (ready::IN | ready::RDNORM) } else { 0 }
    }
}

/// An inner set's entry in the kernel's set.
fn in_kernel(fd: RawFd, events: u32) -> libc::epoll_event {
    event(events, mark(SETS + fd as u32))
}

/// The sets that a thread sleeps on.
#[derive(Debug, Default)]
pub struct Asleep {
    all: Few<(Arc<Set>, Option<Arc<Context>>), 4>,
    /// Some of their news does not wake the thread, for want of a context.
    is_lost: bool,
}

impl Asleep {
    /// True when some of their news does not wake the thread.
    pub fn is_blind(&self) -> bool {
        self.is_lost || self.all.iter().any(|(set, context)| context.is_some() && set.is_blind())
    }

    /// The thread sleeps on them no more.
    pub fn leave(&self) {
        for (set, context) in self.all.iter() {
            if let Some(context) = context {
                set.leave(context);
            }
            set.family.staying.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Set {
    /// `epoll_ctl` for another set.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn control_set(
        &self,
        op: i32,
        fd: RawFd,
        set: &Arc<Self>,
        wanted: Option<libc::epoll_event>,
    ) -> Result<(), Errno> {
        self.renew();
        let is_known = lock(&self.family.members).iter().any(|member| member.is(fd, set));
        match (op, wanted) {
            (libc::EPOLL_CTL_ADD, Some(wanted)) if !is_known => self.add_set(fd, set, wanted),
            (libc::EPOLL_CTL_MOD, Some(wanted)) if is_known => self.change_set(fd, set, wanted),
            (libc::EPOLL_CTL_DEL, _) if is_known => {
                lock(&self.family.members).retain(|member| !member.is(fd, set));
                sys::epoll_ctl(self.epfd, op, fd, None)
            }
            _ => sys::epoll_ctl(self.epfd, op, fd, wanted.as_ref()),
        }
    }

    fn add_set(&self, fd: RawFd, set: &Arc<Self>, wanted: libc::epoll_event) -> Result<(), Errno> {
        let (events, data) = (wanted.events, wanted.u64);
        let member = Member { fd, set: set.clone(), events, data, armed: true, reported: None };
        // Before the kernel's: an event that the kernel reports must be known here.
        lock(&self.family.members).push(member);
        self.family.has_members.store(true, Ordering::Release);
        let added = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_ADD, fd, Some(&in_kernel(fd, events)));
        if added.is_err() {
            let mut members = lock(&self.family.members);
            if let Some(i) = members.iter().rposition(|member| member.is(fd, set)) {
                members.remove(i);
            }
            return added;
        }
        let mut outer = lock(&set.family.outer);
        outer.retain(|outer| outer.strong_count() > 0);
        outer.push(self.me.clone());
        drop(outer);
        self.relate();
        set.relate();
        self.has_kernel();
        // Threads that sleep on this set must look at the new one, too.
        self.rouse_all(SETS_DEEP);
        Ok(())
    }

    fn change_set(&self, fd: RawFd, set: &Arc<Self>, wanted: libc::epoll_event) -> Result<(), Errno> {
        sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_MOD, fd, Some(&in_kernel(fd, wanted.events)))?;
        if let Some(member) = lock(&self.family.members).iter_mut().find(|member| member.is(fd, set)) {
            (member.events, member.data, member.armed, member.reported) =
                (wanted.events, wanted.u64, true, None);
        }
        self.rouse_all(SETS_DEEP);
        Ok(())
    }

    /// From now on another set, or `poll`, looks into this set.
    fn relate(&self) {
        if self.family.related.swap(true, Ordering::SeqCst) {
            return;
        }
        lock(&self.inner).count_edges();
        self.rouse();
        if let Some(context) = &*lock(&self.context) {
            self.unhook(context);
        }
    }

    /// A thread polls the set. False: no accelerated socket is in it, so the kernel knows everything.
    pub fn is_polled(&self) -> bool {
        self.renew();
        let is_ours = self.is_accelerated(SETS_DEEP);
        if is_ours {
            self.relate();
        }
        is_ours
    }

    /// True when an accelerated socket is in this set or below it.
    fn is_accelerated(&self, depth: u32) -> bool {
        self.accelerated.load(Ordering::SeqCst)
            || depth > 0 && self.members().iter().any(|member| member.set.is_accelerated(depth - 1))
    }

    /// True when a wait here is for more than one set or descriptor.
    pub(super) fn is_among_sets(&self) -> bool {
        self.family.is_related() && self.is_accelerated(SETS_DEEP)
    }

    /// The inner sets that are still open.
    fn members(&self) -> Few<Member, 4> {
        if !self.family.has_members() {
            return Few::default();
        }
        let mut members = lock(&self.family.members);
        members.retain(|member| member.set.descriptors.load(Ordering::Relaxed) > 0);
        members.iter().cloned().collect()
    }

    /// Looks whether `epoll_wait` would report an accelerated socket. Takes no event away.
    pub fn look(&self, depth: u32) -> Seen {
        self.renew();
        if host::may_dispute() {
            self.seek_disputed();
        }
        let mut inner = self.drain();
        if detached::is_locked() {
            inner.enqueue_all();
        }
        let mut seen = Seen { is_ready: inner.would_collect(), edges: inner.edges() };
        drop(inner);
        if depth > 0 {
            for member in self.members().iter() {
                let below = member.set.look(depth - 1);
                seen.is_ready |= member.due(below) != 0;
                seen.edges = seen.edges.wrapping_add(below.edges);
            }
        }
        seen
    }

    /// Writes the inner sets that are ready by their accelerated part into `out`. Returns how many.
    pub(super) fn gather_sets(&self, out: &mut [libc::epoll_event]) -> usize {
        let mut n = 0;
        for member in self.members().iter() {
            if n == out.len() {
                break;
            }
            let seen = member.set.look(SETS_DEEP - 1);
            if let Some(event) = self.report(member, seen) {
                out[n] = event;
                n += 1;
            }
        }
        n
    }

    fn report(&self, found: &Member, seen: Seen) -> Option<libc::epoll_event> {
        let mut members = lock(&self.family.members);
        let i = members.iter().position(|member| member.is(found.fd, &found.set))?;
        let now = Some(members[i].due(seen)).filter(|now| *now != 0)?;
        // Moved to the end: the next time the other sets come first.
        let mut member = members.remove(i);
        member.reported = Some(seen.edges);
        let (fd, data, is_last) = (member.fd, member.data, member.events & ONCE != 0);
        member.armed = !is_last;
        members.push(member);
        drop(members);
        if is_last && !detached::is_locked() {
            // After `EPOLLONESHOT` nothing is wanted of the kernel's entry.
            let _ = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_MOD, fd, Some(&in_kernel(fd, 0)));
        }
        Some(event(now, data))
    }

    /// The kernel reports kernel events of inner set `fd`: the event that the program gets.
    pub(super) fn of_member(&self, fd: RawFd, events: u32) -> Option<libc::epoll_event> {
        let mut members = lock(&self.family.members);
        let member = members.iter_mut().find(|member| member.fd == fd && member.armed)?;
        member.armed = member.events & ONCE == 0;
        Some(event(events, member.data))
    }

    /// Sleeps until something may be ready in this set or below. True: the kernel's set has events.
    pub(super) fn sleep_among_sets(
        &self,
        deadline: Option<Instant>,
        mask: Option<u64>,
    ) -> Result<bool, Errno> {
        let me = self.me.upgrade().ok_or(Errno::BADF)?;
        let mut kernel = [libc::pollfd { fd: self.epfd, events: libc::POLLIN, revents: 0 }];
        wait::sleep(&Parties::from_iter([Party::Set(me)]), &mut kernel, deadline, mask).map(|n| n > 0)
    }

    /// The thread of `sleeper` is about to sleep on this set and those below. True: nothing has come since; the caller must still look for
    /// what was there before.
    pub fn enter_all(self: &Arc<Self>, sleeper: &Context, depth: u32, asleep: &mut Asleep) -> bool {
        self.family.staying.fetch_add(1, Ordering::SeqCst);
        let mut quiet = self.family.rousing.load(Ordering::SeqCst) == 0;
        let context = self.context();
        match &context {
            Some(context) => {
                asleep.is_lost |= !sleeper.follow(context) || context.is_deaf();
                quiet &= self.enter(context, |_| true);
            }
            None => asleep.is_lost |= self.accelerated.load(Ordering::SeqCst),
        }
        asleep.all.push((self.clone(), context));
        if depth > 0 {
            for member in self.members().iter() {
                quiet &= member.set.enter_all(sleeper, depth - 1, asleep);
            }
        }
        quiet
    }

    /// The set is closed: lets go of its inner sets.
    pub(super) fn forget_members(&self) {
        self.family.has_members.store(false, Ordering::Release);
        let members = std::mem::take(&mut *lock(&self.family.members));
        drop(members);
    }

    /// True in a forked child when no other thread had a lock of the family.
    pub(super) fn is_family_free(&self) -> bool {
        Held::is_free(&self.family.members) && Held::is_free(&self.family.outer)
    }

    /// Takes the family's locks before a fork, with those of its interest.
    pub(super) fn hold_family(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |set| &set.family.members);
        held.take(self, |set| &set.family.outer);
    }
}
