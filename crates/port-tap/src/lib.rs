//! Ports over a Linux TAP interface; the peer on the other side is this host's kernel.
//!
//! ```text
//!   kernel's TCP, routes, bridges -- interface "towpath0" (its own MAC and address) -- /dev/net/tun, one descriptor per queue
//!                                                                                       |
//!                                                                       port::VnetQueue (our MAC), one per core
//! ```
//!
//! Frames carry a virtio-net header, so checksums and segmentation are left out in both directions: the bytes between kernel and service
//! are never on a wire. One system call moves one frame, of up to 64 KiB with segmentation offload.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bpf;
mod error;
mod open;
mod steering;
#[allow(unsafe_code)]
mod sys;

pub use error::TapError;
pub use open::{Tap, TapOptions, open};
pub use steering::TapSteering;

#[cfg(test)]
mod tests;
