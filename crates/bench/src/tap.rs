//! Links between two kernels, or between a kernel and Towpath, with the same offloads, and the measurements over them.

pub mod baseline;
pub mod forwarder;
pub mod iperf;
pub mod link;
pub mod namespace;
pub mod reflector;
pub mod star;
pub mod towpath;
