//! Ports over an existing interface, with packet sockets (AF_PACKET); the peers are the hosts on the interface's link.
//!
//! ```text
//!   wire, or a veth's far end -- interface "eth1" ----+---- the kernel's own stack, if the interface has addresses
//!                                                     |
//!                                                     +---- packet sockets, a group for several queues
//!                                                             |
//!                                                           port::VnetQueue (a MAC of ours), one per core
//! ```
//!
//! The interface stays with the kernel. It is promiscuous, so that we can have an Ethernet address of our own, which the kernel's stack
//! ignores; we may also use the interface's address. A filter in the kernel gives us only frames for our IP addresses, none of which may
//! belong to the kernel: the kernel's own traffic is not copied (`filter`). Frames with a VLAN tag belong to another link: to use that,
//! name the VLAN's interface (`eth1.7`). We do not receive the frames that this host sends.
//!
//! Frames carry a virtio-net header in both directions, so that super-frames and partial checksums pass as on a TAP. Received frames are
//! read from a ring of slots of 5 KiB that the kernel fills (`PACKET_RX_RING`, version 2; version 3 shows a frame only when its block is
//! full or a timer of at least a millisecond has ended). A longer frame also stays in the socket, from which the fast path reads its
//! payload directly to the final place.
#![deny(unsafe_code)]

mod error;
mod filter;
mod open;
mod queue;
mod ring;
mod steering;
#[allow(unsafe_code)]
mod sys;

pub use error::PacketError;
pub use open::{Interface, PacketOptions, open};
pub use queue::PacketQueue;
pub use steering::PacketSteering;

#[cfg(test)]
mod tests;
