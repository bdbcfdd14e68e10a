//! Descriptors: from a number to the object behind it.

pub(crate) mod atomic;
pub mod table;
#[cfg(not(loom))]
pub mod tables;
