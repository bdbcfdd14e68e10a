//! `fstat64`, which is a symbol of the C library since glibc 2.33 only: see `crates/session/src/old_libc.rs`. Rust's standard library calls it.

use libc::c_int;
use std::arch::global_asm;

#[cfg(target_arch = "x86_64")]
macro_rules! go_on {
    () => {
        "jmp {fstat}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! go_on {
    () => {
        "b {fstat}"
    };
}

global_asm!(
    ".pushsection .text.towpath_old_libc, \"ax\", @progbits",
    ".globl fstat64",
    ".hidden fstat64",
    ".type fstat64, @function",
    "fstat64:",
    go_on!(),
    ".size fstat64, . - fstat64",
    ".popsection",
    fstat = sym fstat
);

/// `fstat64` of the C library. On these machines the kernel writes the same structure.
unsafe extern "C" fn fstat(fd: c_int, to: *mut libc::stat64) -> c_int {
    // SAFETY: the caller's promise to `fstat64` is the kernel's demand: the kernel checks the address itself.
    unsafe { libc::syscall(libc::SYS_fstat, fd, to) as c_int }
}
