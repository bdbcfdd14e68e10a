//! A wake-up between two ends: an eventfd that one end sleeps on and the other end writes.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The eventfd of one end; the other end has a clone.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Makes the descriptor readable. The write fails only when it is readable already.
    pub(crate) fn ring(&self) {
        let _ = write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again. The read fails only when it is not readable.
    pub(crate) fn silence(&self) {
        let _ = read(&*self.0, &mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
