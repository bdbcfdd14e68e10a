//! The lock of one direction of a connection: a word of its socket block, which holds the number of the thread that owns it. Processes that
//! share a socket by fork share the word.

use crate::Endpoint;
use crate::region::Mapped;
use queue::holding;
use rustix::io::Errno;
use shm::MOVED;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// The lock of one direction, unlocked when dropped.
#[derive(Debug)]
pub struct Owned<'a>(&'a AtomicU32);

impl Drop for Owned<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the next owner's Acquire, which sees what was done under the lock.
        self.0.store(0, Ordering::Release);
    }
}

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread's ID, asked for once.
#[inline]
pub fn thread_number() -> u32 {
    let ask = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
    TID.try_with(|t| match t.get() {
        0 => {
            t.set(ask());
            t.get()
        }
        n => n,
    })
    .unwrap_or_else(|_| ask())
}

/// In a forked child: the thread has another ID.
pub fn forget_thread_number() {
    let _ = TID.try_with(|t| t.set(0));
}

/// Takes one direction's lock; waits for it.
///
/// # Errors
/// EAGAIN when this very thread holds it: a signal handler has interrupted a call on the same socket. ENOTCONN when the
/// connection has gone to another process with a descriptor.
#[inline]
pub fn own<'a>(word: &'a AtomicU32, mapped: &Mapped) -> Result<Owned<'a>, Errno> {
    own_at_once(word).map_or_else(|| wait_for(word, mapped), Ok)
}

/// Takes one direction's lock if it is free.
#[inline]
pub fn own_at_once(word: &AtomicU32) -> Option<Owned<'_>> {
    // Acquire: pairs with the Release of the last owner.
    let owned = word.compare_exchange(0, thread_number(), Ordering::Acquire, Ordering::Relaxed);
    owned.is_ok().then(|| Owned(word))
}

impl Endpoint {
    /// Keeps the connection for good: the service gives it to no other holder of its descriptor. False: another has it already.
    #[must_use]
    pub fn keep(&self) -> bool {
        holding::keep(self.block())
    }

    /// Ends what [`Self::keep`] began: the service may give the connection to another holder again.
    pub fn keep_no_more(&self) {
        holding::keep_no_more(self.block());
    }
}

#[cold]
fn wait_for<'a>(word: &'a AtomicU32, mapped: &Mapped) -> Result<Owned<'a>, Errno> {
    let (me, process) = (thread_number(), mapped.host.process);
    for round in 1u32.. {
        match word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(Owned(word)),
            Err(owner) if owner == me => return Err(Errno::AGAIN),
            Err(MOVED) => return Err(Errno::NOTCONN),
            // The owner was killed while it held the lock: it was a forked process that shared the socket.
            Err(owner) if round.is_multiple_of(256) && process.is_dead(owner) => {
                if word.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Ok(Owned(word));
                }
            }
            Err(_) => {}
        }
        process.give_way();
    }
    Err(Errno::AGAIN)
}
