//! Where the time of a thread goes, as far as the library sees it: counted in the thread's account in our region, where the service
//! reads it. Off unless the service has turned the switch in the region's header, and then a load and a branch for each call.
//!
//! A thread takes an account when it first counts. Nothing tells when a thread ends, for whatever could be told of it might be a
//! signal handler's first call in the middle of an allocation; so an account whose thread is gone is found when there is no other.

use crate::{locked, sys};
pub use cycles::Section;
use cycles::Switch;
use shm::{ACCOUNTS, Region, ThreadAccount};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32};

/// Without a registration nothing is counted.
static NEVER: AtomicU32 = AtomicU32::new(0);
/// The switch: the word in the header of our application region.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NEVER).cast_mut());
/// That region.
static HOME: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
/// In place of a section: nothing was counted.
const NOT: u32 = u32::MAX;

/// From now on accounts lie in `region`: ours.
pub fn follow(region: &Arc<Region>) {
    // It stays for ever: any thread may be in the middle of looking at it. A process registers seldom more than once.
    let region = Arc::into_raw(region.clone());
    // SAFETY: it was made of an Arc just now that is never dropped.
    let word = unsafe { &raw const (*region).header().cycles };
    // Release: pairs with the Acquire in `home` and `switch`.
    HOME.store(region.cast_mut(), Release);
    WORD.store(word.cast_mut(), Release);
}

/// In a forked child: the region is its parent's.
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

/// A thread's own part.
struct Mine {
    /// The switch as it was followed.
    word: Cell<u32>,
    section: Cell<u32>,
    at: Cell<u64>,
    account: Cell<Option<&'static ThreadAccount>>,
    /// The region in which that is.
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
    /// Turns to `section`. What it did before.
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
        // What was begun before the switch was turned is nobody's.
        self.at.set(now);
        self.section.set(Section::Application as u32);
    }
}

/// The account counts from nothing, unless it does so in that generation already.
fn begin(account: &ThreadAccount, generation: u32) {
    if account.generation.load(Relaxed) != generation {
        account.spent.iter().flatten().for_each(|word| word.store(0, Relaxed));
        account.generation.store(generation, Release);
    }
}

/// An account for this thread. `None`: all are living threads'.
fn take(region: &'static Region) -> Option<&'static ThreadAccount> {
    if locked::is_locked() {
        return None;
    }
    let taken = &region.header().accounts_taken;
    let free = taken.fetch_update(AcqRel, Relaxed, |bits| {
        // The first is everybody's.
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

/// Takes the account of a thread that is no more; what it has counted goes to the first.
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

/// While it lives the thread is in a section; then back in the one before.
#[derive(Debug)]
#[must_use]
pub struct Entered(u32);

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        leave(self.0);
    }
}

/// The calling thread is in `section`, until what this returns is dropped.
#[inline]
pub fn enter(section: Section) -> Entered {
    Entered(turn(section))
}

/// The same without anything to be dropped: for who may be unwound by the C library. [`leave`] wants what it returns.
#[inline]
pub fn turn(section: Section) -> u32 {
    let switch = switch();
    if switch.is_on() { turn_to(section as u32, switch, true) } else { NOT }
}

/// Back to the section that was left by [`turn`].
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
    // A window that has ended meanwhile: nobody counts.
    if switch.is_on() {
        turn_to(before, switch, false);
    }
}

#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;
