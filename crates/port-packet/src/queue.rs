//! One packet socket as a [`Port`].

use crate::sys;
use base::Instant;
use port::{Batch, Capabilities, DropCause, PacketBuf, Port, Stats, VnetQueue, Wait};
use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;

/// One packet socket of an interface. As a TAP's queue, but the kernel drops what finds the socket's buffer full, and tells.
#[derive(Debug)]
pub struct PacketQueue {
    inner: VnetQueue,
    /// The kernel forgets its count when it is asked.
    overruns: Cell<u64>,
}

impl PacketQueue {
    pub(crate) fn new(inner: VnetQueue) -> Self {
        Self { inner, overruns: Cell::new(0) }
    }

    /// Why the queue no longer works: somebody deleted the interface.
    #[must_use]
    pub fn failure(&self) -> Option<io::Error> {
        self.inner.failure()
    }
}

impl Port for PacketQueue {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn receive(&mut self, batch: &mut Batch) -> usize {
        self.inner.receive(batch)
    }
    fn reserve(&mut self) -> Option<&mut PacketBuf> {
        self.inner.reserve()
    }
    fn commit(&mut self) {
        self.inner.commit();
    }
    fn flush(&mut self) {
        self.inner.flush();
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }
    fn arm(&mut self) -> Wait {
        self.inner.arm()
    }
    fn disarm(&mut self) {
        self.inner.disarm();
    }
    fn next_deadline(&self) -> Instant {
        self.inner.next_deadline()
    }
    fn stats(&self) -> Stats {
        let new = self.inner.wait_fd().map_or(0, sys::drops);
        self.overruns.set(self.overruns.get() + new);
        let mut stats = self.inner.stats();
        stats.drops.add(DropCause::Overrun, self.overruns.get());
        stats
    }
}
