//! Bytes read and written where they lie in the rings, for an owner that shares the connection with no other thread or process and so takes
//! no lock (crate `ring`). It publishes many connections behind one barrier, and tells one peer of many by one word of its doorbell
//! ([`Bell`]).
//!
//! ```text
//!   unread_pieces -> look or copy -> consume_in_place ─┐
//!   reserve -> fill the pieces    -> commit ───────────┴─> publish, one barrier for all, settle_progress for each, one ring for each word
//! ```
//! Committed bytes that are not published lie in the socket block as bytes held back do (`TCP_CORK`): a party that takes the stream over
//! finds them.

use crate::region::{Bell, Mapped};
use crate::stream::is_enough_space;
use crate::{Endpoint, Parts, flags, state};
pub use queue::batch::owed;
use queue::stream::{Sender, note_consumed, readable};
use queue::{Ring, batch};
use rustix::io::Errno;
use shm::half_flags::{FIN, READ_CLOSED, RELEASED};
use std::sync::atomic::Ordering;

/// A piece of a data area: offset and length in bytes.
pub type Piece = (usize, usize);

/// The unread bytes of a connection, as pieces of the other side's data area in stream order. Pieces without bytes are empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unread {
    /// The pieces: two of each ring that holds unread bytes.
    pub pieces: [Piece; 4],
    /// Bytes of all pieces.
    pub total: usize,
    /// The ring that is read first; `None`: nothing is unread.
    ring: Option<Ring>,
    /// Unread bytes of that ring.
    first: usize,
}

/// Room for bytes to be sent, as pieces of this side's data area in stream order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// The pieces; the second is empty unless the room wraps around the ring's end.
    pub pieces: [Piece; 2],
    /// Bytes of both pieces.
    pub total: usize,
}

impl Endpoint {
    /// Finds the bytes that have come and are not consumed.
    ///
    /// # Errors
    /// ECONNRESET when the peer broke the protocol. An end of the connection is no error here: what came before it can be read.
    pub fn unread_pieces(&self) -> Result<Unread, Errno> {
        let Parts { block, peer, .. } = self.parts();
        let tail = block.rx_tail.load(Ordering::Relaxed);
        let data_len = self.mapped.data_len();
        let find = |at| readable(peer, at, data_len).map_err(|v| self.violated(v));
        let Some(first) = find(tail)? else { return Ok(Unread::default()) };
        let [a, b] = first.ring.spans(tail, first.len);
        let mut unread = Unread {
            pieces: [a, b, (0, 0), (0, 0)],
            total: first.len,
            ring: Some(first.ring),
            first: first.len,
        };
        if first.len < first.total
            && let Some(second) = find(tail + first.len as u64)?
        {
            let [c, d] = second.ring.spans(tail + first.len as u64, second.len);
            unread.pieces[2..].copy_from_slice(&[c, d]);
            unread.total += second.len;
        }
        Ok(unread)
    }

    /// Stream position after the last byte that has come. A hint: the peer may have written anything.
    #[inline]
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.halves().1.tx_head.load(Ordering::Acquire)
    }

    /// Stream position of the next byte to be read.
    #[inline]
    #[must_use]
    pub fn read_position(&self) -> u64 {
        self.block().rx_tail.load(Ordering::Relaxed)
    }

    /// The first `n` bytes of `unread` are done with: the peer may overwrite them. Returns what is owed to the peer ([`owed`]).
    ///
    /// # Panics
    /// When `n` is more than was unread.
    pub fn consume_in_place(&self, unread: &Unread, n: usize) -> u8 {
        assert!(n <= unread.total, "consumed more than was there");
        if n == 0 {
            return 0;
        }
        let (block, own) = (self.block(), self.halves().0);
        let tail = block.rx_tail.load(Ordering::Relaxed) + n as u64;
        block.rx_tail.store(tail, Ordering::Relaxed);
        note_consumed(own, tail);
        if n == unread.total {
            return owed::SPACE | owed::REST;
        }
        let left = unread.first.saturating_sub(n) as u64;
        let has_enough = |ring: Ring| is_enough_space(ring.size().saturating_sub(left), ring);
        let is_useful = n >= unread.first || unread.pieces[2].1 > 0 || unread.ring.is_some_and(has_enough);
        if is_useful || !self.mapped.pair { owed::SPACE } else { 0 }
    }

    /// Everything was read. If the peer has read everything, too, the connection is idle, and its ring is given back.
    fn rest_in_place(&self, peer: &shm::Half) {
        let block = self.block();
        if block.tx_ring.load(Ordering::Relaxed) << 1 == 0 {
            return;
        }
        let mut sender = self.sender();
        if let Ok(old) = sender.update(peer) {
            let ring = sender.give_back();
            sender.keep(block);
            old.into_iter().chain(ring).for_each(|ring| self.mapped.give_back(ring));
        }
    }

    /// Room for at least `least` and at most `most` bytes. `None`: there is not so much; the peer tells when there is more, which
    /// [`stream_readiness`](Self::stream_readiness) shows. Publish what is committed before: a peer that sees no bytes makes no room.
    ///
    /// # Errors
    /// The pending error, then EPIPE; EPIPE also after the end of this side's stream and when the peer reads no more; EMSGSIZE when no ring
    /// of this process is so long.
    pub fn reserve(&self, least: usize, most: usize) -> Result<Option<Room>, Errno> {
        let Parts { block, own, peer } = self.parts();
        let seen = self.flags_of(peer);
        let bits = self.state();
        if bits & (state::OVER | state::SHUT_WR) != 0 {
            return Err(self.take_error().unwrap_or(Errno::PIPE));
        }
        if seen & FIN != 0 && seen & (RELEASED | READ_CLOSED) != 0 {
            return Err(Errno::PIPE);
        }
        if least as u64 > u64::from(self.mapped.host.ring_most()) {
            return Err(Errno::MSGSIZE);
        }
        if !self.is_open() {
            return Ok(None);
        }
        let mut sender = Sender::of(block, self.mapped.data_len());
        let room = self.find_room(&mut sender, own, peer, least, most.max(least));
        sender.keep(block);
        room
    }

    fn find_room(
        &self,
        sender: &mut Sender,
        own: &shm::Half,
        peer: &shm::Half,
        least: usize,
        most: usize,
    ) -> Result<Option<Room>, Errno> {
        if let Some(ring) = sender.update(peer).map_err(|v| self.violated(v))? {
            self.part_with(ring, sender);
        }
        loop {
            let bounds = self.bounds();
            let allowed = bounds.map_or(usize::MAX, |bounds| {
                self.note_bounds(&bounds, sender, most);
                bounds.room(sender)
            });
            if most.min(allowed) > sender.space() {
                let bound = bounds.and_then(|bounds| bounds.most(sender, most));
                self.widen(sender, most, bound);
            }
            let mut n = most.min(allowed).min(sender.space());
            if n < least && allowed >= least && self.lengthen_at_once(sender, 0, least) {
                n = most.min(sender.space());
            }
            if n >= least.max(1)
                && let Some(ring) = sender.ring
            {
                if self.block().flags.load(Ordering::Relaxed) & flags::FULL != 0 {
                    self.want_no_space();
                }
                return Ok(Some(Room { pieces: ring.spans(sender.head, n), total: n }));
            }
            let mut old = None;
            let waits =
                sender.want_space(own, peer, |ring| old = Some(ring)).map_err(|v| self.violated(v))?;
            old.into_iter().for_each(|ring| self.part_with(ring, sender));
            if waits || sender.ring.is_none() {
                self.block().flags.fetch_or(flags::FULL, Ordering::Relaxed);
                self.stall();
                return Ok(None);
            }
        }
    }

    /// The first `n` bytes of the room that [`reserve`](Self::reserve) found last are filled. The peer sees them after
    /// [`publish`](Self::publish).
    #[inline]
    pub fn commit(&self, n: usize) {
        batch::commit(self.block(), n);
    }

    /// Publishes what was committed. The caller executes [`queue::stream::barrier`] and then calls
    /// [`settle_progress`](Self::settle_progress), which gets [`owed::BYTES`].
    #[inline]
    pub fn publish(&self) {
        batch::publish(self.halves().0, self.block());
    }

    /// Does what is owed after the barrier, and returns the bell by which the peer is to be told of it, if it is. `moment` is
    /// [`cycles::moment`] now.
    #[inline]
    pub fn settle_progress(&self, owed: u8, moment: u32) -> Option<Bell> {
        let (own, peer) = self.halves();
        if owed & (owed::REST | owed::BYTES) == owed::REST {
            // A ring that has bytes under way is needed anyway.
            self.rest_in_place(peer);
        }
        let context = batch::to_tell(owed, peer)?;
        let bell = Bell { context, word: self.slot() / 64, bits: 1 << (self.slot() % 64) };
        self.mapped.note_moment(own, bell, moment);
        Some(bell)
    }

    /// Rings for this connection and others of the same region.
    #[inline]
    pub fn ring(&self, bell: Bell) {
        if let Some(context) = self.mapped.ring(bell) {
            self.process().wake_other(&self.mapped, context);
        }
    }

    /// Hints the processor to fetch what a look at this connection needs: both halves of its slot.
    #[inline]
    pub fn prefetch(&self) {
        let Self { mapped, .. } = self;
        mapped.region.prefetch_half(mapped.side.other(), self.slot(), false);
        mapped.region.prefetch_half(mapped.side, self.slot(), true);
    }

    /// Hints the processor to fetch the first unread bytes, and the place of the next bytes to be sent.
    #[inline]
    pub fn prefetch_bytes(&self) {
        let Parts { block, peer, .. } = self.parts();
        let Mapped { region, side, .. } = &*self.mapped;
        let data_len = self.mapped.data_len();
        let tail = block.rx_tail.load(Ordering::Relaxed);
        if let Ok(Some(unread)) = readable(peer, tail, data_len) {
            region.prefetch(side.other(), unread.ring.spans(tail, 1)[0].0, false);
        }
        let sender = Sender::of(block, data_len);
        if let Some(ring) = sender.ring {
            region.prefetch(*side, ring.spans(sender.head, 1)[0].0, true);
        }
    }

    /// True when a sender that found no room would find enough now.
    #[must_use]
    pub fn has_room_again(&self) -> bool {
        let mut sender = self.sender();
        let Ok(old) = sender.update(self.halves().1) else { return true };
        if old.is_some() {
            self.store(&sender);
        }
        old.into_iter().for_each(|ring| self.mapped.give_back(ring));
        let in_ring = |ring| is_enough_space(sender.space() as u64, ring);
        let is_free = sender.is_empty() || sender.ring.is_none_or(in_ring);
        is_free && self.bounds().is_none_or(|bounds| bounds.is_writable(&sender))
    }
}

#[cfg(test)]
#[path = "in_place_tests.rs"]
mod tests;
