//! Making, naming and closing sockets, and their options.

use crate::cancel::point;
use crate::{fail, int, look_for_deepbound, next, pointers, start, status};
use libc::{c_int, c_void, sockaddr, socklen_t};
use session::sys::address;
use socket::connect::fallback;
use socket::file::Connect;
use socket::{Errno, file};
use std::net::SocketAddr;

/// Longest option value in bytes that this library handles.
const OPTION_MAX: socklen_t = 256;

/// The `len` bytes at `at`; none if they cannot be read.
///
/// # Safety
/// `at` is null or readable for `len` bytes while the answer lives.
unsafe fn input<'a>(at: *const c_void, len: usize) -> &'a [u8] {
    if at.is_null() || !pointers::is_readable(at, len) {
        // The kernel gets the call for the placeholder, and returns the error.
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }
}

/// Writes an address in C's form: cut to the room given, with the full length reported.
///
/// # Safety
/// `len` is null or points to a length, `name` is null or writable for as many bytes.
unsafe fn output(
    address: SocketAddr,
    family: i32,
    name: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    if !pointers::is_writable(len, size_of::<socklen_t>()) {
        return Err(Errno::FAULT);
    }
    let (bytes, full) = address::bytes(address, family);
    // SAFETY: the caller's promise.
    unsafe {
        let room = (*len as usize).min(full);
        if (*len).cast_signed() < 0 {
            return Err(Errno::INVAL);
        }
        if !pointers::is_writable(name, room) {
            return Err(Errno::FAULT);
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), name.cast::<u8>(), room);
        *len = full as socklen_t;
    }
    Ok(())
}

/// See socket(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    start();
    look_for_deepbound();
    // SAFETY: three numbers.
    let fd = unsafe { next::socket(domain, kind, protocol) };
    if fd >= 0 {
        file::opened(fd, domain, kind, protocol);
    }
    fd
}

/// True when name and length can be an address; otherwise the kernel gets the call, and returns the error.
fn is_name(name: *const sockaddr, len: socklen_t) -> bool {
    let len = len as usize;
    (size_of::<libc::sa_family_t>()..=size_of::<libc::sockaddr_storage>()).contains(&len)
        && pointers::is_known(name, len)
}

/// See bind(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bind(fd: c_int, name: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: C's contract, where it is kept.
    unsafe {
        if !is_name(name, len) {
            return next::bind(fd, name, len);
        }
        match file::bind(fd, input(name.cast(), len as usize)) {
            Some(result) => int(result),
            None => match next::bind(fd, name, len) {
                -1 if *libc::__errno_location() == libc::EADDRINUSE => {
                    let is_back = file::is_port_back(fd, input(name.cast(), len as usize));
                    if is_back { next::bind(fd, name, len) } else { int(Err(Errno::ADDRINUSE)) }
                }
                result => result,
            },
        }
    }
}

/// See listen(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match file::listen(fd, backlog) {
        Some(result) => int(result),
        // SAFETY: two numbers.
        None => unsafe { next::listen(fd, backlog) },
    }
}

/// See connect(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, name: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: C's contract, where it is kept.
    point(|| unsafe {
        if !is_name(name, len) {
            return next::connect(fd, name, len);
        }
        match file::connect(fd, input(name.cast(), len as usize)) {
            Connect::Made(result) => int(result),
            Connect::Kernel => next::connect(fd, name, len),
            Connect::KernelPerhaps => {
                let result = match next::connect(fd, name, len) {
                    0 => Ok(()),
                    _ => Err(Errno::from_raw_os_error(*libc::__errno_location())),
                };
                fallback::connected(fd, result);
                int(result)
            }
        }
    })
}

/// See accept(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe {
        match accepted(fd, name, len, 0) {
            Some(new) => new,
            None => next::accept(fd, name, len),
        }
    })
}

/// See accept4(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    name: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe {
        match accepted(fd, name, len, flags) {
            Some(new) => new,
            None => next::accept4(fd, name, len, flags),
        }
    })
}

/// # Safety
/// As accept4's.
unsafe fn accepted(fd: c_int, name: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> Option<c_int> {
    look_for_deepbound();
    let accepted = match file::accept(fd, flags)? {
        Ok(accepted) => accepted,
        Err(e) => return Some(fail(e)),
    };
    // SAFETY: the caller's promise.
    unsafe {
        match (&accepted.peer, &accepted.sock) {
            (Some(peer), Some(sock)) if !name.is_null() => {
                if let Err(e) = output(*peer, sock.family(), name, len) {
                    // As Linux: the connection is closed with its descriptor, of which the program is not told.
                    crate::descriptors::close(accepted.fd);
                    return Some(fail(e));
                }
            }
            (Some(_), Some(_)) => {}
            _ if !name.is_null() => {
                next::getpeername(accepted.fd, name, len);
            }
            _ => {}
        }
    }
    Some(accepted.fd)
}

/// See shutdown(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match file::shutdown(fd, how) {
        Some(result) => int(result),
        // SAFETY: two numbers.
        None => unsafe { next::shutdown(fd, how) },
    }
}

/// See getsockname(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockname(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: C's contract.
    unsafe {
        match file::local_name(fd) {
            Some((address, family)) => int(output(address, family, name, len)),
            None => next::getsockname(fd, name, len),
        }
    }
}

/// See getpeername(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getpeername(fd: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: C's contract.
    unsafe {
        match file::peer_name(fd) {
            Some(Ok((address, family))) => int(output(address, family, name, len)),
            Some(Err(e)) => fail(e),
            None => next::getpeername(fd, name, len),
        }
    }
}

/// See getsockopt(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let known = pointers::is_writable(len, size_of::<socklen_t>());
    // SAFETY: C's contract; `len` is not null.
    let given = if known { unsafe { *len } } else { 0 };
    let room = given.min(OPTION_MAX) as usize;
    if value.is_null() || given.cast_signed() < 0 || !(known && pointers::is_writable(value, room)) {
        // SAFETY: the kernel checks the pointers.
        return unsafe { next::getsockopt(fd, level, name, value, len) };
    }
    // SAFETY: C's contract: `*len` bytes at `value`.
    unsafe {
        let out = std::slice::from_raw_parts_mut(value.cast::<u8>(), room);
        match file::option(fd, level, name, out) {
            Some(Ok(n)) => {
                *len = n as socklen_t;
                0
            }
            Some(Err(e)) => fail(e),
            None => next::getsockopt(fd, level, name, value, len),
        }
    }
}

/// See setsockopt(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: C's contract.
    unsafe {
        if value.is_null() || !pointers::is_readable(value, len as usize) {
            if let Err(e) = file::single_out(fd) {
                return fail(e);
            }
            return next::setsockopt(fd, level, name, value, len);
        }
        // Some options do not reach the kernel, which would report a bad address: their value is checked here.
        let is_good = || pointers::is_known(value, size_of::<c_int>());
        match file::set_option(fd, level, name, input(value, len as usize), is_good) {
            Some(result) => status(result.map(|()| 0)) as c_int,
            None => next::setsockopt(fd, level, name, value, len),
        }
    }
}
