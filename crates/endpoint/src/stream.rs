//! A connected socket: bytes in, bytes out, shutdown, and what it is ready for.

use crate::lock::own;
use crate::{Endpoint, Parts, flags, state};
use bitflags::bitflags;
use queue::Ring;
use queue::pages::class_of;
use queue::stream::{Sender, raise, readable};
use rustix::io::Errno;
use shm::half_flags::{FIN, READ_CLOSED, RELEASED, URGENT, WANT_SPACE};
use std::sync::atomic::{Ordering, fence};

/// Readiness bits, as epoll and poll number them.
pub mod ready {
    /// To read: bytes, the end of the stream, or an accepted connection.
    pub const IN: u32 = libc::EPOLLIN as u32;
    /// An urgent byte can be read.
    pub const PRI: u32 = libc::EPOLLPRI as u32;
    /// There is space to send.
    pub const OUT: u32 = libc::EPOLLOUT as u32;
    /// An error is pending.
    pub const ERR: u32 = libc::EPOLLERR as u32;
    /// Both directions are shut down.
    pub const HUP: u32 = libc::EPOLLHUP as u32;
    /// The peer sends no more.
    pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
    /// The same as [`IN`].
    pub const RDNORM: u32 = libc::EPOLLRDNORM as u32;
    /// The same as [`OUT`].
    pub const WRNORM: u32 = libc::EPOLLWRNORM as u32;
    /// Bits that are reported even if not asked for.
    pub const ALWAYS: u32 = ERR | HUP;
}

/// Result of a call that does not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// This many bytes were moved; for a receiver 0 means the end of the stream.
    Done(usize),
    /// Nothing can be done now: the caller waits.
    Wait,
}

/// How to receive: flags of `recv`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Leave the bytes in the stream (`MSG_PEEK`).
    pub peek: bool,
    /// Discard up to this many bytes instead of copying them (`MSG_TRUNC`); 0: copy.
    pub discard: usize,
}

bitflags! {
    /// Flags of `send` that concern the bytes of the call.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Said: i32 {
        /// More bytes follow at once, so a short segment may be held back.
        const MORE = libc::MSG_MORE;
        /// The last byte is urgent.
        const URGENT = libc::MSG_OOB;
        /// The call does not wait for space.
        const AT_ONCE = libc::MSG_DONTWAIT;
    }
}

/// True when a sender that found its ring full is told of space: a quarter of the ring is free.
#[inline]
pub const fn is_enough_space(free: u64, ring: Ring) -> bool {
    free >= ring.size() / 4
}

/// One call that sends.
#[derive(Clone, Copy)]
struct Call<'a> {
    buffers: &'a [&'a [u8]],
    /// Bytes of the buffers that were sent before.
    skip: usize,
    /// Bytes of the buffers behind these.
    total: usize,
    /// Bytes after which the call ends, at most `total`.
    end: usize,
    said: Said,
    /// The bytes may be held back.
    holds: bool,
}

/// Long rings leave one in this many pages free: then programs with much unread data leave memory for those that send little.
pub const LEAVING: usize = 4;

impl Endpoint {
    /// Sends as much as fits of `buffers`, without their first `skip` bytes.
    ///
    /// # Errors
    /// The pending error, then EPIPE.
    pub fn push(&self, buffers: &[&[u8]], skip: usize, said: Said) -> Result<Progress, Errno> {
        self.push_some(buffers, skip, said, usize::MAX)
    }

    /// [`push`](Self::push) of at most `most` bytes; the caller continues with the rest.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_some(
        &self,
        buffers: &[&[u8]],
        skip: usize,
        said: Said,
        most: usize,
    ) -> Result<Progress, Errno> {
        let parts = self.parts();
        let Parts { block: b, own: half, peer } = parts;
        let _owned = own(&b.tx_lock, &self.mapped).map_err(|e| self.unsendable(e))?;
        let seen = self.flags_of(peer);
        let bits = b.state.load(Ordering::Relaxed);
        let mut holds = said.contains(Said::MORE);
        let unusual = state::OVER | state::SHUT_WR | state::INTO_THE_VOID | state::HOLDS;
        if bits & unusual != 0 {
            if bits & (state::OVER | state::SHUT_WR | state::INTO_THE_VOID) != 0 {
                return Err(self.unsendable_since(bits));
            }
            holds |= bits & state::HOLDS != 0;
        }
        let total = buffers.iter().map(|x| x.len()).sum::<usize>() - skip;
        let holds = holds && self.holds_itself(seen);
        let is_void = seen & FIN != 0 && seen & (RELEASED | READ_CLOSED) != 0;
        if is_void && !(holds && self.stays(total, said)) {
            return Ok(Progress::Done(self.send_into_the_void(total)));
        }
        if bits & state::OPEN == 0 && !self.is_open() {
            return Ok(Progress::Wait);
        }
        let is_released = self.say_more(half, said.contains(Said::MORE));
        if total == 0 {
            // Nothing to send: no space is needed, and the ring is kept.
            drop(_owned);
            if is_released {
                self.tell();
            }
            return Ok(Progress::Done(0));
        }
        let mut sender = Sender::of(b, self.mapped.data_len());
        let call = Call { buffers, skip, total, end: total.min(most), said, holds };
        let result = self.fill(parts, &mut sender, call);
        sender.keep(b);
        let is_news = !holds || self.settle(&sender, said);
        drop(_owned);
        match result {
            Ok(0) if total > 0 => {
                self.tell_reader();
                Ok(Progress::Wait)
            }
            Ok(n) => {
                if n > 0 && is_news || is_released {
                    self.tell_of(peer);
                }
                Ok(Progress::Done(n))
            }
            Err(e) => Err(e),
        }
    }

    fn fill(
        &self,
        Parts { block: b, own: half, peer }: Parts<'_>,
        sender: &mut Sender,
        Call { buffers, skip, total, end, said, holds }: Call<'_>,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        loop {
            if let Some(ring) = sender.update(peer).map_err(|v| self.violated(v))? {
                self.part_with(ring, sender);
            }
            let bounds = self.bounds();
            let room = bounds.map_or(usize::MAX, |bounds| {
                self.note_bounds(&bounds, sender, total - done);
                bounds.room(sender)
            });
            let left = room.min(end - done);
            if left > sender.space() {
                let most = bounds.and_then(|bounds| bounds.most(sender, total - done));
                self.widen(sender, total - done, most);
            }
            let n = left.min(sender.space());
            if n > 0 {
                self.copy_in(sender, buffers, skip + done, n);
                let is_urgent = said.contains(Said::URGENT) && done + n == total;
                if !(is_urgent || holds) {
                    sender.publish(half, n);
                } else {
                    self.publish_otherwise(sender, n, is_urgent, holds);
                }
                done += n;
            }
            if done == end {
                if b.flags.load(Ordering::Relaxed) & flags::FULL != 0 {
                    self.want_no_space();
                }
                return Ok(done);
            }
            if n > 0 && n == left {
                // The bounds allowed only this piece: look at them again for the next.
                continue;
            }
            // Space comes only when the other side reads, so what is held back must be published.
            if holds && sender.let_go(half) {
                self.tell();
            }
            // A longer ring helps only if space in the ring is missing, not if the bounds stop the send.
            if said.contains(Said::AT_ONCE) && left > n && self.lengthen_at_once(sender, done, total - done) {
                continue;
            }
            let mut old = None;
            let waits =
                sender.want_space(half, peer, |ring| old = Some(ring)).map_err(|v| self.violated(v))?;
            if let Some(ring) = old {
                self.part_with(ring, sender);
            }
            if waits && room == 0 && self.bounds().is_none_or(|bounds| bounds.room(sender) > 0) {
                // Bytes were sent, or the buffer has grown, before the other side saw WANT_SPACE: try again.
                b.flags.fetch_or(flags::FULL, Ordering::Relaxed);
                continue;
            }
            let is_starved = !waits && left > 0 && sender.ring.is_none();
            if is_starved {
                self.ring_ourselves();
            }
            if waits || is_starved {
                b.flags.fetch_or(flags::FULL, Ordering::Relaxed);
                if said.contains(Said::AT_ONCE) {
                    self.note(state::TOLD_FULL);
                }
                self.stall();
                return Ok(done);
            }
        }
    }

    /// A send has found space: clears the wish for it.
    pub(crate) fn want_no_space(&self) {
        if self.state() & state::TOLD_FULL != 0 {
            self.forget(state::TOLD_FULL);
        }
        self.block().flags.fetch_and(!flags::FULL, Ordering::Relaxed);
        self.halves().0.flags.fetch_and(!WANT_SPACE, Ordering::SeqCst);
        // The consumer sends no news of space from here on: other waiters of this socket must hear it from us.
        self.free();
    }

    /// Lends a first ring, or a larger one, for `left` bytes; if `bound` says how much the send bounds allow, large enough for that at
    /// once. Otherwise rings grow step by step, so that a stream with a fast reader has a short ring.
    #[inline]
    pub fn widen(&self, sender: &mut Sender, left: usize, bound: Option<usize>) {
        if !sender.may_lend() {
            return;
        }
        let most = self.mapped.host.class_most();
        let best = match sender.ring {
            None => {
                let least = self.mapped.host.class_least();
                class_of(bound.unwrap_or(left)).max(least).min(most)
            }
            Some(ring) => {
                let size = ring.size() as usize;
                // A reader that waits for more bytes than are there (`SO_RCVLOWAT`) must find them all in this ring.
                let stepwise = || (size * 4).min(left).max(self.wanted_there()).max(self.held_at_most());
                let larger = bound.unwrap_or_else(stepwise).max(size * 2);
                let class = class_of(larger).min(most);
                if class_of(size) >= class && !(sender.is_empty() && sender.space() == 0) {
                    return;
                }
                class
            }
        };
        let least = sender.ring.map_or(0, |ring| class_of(ring.size() as usize) + 1);
        if let Some(ring) = self.lend_longest(least, best, LEAVING)
            && let Some(before) = sender.lend(self.halves().0, ring)
        {
            self.part_with(before, sender);
        }
    }

    fn copy_in(&self, sender: &Sender, buffers: &[&[u8]], mut skip: usize, mut n: usize) {
        let Some(ring) = sender.ring else { return };
        let mut at = sender.head;
        for buffer in buffers {
            let from = skip.min(buffer.len());
            skip -= from;
            let piece = &buffer[from..];
            let piece = &piece[..piece.len().min(n)];
            if piece.is_empty() {
                continue;
            }
            let [(a, an), (b, bn)] = ring.spans(at, piece.len());
            self.mapped.region.write(self.mapped.side, a, &piece[..an]);
            if bn > 0 {
                self.mapped.region.write(self.mapped.side, b, &piece[an..]);
            }
            at = at.wrapping_add(piece.len() as u64);
            n -= piece.len();
        }
    }

    /// Receives what is there into `buffers`, behind their first `skip` bytes.
    ///
    /// # Errors
    /// The pending error, once all bytes before it are read.
    #[inline]
    pub fn pull(&self, buffers: &mut [&mut [u8]], skip: usize, how: How) -> Result<Progress, Errno> {
        if let [buffer] = buffers
            && skip == 0
            && how == How::default()
            && let Some(n) = self.pull_piece(buffer)
        {
            return Ok(Progress::Done(n));
        }
        self.pull_pieces(buffers, skip, how)
    }

    /// The general case of [`pull`](Self::pull): any buffers, pieces and flags.
    fn pull_pieces(&self, buffers: &mut [&mut [u8]], skip: usize, how: How) -> Result<Progress, Errno> {
        let parts = self.parts();
        let Parts { block: b, peer, .. } = parts;
        let owned = match own(&b.rx_lock, &self.mapped) {
            Ok(owned) => owned,
            Err(e) => return self.unreadable(e),
        };
        let seen = self.flags_of(peer);
        let tail = b.rx_tail.load(Ordering::Relaxed);
        let capacity = buffers.iter().map(|x| x.len()).sum::<usize>().saturating_sub(skip);
        let wanted = if how.discard > 0 { how.discard } else { capacity };
        let (mut start, mut now, mut end) = (tail, tail, tail.saturating_add(wanted as u64));
        let (mut drained, mut is_useful, mut ends_ring) = (false, true, false);
        while now < end {
            let found = readable(peer, now, self.mapped.data_len()).map_err(|v| self.violated(v))?;
            let Some(r) = found else { break };
            let mut n = r.len.min((end - now) as usize);
            // Loaded after the head: then a mark that lies before the head is seen with it.
            if peer.flags.load(Ordering::Relaxed) & URGENT != 0 {
                let (at, most) = self.up_to_mark(now, now > start || skip > 0, how.peek);
                if at != now {
                    // Nothing was read yet, so this read begins behind the mark.
                    (start, now, end) = (at, at, at.saturating_add(wanted as u64));
                    continue;
                }
                n = n.min(most);
                if n == 0 {
                    break;
                }
            }
            if how.discard == 0 {
                self.copy_out(buffers, skip + (now - start) as usize, r.ring.spans(now, n));
            }
            now += n as u64;
            drained = n == r.total;
            ends_ring |= n == r.len;
            let left = (r.len - n) as u64;
            // A sender that waits for space would find too little of it.
            is_useful =
                drained || r.len < r.total || is_enough_space(r.ring.size().saturating_sub(left), r.ring);
        }
        if now != tail && !how.peek {
            let wants = self.consume(parts, tail..now, ends_ring) && (is_useful || !self.mapped.pair);
            drop(owned);
            self.after_pull(parts, wants, drained);
        }
        if now == start {
            self.nothing(seen, start < end)
        } else {
            Ok(Progress::Done((now - start) as usize))
        }
    }

    /// The result of a receive that found no byte; `has_looked`: false for one that has no room for any.
    fn nothing(&self, seen: u32, has_looked: bool) -> Result<Progress, Errno> {
        if !has_looked {
            let tail = self.block().rx_tail.load(Ordering::Relaxed);
            let found = readable(self.halves().1, tail, self.mapped.data_len());
            if found.map_err(|v| self.violated(v))?.is_some() {
                return Ok(Progress::Done(0));
            }
        }
        if seen & FIN != 0 {
            return Ok(Progress::Done(0));
        }
        if let Some(e) = self.take_error() {
            return Err(e);
        }
        if self.state() & (state::OVER | state::SHUT_RD) != 0 {
            return Ok(Progress::Done(0));
        }
        Ok(Progress::Wait)
    }

    fn copy_out(&self, buffers: &mut [&mut [u8]], mut skip: usize, spans: queue_spans::Spans) {
        let side = self.mapped.side.other();
        let mut spans = spans.into_iter();
        let (mut at, mut left) = spans.next().unwrap_or((0, 0));
        for buffer in buffers {
            let from = skip.min(buffer.len());
            skip -= from;
            let mut room = &mut buffer[from..];
            while !room.is_empty() {
                if left == 0 {
                    match spans.next() {
                        Some((a, n)) if n > 0 => (at, left) = (a, n),
                        _ => return,
                    }
                }
                let n = left.min(room.len());
                let (piece, rest) = room.split_at_mut(n);
                self.mapped.region.read(side, at, piece);
                (at, left, room) = (at + n, left - n, rest);
            }
        }
    }

    /// Number of unread bytes (`FIONREAD`).
    #[must_use]
    pub fn unread(&self) -> usize {
        let tail = self.block().rx_tail.load(Ordering::Relaxed);
        match readable(self.halves().1, tail, self.mapped.data_len()) {
            Ok(Some(r)) => r.total,
            _ => 0,
        }
    }

    /// Number of unread bytes, plus 1 for the end of the stream, which has a sequence number on Linux (`TCP_INQ`).
    #[must_use]
    pub fn left(&self) -> usize {
        let is_end = self.stream_readiness() & ready::RDHUP != 0;
        self.unread() + usize::from(is_end)
    }

    /// Number of bytes that the other side has not consumed (`SIOCOUTQ`).
    #[must_use]
    pub fn unsent(&self) -> usize {
        let head = self.block().tx_head.load(Ordering::Relaxed);
        let tail = self.halves().1.rx_tail.load(Ordering::Acquire);
        head.saturating_sub(tail).min(2 * u64::from(base::limits::RING_MAX)) as usize
    }

    /// `shutdown`; `how`: `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
    ///
    /// # Errors
    /// ENOTCONN when there is no connection any more, EINVAL for another `how`.
    pub fn shutdown(&self, how: i32) -> Result<(), Errno> {
        match how {
            libc::SHUT_RD => self.shut(true, false),
            libc::SHUT_WR => self.shut(false, true),
            libc::SHUT_RDWR => self.shut(true, true),
            _ => Err(Errno::INVAL),
        }
    }

    /// `shutdown` of the receiving direction (`read`), the sending direction (`write`), or both.
    ///
    /// # Errors
    /// ENOTCONN when there is no connection any more.
    pub fn shut(&self, read: bool, write: bool) -> Result<(), Errno> {
        if self.is_elsewhere() {
            return Err(Errno::NOTCONN);
        }
        let _ = self.peer_flags();
        if self.is_over() || self.is_closed() {
            if self.is_unconnected() {
                self.note_shut(read, write);
            }
            return Err(Errno::NOTCONN);
        }
        if read {
            self.note(state::SHUT_RD);
            raise(self.halves().0, READ_CLOSED);
        }
        if write {
            let _owned = own(&self.block().tx_lock, &self.mapped)?;
            self.let_go_owned();
            self.note(state::SHUT_WR);
            self.end_stream();
        }
        self.tell();
        Ok(())
    }

    /// What the connection is ready for: bits of [`ready`].
    #[must_use]
    #[inline]
    pub fn stream_readiness(&self) -> u32 {
        self.readiness_from(self.low_water())
    }

    /// [`Self::stream_readiness`] for a reader to which less than `mark` bytes are no news.
    #[inline]
    pub fn readiness_from(&self, mark: u64) -> u32 {
        let seen = self.peer_flags();
        let b = self.block();
        let bits = b.state.load(Ordering::Relaxed);
        if bits & state::OVER != 0 {
            if bits & state::UNCONNECTED != 0 {
                return self.unconnected_readiness();
            }
            let pending = b.error.load(Ordering::Relaxed) != 0;
            let error = if pending || bits & state::NOTICE != 0 { ready::ERR } else { 0 };
            return error
                | ready::HUP
                | ready::IN
                | ready::RDNORM
                | ready::RDHUP
                | ready::OUT
                | ready::WRNORM;
        }
        if bits & state::OPEN == 0 && !self.is_open() {
            return 0;
        }
        let peer = self.halves().1;
        let mut now = 0;
        if seen & FIN != 0 || bits & state::SHUT_RD != 0 {
            now |= ready::IN | ready::RDNORM | ready::RDHUP;
        } else if self.is_enough(
            peer.tx_head.load(Ordering::Acquire).wrapping_sub(b.rx_tail.load(Ordering::Relaxed)),
            mark,
        ) {
            now |= ready::IN | ready::RDNORM;
        }
        if (seen & FIN != 0 || bits & state::SHUT_RD != 0) && bits & state::SHUT_WR != 0 {
            now |= ready::HUP;
        }
        if bits & (state::INTO_THE_VOID | state::NOTICE) != 0 {
            now |= self.void_readiness(bits);
        }
        if bits & state::SHUT_WR != 0 || self.has_space() {
            now |= ready::OUT | ready::WRNORM;
        }
        // Loaded after the head, as a read does.
        if peer.flags.load(Ordering::Relaxed) & URGENT != 0 { self.urgent_readiness(now, mark) } else { now }
    }

    /// True unless the send bounds forbid it, or a send found the ring full and not enough has become free since.
    fn has_space(&self) -> bool {
        let b = self.block();
        let is_full = b.flags.load(Ordering::Relaxed) & flags::FULL != 0;
        let bounds = self.bounds();
        if !is_full && bounds.is_none() {
            return true;
        }
        let Ok(owned) = own(&b.tx_lock, &self.mapped) else { return false };
        let mut sender = self.sender();
        let Ok(mut old) = sender.update(self.halves().1) else { return true };
        let mut is_starved = false;
        let mut enough = !is_full
            || sender.is_empty()
            || sender.ring.is_some_and(|ring| is_enough_space(sender.space() as u64, ring));
        if bounds.is_some_and(|bounds| !bounds.is_writable(&sender)) {
            // As the kernel's poll: the caller now waits for space. The second look finds space that came before the other side saw that.
            self.starve();
            fence(Ordering::SeqCst);
            if let Ok(ring) = sender.update(self.halves().1) {
                old = old.or(ring);
            }
            enough = self.bounds().is_none_or(|bounds| bounds.is_writable(&sender));
            is_starved = !enough;
        }
        self.store(&sender);
        if enough && is_full && bounds.is_some_and(|bounds| bounds.may_grow()) {
            self.want_no_space();
        }
        drop(owned);
        old.into_iter().for_each(|ring| self.mapped.give_back(ring));
        if is_starved {
            self.tell_reader();
        }
        // FULL stays set until a send has used the space: other threads may wait for the same news.
        enough
    }
}

/// A name for the type of a ring's spans.
mod queue_spans {
    /// Two pieces of a range in a ring, each as `(offset, length)`; the second is empty unless the range wraps.
    pub type Spans = [(usize, usize); 2];
}

#[cfg(test)]
#[path = "stream_tests.rs"]
pub mod tests;
#[cfg(test)]
#[path = "urgent_tests.rs"]
mod urgent_tests;
