//! The system calls of io_uring, made through `syscall`.

use crate::pointers;
use libc::{c_int, epoll_event};
use session::sys;
use socket::Errno;
use socket::process::io_uring;
use socket::process::io_uring::{IoringEnterFlags, IoringSetupFlags, io_uring_params};

/// See io_uring_setup(2).
///
/// # Safety
/// As the call's.
pub unsafe fn setup(a: [usize; 6]) -> Result<usize, Errno> {
    let params = a[1] as *const io_uring_params;
    // SAFETY: `is_readable` below has checked it, as far as the user wants checks; any bits are valid flags.
    let flags = || unsafe { (&raw const (*params).flags).cast::<u32>().read_unaligned() };
    let is_readable = pointers::is_known(params, size_of::<io_uring_params>());
    let flags = is_readable.then(|| IoringSetupFlags::from_bits_retain(flags()));
    // SAFETY: the caller's promise.
    let make = || unsafe { sys::raw(libc::SYS_io_uring_setup, a) }.map(|ring| ring as c_int);
    // SAFETY: readable as above, and the kernel has just filled it in.
    io_uring::set_up(flags, make, || unsafe { params.read_unaligned() }).map(|ring| ring as usize)
}

/// See io_uring_enter(2).
///
/// # Safety
/// As the call's, and that of what is submitted.
pub unsafe fn enter(a: [usize; 6]) -> Result<usize, Errno> {
    let event = |at: u64| {
        let at = at as *const epoll_event;
        // SAFETY: it was checked to be readable, as far as the user wants checks.
        pointers::is_readable(at, size_of::<epoll_event>()).then(|| unsafe { at.read_unaligned() })
    };
    let [ring, count, _, flags, ..] = a;
    let is_index =
        IoringEnterFlags::from_bits_retain(flags as u32).contains(IoringEnterFlags::REGISTERED_RING);
    let _closing = (!is_index).then(|| io_uring::submissions::entering(ring as c_int, count as u32, event));
    // SAFETY: the caller's promise.
    unsafe { sys::raw(libc::SYS_io_uring_enter, a) }
}

/// See io_uring_register(2).
///
/// # Safety
/// As the call's.
pub unsafe fn register(a: [usize; 6]) -> Result<usize, Errno> {
    io_uring::registering(a[0] as c_int, a[1] as u32)?;
    // SAFETY: the caller's promise.
    unsafe { sys::raw(libc::SYS_io_uring_register, a) }
}
