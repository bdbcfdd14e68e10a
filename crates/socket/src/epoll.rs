//! The program's epoll sets. Kernel descriptors live in the kernel's set; accelerated sockets in ours, beside it. A
//! listener is in both. One sleep covers both: our context's descriptor lies in the kernel's set.

use crate::client::{self, Client, lock};
use crate::context::Context;
use crate::hold::Held;
use crate::interest::Interest;
use crate::sock::{Role, Sock};
use crate::{fork, locked, sys};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Every so many busy waits the kernel's set is looked at, so that neither side starves.
const KERNEL_EVERY: u32 = 16;
/// Sleep at most so long where nobody can wake us (no context left, sockets that two processes wait for, a filter).
const BLIND: Duration = Duration::from_millis(2);

/// One epoll set.
#[derive(Debug)]
pub struct Set {
    epfd: RawFd,
    me: Weak<Set>,
    inner: Mutex<Interest>,
    context: Mutex<Option<Arc<Context>>>,
    number: AtomicU32,
    /// Something accelerated is, or was, in it.
    accelerated: AtomicBool,
    /// The kernel's set is not empty.
    kernel: AtomicBool,
    turns: AtomicU32,
    generation: AtomicU32,
    descriptors: AtomicU32,
    nested: AtomicBool,
}

/// Words that mark our own descriptors in the kernel's set; no program's data equals them but by chance of 2^-63.
pub fn tags() -> [u64; 2] {
    static TAGS: OnceLock<[u64; 2]> = OnceLock::new();
    *TAGS.get_or_init(|| {
        let mut bytes = [0; 8];
        // Without random bytes the tag is a non-canonical address, which is no program's pointer either.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
        let base = (u64::from_ne_bytes(bytes) | 1 << 63) & !(1 << 62 | 1);
        [base, base | 1]
    })
}

const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// Linux's rules for `EPOLLEXCLUSIVE`: only from the beginning, never changed, and not with everything.
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

fn event(events: u32, data: u64) -> libc::epoll_event {
    libc::epoll_event { events, u64: data }
}

impl Set {
    /// The set behind a new epoll descriptor.
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
            turns: AtomicU32::new(0),
            generation: AtomicU32::new(fork::generation()),
            descriptors: AtomicU32::new(1),
            nested: AtomicBool::new(false),
        })
    }

    /// Its context's number, once it has one.
    pub fn context_number(&self) -> Option<u32> {
        Some(self.number.load(Ordering::Relaxed)).filter(|n| *n != u32::MAX)
    }

    /// Its context.
    pub fn context(&self) -> Option<Arc<Context>> {
        lock(&self.context).clone()
    }

    /// `epoll_ctl` for a socket of ours. `None`: the kernel alone does it.
    pub fn control(
        &self,
        op: i32,
        fd: RawFd,
        sock: &Arc<Sock>,
        wanted: Option<libc::epoll_event>,
    ) -> Result<(), Errno> {
        self.renew();
        if sock.listener().is_some() {
            crate::listener::share(sock);
        }
        let found = lock(&self.inner).find(fd, sock);
        let is_exclusive =
            found.is_some_and(|i| lock(&self.inner).item(i).is_some_and(|item| item.events & EXCLUSIVE != 0));
        if !is_allowed(op, wanted.map_or(0, |wanted| wanted.events), is_exclusive) {
            return Err(Errno::INVAL);
        }
        match (op, found) {
            (libc::EPOLL_CTL_ADD, Some(_)) => Err(Errno::EXIST),
            (libc::EPOLL_CTL_ADD, None) => self.add(fd, sock, wanted.ok_or(Errno::FAULT)?),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => {
                // Not ours: the kernel's set may hold what the number stood for before.
                sys::epoll_ctl(self.epfd, op, fd, wanted.as_ref())
            }
            (libc::EPOLL_CTL_MOD, Some(i)) => {
                let wanted = wanted.ok_or(Errno::FAULT)?;
                let mut inner = lock(&self.inner);
                if inner.item(i).is_some_and(|item| item.kernel) {
                    sys::epoll_ctl(self.epfd, op, fd, Some(&wanted))?;
                }
                inner.change(i, wanted.events, wanted.u64);
                self.stir(inner);
                Ok(())
            }
            (libc::EPOLL_CTL_DEL, Some(i)) => {
                let item = lock(&self.inner).remove(i);
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
            self.kernel.store(true, Ordering::Relaxed);
        }
        if sock.role().is_some() {
            self.prepare();
        }
        lock(&self.inner).add(fd, sock.clone(), wanted.events, wanted.u64, kernel);
        sock.join_set(self.me.clone(), fd);
        // Told from now on; what came before is looked at once.
        self.poke(fd);
        Ok(())
    }

    /// The role of a socket in the set was just decided: connection or listener.
    pub fn adopt(&self, sock: &Arc<Sock>, fd: RawFd) {
        self.prepare();
        let mut inner = lock(&self.inner);
        let Some(i) = inner.find(fd, sock) else { return };
        if sock.stream().is_some() && inner.item(i).is_some_and(|item| item.kernel) {
            // The placeholder would report a hang-up for ever.
            let _ = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_DEL, fd, None);
            inner.set_kernel(i, false);
        }
        inner.connect(i);
        inner.enqueue(i);
        self.stir(inner);
    }

    /// The socket is the kernel's alone from now on.
    pub fn abandon(&self, sock: &Sock, fd: RawFd) {
        let mut inner = lock(&self.inner);
        if let Some(item) = inner.take(fd, sock).filter(|item| !item.kernel) {
            let wanted = libc::epoll_event { events: item.events, u64: item.data };
            // It was in the set, so the kernel has room for it.
            let _ = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_ADD, fd, Some(&wanted));
            self.kernel.store(true, Ordering::Relaxed);
        }
    }

    /// Another object stands for the same socket from now on.
    pub fn exchange(&self, fd: RawFd, old: &Sock, fresh: &Arc<Sock>) {
        let Some(item) = lock(&self.inner).take(fd, old) else { return };
        lock(&self.inner).add(fd, fresh.clone(), item.events, item.data, item.kernel);
        fresh.join_set(self.me.clone(), fd);
        self.poke(fd);
    }

    /// The socket is closed.
    pub fn forget(&self, fd: RawFd, sock: &Sock) {
        lock(&self.inner).take(fd, sock);
    }

    /// The kernel's set holds something.
    pub fn has_kernel(&self) {
        self.kernel.store(true, Ordering::Relaxed);
    }

    /// `fd` may be ready: look at it, and wake whoever sleeps.
    pub fn poke(&self, fd: RawFd) {
        let mut inner = lock(&self.inner);
        inner.enqueue_fd(fd);
        self.stir(inner);
    }

    fn stir(&self, inner: MutexGuard<'_, Interest>) {
        let wake = inner.has_ready();
        drop(inner);
        if wake && let Some(context) = self.context() {
            context.wake();
        }
    }

    /// Gets a context of the present registration, and puts its descriptor into the kernel's set.
    fn prepare(&self) {
        let Some(client) = client::current() else { return };
        let fresh = {
            let mut context = lock(&self.context);
            let kept = context.as_ref().is_some_and(|c| Arc::ptr_eq(&c.client, &client));
            if kept { None } else { self.take_context(&mut context, &client) }
        };
        self.accelerated.store(true, Ordering::Release);
        if let Some(context) = fresh {
            lock(&self.inner).watch(&client.home, None);
            // Whoever waits in the kernel now must come back and wait with us.
            context.sleeping.store(true, Ordering::SeqCst);
            context.wake();
            let all = lock(&self.inner).all();
            all.iter().for_each(|(_, sock)| sock.announce_again());
        }
    }

    fn take_context(&self, place: &mut Option<Arc<Context>>, client: &Arc<Client>) -> Option<Arc<Context>> {
        if let Some(old) = place.take() {
            let _ = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_DEL, old.epfd(), None);
            let _ = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_DEL, old.client.control(), None);
        }
        let context = Context::take(client).ok()?;
        let [bell, control] = tags();
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let added =
            sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_ADD, context.epfd(), Some(&event(events, bell)))
                .and_then(|()| {
                    let event = event(events, control);
                    sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_ADD, client.control(), Some(&event))
                });
        if added.is_err() {
            context.give_back();
            return None;
        }
        self.number.store(context.number, Ordering::Relaxed);
        *place = Some(context.clone());
        Some(context)
    }

    /// In a forked child an inherited set starts with a context of its own.
    fn renew(&self) {
        let now = fork::generation();
        if self.generation.swap(now, Ordering::AcqRel) == now || lock(&self.inner).is_empty() {
            return;
        }
        *lock(&self.context) = None;
        self.number.store(u32::MAX, Ordering::Relaxed);
        let all = lock(&self.inner).all();
        for (_, sock) in &all {
            crate::listener::share(sock);
        }
        self.prepare();
        lock(&self.inner).enqueue_all();
    }

    /// Takes our own descriptors' events out of what the kernel returned. How many are left.
    fn filter(&self, events: &mut [libc::epoll_event], context: Option<&Context>) -> usize {
        let [bell, control] = tags();
        let mut left = 0;
        for i in 0..events.len() {
            let data = events[i].u64;
            if data == control {
                if let Some(context) = context {
                    context.client.pump();
                }
                lock(&self.inner).enqueue_all();
            } else if data != bell {
                events[left] = events[i];
                left += 1;
            }
        }
        left
    }

    /// Takes news and writes what is ready.
    fn gather(&self, out: &mut [libc::epoll_event], context: Option<&Context>) -> usize {
        let mut inner = lock(&self.inner);
        if let Some(context) = context
            && inner.drain(context.number)
        {
            drop(inner);
            context.client.pump();
            inner = lock(&self.inner);
            inner.enqueue_all();
        }
        inner.collect(out)
    }

    /// `epoll_pwait2`.
    ///
    /// # Errors
    /// As Linux's.
    pub fn wait(
        &self,
        out: &mut [libc::epoll_event],
        timeout: Option<Duration>,
        mask: Option<u64>,
    ) -> Result<usize, Errno> {
        self.renew();
        let deadline = timeout.filter(|t| !t.is_zero()).and_then(|t| Instant::now().checked_add(t));
        loop {
            let context = if self.accelerated.load(Ordering::Acquire) { self.context() } else { None };
            let context = context.as_deref();
            let turn = self.turns.fetch_add(1, Ordering::Relaxed);
            if locked::is_locked() {
                lock(&self.inner).enqueue_all();
            }
            // Sockets whose news goes to somebody else: seldom, unless there is nothing else to do.
            let seldom = turn.is_multiple_of(KERNEL_EVERY) && fork::may_dispute() && self.seek_disputed();
            let mut n = self.gather(out, context);
            if n == 0 && !seldom && fork::may_dispute() && self.seek_disputed() {
                n = self.gather(out, None);
            }
            let instant = timeout.is_some_and(|t| t.is_zero());
            let look = instant && n == 0
                || self.kernel.load(Ordering::Relaxed) && n < out.len() && turn.is_multiple_of(KERNEL_EVERY);
            if look {
                n += self.kernel_events(out, n, context, Some(Duration::ZERO), None)?;
            }
            if n > 0 || instant {
                self.stir_outer(context);
                return Ok(n);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left.is_some_and(|l| l.is_zero()) {
                // The last look at everything has found nothing.
                return self.kernel_events(out, 0, context, Some(Duration::ZERO), None);
            }
            let start = Instant::now();
            if let Some(context) = context
                && self.spin(context, left)
            {
                continue;
            }
            let n = self.sleep(out, left, mask, context)?;
            if let Some(context) = context {
                context.spin.waited(start.elapsed());
            }
            if n > 0 {
                let more = self.gather(&mut out[n..], context);
                return Ok(merge(out, n, more));
            }
        }
    }

    /// Asks the kernel's set; what it returns goes behind the first `n` of `out`. How many were added.
    fn kernel_events(
        &self,
        out: &mut [libc::epoll_event],
        n: usize,
        context: Option<&Context>,
        timeout: Option<Duration>,
        mask: Option<u64>,
    ) -> Result<usize, Errno> {
        let got = sys::epoll_wait(self.epfd, &mut out[n..], timeout, mask)?;
        let got = self.filter(&mut out[n..n + got], context);
        Ok(merge(out, n, got) - n)
    }

    fn spin(&self, context: &Context, left: Option<Duration>) -> bool {
        let regions: Vec<_> = {
            let inner = lock(&self.inner);
            if !inner.is_lonely() {
                return false;
            }
            inner.regions().cloned().collect()
        };
        let bells: Vec<_> = regions.iter().filter_map(|r| r.own_bell(context.number)).collect();
        context.spin.until(left, || bells.iter().any(|b| b.has_news()))
    }

    fn sleep(
        &self,
        out: &mut [libc::epoll_event],
        left: Option<Duration>,
        mask: Option<u64>,
        context: Option<&Context>,
    ) -> Result<usize, Errno> {
        let Some(context) = context else {
            let blind = self.accelerated.load(Ordering::Acquire) || locked::is_locked();
            let limit = if blind { Some(left.map_or(BLIND, |l| l.min(BLIND))) } else { left };
            return self.kernel_events(out, 0, None, limit, mask);
        };
        context.sleepers.fetch_add(1, Ordering::SeqCst);
        context.sleeping.store(true, Ordering::SeqCst);
        let (quiet, blind) = {
            let inner = lock(&self.inner);
            let asleep = |m: &Arc<crate::region::Mapped>| {
                m.own_bell(context.number).is_none_or(|bell| bell.prepare_sleep())
            };
            // One that has news ends it; what was announced before is withdrawn below.
            let quiet = inner.regions().all(asleep);
            let disputed = fork::may_dispute() && inner.is_disputed(self);
            (quiet && !inner.has_ready(), disputed || inner.is_mute() || locked::is_locked())
        };
        let limit = if blind { Some(left.map_or(BLIND, |l| l.min(BLIND))) } else { left };
        let result = if quiet { self.kernel_events(out, 0, Some(context), limit, mask) } else { Ok(0) };
        if context.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
            context.sleeping.store(false, Ordering::SeqCst);
            let regions: Vec<_> = lock(&self.inner).regions().cloned().collect();
            regions.iter().filter_map(|m| m.own_bell(context.number)).for_each(|b| b.awake());
        } else {
            // Others sleep on here and must hear of what we do not take.
            context.sleeping.store(true, Ordering::SeqCst);
            context.wake();
        }
        result
    }

    /// Sockets whose news goes to somebody else are looked at. False: there are none.
    fn seek_disputed(&self) -> bool {
        let Some(ours) = self.context_number() else { return false };
        lock(&self.inner).enqueue_disputed(ours)
    }

    /// It is in another set.
    pub fn is_nested(&self) {
        self.nested.store(true, Ordering::Relaxed);
    }

    /// What was reported is still so: the set around this one, in the kernel, has seen our bell only once.
    fn stir_outer(&self, context: Option<&Context>) {
        if self.nested.load(Ordering::Relaxed)
            && let Some(context) = context
            && lock(&self.inner).would_collect()
        {
            context.wake();
        }
    }

    /// True when `epoll_wait` would report something of ours: for a set that is itself waited for.
    pub fn is_ready(&self) -> bool {
        let context = self.context();
        let mut inner = lock(&self.inner);
        if let Some(context) = context
            && inner.drain(context.number)
        {
            drop(inner);
            context.client.pump();
            inner = lock(&self.inner);
        }
        if locked::is_locked() {
            inner.enqueue_all();
        }
        inner.would_collect()
    }

    /// True when some socket's other side rings nobody.
    pub fn is_mute(&self) -> bool {
        lock(&self.inner).is_mute()
    }

    /// Announces that somebody sleeps on the set as a whole. False: there is news.
    pub fn arm(&self) -> bool {
        let Some(context) = self.context() else { return true };
        context.sleeping.store(true, Ordering::SeqCst);
        let inner = lock(&self.inner);
        let asleep = |m: &Arc<crate::region::Mapped>| {
            m.own_bell(context.number).is_none_or(|bell| bell.prepare_sleep())
        };
        inner.regions().all(asleep) && !inner.would_collect()
    }

    /// Before a fork.
    pub fn hold_context(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |s| &s.context);
    }

    /// Before a fork, after the sockets' watchers.
    pub fn hold_interest(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |s| &s.inner);
    }

    /// One more descriptor stands for it.
    pub fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
    }

    /// One fewer. The last one ends the set.
    pub fn drop_descriptor(&self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let all = lock(&self.inner).all();
        all.iter().for_each(|(fd, sock)| sock.leave_set(self, *fd));
        if let Some(context) = lock(&self.context).take() {
            let _ = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_DEL, context.epfd(), None);
            context.give_back();
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

/// The kernel and we may both report a listener: `more` events behind the first `n` are merged into equal ones.
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
