//! `RLIMIT_AS`, getrlimit(2): the program's limit is for its own memory, not for what this library has mapped. The kernel is told of one
//! that has room for both.

use crate::fd::tables;
use control::Request;
use rustix::process::{Resource, getrlimit};
use session::{self, lock};
use std::sync::Mutex;

/// `rlim_cur` and `rlim_max`, bytes.
pub type Limits = [u64; 2];

const NONE: u64 = libc::RLIM_INFINITY;

/// The limits that the program has set, and those that the kernel was told.
static SET: Mutex<Option<(Limits, Limits)>> = Mutex::new(None);

/// Takes this module's lock before a fork.
pub fn hold(held: &mut session::fork_locks::Held) {
    held.take_static(&SET);
}

/// Sets the program's limits by `tell`, which says whether the kernel has taken them.
pub fn set(wanted: Limits, tell: impl FnOnce(Limits) -> bool) {
    let client = if tables::has_any() { session::present() } else { None };
    let ours = client.as_ref().map_or(0, |client| client.mapped_bytes());
    let widened = |limit: u64| if limit == NONE { NONE } else { limit.saturating_add(ours) };
    let hard = getrlimit(Resource::As).maximum.unwrap_or(NONE);
    let told = match wanted {
        // Invalid limits: the kernel reports that.
        [soft, most] if soft > most || most > hard => wanted,
        // Not above the present hard limit, which few programs may raise.
        [soft, most] => [widened(soft).min(hard), widened(most).min(hard)],
    };
    if tell(told) {
        let _deferred = session::sys::signal::Deferred::begin();
        *lock(&SET) = Some((wanted, told));
        client.iter().for_each(|client| client.say(Request::Room { room: session::room() }));
    }
}

/// The limits that the program sees when the kernel reports `kernel`.
#[must_use]
pub fn seen(kernel: Limits) -> Limits {
    let _deferred = session::sys::signal::Deferred::begin();
    match *lock(&SET) {
        Some((wanted, told)) if told == kernel => wanted,
        _ => kernel,
    }
}
