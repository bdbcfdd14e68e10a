//! The accept queue of one listening socket, shared by all processes that hold the socket, as on Linux.
//!
//! Any number of processes put grants in and take them out; any of them may be killed at any instant, and any of them may be hostile. So
//! the queue is a table of states with a bit for each grant that waits, and not a ring: no process waits for another one's next step, and
//! what a killed process left half done the service finds by its application id.
//!
//! ```text
//!   connector or service                     process that accepts
//!   state := QUEUED | ticket   (CAS from 0)  finds the oldest ticket among the set bits
//!   bit := 1                                 state := CLAIMED | application   (CAS)
//!   wakes sleepers                           bit := 0
//!                                            sets the connection up
//!                                            state := 0
//! ```
//! The bits only help to find the states. A process clears a bit only while it has the grant CLAIMED, so no bit of a grant that waits is
//! ever cleared; a bit that has been left without a grant is cleared by the next process that looks.

use crate::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::doorbell::barrier_beside_rmw;
use crate::fence;
use core::ops::Range;
use shm::grant_state::{CLAIMED, QUEUED, VALUE};
use shm::sleeper::{APPLICATION_SHIFT, EXCLUSIVE, TAKEN};
use shm::{GRANTS, QueueWords, SLEEPERS, WORDS_PER_GROUP};

/// Most attempts to claim a grant in one call. Each failed attempt means that another process has claimed one, or that a hostile process
/// writes there.
const ATTEMPTS: usize = 64;
/// The application id of the service, and of a process that only clears a bit.
const CLEARER: u32 = 0;
/// Distance in tickets before the newest at which a grant comes back that a killed process had claimed: it is older than any other.
const OLDEST: u32 = VALUE / 2;

/// The operations on the shared words of one accept queue.
#[derive(Clone, Copy, Debug)]
pub struct Accepting<'a>(&'a QueueWords);

/// A thread or an epoll set that sleeps, or may sleep, at an accept queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sleeper {
    /// Id of its application, 30 bits.
    pub application: u32,
    /// Number of its context.
    pub context: u8,
    /// It is woken only if no other exclusive sleeper is.
    pub is_exclusive: bool,
}

impl Sleeper {
    const fn word(self) -> u64 {
        let exclusive = if self.is_exclusive { EXCLUSIVE } else { 0 };
        TAKEN | exclusive | ((self.application & VALUE) as u64) << APPLICATION_SHIFT | self.context as u64
    }

    const fn of(word: u64) -> Self {
        Self {
            application: (word >> APPLICATION_SHIFT) as u32 & VALUE,
            context: word as u8,
            is_exclusive: word & EXCLUSIVE != 0,
        }
    }
}

/// The numbers of the set bits in word `word`.
fn bits_of(word: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then_some(bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(word * 64 + bit)
    })
}

impl<'a> Accepting<'a> {
    /// The queue in these words.
    #[must_use]
    pub const fn new(words: &'a QueueWords) -> Self {
        Self(words)
    }

    /// A grant is about to be put in, at this moment (`cycles::moment`).
    pub fn note_moment(self, moment: u32) {
        if self.0.arrivals.load(Relaxed) == self.0.seen.load(Relaxed) {
            self.0.since.store(moment, Relaxed);
        }
    }

    /// An epoll set looks at the queue: returns when the first connection after the last such look came. Hostile.
    pub fn look(self) -> u32 {
        let arrivals = self.0.arrivals.load(Relaxed);
        let since = self.0.since.load(Relaxed);
        if self.0.seen.load(Relaxed) != arrivals {
            self.0.seen.store(arrivals, Relaxed);
        }
        since
    }

    /// Puts a grant into the queue. False: it is there already, or a process is accepting it.
    pub fn push(self, grant: u32) -> bool {
        let Some(state) = self.0.states.get(grant as usize) else { return false };
        let ticket = self.0.next.fetch_add(1, Relaxed) & VALUE;
        if state.compare_exchange(0, QUEUED | ticket, AcqRel, Relaxed).is_err() {
            return false;
        }
        self.set_bit(grant as usize);
        self.0.arrivals.fetch_add(1, Release);
        true
    }

    /// As [`push`](Self::push), for a grant that only the service uses and that is free: whatever a hostile process has written there is
    /// overwritten.
    pub fn put(self, grant: u32) {
        let Some(state) = self.0.states.get(grant as usize) else { return };
        let ticket = self.0.next.fetch_add(1, Relaxed) & VALUE;
        state.store(QUEUED | ticket, Release);
        self.set_bit(grant as usize);
        self.0.arrivals.fetch_add(1, Release);
    }

    /// Takes the oldest grant for `application`, which must call [`finish`](Self::finish) when its connection is set up.
    #[must_use]
    pub fn claim(self, application: u32) -> Option<u32> {
        for _ in 0..ATTEMPTS {
            let (grant, state) = self.oldest()?;
            let claimed = CLAIMED | application & VALUE;
            if self.0.states[grant].compare_exchange(state, claimed, AcqRel, Relaxed).is_ok() {
                self.clear_bit(grant);
                return Some(grant as u32);
            }
        }
        None
    }

    /// The connection of a grant that `application` has claimed is set up, or it cannot be: the grant may be used again.
    pub fn finish(self, grant: u32, application: u32) {
        if let Some(state) = self.0.states.get(grant as usize) {
            let _ = state.compare_exchange(CLAIMED | application & VALUE, 0, AcqRel, Relaxed);
        }
    }

    /// Takes a grant out of the queue that no process has claimed. False: it is not there.
    pub fn withdraw(self, grant: u32) -> bool {
        let Some(state) = self.0.states.get(grant as usize) else { return false };
        let seen = state.load(Acquire);
        let claimed = CLAIMED | CLEARER;
        let is_taken = seen & QUEUED != 0 && state.compare_exchange(seen, claimed, AcqRel, Relaxed).is_ok();
        if is_taken {
            self.clear_bit(grant as usize);
            self.finish(grant, CLEARER);
        }
        is_taken
    }

    /// True when the grant waits in the queue. Hostile.
    #[must_use]
    pub fn is_queued(self, grant: u32) -> bool {
        self.0.states.get(grant as usize).is_some_and(|state| state.load(Acquire) & QUEUED != 0)
    }

    /// True when the grant is neither in the queue nor being accepted. Hostile.
    #[must_use]
    pub fn is_idle(self, grant: u32) -> bool {
        self.0.states.get(grant as usize).is_none_or(|state| state.load(Acquire) == 0)
    }

    /// The service has found that `application` has died: what it had claimed waits again, before all others, if `is_unaccepted` says so.
    /// `grant` may be any number. True: the grant waits.
    pub fn repair(self, grant: u32, application: u32, is_unaccepted: impl FnOnce() -> bool) -> bool {
        let Some(state) = self.0.states.get(grant as usize) else { return false };
        let seen = state.load(Acquire);
        if seen & QUEUED != 0 {
            // It may have died before it set the bit.
            self.set_bit(grant as usize);
            return true;
        }
        if seen != CLAIMED | application & VALUE && seen != CLAIMED | CLEARER {
            return false;
        }
        if !is_unaccepted() {
            self.clear_bit(grant as usize);
            let _ = state.compare_exchange(seen, 0, AcqRel, Relaxed);
            return false;
        }
        self.queue_first(grant, seen)
    }

    /// What `application` has claimed waits again, before all others: it cannot accept it now. `grant` is what [`claim`](Self::claim) returned.
    pub fn put_back(self, grant: u32, application: u32) {
        self.queue_first(grant, CLAIMED | application & VALUE);
    }

    /// Has a grant wait before all others, if its state is `seen`.
    fn queue_first(self, grant: u32, seen: u32) -> bool {
        let Some(state) = self.0.states.get(grant as usize) else { return false };
        let ticket = self.0.next.load(Relaxed).wrapping_sub(OLDEST) & VALUE;
        if state.compare_exchange(seen, QUEUED | ticket, AcqRel, Relaxed).is_err() {
            return false;
        }
        self.set_bit(grant as usize);
        self.0.arrivals.fetch_add(1, Release);
        true
    }

    /// Number of connections that came so far, modulo 2^32. A connection that is counted is found in the queue, or was. Hostile.
    #[must_use]
    #[inline]
    pub fn arrivals(self) -> u32 {
        self.0.arrivals.load(Acquire)
    }

    /// True when some grant waits.
    #[must_use]
    #[inline]
    pub fn has_any(self) -> bool {
        self.0.top.load(SeqCst) != 0 && self.oldest().is_some()
    }

    /// As [`has_any`](Self::has_any), for a thread that is about to sleep. It reads all bits: a process that has emptied a group clears the
    /// group's bit in `top`, and sees only after that whether another grant has come meanwhile.
    fn has_any_for_sure(self) -> bool {
        if self.has_any() {
            return true;
        }
        let is_queued = |grant: usize| self.0.states[grant].load(Acquire) & QUEUED != 0;
        self.0.waiting.iter().enumerate().any(|(word, bits)| {
            let found = bits_of(word, bits.load(SeqCst)).any(is_queued);
            if found {
                self.0.top.fetch_or(1 << (word / WORDS_PER_GROUP), SeqCst);
            }
            found
        })
    }

    /// Number of grants that wait. Hostile.
    #[must_use]
    pub fn count(self) -> usize {
        let mut n = 0;
        self.each_queued(|_, _| n += 1);
        n
    }

    /// The grant that waits longest, with its state.
    fn oldest(self) -> Option<(usize, u32)> {
        let mut found: Option<(usize, u32, u32)> = None;
        // Grants that come from now on have later tickets, and are not to count as very old ones.
        let next = self.0.next.load(Relaxed).wrapping_add(GRANTS as u32);
        self.each_queued(|grant, state| {
            let age = next.wrapping_sub(state) & VALUE;
            if found.is_none_or(|(_, _, oldest)| age > oldest) {
                found = Some((grant, state, age));
            }
        });
        found.map(|(grant, state, _)| (grant, state))
    }

    /// Calls `f` with each grant that waits and its state. Clears the bits of others, so that a hostile process that sets them costs one
    /// such look only.
    pub(crate) fn each_queued(self, mut f: impl FnMut(usize, u32)) {
        let mut top = self.0.top.load(SeqCst);
        while top != 0 {
            let group = top.trailing_zeros() as usize;
            top &= top - 1;
            let mut is_empty = true;
            for word in (group * WORDS_PER_GROUP..).take(WORDS_PER_GROUP) {
                let (mut stale, bits) = (0, self.0.waiting[word].load(SeqCst));
                for grant in bits_of(word, bits) {
                    let state = self.0.states[grant].load(Acquire);
                    if state & QUEUED != 0 {
                        is_empty = false;
                        f(grant, state);
                    } else if state == 0 {
                        stale |= 1u64 << (grant % 64);
                    }
                }
                if stale != 0 {
                    self.clear_stale(word, stale);
                }
            }
            if is_empty {
                self.settle_group(group);
            }
        }
    }

    /// Clears bits that were left without a grant.
    #[cold]
    fn clear_stale(self, word: usize, stale: u64) {
        for grant in bits_of(word, stale) {
            if self.0.states[grant].compare_exchange(0, CLAIMED | CLEARER, AcqRel, Relaxed).is_ok() {
                self.clear_bit(grant);
                self.finish(grant as u32, CLEARER);
            }
        }
    }

    fn set_bit(self, grant: usize) {
        let (word, bit) = (grant / 64, 1 << (grant % 64));
        self.0.waiting[word].fetch_or(bit, SeqCst);
        let group = 1u64 << (word / WORDS_PER_GROUP);
        if self.0.top.load(SeqCst) & group == 0 {
            self.0.top.fetch_or(group, SeqCst);
        }
        barrier_beside_rmw();
    }

    fn clear_bit(self, grant: usize) {
        self.0.waiting[grant / 64].fetch_and(!(1 << (grant % 64)), SeqCst);
        self.settle_group(grant / 64 / WORDS_PER_GROUP);
    }

    /// Clears the bit of a group without a grant that waits.
    fn settle_group(self, group: usize) {
        let words = &self.0.waiting[group * WORDS_PER_GROUP..][..WORDS_PER_GROUP];
        if self.0.top.load(SeqCst) & 1 << group == 0 {
            return;
        }
        let is_empty = || words.iter().all(|word| word.load(SeqCst) == 0);
        if is_empty() {
            self.0.top.fetch_and(!(1 << group), SeqCst);
            barrier_beside_rmw();
            // A bit set meanwhile may have found the group's bit still set.
            if !is_empty() {
                self.0.top.fetch_or(1 << group, SeqCst);
            }
        }
    }

    /// Takes a place for a sleeper, which does not sleep yet. `None`: there are too many.
    #[must_use]
    pub fn register(self, sleeper: Sleeper) -> Option<usize> {
        let first =
            (sleeper.application as usize).wrapping_mul(31).wrapping_add(usize::from(sleeper.context));
        (0..SLEEPERS).map(|i| (first + i) % SLEEPERS).find(|place| {
            let is_taken =
                self.0.sleepers[*place].compare_exchange(0, sleeper.word(), AcqRel, Relaxed).is_ok();
            if is_taken {
                self.take_turn(*place);
            }
            is_taken
        })
    }

    /// Gives a sleeper's place back. True: it was woken for a connection and has not looked; another must be woken.
    #[must_use]
    pub fn unregister(self, place: usize, sleeper: Sleeper) -> bool {
        self.awake(place);
        let is_left = self.take_turn(place) && self.has_any();
        if let Some(word) = self.0.sleepers.get(place) {
            let _ = word.compare_exchange(sleeper.word(), 0, AcqRel, Relaxed);
        }
        is_left
    }

    /// The sleeper at `place`, which was woken for a connection, is about to take one. True: it was woken for one.
    pub fn take_turn(self, place: usize) -> bool {
        let (word, bit) = (&self.0.woken[place / 64 % self.0.woken.len()], 1 << (place % 64));
        word.load(Relaxed) & bit != 0 && word.fetch_and(!bit, SeqCst) & bit != 0
    }

    /// True when a grant waits for the exclusive sleeper at `place`: it was woken for it, or more grants wait than other exclusive sleepers
    /// were woken for. So these take turns, even if one that is awake could be quicker than the one that was woken.
    #[must_use]
    pub fn has_for(self, place: usize) -> bool {
        let is_woken = self.take_turn(place);
        self.has_any() && (is_woken || self.has_more_than_woken())
    }

    /// True when more grants wait than exclusive sleepers were woken for.
    fn has_more_than_woken(self) -> bool {
        let woken = self.0.woken.iter().map(|word| word.load(SeqCst).count_ones() as usize);
        self.count() > woken.sum()
    }

    /// As [`prepare_sleep`](Self::prepare_sleep), for the exclusive sleeper of an epoll set: see [`has_for`](Self::has_for).
    #[must_use]
    pub fn prepare_exclusive_sleep(self, place: usize) -> bool {
        if self.prepare_sleep(place) {
            return true;
        }
        self.announce_sleep(place);
        if !self.has_more_than_woken() {
            return true;
        }
        self.awake(place);
        false
    }

    /// The sleeper at `place` goes to sleep. False: a grant waits, so it must not.
    #[must_use]
    pub fn prepare_sleep(self, place: usize) -> bool {
        self.announce_sleep(place);
        if !self.has_any_for_sure() {
            return true;
        }
        self.awake(place);
        false
    }

    /// As [`prepare_sleep`](Self::prepare_sleep); the caller looks at the queue afterwards.
    pub fn announce_sleep(self, place: usize) {
        self.0.asleep[place / 64 % self.0.asleep.len()].fetch_or(1 << (place % 64), SeqCst);
        // Pairs with the fence in `wake`: the process that adds a grant sees the sleeper, or this thread sees the grant.
        fence(SeqCst);
    }

    /// The sleeper at `place` sleeps no more.
    pub fn awake(self, place: usize) {
        let word = &self.0.asleep[place / 64 % self.0.asleep.len()];
        let bit = 1 << (place % 64);
        if word.load(Relaxed) & bit != 0 {
            word.fetch_and(!bit, SeqCst);
        }
    }

    /// Calls `wake` with each sleeper that the news of one more grant must wake: all that are not exclusive, and one that is, in turn. `wake`
    /// says whether there is such a sleeper.
    pub fn wake(self, mut wake: impl FnMut(Sleeper) -> bool) {
        fence(SeqCst);
        if self.0.asleep.iter().all(|word| word.load(SeqCst) == 0) {
            return;
        }
        let first = self.0.turn.load(Relaxed) as usize % SLEEPERS;
        let mut is_done = false;
        for places in [first..SLEEPERS, 0..first] {
            self.wake_in(places, &mut is_done, &mut wake);
        }
    }

    fn wake_in(self, places: Range<usize>, is_done: &mut bool, wake: &mut impl FnMut(Sleeper) -> bool) {
        for index in places.start / 64..places.end.div_ceil(64) {
            let word = &self.0.asleep[index];
            let mut bits = word.load(SeqCst);
            while bits != 0 {
                let (place, bit) = (index * 64 + bits.trailing_zeros() as usize, bits & bits.wrapping_neg());
                bits &= bits - 1;
                let sleeper = self.0.sleepers[place].load(Acquire);
                let is_exclusive = sleeper & EXCLUSIVE != 0;
                if !places.contains(&place) || sleeper == 0 || is_exclusive && *is_done {
                    continue;
                }
                // First: a sleeper that leaves finds its mark gone, and then this bit.
                if is_exclusive {
                    self.0.woken[index].fetch_or(bit, SeqCst);
                }
                let is_woken = word.fetch_and(!bit, SeqCst) & bit != 0 && wake(Sleeper::of(sleeper));
                if is_exclusive && is_woken {
                    *is_done = true;
                    self.0.turn.store(place as u32 + 1, Relaxed);
                } else if is_exclusive {
                    self.take_turn(place);
                }
            }
        }
    }

    /// Forgets the sleepers for which `is_gone` says true of their application id.
    pub fn forget_sleepers(self, is_gone: impl Fn(u32) -> bool) {
        for (place, word) in self.0.sleepers.iter().enumerate() {
            let seen = word.load(Acquire);
            if seen != 0 && is_gone(Sleeper::of(seen).application) {
                self.awake(place);
                let _ = word.compare_exchange(seen, 0, AcqRel, Relaxed);
            }
        }
        // A process that was killed may have left a bit here, and a set would leave a grant to a sleeper that is gone. One bit too few only
        // has two sets look.
        self.0.woken.iter().for_each(|word| word.store(0, SeqCst));
    }

    /// True when some sleeper sleeps. Hostile.
    #[must_use]
    pub fn has_sleepers(self) -> bool {
        self.0.asleep.iter().any(|word| word.load(Relaxed) != 0)
    }
}

const _: () = assert!(GRANTS.is_multiple_of(64));
