//! The end of a stream's urgent bytes (RFC 9293 section 3.8.5): a word for each side and slot, valid while URGENT is set in the
//! producer's half. Connections without urgent bytes do not touch it.
//!
//! The word is "the sequence number of the octet following the urgent data", as a stream position. A hostile producer may write
//! any value; it then only shows its peer a wrong position in its own stream.

use crate::stream::raise;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use shm::{Region, Side, half_flags};

/// Producer: the stream of `side` in `slot` has urgent bytes up to `position`. Call before the bytes are published.
pub fn announce(region: &Region, side: Side, slot: u32, position: u64) {
    let (Some(urgent), Some(slot)) = (region.urgent(slot), region.slot(slot)) else { return };
    // Release here, and again in `raise` and in `publish`: a consumer that sees the bytes, or the flag, sees the word.
    urgent.up[side.index()].store(position, Release);
    let half = &slot.half[side.index()];
    if half.flags.load(Relaxed) & half_flags::URGENT == 0 {
        raise(half, half_flags::URGENT);
    }
}

/// Consumer: the position after the last urgent byte of the stream of `side`, or `None` when it has had none.
#[must_use]
pub fn up(region: &Region, side: Side, slot: u32) -> Option<u64> {
    let flags = &region.slot(slot)?.half[side.index()].flags;
    // Acquire: pairs with `raise`; if the flag was set earlier, the word's own Acquire pairs with its Release.
    let is_announced = flags.load(Acquire) & half_flags::URGENT != 0;
    is_announced.then(|| region.urgent(slot).map_or(0, |urgent| urgent.up[side.index()].load(Acquire)))
}

#[cfg(test)]
mod tests {
    use super::{announce, up};
    use shm::{Kind, Params, Region, Side};

    #[test]
    fn what_a_connection_before_has_announced_is_not_up() {
        let params = Params { kind: Kind::Pair, id: 1, slots: 64, data_len: 1 << 20 };
        let region = Region::create(params).unwrap().0;
        announce(&region, Side::One, 63, 1 << 40);
        announce(&region, Side::One, 64, 1 << 40);
        assert_eq!(up(&region, Side::One, 63), Some(1 << 40));
        assert_eq!((up(&region, Side::Zero, 63), up(&region, Side::One, 64)), (None, None));
        region.slot(63).unwrap().half[1].clear();
        assert_eq!(up(&region, Side::One, 63), None);
    }
}
