//! Sleep and wake-up between the threads of one process. What other processes bring goes by [`Doorbell`](crate::Doorbell)s, which work alike.
//!
//! ```text
//!   the thread that wakes                  the thread that sleeps
//!   note the reason    (Woken::raise)      asleep := true       (Asleep::announce)
//!   asleep ?  -> false, write the eventfd  a reason is noted ?  -> asleep := false, work
//!                                          else block on the eventfd
//! ```

use crate::Ordering::{Relaxed, SeqCst};
use crate::doorbell::barrier_beside_rmw;
use crate::{AtomicBool, Wake, fence};

/// Whether a thread sleeps, or is about to.
#[derive(Debug, Default)]
pub struct Asleep(AtomicBool);

impl Asleep {
    /// The sleeping thread: it is about to sleep, and looks once more for reasons not to.
    #[inline]
    pub fn announce(&self) {
        self.0.store(true, Relaxed);
        // Pairs with the barrier in `wake`: that one sees the announcement, or this thread's next loads see what was noted before it.
        fence(SeqCst);
    }

    /// The sleeping thread: it is awake, whatever has woken it.
    #[inline]
    pub fn awake(&self) {
        self.0.store(false, SeqCst);
    }

    /// Another thread, after it has noted the reason: wakes the sleeper if there is one.
    #[inline]
    pub fn wake(&self) -> Wake {
        // The reason before the look; pairs with the fence in `announce`.
        barrier_beside_rmw();
        if self.0.swap(false, SeqCst) { Wake::Needed } else { Wake::NotNeeded }
    }
}

/// A reason to wake up that says nothing more. Several before the sleeper looks are one.
#[derive(Debug, Default)]
pub struct Woken(AtomicBool);

impl Woken {
    /// Notes the reason. [`Asleep::wake`] follows.
    #[inline]
    pub fn raise(&self) {
        self.0.store(true, SeqCst);
    }

    /// True while the reason was not taken. A thread that sleeps has announced it before it looks here.
    #[must_use]
    #[inline]
    pub fn is_raised(&self) -> bool {
        self.0.load(SeqCst)
    }

    /// Takes the reason: true once for all times that it was raised so far.
    #[must_use]
    #[inline]
    pub fn take(&self) -> bool {
        self.is_raised() && self.0.swap(false, SeqCst)
    }
}
