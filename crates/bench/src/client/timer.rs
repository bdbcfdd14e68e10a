//! A timer that wakes who waits in an epoll set, to the nanosecond: the set's own limit counts milliseconds.

use crate::sockets::calls;
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// See the module.
pub struct Timer {
    descriptor: OwnedFd,
    /// When it rings, or has rung.
    at_ns: u64,
}

impl Timer {
    /// One that tells the set by `data`.
    pub fn new(set: &OwnedFd, data: u64) -> anyhow::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        calls::epoll_add(set, &descriptor, data)?;
        Ok(Self { descriptor, at_ns: 0 })
    }

    /// Rings at `at_ns` of [`crate::clock::now_ns`], and until it is armed for another time.
    pub fn arm(&mut self, at_ns: u64) -> anyhow::Result<()> {
        if at_ns == self.at_ns {
            return Ok(());
        }
        let at = Timespec { tv_sec: (at_ns / 1_000_000_000) as i64, tv_nsec: (at_ns % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&self.descriptor, TimerfdTimerFlags::ABSTIME, &once)?;
        self.at_ns = at_ns;
        Ok(())
    }

    /// Does not ring any more, though it may have rung: the set is not told of it for ever.
    pub fn disarm(&mut self) -> anyhow::Result<()> {
        self.arm(0)
    }
}
