//! Bytes between files or pipes and sockets.

use crate::{fail, next, status};
use libc::{c_int, c_uint, loff_t, off_t, size_t, ssize_t};
use socket::{Errno, fds};

/// Bytes that sendfile moves at once.
const CHUNK: usize = 64 << 10;

/// See sendfile(2): for an accelerated socket the file is read and sent in pieces.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if !fds::is_stream(out) {
        // SAFETY: C's contract.
        return unsafe { next::sendfile(out, from, offset, count) };
    }
    // SAFETY: C's contract.
    unsafe {
        let given = offset.as_ref().copied();
        let mut at = given.unwrap_or_else(|| next::lseek(from, 0, libc::SEEK_CUR));
        if at < 0 {
            return fail(Errno::INVAL) as ssize_t;
        }
        let mut buffer = vec![0u8; CHUNK.min(count)];
        let mut done = 0;
        while done < count {
            let want = (count - done).min(buffer.len());
            let n = next::pread(from, buffer.as_mut_ptr().cast(), want, at);
            if n <= 0 {
                if n < 0 && done == 0 {
                    return -1;
                }
                // The file is shorter than was said: nothing more to come after all.
                let _ = fds::send(out, &[], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                break;
            }
            let more = if done + (n as usize) < count { libc::MSG_MORE } else { 0 };
            match fds::send(out, &[&buffer[..n as usize]], more) {
                Some(Ok(sent)) => {
                    done += sent;
                    at += sent as off_t;
                    if sent < n as usize {
                        break;
                    }
                }
                Some(Err(e)) if done == 0 => return fail(e) as ssize_t,
                _ => break,
            }
        }
        match offset.as_mut() {
            Some(offset) => *offset = at,
            None => {
                let _ = next::lseek(from, at, libc::SEEK_SET);
            }
        }
        done as ssize_t
    }
}

/// See sendfile(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the same function on 64-bit machines.
    unsafe { sendfile(out, from, offset, count) }
}

/// See splice(2): between a pipe and an accelerated socket the bytes are copied.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let patience = if flags & libc::SPLICE_F_NONBLOCK == 0 { 0 } else { libc::MSG_DONTWAIT };
    let mut buffer = [0u8; 4096];
    let want = len.min(buffer.len());
    // SAFETY: C's contract; the buffer is a local.
    unsafe {
        if fds::is_stream(from) {
            let peeked = fds::receive(from, &mut [&mut buffer[..want]], patience | libc::MSG_PEEK);
            return match peeked {
                Some(Ok(n)) if n > 0 => {
                    let written = next::write(to, buffer.as_ptr().cast(), n);
                    if written > 0 {
                        // The bytes are there: they were just seen, and one reader at a time is the caller's contract.
                        let _ =
                            fds::receive(from, &mut [&mut buffer[..written as usize]], libc::MSG_DONTWAIT);
                    }
                    written
                }
                other => status(other.unwrap_or(Err(Errno::BADF))),
            };
        }
        if fds::is_stream(to) {
            if fds::has_space(to) == Some(false) {
                return fail(Errno::AGAIN) as ssize_t;
            }
            let n = next::read(from, buffer.as_mut_ptr().cast(), want);
            if n <= 0 {
                return n;
            }
            return status(fds::send_all(to, &buffer[..n as usize], flags & libc::SPLICE_F_MORE != 0));
        }
        next::splice(from, from_at, to, to_at, len, flags)
    }
}
