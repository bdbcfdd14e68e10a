//! Bytes in and out by descriptor: `recv`, `send` and all their relatives.

use crate::fallback::surrender;
use crate::fds::{Handled, SOCKS};
use crate::link::state;
use crate::sock::Sock;
use crate::stream::{How, Progress, Said, ready};
use crate::{moving, sys, wait};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a receiver waits for.
const RECEIVABLE: u32 = ready::IN | ready::PRI | ready::RDHUP;

/// A call is made again so often when other processes take the connection away again and again.
const TRIES: usize = 64;

/// Makes a call; again where its connection was another process's and is taken back.
#[inline]
fn again<T>(fd: RawFd, mut call: impl FnMut() -> Handled<T>) -> Handled<T> {
    for _ in 0..TRIES {
        match call() {
            Some(Err(Errno::NOTCONN)) if moving::reclaim(fd) => {}
            done => return done,
        }
    }
    call()
}

/// `recv` and all its relatives.
pub fn receive(fd: RawFd, buffers: &mut [&mut [u8]], flags: i32) -> Handled<usize> {
    let total: usize = buffers.iter().map(|b| b.len()).sum();
    again(fd, || receive_total(fd, buffers, total, flags))
}

/// `recv` with `MSG_TRUNC`, without a buffer.
pub fn discard(fd: RawFd, len: usize, flags: i32) -> Handled<usize> {
    again(fd, || receive_total(fd, &mut [], len, flags | libc::MSG_TRUNC))
}

fn receive_total(fd: RawFd, buffers: &mut [&mut [u8]], total: usize, flags: i32) -> Handled<usize> {
    let sock = SOCKS.pin(fd)?;
    let link = sock.stream()?;
    if flags & libc::MSG_OOB != 0 {
        return Some(link.pull_urgent(buffers, flags & libc::MSG_PEEK != 0));
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Some(Err(Errno::AGAIN));
    }
    let how = How {
        peek: flags & libc::MSG_PEEK != 0,
        discard: if flags & libc::MSG_TRUNC != 0 { total } else { 0 },
    };
    let all = flags & libc::MSG_WAITALL != 0 && !how.peek && how.discard == 0;
    let patient = flags & libc::MSG_DONTWAIT == 0;
    match link.pull(buffers, 0, how) {
        Ok(Progress::Done(n)) if n == total || n == 0 || !(all && patient) => Some(Ok(n)),
        Err(e) => Some(Err(e)),
        Ok(Progress::Wait) if !patient || sock.is_nonblocking() => Some(Err(Errno::AGAIN)),
        Ok(Progress::Done(n)) if sock.is_nonblocking() => Some(Ok(n)),
        Ok(first) => {
            let done = if let Progress::Done(n) = first { n } else { 0 };
            let sock = sock.share();
            Some(receive_slowly(&sock, buffers, how, (done, total, all)))
        }
    }
}

fn receive_slowly(
    sock: &Arc<Sock>,
    buffers: &mut [&mut [u8]],
    how: How,
    (mut done, total, all): (usize, usize, bool),
) -> Result<usize, Errno> {
    let link = sock.stream().ok_or(Errno::NOTCONN)?;
    let deadline = sock.receive_limit().map(|t| Instant::now() + t);
    loop {
        if done > 0 && link.is_at_mark() {
            // MSG_WAITALL does not read past urgent data.
            return Ok(done);
        }
        match wait::for_one(sock, None, RECEIVABLE, deadline).and_then(|()| link.pull(buffers, done, how)) {
            Ok(Progress::Wait) => {}
            Ok(Progress::Done(0)) => return Ok(done),
            Ok(Progress::Done(n)) => {
                done += n;
                if !all || done == total {
                    return Ok(done);
                }
            }
            // What was received before the trouble is returned; the error comes with the next call.
            Err(_) if done > 0 => return Ok(done),
            Err(e) => return Err(e),
        }
    }
}

/// `send` and all its relatives.
pub fn send(fd: RawFd, buffers: &[&[u8]], flags: i32) -> Handled<usize> {
    again(fd, || send_once(fd, buffers, flags))
}

fn send_once(fd: RawFd, buffers: &[&[u8]], flags: i32) -> Handled<usize> {
    let sock = SOCKS.pin(fd)?;
    let Some(link) = sock.stream() else {
        if flags & libc::MSG_FASTOPEN != 0 && sock.role().is_none() && sock.kernel_only().is_none() {
            sock.keep_in_kernel("MSG_FASTOPEN");
            // The kernel connects it.
            surrender(&[fd], &sock.share(), "MSG_FASTOPEN");
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
    let said = Said::by(flags);
    let result = match link.push(buffers, 0, said) {
        Ok(Progress::Done(n)) if n == total || !patient => Ok(n),
        Ok(Progress::Wait) if !patient => Err(Errno::AGAIN),
        Ok(first) => {
            let done = if let Progress::Done(n) = first { n } else { 0 };
            let sock = sock.share();
            send_slowly(&sock, buffers, (done, total, said))
        }
        Err(e) => Err(e),
    };
    if link.was_freed() {
        sock.pass_on();
    }
    if result == Err(Errno::PIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise_pipe();
    }
    Some(result)
}

/// `MSG_ZEROCOPY`.
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

/// `recvmsg` with `MSG_ERRQUEUE`: the first and the last of the sends that a notice is about, and the socket's family.
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

/// A reader that has read nothing for so long is perhaps a writer itself, which counts on buffers as long as Linux's before it reads.
const LENGTHEN_AFTER: Duration = Duration::from_millis(5);

fn send_slowly(
    sock: &Arc<Sock>,
    buffers: &[&[u8]],
    (mut done, total, said): (usize, usize, Said),
) -> Result<usize, Errno> {
    let link = sock.stream().ok_or(Errno::NOTCONN)?;
    let deadline = sock.send_limit().map(|t| Instant::now() + t);
    let mut may_lengthen = true;
    while done < total {
        let soon = Instant::now() + LENGTHEN_AFTER;
        let is_first = may_lengthen && deadline.is_none_or(|deadline| soon < deadline);
        let until = if is_first { Some(soon) } else { deadline };
        let waited = match wait::for_one(sock, None, ready::OUT, until) {
            Err(Errno::AGAIN) if is_first => {
                may_lengthen = false;
                link.lengthen(total - done)
            }
            waited => waited,
        };
        match waited.and_then(|()| link.push(buffers, done, said)) {
            Ok(Progress::Wait) => {}
            Ok(Progress::Done(n)) => done += n,
            Err(_) if done > 0 => return Ok(done),
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Sends all of `bytes`, waiting for space even on a non-blocking socket: they are taken from their source already.
/// `more`: `MSG_MORE`.
///
/// # Errors
/// As send's.
pub fn send_all(fd: RawFd, bytes: &[u8], more: bool) -> Result<usize, Errno> {
    again(fd, || Some(send_all_once(fd, bytes, more))).unwrap_or(Err(Errno::BADF))
}

fn send_all_once(fd: RawFd, bytes: &[u8], more: bool) -> Result<usize, Errno> {
    let sock = SOCKS.pin(fd).ok_or(Errno::BADF)?.share();
    let link = sock.stream().ok_or(Errno::NOTCONN)?;
    let said = Said { more, ..Said::default() };
    let done = match link.push(&[bytes], 0, said)? {
        Progress::Done(n) => n,
        Progress::Wait => 0,
    };
    send_slowly(&sock, &[bytes], (done, bytes.len(), said))
}
