//! A socket of the program: undecided until `listen` or `connect`, then a connection or an accept queue in shared memory
//! (or no longer ours: such sockets leave the table).

use crate::client::{self, lock};
use crate::context::Context;
use crate::epoll::Set;
use crate::hold::Held;
use crate::link::{Link, flags, state, thread_number};
use crate::notices::Notices;
use crate::stream::ready;
use control::{RECORD_LEN, Request};
use queue::stream::watch;
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// What a socket turned out to be.
#[derive(Debug)]
pub enum Role {
    /// A connection.
    Stream(Link),
    /// An accept queue; the kernel socket listens too.
    Listener(Link),
}

/// An option set: level, name, value.
pub type Kept = (i32, i32, Box<[u8]>);

/// Who wants to know what happens to a socket.
#[derive(Debug, Default)]
pub struct Watchers {
    /// Threads that sleep right now.
    threads: Vec<Arc<Context>>,
    /// Sets that hold it, with the descriptor they know it by.
    sets: Vec<(Weak<Set>, RawFd)>,
}

/// See the module.
#[derive(Debug)]
pub struct Sock {
    /// `AF_INET` or `AF_INET6`; `IPV6_ADDRFORM` changes it.
    family: AtomicI32,
    /// A descriptor that stands for it.
    pub fd: AtomicI32,
    /// How many descriptors of this process do.
    descriptors: AtomicU32,
    /// The last one is closed.
    pub closed: AtomicBool,
    nonblock: AtomicBool,
    /// `SO_RCVTIMEO`, nanoseconds; 0: none.
    pub receive_timeout: AtomicU64,
    /// `SO_SNDTIMEO`.
    pub send_timeout: AtomicU64,
    /// `SO_LINGER` in seconds, -1 when off.
    pub linger: AtomicI64,
    /// Something was set that only the kernel can honour: why this socket is never accelerated.
    pub kernel_only: OnceLock<&'static str>,
    /// `TCP_INQ`: `recvmsg` tells how much is left.
    pub tells_unread: AtomicBool,
    /// Of `MSG_ZEROCOPY`.
    pub notices: Notices,
    /// Options set that an accepted socket inherits.
    pub kept: Mutex<Vec<Kept>>,
    role: OnceLock<Role>,
    /// The thread whose `connect` is about to decide; 0: none.
    deciding: AtomicU32,
    watchers: Mutex<Watchers>,
    /// Inherited by a child that got no holder bit: the parent's to close, and to accept from.
    pub parents: AtomicBool,
    /// The forked child's own accept queue for an inherited listener, by fork generation.
    pub shared: Mutex<Option<(u32, Option<Arc<Link>>)>>,
}

/// See [`Sock::begin_deciding`].
#[derive(Debug)]
pub struct Deciding<'a>(Option<&'a AtomicU32>);

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            word.store(0, Ordering::Release);
        }
    }
}

impl Sock {
    /// A new socket behind `fd`.
    #[must_use]
    pub fn new(family: i32, fd: RawFd, nonblock: bool) -> Self {
        Self {
            family: AtomicI32::new(family),
            fd: AtomicI32::new(fd),
            descriptors: AtomicU32::new(1),
            closed: AtomicBool::new(false),
            nonblock: AtomicBool::new(nonblock),
            receive_timeout: AtomicU64::new(0),
            send_timeout: AtomicU64::new(0),
            linger: AtomicI64::new(-1),
            kernel_only: OnceLock::new(),
            tells_unread: AtomicBool::new(false),
            notices: Notices::default(),
            kept: Mutex::new(Vec::new()),
            role: OnceLock::new(),
            deciding: AtomicU32::new(0),
            watchers: Mutex::new(Watchers::default()),
            parents: AtomicBool::new(false),
            shared: Mutex::new(None),
        }
    }

    /// An accepted connection.
    #[must_use]
    pub fn accepted(family: i32, fd: RawFd, link: Link) -> Self {
        let sock = Self::new(family, fd, link.is_nonblocking());
        // A new cell is empty.
        let _ = sock.role.set(Role::Stream(link));
        sock
    }

    /// `AF_INET` or `AF_INET6`.
    #[must_use]
    pub fn family(&self) -> i32 {
        self.family.load(Ordering::Relaxed)
    }

    /// `IPV6_ADDRFORM`: an IPv4 connection stops to pass for one of IPv6.
    pub fn become_ipv4(&self) {
        self.family.store(libc::AF_INET, Ordering::Relaxed);
    }

    /// Decides. False when somebody was quicker.
    pub fn decide(&self, role: Role) -> bool {
        self.role.set(role).is_ok()
    }

    /// Says that the calling thread is about to decide; until the guard is gone, other threads that ask what it is wait.
    /// The peer may have accepted already, and they may know.
    #[must_use]
    pub fn begin_deciding(&self) -> Deciding<'_> {
        let me = thread_number();
        let ours = self.deciding.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        Deciding(ours.then_some(&self.deciding))
    }

    /// What it is, once decided.
    #[inline]
    pub fn role(&self) -> Option<&Role> {
        match self.role.get() {
            None if self.deciding.load(Ordering::Acquire) != 0 => self.decided_by_another(),
            role => role,
        }
    }

    /// Waits for the thread that decides, unless it is this one (a signal handler interrupted its `connect`).
    #[cold]
    fn decided_by_another(&self) -> Option<&Role> {
        let me = thread_number();
        loop {
            let thread = self.deciding.load(Ordering::Acquire);
            let role = self.role.get();
            if role.is_some() || thread == 0 || thread == me {
                return role;
            }
            rustix::thread::sched_yield();
        }
    }

    /// The connection, if it is one.
    #[inline]
    pub fn stream(&self) -> Option<&Link> {
        match self.role() {
            Some(Role::Stream(link)) => Some(link),
            _ => None,
        }
    }

    /// The accept queue, if it is one.
    #[inline]
    pub fn listener(&self) -> Option<&Link> {
        match self.role() {
            Some(Role::Listener(link)) => Some(link),
            _ => None,
        }
    }

    /// Its place in shared memory.
    #[inline]
    pub fn link(&self) -> Option<&Link> {
        match self.role.get()? {
            Role::Stream(link) | Role::Listener(link) => Some(link),
        }
    }

    /// `O_NONBLOCK` as the program set it.
    #[inline]
    pub fn is_nonblocking(&self) -> bool {
        match self.link() {
            Some(link) => link.is_nonblocking(),
            None => self.nonblock.load(Ordering::Relaxed),
        }
    }

    /// Sets `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblock.store(on, Ordering::Relaxed);
        if let Some(link) = self.link() {
            let flags = &link.block().flags;
            if on {
                flags.fetch_or(flags::NONBLOCK, Ordering::Relaxed);
            } else {
                flags.fetch_and(!flags::NONBLOCK, Ordering::Relaxed);
            }
        }
    }

    /// How long a receive may wait.
    pub fn receive_limit(&self) -> Option<Duration> {
        limit(&self.receive_timeout)
    }

    /// How long a send may wait.
    pub fn send_limit(&self) -> Option<Duration> {
        limit(&self.send_timeout)
    }

    /// What it is ready for.
    #[inline]
    pub fn readiness(&self) -> u32 {
        match self.role.get() {
            Some(Role::Stream(link)) => link.stream_readiness(),
            Some(Role::Listener(link)) => self.listener_readiness(link),
            None => 0,
        }
    }

    /// See [`Link::pulse`]; for a listener, of both its queues.
    pub fn pulse(&self) -> (u64, u32) {
        let Some(link) = self.link() else { return (0, 0) };
        let (bytes, stalls) = link.pulse();
        let own = crate::listener::own_queue(self).map_or(0, |own| own.pulse().0);
        (bytes.wrapping_add(own), stalls)
    }

    fn listener_readiness(&self, link: &Link) -> u32 {
        let waiting = link.unread() >= RECORD_LEN
            || crate::listener::own_queue(self).is_some_and(|own| own.unread() >= RECORD_LEN);
        if waiting { ready::IN | ready::RDNORM } else { 0 }
    }

    /// One more descriptor stands for it.
    pub fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
    }

    /// One fewer. The last one lets the connection go.
    pub fn drop_descriptor(&self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let watchers = {
            let mut watchers = lock(&self.watchers);
            std::mem::take(&mut *watchers)
        };
        for (set, fd) in &watchers.sets {
            if let Some(set) = set.upgrade() {
                set.forget(*fd, self);
            }
        }
        if let (Some(role), false) = (self.role.get(), self.parents.load(Ordering::Relaxed)) {
            self.let_go(role);
        }
        watchers.threads.iter().for_each(|context| context.wake());
    }

    /// This process holds it no more.
    fn let_go(&self, role: &Role) {
        let client = client::present();
        let ours = client.as_ref().map_or(u64::MAX, |c| c.holder_bit());
        match role {
            Role::Stream(link) => {
                let linger = self.linger.load(Ordering::Relaxed);
                if linger > 0 && !link.mapped.pair {
                    crate::wait::sent(link, Duration::from_secs(linger as u64));
                }
                let last = link.release(ours, linger == 0);
                if let (true, false, Some(client)) = (last, link.mapped.pair, client) {
                    client.say(Request::Closed { region: link.mapped.id, slot: link.slot });
                }
            }
            Role::Listener(link) => crate::listener::close(self, link, ours, client.as_deref()),
        }
    }

    /// A set wants to know.
    pub fn join_set(&self, set: Weak<Set>, fd: RawFd) {
        let mut watchers = lock(&self.watchers);
        watchers.sets.push((set, fd));
        if watchers.sets.len() > 1 {
            crate::fork::dispute();
        }
        self.announce(&watchers);
    }

    /// A set does not want to know any more.
    pub fn leave_set(&self, set: &Set, fd: RawFd) {
        let mut watchers = lock(&self.watchers);
        watchers.sets.retain(|(s, f)| !(*f == fd && std::ptr::eq(s.as_ptr(), set)));
        self.announce(&watchers);
    }

    /// Another context speaks for a set now, or the role was just decided.
    pub fn announce_again(&self) {
        self.announce(&lock(&self.watchers));
    }

    /// A thread is about to sleep on it: it is told first, and passes on to the others what it is told.
    pub fn enter(&self, context: &Arc<Context>) {
        let mut watchers = lock(&self.watchers);
        watchers.threads.push(context.clone());
        self.announce(&watchers);
    }

    /// It sleeps no more. Whatever it was told, the others look for themselves.
    pub fn leave(&self, context: &Arc<Context>) {
        let mut watchers = lock(&self.watchers);
        if let Some(i) = watchers.threads.iter().rposition(|c| Arc::ptr_eq(c, context)) {
            watchers.threads.remove(i);
        }
        self.announce(&watchers);
        drop(watchers);
        self.pass_on(None);
    }

    /// Everybody else who wants to know looks again.
    pub fn pass_on(&self, but: Option<&Arc<Context>>) {
        let (threads, sets) = {
            let watchers = lock(&self.watchers);
            let others = watchers.threads.iter().filter(|c| but.is_none_or(|b| !Arc::ptr_eq(b, c)));
            let sets = watchers.sets.iter().filter_map(|(set, fd)| Some((set.upgrade()?, *fd)));
            (others.cloned().collect::<Vec<_>>(), sets.collect::<Vec<_>>())
        };
        threads.iter().for_each(|context| context.wake());
        sets.iter().for_each(|(set, fd)| set.poke(*fd));
    }

    /// Sets that hold it.
    pub fn sets(&self) -> Vec<(Arc<Set>, RawFd)> {
        lock(&self.watchers).sets.iter().filter_map(|(set, fd)| Some((set.upgrade()?, *fd))).collect()
    }

    /// Writes into our half who is told: the thread that came last, else the first set.
    fn announce(&self, watchers: &Watchers) {
        let Some(link) = self.link() else { return };
        let thread = watchers.threads.last().map(|c| c.number);
        let context =
            thread.or_else(|| watchers.sets.iter().find_map(|(set, _)| set.upgrade()?.context_number()));
        watch(link.halves().0, context);
        if let Some(own) = crate::listener::own_queue(self) {
            watch(own.halves().0, context);
        }
    }

    /// Before a fork.
    pub fn hold_watchers(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |s| &s.watchers);
    }

    /// In a forked child: nobody sleeps here yet, and a `connect` that another thread was in goes on in the parent alone.
    pub fn forget_threads(&self) {
        self.deciding.store(0, Ordering::Relaxed);
        if let Ok(mut watchers) = self.watchers.try_lock() {
            watchers.threads.clear();
        }
    }

    /// What `SO_ERROR` says, and clears.
    pub fn take_error(&self) -> i32 {
        let Some(link) = self.stream() else { return 0 };
        let _ = link.peer_flags();
        link.take_error().map_or(0, Errno::raw_os_error)
    }

    /// True for a connection whose handshake is under way.
    pub fn is_connecting(&self) -> bool {
        self.stream().is_some_and(|link| {
            let _ = link.peer_flags();
            link.state() & (state::OPEN | state::OVER) == 0 && !link.is_open()
        })
    }
}

fn limit(ns: &AtomicU64) -> Option<Duration> {
    match ns.load(Ordering::Relaxed) {
        0 => None,
        ns => Some(Duration::from_nanos(ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_while_another_thread_connects_hears_what_became_of_it() {
        let sock = Sock::new(libc::AF_INET, -1, false);
        let answered = AtomicBool::new(false);
        let deciding = sock.begin_deciding();
        assert!(sock.role().is_none(), "a signal handler of the connecting thread does not wait for itself");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(sock.stream().is_none());
                answered.store(true, Ordering::Release);
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!answered.load(Ordering::Acquire));
            drop(deciding);
        });
        assert!(answered.load(Ordering::Acquire) && sock.role().is_none());
    }
}
