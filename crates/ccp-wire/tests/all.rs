//! Tests of messages: samples that were taken from Portus and libccp, and bytes of any kind.

mod hostile;
mod samples;
