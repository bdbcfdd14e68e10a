//! Which pointers of the program are looked at before they are used: NULL always, the rest when the user wants it.

use socket::sys;
use std::cell::Cell;

/// True when every pointer is.
#[inline]
pub fn are_checked() -> bool {
    socket::config::checks_pointers()
}

/// False when the program cannot have meant `len` bytes at `at` to be read.
#[inline]
pub fn is_readable<T>(at: *const T, len: usize) -> bool {
    len == 0 || !at.is_null() && (!are_checked() || sys::is_readable(at as usize, len))
}

/// False when it cannot have meant them to be written.
#[inline]
pub fn is_writable<T>(at: *const T, len: usize) -> bool {
    len == 0 || !at.is_null() && (!are_checked() || sys::is_writable(at as usize, len))
}

/// Smaller than any machine's.
const PAGE: usize = 4096;

thread_local! {
    /// Pages that the kernel could read when it was last asked, plus 1: what callers pass lies on few.
    static KNOWN: Cell<[usize; 4]> = const { Cell::new([0; 4]) };
}

/// As [`is_readable`], for what is always checked, since the kernel would have: pages that could be read lately are not asked for again.
pub fn is_known<T>(at: *const T, len: usize) -> bool {
    let at = at as usize;
    let both = [at, at.wrapping_add(len.saturating_sub(1))].map(|byte| byte / PAGE + 1);
    let pages = if both[0] == both[1] { &both[1..] } else { &both };
    let all = KNOWN.try_with(Cell::get).unwrap_or_default();
    if pages.iter().all(|page| all.contains(page)) && len <= PAGE && !are_checked() {
        return true;
    }
    if !sys::is_readable(at, len) {
        return false;
    }
    let before = all.iter().filter(|page| !pages.contains(page));
    let mut all = pages.iter().chain(before).copied();
    let _ = KNOWN.try_with(|known| known.set(std::array::from_fn(|_| all.next().unwrap_or(0))));
    true
}
