//! Closing, duplicating, flags, and the door around libc.

use crate::{fail, next};
use libc::{c_int, c_uint, c_ulong};
use socket::fds;

/// See close(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    match fds::closing(fd) {
        // SAFETY: a number.
        Ok(()) => unsafe { next::close(fd) },
        Err(e) => fail(e),
    }
}

/// See close_range(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let closes = flags & !(libc::CLOSE_RANGE_UNSHARE as c_int) == 0;
    let ranges = if closes && first <= last { fds::closing_range(first, last) } else { None };
    let whole = vec![(first, last)];
    let mut result = 0;
    for (first, last) in ranges.unwrap_or(whole) {
        // SAFETY: three numbers.
        result = unsafe { next::close_range(first, last, flags) };
    }
    result
}

/// See closefrom(3).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: as close_range's.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// See dup(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: a number.
    let new = unsafe { next::dup(fd) };
    if new >= 0 {
        fds::duplicated(fd, new);
    }
    new
}

/// False for a number that stands for nothing: what it was to replace stays.
fn is_open(fd: c_int) -> bool {
    // SAFETY: numbers.
    !socket::locked::may(libc::SYS_fcntl) || unsafe { next::fcntl(fd, libc::F_GETFD, 0) } >= 0
}

/// See dup2(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: numbers.
    unsafe {
        if old == new || !is_open(old) {
            return next::dup2(old, new);
        }
        if let Err(e) = fds::closing(new) {
            return fail(e);
        }
        let result = next::dup2(old, new);
        if result >= 0 {
            fds::duplicated(old, new);
        }
        result
    }
}

/// See dup3(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: numbers.
    unsafe {
        if old == new || !is_open(old) {
            return next::dup3(old, new, flags);
        }
        if let Err(e) = fds::closing(new) {
            return fail(e);
        }
        let result = next::dup3(old, new, flags);
        if result >= 0 {
            fds::duplicated(old, new);
        }
        result
    }
}

/// See fcntl(2).
///
/// # Safety
/// As C's for the command.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: C's contract.
    unsafe {
        match command {
            libc::F_SETFL => {
                let on = argument as c_int & libc::O_NONBLOCK != 0;
                let listener = fds::set_nonblocking(fd, on);
                let kept = if listener { libc::O_NONBLOCK as usize } else { 0 };
                next::fcntl(fd, command, argument | kept)
            }
            libc::F_GETFL => {
                let flags = next::fcntl(fd, command, 0);
                if flags < 0 { flags } else { fds::open_flags(fd, flags) }
            }
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                let new = next::fcntl(fd, command, argument);
                if new >= 0 {
                    fds::duplicated(fd, new);
                }
                new
            }
            _ => next::fcntl(fd, command, argument),
        }
    }
}

/// See fcntl(2).
///
/// # Safety
/// As C's for the command.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the same function on 64-bit machines.
    unsafe { fcntl(fd, command, argument) }
}

/// `asm-generic/sockios.h`; `libc` does not name it.
const SIOCATMARK: c_ulong = 0x8905;

/// See sockatmark(3).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    match fds::is_at_mark(fd) {
        Some(is_at_mark) => c_int::from(is_at_mark),
        // SAFETY: a number.
        None => unsafe { next::sockatmark(fd) },
    }
}

/// See ioctl(2).
///
/// # Safety
/// As C's for the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: C's contract: these requests point to an int.
    unsafe {
        let count = match request {
            libc::FIONREAD => fds::unread(fd),
            libc::TIOCOUTQ => fds::unsent(fd),
            SIOCATMARK => fds::is_at_mark(fd).map(usize::from),
            libc::FIONBIO if argument != 0 => {
                let listener = fds::set_nonblocking(fd, *(argument as *const c_int) != 0);
                if listener {
                    return 0;
                }
                None
            }
            _ => None,
        };
        match count {
            Some(n) if argument != 0 => {
                *(argument as *mut c_int) = n.min(c_int::MAX as usize) as c_int;
                0
            }
            _ => next::ioctl(fd, request, argument),
        }
    }
}
