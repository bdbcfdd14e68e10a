//! The application side of Towpath: sockets, readiness, epoll and waiting over shared memory, for the C library's calls
//! (crate `preload`) and for programs that use it directly.
//!
//! ```text
//!   fds       the calls, by descriptor           table     descriptor -> object, lock-free
//!   sock      a socket: undecided, connection or accept queue      watchers  threads and sets to tell of its news
//!   link      its place in shared memory         stream    bytes in and out of it
//!   urgent    the byte that is read ahead of its turn            low_water  how many bytes are news
//!   connect, listener, options, fallback         interest, epoll, poll, wait   readiness and sleep
//!   client    a registration with the service    region, context, spin, fork, hold, internal, few
//!   registration   the current one
//!   moving    connections from and to other processes      cancel    threads that end while they sleep
//!   placeholder   what the kernel has behind a descriptor
//!   give_up   connections that their program takes back     signals   SIGIO and SIGURG
//!   locked    a process behind seccomp           filter    what its filter says of a call
//!   account   where a thread's time goes
//!   unseen, filled    epoll sets made by the program's own system calls
//! ```
//! Calls return `None` when the kernel is to do what was asked on the very same descriptor.
//!
//! `link`, `region` and `stream` need no service: the simulator puts them over a region of its own.

mod atomic;
mod filled;
pub mod table;

#[cfg(not(loom))]
pub mod account;
#[cfg(not(loom))]
pub mod address;
#[cfg(not(loom))]
pub mod address_space;
#[cfg(not(loom))]
mod anew;
#[cfg(not(loom))]
pub mod cancel;
#[cfg(not(loom))]
mod client;
#[cfg(not(loom))]
pub mod config;
#[cfg(not(loom))]
mod connect;
#[cfg(not(loom))]
mod context;
#[cfg(not(loom))]
mod cork;
#[cfg(not(loom))]
mod corrected;
#[cfg(not(loom))]
mod epoll;
#[cfg(not(loom))]
mod exchange;
#[cfg(not(loom))]
pub mod fallback;
#[cfg(not(loom))]
pub mod fds;
#[cfg(not(loom))]
mod few;
#[cfg(not(loom))]
mod filter;
#[cfg(not(loom))]
pub mod fork;
#[cfg(not(loom))]
mod give_up;
#[cfg(not(loom))]
mod growth;
#[cfg(not(loom))]
mod hold;
#[cfg(not(loom))]
mod interest;
#[cfg(not(loom))]
mod internal;
#[cfg(not(loom))]
pub mod io;
#[cfg(not(loom))]
mod left;
#[cfg(not(loom))]
mod lengthen;
#[cfg(not(loom))]
mod lines;
#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
mod listener;
#[cfg(not(loom))]
pub mod locked;
#[cfg(not(loom))]
mod log;
#[cfg(not(loom))]
pub mod low_water;
#[cfg(not(loom))]
pub mod moving;
mod notices;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod piece;
#[cfg(not(loom))]
pub mod placeholder;
#[cfg(not(loom))]
pub mod poll;
#[cfg(not(loom))]
mod records;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
mod registration;
#[cfg(not(loom))]
pub mod rings;
#[cfg(not(loom))]
pub mod room;
#[cfg(not(loom))]
mod settings;
#[cfg(not(loom))]
pub mod signals;
#[cfg(not(loom))]
mod sock;
#[cfg(not(loom))]
mod spin;
#[cfg(not(loom))]
pub mod stream;
#[cfg(not(loom))]
pub mod sys;
#[cfg(not(loom))]
mod unseen;
#[cfg(not(loom))]
mod untold;
#[cfg(not(loom))]
mod urgent;
#[cfg(not(loom))]
mod wait;
#[cfg(not(loom))]
mod warm;
#[cfg(not(loom))]
mod watchers;
#[cfg(not(loom))]
pub mod ways;

#[cfg(not(loom))]
pub use rustix::io::Errno;
