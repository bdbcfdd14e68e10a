//! Blocking: one sleeping thread, any number of descriptors of both kinds.
//!
//! `EINTR`: our sleep is a poll, which the kernel never restarts. A blocking call without a time limit restarts itself
//! unless some handler of the process was installed without `SA_RESTART` (the kernel decides by the one handler that ran,
//! which nobody can ask for afterwards).

use crate::client;
use crate::context::{self, Context};
use crate::epoll::Set;
use crate::link::Link;
use crate::listener;
use crate::region::Mapped;
use crate::sock::Sock;
use crate::stream::ready;
use crate::{locked, sys};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Sleep at most so long when no context is left to be woken through, or when the other side wakes nobody.
const BLIND: Duration = Duration::from_millis(1);

/// Who waits for a connection that another process has taken takes it back after so long.
const YIELD: Duration = Duration::from_millis(5);

/// What a thread waits for among ours.
#[derive(Debug)]
pub enum Party {
    /// A socket and the readiness wanted of it.
    Sock(Arc<Sock>, u32),
    /// An epoll set: anything in it.
    Set(Arc<Set>),
}

impl Party {
    /// What of the wanted it is ready for.
    pub fn ready(&self) -> u32 {
        match self {
            Self::Sock(sock, _) if sock.is_closed() => libc::POLLNVAL as u32,
            Self::Sock(sock, wanted) => sock.readiness() & (wanted | ready::ALWAYS),
            Self::Set(set) => {
                if set.is_ready() {
                    ready::IN | ready::RDNORM
                } else {
                    0
                }
            }
        }
    }

    /// Where its news comes from: an inherited listener has, in a forked child, a queue in the child's own region too.
    fn regions(&self) -> [Option<Arc<Mapped>>; 2] {
        match self {
            Self::Sock(sock, _) => {
                let own = listener::own_queue(sock).map(|own| own.mapped.clone());
                [sock.link().map(|l| l.mapped.clone()), own]
            }
            Self::Set(_) => [None, None],
        }
    }
}

fn left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|d| d.saturating_duration_since(Instant::now()))
}

/// Waits until one of `parties` is ready, the kernel reports something in `kernel`, or `deadline`. How many kernel
/// descriptors the kernel reported.
///
/// # Errors
/// EINTR.
pub fn sleep(
    parties: &[Party],
    kernel: &mut [libc::pollfd],
    deadline: Option<Instant>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    if locked::is_locked() {
        return look(parties, kernel, deadline, mask);
    }
    let context = client::present().and_then(|c| context::of_thread(&c).ok());
    let Some(context) = context else {
        let limit = left(deadline).map_or(BLIND, |l| l.min(BLIND));
        return sys::poll(kernel, Some(limit), mask);
    };
    let start = Instant::now();
    if context.spin.until(left(deadline), || parties.iter().any(|p| p.ready() != 0)) {
        return Ok(0);
    }
    let socks: Vec<&Arc<Sock>> = parties
        .iter()
        .filter_map(|p| match p {
            Party::Sock(sock, _) => Some(sock),
            Party::Set(_) => None,
        })
        .collect();
    socks.iter().for_each(|sock| sock.enter(&context));
    let result = doze(&context, parties, kernel, deadline, mask);
    socks.iter().for_each(|sock| sock.leave(&context));
    context.spin.waited(start.elapsed());
    result
}

/// As [`sleep`], without anybody who wakes us.
#[cold]
fn look(
    parties: &[Party],
    kernel: &mut [libc::pollfd],
    deadline: Option<Instant>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    let start = Instant::now();
    loop {
        let slice = locked::slice(start.elapsed());
        let left = left(deadline).map_or(slice, |left| left.min(slice));
        let reported = sys::poll(kernel, Some(left), mask)?;
        if let Some(client) = client::present() {
            client.look_for_end();
        }
        if reported > 0 || left < slice || parties.iter().any(|party| party.ready() != 0) {
            return Ok(reported);
        }
    }
}

fn doze(
    context: &Arc<Context>,
    parties: &[Party],
    kernel: &mut [libc::pollfd],
    deadline: Option<Instant>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    let regions: Vec<Arc<Mapped>> = parties.iter().flat_map(Party::regions).flatten().collect();
    let bells = || regions.iter().filter_map(|m| m.own_bell(context.number));
    context.sleeping.store(true, Ordering::SeqCst);
    // Old news is looked at below, by its sockets' state.
    for bell in bells() {
        bell.drain(u32::MAX, |_| ());
    }
    let mut quiet = bells().all(|bell| bell.prepare_sleep());
    for party in parties {
        quiet &= match party {
            Party::Sock(..) => party.ready() == 0,
            Party::Set(set) => set.arm(),
        };
    }
    let is_mute = regions.iter().any(|mapped| mapped.is_mute())
        || parties.iter().any(|party| matches!(party, Party::Set(set) if set.is_mute()));
    let soon = if is_mute { Instant::now().checked_add(BLIND) } else { None };
    let until = soon.filter(|soon| deadline.is_none_or(|deadline| *soon < deadline)).or(deadline);
    let result = if quiet { block(context, parties, kernel, until, mask) } else { Ok(0) };
    context.sleeping.store(false, Ordering::SeqCst);
    bells().for_each(|bell| bell.awake());
    result
}

fn block(
    context: &Context,
    parties: &[Party],
    kernel: &mut [libc::pollfd],
    deadline: Option<Instant>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    let limit = left(deadline);
    if kernel.is_empty() && parties.iter().all(|party| matches!(party, Party::Sock(..))) {
        // The usual case in one call.
        return context.sleep(limit, mask).map(|()| 0);
    }
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let sets = parties.iter().filter_map(|p| match p {
        Party::Set(set) => set.context().map(|c| entry(c.epfd())),
        Party::Sock(..) => None,
    });
    let mut all: Vec<libc::pollfd> = kernel.to_vec();
    all.push(entry(context.epfd()));
    all.extend(sets);
    sys::poll(&mut all, limit, mask)?;
    kernel.copy_from_slice(&all[..kernel.len()]);
    if all[kernel.len()].revents != 0 {
        context.harvest();
    }
    Ok(kernel.iter().filter(|k| k.revents != 0).count())
}

/// Waits until `sock` is ready for `wanted` (or has an error), or `fd`'s kernel socket is readable.
///
/// # Errors
/// EAGAIN past the deadline, EINTR, EBADF when another thread closed the socket.
pub fn for_one(
    sock: &Arc<Sock>,
    fd: Option<RawFd>,
    wanted: u32,
    deadline: Option<Instant>,
) -> Result<(), Errno> {
    let mut kernel = [libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 }];
    let parties = [Party::Sock(sock.clone(), wanted)];
    loop {
        if sock.is_closed() {
            return Err(if sock.is_replaced() { Errno::NOTCONN } else { Errno::BADF });
        }
        if sock.has_moved() {
            // It is taken back by this very call, but its new holder shall have done something first.
            let _ = sys::poll(&mut [], Some(left(deadline).map_or(YIELD, |l| l.min(YIELD))), None);
            return Err(Errno::NOTCONN);
        }
        if parties[0].ready() != 0 {
            return Ok(());
        }
        if left(deadline).is_some_and(|l| l.is_zero()) {
            return Err(Errno::AGAIN);
        }
        match sleep(&parties, &mut kernel[..usize::from(fd.is_some())], deadline, None) {
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(Errno::INTR) if deadline.is_none() && !sys::some_handler_interrupts() => {}
            Err(e) => return Err(e),
        }
    }
}

/// `SO_LINGER`: waits until everything sent has been taken over by the other end, at most `limit`.
pub fn sent(link: &Link, limit: Duration) {
    let deadline = Instant::now() + limit;
    while link.unsent() > 0 && Instant::now() < deadline {
        let _ = link.peer_flags();
        if link.is_over() {
            return;
        }
        let _ = sys::poll(&mut [], Some(BLIND), None);
    }
}
