//! Whether the calling thread is the only one of its process.

use super::{answer, call};
use crate::detached::may;
use crate::host::HOST;
use rustix::io::Errno;

/// Proof that this process has no other thread.
#[derive(Debug)]
pub struct Alone(std::marker::PhantomData<*const ()>);

impl Alone {
    /// Proves that this is the only thread; `None` when it is not, or when that cannot be found out.
    #[must_use]
    pub fn new() -> Option<Self> {
        if !may(libc::SYS_unshare) {
            return None;
        }
        // unshare(2): for a process with one thread this call changes nothing; with several it fails with EINVAL.
        // SAFETY: a number.
        let alone =
            match answer(unsafe { call(libc::SYS_unshare, [libc::CLONE_THREAD as usize, 0, 0, 0, 0, 0]) }) {
                Ok(_) => true,
                Err(Errno::INVAL) => false,
                // A sandbox forbids the call. The directory has 2 links and one for each subdirectory, that is, thread.
                Err(_) => rustix::fs::stat("/proc/self/task").is_ok_and(|task| task.st_nlink == 3),
            };
        alone.then_some(Self(std::marker::PhantomData))
    }
}

/// Looks up glibc's `__libc_single_threaded` (2.32 and later), once.
pub fn learn() {
    if !HOST.threads.is_known() {
        // SAFETY: the name ends in 0.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
        // SAFETY: a byte of the C library, which is never unloaded, and which it clears before it starts a second thread.
        unsafe { HOST.threads.learn(at.cast()) };
    }
}

/// True when there is certainly no other thread. False also before [`learn`] was called.
#[inline]
pub fn is_certain() -> bool {
    HOST.threads.is_certain()
}
