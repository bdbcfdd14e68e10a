//! Cancellation points: calls in which a thread ends that somebody cancels. The C library unwinds its stack, from here on: nothing of
//! ours lies there.

use crate::next;
use libc::{c_int, pthread_t};
use socket::cancel;
use std::ptr;

/// `pthread.h`.
const DEFERRED: c_int = 0;
const ASYNCHRONOUS: c_int = 1;

unsafe extern "C-unwind" {
    /// See pthread_testcancel(3); `libc` does not name it.
    fn pthread_testcancel();
}

/// What a call of C returns.
pub trait Answer: Copy + PartialEq {
    /// It failed, errno says why.
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: Self = -1;
}

impl Answer for isize {
    const FAILED: Self = -1;
}

/// True when a sleep ended only because somebody cancels the thread, or may.
fn is_to_be_made_again<R: Answer>(answer: R) -> bool {
    // SAFETY: errno's address is valid for the calling thread.
    answer == R::FAILED && unsafe { *libc::__errno_location() } == cancel::RESTART.raw_os_error()
}

/// Makes a call that is a cancellation point.
#[inline(always)]
pub fn point<R: Answer>(mut call: impl FnMut() -> R) -> R {
    if !cancel::is_in_use() {
        let answer = call();
        if !is_to_be_made_again(answer) {
            return answer;
        }
    }
    carefully(call)
}

/// Makes a call that is none, but sleeps.
pub fn through<R: Answer>(mut call: impl FnMut() -> R) -> R {
    loop {
        let answer = call();
        if !is_to_be_made_again(answer) {
            return answer;
        }
    }
}

/// As [`point`], in a process that cancels threads. One that may end at any instant does so before or after the call: not while it holds
/// our locks.
#[cold]
#[inline(never)]
fn carefully<R: Answer>(mut call: impl FnMut() -> R) -> R {
    let mut kind = DEFERRED;
    // SAFETY: a number, and a place for one.
    unsafe { next::pthread_setcanceltype(DEFERRED, &mut kind) };
    loop {
        // SAFETY: from here to the program no frame has anything to be dropped.
        unsafe { pthread_testcancel() };
        let answer = call();
        if !is_to_be_made_again(answer) {
            // SAFETY: a number; it may end the thread, as above.
            unsafe { next::pthread_setcanceltype(kind, ptr::null_mut()) };
            return answer;
        }
    }
}

/// See pthread_cancel(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    cancel::prepare(thread as usize);
    // SAFETY: C's contract. It may end this very thread: nothing here is to be dropped.
    let result = unsafe { next::pthread_cancel(thread) };
    if result == 0 {
        cancel::wake(thread as usize);
    }
    result
}

/// See pthread_setcanceltype(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
    if kind == ASYNCHRONOUS {
        cancel::begin();
    }
    // SAFETY: C's contract.
    unsafe { next::pthread_setcanceltype(kind, old) }
}
