//! A connection of a ring as a stream of bytes.

use crate::shared::{Inner, Shared, lock};
use ring::{Conn, Error, Handle, Info};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection of a ring. Dropped, it is closed as `close(2)` does.
#[derive(Debug)]
pub struct Stream {
    shared: Shared,
    handle: Handle,
}

impl Stream {
    pub(crate) const fn new(shared: Shared, handle: Handle) -> Self {
        Self { shared, handle }
    }

    /// What is known of the connection.
    ///
    /// # Errors
    /// As [`Conn::info`]'s.
    pub fn info(&self) -> io::Result<Info> {
        Ok(lock(&self.shared).ring.conn(self.handle)?.info()?)
    }

    pub(crate) fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = lock(&self.shared);
        inner.check()?;
        let Some(waiting) = inner.connections.get_mut(&self.handle) else { return Poll::Ready(Err(gone())) };
        match waiting.connected.take() {
            Some(None) => Poll::Ready(Ok(())),
            Some(Some(e)) => Poll::Ready(Err(e.into())),
            None => {
                waiting.writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn gone() -> io::Error {
    Error::Gone.into()
}

/// How much of `buffer` was filled; `None`: nothing is there yet.
fn read(inner: &mut Inner, handle: Handle, buffer: &mut ReadBuf<'_>) -> io::Result<Option<usize>> {
    inner.check()?;
    let mut read = inner.ring.conn(handle)?.read()?;
    let n = read.copy_to(buffer.initialize_unfilled());
    read.consume(n);
    buffer.advance(n);
    let is_over = n > 0 || inner.ring.conn(handle)?.is_finished();
    Ok(is_over.then_some(n))
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut inner = lock(&self.shared);
        match read(&mut inner, self.handle, buffer)? {
            Some(n) => {
                if n > 0 {
                    // The peer may wait for the space.
                    inner.publish_soon();
                }
                Poll::Ready(Ok(()))
            }
            None => {
                let waiting = inner.connections.get_mut(&self.handle).ok_or_else(gone)?;
                waiting.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = lock(&self.shared);
        inner.check()?;
        let n = inner.ring.conn(self.handle)?.write(bytes)?;
        if n > 0 || bytes.is_empty() {
            inner.publish_soon();
            return Poll::Ready(Ok(n));
        }
        let waiting = inner.connections.get_mut(&self.handle).ok_or_else(gone)?;
        waiting.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Every written byte is under way once the tasks that are ready have run: the driver publishes all streams' at once.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = lock(&self.shared);
        Poll::Ready(inner.check())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = lock(&self.shared);
        inner.check()?;
        match inner.ring.conn(self.handle)?.finish() {
            // The connection has ended already.
            Ok(()) | Err(Error::Ended(_)) => Poll::Ready(Ok(())),
            Err(e) => Poll::Ready(Err(e.into())),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut inner = lock(&self.shared);
        inner.connections.remove(&self.handle);
        // An error: the ring is over, and the connection with it.
        let _ = inner.ring.conn(self.handle).map(Conn::close);
    }
}
