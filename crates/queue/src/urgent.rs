//! How far the urgent bytes of a stream reach (RFC 9293 section 3.8.5): a word for each side and slot, of which the consumer learns by
//! a flag of the producer's half. Who never sends any touches none of it.
//!
//! The word is "the sequence number of the octet following the urgent data", as a stream position. A hostile producer may write
//! anything here, and shows its peer a wrong place in its own stream.

use crate::stream::raise;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use shm::{Region, Side, half_flags};

/// Producer: the stream of `side` in `slot` is urgent up to `position`. Call before the bytes are published.
pub fn announce(region: &Region, side: Side, slot: u32, position: u64) {
    let (Some(urgent), Some(slot)) = (region.urgent(slot), region.slot(slot)) else { return };
    // Release, and once more in `raise`, and in `publish`: who sees the bytes, or the flag, sees the word.
    urgent.up[side.index()].store(position, Release);
    let half = &slot.half[side.index()];
    if half.flags.load(Relaxed) & half_flags::URGENT == 0 {
        raise(half, half_flags::URGENT);
    }
}

/// Consumer: up to where the stream of `side` is urgent, or `None` when nothing of it ever was.
#[must_use]
pub fn up(region: &Region, side: Side, slot: u32) -> Option<u64> {
    let flags = &region.slot(slot)?.half[side.index()].flags;
    // Acquire: pairs with `raise`; on the word, with its own Release when the flag is an old one.
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
