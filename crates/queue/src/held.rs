//! Bytes that a producer holds back (`TCP_CORK`, `MSG_MORE`): they lie in its ring, but are not published to the consumer.
//!
//! ```text
//!        Half::tx_head                        SockBlock::tx_head = Sender::head
//!   ##########|~~~~~~~~~~~~ held back ~~~~~~~~~~~~~~|...free...
//! ```
//! The consumer sees `Half::tx_head` only. Two parties may advance it: the producer, and the service when the time limit is over.
//! Neither moves it back: the producer raises it to at least the position it wants; the service advances it from the position that it
//! found to the position written by then.

use crate::Ordering::{AcqRel, Acquire, Relaxed};
use crate::doorbell::barrier_beside_rmw;
use crate::stream::Sender;
use shm::sock_state::HELD;
use shm::{Half, SockBlock, half_flags};

impl Sender {
    /// Adds `n` bytes that lie in the ring already, without publishing them.
    #[inline]
    pub fn withhold(&mut self, n: usize) {
        debug_assert!(n <= self.space());
        self.head = self.head.wrapping_add(n as u64);
    }

    /// Publishes the bytes up to position `to`. True when that made new bytes visible.
    pub fn announce(&self, own: &Half, to: u64) -> bool {
        // Release: bytes and rings before the head (pairs with the Acquire in `readable`).
        let before = own.tx_head.fetch_max(to.min(self.head), AcqRel);
        barrier_beside_rmw();
        before < to.min(self.head)
    }

    /// Publishes all bytes. True when that made new bytes visible.
    pub fn let_go(&self, own: &Half) -> bool {
        self.announce(own, self.head)
    }
}

/// The position from which bytes are held back, if there are any. `block` is the socket block of the connection that `own` is a half of;
/// both belong to another process and may hold any value.
#[must_use]
pub fn held_from(own: &Half, block: &SockBlock) -> Option<u64> {
    let from = own.tx_head.load(Acquire);
    (block.state.load(Acquire) & HELD != 0 && from < block.tx_head.load(Relaxed)).then_some(from)
}

/// For the service, in the producer's place: publishes the bytes held back from position `from` on. `is_its`: whether `block` belongs to
/// `own`'s connection. True: bytes were published, and the consumer is to be told.
pub fn let_go_for(own: &Half, block: &SockBlock, from: u64, is_its: impl FnOnce() -> bool) -> bool {
    // While PUSHING is set the slot is not reused. A producer that closes clears HELD first and sets RELEASED next. So if RELEASED is
    // not set, and HELD, read after it, is, both belong to the same connection.
    let before = own.flags.fetch_or(half_flags::PUSHING, AcqRel);
    let is_held = before & half_flags::RELEASED == 0 && block.state.load(Acquire) & HELD != 0 && is_its();
    // Acquire: pairs with the Release in `Sender::keep`, so that bytes and rings are visible.
    let written = block.tx_head.load(Acquire);
    let went =
        is_held && from < written && own.tx_head.compare_exchange(from, written, AcqRel, Relaxed).is_ok();
    own.flags.fetch_and(!half_flags::PUSHING, AcqRel);
    barrier_beside_rmw();
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

    /// A sender with a ring that has written 100 bytes, 40 of them published, as its block says.
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
