//! Calls that the tool makes past its interface, on descriptors that it has from us: `getsockopt` for `TCP_INFO`, `sendfile`,
//! and `close` when a script ends. A library loaded with `RTLD_DEEPBIND` and `RTLD_LOCAL` cannot come before the C library by
//! its symbols, so the slots through which the main program calls these three are pointed at us. Under `LD_PRELOAD` the
//! symbols of the first two do it alone.
//!
//! Everything else that these functions are asked goes to the kernel as it is.

use crate::abi;
use libc::{c_int, c_void, off_t, size_t, socklen_t, ssize_t};
use std::ffi::CStr;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Points the main program's slots at us.
pub(crate) fn install() {
    loader::each(|program| {
        for slot in program.slots() {
            if let Some(ours) = slot.name().and_then(replacement) {
                // SAFETY: of the same type, and we are never unloaded.
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

/// `getsockopt`
///
/// # Safety
/// As C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if ours(fd).is_some() {
        // SAFETY: the caller answers for the arguments.
        return unsafe { abi::getsockopt(std::ptr::null_mut(), fd, level, name, value, len) };
    }
    // SAFETY: the same call, with the caller's arguments.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int }
}

/// `sendfile`
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
    // SAFETY: a buffer of our own; the caller answers for the descriptor and the offset.
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
        // SAFETY: as above.
        unsafe { *offset += n as off_t };
    }
    abi::status(sent)
}

/// `close`, for the slots of the main program only: our own code closes real descriptors and must not come here.
unsafe extern "C" fn close(fd: c_int) -> c_int {
    match ours(fd) {
        Some(world) => abi::status(world.close(fd).map(|()| 0_isize)) as c_int,
        // SAFETY: the same call, with the caller's argument.
        None => unsafe { libc::syscall(libc::SYS_close, fd) as c_int },
    }
}
