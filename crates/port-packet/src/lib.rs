//! Ports over an interface that exists, by packet sockets (AF_PACKET): the peer is whoever is at the interface's other end.
//!
//! ```text
//!   wire, or a veth's far end -- interface "eth1" ----+---- the kernel's own stack, if the interface has addresses
//!                                                     |
//!                                                     +---- packet sockets, a group for several queues
//!                                                             |
//!                                                           port::VnetQueue (a MAC of ours), one per core
//! ```
//!
//! The interface stays the kernel's. We get a copy of every frame that comes in (not of those that go out), and see all Ethernet
//! addresses (promiscuous), so that we can have one of our own: the kernel's stack ignores what is sent to that, and we ignore
//! what is sent to it. The addresses of ours must not be the kernel's. VLAN tags that the interface's offload takes off
//! do not reach us (`ethtool -K NAME rxvlan off` leaves them on).
//!
//! Frames carry a virtio-net header both ways, so that super-frames and unfinished checksums pass as on a TAP. Frames are
//! read one by one from the socket, not from a mapped ring: a ring of blocks (version 3) shows a frame when its block is full
//! or a timer of a millisecond or more has ended, and one of frames (version 2) has 64 KiB for each acknowledgement.
#![deny(unsafe_code)]

mod error;
mod open;
#[allow(unsafe_code)]
mod sys;

pub use error::PacketError;
pub use open::{Interface, PacketOptions, open};

#[cfg(test)]
mod tests;
