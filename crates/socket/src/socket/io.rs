//! Bytes in and out by descriptor: `recv`, `send` and all their relatives.

use crate::connect::fallback::surrender;
use crate::fd::tables::SOCKS;
use crate::file::Handled;
use crate::process::fd_passing;
use crate::socket::Sock;
use crate::wait::{self, Patience, Restarts};
use control::KernelReason;
use cycles::Section;
use endpoint::blocked::Blocked;
use endpoint::receive_wait::{Amount, Received, Receiving};
use endpoint::stream::{Progress, Said};
use endpoint::{Endpoint, state};
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::cancel;
use session::sys::signal::Deferred;
use session::sys::{self, cycle_account};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `done`: bytes that the call has moved. As on Linux, a signal makes it return them; only a call that has moved none goes on.
fn patience(deadline: Option<Instant>, done: usize, deferred: Option<&Deferred>) -> Patience<'_> {
    Patience { deadline, after_signals: if done == 0 { Restarts::Yes } else { Restarts::No }, deferred }
}

/// How often a call is made again when other processes keep taking the connection away.
const TRIES: usize = 64;

/// Makes a call; again where another process had its connection and it is taken back.
#[inline]
fn again<T>(fd: RawFd, mut call: impl FnMut() -> Handled<T>) -> Handled<T> {
    for _ in 0..TRIES {
        match call() {
            Some(Err(Errno::NOTCONN)) => {
                if let Err(e) = fd_passing::reclaim(fd) {
                    return Some(Err(e));
                }
            }
            done => return done,
        }
    }
    call()
}

/// Bytes of all buffers. Most calls have one.
#[inline]
fn length(buffers: &[&mut [u8]]) -> usize {
    match buffers {
        [buffer] => buffer.len(),
        _ => buffers.iter().map(|b| b.len()).sum(),
    }
}

/// `recv` and all its relatives.
pub fn receive(fd: RawFd, buffers: &mut [&mut [u8]], flags: i32) -> Handled<usize> {
    let _receiving = cycle_account::enter(Section::Receive);
    let total = length(buffers);
    again(fd, || receive_total(fd, buffers, Amount { total, enough: usize::MAX }, flags))
}

/// Like [`receive`], but returns with any byte, whatever `SO_RCVLOWAT` says (`splice`).
pub fn receive_any(fd: RawFd, buffers: &mut [&mut [u8]], flags: i32) -> Handled<usize> {
    let _receiving = cycle_account::enter(Section::Receive);
    let total = length(buffers);
    again(fd, || receive_total(fd, buffers, Amount { total, enough: 1 }, flags))
}

/// `recv` with `MSG_TRUNC`, without a buffer.
pub fn discard(fd: RawFd, len: usize, flags: i32) -> Handled<usize> {
    let _receiving = cycle_account::enter(Section::Receive);
    again(fd, || {
        receive_total(fd, &mut [], Amount { total: len, enough: usize::MAX }, flags | libc::MSG_TRUNC)
    })
}

fn receive_total(fd: RawFd, buffers: &mut [&mut [u8]], amount: Amount, flags: i32) -> Handled<usize> {
    let sock = SOCKS.pin(fd)?;
    Some(match sock.stream()?.receive(buffers, amount, flags, || sock.is_nonblocking()) {
        Ok(Received::Done(n)) => Ok(n),
        Ok(Received::Wait(rest)) => {
            // Drop the table pin before blocking, so that close() and reuse of this descriptor are not delayed.
            let shared = sock.share();
            drop(sock);
            receive_slowly(&shared, buffers, rest)
        }
        Err(e) => Err(e),
    })
}

/// Waits until the rest of a receive is over.
fn receive_slowly(sock: &Arc<Sock>, buffers: &mut [&mut [u8]], mut rest: Receiving) -> Result<usize, Errno> {
    let link = sock.stream().ok_or(Errno::NOTCONN)?;
    let _open = sock.begin_use()?;
    let deadline = sock.receive_limit().map(|t| Instant::now() + t);
    // A call for one byte does not wait after its first piece: no signal need be put off.
    let deferred = if rest.target > 1 { Deferred::begin() } else { None };
    while !rest.is_cut(link) {
        let is_last =
            match wait::for_call(sock, rest.blocked(), patience(deadline, rest.done, deferred.as_ref())) {
                Err(_) if rest.done > 0 => break,
                result => result?,
            };
        if rest.go_on(link, buffers)? {
            break;
        }
        if is_last {
            return if rest.done > 0 { Ok(rest.done) } else { Err(Errno::AGAIN) };
        }
    }
    Ok(rest.done)
}

/// `send` and all its relatives.
pub fn send(fd: RawFd, buffers: &[&[u8]], flags: i32) -> Handled<usize> {
    let _sending = cycle_account::enter(Section::Send);
    again(fd, || send_once(fd, buffers, flags))
}

fn send_once(fd: RawFd, buffers: &[&[u8]], flags: i32) -> Handled<usize> {
    let sock = SOCKS.pin(fd)?;
    let Some(link) = sock.stream() else {
        if flags & libc::MSG_FASTOPEN != 0 && sock.role().is_none() && sock.kernel_only().is_none() {
            sock.keep_in_kernel(KernelReason::FastOpen);
            // The kernel connects the socket and sends.
            surrender(&[fd], &sock.share(), KernelReason::FastOpen);
        }
        return None;
    };
    if flags & (libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
        return match flags {
            _ if flags & libc::MSG_FASTOPEN != 0 => {
                let before = !(link.is_open() || link.is_over());
                Some(Err(if before { Errno::ALREADY } else { Errno::ISCONN }))
            }
            _ => send_noticed(fd, &sock.share(), buffers, flags & !libc::MSG_ZEROCOPY),
        };
    }
    let total: usize = buffers.iter().map(|b| b.len()).sum();
    let patient = flags & libc::MSG_DONTWAIT == 0 && !sock.is_nonblocking();
    let said = Said::from_bits_truncate(if patient { flags } else { flags | libc::MSG_DONTWAIT });
    let deferred = if patient && total > LONG { Deferred::begin() } else { None };
    let result = match link.push(buffers, 0, said) {
        Ok(Progress::Done(n)) if n == total || !patient => Ok(n),
        Ok(Progress::Wait) if !patient => Err(Errno::AGAIN),
        Ok(first) => {
            let done = if let Progress::Done(n) = first { n } else { 0 };
            // Drop the table pin before blocking, so that close() and reuse of this descriptor are not delayed.
            let shared = sock.share();
            drop(sock);
            let result = send_slowly(&shared, buffers, done, total, said, deferred);
            return Some(finish_send(&shared, result, flags));
        }
        Err(e) => Err(e),
    };
    Some(finish_send(&sock, result, flags))
}

/// Nothing follows what was sent with `MSG_MORE`: lets it go.
pub fn send_no_more(fd: RawFd) {
    let _sending = cycle_account::enter(Section::Send);
    if let Some(sock) = SOCKS.pin(fd)
        && let Some(link) = sock.stream()
    {
        link.say_no_more();
    }
}

fn finish_send(sock: &Sock, result: Result<usize, Errno>, flags: i32) -> Result<usize, Errno> {
    if sock.stream().is_some_and(Endpoint::was_freed) {
        sock.pass_on();
    }
    if result == Err(Errno::PIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        sys::signal::raise_pipe();
    }
    result
}

/// `MSG_ZEROCOPY`: sends, and queues a notice.
fn send_noticed(fd: RawFd, sock: &Arc<Sock>, buffers: &[&[u8]], flags: i32) -> Handled<usize> {
    let result = send_once(fd, buffers, flags)?;
    if result.is_ok_and(|n| n > 0)
        && sock.notices().is_some_and(|notices| notices.sent())
        && let Some(link) = sock.stream()
    {
        link.note(state::NOTICE);
        sock.pass_on();
    }
    Some(result)
}

/// `recvmsg` with `MSG_ERRQUEUE`: the socket's family, and the first and last of the sends that a notice is about.
pub fn notice(fd: RawFd) -> Handled<(i32, (u32, u32))> {
    let sock = SOCKS.pin(fd)?;
    let link = sock.stream()?;
    let notices = sock.notices();
    let taken = notices.as_ref().and_then(|notices| notices.take());
    link.forget(state::NOTICE);
    // Another thread may have sent meanwhile.
    if notices.is_some_and(|notices| notices.any()) {
        link.note(state::NOTICE);
    }
    Some(taken.map(|range| (sock.family(), range)).ok_or(Errno::AGAIN))
}

/// Wait before a longer ring is tried: a peer that reads nothing for so long is perhaps a writer itself, which counts on buffers as long as
/// Linux's before it reads.
const LENGTHEN_AFTER: Duration = Duration::from_millis(5);

/// Bytes; copying more takes so long that a signal during the first copy must not be missed either.
const LONG: usize = 1 << 20;

/// Pause of a send that lacks memory before it tries again.
const STARVED: Duration = Duration::from_millis(1);

fn send_slowly(
    sock: &Arc<Sock>,
    buffers: &[&[u8]],
    mut done: usize,
    total: usize,
    said: Said,
    deferred: Option<Deferred>,
) -> Result<usize, Errno> {
    let link = sock.stream().ok_or(Errno::NOTCONN)?;
    let _open = sock.begin_use()?;
    let deadline = sock.send_limit().map(|t| Instant::now() + t);
    let deferred = deferred.or_else(Deferred::begin);
    let mut may_lengthen = true;
    while done < total {
        let soon = Instant::now() + LENGTHEN_AFTER;
        let is_first = may_lengthen && deadline.is_none_or(|deadline| soon < deadline);
        let until = if is_first { Some(soon) } else { deadline };
        let patience = patience(until, done, deferred.as_ref());
        let waited = match wait::for_call(sock, Blocked::Send, patience) {
            Ok(true) if is_first && !sock.can_go_on(Blocked::Send) => {
                may_lengthen = false;
                link.lengthen(total - done).map(|()| false)
            }
            // The time limit is ours, not the program's.
            Ok(true) if is_first => Ok(false),
            Err(Errno::INTR) if is_first && done == 0 && wait::restarts(deadline) => Ok(false),
            waited => waited,
        };
        if done > 0 && link.state() & (state::OVER | state::INTO_THE_VOID) != 0 {
            // Report what was sent; the next call reports the error.
            return Ok(done);
        }
        match waited.and_then(|is_last| Ok((link.push(buffers, done, said)?, is_last))) {
            Ok((Progress::Wait, true)) => return if done > 0 { Ok(done) } else { Err(Errno::AGAIN) },
            Ok((Progress::Wait, false)) if link.lacks_memory() => sys::pause(STARVED),
            Ok((Progress::Wait, false)) => {}
            Ok((Progress::Done(n), _)) => done += n,
            Err(_) if done > 0 => return Ok(done),
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Sends all of `bytes`, waiting for space even on a non-blocking socket, whatever signals come: the bytes are taken from their source
/// already. `more`: `MSG_MORE`.
///
/// # Errors
/// As send's.
pub fn send_all(fd: RawFd, bytes: &[u8], more: bool) -> Result<usize, Errno> {
    let _sending = cycle_account::enter(Section::Send);
    again(fd, || Some(send_all_once(fd, bytes, more))).unwrap_or(Err(Errno::BADF))
}

fn send_all_once(fd: RawFd, bytes: &[u8], more: bool) -> Result<usize, Errno> {
    let sock = SOCKS.pin(fd).ok_or(Errno::BADF)?.share();
    let link = sock.stream().ok_or(Errno::NOTCONN)?;
    let said = if more { Said::MORE } else { Said::empty() };
    let mut done = match link.push(&[bytes], 0, said)? {
        Progress::Done(n) => n,
        Progress::Wait => 0,
    };
    while done < bytes.len() {
        let rest = &bytes[done..];
        match send_slowly(&sock, &[rest], 0, rest.len(), said, None) {
            Ok(n) => done += n,
            Err(Errno::INTR | cancel::RESTART) => {}
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}
