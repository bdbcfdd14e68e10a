//! A listener of a ring: accepted connections as streams.

use crate::Stream;
use crate::shared::{Shared, lock};
use ring::Handle;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

/// A listener of a ring. Dropped, it listens no more.
#[derive(Debug)]
pub struct Listener {
    shared: Shared,
    handle: Handle,
}

impl Listener {
    pub(crate) const fn new(shared: Shared, handle: Handle) -> Self {
        Self { shared, handle }
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// As [`ring::Ring::local_address`]'s.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(lock(&self.shared).ring.local_address(self.handle)?)
    }

    /// The next connection, and its peer's address.
    ///
    /// # Errors
    /// When the service has ended.
    pub async fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// As [`accept`](Self::accept), for a hand-written future.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        let mut inner = lock(&self.shared);
        let accepting = inner.listeners.entry(self.handle).or_default();
        if let Some((handle, peer)) = accepting.accepted.pop_front() {
            return Poll::Ready(Ok((Stream::new(self.shared.clone(), handle), peer)));
        }
        accepting.waker = Some(cx.waker().clone());
        inner.check()?;
        Poll::Pending
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut inner = lock(&self.shared);
        // An error: the ring is over, and the listener with it.
        let _ = inner.ring.close_listener(self.handle);
        let accepted = inner.listeners.remove(&self.handle).map(|accepting| accepting.accepted);
        for (handle, _) in accepted.into_iter().flatten() {
            inner.connections.remove(&handle);
            let _ = inner.ring.conn(handle).map(ring::Conn::reset);
        }
    }
}
