//! Descriptors: from a number to the object behind it, numbers that the library keeps for itself, and where the kernel's table has gaps.

pub(crate) mod atomic;
#[cfg(not(loom))]
pub(crate) mod first_gap;
#[cfg(not(loom))]
pub(crate) mod reserved;
pub mod table;
