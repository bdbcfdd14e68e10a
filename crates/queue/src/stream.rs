//! One direction of one connection: a byte stream through rings that the producer lends and swaps.
//!
//! ```text
//!             rx_tail (consumer's half)          tx_head (producer's half)
//!                |                                   |
//!    ....consumed|########### unread ################|...free...            positions are u64, never wrap
//!                      ^start[1]: from here the bytes lie in ring[1], before it in ring[0]
//! ```
//!
//! The producer changes `ring[i]`/`start[i]` only when the consumer has passed `start[1 - i]`, ring first, start second,
//! so a consumer at any point picks a consistent pair: the larger start at or below its position rules.
//!
//! Each side keeps its own positions in memory it trusts and only *publishes* them here.

use crate::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::{Ring, Violation, fence};
use base::limits::RING_MAX;
use shm::{Half, SockBlock, half_flags};

/// Bytes at the consumer's position that lie in one ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readable {
    /// The ring, in the *other* side's data area.
    pub ring: Ring,
    /// Number of bytes in this ring.
    pub len: usize,
    /// Number of bytes in this and the next ring.
    pub total: usize,
}

/// Consumer: the bytes that can be read at position `tail` of the stream that `peer` produces. `None` when there are none.
///
/// # Errors
/// [`Violation`], when the producer published something impossible: a bug or an attack; treat the connection as reset.
#[inline(always)]
pub fn readable(peer: &Half, tail: u64, data_len: u64) -> Result<Option<Readable>, Violation> {
    // Acquire: pairs with the Release in `publish`; bytes, rings and starts of all positions below `head` are visible.
    let head = peer.tx_head.load(Acquire);
    if head == tail {
        return Ok(None);
    }
    // Also when the head is behind the tail. No stream comes near the last positions, so the sums below cannot overflow.
    let total = head.wrapping_sub(tail);
    if total > 2 * RING_MAX as u64 || head < tail {
        return Err(Violation::Position { known: tail, found: head });
    }
    let starts = [peer.start[0].load(Acquire), peer.start[1].load(Acquire)];
    let (in0, in1) = (starts[0] <= tail, starts[1] <= tail);
    let i = match (in0, in1) {
        // Equal only before the second ring is ever used: a stream begins with ring 1 (see `Sender::default`).
        (true, true) => usize::from(starts[1] >= starts[0]),
        (true, false) => 0,
        (false, true) => 1,
        (false, false) => return Err(Violation::NoRing(tail)),
    };
    let next = starts[1 - i];
    let end = if next > tail && next < head { next } else { head };
    let ring = Ring::parse(peer.ring[i].load(Acquire), data_len)?;
    let len = end - tail;
    if len > ring.size() {
        return Err(Violation::Position { known: tail, found: end });
    }
    Ok(Some(Readable { ring, len: len as usize, total: total as usize }))
}

/// Consumer: publishes that everything before `tail` is consumed. True when the producer waits for space and must be
/// told.
#[must_use]
#[inline]
pub fn consumed(own: &Half, peer: &Half, tail: u64) -> bool {
    note_consumed(own, tail);
    barrier();
    wants_space(peer)
}

/// Bytes after which a consumer that consumes little by little executes a barrier at the latest.
const STEP: u64 = 512;

/// Consumer: as [`consumed`], when bytes from `from` on were consumed and more are there. The barrier is a good part of the cost of a
/// small read. Without it a producer that begins to wait for space at this very moment may be missed, for less than a step of bytes.
#[must_use]
#[inline]
pub fn consumed_some(own: &Half, peer: &Half, from: u64, tail: u64) -> bool {
    note_consumed(own, tail);
    if from ^ tail >= STEP {
        barrier();
    }
    wants_space(peer)
}

/// Consumer: as [`consumed`] for one of several streams; after all of them call [`barrier`] once, then [`wants_space`] for each.
#[inline]
pub fn note_consumed(own: &Half, tail: u64) {
    // Release: the bytes were copied out before the producer may overwrite them (pairs with Acquire in `Sender::space`).
    own.rx_tail.store(tail, Release);
}

/// Producer: as [`Sender::publish`] for one of several streams; after all of them call [`barrier`] once, then [`watcher`] for each.
#[inline]
pub fn note_produced(own: &Half, head: u64) {
    // Release: bytes and rings before the head that announces them (pairs with Acquire in `readable`).
    own.tx_head.store(head, Release);
}

/// Full barrier between publishing positions and checking whether the other side waits for them.
#[inline]
pub fn barrier() {
    // Pairs with the fences in `watch` and in `Sender::want_space`: one of the two sides sees the other's store.
    fence(SeqCst);
}

/// True when the producer waits for space.
#[must_use]
#[inline]
pub fn wants_space(peer: &Half) -> bool {
    peer.flags.load(Relaxed) & half_flags::WANT_SPACE != 0
}

/// The producer's own, trusted state of its stream. Plain data: load it from the socket block, change it, store it back. A process can
/// overwrite its own block. Then positions contradict each other: arithmetic on them wraps, and at the latest
/// [`acknowledge`](Sender::acknowledge) finds the violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender {
    /// Number of bytes produced.
    pub head: u64,
    /// Number of bytes that the consumer is known to have consumed.
    pub tail: u64,
    /// The ring that takes the next byte.
    pub ring: Option<Ring>,
    /// The position from which on bytes lie in `ring`.
    pub start: u64,
    /// The earlier ring, until the consumer has passed `start`.
    pub old: Option<Ring>,
    /// Index (0 or 1) of the descriptor that holds the current ring.
    pub index: u8,
}

impl Default for Sender {
    fn default() -> Self {
        Self { head: 0, tail: 0, ring: None, start: 0, old: None, index: 1 }
    }
}

const INDEX_BIT: u64 = 1 << 63;

impl Sender {
    /// Loads the state kept in a socket block.
    #[must_use]
    #[inline]
    pub fn of(block: &SockBlock, data_len: u64) -> Self {
        let ring = block.tx_ring.load(Relaxed);
        Self {
            head: block.tx_head.load(Relaxed),
            tail: block.tx_tail.load(Relaxed),
            ring: Ring::parse(ring & !INDEX_BIT, data_len).ok(),
            start: block.tx_start.load(Relaxed),
            old: Ring::parse(block.tx_old.load(Relaxed), data_len).ok(),
            index: u8::from(ring & INDEX_BIT != 0),
        }
    }

    /// Stores the state in a socket block.
    #[inline]
    pub fn keep(&self, block: &SockBlock) {
        let index = if self.index == 0 { 0 } else { INDEX_BIT };
        // Release: if the service publishes held-back bytes (`held`), it sees them and their rings.
        block.tx_head.store(self.head, Release);
        block.tx_tail.store(self.tail, Relaxed);
        block.tx_ring.store(self.ring.map_or(0, Ring::packed) | index, Relaxed);
        block.tx_start.store(self.start, Relaxed);
        block.tx_old.store(self.old.map_or(0, Ring::packed), Relaxed);
    }

    /// As [`of`](Self::of), from the block of an untrusted process, for the party that continues its stream: `own` is that process's
    /// half. Bytes that it held back are still to be published.
    ///
    /// # Errors
    /// [`Violation`], when the positions contradict each other or those published, or the process was killed in the middle of a send.
    pub fn taken_over(block: &SockBlock, own: &Half, data_len: u64) -> Result<Self, Violation> {
        let sender = Self::of(block, data_len);
        let published = own.tx_head.load(Acquire);
        // Bytes held back are written already. A process killed between publishing and keeping has a smaller head in its block.
        if sender.head < published {
            return Err(Violation::Position { known: sender.head, found: published });
        }
        if !(sender.tail <= sender.head && sender.start <= sender.head) {
            return Err(Violation::Position { known: sender.head, found: sender.tail.max(sender.start) });
        }
        let held = sender.head - sender.tail.max(sender.start);
        if sender.ring.map_or(0, Ring::size) < held {
            return Err(Violation::NoRing(sender.head));
        }
        Ok(sender)
    }

    /// Reads how far the consumer has come. Returns a ring that is no longer in use, to be given back.
    ///
    /// # Errors
    /// [`Violation::Position`], when the consumer claims bytes that were never sent, or went backwards.
    #[inline]
    pub fn update(&mut self, peer: &Half) -> Result<Option<Ring>, Violation> {
        // Acquire: pairs with the Release in `consumed`.
        let tail = peer.rx_tail.load(Acquire);
        self.acknowledge(tail)
    }

    /// As [`update`](Self::update), with a position that was read before.
    ///
    /// # Errors
    /// [`Violation::Position`], when `tail` is before the known position or after everything sent.
    #[inline]
    pub fn acknowledge(&mut self, tail: u64) -> Result<Option<Ring>, Violation> {
        if !(self.tail <= tail && tail <= self.head) {
            return Err(Violation::Position { known: self.tail, found: tail });
        }
        self.tail = tail;
        Ok(if tail >= self.start { self.old.take() } else { None })
    }

    /// Bytes that fit now.
    #[must_use]
    #[inline]
    pub fn space(&self) -> usize {
        match self.ring {
            Some(ring) => {
                ring.size().saturating_sub(self.head.wrapping_sub(self.tail.max(self.start))) as usize
            }
            None => 0,
        }
    }

    /// True when every byte is consumed.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// True when [`lend`](Self::lend) may be called: no earlier ring is still being read, or the current one is unused.
    #[must_use]
    #[inline]
    pub fn may_lend(&self) -> bool {
        self.old.is_none() || self.head == self.start
    }

    /// Makes `ring` the current one from the present head on. Returns the ring that it replaces if that is empty
    /// and can be given back at once; otherwise [`update`](Self::update) returns it later.
    pub fn lend(&mut self, own: &Half, ring: Ring) -> Option<Ring> {
        assert!(self.may_lend(), "one switch of rings at a time");
        let before = self.ring.replace(ring);
        if self.head == self.start {
            // No byte lies in the current descriptor's ring, so no consumer looks at it: replace it in place. Two
            // descriptors with the same start never exist.
            own.ring[usize::from(self.index)].store(ring.packed(), Release);
            return before;
        }
        self.index ^= 1;
        let index = usize::from(self.index);
        // Ring before start, both before the head that makes them matter; the consumer reads start first (Acquire).
        own.ring[index].store(ring.packed(), Release);
        own.start[index].store(self.head, Release);
        self.start = self.head;
        if self.is_empty() {
            return before;
        }
        self.old = before;
        None
    }

    /// Replaces the current ring by a longer one and returns it. The caller has copied the bytes from `start` on; an earlier ring stays
    /// as it is. A consumer may read the old copy until it has consumed the bytes written so far; it reads the descriptor after the head,
    /// so it finds later bytes in the new ring.
    pub fn relocate(&mut self, own: &Half, ring: Ring) -> Option<Ring> {
        debug_assert!(self.ring.is_some_and(|before| before.size() < ring.size()));
        // Before the head that publishes bytes in the new ring.
        own.ring[usize::from(self.index)].store(ring.packed(), Release);
        self.ring.replace(ring)
    }

    /// Takes the ring from an empty stream. `None` when there is no ring, or bytes are unread.
    #[inline]
    pub fn give_back(&mut self) -> Option<Ring> {
        if self.is_empty() && self.old.is_none() { self.ring.take() } else { None }
    }

    /// Publishes `n` more bytes, already copied to `spans(head, n)` of the current ring. Afterwards the caller reads the peer's
    /// `context` and rings its doorbell.
    #[inline]
    pub fn publish(&mut self, own: &Half, n: usize) {
        debug_assert!(n <= self.space());
        self.head = self.head.wrapping_add(n as u64);
        note_produced(own, self.head);
        barrier();
    }

    /// Announces that the producer waits for space. True: there is still none, so wait for the doorbell. False: try again.
    ///
    /// # Errors
    /// As [`update`](Self::update), and when the current ring starts behind the head: with such a start an empty stream would have no space
    /// for ever. The ring that `update` returns is passed to `give`.
    pub fn want_space(
        &mut self,
        own: &Half,
        peer: &Half,
        give: impl FnOnce(Ring),
    ) -> Result<bool, Violation> {
        if self.start > self.head {
            return Err(Violation::Position { known: self.start, found: self.head });
        }
        own.flags.fetch_or(half_flags::WANT_SPACE, SeqCst);
        // Pairs with the fence in `consumed`.
        fence(SeqCst);
        let before = self.space();
        if let Some(ring) = self.update(peer)? {
            give(ring);
        }
        let found = self.space() > before || (self.is_empty() && before == 0);
        if found {
            own.flags.fetch_and(!half_flags::WANT_SPACE, SeqCst);
        }
        Ok(!found)
    }
}

/// The context of `half`'s owner to ring for news of the slot, if there is one.
#[must_use]
#[inline]
pub fn watcher(half: &Half) -> Option<u32> {
    half.context.load(Relaxed).checked_sub(1)
}

/// Announces on one's own half that `context` is to be rung for this slot (`None`: none). Check for news once more
/// afterwards: positions published before the fence caused no doorbell.
#[inline]
pub fn watch(own: &Half, context: Option<u32>) {
    own.context.store(context.map_or(0, |c| c + 1), Relaxed);
    // Pairs with the fence in `publish`.
    fence(SeqCst);
}

/// Sets a flag of one's own half (`FIN`, `RESET`, ...) after everything already published.
#[inline]
pub fn raise(own: &Half, flag: u32) {
    own.flags.fetch_or(flag, SeqCst);
    fence(SeqCst);
}

/// The flags with which an end ends its stream. `own` and `peer` are the flags of the two halves. [`half_flags::PASSIVE`] says that the other
/// side had ended its own before: when both end theirs at once, neither has the flag.
#[must_use]
pub const fn ending(own: u32, peer: u32) -> u32 {
    use half_flags::{FIN, PASSIVE};
    if own & FIN == 0 && peer & FIN != 0 { FIN | PASSIVE } else { FIN }
}

/// The flags with which an end closes, by Linux's rule (`tcp_close`): a reset if input is unread or `hard` asks for one, else the end of the
/// stream. `own` and `peer` are the flags of the two halves.
#[must_use]
pub const fn closing(own: u32, peer: u32, is_unread: bool, hard: bool) -> u32 {
    use half_flags::{FAILED, FIN, READ_CLOSED, RELEASED, RESET};
    let is_cut = own & RESET != 0 || peer & (RESET | FAILED) != 0;
    let end = match own & FIN != 0 {
        true if is_cut => 0,
        // The end of a cut stream must not look like a FIN: the reader would take a part for the whole.
        false if is_cut => RESET,
        _ if is_unread || hard => RESET,
        _ => ending(own, peer),
    };
    end | READ_CLOSED | RELEASED
}

/// Closes one end of a connection in the place of its owner, which is dead or has let go, as [`closing`] says. If the owner has let go of
/// a connection that neither side has ended, it has written nonsense: a reset. Returns true when the other side is to be told, because it has
/// not closed its own end yet.
pub fn close_for(own: &Half, peer: &Half, hard: bool) -> bool {
    use half_flags::{FAILED, FIN, READ_CLOSED, RELEASED, RESET};
    let (flags, others) = (own.flags.load(Acquire), peer.flags.load(Acquire));
    if flags & RELEASED != 0 {
        let is_open = others & RELEASED == 0;
        if is_open && flags & (FIN | RESET) == 0 && others & (RESET | FAILED) == 0 {
            raise(own, RESET | READ_CLOSED);
        }
        return is_open;
    }
    let is_unread = peer.tx_head.load(Acquire) != own.rx_tail.load(Acquire);
    raise(own, closing(flags, others, is_unread, hard));
    true
}

#[cfg(all(test, not(loom)))]
#[path = "stream_tests.rs"]
mod tests;
