//! sendfile, splice, and the calls that take vectors with an offset and flags.

use crate::bytes::{empty, gather, scatter};
use crate::cancel::{point, through};
use crate::{fail, next, pointers, status};
use libc::{c_int, c_uint, iovec, loff_t, off_t, size_t, ssize_t};
use session::detached::may;
use socket::socket::io;
use socket::{Errno, file};
use std::mem::MaybeUninit;

/// Bytes that `sendfile` moves in one step.
const CHUNK: usize = 64 << 10;
/// Pieces up to this size in bytes need no allocation.
const FEW: usize = 4 << 10;
/// Bytes that `splice` moves in one step: a pipe reported as ready has room for them.
const PIPE_PIECE: usize = 4096;
/// From `linux/fs.h`: do not block.
const RWF_NOWAIT: c_int = 8;

/// See sendfile(2): for an accelerated socket the file is read and sent in pieces.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: C's contract.
    through(|| unsafe { sent_file(out, from, offset, count) })
}

/// # Safety
/// As sendfile's.
unsafe fn sent_file(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if !file::is_stream(out) {
        // SAFETY: C's contract.
        return unsafe { next::sendfile(out, from, offset, count) };
    }
    if ![libc::SYS_fcntl, libc::SYS_lseek, libc::SYS_pread64].into_iter().all(may) {
        return fail(Errno::PERM) as ssize_t;
    }
    // SAFETY: C's contract.
    unsafe {
        if !offset.is_null() && !pointers::is_writable(offset, size_of::<off_t>()) {
            return fail(Errno::FAULT) as ssize_t;
        }
        if count == 0 || offset.is_null() {
            // Otherwise reading from the file reports a bad descriptor.
            let mode = next::fcntl(from, libc::F_GETFL, 0);
            if mode < 0 || mode & libc::O_ACCMODE == libc::O_WRONLY {
                return fail(Errno::BADF) as ssize_t;
            }
        }
        let given = offset.as_ref().copied();
        let mut at = given.unwrap_or_else(|| next::lseek(from, 0, libc::SEEK_CUR));
        if at < 0 {
            return fail(Errno::INVAL) as ssize_t;
        }
        // A small file needs no memory from anywhere else.
        let mut few = [MaybeUninit::<u8>::uninit(); FEW];
        let mut many = Vec::<u8>::new();
        let buffer = if count <= FEW {
            &mut few[..]
        } else {
            many.reserve_exact(CHUNK.min(count));
            &mut many.spare_capacity_mut()[..CHUNK.min(count)]
        };
        let mut done = 0;
        while done < count {
            let want = (count - done).min(buffer.len());
            // By a raw system call: libc's pread is a cancellation point, and sendfile is not.
            let room = buffer.as_mut_ptr() as usize;
            let n =
                status(session::sys::raw(libc::SYS_pread64, [from as usize, room, want, at as usize, 0, 0]));
            if n <= 0 {
                if n < 0 && done == 0 {
                    let is_folder = *libc::__errno_location() == libc::EISDIR;
                    return if is_folder { fail(Errno::INVAL) as ssize_t } else { -1 };
                }
                if done > 0 {
                    // The file is shorter than the program said: cancel the announcement of more bytes.
                    io::send_no_more(out);
                }
                break;
            }
            let more = if done + (n as usize) < count { libc::MSG_MORE } else { 0 };
            // The kernel has written `n` bytes into the buffer.
            let read = std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), n as usize);
            match io::send(out, &[read], more) {
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

/// See splice(2): between a pipe and an accelerated socket the bytes are copied.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let (takes, gives) = (file::is_stream(to), file::is_stream(from));
    // SAFETY: C's contract.
    point(|| unsafe {
        if len == 0 || !(takes || gives) {
            return next::splice(from, from_at, to, to_at, len, flags);
        }
        let at = [(from, from_at), (to, to_at)].map(|(fd, at)| (fd, !at.is_null()));
        if let Err(e) = spliceable(at, [gives, takes], flags) {
            return fail(e) as ssize_t;
        }
        if file::is_at_mark(from) == Some(true) {
            // As on Linux, splice does not read past urgent data.
            return 0;
        }
        if gives { splice_out(from, to, len, flags) } else { splice_in(from, to, len, flags) }
    })
}

/// Checks `(descriptor, has an offset)` of both sides in Linux's order. One side is an accelerated stream, the other has to be a pipe;
/// neither may have an offset.
///
/// # Safety
/// None needed.
unsafe fn spliceable(at: [(c_int, bool); 2], stream: [bool; 2], flags: c_uint) -> Result<(), Errno> {
    const KNOWN: c_uint =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    if flags & !KNOWN != 0 {
        return Err(Errno::INVAL);
    }
    if !may(libc::SYS_fcntl) {
        return Err(Errno::PERM);
    }
    // SAFETY: numbers.
    let modes = at.map(|(fd, _)| unsafe { next::fcntl(fd, libc::F_GETFL, 0) });
    let closed = [libc::O_WRONLY, libc::O_RDONLY];
    let is_closed = |i: usize| modes[i] < 0 || !stream[i] && modes[i] & libc::O_ACCMODE == closed[i];
    if is_closed(0) || is_closed(1) {
        return Err(Errno::BADF);
    }
    for (i, (fd, has_offset)) in at.into_iter().enumerate() {
        if !stream[i] && !session::sys::is_pipe(fd) {
            return Err(Errno::INVAL);
        }
        if !stream[i] && has_offset {
            return Err(Errno::SPIPE);
        }
    }
    if at[0].1 || at[1].1 || stream == [true, true] { Err(Errno::INVAL) } else { Ok(()) }
}

/// True when the pipe has what `events` asks for, or the call may wait for it.
///
/// # Safety
/// None needed.
unsafe fn is_ready(pipe: c_int, events: i16, flags: c_uint) -> bool {
    let mut entry = libc::pollfd { fd: pipe, events, revents: 0 };
    // SAFETY: one entry.
    flags & libc::SPLICE_F_NONBLOCK == 0 || unsafe { next::poll(&mut entry, 1, 0) } != 0
}

/// Moves bytes from an accelerated stream into a pipe.
///
/// # Safety
/// None needed.
unsafe fn splice_out(from: c_int, to: c_int, len: usize, flags: c_uint) -> ssize_t {
    let patience = if flags & libc::SPLICE_F_NONBLOCK == 0 { 0 } else { libc::MSG_DONTWAIT };
    let mut buffer = [0u8; PIPE_PIECE];
    let want = len.min(buffer.len());
    match io::receive_any(from, &mut [&mut buffer[..want]], patience | libc::MSG_PEEK) {
        // SAFETY: the buffer is a local.
        Some(Ok(n)) if n > 0 => unsafe {
            if !is_ready(to, libc::POLLOUT, flags) {
                return fail(Errno::AGAIN) as ssize_t;
            }
            let written = next::write(to, buffer.as_ptr().cast(), n);
            if written > 0 {
                // The bytes are still there: they were just peeked at, and the program has one reader at a time.
                let _ = io::receive(from, &mut [&mut buffer[..written as usize]], libc::MSG_DONTWAIT);
            }
            written
        },
        other => status(other.unwrap_or(Err(Errno::BADF))),
    }
}

/// Moves bytes from a pipe into an accelerated stream.
///
/// # Safety
/// None needed.
unsafe fn splice_in(from: c_int, to: c_int, len: usize, flags: c_uint) -> ssize_t {
    let mut buffer = [0u8; PIPE_PIECE];
    let want = len.min(buffer.len());
    // SAFETY: numbers; the buffer is a local.
    unsafe {
        if !is_ready(from, libc::POLLIN, flags) || file::has_space(to) == Some(false) {
            return fail(Errno::AGAIN) as ssize_t;
        }
        // Bytes taken from the pipe must not be lost: an error of the connection is reported before that.
        if let Some(Err(e)) = io::send(to, &[], 0) {
            return fail(e) as ssize_t;
        }
        let n = next::read(from, buffer.as_mut_ptr().cast(), want);
        if n <= 0 {
            return n;
        }
        status(io::send_all(to, &buffer[..n as usize], flags & libc::SPLICE_F_MORE != 0))
    }
}

/// See preadv2(2): a stream is accepted only without an offset (-1).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        if at == -1 && flags & !RWF_NOWAIT == 0 && file::is_stream(fd) {
            let patience = if flags == 0 { 0 } else { libc::MSG_DONTWAIT };
            let result = empty(fd, vector, count as usize)
                .or_else(|| scatter(fd, vector, count as usize, patience, Errno::INVAL));
            return status(result.unwrap_or(Err(Errno::BADF)));
        }
        next::preadv2(fd, vector, count, at, flags)
    })
}

/// See pwritev2(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        if at == -1 && flags & !RWF_NOWAIT == 0 && file::is_stream(fd) {
            let patience = if flags == 0 { 0 } else { libc::MSG_DONTWAIT };
            let result = empty(fd, vector, count as usize)
                .or_else(|| gather(fd, vector, count as usize, patience, Errno::INVAL));
            return status(result.unwrap_or(Err(Errno::BADF)));
        }
        next::pwritev2(fd, vector, count, at, flags)
    })
}
