//! Checks of the program's pointers before they are used: NULL always, others when the user wants it.

use session::sys;
use std::cell::Cell;

/// True when all pointers are checked, not only for NULL.
#[inline]
pub fn are_checked() -> bool {
    session::config::checks_pointers()
}

/// False when `len` bytes at `at` cannot be read: NULL, or unreadable if pointers are checked.
#[inline]
pub fn is_readable<T>(at: *const T, len: usize) -> bool {
    len == 0 || !at.is_null() && (!are_checked() || sys::pointers::is_readable(at as usize, len))
}

/// False when `len` bytes at `at` cannot be written: NULL, or not writable if pointers are checked.
#[inline]
pub fn is_writable<T>(at: *const T, len: usize) -> bool {
    len == 0 || !at.is_null() && (!are_checked() || sys::pointers::is_writable(at as usize, len))
}

/// The smallest page size, in bytes.
const PAGE: usize = 4096;

thread_local! {
    /// Numbers, plus 1, of pages that were readable when last checked: callers pass pointers into few pages.
    static KNOWN: Cell<[usize; 4]> = const { Cell::new([0; 4]) };
}

/// As [`is_readable`], for pointers that are always checked because the kernel would check them; pages found readable before are skipped.
pub fn is_known<T>(at: *const T, len: usize) -> bool {
    let at = at as usize;
    let both = [at, at.wrapping_add(len.saturating_sub(1))].map(|byte| byte / PAGE + 1);
    let pages = if both[0] == both[1] { &both[1..] } else { &both };
    let all = KNOWN.try_with(Cell::get).unwrap_or_default();
    if pages.iter().all(|page| all.contains(page)) && len <= PAGE && !are_checked() {
        return true;
    }
    if !sys::pointers::is_readable(at, len) {
        return false;
    }
    let before = all.iter().filter(|page| !pages.contains(page));
    let mut all = pages.iter().chain(before).copied();
    let _ = KNOWN.try_with(|known| known.set(std::array::from_fn(|_| all.next().unwrap_or(0))));
    true
}
