//! What packets go in and out of: the [`Port`] trait, packet batches, and wrappers that are ports around a port.
//!
//! ```text
//!                 receive(batch)                  reserve() .. commit() .. flush()
//!   network --> [Port] ---------> fast path  fast path ----------------------> [Port] --> network
//!                  |  inner                                                       |
//!          Tracer, Pcap, Faults: each a Port around a Port; nothing of them is there unless wrapped
//! ```
//!
//! Names no backend; reads no clock; allocates only when made, never per packet.
#![forbid(unsafe_code)]

mod batch;
mod capabilities;
mod checksum;
mod faults;
mod headers;
mod packet;
mod pcap;
mod port;
mod segment;
mod staged;
mod stats;
mod tracer;

pub use batch::Batch;
pub use capabilities::Capabilities;
pub use checksum::complete_checksum;
pub use faults::{FaultCounts, FaultRates, Faults};
pub use packet::{Checksum, Gso, GsoKind, PacketBuf, PacketMeta};
pub use pcap::Pcap;
pub use port::{Port, Wait};
pub use segment::{SegmentError, Segmenter};
pub use stats::{DropCause, Drops, Stats};
pub use tracer::{Direction, Line, Tracer};

#[cfg(test)]
mod fixture;
