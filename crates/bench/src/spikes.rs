//! Small measurements of what the machine gives, from which the design's numbers come.

pub mod handover;
pub mod memory;
pub mod placeholder;
