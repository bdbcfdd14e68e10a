//! `fstat` and the like: programs tell accepted sockets apart by their inodes, so a socket that is examined or changed gets its own.

use crate::next;
use libc::{c_char, c_int, c_uint, c_void, gid_t, mode_t, size_t, timespec, uid_t};
use socket::file;

/// Before a call that examines `fd`: gives it a kernel socket of its own. If the kernel has none, the call sees the common one.
fn about(fd: c_int) {
    if file::has_any() {
        let _ = file::single_out(fd);
    }
}

/// [`about`] for calls that take a directory's descriptor and a path, if the path is empty and so the descriptor itself is meant.
fn about_folder(fd: c_int, flags: c_int) {
    if flags & libc::AT_EMPTY_PATH != 0 {
        about(fd);
    }
}

/// Functions that run `says` first and then call the next library's function.
macro_rules! after {
    ($($name:ident($($a:ident: $t:ty),*) says $what:expr;)*) => { $(
        #[doc = concat!("See ", stringify!($name), " in section 2; `__fxstat` is what programs call for fstat that were built with glibc 2.32 and before.")]
        ///
        /// # Safety
        /// As C's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int {
            $what;
            // SAFETY: C's contract.
            unsafe { next::$name($($a),*) }
        }
    )* };
}

after! {
    fstat(fd: c_int, out: *mut c_void) says about(fd);
    fstat64(fd: c_int, out: *mut c_void) says about(fd);
    __fxstat(version: c_int, fd: c_int, out: *mut c_void) says about(fd);
    __fxstat64(version: c_int, fd: c_int, out: *mut c_void) says about(fd);
    fstatat(folder: c_int, path: *const c_char, out: *mut c_void, flags: c_int) says about_folder(folder, flags);
    fstatat64(folder: c_int, path: *const c_char, out: *mut c_void, flags: c_int) says about_folder(folder, flags);
    __fxstatat(version: c_int, folder: c_int, path: *const c_char, out: *mut c_void, flags: c_int) says about_folder(folder, flags);
    __fxstatat64(version: c_int, folder: c_int, path: *const c_char, out: *mut c_void, flags: c_int) says about_folder(folder, flags);
    fchmod(fd: c_int, mode: mode_t) says about(fd);
    fchown(fd: c_int, user: uid_t, group: gid_t) says about(fd);
    fchownat(folder: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) says about_folder(folder, flags);
    futimens(fd: c_int, times: *const timespec) says about(fd);
    fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) says about(fd);
    flock(fd: c_int, operation: c_int) says about(fd);
    statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut c_void) says about_folder(folder, flags);
}
