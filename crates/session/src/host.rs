//! What endpoints need of this process: see [`endpoint::host`].

use crate::log::{Level, log};
use crate::sys::cycle_account;
use crate::sys::signal::Deferred;
use crate::{detached, sys};
use cycles::Section;
use endpoint::host::{Host, Process};
use endpoint::region::Mapped;
use queue::Violation;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use shm::Half;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for another thread of this process that populates memory: 128 MiB take about 50 ms.
const PATIENCE: Duration = Duration::from_millis(500);

/// The host of all endpoints of this process.
pub static HOST: Host = Host::new(&ThisProcess);

static DISPUTE: AtomicBool = AtomicBool::new(false);

/// How many forks lie between this process and the first one of its family: 0 in that one.
#[inline]
pub fn generation() -> u32 {
    HOST.generation()
}

/// True when two sets or two processes may want news of one socket.
#[inline]
pub fn may_dispute() -> bool {
    DISPUTE.load(Ordering::Relaxed)
}

/// From now on [`may_dispute`] is true.
pub fn dispute() {
    DISPUTE.store(true, Ordering::Relaxed);
}

#[derive(Debug)]
struct ThisProcess;

impl Process for ThisProcess {
    fn put_off_signals(&self, then: &mut dyn FnMut()) {
        let _deferred = Deferred::begin();
        then();
    }

    fn give_way(&self) {
        sys::give_way();
    }

    fn wait_for(&self, is_over: &mut dyn FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_over() && Instant::now() < end {
            sys::give_way();
        }
    }

    fn is_dead(&self, thread: u32) -> bool {
        if !detached::may(libc::SYS_kill) {
            return false;
        }
        // A number that no thread can have: the process has overwritten its own block.
        let Some(pid) = i32::try_from(thread).ok().and_then(Pid::from_raw) else { return true };
        // Before the first fork no other process shares the lock.
        test_kill_process(pid) == Err(Errno::SRCH)
            || !may_dispute() && !sys::has_thread(thread)
            || sys::is_zombie(thread)
    }

    fn is_cut_off(&self) -> bool {
        detached::is_locked()
    }

    fn collects_as(&self) -> Option<u64> {
        let client = crate::present().filter(|_| may_dispute());
        client.map(|client| client.holder_bit())
    }

    fn grow(&self, mapped: &Mapped) {
        if let Some(client) = crate::present() {
            client.grow(mapped);
        }
    }

    fn take_block(&self, home: &Mapped) -> Option<u32> {
        crate::present().and_then(|client| client.take_block_of(home))
    }

    fn wake(&self, context: u32) {
        if let Some(client) = crate::present() {
            client.wake(context);
        }
    }

    fn wake_other(&self, mapped: &Mapped, context: u32) {
        if let Some(client) = crate::present() {
            client.wake_other(mapped, context);
        }
    }

    fn rouse(&self, half: &Half) {
        // Where a filter forbids it, the peers were told to look for themselves (`MUTE`).
        if detached::may(libc::SYS_futex) {
            let _waking = cycle_account::enter(Section::Wake);
            shm::futex::wake(&half.context);
        }
    }

    fn report(&self, violation: &Violation) {
        log(Level::Error, format_args!("peer misbehaved: {violation}"));
    }
}
