//! `syscall`: a program that makes a call by its number gets the same function as one that calls it by name.

use crate::{
    batches, bytes, descriptors, fail, files, limits, programs, readiness, rings, seccomp, sockets, transfer,
};
use libc::{c_long, sigset_t};
use socket::file;

/// Calls one of our functions with arguments converted to C's types.
macro_rules! ours {
    ($function:path $(, $argument:expr)*) => { $function($($argument as _),*) as c_long };
}

/// See syscall(2). Socket calls go to this library's functions, io_uring's calls are looked at; all others reach the kernel
/// unchanged.
///
/// # Safety
/// As C's for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    n: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the caller answers for the arguments of this call.
    unsafe {
        if let Some(result) = portable(n, [a, b, c, d, e, f]).or_else(|| old(n, [a, b, c, d, e])) {
            return result;
        }
        if copies_the_process(n, a, b) {
            let copied = programs::forked(
                || session::sys::raw(n, [a, b, c, d, e, f]),
                |pid| pid.map_or(-1, |pid| pid as i32),
            );
            return copied.map_or_else(|error| c_long::from(fail(error)), |child| child as c_long);
        }
        if makes_another(n) {
            socket::socket::placeholder::own_each();
        }
        let arguments = [a, b, c, d, e, f];
        let result = match n {
            libc::SYS_io_uring_setup => rings::setup(arguments),
            libc::SYS_io_uring_enter => rings::enter(arguments),
            libc::SYS_io_uring_register => rings::register(arguments),
            _ => session::sys::raw(n, arguments),
        };
        result.map_or_else(|error| c_long::from(fail(error)), |r| r as c_long)
    }
}

/// True for calls that make a thread or a process, other than those of [`copies_the_process`].
fn makes_another(n: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if n == libc::SYS_vfork {
        return true;
    }
    n == libc::SYS_clone || n == libc::SYS_clone3
}

/// True for `fork` by its number and equal calls: the child has memory of its own. For `clone3`, `b` is the size of the structure at
/// `a`, and tells whether there are flags to read.
fn copies_the_process(n: c_long, a: usize, b: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    if n == libc::SYS_fork {
        return true;
    }
    let flags = match n {
        libc::SYS_clone => Some(a as u64),
        libc::SYS_clone3
            if b >= size_of::<u64>() && session::sys::pointers::is_readable(a, size_of::<u64>()) =>
        {
            // SAFETY: it was checked to be readable; no alignment is needed.
            Some(unsafe { std::ptr::read_unaligned(a as *const u64) })
        }
        _ => None,
    };
    flags.is_some_and(|flags| flags & (libc::CLONE_VM | libc::CLONE_FILES) as u64 == 0)
}

/// Calls that every architecture has.
///
/// # Safety
/// As [`syscall`]'s.
unsafe fn portable(n: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    // SAFETY: the caller's promise; the kernel's arguments are those of the C function, except where noted. Without accelerated sockets
    // the C functions would only copy time limits, where the kernel returns EFAULT.
    Some(unsafe {
        match n {
            libc::SYS_read => ours!(bytes::read, a, b, c),
            libc::SYS_write => ours!(bytes::write, a, b, c),
            libc::SYS_readv => ours!(bytes::readv, a, b, c),
            libc::SYS_writev => ours!(bytes::writev, a, b, c),
            libc::SYS_recvfrom => ours!(bytes::recvfrom, a, b, c, d, e, f),
            libc::SYS_sendto => ours!(bytes::sendto, a, b, c, d, e, f),
            libc::SYS_recvmsg => ours!(bytes::recvmsg, a, b, c),
            libc::SYS_sendmsg => ours!(bytes::sendmsg, a, b, c),
            libc::SYS_recvmmsg => ours!(batches::recvmmsg, a, b, c, d, e),
            libc::SYS_sendmmsg => ours!(batches::sendmmsg, a, b, c, d),
            libc::SYS_sendfile => ours!(transfer::sendfile, a, b, c, d),
            libc::SYS_splice => ours!(transfer::splice, a, b, c, d, e, f),
            libc::SYS_exit_group => programs::_exit(a as _),
            libc::SYS_execve => ours!(programs::execve, a, b, c),
            libc::SYS_execveat => ours!(programs::execveat, a, b, c, d, e),
            libc::SYS_fstat => ours!(files::fstat, a, b),
            libc::SYS_newfstatat => ours!(files::fstatat, a, b, c, d),
            libc::SYS_statx => ours!(files::statx, a, b, c, d, e),
            libc::SYS_fchmod => ours!(files::fchmod, a, b),
            libc::SYS_fchown => ours!(files::fchown, a, b, c),
            libc::SYS_prlimit64 => ours!(limits::prlimit, a, b, c, d),
            libc::SYS_prctl => ours!(seccomp::prctl, a, b, c, d, e),
            libc::SYS_seccomp => ours!(seccomp::seccomp, a, b, c),
            libc::SYS_close => ours!(descriptors::close, a),
            libc::SYS_close_range => ours!(descriptors::close_range, a, b, c),
            libc::SYS_dup => ours!(descriptors::dup, a),
            libc::SYS_dup3 => ours!(descriptors::dup3, a, b, c),
            libc::SYS_fcntl => ours!(descriptors::fcntl, a, b, c),
            libc::SYS_ioctl => ours!(descriptors::ioctl, a, b, c),
            libc::SYS_epoll_create1 => ours!(readiness::epoll_create1, a),
            libc::SYS_epoll_ctl => ours!(readiness::epoll_ctl, a, b, c, d),
            libc::SYS_epoll_pwait => ours!(readiness::epoll_pwait, a, b, c, d, e),
            libc::SYS_epoll_pwait2 => ours!(readiness::epoll_pwait2, a, b, c, d, e),
            libc::SYS_ppoll if file::has_any() => ours!(readiness::ppoll, a, b, c, d),
            libc::SYS_pselect6 if file::has_any() => {
                // The sixth argument points to the mask's address and length.
                let mask = (f as *const *const sigset_t).as_ref().map_or(std::ptr::null(), |mask| *mask);
                ours!(readiness::pselect, a, b, c, d, e, mask)
            }
            libc::SYS_socket => ours!(sockets::socket, a, b, c),
            libc::SYS_bind => ours!(sockets::bind, a, b, c),
            libc::SYS_listen => ours!(sockets::listen, a, b),
            libc::SYS_connect => ours!(sockets::connect, a, b, c),
            libc::SYS_accept => ours!(sockets::accept, a, b, c),
            libc::SYS_accept4 => ours!(sockets::accept4, a, b, c, d),
            libc::SYS_shutdown => ours!(sockets::shutdown, a, b),
            libc::SYS_getsockname => ours!(sockets::getsockname, a, b, c),
            libc::SYS_getpeername => ours!(sockets::getpeername, a, b, c),
            libc::SYS_getsockopt => ours!(sockets::getsockopt, a, b, c, d, e),
            libc::SYS_setsockopt => ours!(sockets::setsockopt, a, b, c, d, e),
            _ => return None,
        }
    })
}

/// Calls that newer architectures do not have.
///
/// # Safety
/// As [`syscall`]'s.
#[cfg(target_arch = "x86_64")]
unsafe fn old(n: c_long, [a, b, c, d, e]: [usize; 5]) -> Option<c_long> {
    // SAFETY: as in `portable`.
    Some(unsafe {
        match n {
            libc::SYS_dup2 => ours!(descriptors::dup2, a, b),
            libc::SYS_setrlimit => ours!(limits::setrlimit, a, b),
            libc::SYS_epoll_create => ours!(readiness::epoll_create, a),
            libc::SYS_epoll_wait => ours!(readiness::epoll_wait, a, b, c, d),
            libc::SYS_poll if file::has_any() => ours!(readiness::poll, a, b, c),
            libc::SYS_select if file::has_any() => ours!(readiness::select, a, b, c, d, e),
            _ => return None,
        }
    })
}

/// Calls that newer architectures do not have: none here.
///
/// # Safety
/// None needed.
#[cfg(not(target_arch = "x86_64"))]
const unsafe fn old(_: c_long, _: [usize; 5]) -> Option<c_long> {
    None
}
