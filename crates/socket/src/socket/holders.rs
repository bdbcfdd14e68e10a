//! What keeps a socket open: its descriptors, and calls that wait for it.

use super::Sock;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One waiting call in `Sock::descriptors`; larger than any number of descriptors in the table.
const USER: u32 = 1 << 20;
const USERS_MAX: u32 = u32::MAX / USER;

/// A call that waits: the socket stays open until it returns, even if all descriptors are closed meanwhile.
#[derive(Debug)]
pub struct InUse(Option<Arc<Sock>>);

impl Drop for InUse {
    fn drop(&mut self) {
        let Some(sock) = self.0.take() else { return };
        // In a child that a signal handler forked in the middle of the call the count of waiting calls is 0.
        let fewer = |n: u32| n.checked_sub(USER);
        if sock.descriptors.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer) == Ok(USER) {
            sock.close();
        }
    }
}

impl Sock {
    /// Counts one more descriptor.
    pub fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one more call that waits, until the guard is dropped.
    ///
    /// # Errors
    /// EBADF when it is closed.
    pub fn begin_use(self: &Arc<Self>) -> Result<InUse, Errno> {
        let more = |n: u32| match (n % USER, n / USER) {
            (0, _) => None,
            (_, USERS_MAX) => Some(n),
            _ => Some(n + USER),
        };
        let before = self.descriptors.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        let before = before.map_err(|_| Errno::BADF)?;
        Ok(InUse((before / USER != USERS_MAX).then(|| self.clone())))
    }

    /// True when only waiting calls keep the socket open; its former descriptor may belong to another file.
    pub fn is_orphan(&self) -> bool {
        self.descriptors.load(Ordering::Relaxed).is_multiple_of(USER)
    }

    /// Counts one descriptor less. The last one closes the socket, unless a call waits.
    pub fn drop_descriptor(&self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }

    /// In a forked child, where none of the parent's calls waits.
    pub(super) fn forget_calls(&self) {
        self.descriptors.fetch_and(USER - 1, Ordering::Relaxed);
    }
}
