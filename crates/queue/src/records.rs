//! Ends of a stream's records (`MSG_EOR`): a table in the producer's data area, lent like a ring.
//!
//! ```text
//!   0  count u64 | 8  end[0] u64 | 16  end[1] | ... | end[SLOTS - 1]        end `i` stands in `end[i % SLOTS]`
//! ```
//!
//! Ends are stream positions and only grow. At most [`OPEN_MAX`] of them, less than half the slots, lie beyond the consumer's position:
//! so an end is not overwritten while the consumer reads it. If a hostile producer writes anything here, its segments
//! become shorter, and nothing else happens.

use crate::{Ring, Violation};
use base::limits::RING_MIN;
use core::sync::atomic::{Ordering, fence};
use shm::application_flags::{RECORDS, RECORDS_SHIFT};
use shm::{Region, Side};

/// The size class of a table: 16 KiB.
pub const CLASS: usize = 2;
const LOG2: u8 = RING_MIN.trailing_zeros() as u8 + CLASS as u8;
const SLOTS: u64 = (1 << LOG2) / 8 - 1;
/// Most records not consumed. Linux, which uses a buffer for each, holds as many in some 2 MiB of `SO_SNDBUF`.
pub const OPEN_MAX: u64 = SLOTS / 2;

/// A table of record ends in one side's data area.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    region: &'a Region,
    side: Side,
    ring: Ring,
}

/// The place of the table that `flags` (of `shm::application_flags`) name. `None`: no record ever ended.
///
/// # Errors
/// [`Violation::Ring`], when it would lie outside the data area.
#[inline]
pub fn place(flags: u64, data_len: u64) -> Result<Option<Ring>, Violation> {
    match (flags & RECORDS) >> RECORDS_SHIFT {
        0 => Ok(None),
        page => Ring::parse((page - 1) | (u64::from(LOG2) << 32), data_len).map(Some),
    }
}

/// The flags that name the table in `ring`.
#[must_use]
pub const fn flags_of(ring: Ring) -> u64 {
    (ring.offset() / RING_MIN as u64 + 1) << RECORDS_SHIFT
}

impl<'a> Records<'a> {
    /// The table in `ring` of `side`.
    #[must_use]
    pub const fn new(region: &'a Region, side: Side, ring: Ring) -> Self {
        Self { region, side, ring }
    }

    /// Producer: makes the table empty; its memory may hold any bytes.
    pub fn clear(&self) {
        self.store(0, 0);
    }

    /// Producer: true when no more records may end until the consumer, which has come to `consumed`, moves on.
    #[must_use]
    pub fn is_full(&self, consumed: u64) -> bool {
        let count = self.load(0);
        count >= OPEN_MAX && self.end(count - OPEN_MAX) > consumed
    }

    /// Producer: adds the end of a record, after all others. Call before more bytes are published, and if the table is not full.
    pub fn add(&self, end: u64) {
        let count = self.load(0);
        self.store(1 + count % SLOTS, end);
        // The end before the count that makes it visible (pairs with the fence in `around`).
        fence(Ordering::Release);
        self.store(0, count.wrapping_add(1));
    }

    /// Consumer: the record `[start, end)` that contains the byte at `position`; `end` is `u64::MAX` if the record has not ended.
    #[must_use]
    pub fn around(&self, position: u64) -> (u64, u64) {
        let count = self.load(0);
        fence(Ordering::Acquire);
        let oldest = count.saturating_sub(OPEN_MAX);
        let (mut low, mut high) = (oldest, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.end(middle) <= position {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let start = if low > oldest { self.end(low - 1) } else { 0 };
        let end = if low < count { self.end(low) } else { u64::MAX };
        // A hostile table may hold anything: make sure that the record contains its own byte.
        (start.min(position), end.max(position.saturating_add(1)))
    }

    fn end(&self, i: u64) -> u64 {
        self.load(1 + i % SLOTS)
    }

    fn load(&self, word: u64) -> u64 {
        let mut bytes = [0; 8];
        self.region.read(self.side, (self.ring.offset() + 8 * word) as usize, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn store(&self, word: u64, value: u64) {
        self.region.write(self.side, (self.ring.offset() + 8 * word) as usize, &value.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::{CLASS, OPEN_MAX, Records, SLOTS, flags_of, place};
    use crate::Ring;
    use shm::{Kind, Params, Region, Side};

    const DATA: u64 = 1 << 20;

    fn region() -> Region {
        Region::create(Params { kind: Kind::Application, id: 1, slots: 64, data_len: DATA }).unwrap().0
    }

    fn ring() -> Ring {
        Ring::new(3 << 12, 12 + CLASS as u8)
    }

    #[test]
    fn a_place_survives_the_flags_and_lies_inside_the_area() {
        assert_eq!(place(0x1F, DATA), Ok(None));
        assert_eq!(place(flags_of(ring()) | 1 << 40 | 0x1F, DATA), Ok(Some(ring())));
        let last = Ring::new(DATA - (16 << 10), 14);
        assert_eq!(place(flags_of(last), DATA), Ok(Some(last)));
        assert!(place(flags_of(Ring::new(DATA - 4096, 12)), DATA).is_err());
    }

    #[test]
    fn every_byte_lies_in_the_record_that_a_plain_list_says() {
        let region = region();
        let records = Records::new(&region, Side::One, ring());
        records.clear();
        assert_eq!(records.around(5), (0, u64::MAX));
        let mut ends = Vec::new();
        let mut end = 1 << 31;
        for i in 0..3 * SLOTS {
            end += 1 + i * i % 7;
            records.add(end);
            ends.push(end);
            let open = &ends[ends.len().saturating_sub(OPEN_MAX as usize)..];
            for at in [open[0], open[open.len() / 2] - 1, open[open.len() / 2], end - 1, end, end + 9] {
                let behind = open.partition_point(|end| *end <= at);
                let start = if behind == 0 { 0 } else { open[behind - 1] };
                assert_eq!(records.around(at), (start, open.get(behind).copied().unwrap_or(u64::MAX)));
            }
        }
    }

    #[test]
    fn it_is_full_until_the_oldest_open_record_is_consumed() {
        let region = region();
        let records = Records::new(&region, Side::One, ring());
        records.clear();
        for end in 1..=OPEN_MAX {
            assert!(!records.is_full(0));
            records.add(10 * end);
        }
        assert!(records.is_full(9));
        assert!(!records.is_full(10));
    }

    #[test]
    fn a_hostile_table_still_names_a_record_with_the_byte_in_it() {
        let region = region();
        for word in [0, 1, u64::MAX, 1 << 63] {
            region.write(Side::One, ring().offset() as usize, &word.to_ne_bytes().repeat(2048));
            for at in [0, 7, u64::MAX - 1] {
                let (start, end) = Records::new(&region, Side::One, ring()).around(at);
                assert!(start <= at && at < end);
            }
        }
    }
}
