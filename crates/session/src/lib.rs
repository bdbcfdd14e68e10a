//! A process's registration with the service, for both doors: the sockets (`socket`) and the rings (`ring`). It knows how a process
//! registers, asks, connects, accepts and sleeps in shared memory. It knows no descriptor of the program and no libc symbol.
//!
//! ```text
//!   client        the registration: control line, regions, what the service pushes, its death
//!   current       the registration that this process uses      registration   how it is made
//!   promise       a child that is about to be forked
//!   rpc           requests and answers on the control line     config, log    settings from the environment, lines for the user
//!   connect       what both ends of a connection keep          direct         connections without a request
//!   accept_queue  one listening socket's queue                 accept         from a grant of the queue to a connection
//!   addresses     of both ends, in the socket block
//!   acceptors     processes that may accept unseen           presented     connections that come with descriptors
//!   sleeper       contexts: what wakes a thread                spin, cancel   before the sleep; threads cancelled in it
//!   host          what endpoints need of this process          fork_locks     locks held over a fork
//!   latest        a value that is read without waiting     pid_namespace  where the process and its children have numbers
//!   detached      a process that asks the service no more      reserved       descriptors that the library keeps for itself
//!   sys           system calls past the symbols that `preload` replaces
//!   old_libc      the versions of the C library's symbols that old systems have
//! ```
#![cfg(not(loom))]

pub mod accept;
pub mod accept_queue;
pub mod acceptors;
pub mod addresses;
pub mod cancel;
mod client;
pub mod config;
pub mod connect;
mod current;
pub mod detached;
pub mod direct;
pub mod fork_locks;
pub mod host;
mod latest;
pub mod log;
pub mod nap;
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod old_libc;
mod overdue;
pub mod pid_namespace;
pub mod presented;
pub mod promise;
mod registration;
pub mod reserved;
pub mod rpc;
pub mod sleeper;
pub mod spin;
pub mod sys;

pub use client::{Client, lock};
pub use current::{
    announce, current, hold_attempts, hold_current, is_announced, present, register, replace,
    settle_for_parents,
};
pub use registration::{Announced, room};
