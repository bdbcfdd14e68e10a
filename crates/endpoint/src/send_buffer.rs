//! The limits of a send beside the memory of its ring: `SO_SNDBUF` (or a buffer that grows with the congestion window) and
//! `TCP_NOTSENT_LOWAT`.
//!
//! ```text
//!   acknowledged          sent             written                   unsent < lowat: more is taken
//!   ------|-----------------|-----------------|----                  2 * unsent < lowat: writable
//!         |<------------- queued ------------>|                      used < buffer: more is taken
//!                           |<---- unsent --->|                      buffer - used >= used / 2: writable
//! ```
//! Linux checks its bounds when it begins a new one of its buffers, and then fills that buffer. So bytes are taken here in units of the
//! *goal*, counted from what has been sent, and a send may exceed its bounds by less than one goal. "Used" is what is queued, plus the
//! bookkeeping that Linux needs for each goal of it. The service says how far it has sent, and what the goal is (`shm::Sending`).

use crate::stream::ready;
use crate::{Endpoint, flags, state};
use queue::stream::Sender;
use rustix::io::Errno;
use shm::Sending;
use shm::application_flags::WATCH;
use shm::half_flags::WANT_SPACE;
use std::sync::atomic::Ordering;

/// "The minimum (doubled) value for this option is 2048" (socket(7)); present kernels answer this value, in bytes.
pub const BUFFER_MIN: u32 = 4_608;

/// Bytes that each of Linux's buffers costs beside its data: `struct sk_buff`, room for headers, `struct skb_shared_info`.
const BOOKKEEPING: u64 = 1_280;

/// Size in bytes of Linux's buffers when nothing is sent meanwhile; after that many of them Linux handles what has come for the socket.
const BUFFER: u64 = 32_768;
const BEFORE_A_LOOK: u64 = 16;

/// The bounds of one send, in bytes. `buffer` and `lowat` are `u64::MAX` if they do not apply; `goal` 0: no unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    buffer: u64,
    lowat: u64,
    goal: u64,
    sent: u32,
    may_grow: bool,
}

/// Bytes written and not acknowledged. The subtraction wraps if a process has overwritten its own block; the send that follows resets the
/// connection.
fn queued(sender: &Sender) -> u64 {
    sender.head.wrapping_sub(sender.tail)
}

impl Bounds {
    /// Bytes of the buffer that `queued` bytes use, bookkeeping included.
    fn used(&self, queued: u64) -> u64 {
        let buffers = if self.goal > 0 { queued.div_ceil(self.goal) } else { 0 };
        queued.saturating_add(buffers.saturating_mul(BOOKKEEPING))
    }

    /// True when a send of `total` bytes may reach the bounds.
    fn is_near(&self, sender: &Sender, total: usize) -> bool {
        self.lowat < u64::MAX || self.used(queued(sender).saturating_add(total as u64)) >= self.buffer
    }

    /// Size of a ring that holds `total` bytes, or as much of them as the bounds allow; `None`: the buffer has no bound.
    pub fn most(&self, sender: &Sender, total: usize) -> Option<usize> {
        let whole = usize::try_from(self.buffer.saturating_add(self.goal)).unwrap_or(usize::MAX);
        let is_near = self.used(queued(sender).saturating_add(total as u64)) >= self.buffer;
        (self.buffer < u64::MAX).then_some(if is_near { whole } else { total })
    }

    /// True when the buffer grows while a thread waits for space, so a wish for space must be withdrawn when space was found.
    pub fn may_grow(&self) -> bool {
        self.may_grow
    }

    /// Bytes written and not yet sent, as far as the service has said; acknowledged bytes count as sent.
    fn unsent(&self, sender: &Sender) -> u64 {
        u64::from((sender.head as u32).wrapping_sub(self.sent)).min(queued(sender))
    }

    /// Bytes that a send may take now, before it checks the bounds again.
    pub fn room(&self, sender: &Sender) -> usize {
        let (used, unsent) = (self.used(queued(sender)), self.unsent(sender));
        let begun = if self.goal > 0 { unsent % self.goal } else { 0 };
        let room = if begun > 0 {
            self.goal - begun
        } else if used < self.buffer && unsent < self.lowat {
            if self.goal > 0 { self.goal } else { self.buffer - used }
        } else {
            0
        };
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Linux's `sk_stream_is_writeable`: a third of the buffer is free, and the unsent bytes are less than half of their limit.
    pub fn is_writable(&self, sender: &Sender) -> bool {
        let used = self.used(queued(sender));
        self.buffer.saturating_sub(used) >= used / 2
            && (self.lowat == u64::MAX || 2 * self.unsent(sender) < self.lowat)
    }
}

impl Endpoint {
    /// `SO_SNDBUF`: the kernel doubles the value for its bookkeeping; here all of it is room for bytes.
    pub fn set_buffer(&self, bytes: u32) {
        self.buffer.store(bytes.saturating_mul(2).max(BUFFER_MIN), Ordering::Relaxed);
    }

    /// `SO_SNDBUF` where the program has not set it: the size that the buffer has grown to; within one host the size that it may reach.
    pub fn grown_buffer(&self) -> Option<u32> {
        let is_set = self.buffer.load(Ordering::Relaxed) > 0;
        let grown = || match self.mapped.pair {
            true => self.mapped.host.ring_most(),
            false => Sending::unpack(self.halves().1.extra.load(Ordering::Acquire)).buffer,
        };
        if is_set || !self.is_open() { None } else { Some(grown()).filter(|bytes| *bytes > 0) }
    }

    /// The error of a send on a connection that is over or was shut down.
    #[cold]
    pub fn unsendable_since(&self, bits: u32) -> Errno {
        if bits & state::INTO_THE_VOID != 0 {
            // The program gets the pending error now; from here on the connection is over.
            self.note(state::OVER);
        }
        self.take_error().unwrap_or(Errno::PIPE)
    }

    /// The peer has closed both directions. Linux takes this send, or its first buffers, because it sees the peer's RST only after that.
    /// The RST is the pending error from here on, and the next send fails.
    #[cold]
    pub fn send_into_the_void(&self, total: usize) -> usize {
        if total > 0 {
            self.note(state::INTO_THE_VOID);
            self.block().error.store(libc::EPIPE as u32, Ordering::Release);
            // Watchers get no other news of this: wake them here.
            self.free();
        }
        total.min(self.room_before_reset())
    }

    /// ERR and HUP bits of a socket with a pending notice, or one that has sent to a closed peer.
    #[cold]
    pub fn void_readiness(&self, bits: u32) -> u32 {
        let pending = self.block().error.load(Ordering::Relaxed) != 0;
        let error = if pending || bits & state::NOTICE != 0 { ready::ERR } else { 0 };
        if bits & state::INTO_THE_VOID != 0 { error | ready::HUP } else { error }
    }

    /// Bytes that Linux takes of a send before it sees that the peer has closed.
    fn room_before_reset(&self) -> usize {
        let buffers = match u64::from(self.buffer.load(Ordering::Relaxed)) {
            0 => BEFORE_A_LOOK,
            own => own.div_ceil(BUFFER + BOOKKEEPING).min(BEFORE_A_LOOK),
        };
        (buffers * BUFFER) as usize
    }

    /// `TCP_NOTSENT_LOWAT` in bytes; 0: the system's default.
    pub fn set_lowat(&self, bytes: u32) {
        self.lowat.store(bytes, Ordering::Relaxed);
        if self.has_lowat() && !self.mapped.pair {
            self.watch_sending(true);
            // The wish for space makes the service say how far it has sent.
            self.starve();
            self.tell();
        }
    }

    fn has_lowat(&self) -> bool {
        self.lowat() < u32::MAX
    }

    #[inline]
    fn lowat(&self) -> u32 {
        match self.lowat.load(Ordering::Relaxed) {
            0 => self.mapped.host.not_sent_low_water(),
            own => own,
        }
    }

    /// The bounds of a send; `None`: only the ring bounds it. Between applications of one host all written bytes count as sent.
    #[inline]
    pub fn bounds(&self) -> Option<Bounds> {
        let (own, lowat) = (self.buffer.load(Ordering::Relaxed), self.lowat());
        if self.mapped.pair {
            let buffer = u64::from(own);
            return (own > 0).then_some(Bounds {
                buffer,
                lowat: u64::MAX,
                goal: 0,
                sent: 0,
                may_grow: false,
            });
        }
        // Acquire: pairs with the Release of the service's core.
        let told = Sending::unpack(self.halves().1.extra.load(Ordering::Acquire));
        let buffer = if own > 0 { own } else { told.buffer };
        if buffer == 0 && lowat == u32::MAX {
            return None;
        }
        Some(Bounds {
            buffer: if buffer == 0 { u64::MAX } else { u64::from(buffer) },
            lowat: if lowat == u32::MAX { u64::MAX } else { u64::from(lowat) },
            goal: u64::from(told.goal),
            sent: told.sent,
            may_grow: own == 0 && buffer > 0,
        })
    }

    /// Before a send of `total` bytes: if it may reach the bounds, asks the service to keep `shm::Sending` up to date.
    pub fn note_bounds(&self, bounds: &Bounds, sender: &Sender, total: usize) {
        self.watch_sending(!self.mapped.pair && bounds.is_near(sender, total));
    }

    fn watch_sending(&self, on: bool) {
        let is_set = self.halves().0.extra.load(Ordering::Relaxed) & WATCH != 0;
        if is_set != on {
            self.advise(WATCH, on);
        }
    }

    /// Asks the other side to tell when there is space, or when it has sent.
    pub fn starve(&self) {
        let flags = &self.halves().0.flags;
        if flags.load(Ordering::SeqCst) & WANT_SPACE == 0 {
            flags.fetch_or(WANT_SPACE, Ordering::SeqCst);
        }
        let before = self.block().flags.fetch_or(flags::FULL, Ordering::Relaxed);
        if before & flags::FULL == 0 {
            self.stall();
        }
    }

    /// Bytes that a send may hand over before the service has to run; for the simulator, in which it runs between them.
    #[must_use]
    pub fn step(&self, total: usize) -> usize {
        let sender = self.sender();
        match self.bounds() {
            None => usize::MAX,
            Some(bounds) => {
                self.note_bounds(&bounds, &sender, total);
                if bounds.is_near(&sender, total) { bounds.room(&sender).max(1) } else { usize::MAX }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(written: u64, acknowledged: u64) -> Sender {
        Sender { head: written, tail: acknowledged, ..Sender::default() }
    }

    #[test]
    fn a_send_fills_what_it_has_begun_and_looks_at_its_bounds_before_the_next() {
        let bounds = |sent| Bounds { buffer: 50_000, lowat: u64::MAX, goal: 16_000, sent, may_grow: true };
        assert_eq!(bounds(0).room(&sender(0, 0)), 16_000);
        assert_eq!(bounds(10_000).room(&sender(16_000, 0)), 10_000);
        assert_eq!(bounds(10_000).room(&sender(42_000, 0)), 16_000);
        assert_eq!(bounds(10_000).room(&sender(58_000, 0)), 0);
        assert_eq!(bounds(10_000).room(&sender(58_000, 9_000)), 0);
        assert_eq!(bounds(26_000).room(&sender(58_000, 12_000)), 16_000);
        let most = |total| bounds(0).most(&sender(0, 0), total);
        assert_eq!((most(40_000), most(50_000)), (Some(40_000), Some(66_000)));
    }

    #[test]
    fn unsent_bytes_have_a_bound_of_their_own() {
        let bounds = |sent| Bounds { buffer: u64::MAX, lowat: 4_000, goal: 16_000, sent, may_grow: false };
        assert_eq!(bounds(10_000).room(&sender(26_000, 0)), 0);
        assert!(!bounds(24_000).is_writable(&sender(26_000, 0)));
        assert!(bounds(24_001).is_writable(&sender(26_000, 0)));
        // The service's position is old, but acknowledged bytes count as sent.
        assert!(bounds(10_000).is_writable(&sender(26_000, 25_000)));
        let wrapped = u64::from(u32::MAX) + 1_000;
        assert_eq!(bounds(500).unsent(&sender(wrapped, wrapped - 5_000)), 499);
    }

    #[test]
    fn a_third_of_the_buffer_makes_it_writable() {
        let bounds = Bounds { buffer: 42_000, lowat: u64::MAX, goal: 0, sent: 0, may_grow: false };
        assert!(!bounds.is_writable(&sender(30_000, 0)) && bounds.is_writable(&sender(28_000, 0)));
        assert_eq!((bounds.room(&sender(30_000, 0)), bounds.room(&sender(42_000, 0))), (12_000, 0));
    }
}
