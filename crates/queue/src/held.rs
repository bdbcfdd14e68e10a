//! Bytes that a producer holds back (`TCP_CORK`, `MSG_MORE`): they lie in its ring, and nobody is told of them.
//!
//! ```text
//!        Half::tx_head                        SockBlock::tx_head = Sender::head
//!   ##########|~~~~~~~~~~~~ held back ~~~~~~~~~~~~~~|...free...
//! ```
//! The consumer knows `Half::tx_head` alone. Two may move it on: the producer, and whoever looks at the clock in its place. Neither
//! moves it back: the producer raises it to what it wants at least, the other from where it has found it to what was written by then.

use crate::Ordering::{AcqRel, Acquire, Relaxed};
use crate::doorbell::barrier_after_rmw;
use crate::stream::Sender;
use shm::{HELD, Half, SockBlock, half_flags};

impl Sender {
    /// `n` more bytes are in the ring, of which nobody is told yet.
    #[inline]
    pub fn withhold(&mut self, n: usize) {
        debug_assert!(n <= self.space());
        self.head += n as u64;
    }

    /// Announces what was written, up to `to`. True: that is news.
    pub fn announce(&self, own: &Half, to: u64) -> bool {
        // Release: bytes and rings before the head (pairs with Acquire in `readable`).
        let before = own.tx_head.fetch_max(to.min(self.head), AcqRel);
        barrier_after_rmw();
        before < to.min(self.head)
    }

    /// Announces everything.
    pub fn let_go(&self, own: &Half) -> bool {
        self.announce(own, self.head)
    }
}

/// Where a stream stands of which something is held back: the position from which it is. `own` is the half of the connection that
/// `block` is about, both another's: any value may be there.
#[must_use]
pub fn held_from(own: &Half, block: &SockBlock) -> Option<u64> {
    let from = own.tx_head.load(Acquire);
    (block.state.load(Acquire) & HELD != 0 && from < block.tx_head.load(Relaxed)).then_some(from)
}

/// In the producer's place: announces what it holds back since it stood at `from`. `is_its`: whether `block` is about `own`'s connection.
/// True: it was announced, its consumer is to be told.
pub fn let_go_for(own: &Half, block: &SockBlock, from: u64, is_its: impl FnOnce() -> bool) -> bool {
    // As long as this stands nobody uses the slot again. A producer that closes lets go first (`HELD`), and says `RELEASED` next: who
    // finds that it has not, and after that that it holds something, looks at one and the same connection.
    let before = own.flags.fetch_or(half_flags::PUSHING, AcqRel);
    let is_held = before & half_flags::RELEASED == 0 && block.state.load(Acquire) & HELD != 0 && is_its();
    // Acquire: pairs with the Release in `Sender::keep`; bytes and rings come before.
    let written = block.tx_head.load(Acquire);
    let went =
        is_held && from < written && own.tx_head.compare_exchange(from, written, AcqRel, Relaxed).is_ok();
    own.flags.fetch_and(!half_flags::PUSHING, AcqRel);
    barrier_after_rmw();
    went
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Ring;
    use crate::stream::readable;
    use shm::{Kind, Params, Region};

    const AREA: u64 = 1 << 20;

    fn region(kind: Kind) -> Region {
        Region::create(Params { kind, id: 1, slots: 64, data_len: AREA }).unwrap().0
    }

    /// A sender with a ring that has written 100 bytes, 40 of them announced, and its block says so.
    fn held(half: &Half, block: &SockBlock) -> Sender {
        let mut sender = Sender::default();
        sender.lend(half, Ring::new(0, 12));
        sender.publish(half, 40);
        sender.withhold(60);
        sender.keep(block);
        block.state.fetch_or(HELD, Relaxed);
        sender
    }

    #[test]
    fn what_is_held_is_nobodys_until_one_of_two_lets_it_go() {
        let (pair, home) = (region(Kind::Pair), region(Kind::Application));
        let (half, block) = (&pair.slot(3).unwrap().half[0], home.sock(4).unwrap());
        let mut sender = held(half, block);
        let total = |tail| readable(half, tail, AREA).unwrap().map_or(0, |r| r.total);
        assert_eq!((total(0), held_from(half, block)), (40, Some(40)));
        assert!(!let_go_for(half, block, 39, || true), "it stood elsewhere");
        assert!(!let_go_for(half, block, 40, || false), "another connection's");
        assert_eq!(total(0), 40);
        assert!(let_go_for(half, block, 40, || true));
        assert_eq!((total(0), held_from(half, block)), (100, None));
        assert!(!sender.let_go(half), "somebody else did");
        sender.withhold(10);
        assert!(sender.announce(half, 105) && !sender.announce(half, 50));
        assert_eq!(total(0), 105, "never back");
        assert!(sender.let_go(half) && total(0) == 110);
    }

    #[test]
    fn a_connection_that_is_over_is_left_alone() {
        let (pair, home) = (region(Kind::Pair), region(Kind::Application));
        let (half, block) = (&pair.slot(3).unwrap().half[0], home.sock(4).unwrap());
        held(half, block);
        half.flags.fetch_or(half_flags::RELEASED, Relaxed);
        assert!(!let_go_for(half, block, 40, || true));
        assert_eq!(half.flags.load(Relaxed), half_flags::RELEASED);
        half.flags.store(0, Relaxed);
        block.state.store(0, Relaxed);
        assert!(!let_go_for(half, block, 40, || true) && held_from(half, block).is_none());
    }
}
