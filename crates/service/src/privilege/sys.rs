//! Calls that have no safe wrapper: filters for system calls, Landlock, and users and groups by name.

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
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

/// `LANDLOCK_CREATE_RULESET_VERSION` and `LANDLOCK_RULE_PATH_BENEATH` of `linux/landlock.h`.
const VERSION: libc::c_uint = 1;
const PATH_BENEATH: libc::c_uint = 1;

/// What a set of rules is about: all that it does not allow is refused. `struct landlock_ruleset_attr`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handled {
    pub files: u64,
    pub connections: u64,
    pub scopes: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    rights: u64,
    inode: i32,
}

/// The kernel's version of Landlock; 0: it has none, or does not let this process use it.
pub fn landlock_version() -> u32 {
    // SAFETY: with this flag the kernel wants no structure.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<Handled>(), 0usize, VERSION)
    };
    u32::try_from(version).unwrap_or(0)
}

/// From now on refuses to this thread, and to threads that it starts, all of `handled` but the rights to these inodes and what is below them.
pub fn restrict(handled: &Handled, inodes: &[(OwnedFd, u64)]) -> Result<(), Errno> {
    let len = size_of::<Handled>();
    // SAFETY: the kernel reads `len` bytes of a structure with its layout; it takes a longer one than it knows if the rest is 0.
    let rules =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::from_ref(handled), len, 0) };
    let rules = i32::try_from(rules).ok().filter(|fd| *fd >= 0).ok_or_else(last_error)?;
    // SAFETY: the call returned a new descriptor that has no other owner.
    let rules = unsafe { OwnedFd::from_raw_fd(rules) };
    for (inode, rights) in inodes {
        let beneath = Beneath { rights: *rights, inode: inode.as_raw_fd() };
        // SAFETY: the kernel reads one structure with its layout, which outlives the call.
        let result = unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), PATH_BENEATH, &raw const beneath, 0)
        };
        if result != 0 {
            return Err(last_error());
        }
    }
    // SAFETY: no memory is involved.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) };
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

/// Makes a system call with these arguments, of which pointers point to what the call expects. Returns the kernel's result.
#[cfg(test)]
pub fn attempt(number: i64, arguments: &[usize]) -> Result<i64, Errno> {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: tests pass numbers, null pointers, which the kernel answers with EFAULT, and pointers to what lives longer than the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { Err(last_error()) } else { Ok(result) }
}
