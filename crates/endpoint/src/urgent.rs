//! Urgent data (`MSG_OOB`), as Linux reads RFC 9293 section 3.8.5: the last byte before the urgent pointer, the *mark*, may be read ahead
//! of its turn. A read ends in front of it; one that begins there skips it, unless `SO_OOBINLINE` makes it a byte as any other.
//!
//! ```text
//!    tail             mark                        head
//!  ----|---- a read ----[u]----- the next one -----|
//! ```
//! How far the urgent bytes reach is the sender's word. The mark that was seen last, and whether its byte was read, are kept beside it in
//! shared memory (`shm::Urgent`): a process that overwrites them can move a mark in the stream between the two, and nothing else.

use crate::lock::own;
use crate::stream::ready;
use crate::{Endpoint, flags, state};
use queue::stream::{consumed, readable};
use queue::urgent;
use rustix::io::Errno;
use shm::{application_flags, half_flags};
use std::sync::atomic::Ordering;

/// Bit of `shm::Urgent::seen`: the byte at the mark was read. The bits above it are the position behind the mark.
const TAKEN: u64 = 1;

/// The urgent data that a reader finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Urgent {
    /// Position of the next byte to read.
    tail: u64,
    /// Position of the urgent byte; `None`: there is none, or reading has passed it.
    mark: Option<u64>,
    /// True when the urgent byte was read ahead of its turn.
    is_taken: bool,
    /// The value of `shm::Urgent::seen` for this state.
    word: u64,
}

impl Endpoint {
    /// Sets or clears `SO_OOBINLINE`.
    pub fn set_inline(&self, on: bool) {
        let flags = &self.block().flags;
        if on {
            flags.fetch_or(flags::INLINE, Ordering::Relaxed);
        } else {
            flags.fetch_and(!flags::INLINE, Ordering::Relaxed);
        }
    }

    fn is_inline(&self) -> bool {
        self.block().flags.load(Ordering::Relaxed) & flags::INLINE != 0
    }

    /// The last mark that was seen, as in `shm::Urgent::seen`; 0: none yet.
    fn seen(&self) -> u64 {
        let urgent = self.mapped.region.urgent(self.slot());
        let is_marked = self.block().flags.load(Ordering::Relaxed) & flags::MARKED != 0;
        urgent
            .filter(|_| is_marked)
            .map_or(0, |urgent| urgent.seen[self.mapped.side.index()].load(Ordering::Relaxed))
    }

    /// Stores the last mark that was seen. The caller has locked the receiving side.
    fn note_seen(&self, word: u64) {
        if let Some(urgent) = self.mapped.region.urgent(self.slot()) {
            urgent.seen[self.mapped.side.index()].store(word, Ordering::Relaxed);
            self.block().flags.fetch_or(flags::MARKED, Ordering::Relaxed);
        }
    }

    /// Announces that the bytes published next end with an urgent byte, just before `position`.
    #[cold]
    pub fn announce_urgent(&self, position: u64) {
        urgent::announce(&self.mapped.region, self.mapped.side, self.slot(), position);
        if !self.mapped.pair {
            self.advise(application_flags::URGENT, true);
        }
    }

    /// End of the urgent bytes of the other side (the position behind the last one); 0: there were none.
    pub fn urgent_mark(&self) -> u64 {
        urgent::up(&self.mapped.region, self.mapped.side.other(), self.slot()).unwrap_or(0)
    }

    /// The urgent data for a reader at position `tail`.
    fn urgent_from(&self, tail: u64) -> Urgent {
        let word = self.seen();
        let (seen, is_taken) = (word >> 1, word & TAKEN != 0);
        let up = urgent::up(&self.mapped.region, self.mapped.side.other(), self.slot()).unwrap_or(0)
            & (u64::MAX >> 1);
        if up <= seen {
            // Nothing new; the pointer never moves back.
            return Urgent { tail, mark: mark(seen, tail), is_taken, word };
        }
        // A reader at the byte of the former mark would now read it in the stream, though it was meant to be read ahead: skip it.
        let is_late = seen.checked_sub(1) == Some(tail) && !self.is_inline() && self.head() != tail;
        let tail = tail + u64::from(is_late);
        Urgent { tail, mark: mark(up, tail), is_taken: false, word: up << 1 }
    }

    fn head(&self) -> u64 {
        // Acquire: as in `readable`.
        self.halves().1.tx_head.load(Ordering::Acquire)
    }

    fn urgent_now(&self) -> Urgent {
        self.urgent_from(self.block().rx_tail.load(Ordering::Relaxed))
    }

    /// For a reader at `at`, which has read bytes before if `has_read`: the position to continue at, and how many bytes it may read there.
    #[cold]
    pub fn up_to_mark(&self, at: u64, has_read: bool, peek: bool) -> (u64, usize) {
        let found = self.urgent_from(at);
        if has_read && found.tail != at {
            // A new mark has just come: the next read skips the one before.
            return (at, 0);
        }
        if !peek {
            self.note_seen(found.word);
        }
        match found.mark {
            Some(mark) if mark > found.tail => {
                (found.tail, usize::try_from(mark - found.tail).unwrap_or(usize::MAX))
            }
            Some(_) if has_read => (found.tail, 0),
            // The urgent byte may be announced before it has arrived; then the reader stays in front of it.
            Some(mark) if !self.is_inline() && self.is_here(mark) => (mark + 1, usize::MAX),
            _ => (found.tail, usize::MAX),
        }
    }

    /// `recv` with `MSG_OOB`.
    ///
    /// # Errors
    /// EINVAL when there is no urgent byte, or it was read, or it is one as any other (`SO_OOBINLINE`); EAGAIN when it is announced and has
    /// not arrived; ENOTCONN after a reset.
    pub fn pull_urgent(&self, buffers: &mut [&mut [u8]], peek: bool) -> Result<usize, Errno> {
        let _owned = own(&self.block().rx_lock, &self.mapped)?;
        let seen = self.peer_flags();
        let found = self.urgent_now();
        let Some(mark) = found.mark.filter(|_| !found.is_taken && !self.is_inline()) else {
            return Err(Errno::INVAL);
        };
        if self.is_over() {
            return Err(Errno::NOTCONN);
        }
        if !self.is_here(mark) {
            let is_end = seen & half_flags::FIN != 0 || self.state() & state::SHUT_RD != 0;
            return if is_end { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let there = readable(self.halves().1, mark, self.mapped.data_len()).map_err(|v| self.violated(v))?;
        let Some(there) = there else { return Err(Errno::AGAIN) };
        if !peek {
            if found.tail != self.block().rx_tail.load(Ordering::Relaxed) {
                self.skip_to(found.tail);
            }
            self.note_seen(found.word | TAKEN);
        }
        let Some(out) = buffers.iter_mut().find(|buffer| !buffer.is_empty()) else { return Ok(0) };
        let [(at, _), _] = there.ring.spans(mark, 1);
        self.mapped.region.read(self.mapped.side.other(), at, &mut out[..1]);
        Ok(1)
    }

    /// Passes over a byte that must not be read any more. The caller has locked the receiving side.
    fn skip_to(&self, tail: u64) {
        let (own, peer) = self.halves();
        self.block().rx_tail.store(tail, Ordering::Relaxed);
        if consumed(own, peer, tail) {
            self.tell();
        }
    }

    fn is_here(&self, mark: u64) -> bool {
        // A head behind the tail breaks the rules; a read detects that.
        mark < self.head()
    }

    /// `SIOCATMARK`: true when the next byte to read is the urgent one.
    #[must_use]
    pub fn is_at_mark(&self) -> bool {
        let found = self.urgent_now();
        found.mark == Some(found.tail)
    }

    /// True when a read with bytes in hand ends here: at the mark, or at a former one, whose byte the next read skips.
    pub(crate) fn ends_read(&self) -> bool {
        let tail = self.block().rx_tail.load(Ordering::Relaxed);
        let found = self.urgent_from(tail);
        found.tail != tail || found.mark == Some(tail)
    }

    /// Number of bytes that can be read before the mark, or in all without a mark (`FIONREAD`).
    #[must_use]
    pub fn unread_to_mark(&self) -> usize {
        let (unread, found) = (self.unread(), self.urgent_now());
        match found.mark.filter(|mark| self.is_here(*mark) && !self.is_inline()) {
            Some(mark) => unread.min((mark - found.tail) as usize),
            None => unread,
        }
    }

    /// Corrects `now`, the readiness of a reader to which less than `mark` bytes are no news, for urgent data.
    #[cold]
    pub fn urgent_readiness(&self, mut now: u32, mark: u64) -> u32 {
        let found = self.urgent_now();
        if found.mark.is_some_and(|mark| !found.is_taken && self.is_here(mark)) {
            now |= ready::PRI;
        }
        // The urgent byte does not count as data to read.
        let is_skipped = found.mark == Some(found.tail) && !self.is_inline();
        let next = found.tail + u64::from(is_skipped);
        if now & ready::RDHUP == 0 && !self.is_enough(self.head().saturating_sub(next), mark) {
            now &= !(ready::IN | ready::RDNORM);
        }
        now
    }
}

/// The mark before `up`, the end of the urgent bytes, for a reader at `tail`; `None` when the reader has passed it.
fn mark(up: u64, tail: u64) -> Option<u64> {
    up.checked_sub(1).filter(|mark| *mark >= tail)
}
