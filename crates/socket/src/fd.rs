//! Descriptors: from a number to the object behind it, and where the kernel's table has gaps.

pub(crate) mod atomic;
#[cfg(not(loom))]
pub(crate) mod first_gap;
pub mod table;
