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
//! Frames carry a virtio-net header both ways, so that super-frames and unfinished checksums pass as on a TAP. Received ones are read
//! from a ring of slots of 2 KiB that the kernel fills (`PACKET_RX_RING`, version 2: one of blocks, version 3, shows a frame when its block
//! is full or a timer of a millisecond or more has ended); longer ones stay in the socket, too, of which the fast path has the payload put
//! where it belongs.
#![deny(unsafe_code)]

mod error;
mod filter;
mod open;
mod queue;
mod ring;
#[allow(unsafe_code)]
mod sys;

pub use error::PacketError;
pub use open::{Interface, PacketOptions, open};
pub use queue::PacketQueue;

#[cfg(test)]
mod tests;
