//! Urgent data (`MSG_OOB`), as Linux reads RFC 9293 section 3.8.5: the last byte before the urgent pointer, the *mark*, may be read ahead
//! of its turn. A read ends in front of it; one that begins there skips it, unless `SO_OOBINLINE` makes it a byte as any other.
//!
//! ```text
//!    tail             mark                        head
//!  ----|---- a read ----[u]----- the next one -----|
//! ```
//! How far the urgent bytes reach is the sender's word. Which mark was seen last, and whether its byte was read, stands beside it
//! (`shm::Urgent`): whoever scribbles there moves a mark in the stream between the two, and nothing else.

use crate::link::{Link, flags, own, state};
use crate::stream::ready;
use queue::stream::{consumed, readable};
use queue::urgent;
use rustix::io::Errno;
use shm::{application_flags, half_flags};
use std::sync::atomic::Ordering;

/// Set in the word that is remembered when the byte at the mark was read; above it stands the position behind the mark.
const TAKEN: u64 = 1;

/// What there is of urgent data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Urgent {
    /// Where reading goes on.
    tail: u64,
    /// Where the urgent byte lies, unless reading has passed it.
    mark: Option<u64>,
    /// It was read ahead of its turn.
    is_taken: bool,
    /// All this as it is remembered.
    word: u64,
}

impl Link {
    /// `SO_OOBINLINE`.
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

    /// What was remembered; 0: nothing yet.
    fn seen(&self) -> u64 {
        let urgent = self.mapped.region.urgent(self.slot());
        let is_marked = self.block().flags.load(Ordering::Relaxed) & flags::MARKED != 0;
        urgent
            .filter(|_| is_marked)
            .map_or(0, |urgent| urgent.seen[self.mapped.side.index()].load(Ordering::Relaxed))
    }

    /// Remembers it. The receiving side is locked.
    fn note_seen(&self, word: u64) {
        if let Some(urgent) = self.mapped.region.urgent(self.slot()) {
            urgent.seen[self.mapped.side.index()].store(word, Ordering::Relaxed);
            self.block().flags.fetch_or(flags::MARKED, Ordering::Relaxed);
        }
    }

    /// The bytes that are published next end with an urgent one, in front of `position`.
    #[cold]
    pub(crate) fn announce_urgent(&self, position: u64) {
        urgent::announce(&self.mapped.region, self.mapped.side, self.slot(), position);
        if !self.mapped.pair {
            self.advise(application_flags::URGENT, true);
        }
    }

    /// How far the urgent bytes of the other side reach; 0: there were none.
    pub fn urgent_mark(&self) -> u64 {
        urgent::up(&self.mapped.region, self.mapped.side.other(), self.slot()).unwrap_or(0)
    }

    /// What there is for a reader that has come to `tail`.
    fn urgent_from(&self, tail: u64) -> Urgent {
        let word = self.seen();
        let (seen, is_taken) = (word >> 1, word & TAKEN != 0);
        let up = urgent::up(&self.mapped.region, self.mapped.side.other(), self.slot()).unwrap_or(0)
            & (u64::MAX >> 1);
        if up <= seen {
            // Nothing new; the pointer never moves back.
            return Urgent { tail, mark: mark(seen, tail), is_taken, word };
        }
        // A reader that still stands at the mark before would find there what it was meant to read ahead of its turn.
        let is_late = seen == tail + 1 && !self.is_inline() && self.head() != tail;
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

    /// A reader has come to `at`, and has found bytes before if `has_read`: where it goes on, and how many bytes it may read there.
    #[cold]
    pub(crate) fn up_to_mark(&self, at: u64, has_read: bool, peek: bool) -> (u64, usize) {
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
            // It may be announced and not here, when reading has come to it only now.
            Some(mark) if !self.is_inline() && self.is_here(mark) => (mark + 1, usize::MAX),
            _ => (found.tail, usize::MAX),
        }
    }

    /// `recv` with `MSG_OOB`.
    ///
    /// # Errors
    /// EINVAL when there is no urgent byte, or it was read, or is one as any other (`SO_OOBINLINE`); EAGAIN when it is announced and has
    /// yet to come; ENOTCONN after a reset.
    pub fn pull_urgent(&self, buffers: &mut [&mut [u8]], peek: bool) -> Result<usize, Errno> {
        let _owned = own(&self.block().rx_lock)?;
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

    /// Passes over a byte that is not read any more. The receiving side is locked.
    fn skip_to(&self, tail: u64) {
        let (own, peer) = self.halves();
        self.block().rx_tail.store(tail, Ordering::Relaxed);
        if consumed(own, peer, tail) {
            self.tell();
        }
    }

    fn is_here(&self, mark: u64) -> bool {
        // A head that is behind the tail breaks the rules, which is found when it is read.
        mark < self.head()
    }

    /// `SIOCATMARK`: the next byte to read is the urgent one.
    #[must_use]
    pub fn is_at_mark(&self) -> bool {
        let found = self.urgent_now();
        found.mark == Some(found.tail)
    }

    /// Bytes that can be read before the mark, or in all (`FIONREAD`).
    #[must_use]
    pub fn unread_to_mark(&self) -> usize {
        let (unread, found) = (self.unread(), self.urgent_now());
        match found.mark.filter(|mark| self.is_here(*mark) && !self.is_inline()) {
            Some(mark) => unread.min((mark - found.tail) as usize),
            None => unread,
        }
    }

    /// `now`, what the connection is ready for where `mark` bytes are news, with regard to urgent data.
    #[cold]
    pub(crate) fn urgent_readiness(&self, mut now: u32, mark: u64) -> u32 {
        let found = self.urgent_now();
        if found.mark.is_some_and(|mark| !found.is_taken && self.is_here(mark)) {
            now |= ready::PRI;
        }
        // An urgent byte alone is nothing to read.
        let is_skipped = found.mark == Some(found.tail) && !self.is_inline();
        let next = found.tail + u64::from(is_skipped);
        if now & ready::RDHUP == 0 && !self.is_enough(self.head().saturating_sub(next), mark) {
            now &= !(ready::IN | ready::RDNORM);
        }
        now
    }
}

/// The mark of a stream that is urgent up to `up`, for a reader that has come to `tail`.
fn mark(up: u64, tail: u64) -> Option<u64> {
    up.checked_sub(1).filter(|mark| *mark >= tail)
}
