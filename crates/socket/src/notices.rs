//! `MSG_ZEROCOPY`: what an accelerated socket sends is always copied, and the error queue says so, as Linux's does where it has
//! to copy. The buffer is the program's again when the send returns; the notice is there at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The sends that a socket owes a notice for. They are numbered from 0; the number after 2^32 - 1 is 0.
#[derive(Debug, Default)]
pub struct Notices {
    /// `SO_ZEROCOPY`.
    on: AtomicBool,
    /// How many have been sent (high half), and told of (low half).
    counts: AtomicU64,
}

const fn halves(counts: u64) -> (u32, u32) {
    ((counts >> 32) as u32, counts as u32)
}

impl Notices {
    /// Sets `SO_ZEROCOPY`.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Those of a socket accepted from the one that these belong to.
    #[cfg(not(loom))]
    pub fn fresh(&self) -> Self {
        Self { on: AtomicBool::new(self.on.load(Ordering::Relaxed)), counts: AtomicU64::new(0) }
    }

    /// One more send with the flag. False: without the option the flag means nothing.
    pub fn sent(&self) -> bool {
        let on = self.on.load(Ordering::Relaxed);
        if on {
            self.counts.fetch_add(1 << 32, Ordering::AcqRel);
        }
        on
    }

    /// True when there is something to tell.
    pub fn any(&self) -> bool {
        let (sent, told) = halves(self.counts.load(Ordering::Acquire));
        sent != told
    }

    /// The first and the last of the sends not told of yet; from now on they are.
    pub fn take(&self) -> Option<(u32, u32)> {
        let tell = |counts: u64| {
            let (sent, told) = halves(counts);
            (sent != told).then_some(counts & !u64::from(u32::MAX) | u64::from(sent))
        };
        let before = self.counts.fetch_update(Ordering::AcqRel, Ordering::Acquire, tell).ok()?;
        let (sent, told) = halves(before);
        Some((told, sent.wrapping_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_send_is_told_of_once_and_numbers_go_round() {
        let notices = Notices::default();
        assert!(!notices.sent() && !notices.any() && notices.take().is_none(), "the option is off");
        notices.switch(true);
        notices.counts.store(u64::from(u32::MAX) << 32 | u64::from(u32::MAX), Ordering::Relaxed);
        assert!(notices.sent() && notices.sent() && notices.any());
        assert_eq!(notices.take(), Some((u32::MAX, 0)));
        assert!(notices.take().is_none() && !notices.any());
        assert!(notices.sent());
        assert_eq!(notices.take(), Some((1, 1)));
    }
}
