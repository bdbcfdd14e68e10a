//! The application side of Towpath: sockets, readiness, epoll and waiting over shared memory, for the C library's calls
//! (crate `preload`) and for programs that use it directly.
//!
//! ```text
//!   file      the calls, by descriptor
//!   fd        from a descriptor to its object, without a lock; the tables of this process
//!   socket    a socket: undecided, connection or listener; its options, its bytes, what the kernel has behind it
//!   connect   connections and listeners begin: by the service, directly, or left to the kernel
//!   wait      threads that sleep until something is ready
//!   epoll     epoll sets over both kinds of descriptors
//!   process   fork, descriptors that go to other processes, seccomp, limits, io_uring
//! ```
//! Calls return `None` when the kernel is to do what was asked on the very same descriptor.
//!
//! Streams, rings and locks of one end of a connection are crate `endpoint`; the registration with the service, contexts, accept queues and
//! system calls past the symbols that `preload` replaces are crate `session`.

#[cfg(not(loom))]
pub mod connect;
#[cfg(not(loom))]
mod epoll;
pub mod fd;
#[cfg(not(loom))]
pub mod file;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod socket;
#[cfg(not(loom))]
pub mod wait;

#[cfg(not(loom))]
pub use rustix::io::Errno;

/// Reads all settings at the start of a program, which may clean its environment before it makes its first socket. From then on nothing is
/// logged while descriptor 2 is a connection: a write to its placeholder would fail, with SIGPIPE.
#[cfg(not(loom))]
pub fn remember() {
    // Set once: a second call finds the same function.
    let _ = session::log::MUTE.set(|| fd::tables::SOCKS.is_taken(2));
    session::config::remember();
}
