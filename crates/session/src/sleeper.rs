//! A context: what wakes one sleeper (a blocked thread, an epoll set). It has a number known to all that bring news, a kernel epoll
//! descriptor that holds every eventfd that may wake it, and a spin budget.

use crate::fork_locks::Held;
use crate::reserved::Internal;
use crate::spin::Spin;
use crate::sys;
use crate::sys::signal::Deferred;
use crate::{Client, cancel, detached, lock};
use control::{Reply, Request};
use endpoint::host::Waker;
use queue::Wake;
use queue::waking::Asleep;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Tag of eventfds in a context's epoll descriptor.
pub const BELL: u64 = 0;
/// Tag of the control socket in a context's epoll descriptor.
pub const CONTROL: u64 = 1;
/// Tag of descriptors of the owner's in a context's epoll descriptor ([`Context::watch`]).
pub const OUTSIDE: u64 = 2;
/// In place of a region: the service's own eventfd (region ids are never 0).
const SERVICE: u32 = 0;
/// Shortest time between two requests for eventfds that could not be received.
const AGAIN: Duration = Duration::from_millis(100);

/// What wakes one thread or epoll set.
#[derive(Debug)]
pub struct Context {
    /// Its number, unique in the fork family.
    pub number: u32,
    /// The descriptor to sleep on: holds all eventfds and the control socket, edge-triggered.
    epfd: Internal,
    local: Internal,
    /// Eventfds that others ring, with the pair region they came for; `SERVICE` for the service's own.
    others: Mutex<Vec<(u32, Internal)>>,
    /// An eventfd could not be received, for want of descriptors: some news does not wake the sleeper.
    is_deaf: AtomicBool,
    /// How often an eventfd was lost.
    losses: AtomicU32,
    /// When lost eventfds were last asked for again.
    asked_again: Mutex<Option<Instant>>,
    /// A thread sleeps here. Set before its last look at what others may bring by `wake`.
    pub sleeping: Asleep,
    /// The kernel has reported a descriptor of [`Context::watch`], and nothing has looked since.
    outside: AtomicBool,
    /// Decides when spinning pays.
    pub spin: Spin,
    /// The registration to which it belongs.
    pub client: Arc<Client>,
}

impl Context {
    /// Takes a used context of `client`, or makes a new one.
    pub fn take(client: &Arc<Client>) -> Result<Arc<Self>, Errno> {
        let _deferred = Deferred::begin();
        if let Some(used) = lock(&client.free).pop() {
            return Ok(used);
        }
        if detached::is_locked() {
            return Err(Errno::PERM);
        }
        let number = take_number(client).ok_or(Errno::USERS)?;
        Self::announce(client, number).inspect_err(|_| {
            lock(&client.contexts).remove(&number);
            give_number(client, number);
        })
    }

    fn announce(client: &Arc<Client>, number: u32) -> Result<Arc<Self>, Errno> {
        let context = Arc::new(Self::empty(client, number)?);
        // Known before it is announced: eventfds for it may be pushed before the answer comes.
        lock(&client.contexts).insert(number, Arc::downgrade(&context));
        context.listen()?;
        Ok(context)
    }

    /// Asks the service for news. Eventfds of others that it knows come before its answer.
    fn listen(&self) -> Result<(), Errno> {
        match self.client.ask(Request::Context { context: self.number })? {
            (Reply::Done, fds) => {
                self.add(SERVICE, fds.into_iter().next());
                Ok(())
            }
            _ => Err(Errno::USERS),
        }
    }

    /// True when some news does not wake the threads that sleep here. Asks now and then for what is missing.
    #[inline]
    pub fn is_deaf(&self) -> bool {
        self.is_deaf.load(Ordering::Relaxed) && !self.listen_again()
    }

    #[cold]
    fn listen_again(&self) -> bool {
        let _deferred = Deferred::begin();
        {
            let mut asked = lock(&self.asked_again);
            if asked.is_some_and(|at| at.elapsed() < AGAIN) {
                return false;
            }
            *asked = Some(Instant::now());
        }
        let before = self.losses.load(Ordering::SeqCst);
        self.forget(|_| true);
        let hears = self.listen().is_ok() && self.losses.load(Ordering::SeqCst) == before;
        self.is_deaf.fetch_and(!hears, Ordering::SeqCst);
        // Other threads that sleep here begin anew.
        self.local.ring();
        hears
    }

    fn empty(client: &Arc<Client>, number: u32) -> Result<Self, Errno> {
        let epfd = Internal::epoll()?;
        let local = Internal::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        add(&epfd, local.number(), BELL)?;
        add(&epfd, client.control(), CONTROL)?;
        Ok(Self {
            number,
            epfd,
            local,
            others: Mutex::new(Vec::new()),
            is_deaf: AtomicBool::new(false),
            losses: AtomicU32::new(0),
            asked_again: Mutex::new(None),
            sleeping: Asleep::default(),
            outside: AtomicBool::new(false),
            spin: Spin::new(client.welcome.settings.spin_ns),
            client: client.clone(),
        })
    }

    /// Keeps the context for the next thread or set.
    pub fn give_back(self: Arc<Self>) {
        let _deferred = Deferred::begin();
        let client = self.client.clone();
        if !client.dead.load(Ordering::Relaxed) {
            lock(&client.free).push(self);
        }
    }

    /// Adds an eventfd that is rung for news of `region`; `None`: it was lost.
    pub fn add(&self, region: u32, eventfd: Option<OwnedFd>) {
        let Some(eventfd) = eventfd else {
            self.losses.fetch_add(1, Ordering::SeqCst);
            self.is_deaf.store(true, Ordering::SeqCst);
            // A received eventfd would have been rung already: look.
            return self.local.ring();
        };
        let eventfd = Internal::new(eventfd);
        // When this fails there is no memory; the service's own eventfd still wakes us.
        let _ = add(&self.epfd, eventfd.number(), BELL);
        lock(&self.others).push((region, eventfd));
    }

    /// Takes the lock of `others` before a fork.
    pub fn hold(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |c| &c.others);
    }

    /// No news comes from `region` any more: closes the eventfds that were rung for it.
    pub fn forget_region(&self, region: u32) {
        self.forget(|from| from == region);
    }

    fn forget(&self, is_over: impl Fn(u32) -> bool) {
        lock(&self.others).retain(|(from, eventfd)| {
            let is_over = is_over(*from);
            if is_over {
                // Other processes have the same eventfd open: closing ours alone would leave it in our epoll descriptor.
                let _ = epoll::delete(self.epfd.as_fd(), eventfd.as_fd());
            }
            !is_over
        });
    }

    /// The descriptor to sleep on.
    pub fn epfd(&self) -> RawFd {
        self.epfd.number()
    }

    /// Wakes the threads that sleep here, from within this process.
    pub fn wake(&self) {
        if self.sleeping.wake() == Wake::Needed {
            self.local.ring();
        }
    }

    /// Takes the events that woke us off the kernel's list, and reads the control socket if it is among them.
    pub fn harvest(&self) {
        // When interrupted, the next call finds the same events.
        let _ = self.sleep(Some(Duration::ZERO), None);
    }

    /// Sleeps until something wakes us, and takes it off the kernel's list as [`Self::harvest`] does. True: the service had sent something,
    /// which was read.
    ///
    /// # Errors
    /// EINTR.
    pub fn sleep(&self, limit: Option<Duration>, mask: Option<u64>) -> Result<bool, Errno> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let n = cancel::epoll_wait(self.epfd(), &mut events, limit, mask)?;
        let is_told = events[..n].iter().any(|e| { e.u64 } == CONTROL);
        if is_told {
            self.client.pump();
        }
        if events[..n].iter().any(|e| { e.u64 } == OUTSIDE) {
            self.outside.store(true, Ordering::Relaxed);
        }
        Ok(is_told)
    }

    /// From now on what the kernel reports of `fd`, edge-triggered, ends sleeps here, too. Closing `fd` ends that.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn watch(&self, fd: RawFd) -> Result<(), Errno> {
        add(&self.epfd, fd, OUTSIDE)
    }

    /// True once after the kernel has reported a descriptor of [`Self::watch`].
    pub fn take_outside(&self) -> bool {
        self.outside.load(Ordering::Relaxed) && self.outside.swap(false, Ordering::Relaxed)
    }

    /// From now on whatever wakes `other` wakes this context, too. False: that failed.
    pub fn follow(&self, other: &Self) -> bool {
        matches!(add(&self.epfd, other.epfd(), BELL), Ok(()) | Err(Errno::EXIST))
    }
}

fn add(epfd: &Internal, fd: RawFd, tag: u64) -> Result<(), Errno> {
    let events = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    epoll::add(epfd.as_fd(), sys::borrow(fd), epoll::EventData::new_u64(tag), events)
}

fn take_number(client: &Client) -> Option<u32> {
    let words = &client.oldest.region.header().context_taken[1];
    words.iter().enumerate().find_map(|(i, word)| {
        let mut seen = word.load(Ordering::Relaxed);
        while seen != u64::MAX {
            let bit = (!seen).trailing_zeros();
            match word.compare_exchange(seen, seen | 1 << bit, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(i as u32 * 64 + bit),
                Err(now) => seen = now,
            }
        }
        None
    })
}

/// Gives back a number for which the service knows no context.
fn give_number(client: &Client, number: u32) {
    let words = &client.oldest.region.header().context_taken[1];
    if let Some(word) = words.get(number as usize / 64) {
        // Release: pairs with the next taker's Acquire.
        word.fetch_and(!(1 << (number % 64)), Ordering::Release);
    }
}

/// The thread's own context, given back when the thread ends.
struct Mine(Option<Arc<Context>>);

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(context) = self.0.take() {
            context.give_back();
        }
    }
}

thread_local! {
    static MINE: RefCell<Mine> = const { RefCell::new(Mine(None)) };
}

/// The calling thread's context in the registration `client`.
pub fn of_thread(client: &Arc<Client>) -> Result<Arc<Context>, Errno> {
    let kept = MINE.try_with(|m| m.try_borrow().ok()?.0.clone()).ok().flatten();
    if let Some(context) = kept.filter(|c| Arc::ptr_eq(&c.client, client)) {
        return Ok(context);
    }
    let context = Context::take(client)?;
    let stored = MINE.try_with(|m| match m.try_borrow_mut() {
        Ok(mut mine) => {
            // This drops a context of an earlier registration, or of the parent's.
            mine.0 = Some(context.clone());
            true
        }
        Err(_) => false,
    });
    debug_assert!(stored.is_ok());
    Ok(context)
}
