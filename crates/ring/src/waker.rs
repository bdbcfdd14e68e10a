//! Ends a ring's sleep from another thread.

use session::sleeper::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes a ring tell [`crate::Kind::Woken`], from any thread. Several wake-ups before the ring looks are one event.
#[derive(Clone, Debug)]
pub struct Waker {
    context: Arc<Context>,
    is_woken: Arc<AtomicBool>,
}

impl Waker {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, is_woken: Arc::default() }
    }

    /// Makes the ring tell it. A system call only if the ring sleeps.
    pub fn wake(&self) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.context.wake();
    }

    /// True while the ring has not told it.
    pub(crate) fn is_woken(&self) -> bool {
        // SeqCst: pairs with `wake`'s store. The ring has announced its sleep before it looks here.
        self.is_woken.load(Ordering::SeqCst)
    }

    /// True once for all wake-ups so far.
    pub(crate) fn take(&self) -> bool {
        self.is_woken() && self.is_woken.swap(false, Ordering::SeqCst)
    }
}
