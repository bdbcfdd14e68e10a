//! `libtowpath_preload.so`: the C library's symbols that touch sockets. Each asks crate `socket` first; what is not
//! Towpath's goes to the next library's symbol of the same name. No logic here.
//!
//! Every function has the contract of the C function of its name: pointers are valid for what C says they are.

mod aliases;
mod batches;
mod bytes;
mod cancel;
mod checks;
#[cfg(target_arch = "x86_64")]
mod deepbound;
mod descriptors;
mod environment;
mod files;
mod heap;
mod limits;
mod next;
mod pointers;
mod programs;
mod readiness;
mod rings;
mod seccomp;
mod sockets;
mod stdio;
mod syscall;
mod transfer;

use socket::Errno;
use std::sync::Once;

/// Fails as C functions do: returns -1 and sets errno.
fn fail(e: Errno) -> libc::c_int {
    // SAFETY: errno's address is valid for the calling thread.
    unsafe { *libc::__errno_location() = e.raw_os_error() };
    -1
}

/// As [`fail`], for calls that return a size.
fn status<T: TryInto<isize>>(result: Result<T, Errno>) -> isize {
    match result {
        Ok(n) => n.try_into().unwrap_or(isize::MAX),
        Err(e) => fail(e) as isize,
    }
}

/// As [`status`], for calls that return an int.
fn int(result: Result<(), Errno>) -> libc::c_int {
    result.map_or_else(fail, |()| 0)
}

/// Redirects objects that were loaded with `RTLD_DEEPBIND` to this library.
fn look_for_deepbound() {
    #[cfg(target_arch = "x86_64")]
    deepbound::look();
}

extern "C" fn before_fork() {
    socket::process::fork::prepare();
}

extern "C" fn in_parent() {
    socket::process::fork::parent();
}

extern "C" fn in_child() {
    socket::file::settle();
    socket::process::fork::child();
}

/// Initializes the library once: from the constructor, or from the first call before that.
fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        socket::file::settle();
        session::sys::only_thread::learn();
        // SAFETY: three functions that live as long as the process. Without memory there are no handlers, and children inherit nothing.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn construct() {
    start();
    environment::remember();
    socket::remember();
    socket::process::fd_passing::inherit();
    (0..3).for_each(stdio::follow);
}

extern "C" fn destruct() {
    stdio::flush();
    socket::process::fork::ending();
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCT: extern "C" fn() = construct;

/// Runs at `exit`, which ends the process without calling the symbol `_exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCT: extern "C" fn() = destruct;
