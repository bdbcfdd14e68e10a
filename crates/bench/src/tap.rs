//! Links between two kernels, or a kernel and Towpath, that carry the same offloads: the peers of everything over TAP.

pub mod baseline;
pub mod forwarder;
pub mod iperf;
pub mod link;
pub mod namespace;
pub mod reflector;
pub mod towpath;
