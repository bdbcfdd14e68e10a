//! Applications that read nothing until a number of bytes is there (`SO_RCVLOWAT`): window and ring grow to hold that number. If they
//! may not grow, the application is told that there is no more space and reads what is there, as on Linux.

use crate::acknowledge::window;
use crate::setup::{State, Work};
use core::sync::atomic::Ordering::Relaxed;
use flow::state;

/// Bytes that the application waits for, rounded up to a power of two; 1: it reads any number.
#[inline]
pub(crate) fn wanted(w: &Work<'_>) -> u32 {
    shm::low_water(w.peer.flags.load(Relaxed))
}

/// True when the application waits for more bytes than there are.
#[inline]
pub(crate) fn is_waiting(w: &Work<'_>) -> bool {
    wanted(w) > w.f.rx.unread().max(1)
}

impl State {
    /// Asked when the window is small. True when the application waits for more bytes, and the window has room for them, or has grown
    /// just now.
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

    /// The application was asked to ring when it reads; if it waits for a low-water mark it must be told, because no more will come.
    pub(crate) fn tell_reader(&mut self, w: &mut Work<'_>) {
        if wanted(w) > 1 {
            w.f.rx.set(state::TELL);
            self.tell(w);
        }
    }

    /// True when the application has read enough that the window has space again for the bytes it waits for.
    #[cold]
    pub(crate) fn has_space_again(&self, w: &Work<'_>) -> bool {
        wanted(w) > 1 && w.f.rx.unread() < window(&w.f) / 2
    }
}
