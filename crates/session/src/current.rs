//! The registration with the service that this process uses, and how it is made: when first needed, or in a forked child.

use crate::fork_locks::Held;
use crate::latest::Latest;
use crate::log::{Level, log};
use crate::sys::signal::Deferred;
use crate::{Announced, Client, detached, lock};
use control::LineError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

static CURRENT: Latest<Client> = Latest::new();
/// Held, with signals put off, while `CURRENT` is replaced.
static CHANGING: Mutex<()> = Mutex::new(());
/// A forked child's registration, begun but not finished until it is needed: most children `exec` before that.
static ANNOUNCED: Mutex<Option<(Announced, Arc<Client>)>> = Mutex::new(None);
static IS_ANNOUNCED: AtomicBool = AtomicBool::new(false);
/// When the last attempt to register began, and how long it has taken.
static LAST_TRY: Mutex<Option<(Instant, Duration)>> = Mutex::new(None);
/// Shortest time between two attempts, after a failure.
const RETRY: Duration = Duration::from_millis(250);
/// After an attempt that took a time t, because the service is silent, none is made for `PAUSE` * t.
const PAUSE: u32 = 10;

/// The registration of this process, alive or dead, if it has one.
#[must_use]
pub fn present() -> Option<Arc<Client>> {
    // Acquire: pairs with the Release in `announce` and `finish`.
    if IS_ANNOUNCED.load(Ordering::Acquire) && !detached::is_locked() {
        finish();
    }
    CURRENT.load()
}

/// True in a forked child that has begun its registration and not finished it.
#[must_use]
pub fn is_announced() -> bool {
    IS_ANNOUNCED.load(Ordering::Acquire)
}

/// A live registration; registers if there is none and the last attempt was at least `RETRY` ago.
#[must_use]
pub fn current() -> Option<Arc<Client>> {
    if detached::is_locked() {
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
    if last.is_some_and(|(at, took)| at.elapsed() < RETRY.max(took * PAUSE)) {
        return None;
    }
    let began = Instant::now();
    let failed = |e| log(level_of(&e), format_args!("no service, sockets stay with the kernel: {e}"));
    let client = register().map_err(failed).ok();
    *last = Some((began, began.elapsed()));
    client
}

/// Registers this process anew, now.
///
/// # Errors
/// Why there is no service for this process.
pub fn register() -> Result<Arc<Client>, LineError> {
    let client = Announced::new()?.finish(None)?;
    change(Some(client.clone()));
    Ok(client)
}

fn change(client: Option<Arc<Client>>) {
    let _deferred = Deferred::begin();
    let _changing = lock(&CHANGING);
    CURRENT.replace(client);
}

/// Level of the log message for a failed registration. A missing service is usual; an untrusted one is reported as an error, once.
fn level_of(e: &LineError) -> Level {
    static SAID: AtomicBool = AtomicBool::new(false);
    let is_news = matches!(e, LineError::Untrusted(_)) && !SAID.swap(true, Ordering::Relaxed);
    if is_news { Level::Error } else { Level::Info }
}

/// In a forked child: begins the registration with the holder bit that `parent` has reserved. `finish` does the rest when needed.
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

/// Finishes a registration that was announced. Other threads wait for it.
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

/// In a forked child that can no longer finish its registration: uses its parent's instead.
pub fn settle_for_parents() {
    let Some((said, parent)) = lock(&ANNOUNCED).take() else { return };
    replace(Some(said.stand_in(&parent)));
    IS_ANNOUNCED.store(false, Ordering::Release);
}

/// After a forked child failed to register: drops its hold on everything of its parent's.
fn orphan(parent: &Client, why: &LineError) {
    log(Level::Warn, format_args!("the forked child could not register: {why}"));
    parent.die();
    replace(None);
}

/// Replaces the registration (`None`: there is none), in a forked child.
pub fn replace(client: Option<Arc<Client>>) {
    change(client);
    *lock(&LAST_TRY) = None;
}

/// Takes these locks before a fork, as the first locks.
pub fn hold_attempts(held: &mut Held) {
    held.take_static(&ANNOUNCED);
    held.take_static(&LAST_TRY);
}

/// Takes this lock before a fork, as the last lock.
pub fn hold_current(held: &mut Held) {
    held.take_static(&CHANGING);
}
