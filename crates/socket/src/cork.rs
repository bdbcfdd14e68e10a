//! What is held back: `TCP_CORK`, and `MSG_MORE` for what one call has sent. Over a port the service's TCP holds segments back, as it is
//! advised here. Within one host there are none: bytes that would not fill one are written and not announced (`queue::held`).
//!
//! As on Linux: whole segments go; a call that says nothing of more, the end of the stream, an application that waits for space, urgent
//! data, a cork taken away, and a `TCP_NODELAY` set anew let everything go; so does the service after 200 ms (`service::held`).

use crate::link::{Link, own, state};
use crate::locked;
use crate::stream::Said;
use queue::stream::{Sender, barrier};
use shm::Half;
use shm::application_flags::{CORK, MORE, NODELAY, PUSHED_SHIFT, QUICKACK};
use shm::half_flags::NEAR;
use std::sync::atomic::Ordering;

/// The largest segment between applications of one host: loopback's.
pub(crate) const LOOPBACK_MSS: u32 = 65_483;

impl Link {
    /// `TCP_QUICKACK`.
    pub fn set_quick_ack(&self, on: bool) {
        if self.advise(QUICKACK, on) != on && on {
            self.tell();
        }
    }

    /// `TCP_NODELAY`. As on Linux, setting it lets everything go that was sent so far, corked or not.
    pub fn set_no_delay(&self, on: bool) {
        if self.has_moved() {
            return;
        }
        if on {
            self.let_go();
        }
        if self.mapped.pair {
            return;
        }
        if on {
            let own = self.halves().0;
            let pushed = own.tx_head.load(Ordering::Relaxed) << PUSHED_SHIFT;
            let set = |extra: u64| Some(extra & u64::from(u32::MAX) | NODELAY | pushed);
            // It always says yes.
            let _ = own.extra.fetch_update(Ordering::AcqRel, Ordering::Relaxed, set);
            self.tell();
        } else {
            self.advise(NODELAY, false);
        }
    }

    /// `TCP_CORK`: partial segments wait.
    pub fn set_cork(&self, on: bool) {
        if on {
            self.note(state::CORKED);
        } else {
            self.let_go_and_forget(state::CORKED);
        }
        if self.mapped.pair {
            return;
        }
        if on {
            self.advise(CORK, true);
        } else {
            self.advise(CORK | MORE, false);
            self.tell();
        }
    }

    /// `MSG_MORE`, before the bytes are published. True: what the last call held back may go.
    #[inline]
    pub(crate) fn say_more(&self, own: &Half, on: bool) -> bool {
        let on = on && !self.mapped.pair;
        let is_set = own.extra.load(Ordering::Relaxed) & MORE != 0;
        if is_set != on {
            self.advise(MORE, on);
        }
        is_set && !on
    }

    /// Nothing follows what the last call sent with `MSG_MORE` after all.
    pub(crate) fn say_no_more(&self) {
        if self.say_more(self.halves().0, false) {
            self.tell();
        }
        if self.state() & state::CORKED == 0 {
            self.let_go();
        }
    }

    /// Whether bytes are held back here, and not by the service: the other side's flags say where they go. Who has locked itself in
    /// cannot ask the service to look at the time.
    #[cold]
    pub(crate) fn holds_itself(&self, seen: u32) -> bool {
        (self.mapped.pair || seen & NEAR != 0) && !locked::is_locked() || self.state() & state::HELD != 0
    }

    /// Instead of publishing `n` bytes: the last of them is urgent, or they are held back, or both.
    #[cold]
    pub(crate) fn publish_otherwise(&self, sender: &mut Sender, n: usize, is_urgent: bool, holds: bool) {
        if is_urgent {
            self.announce_urgent(sender.head + n as u64);
        }
        if holds {
            sender.withhold(n);
        } else {
            sender.publish(self.halves().0, n);
        }
    }

    /// Bytes that are held back here; `None`: none ever is.
    pub(crate) fn held_back(&self) -> Option<usize> {
        let is_here = self.mapped.pair || self.halves().1.flags.load(Ordering::Relaxed) & NEAR != 0;
        let announced = self.halves().0.tx_head.load(Ordering::Relaxed);
        // No more than the rings hold, whatever a peer has scribbled.
        is_here.then(|| self.sender().head.saturating_sub(announced).min(self.unsent() as u64) as usize)
    }

    /// True when none of `total` more bytes goes: a peer that has closed hears nothing of them.
    pub(crate) fn stays(&self, total: usize, said: Said) -> bool {
        let held = self.held_back().unwrap_or(0) as u64;
        let is_held = said.contains(Said::MORE) || self.state() & state::CORKED != 0;
        is_held
            && !said.contains(Said::URGENT)
            && !locked::is_locked()
            && held + (total as u64) < u64::from(LOOPBACK_MSS)
    }

    /// Bytes that a ring has to hold, for a segment to be filled.
    pub(crate) fn held_at_most(&self) -> usize {
        if self.state() & state::HELD != 0 { LOOPBACK_MSS as usize } else { 0 }
    }

    /// After a send that may hold back, the lock held: announces what goes. True: that is news.
    #[cold]
    pub(crate) fn settle(&self, sender: &Sender, said: Said) -> bool {
        let own = self.halves().0;
        let from = own.tx_head.load(Ordering::Relaxed);
        let held = sender.head.saturating_sub(from);
        let is_corked = self.state() & state::CORKED != 0;
        let whole = held - held % u64::from(LOOPBACK_MSS);
        let goes = match is_corked {
            _ if said.contains(Said::URGENT) || locked::is_locked() => held,
            true => whole,
            // The acknowledgement of a whole segment lets the rest go, and comes at once.
            false if said.contains(Said::MORE) && whole == 0 => 0,
            false => held,
        };
        let is_held = goes < held;
        if is_held && self.state() & state::HELD == 0 {
            self.note(state::HELD);
        }
        let is_news = goes > 0 && sender.announce(own, from.saturating_add(goes));
        if is_held {
            // Written before it is said: who takes the bit looks at the positions next.
            barrier();
            self.home.note_held(self.index());
        } else if self.state() & state::HELD != 0 {
            self.forget(state::HELD);
        }
        is_news
    }

    /// Everything that was held back goes.
    pub(crate) fn let_go(&self) {
        self.let_go_and_forget(0);
    }

    /// The same, and with it go `bits` of the state, which said that it is held.
    fn let_go_and_forget(&self, bits: u32) {
        let before = self.state();
        // A send that this very call interrupts looks at the state when it is done.
        let owned = if before & state::HELD != 0 { own(&self.block().tx_lock).ok() } else { None };
        let is_news = owned.is_some() && self.sender().let_go(self.halves().0);
        let forgotten = if owned.is_some() { bits | state::HELD } else { bits };
        if forgotten != 0 {
            self.forget(forgotten);
        }
        drop(owned);
        if is_news {
            self.tell();
        }
    }

    /// The same, the lock held. True: that is news.
    pub(crate) fn let_go_owned(&self) -> bool {
        if self.state() & state::HELD == 0 {
            return false;
        }
        let is_news = self.sender().let_go(self.halves().0);
        self.forget(state::HELD);
        is_news
    }
}

#[cfg(test)]
#[path = "cork_tests.rs"]
mod tests;
