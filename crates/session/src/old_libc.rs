//! Lets the libraries run with the C library of old systems, from glibc 2.17 on.
//!
//! A library that is linked against a newer glibc asks for the newest version of each symbol, and the loader of an older one ends the program
//! before its first line. Of what this library and Rust's standard library call, five functions have a new version since glibc 2.34 only because
//! they have moved from `libdl` and `libpthread` into `libc`; and `stat64` is a symbol since glibc 2.33 only. So each of them is defined here, seen by
//! this library alone. The five go on to the old version, which every glibc has; `stat64` is a system call. (`fstat64` is, too: `preload` replaces it
//! anyway, and `ring-c` has a file for it.)
//!
//! Before 2.34 a program need not have `libdl` and `libpthread`: the libraries name both as needed (their `build.rs`). A test reads the symbols of
//! the built libraries (`tests/apps/lib/libraries.py`).

use crate::sys;
use libc::{c_char, c_int};
use std::arch::global_asm;

/// The oldest version of the symbols of this machine's glibc.
#[cfg(target_arch = "x86_64")]
macro_rules! oldest {
    () => {
        "GLIBC_2.2.5"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! oldest {
    () => {
        "GLIBC_2.17"
    };
}

/// A jump to [`stat`].
#[cfg(target_arch = "x86_64")]
macro_rules! go_on {
    () => {
        "jmp {stat}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! go_on {
    () => {
        "b {stat}"
    };
}

/// A jump to the address that the loader finds for a symbol. Nothing else may be touched: registers hold arguments, and `dlsym` looks at the
/// address that it returns to.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($symbol:literal) => {
        concat!("jmp [rip + towpath_old_", $symbol, "@GOTPCREL]\n")
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($symbol:literal) => {
        concat!(
            "adrp x16, :got:towpath_old_",
            $symbol,
            "\nldr x16, [x16, :got_lo12:towpath_old_",
            $symbol,
            "]\nbr x16\n"
        )
    };
}

/// Defines a symbol, for this library alone, that goes on to its oldest version.
macro_rules! old {
    ($($symbol:literal)*) => {
        global_asm!(
            ".pushsection .text.towpath_old_libc, \"ax\", @progbits",
            $(concat!(
                ".symver towpath_old_", $symbol, ", ", $symbol, "@", oldest!(), "\n",
                ".globl ", $symbol, "\n.hidden ", $symbol, "\n.type ", $symbol, ", @function\n",
                $symbol, ":\n", jump!($symbol),
                ".size ", $symbol, ", . - ", $symbol, "\n",
            ),)*
            ".popsection",
        );
    };
}

old!("dlsym" "pthread_key_create" "pthread_key_delete" "pthread_setspecific" "pthread_testcancel");

global_asm!(
    ".pushsection .text.towpath_old_libc, \"ax\", @progbits",
    ".globl stat64",
    ".hidden stat64",
    ".type stat64, @function",
    "stat64:",
    go_on!(),
    ".size stat64, . - stat64",
    ".popsection",
    stat = sym stat
);

/// `stat64` of the C library. On these machines the kernel writes the same structure.
unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat64) -> c_int {
    let arguments = [libc::AT_FDCWD as usize, path as usize, to as usize, 0, 0, 0];
    // SAFETY: the caller's promise to `stat64` is the kernel's demand: the kernel checks both addresses itself.
    match unsafe { sys::raw(libc::SYS_newfstatat, arguments) } {
        Ok(_) => 0,
        Err(e) => {
            // SAFETY: the C library's `errno` of this thread.
            unsafe { *libc::__errno_location() = e.raw_os_error() };
            -1
        }
    }
}

/// Has the linker take this file's definitions into every program and library that has this crate, before it looks for them elsewhere.
#[used]
static TAKEN: unsafe extern "C" fn(*const c_char, *mut libc::stat64) -> c_int = stat;

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    #[test]
    fn the_old_versions_do_what_the_new_ones_do() {
        // SAFETY: a C string, and a handle that means all that is loaded.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) };
        assert!(!found.is_null());
        // SAFETY: the addresses live as long as the calls.
        unsafe {
            let (mut key, mut value) = (0, 0u8);
            assert_eq!(libc::pthread_key_create(&raw mut key, None), 0);
            assert_eq!(libc::pthread_setspecific(key, (&raw mut value).cast()), 0);
            assert_eq!(libc::pthread_getspecific(key), (&raw mut value).cast());
            assert_eq!(libc::pthread_key_delete(key), 0);
        }
    }

    #[test]
    fn a_file_is_told_as_the_kernel_tells_it() {
        let stat = |path: &CStr| {
            // SAFETY: plain numbers; then addresses that live as long as the call.
            unsafe {
                let mut found: libc::stat64 = std::mem::zeroed();
                (super::stat(path.as_ptr(), &raw mut found), found)
            }
        };
        let (result, found) = stat(c"/dev/null");
        let expected = rustix::fs::stat(c"/dev/null").unwrap();
        assert_eq!((result, found.st_ino, found.st_rdev), (0, expected.st_ino, expected.st_rdev));
        assert_eq!(stat(c"/nowhere/at/all").0, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
    }
}
