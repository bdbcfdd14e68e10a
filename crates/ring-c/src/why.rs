//! Results as C has them: numbers, and a text that says more about the last failure of a thread.

use ring::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static WHY: RefCell<CString> = RefCell::default();
}

/// Notes a failure, and returns it as a number.
pub(crate) fn failed(errno: i32, text: &str) -> i32 {
    // A text with a zero byte is cut there.
    let text = text.split('\0').next().unwrap_or_default();
    if let Ok(text) = CString::new(text) {
        WHY.with_borrow_mut(|why| *why = text);
    }
    -errno
}

/// Notes an error of the ring's.
pub(crate) fn error(e: &Error) -> i32 {
    failed(e.errno(), &e.to_string())
}

/// The text, good until the thread's next failure.
pub(crate) fn text() -> *const c_char {
    WHY.with_borrow(|why| why.as_ptr())
}
