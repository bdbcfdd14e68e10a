//! Seccomp filters that the program sets: before that, this library prepares to do without the calls that they forbid.

use crate::status;
use libc::{c_int, c_long, c_uint, sock_filter, sock_fprog};
use session::sys;
use socket::process::seccomp::{self, Instruction, Lock};

/// The filter at `at`; `None`: it cannot be read, and the kernel returns the error.
///
/// # Safety
/// The memory at `at`, and the memory that it points to, are not changed meanwhile.
unsafe fn filter(at: *const sock_fprog) -> Option<Lock> {
    let is_there = |at: usize, len: usize| at != 0 && sys::pointers::is_readable(at, len);
    if !is_there(at as usize, size_of::<sock_fprog>()) {
        return None;
    }
    // SAFETY: it was checked to be readable.
    let (len, first) = unsafe {
        let program = at.read_unaligned();
        (usize::from(program.len), program.filter)
    };
    if len == 0 || !is_there(first as usize, len * size_of::<sock_filter>()) {
        return None;
    }
    let instruction = |i| {
        // SAFETY: all `len` instructions were checked to be readable.
        let sock_filter { code, jt, jf, k } = unsafe { first.add(i).read_unaligned() };
        Instruction { code, jt, jf, k }
    };
    Some(Lock::Filter((0..len).map(instruction).collect()))
}

/// Makes system call `n`, which sets a filter for this thread if `lock` is some.
///
/// # Safety
/// As the kernel's contract for the call.
unsafe fn make(lock: Option<Lock>, n: c_long, a: [usize; 6]) -> c_long {
    // SAFETY: the caller's promise.
    let install = || unsafe { sys::raw(n, a) };
    let result = match lock {
        Some(lock) => seccomp::enter(&lock, install),
        None => install(),
    };
    status(result) as c_long
}

/// See prctl(2). This library only cares about `PR_SET_SECCOMP`.
///
/// # Safety
/// As C's for the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(operation: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // SAFETY: C's contract.
    unsafe {
        let lock = match (operation, a as c_uint) {
            (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) => Some(Lock::Strict),
            (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER) => filter(b as *const sock_fprog),
            _ => None,
        };
        make(lock, libc::SYS_prctl, [operation as usize, a, b, c, d, 0]) as c_int
    }
}

/// See seccomp(2); libc has no function for it.
///
/// # Safety
/// As the kernel's.
pub unsafe fn seccomp(operation: c_uint, flags: c_uint, argument: usize) -> c_long {
    // SAFETY: the caller's promise.
    unsafe {
        let lock = match operation {
            libc::SECCOMP_SET_MODE_STRICT => Some(Lock::Strict),
            libc::SECCOMP_SET_MODE_FILTER => filter(argument as *const sock_fprog),
            _ => None,
        };
        make(lock, libc::SYS_seccomp, [operation as usize, flags as usize, argument, 0, 0, 0])
    }
}
