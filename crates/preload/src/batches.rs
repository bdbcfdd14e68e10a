//! Calls that move many messages.

use crate::bytes::{received, sendmsg};
use crate::cancel::point;
use crate::readiness::limit;
use crate::{fail, next, pointers, programs};
use libc::{c_int, c_uint, mmsghdr, timespec};
use socket::{Errno, file};
use std::time::Instant;

/// `UIO_MAXIOV`: the most messages that one call of sendmmsg sends.
const MESSAGES_MAX: c_uint = 1024;

/// See recvmmsg(2): for a stream, repeated calls of recvmsg; with `MSG_WAITFORONE` only the first one waits. As on Linux, the time limit
/// is checked after each message.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe { received_each(fd, messages, count, flags, timeout) })
}

/// # Safety
/// As recvmmsg's.
unsafe fn received_each(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !file::is_stream(fd) {
        // SAFETY: C's contract; the kernel has filled in `done` messages.
        return unsafe {
            let done = next::recvmmsg(fd, messages, count, flags, timeout);
            programs::received_all(messages, done.max(0) as c_uint);
            done
        };
    }
    // SAFETY: C's contract.
    let deadline = match unsafe { limit(timeout) } {
        Ok(limit) => limit.and_then(|limit| Instant::now().checked_add(limit)),
        Err(e) => return fail(e),
    };
    if let Some(e) = file::pending(fd) {
        return fail(e);
    }
    if messages.is_null() && count > 0 {
        return fail(Errno::FAULT);
    }
    let later = if flags & libc::MSG_WAITFORONE == 0 { 0 } else { libc::MSG_DONTWAIT };
    let mut done = 0;
    while done < count {
        let wait = if done == 0 { 0 } else { later };
        // SAFETY: C's contract: `count` headers.
        let at = unsafe { messages.add(done as usize) };
        if !pointers::is_writable(at, size_of::<mmsghdr>()) {
            return if done == 0 { fail(Errno::FAULT) } else { done as c_int };
        }
        // SAFETY: as above.
        let (header, result) = unsafe {
            let header = &mut *at;
            let result = received(fd, &mut header.msg_hdr, flags | wait);
            (header, result)
        };
        match result.unwrap_or(Err(Errno::BADF)) {
            Ok(n) => header.msg_len = n as c_uint,
            Err(e) if done == 0 => return fail(e),
            Err(_) => break,
        }
        done += 1;
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            break;
        }
    }
    done as c_int
}

/// See sendmmsg(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !file::is_stream(fd) {
        // SAFETY: C's contract.
        return unsafe {
            if file::has_any() {
                programs::sending_all(messages, count.min(MESSAGES_MAX));
            }
            next::sendmmsg(fd, messages, count, flags)
        };
    }
    if messages.is_null() && count > 0 {
        return fail(Errno::FAULT);
    }
    let count = count.min(MESSAGES_MAX);
    for done in 0..count {
        // SAFETY: C's contract: `count` headers.
        let at = unsafe { messages.add(done as usize) };
        if !pointers::is_writable(at, size_of::<mmsghdr>()) {
            return if done == 0 { fail(Errno::FAULT) } else { done as c_int };
        }
        // SAFETY: as above.
        let n = unsafe {
            let header = &mut *at;
            let n = sendmsg(fd, &header.msg_hdr, flags);
            header.msg_len = n.max(0) as c_uint;
            n
        };
        if n < 0 {
            return if done == 0 { -1 } else { done as c_int };
        }
    }
    count as c_int
}
