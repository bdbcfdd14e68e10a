//! The PID namespace of this process, as its own word for others, and that of its children.

use crate::detached::may;
use crate::sys;
use control::Itself;
use std::ffi::CStr;

/// The inode number of a PID namespace; 0: it cannot be told.
fn inode(link: &CStr) -> u64 {
    if may(libc::SYS_newfstatat) { rustix::fs::stat(link).map_or(0, |found| found.st_ino) } else { 0 }
}

/// This process, for others of its PID namespace.
pub fn itself() -> Itself {
    Itself { namespace: inode(c"/proc/self/ns/pid"), pid: sys::pid().unwrap_or(0) }
}

/// False when a forked child will be in another PID namespace than this process (`unshare`, `setns`). Then the numbers of the child's threads say
/// nothing here, and this process's say nothing there: a thread that holds a lock would look dead.
pub fn has_children() -> bool {
    inode(c"/proc/self/ns/pid") == inode(c"/proc/self/ns/pid_for_children")
}
