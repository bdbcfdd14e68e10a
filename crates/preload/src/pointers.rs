//! Which pointers of the program are looked at before they are used: NULL always, the rest when the user wants it.

use socket::sys;

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
