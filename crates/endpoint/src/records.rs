//! Ends of records (`MSG_EOR`): the sender's table of them, a ring lent when a socket first ends a record and kept until it is closed.
//! Between applications of one host there are no segments, and no ends of records are kept.

use crate::stream::LEAVING;
use crate::{Endpoint, flags};
use queue::Ring;
use queue::records::{CLASS, Records, flags_of, place};
use rustix::io::Errno;
use shm::SockBlock;
use shm::application_flags::RECORDS_SHIFT;
use shm::half_flags::WANT_SPACE;
use std::sync::atomic::{Ordering, fence};

impl Endpoint {
    /// Makes sure that the table has room for one more end. The caller has locked the sending side. False: wait as for space.
    #[cold]
    pub fn has_record(&self) -> Result<bool, Errno> {
        let (half, peer) = self.halves();
        if self.records().is_none() {
            let ring = self.mapped.lend(CLASS, LEAVING).ok_or(Errno::NOBUFS)?;
            Records::new(&self.mapped.region, self.mapped.side, ring).clear();
            self.block().records.store(page(ring), Ordering::Relaxed);
            self.advise(flags_of(ring), true);
        }
        if !self.is_full_of_records(peer.rx_tail.load(Ordering::Acquire)) {
            return Ok(true);
        }
        half.flags.fetch_or(WANT_SPACE, Ordering::SeqCst);
        // Pairs with the fence in `queue::stream::consumed`.
        fence(Ordering::SeqCst);
        self.block().flags.fetch_or(flags::FULL, Ordering::Relaxed);
        self.stall();
        Ok(!self.is_full_of_records(peer.rx_tail.load(Ordering::Acquire)))
    }

    /// Adds the end of a record: the position of the byte behind it in the stream.
    #[cold]
    pub fn end_record(&self, position: u64) {
        if let Some(ring) = self.records() {
            Records::new(&self.mapped.region, self.mapped.side, ring).add(position);
        }
    }

    /// True when the table is full, given that the other side has consumed the bytes before `consumed`.
    #[inline]
    pub fn is_full_of_records(&self, consumed: u64) -> bool {
        let is_full = |ring| Records::new(&self.mapped.region, self.mapped.side, ring).is_full(consumed);
        self.records().is_some_and(is_full)
    }

    /// Takes the table out of the socket block, when the socket is closed.
    #[must_use]
    pub fn take_records(&self) -> Option<Ring> {
        let ring = self.records();
        self.block().records.store(0, Ordering::Relaxed);
        ring
    }

    #[inline]
    fn records(&self) -> Option<Ring> {
        of(self.block(), self.mapped.data_len())
    }
}

/// The value of `SockBlock::records` for a table in `ring`.
pub const fn page(ring: Ring) -> u32 {
    (flags_of(ring) >> RECORDS_SHIFT) as u32
}

/// The table that a socket block names, in a data area of `data_len` bytes.
#[inline]
pub fn of(block: &SockBlock, data_len: u64) -> Option<Ring> {
    match block.records.load(Ordering::Relaxed) {
        0 => None,
        page => place(u64::from(page) << RECORDS_SHIFT, data_len).ok()?,
    }
}
