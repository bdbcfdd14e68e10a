//! What a process of a measurement does on request, one module for each kind of request. None of them knows the benchmark that asks.

pub mod cycle;
pub mod fill;
pub mod load;
pub mod memory;
pub mod pipeline;
pub mod ready;
pub mod wake;
