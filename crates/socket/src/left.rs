//! Memory when it is short, and rings that were left lent. Whoever closes a socket in a region of an ancestor's may be gone before the
//! last bytes are read, and whoever is killed gives nothing back. What was lent stands in the socket's block, which nobody holds any
//! more, until somebody needs the block, or memory.

use crate::link::{Link, flags, state};
use crate::records;
use crate::region::Mapped;
use crate::{client, fork};
use queue::stream::{Sender, watcher};
use queue::{Ring, Wake};
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
            if fork::may_dispute() && self.mapped.may_collect() {
                collect(&self.home, &self.mapped, client.holder_bit());
            }
            if let Some(ring) = self.mapped.lend(best, leaving) {
                return Some(ring);
            }
            client.grow(&self.mapped);
        }
        (least.min(best)..=best).rev().find_map(|class| self.mapped.lend(class, leaving))
    }

    /// Gives back a ring that `sender` does without. First the block forgets it, which is what others go by when we are killed.
    #[cold]
    pub(crate) fn part_with(&self, ring: Ring, sender: &Sender) {
        self.store(sender);
        self.mapped.give_back(ring);
    }

    /// True after a send that found no memory at all. What comes back comes by what other connections' readers read, of which nobody
    /// tells this one.
    pub(crate) fn lacks_memory(&self) -> bool {
        self.block().flags.load(Ordering::Relaxed) & flags::FULL != 0 && self.sender().ring.is_none()
    }

    /// Whoever waits for news of this socket in this process looks again.
    #[cold]
    pub(crate) fn ring_ourselves(&self) {
        let Some(context) = watcher(self.halves().0) else { return };
        if let Some(bell) = self.mapped.own_bell(context)
            && bell.ring(self.slot()) == Wake::Needed
            && let Some(client) = client::present()
        {
            client.wake(context);
        }
    }

    /// The socket is closed, its sending side locked: what it has lent goes back as soon as it is read. True: until then it stands in
    /// the block, which nobody may use for anything else.
    pub(crate) fn leave_rings(&self) -> bool {
        if !self.mapped.is_own() {
            return !take(self.block(), &self.mapped);
        }
        self.part_with_rings();
        false
    }

    /// The same for a block that goes on being used.
    pub(crate) fn part_with_rings(&self) {
        let (sender, records) = (self.sender(), self.take_records());
        self.store(&Sender::default());
        if self.mapped.is_own() {
            self.mapped.linger(self.slot(), sender, records);
        } else {
            self.park(&sender, records, 0);
        }
    }

    /// An open socket does without a ring, from which the bytes before `head` are yet to be read.
    pub(crate) fn retire(&self, head: u64, ring: Ring) {
        if self.mapped.is_own() {
            self.mapped.retire(self.slot(), head, ring);
        } else {
            self.park(&Sender { head, ring: Some(ring), ..Sender::default() }, None, state::RETIRED);
        }
    }

    /// Leaves rings in a block of their own.
    fn park(&self, sender: &Sender, records: Option<Ring>, bits: u32) {
        let block = client::present().and_then(|client| client.take_block_of(&self.home));
        let Some(b) = block.and_then(|index| self.home.region.sock(index)) else { return };
        b.region.store(0, Ordering::Relaxed);
        sender.keep(b);
        b.records.store(records.map_or(0, records::page), Ordering::Relaxed);
        b.rx_lock.store(0, Ordering::Relaxed);
        b.state
            .store(bits | if self.mapped.side == Side::One { state::SIDE_ONE } else { 0 }, Ordering::Relaxed);
        b.slot.store(self.slot(), Ordering::Relaxed);
        if !take(b, &self.mapped) {
            b.region.store(self.mapped.id, Ordering::Release);
        }
        b.holders.store(0, Ordering::Release);
    }
}

/// True when the caller, who holds `block`, may use it: nothing was left in it, or nobody reads that any more and it is given back.
/// `find` says how a region is mapped here; one that is not to be had is gone.
pub fn is_settled(block: &SockBlock, find: impl FnOnce(u32, u8) -> Option<Arc<Mapped>>) -> bool {
    let region = block.region.load(Ordering::Acquire);
    if region == 0 || block.rx_lock.load(Ordering::Relaxed) == MOVED {
        return true;
    }
    let has_any = [&block.tx_ring, &block.tx_old].iter().any(|word| word.load(Ordering::Relaxed) << 1 != 0)
        || block.records.load(Ordering::Relaxed) != 0;
    match has_any.then(|| find(region, side(block) as u8)).flatten() {
        Some(mapped) => take(block, &mapped),
        None => {
            forget(block);
            true
        }
    }
}

/// Gives back what was left lent in `mapped` by sockets with blocks in `home`, and that nobody reads any more; `ours` is the caller's
/// holder bit.
pub fn collect(home: &Mapped, mapped: &Mapped, ours: u64) {
    let is_it = |block: &SockBlock| {
        block.region.load(Ordering::Acquire) == mapped.id
            && side(block) == mapped.side
            && block.rx_lock.load(Ordering::Relaxed) != MOVED
    };
    let used = home.region.header().hand.load(Ordering::Relaxed);
    for block in (1..=used).map_while(|i| home.region.sock(i)) {
        // Seldom held: should this process die meanwhile, the service closes what the block names.
        let is_left = block.holders.load(Ordering::Relaxed) == 0 && is_it(block) && is_read(block, mapped);
        if is_left && block.holders.compare_exchange(0, ours, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            if is_it(block) {
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

/// The rings that stand in a block of a connection of `mapped`, then the table of records.
fn rings(block: &SockBlock, mapped: &Mapped) -> ([Option<Ring>; 2], Option<Ring>) {
    let sender = Sender::of(block, mapped.data_len());
    ([sender.ring, sender.old], records::of(block, mapped.data_len()))
}

/// Gives back what was left in a block of a connection of `mapped`. False: it is being read yet.
fn take(block: &SockBlock, mapped: &Mapped) -> bool {
    if !is_read(block, mapped) {
        return false;
    }
    let (rings, records) = rings(block, mapped);
    forget(block);
    rings.into_iter().chain([records]).flatten().for_each(|ring| mapped.give_back(ring));
    true
}

fn forget(block: &SockBlock) {
    // First: should this process die here, the slot is none of its.
    block.region.store(0, Ordering::Release);
    Sender::default().keep(block);
    block.records.store(0, Ordering::Relaxed);
}

/// True when nobody reads there any more: consumed, let go by the other side, or the slot is another connection's already.
fn is_read(block: &SockBlock, mapped: &Mapped) -> bool {
    let slot = block.slot.load(Ordering::Relaxed);
    let (rings, _) = rings(block, mapped);
    if !mapped.has(slot) || rings == [None; 2] {
        return true;
    }
    let (own, peer) = mapped.halves(slot);
    let noted = block.tx_head.load(Ordering::Relaxed);
    let published = own.tx_head.load(Ordering::Acquire);
    let (is_reused, head) = if block.state.load(Ordering::Relaxed) & state::RETIRED != 0 {
        (published < noted, noted)
    } else {
        // A half is cleared for another connection, which cannot have a ring that is still lent.
        let stands = |ring: &Ring| own.ring.iter().any(|word| word.load(Ordering::Acquire) == ring.packed());
        // One of the two may be ahead: what was held back is published for the dead, and who is killed has not noted what it published.
        (!rings.iter().flatten().any(stands), published.max(noted))
    };
    let let_go = peer.flags.load(Ordering::Acquire) & RELEASED != 0;
    is_reused || let_go || peer.rx_tail.load(Ordering::Acquire) >= head
}
