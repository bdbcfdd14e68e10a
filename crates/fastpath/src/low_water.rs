//! Applications that read nothing before so much is there (`SO_RCVLOWAT`): the window and the ring grow to hold it. Where they may not,
//! the application is told that there is no more space, and reads what is there, as on Linux.

use crate::acknowledge::window;
use crate::setup::{State, Work};
use core::sync::atomic::Ordering::Relaxed;
use flow::state;

/// Bytes that the application waits for, rounded up to a power of two; 1: any.
#[inline]
pub(crate) fn wanted(w: &Work<'_>) -> u32 {
    shm::low_water(w.peer.flags.load(Relaxed))
}

/// It waits for more than there is.
#[inline]
pub(crate) fn is_waiting(w: &Work<'_>) -> bool {
    wanted(w) > w.f.rx.unread().max(1)
}

impl State {
    /// The window is small and the application reads nothing: it waits for more, and there is room for it, perhaps after the window
    /// has grown.
    #[cold]
    pub(crate) fn is_waited_for(&mut self, w: &mut Work<'_>) -> bool {
        if !is_waiting(w) {
            return false;
        }
        if w.f.rx.promised() > u32::from(w.f.tx.mss.max(w.f.cold.rcv_mss)) {
            return true;
        }
        let wanted = wanted(w);
        let has_grown = self.grow_for(w, wanted);
        if has_grown {
            self.note_consumed(w);
        }
        has_grown
    }

    /// The application was asked to tell when it reads: one that waits for more than there is hears that it waits in vain.
    pub(crate) fn tell_reader(&mut self, w: &mut Work<'_>) {
        if wanted(w) > 1 {
            w.f.rx.set(state::TELL);
            self.tell(w);
        }
    }

    /// It has read some of it: there is space again for what it waits for.
    #[cold]
    pub(crate) fn has_space_again(&self, w: &Work<'_>) -> bool {
        wanted(w) > 1 && w.f.rx.unread() < window(&w.f) / 2
    }
}
