//! The program's epoll sets. Kernel descriptors live in the kernel's set, accelerated sockets in a list of ours beside it, listeners in
//! both. One sleep covers both:
//!
//! ```text
//!   in the set                        a wait sleeps on
//!   connections alone                 our context's descriptor
//!   something of the kernel's, too    the kernel's set, in which our context's descriptor lies
//!   sets; or it is in one, or polled  both, as a thread does (`wait`)
//! ```

pub(crate) mod interest;

mod kernel_set;
mod nested;
mod rewait;

pub use kernel_set::mark;
pub use nested::{Asleep, SETS_DEEP};

use crate::epoll::interest::Interest;
use crate::socket::{Role, Sock};
use crate::wait;
use cycles::Section;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::accept_queue::Rest;
use session::fork_locks::Held;
use session::sleeper::Context;
use session::sys::signal::Deferred;
use session::sys::small_vec::Few;
use session::sys::{self, cycle_account};
use session::{self, Client, detached, host, lock};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// The kernel's set is looked at in one of so many busy waits, so that neither side starves.
const KERNEL_EVERY: u32 = 16;
/// Longest sleep where some news cannot wake the thread (no context left, a socket that two processes wait for, a filter).
const BLIND: Duration = Duration::from_millis(2);

/// One epoll set of the program.
#[derive(Debug)]
pub struct Set {
    epfd: RawFd,
    me: Weak<Set>,
    inner: Mutex<Interest>,
    context: Mutex<Option<Arc<Context>>>,
    number: AtomicU32,
    /// An accelerated socket is, or was, in the set.
    accelerated: AtomicBool,
    /// The kernel's set is not empty.
    kernel: AtomicBool,
    /// Our context's descriptor lies in the kernel's set.
    hooked: AtomicBool,
    turns: AtomicU32,
    generation: AtomicU32,
    descriptors: AtomicU32,
    /// Low half: threads that sleep on the context. High half: the fork generation of the process that counts them, since a parent's
    /// threads do not sleep in its child. Changed only with the interest locked.
    sleepers: AtomicU64,
    family: nested::Family,
}

const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// Linux's rules for `EPOLLEXCLUSIVE`: only with `EPOLL_CTL_ADD`, never changed, and not with all events.
const fn is_allowed(op: i32, events: u32, is_exclusive: bool) -> bool {
    const WITH: u32 = (libc::EPOLLIN
        | libc::EPOLLOUT
        | libc::EPOLLERR
        | libc::EPOLLHUP
        | libc::EPOLLWAKEUP
        | libc::EPOLLET) as u32
        | EXCLUSIVE;
    match op {
        libc::EPOLL_CTL_MOD => !is_exclusive && events & EXCLUSIVE == 0,
        libc::EPOLL_CTL_ADD => events & EXCLUSIVE == 0 || events & !WITH == 0,
        _ => true,
    }
}

impl Set {
    /// The set behind the new epoll descriptor `epfd`.
    #[must_use]
    pub fn new(epfd: RawFd) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            epfd,
            me: me.clone(),
            inner: Mutex::new(Interest::default()),
            context: Mutex::new(None),
            number: AtomicU32::new(u32::MAX),
            accelerated: AtomicBool::new(false),
            kernel: AtomicBool::new(false),
            hooked: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            generation: AtomicU32::new(host::generation()),
            descriptors: AtomicU32::new(1),
            sleepers: AtomicU64::new(0),
            family: nested::Family::default(),
        })
    }

    /// The number of the set's context, once it has one.
    pub fn context_number(&self) -> Option<u32> {
        Some(self.number.load(Ordering::Relaxed)).filter(|n| *n != u32::MAX)
    }

    /// The set's context, once it has one.
    pub fn context(&self) -> Option<Arc<Context>> {
        lock(&self.context).clone()
    }

    /// The set's context, if an accelerated socket is, or was, in the set.
    fn accelerated_context(&self) -> Option<Arc<Context>> {
        if self.accelerated.load(Ordering::Acquire) { self.context() } else { None }
    }

    /// `epoll_ctl` for the accelerated socket `sock`; `share` returns a reference to keep.
    ///
    /// # Errors
    /// As Linux's.
    pub fn control(
        &self,
        op: i32,
        fd: RawFd,
        sock: &Sock,
        share: impl Fn() -> Arc<Sock>,
        wanted: Option<libc::epoll_event>,
    ) -> Result<(), Errno> {
        self.renew();
        let mut inner = lock(&self.inner);
        let found = inner.find(fd, sock);
        let before = found.and_then(|i| inner.item(i)).map_or(0, |item| item.events);
        if !is_allowed(op, wanted.map_or(0, |wanted| wanted.events), before & EXCLUSIVE != 0) {
            return Err(Errno::INVAL);
        }
        match (op, found) {
            (libc::EPOLL_CTL_ADD, Some(_)) => Err(Errno::EXIST),
            (libc::EPOLL_CTL_ADD, None) => {
                drop(inner);
                self.add(fd, &share(), wanted.ok_or(Errno::FAULT)?)
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => {
                drop(inner);
                // Not in our list: the kernel's set may hold what the number stood for before.
                sys::epoll_ctl(self.epfd, op, fd, wanted.as_ref())
            }
            (libc::EPOLL_CTL_MOD, Some(i)) => {
                let wanted = wanted.ok_or(Errno::FAULT)?;
                if inner.item(i).is_some_and(|item| item.kernel) {
                    sys::epoll_ctl(self.epfd, op, fd, Some(&wanted))?;
                }
                inner.change(i, wanted.events, wanted.u64);
                self.stir(inner);
                Ok(())
            }
            (libc::EPOLL_CTL_DEL, Some(i)) => {
                let item = inner.remove(i);
                drop(inner);
                sock.leave_set(self, fd);
                match item {
                    Some(item) if item.kernel => sys::epoll_ctl(self.epfd, op, fd, None),
                    _ => Ok(()),
                }
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn add(&self, fd: RawFd, sock: &Arc<Sock>, wanted: libc::epoll_event) -> Result<(), Errno> {
        let kernel = !matches!(sock.role(), Some(Role::Stream(_)));
        if kernel {
            sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_ADD, fd, Some(&wanted))?;
            self.has_kernel();
        }
        self.hold(fd, sock, wanted, kernel);
        Ok(())
    }

    /// Takes a socket in; `kernel`: the kernel's set holds its placeholder.
    fn hold(&self, fd: RawFd, sock: &Arc<Sock>, wanted: libc::epoll_event, kernel: bool) {
        if sock.role().is_some() {
            self.prepare();
        }
        lock(&self.inner).add(fd, sock.clone(), wanted.events, wanted.u64, kernel);
        sock.join_set(self.me.clone(), fd);
        // News is reported from now on; look once for what came before.
        let mut inner = lock(&self.inner);
        inner.look_at(fd);
        self.stir(inner);
    }

    /// The role of a socket in the set was just decided: connection or listener.
    pub fn adopt(&self, sock: &Arc<Sock>, fd: RawFd) {
        self.renew();
        self.prepare();
        let mut inner = lock(&self.inner);
        let Some(i) = inner.find(fd, sock) else { return };
        if sock.stream().is_some() && inner.item(i).is_some_and(|item| item.kernel) {
            // In the kernel's set the placeholder would report a hang-up for ever.
            let _ = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_DEL, fd, None);
            inner.set_kernel(i, false);
        }
        inner.connect(i);
        inner.enqueue(i);
        self.stir(inner);
    }

    /// The socket is the kernel's alone from now on: moves it to the kernel's set.
    pub fn abandon(&self, sock: &Sock, fd: RawFd) {
        let taken = lock(&self.inner).take(fd, sock);
        if let Some(item) = taken.filter(|item| !item.kernel) {
            let wanted = libc::epoll_event { events: item.events, u64: item.data };
            // It was in the set, so the kernel has room for it.
            let _ = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_ADD, fd, Some(&wanted));
            self.has_kernel();
        }
    }

    /// Puts `fresh` in the place of `old`, which the set holds as `fd`.
    pub fn exchange(&self, fd: RawFd, old: &Sock, fresh: &Arc<Sock>) {
        let Some(item) = lock(&self.inner).take(fd, old) else { return };
        let wanted = libc::epoll_event { events: item.armed_events(), u64: item.data };
        // Cannot fail for want of room: the set held this descriptor just now.
        if self.add(fd, fresh, wanted) == Err(Errno::EXIST) {
            // A listener that begins anew has the same socket of the kernel, which the kernel's set holds still.
            self.hold(fd, fresh, wanted, true);
        }
    }

    /// Removes a socket that is closed.
    pub fn forget(&self, fd: RawFd, sock: &Sock) {
        lock(&self.inner).take(fd, sock);
    }

    /// `fd` may be ready: queues it and wakes a thread that sleeps on the set.
    pub fn poke(&self, fd: RawFd) {
        let mut inner = lock(&self.inner);
        inner.enqueue_fd(fd);
        self.stir(inner);
    }

    fn stir(&self, mut inner: MutexGuard<'_, Interest>) {
        let is_news = inner.must_stir();
        drop(inner);
        // A thread that slept before the lock was taken is counted; one that begins now looks at the interest first.
        if is_news
            && self.sleepers() > 0
            && let Some(context) = self.context()
        {
            context.wake();
        }
    }

    /// Gets a context of the present registration and puts its descriptor into the kernel's set, unless that is done.
    fn prepare(&self) {
        let Some(client) = session::current() else { return };
        let is_kept = |place: &Option<Arc<Context>>| {
            place.as_ref().is_some_and(|context| Arc::ptr_eq(&context.client, &client))
        };
        if is_kept(&lock(&self.context)) {
            self.accelerated.store(true, Ordering::SeqCst);
            return;
        }
        let _deferred = Deferred::begin();
        let fresh = {
            let mut context = lock(&self.context);
            if is_kept(&context) { None } else { self.take_context(&mut context, &client) }
        };
        self.accelerated.store(true, Ordering::SeqCst);
        if fresh.is_some() {
            lock(&self.inner).watch(&client.home, None);
            // Threads that sleep in the kernel's set must return and sleep on the context as well.
            self.rouse_all(SETS_DEEP);
            let all = lock(&self.inner).all();
            all.iter().for_each(|(_, sock)| sock.announce_again());
        }
    }

    fn take_context(&self, place: &mut Option<Arc<Context>>, client: &Arc<Client>) -> Option<Arc<Context>> {
        if let Some(old) = place.take() {
            self.unhook(&old);
        }
        let context = Context::take(client).ok()?;
        if self.kernel.load(Ordering::SeqCst) && !self.family.is_related() {
            self.hook(&context);
        }
        self.number.store(context.number, Ordering::Relaxed);
        *place = Some(context.clone());
        Some(context)
    }

    /// In a forked child: gives an inherited set a context of its own.
    fn renew(&self) {
        let now = host::generation();
        if self.generation.load(Ordering::Relaxed) == now
            || self.generation.swap(now, Ordering::AcqRel) == now
        {
            return;
        }
        let _deferred = Deferred::begin();
        self.family.renew();
        if lock(&self.inner).is_empty() {
            return;
        }
        *lock(&self.context) = None;
        self.hooked.store(false, Ordering::SeqCst);
        self.number.store(u32::MAX, Ordering::Relaxed);
        self.prepare();
        lock(&self.inner).enqueue_all();
    }

    /// Takes news and writes what is ready to `out`; sockets and inner sets take turns to come first.
    fn gather(&self, out: &mut [libc::epoll_event]) -> usize {
        if !self.family.has_members() {
            return self.gather_sockets(out);
        }
        if self.turns.load(Ordering::Relaxed).is_multiple_of(2) {
            let n = self.gather_sets(out);
            return n + self.gather_sockets(&mut out[n..]);
        }
        let n = self.gather_sockets(out);
        n + self.gather_sets(&mut out[n..])
    }

    fn gather_sockets(&self, out: &mut [libc::epoll_event]) -> usize {
        self.drain().collect(out)
    }

    /// Takes the news that came for the sockets. Returns the locked interest.
    fn drain(&self) -> MutexGuard<'_, Interest> {
        let mut inner = lock(&self.inner);
        if self.accelerated.load(Ordering::Acquire)
            && let Some(number) = self.context_number()
            && inner.drain(number)
        {
            drop(inner);
            let Some(context) = self.context() else { return lock(&self.inner) };
            context.client.pump();
            return self.look_again(&context);
        }
        inner
    }

    /// After a message of the service every socket is looked at; those with news come first, in the order of their news.
    fn look_again(&self, context: &Context) -> MutexGuard<'_, Interest> {
        loop {
            let mut inner = lock(&self.inner);
            if !inner.drain(context.number) {
                inner.enqueue_all();
                return inner;
            }
            drop(inner);
            context.client.pump();
        }
    }

    /// `epoll_pwait2`: waits for `timeout` at most, with the signals of `mask` blocked.
    ///
    /// # Errors
    /// As Linux's.
    pub fn wait(
        &self,
        out: &mut [libc::epoll_event],
        timeout: Option<Duration>,
        mask: Option<u64>,
    ) -> Result<usize, Errno> {
        let _waiting = cycle_account::enter(Section::Wait);
        self.renew();
        let instant = timeout.is_some_and(|t| t.is_zero());
        let deadline = timeout.filter(|t| !t.is_zero()).and_then(|t| Instant::now().checked_add(t));
        // True: the kernel's set is known to have events.
        let mut is_told = false;
        loop {
            // Not atomic: turns of several threads may count as one.
            let turn = self.turns.load(Ordering::Relaxed);
            self.turns.store(turn.wrapping_add(1), Ordering::Relaxed);
            if detached::is_locked() {
                lock(&self.inner).enqueue_all();
            }
            // Sockets that tell another set or process of their news: looked at seldom, unless nothing else is ready.
            let seldom = turn.is_multiple_of(KERNEL_EVERY) && host::may_dispute() && self.seek_disputed();
            let mut n = self.gather(out);
            if n == 0 && !seldom && host::may_dispute() && self.seek_disputed() {
                n = self.gather(out);
            }
            let is_over = instant || n == 0 && deadline.is_some_and(|d| d <= Instant::now());
            let look = is_over && n == 0
                || is_told
                || self.kernel.load(Ordering::Relaxed) && turn.is_multiple_of(KERNEL_EVERY);
            if look && n < out.len() {
                let context = self.accelerated_context();
                n += self.kernel_events(out, n, context.as_deref(), Some(Duration::ZERO), None)?;
            }
            self.hand_on();
            if n > 0 || is_over {
                return Ok(n);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if self.is_among_sets() {
                is_told = self.sleep_among_sets(deadline, mask)?;
                continue;
            }
            let context = self.accelerated_context();
            let context = context.as_deref();
            let start = Instant::now();
            if let Some(context) = context
                && self.spin(context, left)?
            {
                continue;
            }
            let n = self.sleep(out, left, mask, context)?;
            if let Some(context) = context {
                context.spin.waited(start.elapsed());
            }
            if n > 0 {
                let more = self.gather(&mut out[n..]);
                self.hand_on();
                return Ok(merge(out, n, more));
            }
        }
    }

    /// Spins for news, where that pays. True: there is some.
    fn spin(&self, context: &Context, left: Option<Duration>) -> Result<bool, Errno> {
        if !context.spin.pays() {
            return Ok(false);
        }
        let (regions, rests, lonely): (Few<_, 4>, Few<_, 2>, _) = {
            let inner = lock(&self.inner);
            (inner.regions().cloned().collect(), inner.rests().cloned().collect(), inner.is_lonely())
        };
        let bells = || regions.iter().filter_map(|region| region.own_bell(context.number));
        let has_news =
            || bells().any(|bell| bell.has_news()) || rests.iter().any(|rest: &Arc<Rest>| rest.has_any());
        if !(lonely || context.spin.is_patient()) {
            return Ok(context.spin.once(left, has_news));
        }
        let outside = || {
            let mut kernel = [libc::pollfd { fd: self.epfd, events: libc::POLLIN, revents: 0 }];
            let has_kernel = self.kernel.load(Ordering::Relaxed);
            Ok(lock(&self.inner).has_ready() || has_kernel && wait::has_news(&mut kernel)?)
        };
        context.spin.until(left, has_news, outside)
    }

    fn sleep(
        &self,
        out: &mut [libc::epoll_event],
        left: Option<Duration>,
        mask: Option<u64>,
        context: Option<&Context>,
    ) -> Result<usize, Errno> {
        let blind = Some(wait::at_most(left, BLIND));
        let Some(_stay) = self.stay() else { return Ok(0) };
        if self.is_among_sets() {
            return Ok(0);
        }
        let Some(context) = context else {
            let is_blind = self.accelerated.load(Ordering::SeqCst) || detached::is_locked();
            return self.kernel_events(out, 0, None, if is_blind { blind } else { left }, mask);
        };
        let is_deaf = context.is_deaf();
        let quiet = self.enter(context, |inner| !inner.has_ready());
        let is_blind = is_deaf
            || self.is_blind()
            || self.kernel.load(Ordering::SeqCst) && !self.hooked.load(Ordering::SeqCst);
        let limit = if is_blind { blind } else { left };
        let result = if quiet { self.kernel_events(out, 0, Some(context), limit, mask) } else { Ok(0) };
        self.leave(context);
        result
    }

    fn sleepers(&self) -> u32 {
        let word = self.sleepers.load(Ordering::SeqCst);
        if (word >> 32) as u32 == host::generation() { word as u32 } else { 0 }
    }

    /// Changes the number of sleepers. Returns the number before.
    fn count_sleepers(&self, change: impl Fn(u32) -> u32) -> u32 {
        let before = self.sleepers();
        let word = u64::from(host::generation()) << 32 | u64::from(change(before));
        self.sleepers.store(word, Ordering::SeqCst);
        before
    }

    /// A thread is about to sleep on this set, or on one that holds it. True: nothing has come, and `is_idle` agrees.
    fn enter(&self, context: &Context, is_idle: impl FnOnce(&Interest) -> bool) -> bool {
        let mut inner = lock(&self.inner);
        let is_alone = self.count_sleepers(|n| n + 1) == 0;
        context.sleeping.announce();
        let quiet = inner.arm(context);
        if !(quiet || is_alone) {
            // Something had come, which withdraws the other threads' announcement, too: wake them.
            context.wake();
        }
        quiet && is_idle(&inner)
    }

    /// A thread sleeps on the set no more.
    fn leave(&self, context: &Context) {
        let inner = lock(&self.inner);
        if self.count_sleepers(|n| n.saturating_sub(1)) <= 1 {
            context.sleeping.awake();
            inner.disarm(context.number);
        }
    }

    /// A wake-up wakes one thread. If others sleep on here, they must hear of later news, and of events that this thread leaves.
    fn hand_on(&self) {
        if self.sleepers() == 0 || self.family.is_related() {
            return;
        }
        let Some(context) = self.context() else { return };
        context.sleeping.announce();
        let quiet = {
            let mut inner = lock(&self.inner);
            inner.arm(&context) && !inner.has_ready()
        };
        if !quiet {
            context.wake();
        }
    }

    /// True when some news wakes no thread here: it goes to another set or process, the peer never rings, or we are locked in.
    fn is_blind(&self) -> bool {
        let inner = lock(&self.inner);
        host::may_dispute() && inner.is_disputed(self) || inner.is_mute() || detached::is_locked()
    }

    /// Queues the sockets that tell another set or process of their news. False: there are none.
    fn seek_disputed(&self) -> bool {
        let Some(ours) = self.context_number() else { return false };
        lock(&self.inner).enqueue_disputed(ours)
    }

    /// Takes the context's lock before a fork.
    pub fn hold_context(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |s| &s.context);
    }

    /// Takes the locks of the interest and the family before a fork, after those of the sockets' watchers.
    pub fn hold_interest(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |s| &s.inner);
        self.hold_family(held);
    }

    /// In a forked child: false when another thread had a lock of this set, which was made after the others' locks were taken.
    pub fn is_usable(&self) -> bool {
        Held::is_free(&self.context) && Held::is_free(&self.inner) && self.is_family_free()
    }

    /// Counts one more descriptor of the set.
    pub fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one descriptor fewer. The last one ends the set.
    pub fn drop_descriptor(&self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let all = lock(&self.inner).all();
        all.iter().for_each(|(fd, sock)| sock.leave_set(self, *fd));
        self.forget_members();
        let context = lock(&self.context).take();
        if let Some(context) = context {
            self.unhook(&context);
            // A thread that still sleeps on the closed set would take the wake-ups of the context's next owner.
            if self.sleepers() == 0 {
                context.give_back();
            }
        }
    }
}

impl Interest {
    /// True when some socket here tells another context than `set`'s: two sets or two processes want the same news.
    fn is_disputed(&self, set: &Set) -> bool {
        let Some(ours) = set.context_number() else { return true };
        self.links().any(|link| link.halves().0.context.load(Ordering::Relaxed) != ours + 1)
    }
}

/// The kernel and we may both report a listener: merges the `more` events behind the first `n` into those of equal data.
fn merge(out: &mut [libc::epoll_event], n: usize, more: usize) -> usize {
    let mut end = n;
    for i in n..n + more {
        let (events, data) = (out[i].events, out[i].u64);
        match out[..n].iter().position(|e| { e.u64 } == data) {
            Some(at) => out[at].events |= events,
            None => {
                out[end] = out[i];
                end += 1;
            }
        }
    }
    end
}
