//! `fstat` and its kind: accepted sockets are told apart by their inodes, so each asked about has one.

use crate::next;
use libc::{c_char, c_int, c_uint, c_void};
use socket::fds;

/// Somebody asks about `fd`. Where the kernel has no socket to give, the answer is about the common one.
fn about(fd: c_int) {
    if fds::has_any() {
        let _ = fds::single_out(fd);
    }
}

/// The same for calls that take a folder's descriptor and a path, or that alone.
fn about_folder(fd: c_int, flags: c_int) {
    if flags & libc::AT_EMPTY_PATH != 0 {
        about(fd);
    }
}

/// See fstat(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat(fd: c_int, out: *mut c_void) -> c_int {
    about(fd);
    // SAFETY: C's contract.
    unsafe { next::fstat(fd, out) }
}

/// See fstat(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat64(fd: c_int, out: *mut c_void) -> c_int {
    about(fd);
    // SAFETY: C's contract.
    unsafe { next::fstat64(fd, out) }
}

/// What programs built with glibc 2.32 and before call for fstat.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat(version: c_int, fd: c_int, out: *mut c_void) -> c_int {
    about(fd);
    // SAFETY: C's contract.
    unsafe { next::__fxstat(version, fd, out) }
}

/// As [`__fxstat`].
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fxstat64(version: c_int, fd: c_int, out: *mut c_void) -> c_int {
    about(fd);
    // SAFETY: C's contract.
    unsafe { next::__fxstat64(version, fd, out) }
}

/// See fstatat(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatat(
    folder: c_int,
    path: *const c_char,
    out: *mut c_void,
    flags: c_int,
) -> c_int {
    about_folder(folder, flags);
    // SAFETY: C's contract.
    unsafe { next::fstatat(folder, path, out, flags) }
}

/// See fstatat(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstatat64(
    folder: c_int,
    path: *const c_char,
    out: *mut c_void,
    flags: c_int,
) -> c_int {
    about_folder(folder, flags);
    // SAFETY: C's contract.
    unsafe { next::fstatat64(folder, path, out, flags) }
}

/// See statx(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    out: *mut c_void,
) -> c_int {
    about_folder(folder, flags);
    // SAFETY: C's contract.
    unsafe { next::statx(folder, path, flags, mask, out) }
}
