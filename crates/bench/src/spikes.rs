//! Small measurements of the machine that decided numbers of the design.

pub mod handover;
pub mod memory;
pub mod placeholder;
