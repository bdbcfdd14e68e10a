//! Rings for programs on tokio: a [`Stream`] is `AsyncRead + AsyncWrite` over one connection of a ring. One task for each [`Door`] waits for the
//! ring's descriptor, publishes what all streams have written since its last turn, and wakes the tasks that the ring has news for. It never
//! blocks a thread, and never polls while nothing happens.
//!
//! ```no_run
//! # async fn serve() -> std::io::Result<()> {
//! let door = ring_tokio::Door::open(&ring::Service::open(ring::Options::default())?)?;
//! let mut listener = door.listen("127.0.0.1:8080".parse().unwrap())?;
//! loop {
//!     let (stream, _) = listener.accept().await?;
//!     tokio::spawn(async move {
//!         let (mut read, mut write) = tokio::io::split(stream);
//!         tokio::io::copy(&mut read, &mut write).await
//!     });
//! }
//! # }
//! ```
//! Bytes are copied, as these traits want it; a program that wants them in place uses `ring` itself.
#![forbid(unsafe_code)]

mod door;
mod listener;
mod shared;
mod stream;

pub use door::Door;
pub use listener::Listener;
pub use stream::Stream;
