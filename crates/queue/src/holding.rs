//! Which party has a connection that goes from one to another: the words of a socket block by which a process sets a connection up, keeps it
//! for a ring, and lets it go, and by which the service takes it.
//!
//! ```text
//!              set_up            open, or open_kept                  let_go (of the last holder)
//!   tx_lock:   thread ...........  0        0   ──────────────────────────┐
//!   rx_lock:   thread ...........  0      KEPT ── keep_no_more ──► 0      │
//!                                  │                               │      ▼
//!                                  └───────── seize ───────────────┴─► MOVED, for good
//! ```

use crate::Ordering::{AcqRel, Acquire, Relaxed, Release};
use shm::{KEPT, MOVED, SockBlock, TRUST};

/// The process: both directions belong to `thread` until [`open`] or [`open_kept`], so that no other party takes a connection that is half
/// set up.
pub fn set_up(block: &SockBlock, thread: u32) {
    for word in [&block.tx_lock, &block.rx_lock] {
        word.store(thread, Release);
    }
}

/// The process: the connection is set up.
pub fn open(block: &SockBlock) {
    for word in [&block.tx_lock, &block.rx_lock] {
        // Release: pairs with the Acquire of the party that locks or seizes the connection.
        word.store(0, Release);
    }
}

/// As [`open`]; the connection is a ring's, which [`keep`]s it.
pub fn open_kept(block: &SockBlock) {
    block.rx_lock.store(KEPT, Release);
    block.tx_lock.store(0, Release);
}

/// The process: keeps the connection for a ring, which takes no locks: the service gives it to no other holder of its descriptor. False:
/// another party has it already.
#[must_use]
pub fn keep(block: &SockBlock) -> bool {
    block.rx_lock.compare_exchange(0, KEPT, AcqRel, Relaxed).is_ok()
}

/// The process: ends what [`keep`] began.
pub fn keep_no_more(block: &SockBlock) {
    // Release: pairs with the Acquire of the party that takes the connection over, which sees what the ring has done.
    let _ = block.rx_lock.compare_exchange(KEPT, 0, Release, Relaxed);
}

/// The process with the holder bit `ours`: it has nothing to do with the connection any more, and does not close it.
pub fn let_go(block: &SockBlock, ours: u64) {
    keep_no_more(block);
    // Release: pairs with the Acquire in `seize`.
    block.holders.fetch_and(!ours, Release);
}

/// The service: takes both directions for good.
///
/// # Errors
/// What the lock holds that is not free: [`KEPT`] by a ring, or the number of a thread in the middle of a call.
pub fn seize(block: &SockBlock) -> Result<(), u32> {
    let alone = block.holders.load(Acquire) & !TRUST == 0;
    let locks = [&block.tx_lock, &block.rx_lock];
    for (i, lock) in locks.iter().enumerate() {
        if alone {
            lock.store(MOVED, Release);
        } else if let Err(owner) = lock.compare_exchange(0, MOVED, AcqRel, Relaxed) {
            locks[..i].iter().for_each(|taken| taken.store(0, Release));
            return Err(owner);
        }
    }
    Ok(())
}
