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
mod packet;
mod port;
mod stats;

pub use batch::Batch;
pub use capabilities::Capabilities;
pub use packet::{Checksum, Gso, GsoKind, PacketBuf, PacketMeta};
pub use port::{Port, Wait};
pub use stats::{DropCause, Drops, Stats};
