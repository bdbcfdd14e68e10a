//! What two hostile parties do with the lines of a region: move bytes, tell each other, sleep and wake.
//!
//! - [`stream`]: one direction of one connection, a byte ring with one producer and one consumer;
//! - [`held`]: what is written and not announced yet;
//! - [`doorbell`]: which slots have news for a context, and whether that context sleeps;
//! - [`records`]: where the records of a stream end;
//! - [`urgent`]: how far the urgent bytes of a stream reach;
//! - [`pages`]: lending rings out of a data area, shared safely by forked processes.
//!
//! Nothing here makes system calls: a function that finds the other side asleep returns a word that says so, and the
//! caller writes the eventfd.
#![forbid(unsafe_code)]

pub mod doorbell;
pub mod held;
pub mod pages;
#[cfg(not(loom))]
pub mod records;
mod ring;
pub mod stream;
#[cfg(not(loom))]
pub mod urgent;

pub use doorbell::{Doorbell, Wake};
pub use ring::{Ring, Violation};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};

#[cfg(all(test, loom))]
mod models;
