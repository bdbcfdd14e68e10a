//! What an endpoint needs of the process around it. It is given once, when a region is mapped ([`crate::region::Mapped::new`]).

use crate::region::Mapped;
use base::limits::RING_MIN;
use queue::Violation;
use queue::pages::class_of;
use shm::Half;
use shm::alone::SingleThreaded;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};

/// What the process does for its endpoints. Each method has a default for a process that neither forks nor sleeps nor has a service: the
/// simulator's, and that of tests.
pub trait Process: Debug + Send + Sync {
    /// Calls `then` while no signal handler can run: a handler could need the lock that `then` takes.
    fn put_off_signals(&self, then: &mut dyn FnMut()) {
        then();
    }

    /// Lets another thread run.
    fn give_way(&self) {
        std::thread::yield_now();
    }

    /// Waits until `is_over`, another thread's work, says true; not for ever, because that thread may be the one that a signal handler has
    /// interrupted.
    fn wait_for(&self, is_over: &mut dyn FnMut() -> bool) {
        while !is_over() {
            self.give_way();
        }
    }

    /// True when thread number `thread` of any process has certainly ended.
    fn is_dead(&self, thread: u32) -> bool {
        let _ = thread;
        false
    }

    /// True when this process can ask the service for nothing, so that it must hold no bytes back.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// The holder bit under which rings that relatives left behind are collected; `None`: there are no relatives.
    fn collects_as(&self) -> Option<u64> {
        None
    }

    /// Makes more of the region's memory present.
    fn grow(&self, mapped: &Mapped) {
        let _ = mapped;
    }

    /// Takes a free socket block of `home`.
    fn take_block(&self, home: &Mapped) -> Option<u32> {
        let _ = home;
        None
    }

    /// Wakes the threads of this process that sleep in `context`.
    fn wake(&self, context: u32) {
        let _ = context;
    }

    /// Wakes `context` of the region's other side, for which no waker is known here.
    fn wake_other(&self, mapped: &Mapped, context: u32) {
        let _ = (mapped, context);
    }

    /// Wakes the threads, of any process, that nap at the slot of `half`.
    fn rouse(&self, half: &Half) {
        shm::futex::wake(&half.context);
    }

    /// Reports that the other side of a connection has broken the protocol.
    fn report(&self, violation: &Violation) {
        let _ = violation;
    }
}

/// A process that neither forks nor sleeps nor has a service.
#[derive(Debug)]
pub struct Solitary;

impl Process for Solitary {}

/// Wakes one context of the other side of a region.
pub trait Waker: Debug + Send + Sync {
    /// Wakes the threads that sleep there.
    fn ring(&self);
}

/// The process around endpoints, and its settings.
#[derive(Debug)]
pub struct Host {
    /// What the process does.
    pub process: &'static dyn Process,
    /// How many forks lie between this process and the first one of its family. The process adds one in a forked child.
    pub forks: AtomicU32,
    /// Whether the process has one thread.
    pub threads: SingleThreaded,
    /// Longest ring that a sender lends itself, as log2 of its pages.
    class_most: AtomicU32,
    /// Shortest first ring, as log2 of its pages.
    class_least: AtomicU32,
    /// `net.ipv4.tcp_notsent_lowat` in bytes, for sockets without the option; `u32::MAX`: no limit.
    not_sent_low_water: AtomicU32,
}

impl Host {
    /// A host with the usual settings.
    #[must_use]
    pub const fn new(process: &'static dyn Process) -> Self {
        Self {
            process,
            forks: AtomicU32::new(0),
            threads: SingleThreaded::unknown(),
            class_most: AtomicU32::new(8),
            class_least: AtomicU32::new(0),
            not_sent_low_water: AtomicU32::new(u32::MAX),
        }
    }

    /// See [`Host::forks`].
    #[inline]
    pub fn generation(&self) -> u32 {
        self.forks.load(Ordering::Relaxed)
    }

    /// Sets the least size of a sender's first ring in bytes; without enough free memory it is shorter.
    pub fn begin_rings(&self, bytes: usize) {
        self.class_least.store(class_of(bytes) as u32, Ordering::Relaxed);
    }

    /// Sets the greatest size of a ring in bytes.
    pub fn limit_rings(&self, bytes: u32) {
        self.class_most.store(class_of(bytes as usize) as u32, Ordering::Relaxed);
    }

    /// The greatest size of a ring in bytes.
    pub fn ring_most(&self) -> u32 {
        RING_MIN << self.class_most.load(Ordering::Relaxed)
    }

    /// The greatest size class of a ring.
    #[inline]
    pub(crate) fn class_most(&self) -> usize {
        self.class_most.load(Ordering::Relaxed) as usize
    }

    /// The least size class of a sender's first ring.
    #[inline]
    pub(crate) fn class_least(&self) -> usize {
        self.class_least.load(Ordering::Relaxed) as usize
    }

    /// Sets `net.ipv4.tcp_notsent_lowat` in bytes.
    pub fn set_not_sent_low_water(&self, bytes: u32) {
        self.not_sent_low_water.store(bytes, Ordering::Relaxed);
    }

    /// `net.ipv4.tcp_notsent_lowat` in bytes.
    #[inline]
    pub(crate) fn not_sent_low_water(&self) -> u32 {
        self.not_sent_low_water.load(Ordering::Relaxed)
    }
}
