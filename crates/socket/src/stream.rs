//! A connected socket: bytes in, bytes out, shutdown, and what it is ready for.

use crate::link::{Link, flags, own, state};
use base::limits::RING_MIN;
use queue::pages::class_of;
use queue::stream::{Sender, consumed, raise, readable};
use rustix::io::Errno;
use shm::half_flags::{FIN, READ_CLOSED, RELEASED, RESET, URGENT, WANT_SPACE};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Readiness bits, as epoll and poll number them.
pub mod ready {
    /// Bytes, EOF or an accepted connection.
    pub const IN: u32 = libc::EPOLLIN as u32;
    /// An urgent byte.
    pub const PRI: u32 = libc::EPOLLPRI as u32;
    /// Space.
    pub const OUT: u32 = libc::EPOLLOUT as u32;
    /// A pending error.
    pub const ERR: u32 = libc::EPOLLERR as u32;
    /// Both directions are shut.
    pub const HUP: u32 = libc::EPOLLHUP as u32;
    /// The other side sends no more.
    pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
    /// As IN.
    pub const RDNORM: u32 = libc::EPOLLRDNORM as u32;
    /// As OUT.
    pub const WRNORM: u32 = libc::EPOLLWRNORM as u32;
    /// Always reported.
    pub const ALWAYS: u32 = ERR | HUP;
}

/// Longest ring a sender lends itself, log2 of its pages; set from the service's settings.
static CLASS_MOST: AtomicU32 = AtomicU32::new(8);

/// Shortest ring, as [`CLASS_MOST`]; set from the environment.
static CLASS_LEAST: AtomicU32 = AtomicU32::new(0);

/// From now on a sender's first ring has so many bytes at least, if there is room.
pub fn begin_rings(bytes: usize) {
    CLASS_LEAST.store(class_of(bytes) as u32, Ordering::Relaxed);
}

/// Takes over the service's limit for rings.
pub fn limit_rings(bytes: u32) {
    CLASS_MOST.store(class_of(bytes as usize) as u32, Ordering::Relaxed);
}

/// What became of a call that does not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// So many bytes; for a receiver 0 means EOF.
    Done(usize),
    /// None now; wait.
    Wait,
}

/// How to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Leave the bytes there (`MSG_PEEK`).
    pub peek: bool,
    /// Throw them away (`MSG_TRUNC`): so many.
    pub discard: usize,
}

/// What a call says about the bytes that it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Said {
    /// More follows at once (`MSG_MORE`).
    pub more: bool,
    /// A record ends with the last byte (`MSG_EOR`): no segment goes on behind it.
    pub ends_record: bool,
    /// The last byte is urgent (`MSG_OOB`).
    pub urgent: bool,
}

impl Said {
    /// By the flags of `send`.
    #[must_use]
    #[inline]
    pub const fn by(flags: i32) -> Self {
        Self {
            more: flags & libc::MSG_MORE != 0,
            ends_record: flags & libc::MSG_EOR != 0,
            urgent: flags & libc::MSG_OOB != 0,
        }
    }
}

impl Link {
    /// Sends what fits of `buffers` past their first `skip` bytes.
    ///
    /// # Errors
    /// The pending error, then EPIPE.
    pub fn push(&self, buffers: &[&[u8]], skip: usize, said: Said) -> Result<Progress, Errno> {
        self.push_some(buffers, skip, said, usize::MAX)
    }

    /// As [`push`](Self::push), `most` bytes at most: the next call goes on with the rest.
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
        let b = self.block();
        let _owned = own(&b.tx_lock)?;
        let seen = self.peer_flags();
        let bits = self.state();
        if bits & (state::OVER | state::SHUT_WR | state::INTO_THE_VOID) != 0 {
            if bits & state::INTO_THE_VOID != 0 {
                // The error is told; what is left is the end.
                self.note(state::OVER);
            }
            return Err(self.take_error().unwrap_or(Errno::PIPE));
        }
        let total = buffers.iter().map(|x| x.len()).sum::<usize>() - skip;
        if seen & FIN != 0 && seen & (RELEASED | READ_CLOSED) != 0 {
            // The peer has closed both ways. Linux takes this send; the peer's RST makes the next one fail.
            if total > 0 {
                self.note(state::INTO_THE_VOID);
            }
            return Ok(Progress::Done(total));
        }
        if bits & state::OPEN == 0 && !self.is_open() {
            return Ok(Progress::Wait);
        }
        let ends_record = said.ends_record && total > 0 && !self.mapped.pair;
        if ends_record && !self.has_record()? {
            return Ok(Progress::Wait);
        }
        let is_released = self.say_more(said.more);
        if total == 0 {
            // No space is asked for, and none is given up.
            drop(_owned);
            if is_released {
                self.tell();
            }
            return Ok(Progress::Done(0));
        }
        let mut sender = self.sender();
        let result = self.fill(&mut sender, buffers, skip, (total, total.min(most)), said.urgent);
        self.store(&sender);
        if ends_record && result == Ok(total) {
            self.end_record(sender.head);
        }
        drop(_owned);
        match result {
            Ok(0) if total > 0 => Ok(Progress::Wait),
            Ok(n) => {
                if n > 0 || is_released {
                    self.tell();
                }
                Ok(Progress::Done(n))
            }
            Err(e) => Err(e),
        }
    }

    fn fill(
        &self,
        sender: &mut Sender,
        buffers: &[&[u8]],
        skip: usize,
        (total, end): (usize, usize),
        urgent: bool,
    ) -> Result<usize, Errno> {
        let (half, peer) = self.halves();
        let mut done = 0;
        loop {
            if let Some(ring) = sender.update(peer).map_err(|v| self.violated(v))? {
                self.mapped.give_back(ring);
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
                if urgent && done + n == total {
                    self.announce_urgent(sender.head + n as u64);
                }
                sender.publish(half, n);
                done += n;
            }
            if done == end {
                if self.block().flags.load(Ordering::Relaxed) & flags::FULL != 0 {
                    self.want_no_space();
                }
                return Ok(done);
            }
            if n > 0 && n == left {
                // What comes next is another matter: the bounds are looked at again.
                continue;
            }
            let waits = sender
                .want_space(half, peer, |ring| self.mapped.give_back(ring))
                .map_err(|v| self.violated(v))?;
            if waits && room == 0 && self.bounds().is_none_or(|bounds| bounds.room(sender) > 0) {
                // It was sent, or the buffer has grown, before the wish was seen.
                self.block().flags.fetch_or(flags::FULL, Ordering::Relaxed);
                continue;
            }
            if waits {
                self.block().flags.fetch_or(flags::FULL, Ordering::Relaxed);
                self.stall();
                return Ok(done);
            }
        }
    }

    /// There is space: nobody waits for any.
    fn want_no_space(&self) {
        self.block().flags.fetch_and(!flags::FULL, Ordering::Relaxed);
        self.halves().0.flags.fetch_and(!WANT_SPACE, Ordering::SeqCst);
        // From here on the consumer tells nobody: others that wait for space must hear it from us.
        self.free();
    }

    /// A writer has waited for a while, and its peer reads nothing: as long a ring as `left` bytes need, or more, for what it sends next.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn lengthen(&self, left: usize) -> Result<(), Errno> {
        /// Linux's buffers take some 2.5 MB between two programs of a host.
        const LEAST: usize = 1 << 20;
        let _owned = own(&self.block().tx_lock)?;
        let mut sender = self.sender();
        let updated = sender.update(self.halves().1).map_err(|v| self.violated(v));
        if let Ok(Some(ring)) = updated {
            self.mapped.give_back(ring);
        }
        let bounds = self.bounds();
        let most = bounds.map_or(Some(left.max(LEAST)), |bounds| bounds.most(&sender, left));
        if updated.is_ok() {
            self.widen(&mut sender, left, most);
        }
        self.store(&sender);
        updated.map(drop)
    }

    /// Lends a ring, or a larger one, for `left` bytes; for `bound` at once where the send is bounded and that is near. Else rings grow
    /// step by step, so that a stream that is read at once has a short one.
    fn widen(&self, sender: &mut Sender, left: usize, bound: Option<usize>) {
        if !sender.may_lend() {
            return;
        }
        let most = CLASS_MOST.load(Ordering::Relaxed) as usize;
        let best = match sender.ring {
            None => {
                let least = CLASS_LEAST.load(Ordering::Relaxed) as usize;
                class_of(bound.unwrap_or(left)).max(least).min(most)
            }
            Some(ring) => {
                let size = ring.size() as usize;
                let larger = bound.unwrap_or_else(|| (size * 4).min(left)).max(size * 2);
                let class = class_of(larger).min(most);
                if class_of(size) >= class && !(sender.is_empty() && sender.space() == 0) {
                    return;
                }
                class
            }
        };
        let least = sender.ring.map_or(0, |ring| class_of(ring.size() as usize) + 1);
        for class in (least.min(best)..=best).rev() {
            let Some(ring) = self.lend(class) else { continue };
            if let Some(before) = sender.lend(self.halves().0, ring) {
                self.mapped.give_back(before);
            }
            return;
        }
    }

    fn lend(&self, class: usize) -> Option<queue::Ring> {
        if let Some(ring) = self.mapped.lend(class) {
            return Some(ring);
        }
        self.mapped.sweep();
        if !self.mapped.pair
            && let Some(client) = crate::client::present()
        {
            client.grow();
        }
        self.mapped.lend(class)
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
            at += piece.len() as u64;
            n -= piece.len();
        }
    }

    /// Receives what is there into `buffers` past their first `skip` bytes.
    ///
    /// # Errors
    /// The pending error once everything before it is read.
    pub fn pull(&self, buffers: &mut [&mut [u8]], skip: usize, how: How) -> Result<Progress, Errno> {
        let b = self.block();
        let owned = own(&b.rx_lock)?;
        let seen = self.peer_flags();
        let (half, peer) = self.halves();
        let tail = b.rx_tail.load(Ordering::Relaxed);
        let capacity = buffers.iter().map(|x| x.len()).sum::<usize>() - skip;
        let wanted = if how.discard > 0 { how.discard } else { capacity };
        let (mut start, mut now, mut end) = (tail, tail, tail + wanted as u64);
        let mut drained = false;
        while now < end {
            let found = readable(peer, now, self.mapped.data_len()).map_err(|v| self.violated(v))?;
            let Some(r) = found else { break };
            let mut n = r.len.min((end - now) as usize);
            // After the head: a mark that lies before it is seen with it.
            if peer.flags.load(Ordering::Relaxed) & URGENT != 0 {
                let (at, most) = self.up_to_mark(now, now > start || skip > 0, how.peek);
                if at != now {
                    // Nothing was read yet: what follows the mark is read instead.
                    (start, now, end) = (at, at, at + wanted as u64);
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
        }
        if now != tail && !how.peek {
            b.rx_tail.store(now, Ordering::Relaxed);
            let wants = consumed(half, peer, now);
            drop(owned);
            if wants {
                self.tell();
            }
            if drained {
                self.rest();
            }
        }
        if now == start { self.nothing(seen, wanted) } else { Ok(Progress::Done((now - start) as usize)) }
    }

    /// No byte was there: why, and what the call returns.
    fn nothing(&self, seen: u32, wanted: usize) -> Result<Progress, Errno> {
        if wanted == 0 && self.unread() > 0 {
            return Ok(Progress::Done(0));
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

    /// Everything was read. If everything we sent was read too, the connection is idle: an idle flow owns no ring.
    fn rest(&self) {
        let b = self.block();
        if b.tx_ring.load(Ordering::Relaxed) << 1 == 0 {
            return;
        }
        let Ok(_owned) = own(&b.tx_lock) else { return };
        let mut sender = self.sender();
        if let Ok(old) = sender.update(self.halves().1) {
            let ring = sender.give_back();
            self.store(&sender);
            old.into_iter().chain(ring).for_each(|ring| self.mapped.give_back(ring));
        }
    }

    /// Unread bytes (`FIONREAD`).
    #[must_use]
    pub fn unread(&self) -> usize {
        let tail = self.block().rx_tail.load(Ordering::Relaxed);
        match readable(self.halves().1, tail, self.mapped.data_len()) {
            Ok(Some(r)) => r.total,
            _ => 0,
        }
    }

    /// Unread bytes and, as on Linux, the end of the stream, which has a sequence number, too (`TCP_INQ`).
    #[must_use]
    pub fn left(&self) -> usize {
        let is_end = self.stream_readiness() & ready::RDHUP != 0;
        self.unread() + usize::from(is_end)
    }

    /// Bytes the other side has not consumed (`SIOCOUTQ`).
    #[must_use]
    pub fn unsent(&self) -> usize {
        let head = self.block().tx_head.load(Ordering::Relaxed);
        let tail = self.halves().1.rx_tail.load(Ordering::Acquire);
        head.saturating_sub(tail).min(2 * u64::from(base::limits::RING_MAX)) as usize
    }

    /// `shutdown`.
    ///
    /// # Errors
    /// ENOTCONN when there is no connection any more.
    pub fn shut(&self, read: bool, write: bool) -> Result<(), Errno> {
        if self.has_moved() {
            return Err(Errno::NOTCONN);
        }
        let _ = self.peer_flags();
        if self.is_over() || self.is_closed() {
            return Err(Errno::NOTCONN);
        }
        if read {
            self.note(state::SHUT_RD);
            raise(self.halves().0, READ_CLOSED);
        }
        if write {
            let _owned = own(&self.block().tx_lock)?;
            self.note(state::SHUT_WR);
            raise(self.halves().0, FIN);
        }
        self.tell();
        Ok(())
    }

    /// What a connection is ready for.
    #[must_use]
    #[inline]
    pub fn stream_readiness(&self) -> u32 {
        let seen = self.peer_flags();
        let bits = self.state();
        if bits & state::OVER != 0 {
            let pending = self.block().error.load(Ordering::Relaxed) != 0;
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
        let b = self.block();
        if seen & FIN != 0 || bits & state::SHUT_RD != 0 {
            now |= ready::IN | ready::RDNORM | ready::RDHUP;
        } else if peer.tx_head.load(Ordering::Acquire) != b.rx_tail.load(Ordering::Relaxed) {
            now |= ready::IN | ready::RDNORM;
        }
        if (seen & FIN != 0 || bits & state::SHUT_RD != 0) && bits & state::SHUT_WR != 0 {
            now |= ready::HUP;
        }
        if bits & (state::INTO_THE_VOID | state::NOTICE) != 0 {
            now |= if bits & state::INTO_THE_VOID != 0 { ready::HUP | ready::ERR } else { ready::ERR };
        }
        if bits & state::SHUT_WR != 0 || self.has_space() {
            now |= ready::OUT | ready::WRNORM;
        }
        // After the head, as a read does.
        if peer.flags.load(Ordering::Relaxed) & URGENT != 0 { self.urgent_readiness(now) } else { now }
    }

    /// True unless the bounds say no, or a send found no space and less than a quarter of the ring has become free since.
    fn has_space(&self) -> bool {
        let b = self.block();
        let is_full = b.flags.load(Ordering::Relaxed) & flags::FULL != 0;
        let bounds = self.bounds();
        if !is_full && bounds.is_none() {
            return true;
        }
        let Ok(owned) = own(&b.tx_lock) else { return false };
        let mut sender = self.sender();
        let Ok(mut old) = sender.update(self.halves().1) else { return true };
        let size = sender.ring.map_or(u64::from(RING_MIN), queue::Ring::size);
        let mut enough = !is_full || sender.is_empty() || sender.space() as u64 >= size / 4;
        if bounds.is_some_and(|bounds| !bounds.is_writable(&sender)) {
            // As the kernel's poll: from now on somebody waits. Once more, for what came before that was seen.
            self.starve();
            fence(Ordering::SeqCst);
            if let Ok(ring) = sender.update(self.halves().1) {
                old = old.or(ring);
            }
            enough = self.bounds().is_none_or(|bounds| bounds.is_writable(&sender));
        }
        enough = enough && !self.is_full_of_records(sender.tail);
        self.store(&sender);
        if enough && is_full && bounds.is_some_and(|bounds| bounds.may_grow()) {
            self.want_no_space();
        }
        drop(owned);
        old.into_iter().for_each(|ring| self.mapped.give_back(ring));
        // The wish for space stays until a send has used it: others may wait for the same news.
        enough
    }

    /// Ends the connection hard, keeping the socket (`connect` to `AF_UNSPEC`).
    pub fn reset(&self) {
        self.raise(RESET);
        self.note(state::OVER);
    }
}

/// The spans of a ring, named once.
mod queue_spans {
    /// `(offset, length)` twice.
    pub type Spans = [(usize, usize); 2];
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "urgent_tests.rs"]
mod urgent_tests;
