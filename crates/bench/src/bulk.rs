//! Bulk flows from a source to a sink.

pub mod sink;
pub mod source;
