//! getrlimit, setrlimit and prlimit: `RLIMIT_AS` is meant for the program's memory, so this library's regions are not counted.

use crate::{next, pointers};
use libc::{c_int, c_uint, pid_t, rlimit};
use socket::file;
use socket::process::rlimit_as;
use socket::socket::placeholder;

/// True for `RLIMIT_AS`, the one limit that this library adjusts.
fn is_ours(resource: c_uint) -> bool {
    resource == libc::RLIMIT_AS as c_uint && !file::is_borrowed()
}

/// Replaces the limits that the kernel returned by those that the program is to see.
///
/// # Safety
/// The kernel has written to `limits`.
unsafe fn show(limits: *mut rlimit) {
    // SAFETY: the caller's promise.
    unsafe {
        let [rlim_cur, rlim_max] = rlimit_as::seen([(*limits).rlim_cur, (*limits).rlim_max]);
        *limits = rlimit { rlim_cur, rlim_max };
    }
}

/// See getrlimit(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(resource: c_uint, limits: *mut rlimit) -> c_int {
    // SAFETY: C's contract; what the kernel has written to may be written here.
    unsafe {
        let result = next::getrlimit(resource, limits);
        if result == 0 && is_ours(resource) {
            show(limits);
        }
        result
    }
}

/// See setrlimit(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_uint, limits: *const rlimit) -> c_int {
    // SAFETY: C's contract.
    unsafe { prlimit(0, resource, limits, std::ptr::null_mut()) }
}

/// See prlimit(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    if resource == libc::RLIMIT_NOFILE && !new.is_null() {
        // Under a lower limit there may be no free descriptor with which to replace a common socket.
        placeholder::own_each();
    }
    // SAFETY: C's contract, and as in `getrlimit`.
    unsafe {
        if !is_ours(resource) || (pid != 0 && pid != libc::getpid()) {
            let result = next::prlimit(pid, resource, new, old);
            if resource == libc::RLIMIT_NOFILE && result == 0 && !new.is_null() && !file::is_borrowed() {
                placeholder::fit();
            }
            return result;
        }
        let tell = |new: *const rlimit| {
            let result = next::prlimit(pid, resource, new, old);
            if result == 0 && !old.is_null() {
                show(old);
            }
            result
        };
        if !pointers::is_readable(new, size_of::<rlimit>()) {
            return tell(new);
        }
        let mut result = 0;
        rlimit_as::set([(*new).rlim_cur, (*new).rlim_max], |[rlim_cur, rlim_max]| {
            result = tell(&rlimit { rlim_cur, rlim_max });
            result == 0
        });
        result
    }
}
