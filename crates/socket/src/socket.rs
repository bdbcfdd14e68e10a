//! A socket of the program: undecided until `listen` or `connect`, then a connection or an accept queue in shared memory
//! (or no longer ours: such sockets leave the table).

mod holders;
pub mod io;
pub mod listener;
pub(crate) mod options;
pub(crate) mod pending_sockopts;
pub mod placeholder;
pub(crate) mod reported;
pub(crate) mod settings;
pub(crate) mod untold;
pub(crate) mod zerocopy;

use crate::socket::listener::Listener;
use crate::socket::settings::Settings;
use crate::socket::untold::Untold;
use crate::socket::zerocopy::Notices;
use crate::wait::watchers::Watchers;
use control::KernelReason;
use endpoint::blocked::Blocked;
use endpoint::lock::thread_number;
use endpoint::stream::ready;
use endpoint::{Endpoint, flags};
pub use holders::InUse;
use rustix::io::Errno;
use session::fork_locks::Held;
use session::{detached, host, lock};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// What a socket turned out to be.
#[derive(Debug, Clone, Copy)]
pub enum Role<'a> {
    /// A connection: a byte stream.
    Stream(&'a Endpoint),
    /// A listening socket with an accept queue; the kernel socket listens too.
    Listener(&'a Listener),
}

/// What a [`Role`] refers to.
#[derive(Debug)]
enum Decided {
    Stream(Endpoint),
    Listener(Box<Listener>),
}

/// Value of `Sock::deciding`: the descriptor came from another process. The first thread that asks for the role asks the service.
const INHERITED: u32 = u32::MAX;
/// Value of `Sock::deciding`: a connect was put off (see `rings`). The first thread that asks for the role makes it.
pub(crate) const LATER: u32 = u32::MAX - 1;

/// The part of a socket that can change at any time, under one lock.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    /// Threads and epoll sets that are told of the socket's news.
    pub(crate) watchers: Watchers,
    /// Options and state that the program has set; `None`: all defaults.
    pub(crate) settings: Option<Arc<Settings>>,
}

/// Bits of [`Sock`]'s `flags`.
pub(crate) mod flag {
    /// The family is `AF_INET6`.
    pub const IPV6: u16 = 1;
    /// The last descriptor is closed.
    pub const CLOSED: u16 = 1 << 1;
    /// `O_NONBLOCK`, until there is a link.
    pub const NONBLOCK: u16 = 1 << 2;
    /// `TCP_INQ`: `recvmsg` tells how much is left.
    pub const TELLS_UNREAD: u16 = 1 << 3;
    /// Inherited by a forked child that got no holder bit: only the parent may close the connection.
    pub const PARENTS: u16 = 1 << 4;
    /// Another object stands for the socket.
    pub const REPLACED: u16 = 1 << 5;
    /// The program had bound the socket when it connected.
    pub const BOUND: u16 = 1 << 6;
    /// The program has called `bind`, or it is not known what was done to the socket before.
    pub const NAMED: u16 = 1 << 8;
    /// The socket listens in the kernel. It is accelerated as soon as the program waits for it by a call that this library sees.
    pub const PUT_OFF: u16 = 1 << 9;
    /// Set beside `PUT_OFF`: the socket stays with the kernel for good.
    pub const LEFT: u16 = 1 << 10;
    /// `SO_TIMESTAMP` or one of its kind: `recvmsg` tells when the bytes came.
    pub const TELLS_TIME: u16 = 1 << 11;
    /// The descriptor refers to the common idle socket that many connections share (see `placeholder`).
    pub const COMMON: u16 = 1 << 12;
    /// A thread is replacing the common socket, or keeps the descriptor as it is for one call.
    pub const PARTING: u16 = 1 << 13;
}

/// A socket of the program. There may be very many: a socket's share of this library's memory is this, its place in the table, and
/// the two halves of a connection, which the service or the peer has to see.
#[derive(Debug)]
pub struct Sock {
    decided: OnceLock<Decided>,
    pub(crate) moving: Mutex<Moving>,
    /// Number of descriptors of this process that refer to the socket, plus `holders::USER` times the number of calls that wait for it.
    descriptors: AtomicU32,
    /// Number of the thread that is about to decide the role, in `connect`; 0: none; also `INHERITED` and `LATER`.
    pub(crate) deciding: AtomicU32,
    flags: AtomicU16,
    pub(crate) untold: Untold,
}

// With the counters of an `Arc`, what the allocator adds and a place in the table: 120 bytes.
const _: () = assert!(size_of::<Sock>() <= 88);

/// Guard of [`Sock::begin_deciding`]: while it lives, this thread decides the role of the socket.
#[derive(Debug)]
pub struct Deciding<'a>(Option<&'a AtomicU32>);

impl Deciding<'_> {
    /// False when another thread is already deciding.
    pub fn is_ours(&self) -> bool {
        self.0.is_some()
    }
}

/// Number of threads that are about to decide a role.
static DECIDING: AtomicU32 = AtomicU32::new(0);

/// True when no thread of this process is in the middle of a `connect`.
pub fn none_decides() -> bool {
    DECIDING.load(Ordering::Relaxed) == 0
}

/// Resets the count in a forked child, which has none of the parent's deciding threads.
pub fn nobody_decides() {
    DECIDING.store(0, Ordering::Relaxed);
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        if let Some(word) = self.0 {
            word.store(0, Ordering::Release);
            DECIDING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Sock {
    /// A new, undecided socket with one descriptor.
    #[must_use]
    pub fn new(family: i32, nonblock: bool) -> Self {
        let ipv6 = if family == libc::AF_INET6 { flag::IPV6 } else { 0 };
        let nonblock = if nonblock { flag::NONBLOCK } else { 0 };
        Self {
            decided: OnceLock::new(),
            moving: Mutex::new(Moving::default()),
            descriptors: AtomicU32::new(1),
            deciding: AtomicU32::new(0),
            flags: AtomicU16::new(ipv6 | nonblock),
            untold: Untold::default(),
        }
    }

    /// A socket for an accepted connection.
    #[must_use]
    pub fn accepted(family: i32, link: Endpoint) -> Self {
        let sock = Self::new(family, link.is_nonblocking());
        // A new cell is empty.
        let _ = sock.decided.set(Decided::Stream(link));
        sock
    }

    /// A socket for a descriptor that came from another program or process.
    #[must_use]
    pub fn inherited(family: i32, nonblock: bool, cookie: u64) -> Self {
        let sock = Self::new(family, nonblock);
        sock.set(|settings| settings.cookie = cookie);
        sock.note_named();
        sock.deciding.store(INHERITED, Ordering::Relaxed);
        sock
    }

    /// An undecided socket that takes the place of `old` behind its descriptors, with the same options.
    #[must_use]
    pub fn after(old: &Self) -> Self {
        let sock = Self::new(old.family(), old.is_nonblocking());
        sock.share_settings(old.settings());
        sock.note_named();
        sock.tell_as(old);
        if sock.cookie() != 0 {
            sock.set(|settings| settings.cookie = 0);
        }
        sock
    }

    /// `SO_COOKIE` of a socket that came from another process or was passed to one; else 0.
    pub fn cookie(&self) -> u64 {
        lock(&self.moving).settings.as_ref().map_or(0, |settings| settings.cookie)
    }

    #[inline]
    pub(crate) fn has(&self, flag: u16) -> bool {
        // Acquire: pairs with the Release of `mark`, for `CLOSED`.
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// Sets or clears a flag; returns whether it was set before.
    pub(crate) fn mark(&self, flag: u16, on: bool) -> bool {
        let before = match on {
            true => self.flags.fetch_or(flag, Ordering::AcqRel),
            false => self.flags.fetch_and(!flag, Ordering::AcqRel),
        };
        before & flag != 0
    }

    /// The address family: `AF_INET` or `AF_INET6`.
    #[must_use]
    pub fn family(&self) -> i32 {
        if self.has(flag::IPV6) { libc::AF_INET6 } else { libc::AF_INET }
    }

    /// `IPV6_ADDRFORM`: turns an IPv6 socket with an IPv4 connection into an IPv4 socket.
    pub fn become_ipv4(&self) {
        self.mark(flag::IPV6, false);
    }

    /// True when the last descriptor is closed.
    pub fn is_closed(&self) -> bool {
        self.has(flag::CLOSED)
    }

    /// Marks this object as replaced: another object stands for the same open socket.
    pub fn replace(&self) {
        self.mark(flag::REPLACED, true);
    }

    /// True when another object stands for the socket (see [`Self::replace`]).
    pub fn is_replaced(&self) -> bool {
        self.has(flag::REPLACED)
    }

    /// True for a connection that another process has taken.
    pub fn has_moved(&self) -> bool {
        matches!(self.decided(), Some(Role::Stream(link)) if link.is_elsewhere())
    }

    /// True when the program bound the socket (binding only its placeholder, as this library does, does not count).
    pub fn is_bound(&self) -> bool {
        self.has(flag::BOUND)
    }

    /// Notes that the program calls `bind`.
    pub fn note_named(&self) {
        self.mark(flag::NAMED, true);
    }

    /// True when the program has neither bound the socket nor set an option, and no other process can have done so.
    pub fn is_untouched(&self) -> bool {
        !self.has(flag::NAMED) && self.settings().is_none() && !host::may_dispute()
    }

    /// Notes that the placeholder was found to be bound.
    pub fn note_bound(&self) {
        self.mark(flag::BOUND, true);
    }

    /// True for a connection that [`Endpoint::is_unconnected`].
    pub fn is_unconnected(&self) -> bool {
        self.stream().is_some_and(Endpoint::is_unconnected)
    }

    /// Makes `recvmsg` report the same ancillary data as on `other` (`TCP_INQ`, timestamps).
    pub fn tell_as(&self, other: &Self) {
        for flag in [flag::TELLS_UNREAD, flag::TELLS_TIME] {
            self.mark(flag, other.has(flag));
        }
    }

    /// Decides the role: a connection at `link`. False when another thread has already decided.
    pub fn decide(&self, link: Endpoint) -> bool {
        self.decided.set(Decided::Stream(link)).is_ok()
    }

    /// Decides the role: the socket listens. False when another thread has already decided.
    pub fn decide_listener(&self, listener: Listener) -> bool {
        self.decided.set(Decided::Listener(Box::new(listener))).is_ok()
    }

    /// Announces that the calling thread is about to decide the role; until the guard is dropped, other threads that ask for it wait.
    /// Without that they could see an undecided socket although the peer has already accepted the connection.
    #[must_use]
    pub fn begin_deciding(&self) -> Deciding<'_> {
        self.begin_deciding_from(0)
    }

    /// [`Self::begin_deciding`], where `deciding` has the value `from`.
    pub(crate) fn begin_deciding_from(&self, from: u32) -> Deciding<'_> {
        let me = thread_number();
        let ours = self.deciding.compare_exchange(from, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if ours {
            DECIDING.fetch_add(1, Ordering::Relaxed);
        }
        Deciding(ours.then_some(&self.deciding))
    }

    /// The role, once decided; waits for a thread that is deciding.
    #[inline]
    pub fn role(&self) -> Option<Role<'_>> {
        match self.decided() {
            None if self.deciding.load(Ordering::Acquire) != 0 => self.decided_by_another(),
            role => role,
        }
    }

    /// The role, if it is already decided; does not wait.
    #[inline]
    pub fn decided(&self) -> Option<Role<'_>> {
        Some(match self.decided.get()? {
            Decided::Stream(link) => Role::Stream(link),
            Decided::Listener(listener) => Role::Listener(listener),
        })
    }

    /// The connection, if the socket is one.
    #[inline]
    pub fn stream(&self) -> Option<&Endpoint> {
        match self.role() {
            Some(Role::Stream(link)) => Some(link),
            _ => None,
        }
    }

    /// The listener, if the socket is one.
    #[inline]
    pub fn listener(&self) -> Option<&Listener> {
        match self.role() {
            Some(Role::Listener(listener)) => Some(listener),
            _ => None,
        }
    }

    /// The connection, if the role is already decided and the socket is one; does not wait.
    #[inline]
    pub fn link(&self) -> Option<&Endpoint> {
        match self.decided.get() {
            Some(Decided::Stream(link)) => Some(link),
            _ => None,
        }
    }

    /// `O_NONBLOCK` as the program set it.
    #[inline]
    pub fn is_nonblocking(&self) -> bool {
        match self.decided() {
            Some(Role::Stream(link)) => link.is_nonblocking(),
            Some(Role::Listener(listener)) => listener.queue.is_nonblocking(),
            None => self.has(flag::NONBLOCK),
        }
    }

    /// Sets or clears `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        self.mark(flag::NONBLOCK, on);
        if let Some(Role::Listener(listener)) = self.decided() {
            listener.queue.set_nonblocking(on);
        }
        if let Some(link) = self.link() {
            let flags = &link.block().flags;
            if on {
                flags.fetch_or(flags::NONBLOCK, Ordering::Relaxed);
            } else {
                flags.fetch_and(!flags::NONBLOCK, Ordering::Relaxed);
            }
        }
    }

    /// What the program has set; `None`: nothing.
    pub fn settings(&self) -> Option<Arc<Settings>> {
        lock(&self.moving).settings.clone()
    }

    /// Changes the settings; they are copied first if other sockets share them.
    pub fn set(&self, how: impl FnOnce(&mut Settings)) {
        how(Arc::make_mut(lock(&self.moving).settings.get_or_insert_default()));
    }

    /// True once after the kernel refused a connect that had returned EINPROGRESS: the next `connect` goes to the kernel, which reports it.
    pub fn take_refusal(&self) -> bool {
        let mut moving = lock(&self.moving);
        let refused = moving.settings.as_mut().filter(|settings| settings.is_refused);
        refused.map(|settings| Arc::make_mut(settings).is_refused = false).is_some()
    }

    /// Takes over the settings of the listener that this connection was accepted from.
    pub fn share_settings(&self, settings: Option<Arc<Settings>>) {
        let counts = settings.as_ref().is_some_and(|settings| settings.notices.is_some());
        lock(&self.moving).settings = settings;
        if counts {
            self.set(|settings| {
                settings.notices = settings.notices.take().map(|before| Arc::new(before.fresh()));
            });
        }
    }

    /// Completion notices of `MSG_ZEROCOPY`, if `SO_ZEROCOPY` was ever set.
    pub fn notices(&self) -> Option<Arc<Notices>> {
        lock(&self.moving).settings.as_ref()?.notices.clone()
    }

    /// Why this socket is never accelerated; `None`: it may be.
    pub fn kernel_only(&self) -> Option<KernelReason> {
        lock(&self.moving).settings.as_ref()?.kernel_only
    }

    /// Keeps the socket in the kernel for `reason`; an earlier reason stays.
    pub fn keep_in_kernel(&self, reason: KernelReason) {
        self.set(|settings| {
            settings.kernel_only.get_or_insert(reason);
        });
    }

    /// Longest time that a receive may wait (`SO_RCVTIMEO`); `None`: no limit.
    pub fn receive_limit(&self) -> Option<Duration> {
        lock(&self.moving).settings.as_ref()?.options.receive_limit()
    }

    /// Longest time that a send may wait (`SO_SNDTIMEO`); `None`: no limit.
    pub fn send_limit(&self) -> Option<Duration> {
        lock(&self.moving).settings.as_ref()?.options.send_limit()
    }

    /// What the socket is ready for: bits of [`ready`].
    #[inline]
    pub fn readiness(&self) -> u32 {
        match self.decided() {
            // Reported as ready, so that the program makes a call; that call takes the connection back from the other process.
            Some(Role::Stream(link)) if link.is_elsewhere() => {
                ready::IN | ready::RDNORM | ready::OUT | ready::WRNORM
            }
            Some(Role::Stream(link)) => link.stream_readiness(),
            // In a locked process only the kernel's queue is used.
            Some(Role::Listener(listener)) if listener.has_any() && !detached::is_locked() => {
                ready::IN | ready::RDNORM
            }
            Some(Role::Listener(_)) => 0,
            None => 0,
        }
    }

    /// [`Endpoint::can_go_on`] of the connection; true for anything else, also for a connection that another process has taken: the call
    /// takes it back. A thread that slept on would not be told of it again.
    #[inline]
    pub fn can_go_on(&self, call: Blocked) -> bool {
        match self.decided() {
            Some(Role::Stream(link)) => link.is_elsewhere() || link.can_go_on(call),
            _ => true,
        }
    }

    /// [`Endpoint::is_held_back`] of the connection; false for anything else.
    pub fn is_held_back(&self, readiness: u32) -> bool {
        matches!(self.decided(), Some(Role::Stream(link)) if link.is_held_back(readiness))
    }

    /// [`Endpoint::pulse`]; of a listener, the number of connections that came.
    #[inline]
    pub fn pulse(&self) -> (u64, u32) {
        match self.decided() {
            Some(Role::Stream(link)) => link.pulse(),
            Some(Role::Listener(listener)) => (u64::from(listener.queue.accepting().arrivals()), 0),
            None => (0, 0),
        }
    }

    /// Locks the socket before a fork.
    pub fn hold(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |s| &s.moving);
    }

    /// In a forked child: forgets the parent's waiting threads, and its `connect` in progress, which goes on in the parent only.
    /// False: another thread had this socket locked (it was made after the other locks were taken), so it cannot be used here.
    pub fn forget_threads(&self) -> bool {
        self.forget_calls();
        if self.deciding.load(Ordering::Relaxed) != INHERITED {
            self.deciding.store(0, Ordering::Relaxed);
        }
        self.moving.try_lock().map(|mut moving| moving.watchers.forget_threads()).is_ok()
    }

    /// The pending error for `SO_ERROR` (an errno, or 0); clears it.
    pub fn take_error(&self) -> i32 {
        self.stream().and_then(Endpoint::pending_error).map_or(0, Errno::raw_os_error)
    }

    /// True for a connection during its handshake.
    pub fn is_connecting(&self) -> bool {
        self.stream().is_some_and(Endpoint::is_connecting)
    }
}

#[cfg(test)]
mod tests;
