//! The protocol of two mutually hostile parties over the cache lines of a region: moving bytes, ringing, sleeping and waking.
//!
//! - [`accept`]: the accept queue of a listening socket, shared by the processes that hold it;
//! - [`stream`]: one direction of one connection, a byte ring with one producer and one consumer;
//! - [`batch`]: news of many streams behind one barrier;
//! - [`held`]: bytes that are written and not published yet;
//! - [`holding`]: which party has a connection that goes from one to another;
//! - [`doorbell`]: which slots have news for a context, and whether that context sleeps;
//! - [`nap`]: sleep and wake-up at the slot of one connection, without a context;
//! - [`waking`]: sleep and wake-up between the threads of one process;
//! - [`urgent`]: the end of a stream's urgent bytes;
//! - [`pages`]: lending rings from a data area, shared safely by forked processes.
//!
//! Nothing here makes system calls: a function that finds the other side asleep returns a value that says so, and the
//! caller writes the eventfd.
#![forbid(unsafe_code)]

pub mod accept;
pub mod batch;
pub mod doorbell;
pub mod held;
pub mod holding;
pub mod nap;
pub mod pages;
mod ring;
pub mod stream;
#[cfg(not(loom))]
pub mod urgent;
pub mod waking;

pub use doorbell::{Doorbell, Wake};
pub use ring::{Ring, Violation};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};

#[cfg(all(test, loom))]
mod accept_models;
#[cfg(all(test, not(loom)))]
mod accept_tests;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, loom))]
mod ring_models;
