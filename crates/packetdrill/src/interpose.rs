//! Calls that the tool makes outside its interface, on descriptors that it got from this library: `getsockopt` for `TCP_INFO`, `sendfile`,
//! and `close` when a script ends. The symbols of a library loaded with `RTLD_DEEPBIND` and `RTLD_LOCAL` do not replace those of the C
//! library, so the GOT slots of the main program for these three functions are changed to point here. Under `LD_PRELOAD` the symbols of the
//! first two suffice.
//!
//! Calls on all other descriptors go to the kernel unchanged.

use crate::abi;
use libc::{c_int, c_void, off_t, size_t, socklen_t, ssize_t};
use std::ffi::CStr;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Changes the main program's GOT slots to point to the functions here.
pub(crate) fn install() {
    loader::each(|program| {
        for slot in program.slots() {
            if let Some(ours) = slot.name().and_then(replacement) {
                // SAFETY: the functions have the same type, and this library is never unloaded.
                unsafe { slot.point(ours) };
            }
        }
        // The first object is the main program.
        ControlFlow::Break(())
    });
}

fn replacement(name: &CStr) -> Option<usize> {
    match name.to_bytes() {
        b"getsockopt" => Some(getsockopt as *const () as usize),
        b"sendfile" => Some(sendfile as *const () as usize),
        b"close" => Some(close as *const () as usize),
        _ => None,
    }
}

fn ours(fd: c_int) -> Option<Arc<crate::world::World>> {
    crate::world().filter(|world| world.has(fd))
}

/// Replaces the C library's `getsockopt`.
///
/// # Safety
/// The same conditions as for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if ours(fd).is_some() {
        // SAFETY: the caller guarantees that the arguments are valid.
        return unsafe { abi::getsockopt(std::ptr::null_mut(), fd, level, name, value, len) };
    }
    // SAFETY: the same call, with the caller's arguments.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int }
}

/// Replaces the C library's `sendfile`.
///
/// # Safety
/// As C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let Some(world) = ours(to) else {
        // SAFETY: the same call, with the caller's arguments.
        return unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) as ssize_t };
    };
    let mut buffer = vec![0; count.min(16 << 20)];
    // SAFETY: the buffer is this function's own; the caller guarantees that the descriptor and the offset are valid.
    let read = unsafe {
        if offset.is_null() {
            libc::read(from, buffer.as_mut_ptr().cast(), buffer.len())
        } else {
            libc::pread(from, buffer.as_mut_ptr().cast(), buffer.len(), *offset)
        }
    };
    let Ok(read) = usize::try_from(read) else { return -1 };
    let sent = if read == 0 { Ok(0) } else { world.send(to, &buffer[..read], 0) };
    if let (Ok(n), false) = (sent, offset.is_null()) {
        // SAFETY: the offset is valid, as for the read above.
        unsafe { *offset += n as off_t };
    }
    abi::status(sent)
}

/// Replaces `close` in the slots of the main program only: this library closes real descriptors and must not call this function.
unsafe extern "C" fn close(fd: c_int) -> c_int {
    match ours(fd) {
        Some(world) => abi::status(world.close(fd).map(|()| 0_isize)) as c_int,
        // SAFETY: the same call, with the caller's argument.
        None => unsafe { libc::syscall(libc::SYS_close, fd) as c_int },
    }
}
