//! `SO_RCVLOWAT`, the low-water mark: so many bytes must be there before a reader is told, and before a receive that waits returns.
//!
//! The reader compares with the number in its block. Its half tells the sender that number, rounded up to a power of two. A sender without
//! memory for so many bytes tells the reader, which must make do with what is there, as on Linux where the window is closed.

use crate::stream::ready;
use crate::{Endpoint, flags};
use queue::stream::raise;
use shm::half_flags::{LOW_WATER, WANT_SPACE};
use shm::{low_water, low_water_flags};
use std::sync::atomic::Ordering;

/// The largest mark that a block has room for, bytes; Linux's own limit is half of what a receive buffer may grow to.
const MARK_MAX: u32 = u32::MAX >> flags::MARK_SHIFT;

/// How far a blocking receive has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SoFar {
    /// Bytes received so far.
    pub done: usize,
    /// Of these, bytes that are still there (`MSG_PEEK`).
    pub peeked: usize,
}

impl Endpoint {
    /// `SO_RCVLOWAT`, as the kernel has capped it. Afterwards the caller makes waiting threads look again.
    pub fn set_low_water(&self, bytes: u32) {
        let mark = if bytes > 1 { bytes.min(MARK_MAX) } else { 0 };
        let below = (1 << flags::MARK_SHIFT) - 1;
        let set = |flags: u32| Some(flags & below | mark << flags::MARK_SHIFT);
        // `set` never returns `None`, so this cannot fail.
        let _ = self.block().flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
        if !self.has_moved() {
            let own = self.halves().0;
            own.flags.fetch_and(!LOW_WATER, Ordering::SeqCst);
            raise(own, low_water_flags(mark));
        }
    }

    /// The mark in bytes, at least 1.
    #[inline]
    pub fn low_water(&self) -> u64 {
        u64::from(self.block().flags.load(Ordering::Relaxed) >> flags::MARK_SHIFT).max(1)
    }

    /// True when fewer bytes are there than the mark: those that come are no news yet. `readiness`: as it is now.
    #[inline]
    pub fn is_held_back(&self, readiness: u32) -> bool {
        readiness & ready::IN == 0 && self.low_water() > 1
    }

    /// True when `unread` bytes reach the reader's `mark`, or the other side has no space for more.
    #[inline]
    pub fn is_enough(&self, unread: u64, mark: u64) -> bool {
        unread >= mark || unread > 0 && self.halves().1.flags.load(Ordering::SeqCst) & WANT_SPACE != 0
    }

    /// How many bytes a receive of `len` waits for; `all`: `MSG_WAITALL`.
    #[must_use]
    #[inline]
    pub fn target(&self, len: usize, all: bool) -> usize {
        let wanted = if all { len } else { len.min(self.low_water() as usize) };
        wanted.max(1)
    }

    /// There is no space for what this side sends: tells a reader that waits for more than is there, in vain.
    pub fn tell_reader(&self) {
        if self.wanted_there() > 1 {
            self.tell();
        }
    }

    /// The peer's mark in bytes, rounded up to a power of two.
    #[inline]
    pub fn wanted_there(&self) -> usize {
        low_water(self.halves().1.flags.load(Ordering::SeqCst)) as usize
    }
}

#[cfg(test)]
mod tests {
    use crate::Endpoint;
    use crate::low_water::SoFar;
    use crate::stream::tests::{ends, send, take};
    use crate::stream::{How, Progress, Said, ready};
    use shm::half_flags::WANT_SPACE;
    use std::sync::atomic::Ordering;

    fn is_ready(link: &Endpoint) -> bool {
        link.stream_readiness() & ready::IN != 0
    }

    #[test]
    fn a_reader_is_told_at_its_mark_and_at_the_end_of_the_stream() {
        let (a, b) = ends(5);
        b.set_low_water(4);
        send(&a, b"abc").unwrap();
        assert!(!is_ready(&b) && b.is_held_back(b.stream_readiness()));
        assert!(b.has_more(SoFar::default()), "a receive that waits takes what comes");
        assert!(!b.has_more(SoFar { done: 3, peeked: 3 }), "what it has seen is no news to it");
        send(&a, b"d").unwrap();
        assert!(is_ready(&b) && !b.is_held_back(b.stream_readiness()));
        assert!(b.has_more(SoFar { done: 3, peeked: 3 }));
        assert_eq!(take(&b, 2).unwrap(), b"ab");
        assert!(!is_ready(&b));
        b.set_low_water(2);
        assert!(is_ready(&b), "another mark");
        b.set_low_water(100);
        a.shut(false, true).unwrap();
        assert!(is_ready(&b));
    }

    #[test]
    fn a_receive_that_waits_wants_the_mark_or_all_it_has_room_for() {
        let (_, b) = ends(5);
        assert_eq!((b.target(9, false), b.target(9, true), b.target(0, true)), (1, 9, 1));
        b.set_low_water(4);
        assert_eq!((b.target(9, false), b.target(3, false), b.target(9, true)), (4, 3, 9));
        b.set_low_water(0);
        assert_eq!(b.target(9, false), 1);
    }

    #[test]
    fn a_mark_in_the_thousands_is_reached_by_small_sends() {
        let (a, b) = ends(5);
        b.set_low_water(100_000);
        for i in 0..1_000 {
            assert!(!is_ready(&b), "{i}");
            assert_eq!(send(&a, &[0; 100]), Ok(Progress::Done(100)));
        }
        assert!(is_ready(&b));
        assert_eq!(a.halves().0.flags.load(Ordering::Relaxed) & WANT_SPACE, 0, "there was space all along");
    }

    #[test]
    fn a_mark_beyond_all_memory_gives_way_when_the_sender_has_no_space() {
        let (a, b) = ends(5);
        b.set_low_water(16 << 20);
        let mut sent = 0;
        while let Ok(Progress::Done(n)) = send(&a, &[7; 30_000]) {
            sent += n;
        }
        assert_eq!((is_ready(&b), b.unread()), (true, sent));
        assert_eq!(take(&b, usize::from(u16::MAX)).unwrap().len(), usize::from(u16::MAX));
    }

    #[test]
    fn a_send_buffer_smaller_than_the_mark_is_no_deadlock() {
        let (a, b) = ends(5);
        a.set_buffer(5_000);
        b.set_low_water(20_000);
        let sent = match send(&a, &[7; 30_000]) {
            Ok(Progress::Done(n)) => n,
            other => panic!("{other:?}"),
        };
        assert!(sent < 20_000 && is_ready(&b), "{sent}");
        // No deadlock either for a sender that only polls for space.
        take(&b, sent).unwrap();
        send(&a, &vec![7; sent - 100]).unwrap();
        assert!(!is_ready(&b));
        assert_eq!(a.stream_readiness() & ready::OUT, 0);
        assert!(is_ready(&b));
    }

    #[test]
    fn an_urgent_byte_ahead_counts_for_nothing() {
        let (a, b) = ends(5);
        b.set_low_water(3);
        a.push(&[b"u"], 0, Said::URGENT).unwrap();
        send(&a, b"ab").unwrap();
        assert!(!is_ready(&b));
        send(&a, b"c").unwrap();
        assert!(is_ready(&b));
        let mut out = [0; 9];
        assert_eq!(b.pull(&mut [&mut out], 0, How::default()), Ok(Progress::Done(3)));
    }
}
