//! Checks that Linux makes before it moves bytes: vectors, NULL addresses, control messages.

use crate::{next, pointers};
use libc::{c_int, iovec, msghdr};
use socket::socket::io;
use socket::{Errno, file};

/// Longest vector, as Linux's `UIO_MAXIOV`.
const IOV_MAX: usize = 1024;

/// The result of a `send` with bad arguments (error `e`): an error of the connection itself comes first.
pub fn unsendable(fd: c_int, flags: c_int, e: Errno) -> Result<usize, Errno> {
    match io::send(fd, &[], flags & !libc::MSG_MORE) {
        Some(Err(trouble)) => Err(trouble),
        _ if e == Errno::FAULT && file::has_space(fd) == Some(false) && !waits(fd, flags) => {
            Err(Errno::AGAIN)
        }
        _ => Err(e),
    }
}

/// True when a call with these flags blocks.
fn waits(fd: c_int, flags: c_int) -> bool {
    // SAFETY: numbers.
    let mode = file::open_flags(fd, || unsafe { next::fcntl(fd, libc::F_GETFL, 0) });
    flags & libc::MSG_DONTWAIT == 0 && mode & libc::O_NONBLOCK == 0
}

/// Checks the vector of `readv` or `recvmsg`: returns its bytes, and whether some part has a NULL address.
///
/// # Safety
/// `vector` is null or holds `count` entries, as long as that is no more than [`IOV_MAX`].
pub unsafe fn measured(vector: *const iovec, count: usize, too_many: Errno) -> Result<(usize, bool), Errno> {
    if count > IOV_MAX {
        return Err(too_many);
    }
    if count == 0 {
        return Ok((0, false));
    }
    if !pointers::is_readable(vector, count * size_of::<iovec>()) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { std::slice::from_raw_parts(vector, count) };
    let (mut total, mut nowhere, mut beyond) = (0usize, false, false);
    for entry in entries {
        if entry.iov_len > isize::MAX as usize {
            return Err(Errno::INVAL);
        }
        beyond |= entry.iov_base as usize > isize::MAX as usize - entry.iov_len;
        total = total.saturating_add(entry.iov_len);
        nowhere |= entry.iov_base.is_null() && entry.iov_len > 0;
    }
    if beyond { Err(Errno::FAULT) } else { Ok((total, nowhere)) }
}

/// True when Linux's TCP accepts the control messages: those of other levels, and the known ones of its own, each within the room.
///
/// # Safety
/// `message` is a valid message header with control messages.
pub unsafe fn says_what_a_stream_knows(message: &msghdr) -> bool {
    let end = message.msg_control as usize + message.msg_controllen;
    // SAFETY: the macros stay within the room that the header states; where they do not check, this code does.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = at.as_ref() {
            let len = header.cmsg_len;
            if len < size_of::<libc::cmsghdr>() || len > end - at as usize {
                return false;
            }
            let body = len - libc::CMSG_LEN(0) as usize;
            let known = match header.cmsg_type {
                libc::SO_MARK | libc::SO_PRIORITY | libc::SO_TIMESTAMPING => body == size_of::<u32>(),
                libc::SCM_RIGHTS | libc::SCM_CREDENTIALS => true,
                _ => false,
            };
            if header.cmsg_level == libc::SOL_SOCKET && !known {
                return false;
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    true
}
