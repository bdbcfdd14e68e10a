//! Memory when it is short, and rings that closed sockets left behind. A process that closes a socket in a region of an ancestor may end
//! before the peer has read the last bytes, and a killed process gives nothing back. The socket's block, without a holder, still names
//! these rings, until a process needs the block or the memory.

use crate::region::Mapped;
use crate::{Endpoint, flags, state};
use queue::stream::{Sender, watcher};
use queue::{Ring, Wake, nap};
use shm::half_flags::RELEASED;
use shm::{MOVED, Side, SockBlock};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Endpoint {
    /// Lends a ring of class `best`; without memory for it, of a lower class, but `least` or more (see
    /// [`Mapped::lend`](crate::region::Mapped::lend)).
    #[inline]
    pub fn lend_longest(&self, least: usize, best: usize, leaving: usize) -> Option<Ring> {
        self.mapped.lend(best, leaving).or_else(|| self.make_room(least, best, leaving))
    }

    #[cold]
    fn make_room(&self, least: usize, best: usize, leaving: usize) -> Option<Ring> {
        self.mapped.sweep();
        if let Some(ours) = self.process().collects_as()
            && self.mapped.may_collect()
        {
            collect(&self.home, &self.mapped, ours);
        }
        if let Some(ring) = self.mapped.lend(best, leaving) {
            return Some(ring);
        }
        self.process().grow(&self.mapped);
        (least.min(best)..=best).rev().find_map(|class| self.mapped.lend(class, leaving))
    }

    /// Gives back a ring that `sender` no longer uses. Stores the block first: if this process is killed, others go by the block.
    #[cold]
    pub fn part_with(&self, ring: Ring, sender: &Sender) {
        self.store(sender);
        self.mapped.give_back(ring);
    }

    /// True after a send that found no memory at all. Memory comes back when other connections' peers read, and this connection hears
    /// nothing of that.
    pub fn lacks_memory(&self) -> bool {
        self.block().flags.load(Ordering::Relaxed) & flags::FULL != 0 && self.sender().ring.is_none()
    }

    /// Makes the threads of this process that wait for news of this socket look again.
    #[cold]
    pub fn ring_ourselves(&self) {
        let own = self.halves().0;
        let Some(context) = watcher(own) else { return };
        match self.mapped.own_bell(context) {
            Some(bell) if bell.ring(self.slot()) == Wake::Needed => self.process().wake(context),
            Some(_) => {}
            None if nap::rouse(own) => self.process().rouse(own),
            None => {}
        }
    }

    /// Releases the rings of a closed socket once they are read; its sending side is locked. True: until then the block names them and
    /// may be used for nothing else.
    pub fn leave_rings(&self) -> bool {
        if !self.mapped.is_own() {
            return !take(self.block(), &self.mapped);
        }
        self.part_with_rings();
        false
    }

    /// Like [`Self::leave_rings`], for a block that stays in use.
    pub fn part_with_rings(&self) {
        let sender = self.sender();
        self.store(&Sender::default());
        if self.mapped.is_own() {
            self.mapped.linger(self.slot(), sender);
        } else {
            self.park(&sender, 0);
        }
    }

    /// An open socket gives up `ring`, from which the peer has yet to read the bytes before `head`.
    pub fn retire(&self, head: u64, ring: Ring) {
        if self.mapped.is_own() {
            self.mapped.retire(self.slot(), head, ring);
        } else {
            self.park(&Sender { head, ring: Some(ring), ..Sender::default() }, state::RETIRED);
        }
    }

    /// Names the rings in a free block of their own until they are read.
    fn park(&self, sender: &Sender, bits: u32) {
        let block = self.process().take_block(&self.home);
        let Some(b) = block.and_then(|index| self.home.region.sock(index)) else { return };
        b.region.store(0, Ordering::Relaxed);
        sender.keep(b);
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

/// True when the caller, which holds `block`, may use it: it names no rings, or they were read and are given back. `find` returns the
/// mapping of a region by id and side; a region that it does not find is gone.
pub fn is_settled(block: &SockBlock, find: impl FnOnce(u32, u8) -> Option<Arc<Mapped>>) -> bool {
    let region = block.region.load(Ordering::Acquire);
    if region == 0 || block.rx_lock.load(Ordering::Relaxed) == MOVED {
        return true;
    }
    let has_any = [&block.tx_ring, &block.tx_old].iter().any(|word| word.load(Ordering::Relaxed) << 1 != 0);
    match has_any.then(|| find(region, side(block) as u8)).flatten() {
        Some(mapped) => take(block, &mapped),
        None => {
            forget(block);
            true
        }
    }
}

/// Gives back the rings in `mapped` that sockets with blocks in `home` left behind, once they are read. `ours`: the caller's holder bit.
pub fn collect(home: &Mapped, mapped: &Mapped, ours: u64) {
    let is_it = |block: &SockBlock| {
        block.region.load(Ordering::Acquire) == mapped.id
            && side(block) == mapped.side
            && block.rx_lock.load(Ordering::Relaxed) != MOVED
    };
    let used = home.region.header().hand.load(Ordering::Relaxed);
    for block in (1..=used).map_while(|i| home.region.sock(i)) {
        // Look before taking the block: if this process dies while it holds the block, the service closes what it names.
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

/// The rings that a block of a connection of `mapped` names.
fn rings(block: &SockBlock, mapped: &Mapped) -> [Option<Ring>; 2] {
    let sender = Sender::of(block, mapped.data_len());
    [sender.ring, sender.old]
}

/// Gives back the rings that a block of a connection of `mapped` names. False: the peer still reads them.
fn take(block: &SockBlock, mapped: &Mapped) -> bool {
    if !is_read(block, mapped) {
        return false;
    }
    let rings = rings(block, mapped);
    forget(block);
    rings.into_iter().flatten().for_each(|ring| mapped.give_back(ring));
    true
}

fn forget(block: &SockBlock) {
    // First: if this process dies after this, the service closes no slot for it.
    block.region.store(0, Ordering::Release);
    Sender::default().keep(block);
}

/// True when the peer reads the rings no more: it has consumed them or let go, or the slot is another connection's already.
fn is_read(block: &SockBlock, mapped: &Mapped) -> bool {
    let slot = block.slot.load(Ordering::Relaxed);
    let rings = rings(block, mapped);
    if !mapped.has(slot) || rings == [None; 2] {
        return true;
    }
    let (own, peer) = mapped.halves(slot);
    let noted = block.tx_head.load(Ordering::Relaxed);
    let published = own.tx_head.load(Ordering::Acquire);
    let (is_reused, head) = if block.state.load(Ordering::Relaxed) & state::RETIRED != 0 {
        (published < noted, noted)
    } else {
        // The half names none of these rings: it was cleared for another connection, which cannot have a ring that is still lent.
        let stands = |ring: &Ring| own.ring.iter().any(|word| word.load(Ordering::Acquire) == ring.packed());
        // Take the larger head: the service may have published a dead process's held-back bytes, and a process killed after publishing has
        // not stored its head in the block.
        (!rings.iter().flatten().any(stands), published.max(noted))
    };
    let let_go = peer.flags.load(Ordering::Acquire) & RELEASED != 0;
    is_reused || let_go || peer.rx_tail.load(Ordering::Acquire) >= head
}
