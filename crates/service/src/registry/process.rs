//! What the kernel says of processes: their files under `/proc`, and whether the sockets behind their descriptors still live.

pub mod descriptors;
pub mod fd_liveness;
pub mod number;
pub mod procfs;
