//! `RLIMIT_AS`, getrlimit(2): what this library has mapped is not the program's. A limit that the program sets is its own memory's; the
//! kernel is told of one that has room for both.

use crate::client::{self, lock};
use crate::fds;
use control::Request;
use rustix::process::{Resource, getrlimit};
use std::sync::Mutex;

/// `rlim_cur` and `rlim_max`.
pub type Limits = [u64; 2];

const NONE: u64 = libc::RLIM_INFINITY;

/// What the program has set, and what the kernel was told.
static SET: Mutex<Option<(Limits, Limits)>> = Mutex::new(None);

/// Before a fork.
pub fn hold(held: &mut crate::hold::Held) {
    held.take_static(&SET);
}

/// Sets what the program wants by `tell`, which says whether the kernel has taken it.
pub fn set(wanted: Limits, tell: impl FnOnce(Limits) -> bool) {
    let client = if fds::has_any() { client::present() } else { None };
    let ours = client.as_ref().map_or(0, |client| client.mapped_bytes());
    let widened = |limit: u64| if limit == NONE { NONE } else { limit.saturating_add(ours) };
    let hard = getrlimit(Resource::As).maximum.unwrap_or(NONE);
    let told = match wanted {
        // Not to be had: the kernel says so.
        [soft, most] if soft > most || most > hard => wanted,
        // What only few may raise again is not raised.
        [soft, most] => [widened(soft).min(hard), widened(most).min(hard)],
    };
    if tell(told) {
        let _deferred = crate::sys::signal::Deferred::begin();
        *lock(&SET) = Some((wanted, told));
        client.iter().for_each(|client| client.say(Request::Room { room: client::room() }));
    }
}

/// What the program is told of what the kernel says.
#[must_use]
pub fn seen(kernel: Limits) -> Limits {
    let _deferred = crate::sys::signal::Deferred::begin();
    match *lock(&SET) {
        Some((wanted, told)) if told == kernel => wanted,
        _ => kernel,
    }
}
