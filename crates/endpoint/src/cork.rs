//! Bytes that are held back: `TCP_CORK`, and `MSG_MORE` for one call. Over a port the service's TCP holds segments back, as advised here.
//! Within one host there are no segments: bytes that would not fill one are written and not announced (`queue::held`).
//!
//! As on Linux whole segments go at once. Everything goes on a call without `MSG_MORE`, at the end of the stream, when a send waits for
//! space, with urgent data, when `TCP_CORK` is cleared or `TCP_NODELAY` set anew; and after 200 ms, by the service (`registry::local::cork_timer`).
//!
//! It pays within a host, too: without it nginx with `tcp_nopush` serves a third fewer requests of 100 kept connections (docs/evaluation.md).

use crate::lock::own;
use crate::stream::Said;
use crate::{Endpoint, state};
use queue::stream::{Sender, barrier};
use shm::Half;
use shm::application_flags::{CORK, MORE, NODELAY, PUSHED_SHIFT, QUICKACK};
use shm::half_flags::NEAR;
use std::sync::atomic::Ordering;

/// The largest segment between applications of one host, as on the loopback interface.
pub const LOOPBACK_MSS: u32 = 65_483;

impl Endpoint {
    /// Sets or clears `TCP_QUICKACK`.
    pub fn set_quick_ack(&self, on: bool) {
        if self.advise(QUICKACK, on) != on && on {
            self.tell();
        }
    }

    /// `TCP_NODELAY`. As on Linux, setting it lets all bytes go that were sent so far, corked or not.
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
            // `set` never returns `None`, so this cannot fail.
            let _ = own.extra.fetch_update(Ordering::AcqRel, Ordering::Relaxed, set);
            self.tell();
        } else {
            self.advise(NODELAY, false);
        }
    }

    /// Sets or clears `TCP_CORK`: while it is set, partial segments wait.
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

    /// Sets or clears `MSG_MORE`, before the bytes are published. True: what the last call held back may go.
    #[inline]
    pub fn say_more(&self, own: &Half, on: bool) -> bool {
        let on = on && !self.mapped.pair;
        let is_set = own.extra.load(Ordering::Relaxed) & MORE != 0;
        if is_set != on {
            self.advise(MORE, on);
        }
        is_set && !on
    }

    /// Nothing follows what the last call sent with `MSG_MORE`: lets it go.
    pub fn say_no_more(&self) {
        if self.say_more(self.halves().0, false) {
            self.tell();
        }
        if self.state() & state::CORKED == 0 {
            self.let_go();
        }
    }

    /// True when this library holds bytes back, not the service. `seen`: the other side's flags, which say where the bytes go. A process
    /// that is locked in holds none back: it cannot ask the service to let them go in time.
    #[cold]
    pub fn holds_itself(&self, seen: u32) -> bool {
        (self.mapped.pair || seen & NEAR != 0) && !self.process().is_cut_off()
            || self.state() & state::HELD != 0
    }

    /// Instead of publishing `n` bytes: says that the last of them is urgent, or holds them back, or both.
    #[cold]
    pub fn publish_otherwise(&self, sender: &mut Sender, n: usize, is_urgent: bool, holds: bool) {
        if is_urgent {
            self.announce_urgent(sender.head.wrapping_add(n as u64));
        }
        if holds {
            sender.withhold(n);
        } else {
            sender.publish(self.halves().0, n);
        }
    }

    /// Number of bytes held back here; `None` where the service's TCP holds back instead.
    pub fn held_back(&self) -> Option<usize> {
        let is_here = self.mapped.pair || self.halves().1.flags.load(Ordering::Relaxed) & NEAR != 0;
        let announced = self.halves().0.tx_head.load(Ordering::Relaxed);
        // At most what the rings hold, whatever a peer has written into the half.
        is_here.then(|| self.sender().head.saturating_sub(announced).min(self.unsent() as u64) as usize)
    }

    /// True when a send of `total` more bytes is held back whole: a peer that has closed hears nothing of it.
    pub fn stays(&self, total: usize, said: Said) -> bool {
        let held = self.held_back().unwrap_or(0) as u64;
        let is_held = said.contains(Said::MORE) || self.state() & state::CORKED != 0;
        is_held
            && !said.contains(Said::URGENT)
            && !self.process().is_cut_off()
            && held + (total as u64) < u64::from(LOOPBACK_MSS)
    }

    /// Bytes that a ring must hold at least, for a segment to be filled; 0: none is held back.
    pub fn held_at_most(&self) -> usize {
        if self.state() & state::HELD != 0 { LOOPBACK_MSS as usize } else { 0 }
    }

    /// After a send that may hold back, with the lock held: announces the bytes that go. True: the peer is to be told.
    #[cold]
    pub fn settle(&self, sender: &Sender, said: Said) -> bool {
        let own = self.halves().0;
        let from = own.tx_head.load(Ordering::Relaxed);
        let held = sender.head.saturating_sub(from);
        let is_corked = self.state() & state::CORKED != 0;
        let whole = held - held % u64::from(LOOPBACK_MSS);
        let goes = match is_corked {
            _ if said.contains(Said::URGENT) || self.process().is_cut_off() => held,
            true => whole,
            // The peer acknowledges a whole segment at once, and that lets the rest go.
            false if said.contains(Said::MORE) && whole == 0 => 0,
            false => held,
        };
        let is_held = goes < held;
        if is_held && self.state() & state::HELD == 0 {
            self.note(state::HELD);
        }
        let is_news = goes > 0 && sender.announce(own, from.saturating_add(goes));
        if is_held {
            // Positions before the bit: the service takes the bit, then reads the positions.
            barrier();
            self.home.note_held(self.index());
        } else if self.state() & state::HELD != 0 {
            self.forget(state::HELD);
        }
        is_news
    }

    /// Lets go all bytes that were held back.
    pub fn let_go(&self) {
        self.let_go_and_forget(0);
    }

    /// Lets go all held-back bytes and clears `bits` of the state, which said to hold them.
    fn let_go_and_forget(&self, bits: u32) {
        let before = self.state();
        // A send that this very call interrupts looks at the state when it is done.
        let owned =
            if before & state::HELD != 0 { own(&self.block().tx_lock, &self.mapped).ok() } else { None };
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

    /// Lets go all held-back bytes, with the lock held. True: the peer is to be told.
    pub fn let_go_owned(&self) -> bool {
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
