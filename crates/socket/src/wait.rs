//! Blocking: one sleeping thread, any number of descriptors of both kinds.
//!
//! `EINTR`: our sleep is a poll, which the kernel never restarts. A blocking call without a time limit restarts itself
//! unless some handler of the process was installed without `SA_RESTART` (the kernel decides by the one handler that ran;
//! which one that was cannot be found out afterwards).

pub mod poll;
pub mod sigio;
pub(crate) mod watchers;

use crate::epoll::{Asleep, SETS_DEEP, Set};
use crate::socket::{InUse, Role, Sock};
use cycles::Section;
use endpoint::Endpoint;
use endpoint::blocked::Blocked;
use endpoint::region::Mapped;
use endpoint::stream::ready;
use queue::Doorbell;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::accept_queue::{Queue, Rest};
use session::nap::Place;
use session::sleeper::{self, Context};
use session::sys::signal::Deferred;
use session::sys::small_vec::Few;
use session::sys::{self, cycle_account};
use session::{self, cancel, detached};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep when no context is left to be woken through, or when the other side sends no wake-ups: then the thread polls.
const BLIND: Duration = Duration::from_millis(1);
/// Up to this many `pollfd` entries are kept on the stack.
const FEW: usize = 16;

/// How long a call that finds its connection in another process waits before it takes the connection back.
const YIELD: Duration = Duration::from_millis(5);

/// One accelerated object that a thread waits for.
#[derive(Debug)]
pub enum Party {
    /// A socket and the bits of readiness that end the wait.
    Sock(Arc<Sock>, u32),
    /// A listener, of a thread that accepts: of several that sleep one is woken.
    Acceptor(Arc<Sock>),
    /// A connection. The thread's call is woken only by what it can act on.
    Caller(Arc<Sock>, Blocked),
    /// An epoll set, for the accelerated sockets in it. Its descriptor is polled in the kernel beside that.
    Set(Arc<Set>),
}

/// What one wait is for.
pub type Parties = Few<Party, 4>;

impl Party {
    /// Which of the wanted bits it is ready for.
    pub fn ready(&self) -> u32 {
        match self {
            Self::Sock(sock, _) if sock.is_closed() => libc::POLLNVAL as u32,
            Self::Sock(sock, wanted) => sock.readiness() & wanted,
            Self::Acceptor(sock) if sock.is_closed() => libc::POLLNVAL as u32,
            Self::Acceptor(sock) => sock.readiness() & ready::IN,
            Self::Caller(sock, call) => {
                if sock.is_closed() || sock.can_go_on(*call) {
                    ready::IN
                } else {
                    0
                }
            }
            Self::Set(set) => {
                if set.look(SETS_DEEP).is_ready {
                    ready::IN | ready::RDNORM
                } else {
                    0
                }
            }
        }
    }

    /// Counts a call that waits for the socket. `None`: the socket is closed, or this is an epoll set.
    pub fn begin_use(&self) -> Option<InUse> {
        match self {
            Self::Sock(sock, _) | Self::Acceptor(sock) | Self::Caller(sock, _) => sock.begin_use().ok(),
            Self::Set(_) => None,
        }
    }
}

/// The shorter of `limit` and `most`.
pub fn at_most(limit: Option<Duration>, most: Duration) -> Duration {
    limit.map_or(most, |limit| limit.min(most))
}

fn left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|d| d.saturating_duration_since(Instant::now()))
}

/// Calls `then` with `len` empty `pollfd` entries.
pub fn with_entries<R>(len: usize, then: impl FnOnce(&mut [libc::pollfd]) -> R) -> R {
    const NOBODY: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };
    if len <= FEW { then(&mut [NOBODY; FEW][..len]) } else { then(&mut vec![NOBODY; len]) }
}

/// Waits until one of `parties` is ready, the kernel reports something in `kernel`, or `deadline`. It may return early: the caller
/// looks again. Returns how many entries of `kernel` have events.
///
/// # Errors
/// EINTR.
pub fn sleep(
    parties: &Parties,
    kernel: &mut [libc::pollfd],
    deadline: Option<Instant>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    sleep_after(true, parties, kernel, Until { deadline, mask })
}

/// When a sleep ends at the latest, and the signals that are put off until then; `None`: those that are put off now.
#[derive(Clone, Copy)]
struct Until {
    deadline: Option<Instant>,
    mask: Option<u64>,
}

/// As [`sleep`]; `spins` says whether to spin first.
fn sleep_after(
    spins: bool,
    parties: &Parties,
    kernel: &mut [libc::pollfd],
    until: Until,
) -> Result<usize, Errno> {
    let Until { deadline, mask } = until;
    if detached::is_locked() {
        let _waiting = cycle_account::enter(Section::Wait);
        return look(parties, kernel, deadline, mask);
    }
    let is_ready = || parties.iter().any(|party| party.ready() != 0);
    if let (Some(sock), true, None) = (only(parties), kernel.is_empty() && spins, mask)
        && let Some(link) = alone(sock)
    {
        return sleep_alone(sock, link, is_ready, deadline, None);
    }
    let context = session::present().and_then(|client| sleeper::of_thread(&client).ok());
    spin_and_sleep(spins, context, kernel, until, is_ready, |context, kernel| {
        socks(parties).for_each(|sock| {
            sock.enter(context);
        });
        let result = doze(context, parties, kernel, deadline, mask);
        socks(parties).for_each(|sock| sock.leave(context));
        result
    })
}

/// Spins, if `spins` and it pays, until `is_ready` or the kernel reports something in `kernel`; then calls `doze` with `context`, this
/// thread's. A thread without a context sleeps for [`BLIND`] at most.
#[inline]
fn spin_and_sleep(
    spins: bool,
    context: Option<Arc<Context>>,
    kernel: &mut [libc::pollfd],
    Until { deadline, mask }: Until,
    is_ready: impl Fn() -> bool,
    doze: impl FnOnce(&Arc<Context>, &mut [libc::pollfd]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let _waiting = cycle_account::enter(Section::Wait);
    let Some(context) = context else {
        return cancel::poll(kernel, Some(at_most(left(deadline), BLIND)), mask);
    };
    let start = Instant::now();
    if spins && context.spin.until(left(deadline), is_ready, || has_news(kernel))? {
        return Ok(0);
    }
    let result = doze(&context, kernel);
    context.spin.waited(start.elapsed());
    result
}

/// Whether the kernel reports something in `kernel` right now.
///
/// # Errors
/// EINTR.
pub fn has_news(kernel: &mut [libc::pollfd]) -> Result<bool, Errno> {
    Ok(!kernel.is_empty() && sys::poll(kernel, Some(Duration::ZERO), None)? > 0)
}

/// As [`sleep`] after the process has locked itself in (seccomp): nothing wakes it, so it polls at intervals.
#[cold]
fn look(
    parties: &Parties,
    kernel: &mut [libc::pollfd],
    deadline: Option<Instant>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    let start = Instant::now();
    loop {
        let slice = detached::slice(start.elapsed());
        let left = at_most(left(deadline), slice);
        let reported = cancel::poll(kernel, Some(left), mask)?;
        if let Some(client) = session::present() {
            client.look_for_end();
        }
        if reported > 0 || left < slice || parties.iter().any(|party| party.ready() != 0) {
            return Ok(reported);
        }
    }
}

fn socks(parties: &Parties) -> impl Iterator<Item = &Arc<Sock>> {
    parties.iter().filter_map(|party| match party {
        Party::Sock(sock, _) | Party::Acceptor(sock) | Party::Caller(sock, _) => Some(sock),
        Party::Set(_) => None,
    })
}

/// The socket, if a thread waits for one only.
fn only(parties: &Parties) -> Option<&Arc<Sock>> {
    let mut all = parties.iter();
    match (all.next(), all.next()) {
        (Some(Party::Sock(sock, _) | Party::Caller(sock, _)), None) => Some(sock),
        _ => None,
    }
}

/// The accept queues among `parties`, and whether the thread accepts there.
fn queues(parties: &Parties) -> impl Iterator<Item = (&Arc<Queue>, bool)> {
    parties.iter().filter_map(|party| {
        let (sock, is_acceptor) = match party {
            Party::Sock(sock, _) => (sock, false),
            Party::Acceptor(sock) => (sock, true),
            Party::Caller(..) | Party::Set(_) => return None,
        };
        match sock.decided() {
            Some(Role::Listener(listener)) => Some((&listener.queue, is_acceptor)),
            _ => None,
        }
    })
}

/// Shows the doorbells of `context` in every region that brings news of `parties`.
fn each_bell(parties: &Parties, context: u32, mut show: impl FnMut(Doorbell<'_>)) {
    let mut last: *const Mapped = ptr::null();
    for sock in socks(parties) {
        // Sockets of one region often follow one another.
        if let Some(link) = sock.link()
            && !ptr::eq(last, Arc::as_ptr(&link.mapped))
        {
            last = Arc::as_ptr(&link.mapped);
            link.mapped.own_bell(context).into_iter().for_each(&mut show);
        }
    }
}

fn doze(
    context: &Context,
    parties: &Parties,
    kernel: &mut [libc::pollfd],
    deadline: Option<Instant>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    let is_deaf = context.is_deaf();
    context.sleeping.announce();
    let mut quiet = true;
    each_bell(parties, context.number, |bell| {
        // News from before is not lost: the sockets' readiness is checked below.
        bell.drain(u32::MAX, |_| ());
        quiet &= bell.prepare_sleep();
    });
    let mut rests: Few<Rest, 2> = Few::default();
    let mut is_crowded = false;
    for (queue, is_acceptor) in queues(parties) {
        match Rest::new(queue, &context.client, context.number, is_acceptor) {
            Some(rest) => {
                quiet &= rest.prepare_sleep();
                rests.push(rest);
            }
            None => is_crowded = true,
        }
    }
    let mut asleep = Asleep::default();
    for party in parties.iter() {
        if let Party::Set(set) = party {
            quiet &= set.enter_all(context, SETS_DEEP, &mut asleep);
        }
    }
    quiet = quiet && parties.iter().all(|party| party.ready() == 0);
    let limit = left(deadline);
    let is_mute = socks(parties).any(|sock| sock.link().is_some_and(|link| link.mapped.is_mute()));
    let limit = if is_mute || is_deaf || is_crowded || asleep.is_blind() {
        Some(at_most(limit, BLIND))
    } else {
        limit
    };
    let result = if quiet { block(context, kernel, limit, mask) } else { Ok(0) };
    rests.iter().for_each(Rest::take_turn);
    asleep.leave();
    context.sleeping.awake();
    each_bell(parties, context.number, |bell| bell.awake());
    result
}

fn block(
    context: &Context,
    kernel: &mut [libc::pollfd],
    limit: Option<Duration>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    if kernel.is_empty() {
        // The usual case needs one system call only.
        return context.sleep(limit, mask).map(|_| 0);
    }
    let count = kernel.len();
    with_entries(count + 1, |all| {
        all[..count].copy_from_slice(kernel);
        all[count] = libc::pollfd { fd: context.epfd(), events: libc::POLLIN, revents: 0 };
        cancel::poll(all, limit, mask)?;
        kernel.copy_from_slice(&all[..count]);
        if all[count].revents != 0 {
            context.harvest();
        }
        Ok(kernel.iter().filter(|k| k.revents != 0).count())
    })
}

/// What a wait does after a signal if all handlers were installed with `SA_RESTART`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restarts {
    /// Goes on if the wait has no time limit.
    Yes,
    /// Ends: the call has something to return already.
    No,
}

/// How long a call waits, and what a signal does to it.
#[derive(Debug, Clone, Copy)]
pub struct Patience<'a> {
    /// When the wait ends; `None`: never.
    pub deadline: Option<Instant>,
    /// What a signal does to the call.
    pub after_signals: Restarts,
    /// Signals put off by the caller, which are let in only during the sleep.
    pub deferred: Option<&'a Deferred>,
}

impl Patience<'_> {
    /// For a call that has nothing to return yet.
    pub fn until(deadline: Option<Instant>) -> Self {
        Self { deadline, after_signals: Restarts::Yes, deferred: None }
    }
}

/// True when a call that waits until `deadline` goes on after a signal.
pub fn restarts(deadline: Option<Instant>) -> bool {
    deadline.is_none() && !sys::some_handler_interrupts()
}

/// Waits until `call` on the connection `sock` can go on. It may return early: the caller tries its operation again. True: the time limit
/// has passed, and the caller tries once more, the last time.
///
/// # Errors
/// EINTR, EBADF when another thread closed the socket, ENOTCONN when another process has taken the connection.
pub fn for_call(sock: &Arc<Sock>, call: Blocked, patience: Patience<'_>) -> Result<bool, Errno> {
    if let Some(link) = alone(sock) {
        let is_ready = || sock.is_closed() || sock.can_go_on(call);
        let sleep = |deadline, mask| sleep_alone(sock, link, is_ready, deadline, mask);
        return for_party(sock, sleep, patience);
    }
    let parties = Parties::from_iter([Party::Caller(sock.clone(), call)]);
    for_party(sock, |deadline, mask| sleep(&parties, &mut [], deadline, mask), patience)
}

/// As [`for_call`] for a listener, or until the kernel has a connection to accept at `fd`. Does not spin: see
/// [`spin_for_listener`].
///
/// # Errors
/// As [`for_call`].
pub fn for_listener(sock: &Arc<Sock>, fd: Option<RawFd>, patience: Patience<'_>) -> Result<bool, Errno> {
    let mut kernel = [libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 }];
    let parties = Parties::from_iter([Party::Acceptor(sock.clone())]);
    let kernel = &mut kernel[..usize::from(fd.is_some())];
    let sleep = |deadline, mask| sleep_after(false, &parties, kernel, Until { deadline, mask });
    for_party(sock, sleep, patience)
}

/// Spins, if it pays, until `sock` has something to accept (then true) or the kernel has at `fd`.
///
/// # Errors
/// EINTR.
pub fn spin_for_listener(sock: &Sock, fd: Option<RawFd>, deadline: Option<Instant>) -> Result<bool, Errno> {
    let _waiting = cycle_account::enter(Section::Wait);
    let is_ready = || sock.is_closed() || sock.readiness() & (ready::IN | ready::ALWAYS) != 0;
    let Some(context) = session::present().and_then(|client| sleeper::of_thread(&client).ok()) else {
        return Ok(false);
    };
    let mut kernel = [libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 }];
    match context.spin.until(left(deadline), is_ready, || has_news(&mut kernel)) {
        Err(Errno::INTR) if restarts(deadline) => Ok(false),
        result => result,
    }
}

/// The connection of `sock`, if it can be waited for by [`sleep_alone`].
fn alone(sock: &Sock) -> Option<&Endpoint> {
    match sock.decided() {
        Some(Role::Stream(link)) if !detached::is_locked() => Some(link),
        _ => None,
    }
}

/// As [`sleep`] for one connection: the usual wait of a blocking call. It is short because a woken thread finds none of this code and data
/// in the processor's caches.
fn sleep_alone(
    sock: &Sock,
    link: &Endpoint,
    is_ready: impl Fn() -> bool,
    deadline: Option<Instant>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    let context = session::present().map(|client| match mask {
        None => sleeper::for_one(&client),
        // A nap does not let signals in.
        Some(_) => sleeper::of_thread(&client).unwrap_or_else(|_| sleeper::bare(&client)),
    });
    spin_and_sleep(true, context, &mut [], Until { deadline, mask }, &is_ready, |context, _| {
        if context.is_bare() {
            return nap(sock, link, context, &is_ready, Until { deadline, mask });
        }
        let is_deaf = context.is_deaf();
        sock.enter(context);
        context.sleeping.announce();
        let bell = link.mapped.own_bell(context.number);
        let is_quiet = bell.as_ref().is_none_or(|bell| {
            // News from before is not lost: the socket's readiness is checked below.
            bell.drain(u32::MAX, |_| ());
            bell.prepare_sleep()
        });
        let result = if is_quiet && !is_ready() {
            let limit = left(deadline);
            let limit = if is_deaf || link.mapped.is_mute() { Some(at_most(limit, BLIND)) } else { limit };
            context.sleep(limit, mask).map(|_| 0)
        } else {
            Ok(0)
        };
        context.sleeping.awake();
        bell.into_iter().for_each(|bell| bell.awake());
        sock.leave(context);
        result
    })
}

/// As [`sleep_alone`], for a thread with a bare context: it naps at the slot of the connection.
#[cold]
fn nap(
    sock: &Sock,
    link: &Endpoint,
    context: &Arc<Context>,
    is_ready: impl Fn() -> bool,
    Until { deadline, mask }: Until,
) -> Result<usize, Errno> {
    let place = Place { mapped: link.mapped.clone(), slot: link.slot() };
    let seen = sock.enter(context);
    context.lie_down(place.clone());
    let limit = || {
        let limit = left(deadline);
        match mask {
            _ if link.mapped.is_mute() => Some(at_most(limit, BLIND)),
            Some(_) => Some(at_most(limit, context.between_signals())),
            None => limit,
        }
    };
    // After a turn at the control line it naps on: that is nothing that other threads at this connection have to hear of.
    let mut result = Ok(true);
    while result == Ok(true) && !is_ready() {
        result = context.nap(&place, seen, limit());
    }
    context.get_up();
    sock.leave(context);
    result.map(|_| 0)
}

/// The wait of a call on `sock`: one `sleep`, which may return early. True: the time limit has passed. Whether the socket is ready by then is
/// not asked: only the operation itself says what the call can do.
fn for_party(
    sock: &Sock,
    sleep: impl FnOnce(Option<Instant>, Option<u64>) -> Result<usize, Errno>,
    Patience { deadline, after_signals, deferred }: Patience<'_>,
) -> Result<bool, Errno> {
    is_here(sock, deadline)?;
    let is_over = || left(deadline).is_some_and(|l| l.is_zero());
    if !is_over() {
        let looked = deferred.map_or(Ok(()), Deferred::look);
        let sleep = || match deferred {
            Some(deferred) => deferred.let_in(|mask| sleep(deadline, Some(mask))),
            None => sleep(deadline, None),
        };
        match looked.and_then(|()| sleep()) {
            Ok(_) => {}
            Err(Errno::INTR) if after_signals == Restarts::Yes && restarts(deadline) => {}
            Err(e) => return Err(e),
        }
    }
    is_here(sock, deadline)?;
    Ok(is_over())
}

fn is_here(sock: &Sock, deadline: Option<Instant>) -> Result<(), Errno> {
    if sock.is_closed() {
        return Err(if sock.is_replaced() { Errno::NOTCONN } else { Errno::BADF });
    }
    if sock.has_moved() {
        // This call takes the connection back, but its present owner gets some time to use it first.
        let _ = cancel::poll(&mut [], Some(at_most(left(deadline), YIELD)), None);
        return Err(Errno::NOTCONN);
    }
    Ok(())
}

/// `SO_LINGER`: waits until the other end has taken over everything sent, for `limit` at most.
pub fn sent(link: &Endpoint, limit: Duration) {
    link.let_go();
    let deadline = Instant::now() + limit;
    while link.unsent() > 0 && Instant::now() < deadline {
        let _ = link.peer_flags();
        if link.is_over() {
            return;
        }
        sys::pause(BLIND);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_its_limit_a_call_is_tried_once_more_whatever_its_socket_is_ready_for() {
        let sock = Sock::new(libc::AF_INET, false);
        let soon =
            |sleep| for_party(&sock, sleep, Patience::until(Some(Instant::now() + Duration::from_secs(600))));
        assert_eq!(soon(|_, _| Ok(0)), Ok(false), "woken before");
        let limit = Some(Instant::now());
        assert_eq!(for_party(&sock, |_, _| unreachable!(), Patience::until(limit)), Ok(true));
        assert_eq!(for_party(&sock, |_, _| Ok(0), Patience::until(None)), Ok(false));
    }
}
