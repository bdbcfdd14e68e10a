//! What an accept record names.

use control::AcceptRecord;

/// A connection to be accepted, and the record that describes it to the process that accepts it.
pub type Incoming = (Origin, AcceptRecord);

/// The connection that an accept record announces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// A connection through a pair region: the region and the slot.
    Pair(u32, u32),
    /// A relayed connection: the relay's id.
    Relay(u32),
    /// A connection over the port: the application region and the slot.
    Flow(u32, u32),
}
