//! The application side of Towpath: sockets, readiness, epoll and waiting over shared memory, for the C library's calls
//! (crate `preload`) and for programs that use it directly.
//!
//! ```text
//!   file      the calls, by descriptor
//!   fd        from a descriptor to its object, without a lock; numbers that the library keeps for itself
//!   socket    a socket: undecided, connection or listener; its options, its bytes, what the kernel has behind it
//!   connect   connections and listeners begin: by the service, directly, or left to the kernel
//!   wait      threads that sleep until something is ready
//!   epoll     epoll sets over both kinds of descriptors
//!   session   the registration with the service, and requests to it
//!   process   fork, descriptors that go to other processes, seccomp, limits, io_uring
//!   sys       system calls past the symbols that the library replaces
//! ```
//! Calls return `None` when the kernel is to do what was asked on the very same descriptor.
//!
//! Streams, rings and locks of one end of a connection are crate `endpoint`.

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
pub mod session;
#[cfg(not(loom))]
pub mod socket;
#[cfg(not(loom))]
pub mod sys;
#[cfg(not(loom))]
pub mod wait;

#[cfg(not(loom))]
pub use rustix::io::Errno;
