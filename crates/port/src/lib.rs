//! The interface for packets: the [`Port`] trait, packet batches, and wrappers that are ports around a port.
//!
//! ```text
//!                 receive(batch)                  reserve() .. commit() .. flush()
//!   network --> [Port] ---------> fast path  fast path ----------------------> [Port] --> network
//!                  |  inner                                                       |
//!          Tracer, Pcap, Faults: each a Port around a Port; nothing of them is there unless wrapped
//! ```
//!
//! Also contains the parts that Linux backends share: frames with a virtio-net header, and network namespaces. Names no backend, reads no
//! clock, and allocates only on construction, never per packet.
#![deny(unsafe_code)]

mod batch;
mod capabilities;
mod checksum;
mod faults;
mod headers;
pub mod lent;
mod namespace;
mod packet;
mod pcap;
mod port;
mod segment;
mod staged;
mod stats;
mod steering;
mod tracer;
mod vnet;
mod vnet_queue;

pub use batch::Batch;
pub use capabilities::Capabilities;
pub use checksum::complete_checksum;
pub use faults::{FaultCounts, FaultRates, Faults};
pub use lent::Lent;
pub use namespace::{in_namespace, random_mac};
pub use packet::{Checksum, Gso, GsoKind, PacketBuf, PacketMeta, Ticket};
pub use pcap::Pcap;
pub use port::{Look, Port, Wait};
pub use segment::{SegmentError, Segmenter};
pub use stats::{DropCause, Drops, Stats};
pub use steering::{Steering, Table};
pub use tracer::{Direction, Line, Tracer};
pub use vnet::{VNET_HEADER_LEN, decode};
pub use vnet_queue::VnetQueue;

#[cfg(test)]
mod fixture;
