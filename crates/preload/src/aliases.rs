//! Other names that the C library has for functions of this library: internal names, and those with 64-bit offsets, which are all offsets
//! of a 64-bit machine.

use crate::descriptors::{dup2, fcntl};
use crate::limits::{getrlimit, prlimit, setrlimit};
use crate::transfer::{preadv2, pwritev2, sendfile};
use libc::{c_int, c_uint, iovec, off_t, pid_t, rlimit, size_t, ssize_t};

macro_rules! aliases {
    ($($name:ident = $function:ident($($a:ident: $t:ty),*) -> $r:ty;)*) => { $(
        #[doc = concat!("The same as `", stringify!($function), "`.")]
        ///
        /// # Safety
        /// As that function's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($a: $t),*) -> $r {
            // SAFETY: the caller's promise.
            unsafe { $function($($a),*) }
        }
    )* };
}

aliases! {
    __dup2 = dup2(old: c_int, new: c_int) -> c_int;
    __fcntl = fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fcntl64 = fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    getrlimit64 = getrlimit(resource: c_uint, limits: *mut rlimit) -> c_int;
    setrlimit64 = setrlimit(resource: c_uint, limits: *const rlimit) -> c_int;
    prlimit64 = prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int;
    sendfile64 = sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    preadv64v2 = preadv2(fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    pwritev64v2 = pwritev2(fd: c_int, vector: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
}
