//! Naps: a thread sleeps at the slot of the one connection that it waits for, on the word [`Half::context`] of its side, by a futex. It
//! needs no context and no descriptor, so any number of threads can do so, and costs nothing while it sleeps.
//!
//! ```text
//!   producer                                  consumer
//!   publish tx_head, fence                    context := NAP | name        (begin)
//!   context has NAP ? -> CAS to 0 (rouse)     nothing has come ?
//!                        FUTEX_WAKE           FUTEX_WAIT(context, what begin returned)
//! ```
//! Threads that nap at one slot share the word, and each ringer wakes all of them. A name is used for one nap: a thread that has looked
//! before another one began a nap of its own does not sleep on that other one's word. The peer can write any word there. The worst that
//! does is a needless call of the kernel's, or a wake-up too few for the process that the word belongs to.

use crate::Ordering::{Relaxed, SeqCst};
use crate::fence;
use shm::{Half, NAP};

/// This side's thread is about to nap. Returns the value of the word to sleep on. `name` tells the nap from earlier ones at this slot. Look
/// for news once more afterwards.
#[must_use]
pub fn begin(own: &Half, name: u32) -> u32 {
    let seen = own.context.load(Relaxed);
    // Writes what stands there, so that a producer sees it that does not see the other thread's write yet.
    let is_shared = is_nap(seen) && own.context.compare_exchange(seen, seen, SeqCst, Relaxed).is_ok();
    let value = if is_shared { seen } else { NAP | name };
    if !is_shared {
        own.context.store(value, SeqCst);
    }
    // Pairs with the fence in `Sender::publish`: the producer sees the nap, or this thread's next look sees what was published.
    fence(SeqCst);
    value
}

/// True for a value of [`Half::context`] that says that threads nap there.
#[must_use]
#[inline]
pub const fn is_nap(context: u32) -> bool {
    context & NAP != 0
}

/// Producer, after the barrier of what it has published: true when threads nap at the slot of `half`, the consumer's. The caller wakes
/// all that sleep on `half.context`, by the kernel.
#[must_use]
#[cold]
pub fn rouse(half: &Half) -> bool {
    let seen = half.context.load(SeqCst);
    if !is_nap(seen) {
        return false;
    }
    // A failure: another ringer was here, or another thread of that side has just begun to wait and will look. The threads that nap already are
    // woken all the same.
    let _ = half.context.compare_exchange(seen, 0, SeqCst, Relaxed);
    true
}
