//! The atomic types of the layout: those of `core`, or loom's when a model is checked.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64};
