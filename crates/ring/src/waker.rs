//! Ends a ring's sleep from another thread.

use queue::waking::Woken;
use session::sleeper::Context;
use std::sync::Arc;

/// Makes a ring tell [`crate::Kind::Woken`], from any thread. Several wake-ups before the ring looks are one event.
#[derive(Clone, Debug)]
pub struct Waker {
    context: Arc<Context>,
    woken: Arc<Woken>,
}

impl Waker {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, woken: Arc::default() }
    }

    /// Makes the ring tell it. A system call only if the ring sleeps.
    pub fn wake(&self) {
        self.woken.raise();
        self.context.wake();
    }

    /// True while the ring has not told it.
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.is_raised()
    }

    /// True once for all wake-ups so far.
    pub(crate) fn take(&self) -> bool {
        self.woken.take()
    }
}
