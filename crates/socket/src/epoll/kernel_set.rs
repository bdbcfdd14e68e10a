//! The kernel's set behind one of ours: which descriptors of ours lie in it, and the events that it returns.

use super::{Set, merge};
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::sleeper::Context;
use session::sys;
use session::{cancel, detached, lock};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Marks our context's descriptor in the kernel's set.
pub(super) const BELL: u32 = 0;
/// Marks the control line in the kernel's set.
const CONTROL: u32 = 1;
/// Marks inner sets in the kernel's set: this plus the inner set's descriptor.
pub(super) const SETS: u32 = 2;

/// The data word of a descriptor of ours in the kernel's set: a random upper half that marks it as ours, and `which`. A program's data has
/// that upper half only by chance, 2^-30.
pub fn mark(which: u32) -> u64 {
    static HALF: OnceLock<u64> = OnceLock::new();
    let half = HALF.get_or_init(|| {
        let mut bytes = [0; 8];
        // Without random bytes the word is a non-canonical address, which is no program's pointer either.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
        (u64::from_ne_bytes(bytes) | 1 << 63) & !(1 << 62) & !u64::from(u32::MAX)
    });
    half | u64::from(which)
}

/// Returns `which` of a data word that [`mark`] has made.
fn marked(data: u64) -> Option<u32> {
    (data >> 32 == mark(0) >> 32).then_some(data as u32)
}

/// An event in C's form.
pub(super) fn event(events: u32, data: u64) -> libc::epoll_event {
    libc::epoll_event { events, u64: data }
}

impl Set {
    /// The kernel's set is no longer empty.
    pub fn has_kernel(&self) {
        if self.kernel.swap(true, Ordering::SeqCst) {
            return;
        }
        self.renew();
        self.sleep_in_kernel(lock(&self.context).as_deref());
        self.rouse();
    }

    /// Before a fork: from now on another process, too, may put descriptors into the kernel's set. Does not wait for the context's lock:
    /// its holder may be the call that a signal handler has interrupted to fork.
    pub fn before_fork(&self) {
        if self.kernel.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Ok(context) = self.context.try_lock() {
            self.sleep_in_kernel(context.as_deref());
        }
        self.rouse();
    }

    fn sleep_in_kernel(&self, context: Option<&Context>) {
        if let Some(context) = context
            && !self.family.is_related()
        {
            self.hook(context);
        }
    }

    /// Puts our context's descriptor into the kernel's set, so that one sleep covers both. Where that fails, see `sleep`.
    pub(super) fn hook(&self, context: &Context) {
        if detached::is_locked() {
            return;
        }
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let add = |fd, which| {
            let event = event(events, mark(which));
            sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_ADD, fd, Some(&event))
        };
        let done = add(context.epfd(), BELL).and_then(|()| add(context.client.control(), CONTROL));
        self.hooked.store(done.is_ok(), Ordering::SeqCst);
    }

    /// Takes our context's descriptor out: from now on the kernel's set reports only kernel events.
    pub(super) fn unhook(&self, context: &Context) {
        if !detached::is_locked() && self.hooked.swap(false, Ordering::SeqCst) {
            for fd in [context.epfd(), context.client.control()] {
                let _ = sys::epoll_ctl(self.epfd, libc::EPOLL_CTL_DEL, fd, None);
            }
        }
    }

    /// Asks the kernel's set; puts its events behind the first `n` of `out`. Returns how many were added.
    pub(super) fn kernel_events(
        &self,
        out: &mut [libc::epoll_event],
        n: usize,
        context: Option<&Context>,
        timeout: Option<Duration>,
        mask: Option<u64>,
    ) -> Result<usize, Errno> {
        if let Some(context) = context
            && !self.kernel.load(Ordering::SeqCst)
            && !self.family.is_related()
        {
            // The kernel's set is empty: sleep on the context itself, a shorter way for a wake-up.
            if context.sleep(timeout, mask)? {
                drop(self.look_again(context));
            }
            return Ok(0);
        }
        let got = cancel::epoll_wait(self.epfd, &mut out[n..], timeout, mask)?;
        let got = self.filter(&mut out[n..n + got], context);
        Ok(merge(out, n, got) - n)
    }

    /// Removes our own descriptors' events from what the kernel returned. Returns how many are left.
    fn filter(&self, events: &mut [libc::epoll_event], context: Option<&Context>) -> usize {
        let mut left = 0;
        for i in 0..events.len() {
            let kept = match marked(events[i].u64) {
                None => Some(events[i]),
                Some(BELL) => None,
                Some(CONTROL) => {
                    match context {
                        Some(context) => {
                            context.client.pump();
                            drop(self.look_again(context));
                        }
                        None => lock(&self.inner).enqueue_all(),
                    }
                    None
                }
                Some(set) => self.of_member((set - SETS) as RawFd, events[i].events),
            };
            if let Some(event) = kept {
                events[left] = event;
                left += 1;
            }
        }
        left
    }
}
