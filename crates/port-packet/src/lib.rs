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
//! The interface stays the kernel's. It takes frames to every Ethernet address (promiscuous), so that we can have one of our own, which
//! the kernel's stack ignores; ours may be the interface's, too. A filter in the kernel gives us what is for our addresses, of which none
//! may be the kernel's, and nothing else: the kernel's own traffic is neither copied nor seen (`filter`). Frames with a VLAN's tag are of
//! another link: name the VLAN's own interface (`eth1.7`) to be on that. Frames that this host sends do not come to us.
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
