//! The name of a slot: its region, and its number there. It may name a region or a slot that does not exist.

use control::Left;
use shm::SockBlock;
use std::sync::atomic::Ordering;

/// Name of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotKey {
    /// Id of the region.
    pub region: u32,
    /// Number of the slot in that region.
    pub slot: u32,
}

impl SlotKey {
    /// The slot of a connection that was left with the service.
    pub fn of_left(left: &Left) -> Self {
        Self { region: left.region, slot: left.slot }
    }

    /// The slot that a socket block names. Hostile.
    pub fn in_block(block: &SockBlock) -> Self {
        Self { region: block.region.load(Ordering::Acquire), slot: block.slot.load(Ordering::Relaxed) }
    }
}
