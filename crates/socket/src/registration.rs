//! Which registration with the service this process uses, and how it comes by one: at its first need, or as a forked child.

use crate::client::{Announced, Client, lock};
use crate::hold::Held;
use crate::locked;
use crate::log::{Level, log};
use crate::sys::signal::Deferred;
use control::LineError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

static CURRENT: RwLock<Option<Arc<Client>>> = RwLock::new(None);
/// In a forked child, until it needs the service: most children become another program before they do.
static ANNOUNCED: Mutex<Option<(Announced, Arc<Client>)>> = Mutex::new(None);
static IS_ANNOUNCED: AtomicBool = AtomicBool::new(false);
static LAST_TRY: Mutex<Option<Instant>> = Mutex::new(None);
/// After a failure, not more often than this.
const RETRY: Duration = Duration::from_millis(250);

/// The registration, if there is one, dead or alive.
#[must_use]
pub fn present() -> Option<Arc<Client>> {
    // Acquire: pairs with the Release in `announce` and `finish`.
    if IS_ANNOUNCED.load(Ordering::Acquire) && !locked::is_locked() {
        finish();
    }
    CURRENT.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// True in a forked child that has said hello and no more.
#[must_use]
pub fn is_announced() -> bool {
    IS_ANNOUNCED.load(Ordering::Acquire)
}

/// A live registration; registers if there is none and the last attempt is long enough ago.
#[must_use]
pub fn current() -> Option<Arc<Client>> {
    if locked::is_locked() {
        return None;
    }
    let alive = |c: &Arc<Client>| !c.dead.load(Ordering::Relaxed);
    if let Some(client) = present().filter(alive) {
        return Some(client);
    }
    let _deferred = Deferred::begin();
    let mut last = lock(&LAST_TRY);
    if let Some(client) = present().filter(alive) {
        return Some(client);
    }
    if last.is_some_and(|t| t.elapsed() < RETRY) {
        return None;
    }
    *last = Some(Instant::now());
    match Announced::new().and_then(|announced| announced.finish(None)) {
        Ok(client) => {
            *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
            Some(client)
        }
        Err(e) => {
            log(level_of(&e), format_args!("no service, sockets stay with the kernel: {e}"));
            None
        }
    }
}

/// That there is no service is usual. One that is not trusted is said once.
fn level_of(e: &LineError) -> Level {
    static SAID: AtomicBool = AtomicBool::new(false);
    let is_news = matches!(e, LineError::Untrusted(_)) && !SAID.swap(true, Ordering::Relaxed);
    if is_news { Level::Error } else { Level::Info }
}

/// In a forked child: says hello with the holder bit that `parent` has promised. The rest is done when it is needed.
pub fn announce(parent: Arc<Client>, holder: u8) {
    match Announced::as_child(&parent, holder) {
        Ok(announced) => {
            *lock(&ANNOUNCED) = Some((announced, parent));
            replace(None);
            IS_ANNOUNCED.store(true, Ordering::Release);
        }
        Err(e) => orphan(&parent, &e),
    }
}

/// Does the rest, once; other threads wait for it.
#[cold]
fn finish() {
    let _deferred = Deferred::begin();
    let mut announced = lock(&ANNOUNCED);
    let Some((said, parent)) = announced.take() else { return };
    match said.finish(Some(&parent)) {
        Ok(client) => replace(Some(client)),
        Err(e) => orphan(&parent, &e),
    }
    IS_ANNOUNCED.store(false, Ordering::Release);
}

/// In a forked child that cannot do the rest any more: its parent's registration takes its place.
pub fn settle_for_parents() {
    let Some((said, parent)) = lock(&ANNOUNCED).take() else { return };
    replace(Some(said.stand_in(&parent)));
    IS_ANNOUNCED.store(false, Ordering::Release);
}

/// A forked child whose registration failed holds nothing of its parent's.
fn orphan(parent: &Client, why: &LineError) {
    log(Level::Warn, format_args!("the forked child could not register: {why}"));
    parent.die();
    replace(None);
}

/// Puts another registration, or none, in place: in a forked child.
pub fn replace(client: Option<Arc<Client>>) {
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = client;
    *lock(&LAST_TRY) = None;
}

/// Before a fork, first.
pub fn hold_attempts(held: &mut Held) {
    held.take_static(&ANNOUNCED);
    held.take_static(&LAST_TRY);
}

/// Before a fork, last.
pub fn hold_current(held: &mut Held) {
    held.take_whole_static(&CURRENT);
}
