//! A context: what wakes one sleeper (a blocked thread, an epoll set). It has a number known to all that bring news, a kernel epoll
//! descriptor that holds every eventfd that may wake it, and a spin budget.
//!
//! A context costs descriptors, here and at the service, and a family has few numbers. So only the first threads of a process that wait for
//! one connection have one. Further ones have a *bare* context, which has neither: they nap at the slot of their connection ([`nap`]).

use crate::fork_locks::Held;
use crate::nap::Place;
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
use shm::CONTEXTS;
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

/// A process makes so many contexts for threads that wait for one connection: with fewer threads none has to look at the control line. Each
/// takes some four descriptors of the program's limit.
const CONTEXTS_OF_THREADS: usize = 8;
/// So many of a family's numbers are left to sets, and to threads that wait for more than one connection.
const NUMBERS_LEFT: u32 = CONTEXTS as u32 / 2;
/// The number of every bare context: no region has a context of that number.
const BARE: u32 = shm::NAP - 1;

/// The descriptors of a context.
#[derive(Debug)]
struct Descriptors {
    /// The descriptor to sleep on: holds all eventfds and the control socket, edge-triggered.
    epfd: Internal,
    local: Internal,
}

/// What wakes one thread or epoll set.
#[derive(Debug)]
pub struct Context {
    /// Its number, unique in the fork family; `BARE`.
    pub number: u32,
    /// `None`: it is bare.
    descriptors: Option<Descriptors>,
    /// Eventfds that others ring, with the pair region they came for; `SERVICE` for the service's own.
    others: Mutex<Vec<(u32, Internal)>>,
    /// Where the thread of a bare context naps now.
    place: Mutex<Option<Place>>,
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
        Self::with_number(client, take_number(client, 0).ok_or(Errno::USERS)?)
    }

    /// As [`Self::take`] for a thread that can do without: leaves some to others.
    fn take_spare(client: &Arc<Client>) -> Option<Arc<Self>> {
        let _deferred = Deferred::begin();
        if let Some(used) = lock(&client.free).pop() {
            return Some(used);
        }
        if detached::is_locked() || lock(&client.contexts).len() >= CONTEXTS_OF_THREADS {
            return None;
        }
        Self::with_number(client, take_number(client, NUMBERS_LEFT)?).ok()
    }

    fn with_number(client: &Arc<Client>, number: u32) -> Result<Arc<Self>, Errno> {
        Self::announce(client, number).inspect_err(|e| {
            lock(&client.contexts).remove(&number);
            // A service that answers late knows the context by that number until this process ends.
            if *e != Errno::TIMEDOUT {
                give_number(client, number);
            }
        })
    }

    /// A context without a number and descriptors.
    fn bare(client: &Arc<Client>) -> Arc<Self> {
        let _deferred = Deferred::begin();
        let context = Arc::new(Self::new(client, BARE, None));
        let mut bare = lock(&client.bare);
        if bare.len() == bare.capacity() {
            bare.retain(|context| context.strong_count() > 0);
        }
        bare.push(Arc::downgrade(&context));
        drop(bare);
        context
    }

    /// True when the thread naps instead of sleeping on a descriptor.
    #[inline]
    pub const fn is_bare(&self) -> bool {
        self.descriptors.is_none()
    }

    fn announce(client: &Arc<Client>, number: u32) -> Result<Arc<Self>, Errno> {
        let context = Arc::new(Self::new(client, number, Some(Descriptors::new(client)?)));
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
        self.ring();
        hears
    }

    fn new(client: &Arc<Client>, number: u32, descriptors: Option<Descriptors>) -> Self {
        Self {
            number,
            descriptors,
            others: Mutex::default(),
            place: Mutex::default(),
            is_deaf: AtomicBool::new(false),
            losses: AtomicU32::new(0),
            asked_again: Mutex::new(None),
            sleeping: Asleep::default(),
            outside: AtomicBool::new(false),
            spin: Spin::new(client.welcome.settings.spin_ns),
            client: client.clone(),
        }
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
            return self.ring();
        };
        let Some(all) = &self.descriptors else { return };
        let eventfd = Internal::new(eventfd);
        // When this fails there is no memory; the service's own eventfd still wakes us.
        let _ = add(&all.epfd, eventfd.number(), BELL);
        lock(&self.others).push((region, eventfd));
    }

    /// Takes this context's locks before a fork.
    pub fn hold(self: &Arc<Self>, held: &mut Held) {
        held.take(self, |c| &c.place);
        held.take(self, |c| &c.others);
    }

    /// No news comes from `region` any more: closes the eventfds that were rung for it.
    pub fn forget_region(&self, region: u32) {
        self.forget(|from| from == region);
    }

    fn forget(&self, is_over: impl Fn(u32) -> bool) {
        let Some(all) = &self.descriptors else { return };
        lock(&self.others).retain(|(from, eventfd)| {
            let is_over = is_over(*from);
            if is_over {
                // Other processes have the same eventfd open: closing ours alone would leave it in our epoll descriptor.
                let _ = epoll::delete(all.epfd.as_fd(), eventfd.as_fd());
            }
            !is_over
        });
    }

    /// The descriptor to sleep on; -1: the context is bare.
    pub fn epfd(&self) -> RawFd {
        self.descriptors.as_ref().map_or(-1, |all| all.epfd.number())
    }

    fn ring(&self) {
        if let Some(all) = &self.descriptors {
            all.local.ring();
        }
    }

    /// Wakes the threads that sleep here, from within this process.
    pub fn wake(&self) {
        if self.sleeping.wake() == Wake::NotNeeded {
            return;
        }
        match &self.descriptors {
            Some(all) => all.local.ring(),
            None => lock(&self.place).iter().for_each(Place::rouse),
        }
    }

    /// The thread of this bare context is about to nap at `place`.
    pub fn lie_down(&self, place: Place) {
        *lock(&self.place) = Some(place);
        self.sleeping.announce();
    }

    /// The thread of this bare context naps no more.
    pub fn get_up(&self) {
        self.sleeping.awake();
        let place = lock(&self.place).take();
        drop(place);
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

    /// How long a thread may [`nap`](Self::nap) whose signals are put off.
    pub fn between_signals(&self) -> Duration {
        self.client.naps.between_signals()
    }

    /// For the thread of a bare context, which lies at `place`: sleeps on the word there while it is `seen`, for `limit` at most. True: nothing has
    /// woken it, it only had its turn at the control line.
    ///
    /// # Errors
    /// EINTR; [`cancel::RESTART`].
    pub fn nap(&self, place: &Place, seen: u32, limit: Option<Duration>) -> Result<bool, Errno> {
        if !queue::nap::is_nap(seen) {
            // The connection moves: the caller looks at it.
            return Ok(false);
        }
        let naps = &self.client.naps;
        if naps.is_overdue() {
            self.look();
        }
        let turns = naps.begin();
        let word = &place.mapped.halves(place.slot).0.context;
        let result = cancel::futex_wait(word, seen, limit.map_or(turns, |limit| limit.min(turns)));
        naps.end();
        match result {
            Ok(_) | Err(Errno::AGAIN) => Ok(false),
            Err(Errno::TIMEDOUT) if limit.is_none_or(|limit| turns < limit) => {
                self.look();
                Ok(true)
            }
            Err(Errno::TIMEDOUT) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Reads what the service has sent, if it has.
    #[cold]
    fn look(&self) {
        self.client.naps.note_look();
        let mut line = [libc::pollfd { fd: self.client.control(), events: libc::POLLIN, revents: 0 }];
        if sys::poll(&mut line, Some(Duration::ZERO), None).is_ok_and(|n| n > 0) {
            self.client.pump();
        }
    }

    /// From now on what the kernel reports of `fd`, edge-triggered, ends sleeps here, too. Closing `fd` ends that.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn watch(&self, fd: RawFd) -> Result<(), Errno> {
        add(&self.descriptors.as_ref().ok_or(Errno::BADF)?.epfd, fd, OUTSIDE)
    }

    /// True once after the kernel has reported a descriptor of [`Self::watch`].
    pub fn take_outside(&self) -> bool {
        self.outside.load(Ordering::Relaxed) && self.outside.swap(false, Ordering::Relaxed)
    }

    /// From now on whatever wakes `other` wakes this context, too. False: that failed.
    pub fn follow(&self, other: &Self) -> bool {
        let Some(all) = &self.descriptors else { return false };
        matches!(add(&all.epfd, other.epfd(), BELL), Ok(()) | Err(Errno::EXIST))
    }
}

impl Descriptors {
    fn new(client: &Client) -> Result<Self, Errno> {
        let epfd = Internal::epoll()?;
        let local = Internal::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        add(&epfd, local.number(), BELL)?;
        add(&epfd, client.control(), CONTROL)?;
        Ok(Self { epfd, local })
    }
}

fn add(epfd: &Internal, fd: RawFd, tag: u64) -> Result<(), Errno> {
    let events = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    epoll::add(epfd.as_fd(), sys::borrow(fd), epoll::EventData::new_u64(tag), events)
}

/// Takes a number for a context. `None`: the family has no more than `leaving` others.
fn take_number(client: &Client, leaving: u32) -> Option<u32> {
    let words = &client.oldest.region.header().context_taken[1];
    let taken: u32 = words.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
    if taken + leaving >= CONTEXTS as u32 {
        return None;
    }
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

/// The thread's own contexts, given back when the thread ends.
struct Mine {
    context: Option<Arc<Context>>,
    bare: Option<Arc<Context>>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        self.bare = None;
        if let Some(context) = self.context.take() {
            context.give_back();
        }
    }
}

thread_local! {
    static MINE: RefCell<Mine> = const { RefCell::new(Mine { context: None, bare: None }) };
}

/// What the calling thread keeps at `place`, if it is of the registration `client`.
fn kept(client: &Arc<Client>, place: impl Fn(&Mine) -> &Option<Arc<Context>>) -> Option<Arc<Context>> {
    let kept = MINE.try_with(|mine| place(&*mine.try_borrow().ok()?).clone()).ok().flatten();
    kept.filter(|context| Arc::ptr_eq(&context.client, client))
}

/// Keeps `context` at `place` of the calling thread. This drops a context of an earlier registration, or of the parent's.
fn keep(context: &Arc<Context>, place: impl Fn(&mut Mine) -> &mut Option<Arc<Context>>) {
    let stored = MINE.try_with(|mine| {
        if let Ok(mut mine) = mine.try_borrow_mut() {
            *place(&mut mine) = Some(context.clone());
        }
    });
    debug_assert!(stored.is_ok());
}

/// The calling thread's context in the registration `client`.
///
/// # Errors
/// There is none left, no descriptor, or no service.
pub fn of_thread(client: &Arc<Client>) -> Result<Arc<Context>, Errno> {
    if let Some(context) = kept(client, |mine| &mine.context) {
        return Ok(context);
    }
    let context = Context::take(client)?;
    keep(&context, |mine| &mut mine.context);
    Ok(context)
}

/// A context in the registration `client` for the calling thread, which waits for one connection: the thread's own if it has one through
/// which it hears everything, or if one can be spared; else a bare one.
pub fn for_one(client: &Arc<Client>) -> Arc<Context> {
    if let Some(context) = kept(client, |mine| &mine.context).filter(|context| !context.is_deaf()) {
        return context;
    }
    let is_new = || kept(client, |mine| &mine.bare).is_none() && kept(client, |mine| &mine.context).is_none();
    if let Some(context) = is_new().then(|| Context::take_spare(client)).flatten() {
        keep(&context, |mine| &mut mine.context);
        return context;
    }
    bare(client)
}

/// The calling thread's bare context in the registration `client`.
pub fn bare(client: &Arc<Client>) -> Arc<Context> {
    kept(client, |mine| &mine.bare).unwrap_or_else(|| {
        let bare = Context::bare(client);
        keep(&bare, |mine| &mut mine.bare);
        bare
    })
}
