//! epoll, poll and select.

use crate::cancel::point;
use crate::{fail, next, pointers};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use socket::wait::poll as towpath;
use socket::wait::poll::Wait;
use socket::{Errno, file};
use std::time::{Duration, Instant};

/// `epoll_wait` fails with EINVAL for more events than this.
const EVENTS_MAX: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;

/// Most events that one call returns where pointers are checked.
const AT_ONCE: usize = 1024;

/// The timeout of C's `poll` in milliseconds; negative: for ever.
fn millis(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// A timeout: `None` waits for ever; EINVAL for an invalid time.
///
/// # Safety
/// `at` is null or points to a timespec.
pub unsafe fn limit(at: *const timespec) -> Result<Option<Duration>, Errno> {
    if !at.is_null() && !pointers::is_readable(at, size_of::<timespec>()) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    let Some(t) = (unsafe { at.as_ref() }) else { return Ok(None) };
    match (u64::try_from(t.tv_sec), u32::try_from(t.tv_nsec)) {
        (Ok(s), Ok(ns)) if ns < 1_000_000_000 => Ok(Some(Duration::new(s, ns))),
        _ => Err(Errno::INVAL),
    }
}

/// Signals 32 and 33, which the C library uses itself: they are never blocked.
const INTERNAL: u64 = 0b11 << 31;

/// The first 64 signals of a set: all that the kernel knows. EFAULT for an address that cannot be read.
///
/// # Safety
/// Nothing else writes to a signal set at `at` meanwhile.
unsafe fn signals(at: *const sigset_t) -> Result<Option<u64>, Errno> {
    if at.is_null() {
        return Ok(None);
    }
    session::sys::check_signals(at.cast())?;
    // SAFETY: the kernel has just read these 8 bytes.
    let all = unsafe { at.cast::<u64>().read_unaligned() };
    Ok(Some(all & !INTERNAL))
}

/// # Safety
/// As [`limit`]'s and [`signals`]'s.
unsafe fn limit_and_signals(timeout: *const timespec, mask: *const sigset_t) -> Result<Wait, Errno> {
    // SAFETY: the caller's promise.
    unsafe { Ok((limit(timeout)?, signals(mask)?)) }
}

fn count(result: Result<usize, Errno>) -> c_int {
    result.map_or_else(fail, |n| n as c_int)
}

/// See epoll_create(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    crate::start();
    // SAFETY: a number.
    file::open_set(|| unsafe { next::epoll_create(size) })
}

/// See epoll_create1(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    crate::start();
    // SAFETY: a number.
    file::open_set(|| unsafe { next::epoll_create1(flags) })
}

/// See epoll_ctl(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: C's contract; for an event that cannot be read the kernel returns EFAULT.
    unsafe {
        if op != libc::EPOLL_CTL_DEL && !pointers::is_readable(event, size_of::<epoll_event>()) {
            return next::epoll_ctl(epfd, op, fd, event);
        }
        let wanted = if op == libc::EPOLL_CTL_DEL { None } else { event.as_ref().copied() };
        match file::epoll_control(epfd, op, fd, wanted) {
            Some(result) => crate::int(result),
            None => next::epoll_ctl(epfd, op, fd, event),
        }
    }
}

/// # Safety
/// `events` is null or writable for `n` events.
unsafe fn waited(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    wait: impl FnOnce() -> Result<Wait, Errno>,
) -> Option<c_int> {
    if !(1..=EVENTS_MAX).contains(&n) {
        return None;
    }
    let set = file::set(epfd)?;
    let wait = |found: &mut [epoll_event]| wait().and_then(|(timeout, mask)| set.wait(found, timeout, mask));
    // SAFETY: the caller's promise, or the check just made.
    Some(count(unsafe {
        if events.is_null() || pointers::are_checked() {
            let mut found = vec![epoll_event { events: 0, u64: 0 }; (n as usize).min(AT_ONCE)];
            wait(&mut found).and_then(|n| {
                if !pointers::is_writable(events, n * size_of::<epoll_event>()) {
                    return Err(Errno::FAULT);
                }
                if n > 0 {
                    events.copy_from_nonoverlapping(found.as_ptr(), n);
                }
                Ok(n)
            })
        } else {
            wait(std::slice::from_raw_parts_mut(events, n as usize))
        }
    }))
}

/// See epoll_wait(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe {
        waited(epfd, events, n, || Ok((millis(timeout), None)))
            .unwrap_or_else(|| next::epoll_wait(epfd, events, n, timeout))
    })
}

/// See epoll_pwait(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe {
        waited(epfd, events, n, || Ok((millis(timeout), signals(mask)?)))
            .unwrap_or_else(|| next::epoll_pwait(epfd, events, n, timeout, mask))
    })
}

/// See epoll_pwait2(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe {
        waited(epfd, events, n, || limit_and_signals(timeout, mask))
            .unwrap_or_else(|| next::epoll_pwait2(epfd, events, n, timeout, mask))
    })
}

/// # Safety
/// `list` is writable for `n` entries.
unsafe fn polled(list: *mut pollfd, n: nfds_t, wait: impl FnOnce() -> Result<Wait, Errno>) -> Option<c_int> {
    // A list that cannot be read is left to the kernel, which returns the error.
    let length = (n as usize).saturating_mul(size_of::<pollfd>());
    if list.is_null() || n == 0 || !file::has_any() || !pointers::is_writable(list, length) {
        return None;
    }
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts_mut(list, n as usize) };
    towpath::poll(list, wait).map(count)
}

/// See poll(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(list: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe {
        polled(list, n, || Ok((millis(timeout), None))).unwrap_or_else(|| next::poll(list, n, timeout))
    })
}

/// See ppoll(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    list: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe {
        polled(list, n, || limit_and_signals(timeout, mask))
            .unwrap_or_else(|| next::ppoll(list, n, timeout, mask))
    })
}

/// The checked twin of `poll` that fortified programs call.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    list: *mut pollfd,
    n: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    check(n as usize * size_of::<pollfd>() <= room);
    // SAFETY: C's contract.
    unsafe { poll(list, n, timeout) }
}

/// The checked twin of `ppoll`.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    list: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check(n as usize * size_of::<pollfd>() <= room);
    // SAFETY: C's contract.
    unsafe { ppoll(list, n, timeout, mask) }
}

/// Ends a fortified program with a buffer too small, as the C library does.
pub fn check(fits: bool) {
    if !fits {
        std::process::abort();
    }
}

/// # Safety
/// `at` is null or an fd_set that covers `most` descriptors.
unsafe fn words<'a>(at: *mut fd_set, most: c_int) -> Option<&'a mut [u64]> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; programs may have larger sets than FD_SETSIZE.
    Some(unsafe { std::slice::from_raw_parts_mut(at.cast::<u64>(), (most.max(0) as usize).div_ceil(64)) })
}

/// # Safety
/// As pselect's.
unsafe fn selected(
    most: c_int,
    sets: [*mut fd_set; 3],
    wait: impl FnOnce() -> Result<Wait, Errno>,
) -> Option<c_int> {
    let length = (most.max(0) as usize).div_ceil(64) * size_of::<u64>();
    let good = |set: &*mut fd_set| set.is_null() || pointers::is_writable(*set, length);
    // A set that cannot be read is left to the kernel, which returns the error.
    if !(file::has_any() && sets.iter().all(good)) {
        return None;
    }
    // SAFETY: the caller's promise.
    let [read, write, except] = sets.map(|set| unsafe { words(set, most) });
    towpath::select(most, towpath::Sets { read, write, except }, wait).map(count)
}

/// See select(2). As on Linux, the time left is written back.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    most: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe {
        let wait = || {
            let Some(t) = timeout.as_ref() else { return Ok((None, None)) };
            // Linux accepts more than 999,999 microseconds, but no negative values.
            match (u64::try_from(t.tv_sec), u64::try_from(t.tv_usec)) {
                (Ok(s), Ok(us)) => Ok((Some(Duration::from_secs(s) + Duration::from_micros(us)), None)),
                _ => Err(Errno::INVAL),
            }
        };
        let began = Instant::now();
        let Some(result) = selected(most, [read, write, except], wait) else {
            return next::select(most, read, write, except, timeout);
        };
        if let Some(t) = timeout.as_mut()
            && let (Ok(s), Ok(us)) = (u64::try_from(t.tv_sec), u64::try_from(t.tv_usec))
        {
            let left = (Duration::from_secs(s) + Duration::from_micros(us)).saturating_sub(began.elapsed());
            (t.tv_sec, t.tv_usec) = (left.as_secs() as _, left.subsec_micros().into());
        }
        result
    })
}

/// See pselect(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    most: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: C's contract.
    point(|| unsafe {
        selected(most, [read, write, except], || limit_and_signals(timeout, mask))
            .unwrap_or_else(|| next::pselect(most, read, write, except, timeout, mask))
    })
}
