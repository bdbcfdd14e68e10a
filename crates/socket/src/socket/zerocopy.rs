//! `MSG_ZEROCOPY`: what an accelerated socket sends is always copied, and the error queue says so, as Linux's does where it has
//! to copy. The buffer is the program's again when the send returns; the notice is there at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts the sends of a socket that need a completion notice. Sends are numbered from 0, modulo 2^32.
#[derive(Debug, Default)]
pub struct Notices {
    /// True while `SO_ZEROCOPY` is on.
    on: AtomicBool,
    /// Number of sends with the flag (high 32 bits), and of those reported to the program (low 32 bits).
    counts: AtomicU64,
}

const fn halves(counts: u64) -> (u32, u32) {
    ((counts >> 32) as u32, counts as u32)
}

impl Notices {
    /// Sets the option `SO_ZEROCOPY`.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Notices for a socket accepted from the one that `self` belongs to: same option, no sends.
    #[cfg(not(loom))]
    pub fn fresh(&self) -> Self {
        Self { on: AtomicBool::new(self.on.load(Ordering::Relaxed)), counts: AtomicU64::new(0) }
    }

    /// Counts one send with `MSG_ZEROCOPY`. False: the option is off, and the flag has no effect.
    pub fn sent(&self) -> bool {
        let on = self.on.load(Ordering::Relaxed);
        if on {
            self.counts.fetch_add(1 << 32, Ordering::AcqRel);
        }
        on
    }

    /// True when there are sends to report.
    pub fn any(&self) -> bool {
        let (sent, told) = halves(self.counts.load(Ordering::Acquire));
        sent != told
    }

    /// Numbers of the first and the last send not yet reported; marks them as reported.
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
