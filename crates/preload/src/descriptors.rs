//! Closing and duplicating descriptors, their flags, and `ioctl`.

use crate::cancel::point;
use crate::{fail, look_for_deepbound, next, stdio};
use libc::{c_int, c_uint, c_ulong};
use socket::file;
use socket::file::Nonblocking;
use socket::wait::sigio;

/// See close(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    look_for_deepbound();
    point(|| match file::closing(fd) {
        // SAFETY: a number.
        Ok(_changing) => unsafe { next::close(fd) },
        Err(e) => fail(e),
    })
}

/// See close_range(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let _changing = file::closing_many();
    let closes = flags & !(libc::CLOSE_RANGE_UNSHARE as c_int) == 0;
    let ranges = if closes && first <= last { file::closing_range(first, last) } else { None };
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
    let _changing = file::duplicating(fd);
    if let Err(e) = file::single_out(fd) {
        return fail(e);
    }
    // SAFETY: a number.
    let new = unsafe { next::dup(fd) };
    if new >= 0 {
        duplicated(fd, new);
    }
    new
}

/// Notes that `new` is a duplicate of `old`.
fn duplicated(old: c_int, new: c_int) {
    file::duplicated(old, new);
    stdio::follow(new);
}

/// True when `fd` is open: a failing `dup2` must leave the descriptor to be replaced untouched.
fn is_open(fd: c_int) -> bool {
    // SAFETY: numbers.
    !session::detached::may(libc::SYS_fcntl) || unsafe { next::fcntl(fd, libc::F_GETFD, 0) } >= 0
}

/// Makes `new` a duplicate of `old`, by `call`.
fn duplicate_onto(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if old == new || !is_open(old) {
        return call();
    }
    if let Err(e) = file::single_out(old) {
        return fail(e);
    }
    let _changing = match file::closing(new) {
        Ok(changing) => (changing, file::duplicating(old)),
        Err(e) => return fail(e),
    };
    let result = call();
    if result >= 0 {
        duplicated(old, new);
    }
    result
}

/// See dup2(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: numbers.
    duplicate_onto(old, new, || unsafe { next::dup2(old, new) })
}

/// See dup3(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: numbers.
    duplicate_onto(old, new, || unsafe { next::dup3(old, new, flags) })
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
                let flags = argument as c_int;
                let kept = match file::set_nonblocking(fd, flags & libc::O_NONBLOCK != 0) {
                    Nonblocking::Ours if flags & BEYOND == 0 => return 0,
                    Nonblocking::Ours => match file::single_out(fd) {
                        Ok(()) => 0,
                        Err(e) => return fail(e),
                    },
                    Nonblocking::Stays => libc::O_NONBLOCK as usize,
                    Nonblocking::Kernels => 0,
                };
                let result = next::fcntl(fd, command, argument | kept);
                if flags & libc::O_ASYNC != 0 { told_of(fd, result) } else { result }
            }
            libc::F_GETFD => next::fcntl(fd, command, argument),
            libc::F_SETFD => file::steadily(fd, || next::fcntl(fd, command, argument)),
            libc::F_GETFL => file::open_flags(fd, || next::fcntl(fd, command, 0)),
            _ => match file::single_out(fd) {
                Ok(()) => fcntl_beyond(fd, command, argument),
                Err(e) => fail(e),
            },
        }
    }
}

/// Commands that concern the file behind the descriptor.
///
/// # Safety
/// As C's for the command.
unsafe fn fcntl_beyond(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match command {
            libc::F_SETOWN | F_SETOWN_EX => told_of(fd, next::fcntl(fd, command, argument)),
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                let _changing = file::duplicating(fd);
                let new = next::fcntl(fd, command, argument);
                if new >= 0 {
                    duplicated(fd, new);
                }
                new
            }
            _ => next::fcntl(fd, command, argument),
        }
    }
}

/// From `asm-generic/sockios.h` and `asm-generic/fcntl.h`; `libc` does not have them.
const SIOCATMARK: c_ulong = 0x8905;
/// From `linux/sockios.h`: number of bytes not sent yet.
const SIOCOUTQNSD: c_ulong = 0x894B;
const SIOCSPGRP: c_ulong = 0x8902;
const FIOSETOWN: c_ulong = 0x8901;
const F_SETOWN_EX: c_int = 15;
/// Flags that `F_SETFL` sets beside `O_NONBLOCK`.
const BEYOND: c_int = libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;

/// After the kernel has set a signal's receiver for `fd` with the given `result`: lets the library send its signals, too.
fn told_of(fd: c_int, result: c_int) -> c_int {
    if result == 0 {
        sigio::asked(fd);
    }
    result
}

/// See sockatmark(3).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    match file::is_at_mark(fd) {
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
            libc::FIONREAD => file::unread(fd),
            libc::TIOCOUTQ => file::unsent(fd),
            SIOCOUTQNSD => file::held_back(fd),
            SIOCATMARK => file::is_at_mark(fd).map(usize::from),
            libc::FIONBIO if argument != 0 => {
                match file::set_nonblocking(fd, *(argument as *const c_int) != 0) {
                    Nonblocking::Kernels => None,
                    Nonblocking::Stays | Nonblocking::Ours => return 0,
                }
            }
            libc::FIOCLEX | libc::FIONCLEX => {
                return file::steadily(fd, || next::ioctl(fd, request, argument));
            }
            _ => None,
        };
        if let Some(n) = count.filter(|_| argument != 0) {
            *(argument as *mut c_int) = n.min(c_int::MAX as usize) as c_int;
            return 0;
        }
        match file::single_out(fd) {
            Err(e) => fail(e),
            Ok(()) if [SIOCSPGRP, FIOSETOWN, libc::FIOASYNC].contains(&request) => {
                told_of(fd, next::ioctl(fd, request, argument))
            }
            Ok(()) => next::ioctl(fd, request, argument),
        }
    }
}
