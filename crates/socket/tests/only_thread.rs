//! The table of descriptors where the process has one thread, and signal handlers interrupt it. Has no test harness: that has threads.

use session::sys;
use socket::fd::table::Table;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

static TABLE: Table<u32> = Table::new();
static REMOVED: AtomicU32 = AtomicU32::new(0);
/// So often what the handler has taken out is put there again.
const INSERTED: u32 = 500;

/// Uses what the interrupted call uses, and takes it out. Frees nothing: that is no work for a handler.
extern "C" fn meddle(_: libc::c_int) {
    drop(TABLE.pin(3));
    if let Some(pinned) = TABLE.pin(3) {
        std::mem::forget(pinned.share());
    }
    if let Some(object) = TABLE.remove(3) {
        REMOVED.fetch_add(1, Relaxed);
        std::mem::forget(object);
    }
}

fn main() {
    sys::only_thread::learn();
    assert!(sys::only_thread::is_certain());
    let pause = libc::timeval { tv_sec: 0, tv_usec: 20 };
    let every = libc::itimerval { it_interval: pause, it_value: pause };
    // SAFETY: the handler makes no call that a handler may not make; the timer is a local.
    unsafe {
        libc::alarm(60);
        libc::signal(libc::SIGPROF, meddle as extern "C" fn(libc::c_int) as libc::sighandler_t);
        libc::setitimer(libc::ITIMER_PROF, &raw const every, ptr::null_mut());
    }
    let (mut inserted, mut found) = (0, 0u64);
    while inserted < INSERTED {
        match TABLE.pin(3) {
            Some(pinned) => {
                assert_eq!(*pinned, 7);
                found += 1;
            }
            None => {
                inserted += 1;
                assert_eq!(TABLE.insert(3, Arc::new(7)), Ok(()), "nobody has it pinned");
            }
        }
    }
    // SAFETY: no preconditions.
    unsafe { libc::signal(libc::SIGPROF, libc::SIG_IGN) };
    let left = u32::from(TABLE.remove(3).is_some());
    assert_eq!(inserted, REMOVED.load(Relaxed) + left, "what is taken out is gone");
    assert_eq!(TABLE.insert(3, Arc::new(8)), Ok(()), "every pin was taken away");
    assert!(found > u64::from(INSERTED), "found {found} times only");
}
