//! What is kept of each flow, by its record's number. We choose these numbers, so that nobody can make them collide.

use flow::FlowId;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// By flow.
pub(crate) type FlowMap<T> = HashMap<FlowId, T, BuildHasherDefault<OwnNumber>>;

/// One multiplication: neighbours go to different places, and the high bits differ, too.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnNumber(u64);

impl Hasher for OwnNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.0 =
            (self.0.rotate_left(32) ^ u64::from(number)).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_in_a_row_share_neither_place_nor_tag() {
        let hash = |flow: u32| {
            let mut hasher = OwnNumber::default();
            hasher.write_u32(flow);
            hasher.finish()
        };
        let count = |of: fn(u64) -> u64| {
            (0..1u32 << 12).map(|flow| of(hash(flow))).collect::<std::collections::HashSet<_>>().len()
        };
        assert_eq!((count(|hash| hash & 0xFFF), count(|hash| hash >> 57)), (1 << 12, 1 << 7));
    }
}
