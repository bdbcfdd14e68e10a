//! Calls that have no safe wrapper: filters for system calls, and users and groups by name.

use rustix::io::Errno;
use seccompiler::sock_filter;
use std::ffi::CString;
use std::mem::MaybeUninit;

/// Bytes for a user's or group's entry; a group with too many members is not found.
const ENTRY_LEN: usize = 1 << 16;

/// Installs `program` as a filter for the system calls of this thread and of the threads that it starts. With `is_logged`, refused calls
/// appear in the kernel's log.
pub fn install_filter(program: &[sock_filter], is_logged: bool) -> Result<(), Errno> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // Before Linux 5.16 a filter also disabled speculative store bypass, which slows every memory access. That protects a process from
    // untrusted code that it runs; the service runs none.
    let mut flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    if is_logged {
        flags |= libc::SECCOMP_FILTER_FLAG_LOG;
    }
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies `len` instructions, which outlive the call and have its layout (`sock_filter` is repr(C) in both crates).
    let result = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)
}

/// Number and primary group of the user `name`.
pub fn user(name: &str) -> Option<(u32, u32)> {
    let (name, mut buffer) = (CString::new(name).ok()?, vec![0; ENTRY_LEN]);
    let (mut entry, mut found) = (MaybeUninit::<libc::passwd>::uninit(), std::ptr::null_mut());
    let (to, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: all pointers are good for the call, `to` for `len` bytes; the name ends with a zero.
    unsafe { libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), to, len, &raw mut found) };
    // SAFETY: `found` is null or points to `entry`, which is filled in then and still lives.
    unsafe { found.as_ref() }.map(|entry| (entry.pw_uid, entry.pw_gid))
}

/// Number of the group `name`.
pub fn group(name: &str) -> Option<u32> {
    let (name, mut buffer) = (CString::new(name).ok()?, vec![0; ENTRY_LEN]);
    let (mut entry, mut found) = (MaybeUninit::<libc::group>::uninit(), std::ptr::null_mut());
    let (to, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: all pointers are good for the call, `to` for `len` bytes; the name ends with a zero.
    unsafe { libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), to, len, &raw mut found) };
    // SAFETY: `found` is null or points to `entry`, which is filled in then and still lives.
    unsafe { found.as_ref() }.map(|entry| entry.gr_gid)
}

/// Makes a system call with these arguments, which must not point to memory. Returns the kernel's result.
#[cfg(test)]
pub fn attempt(number: i64, arguments: [usize; 4]) -> Result<i64, Errno> {
    let [a, b, c, d] = arguments;
    // SAFETY: tests pass numbers and null pointers only, which the kernel answers with EFAULT.
    let result = unsafe { libc::syscall(number, a, b, c, d) };
    if result < 0 { Err(last_error()) } else { Ok(result) }
}
