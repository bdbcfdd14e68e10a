//! Where the time of a thread goes, as far as the library sees it. It is counted in the thread's account in our region, where the service
//! reads it. Off unless the service has turned on the switch in the region's header; off, a call costs a load and a branch more.
//!
//! A thread takes an account when it first counts. A destructor that reports the thread's end might be registered by a signal handler in
//! the middle of an allocation; so there is none, and an ended thread's account is found when no other is free.

use crate::detached;
use crate::sys;
pub use cycles::Section;
use cycles::Switch;
use shm::{ACCOUNTS, Region, ThreadAccount};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

/// The switch without a registration: nothing is counted.
static NEVER: AtomicU32 = AtomicU32::new(0);
/// The switch: the word in the header of our application region.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NEVER).cast_mut());
/// Our application region; null without a registration.
static HOME: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
/// In place of a section: nothing was counted.
const NOT: u32 = u32::MAX;

/// From now on this process's accounts lie in `region`.
pub fn follow(region: &Arc<Region>) {
    // Never freed: any thread may be in the middle of looking at it. A process seldom registers more than once.
    let region = Arc::into_raw(region.clone());
    // SAFETY: the pointer was made just now from an Arc that is never dropped.
    let word = unsafe { &raw const (*region).header().cycles };
    // Release: pairs with the Acquire in `home` and `switch`.
    HOME.store(region.cast_mut(), Release);
    WORD.store(word.cast_mut(), Release);
}

/// In a forked child: stops counting, since the region is its parent's.
pub fn child() {
    WORD.store((&raw const NEVER).cast_mut(), Relaxed);
    HOME.store(ptr::null_mut(), Relaxed);
    let _ = MINE.try_with(|mine| mine.word.set(0));
}

fn home() -> Option<&'static Region> {
    // SAFETY: null, or what `follow` has put there, which is never dropped.
    unsafe { HOME.load(Acquire).as_ref() }
}

#[inline]
fn switch() -> Switch {
    // SAFETY: a static's address, or a word of a region that `follow` keeps mapped for ever.
    Switch::from_word(unsafe { (*WORD.load(Acquire)).load(Relaxed) })
}

/// A thread's own counting state.
struct Mine {
    /// The switch's value that the thread has followed.
    word: Cell<u32>,
    section: Cell<u32>,
    at: Cell<u64>,
    account: Cell<Option<&'static ThreadAccount>>,
    /// The region in which `account` lies.
    home: Cell<*const Region>,
}

thread_local! {
    // Without a destructor: see the module.
    static MINE: Mine = const {
        Mine {
            word: Cell::new(0),
            section: Cell::new(Section::Application as u32),
            at: Cell::new(0),
            account: Cell::new(None),
            home: Cell::new(ptr::null()),
        }
    };
}

impl Mine {
    /// Turns to `section`. Returns the section before it; `NOT` when nothing is counted.
    fn turn_to(&self, section: u32, switch: Switch, is_new: bool) -> u32 {
        let now = switch.ticks().now();
        if self.word.get() != switch.word() {
            self.follow(switch, now);
        }
        let Some(account) = self.account.get() else { return NOT };
        let before = self.section.replace(section);
        let [ticks, _] = &account.spent[before as usize % shm::SECTIONS];
        // Only this thread writes there.
        ticks.store(ticks.load(Relaxed).wrapping_add(now.saturating_sub(self.at.replace(now))), Relaxed);
        account.at.store(now, Relaxed);
        account.section.store(section, Relaxed);
        if is_new {
            let [_, times] = &account.spent[section as usize % shm::SECTIONS];
            times.store(times.load(Relaxed).wrapping_add(1), Relaxed);
        }
        before
    }

    #[cold]
    fn follow(&self, switch: Switch, now: u64) {
        self.word.set(switch.word());
        let Some(region) = home() else { return self.account.set(None) };
        if !ptr::eq(self.home.replace(region), region) {
            self.account.set(take(region));
        }
        if let Some(account) = self.account.get() {
            begin(account, switch.generation());
        }
        // Time from before the switch was turned counts for no section.
        self.at.set(now);
        self.section.set(Section::Application as u32);
    }
}

/// Sets the account's counts to 0, unless they are of this generation already.
fn begin(account: &ThreadAccount, generation: u32) {
    if account.generation.load(Relaxed) != generation {
        account.spent.iter().flatten().for_each(|word| word.store(0, Relaxed));
        account.generation.store(generation, Release);
    }
}

/// Takes an account for this thread. `None`: all belong to living threads, or we are locked in.
fn take(region: &'static Region) -> Option<&'static ThreadAccount> {
    if detached::is_locked() {
        return None;
    }
    let taken = &region.header().accounts_taken;
    let free = taken.fetch_update(AcqRel, Relaxed, |bits| {
        // Account 0 is shared: it sums up what ended threads have counted.
        let bits = bits | 1;
        (bits != u64::MAX).then(|| bits | 1 << (!bits).trailing_zeros())
    });
    let tid = sys::tid();
    match free {
        Ok(bits) => {
            let account = region.account((!(bits | 1)).trailing_zeros())?;
            account.owner.store(tid, Release);
            Some(account)
        }
        Err(_) => (1..ACCOUNTS as u32).find_map(|i| inherit(region, region.account(i)?, tid)),
    }
}

/// Takes the account of a thread that has ended; its counts go to account 0.
fn inherit(region: &Region, account: &'static ThreadAccount, tid: u32) -> Option<&'static ThreadAccount> {
    let owner = account.owner.load(Acquire);
    if owner == 0 || sys::has_thread(owner) {
        return None;
    }
    account.owner.compare_exchange(owner, tid, AcqRel, Relaxed).ok()?;
    let first = region.account(0)?;
    begin(first, account.generation.load(Relaxed));
    for (sum, part) in first.spent.iter().flatten().zip(account.spent.iter().flatten()) {
        sum.fetch_add(part.swap(0, Relaxed), Relaxed);
    }
    Some(account)
}

/// The thread is in a section until this is dropped; then it is back in the one before.
#[derive(Debug)]
#[must_use]
pub struct Entered(u32);

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        leave(self.0);
    }
}

/// Puts the calling thread into `section` until the result is dropped.
#[inline]
pub fn enter(section: Section) -> Entered {
    Entered(turn(section))
}

/// Like [`enter`], for a thread that the C library may unwind: nothing is dropped. Give the result to [`leave`].
#[inline]
pub fn turn(section: Section) -> u32 {
    let switch = switch();
    if switch.is_on() { turn_to(section as u32, switch, true) } else { NOT }
}

/// Returns to the section that was left by [`turn`].
#[inline]
pub fn leave(before: u32) {
    if before != NOT {
        back(before);
    }
}

#[cold]
#[inline(never)]
fn turn_to(section: u32, switch: Switch, is_new: bool) -> u32 {
    MINE.try_with(|mine| mine.turn_to(section, switch, is_new)).unwrap_or(NOT)
}

#[cold]
#[inline(never)]
fn back(before: u32) {
    let switch = switch();
    // If the switch was turned off meanwhile, nothing is counted.
    if switch.is_on() {
        turn_to(before, switch, false);
    }
}

#[cfg(test)]
#[path = "cycle_account_tests.rs"]
mod tests;
