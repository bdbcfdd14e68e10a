//! A ring in a tokio runtime, and the task that drives it.

use crate::shared::{Inner, Shared, Waiting, lock};
use crate::{Listener, Stream};
use ring::{ConnectOptions, ListenOptions, Service};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A ring in a tokio runtime. Clones share it; streams and listeners keep it alive.
#[derive(Clone, Debug)]
pub struct Door {
    shared: Shared,
}

impl Door {
    /// Makes a ring, and a task of the present runtime that drives it. A runtime with several threads may have several doors.
    ///
    /// # Errors
    /// As [`Service::ring`]'s, and the runtime's when it cannot watch the ring.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn open(service: &Service) -> io::Result<Self> {
        let ring = service.ring()?;
        // A duplicate is the same set of the kernel's, and stays open until the driver ends.
        let descriptor = ring.as_fd().try_clone_to_owned()?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for descriptors that close too early: this one is the driver's own"
        )]
        let watched = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
        let shared = Arc::new(Mutex::new(Inner::new(ring)));
        let weak = Arc::downgrade(&shared);
        tokio::spawn(async move { poll_fn(|cx| drive(&weak, &watched, cx)).await });
        Ok(Self { shared })
    }

    /// Listens at `address`.
    ///
    /// # Errors
    /// As [`ring::Ring::listen`]'s.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        self.listen_with(address, ListenOptions::default())
    }

    /// Listens at `address` with these options.
    ///
    /// # Errors
    /// As [`ring::Ring::listen`]'s.
    pub fn listen_with(&self, address: SocketAddr, options: ListenOptions) -> io::Result<Listener> {
        let mut inner = lock(&self.shared);
        let handle = inner.ring.listen(address, options, 0)?;
        inner.listeners.entry(handle).or_default();
        inner.publish_soon();
        Ok(Listener::new(self.shared.clone(), handle))
    }

    /// Connects to `address`.
    ///
    /// # Errors
    /// As [`ring::Ring::connect`]'s, or how the connection has failed.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let stream = {
            let mut inner = lock(&self.shared);
            let handle = inner.ring.connect(address, ConnectOptions::default(), 0)?;
            inner.connections.insert(handle, Waiting::default());
            inner.publish_soon();
            Stream::new(self.shared.clone(), handle)
        };
        poll_fn(|cx| stream.poll_connected(cx)).await?;
        Ok(stream)
    }
}

/// One turn of the driver. Ready: no stream, listener or door is left, or the runtime ends.
fn drive(shared: &Weak<Mutex<Inner>>, watched: &AsyncFd<OwnedFd>, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        let Some(shared) = shared.upgrade() else { return Poll::Ready(()) };
        if lock(&shared).turn(cx).is_ready() {
            // There is more: the tasks that were woken run first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match watched.poll_read_ready(cx) {
            Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Pending => return Poll::Pending,
        }
    }
}
