//! News of many streams at once: a party commits bytes to some and consumes bytes of others, publishes all of it behind one barrier, and finds
//! out which peers are to be told. Crate `ring` does so at each flush.
//!
//! ```text
//!   for each stream:  commit, note_consumed, publish
//!   once:             stream::barrier
//!   for each stream:  to_tell ──► bits of one word of the peer's doorbell, put together
//!   for each word:    Doorbell::ring_many
//! ```

use crate::Ordering::{Relaxed, Release};
use crate::stream::{note_produced, wants_space, watcher};
use shm::{Half, SockBlock};

/// What the other side of a stream may have to be told after the barrier: bits.
pub mod owed {
    /// More bytes were published.
    pub const BYTES: u8 = 1;
    /// Bytes were consumed, and a sender that waits for space would find enough.
    pub const SPACE: u8 = 1 << 1;
    /// Every byte was consumed: this side's ring may be given back.
    pub const REST: u8 = 1 << 2;
}

/// The first `n` bytes behind the written ones lie in the ring, too. They are not published yet.
#[inline]
pub fn commit(block: &SockBlock, n: usize) {
    let head = block.tx_head.load(Relaxed).wrapping_add(n as u64);
    // Release: as `Sender::keep`.
    block.tx_head.store(head, Release);
}

/// Publishes what was committed. The caller executes [`stream::barrier`](crate::stream::barrier) and then asks [`to_tell`].
#[inline]
pub fn publish(own: &Half, block: &SockBlock) {
    note_produced(own, block.tx_head.load(Relaxed));
}

/// After the barrier: the context that is to be rung because of what is owed to `peer` ([`owed`]), if any is.
#[must_use]
#[inline]
pub fn to_tell(owed: u8, peer: &Half) -> Option<u32> {
    let is_due = owed & owed::BYTES != 0 || owed & owed::SPACE != 0 && wants_space(peer);
    watcher(peer).filter(|_| is_due)
}
