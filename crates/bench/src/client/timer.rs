//! A timer that wakes `epoll_wait` with nanosecond precision: the timeout of `epoll_wait` is in milliseconds.

use crate::sockets::calls;
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// A timerfd in an epoll set.
pub struct Timer {
    descriptor: OwnedFd,
    /// The time at which it expires or has expired; 0 if it is not armed.
    at_ns: u64,
}

impl Timer {
    /// A timer that the epoll set reports with `data`.
    pub fn new(set: &OwnedFd, data: u64) -> anyhow::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        calls::epoll_add(set, &descriptor, data)?;
        Ok(Self { descriptor, at_ns: 0 })
    }

    /// Arms the timer for `at_ns` of [`crate::clock::now_ns`]. After that time it stays readable until it is armed for another time.
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

    /// Disarms the timer. If it has expired, the epoll set stops reporting it.
    pub fn disarm(&mut self) -> anyhow::Result<()> {
        self.arm(0)
    }
}
