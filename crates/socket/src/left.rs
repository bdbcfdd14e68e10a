//! Memory when it is short, and rings that were left lent. Whoever closes a socket in a region of an ancestor's may be gone before the
//! last bytes are read, and whoever is killed gives nothing back. What was lent stands in the socket's block, which nobody holds any
//! more, until somebody needs the block, or memory.

use crate::link::{Link, state};
use crate::records;
use crate::region::Mapped;
use crate::{client, fork};
use queue::Ring;
use queue::stream::Sender;
use shm::half_flags::RELEASED;
use shm::{MOVED, Side, SockBlock};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Link {
    /// Lends a ring of class `best`, or of a lower one that is `least` at least if there is no memory for it (see
    /// [`Mapped::lend`](crate::region::Mapped::lend)).
    #[inline]
    pub(crate) fn lend_longest(&self, least: usize, best: usize, leaving: usize) -> Option<Ring> {
        self.mapped.lend(best, leaving).or_else(|| self.make_room(least, best, leaving))
    }

    #[cold]
    fn make_room(&self, least: usize, best: usize, leaving: usize) -> Option<Ring> {
        self.mapped.sweep();
        if let Some(client) = client::present() {
            if fork::may_dispute() {
                collect(&self.home, &self.mapped, client.holder_bit());
            }
            if let Some(ring) = self.mapped.lend(best, leaving) {
                return Some(ring);
            }
            client.grow(&self.mapped);
        }
        (least.min(best)..=best).rev().find_map(|class| self.mapped.lend(class, leaving))
    }

    /// The socket is closed, its sending side locked: what it has lent goes back as soon as it is read. True: until then it stands in
    /// the block, which nobody may use for anything else.
    pub(crate) fn leave_rings(&self) -> bool {
        if !self.mapped.is_own() {
            return !take(self.block(), &self.mapped);
        }
        self.mapped.linger(self.slot(), self.sender(), self.take_records());
        self.store(&Sender::default());
        false
    }
}

/// True when the caller, who holds `block`, may use it: nothing was left in it, or nobody reads that any more and it is given back.
/// `known` says how a region is mapped here; one of ours (`is_own`: the block is, and so is all that it may speak of) that is not is gone.
pub fn is_settled(
    block: &SockBlock,
    is_own: bool,
    known: impl FnOnce(u32, u8) -> Option<Arc<Mapped>>,
) -> bool {
    let region = block.region.load(Ordering::Acquire);
    if region == 0 || block.rx_lock.load(Ordering::Relaxed) == MOVED {
        return true;
    }
    match known(region, side(block) as u8) {
        Some(mapped) => take(block, &mapped),
        None => is_own,
    }
}

/// Gives back what was left lent in `mapped` by sockets with blocks in `home`, and that nobody reads any more; `ours` is the caller's
/// holder bit.
pub fn collect(home: &Mapped, mapped: &Mapped, ours: u64) {
    let used = home.region.header().hand.load(Ordering::Relaxed);
    for block in (1..=used).map_while(|i| home.region.sock(i)) {
        let is_it = block.region.load(Ordering::Relaxed) == mapped.id
            && block.holders.load(Ordering::Relaxed) == 0
            && side(block) == mapped.side;
        if is_it && block.holders.compare_exchange(0, ours, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let is_it_still = block.region.load(Ordering::Relaxed) == mapped.id
                && side(block) == mapped.side
                && block.rx_lock.load(Ordering::Relaxed) != MOVED;
            if is_it_still {
                take(block, mapped);
            }
            block.holders.store(0, Ordering::Release);
        }
    }
}

fn side(block: &SockBlock) -> Side {
    let is_one = block.state.load(Ordering::Relaxed) & state::SIDE_ONE != 0;
    if is_one { Side::One } else { Side::Zero }
}

/// Gives back what was left in a block of a connection of `mapped`. False: it is being read yet.
fn take(block: &SockBlock, mapped: &Mapped) -> bool {
    let sender = Sender::of(block, mapped.data_len());
    let rings = [sender.ring, sender.old, records::of(block, mapped.data_len())];
    if rings.iter().any(Option::is_some) && !is_read(block, &sender, mapped) {
        return false;
    }
    // Should this process die here, the slot is none of its.
    block.region.store(0, Ordering::Release);
    Sender::default().keep(block);
    block.records.store(0, Ordering::Relaxed);
    rings.into_iter().flatten().for_each(|ring| mapped.give_back(ring));
    true
}

/// True when nobody reads there any more: consumed, let go by the other side, or the slot is another connection's already.
fn is_read(block: &SockBlock, sender: &Sender, mapped: &Mapped) -> bool {
    let slot = block.slot.load(Ordering::Relaxed);
    if !mapped.has(slot) {
        return true;
    }
    let (own, peer) = mapped.halves(slot);
    let published = own.tx_head.load(Ordering::Acquire);
    // One of the two may be ahead: what was held back is published for the dead, and who is killed has not noted what it published.
    let room: u64 = [sender.ring, sender.old].into_iter().flatten().map(Ring::size).sum();
    let is_reused = published.abs_diff(sender.head) > room;
    let let_go = peer.flags.load(Ordering::Acquire) & RELEASED != 0;
    is_reused || let_go || peer.rx_tail.load(Ordering::Acquire) >= published.max(sender.head)
}
