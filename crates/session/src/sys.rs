//! System calls that never pass through a libc symbol: the preloaded library replaces those, and would call itself.
//!
//! Calls that rustix offers safely (its linux-raw backend makes the call itself) are used directly elsewhere. This file has the
//! calls that rustix does not offer in the shape we need: signal masks, C's own event arrays, descriptors by number.

pub mod address;
pub mod cycle_account;
pub mod only_thread;
pub mod pointers;
pub mod signal;
pub mod small_vec;
pub mod thread;

use crate::detached::may;
use cycles::Section;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Makes system call `n` with arguments `a`; returns the kernel's result, or minus the errno.
///
/// # Safety
/// As the kernel's contract for call `n` demands of `a`.
#[cfg(target_arch = "x86_64")]
unsafe fn call(n: libc::c_long, a: [usize; 6]) -> isize {
    let r: isize;
    // SAFETY: the registers are those of the kernel's ABI; the caller answers for the arguments.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") n as isize => r, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    r
}

/// Makes system call `n` with arguments `a`; returns the kernel's result, or minus the errno.
///
/// # Safety
/// As the kernel's contract for call `n` demands of `a`.
#[cfg(target_arch = "aarch64")]
unsafe fn call(n: libc::c_long, a: [usize; 6]) -> isize {
    let r: isize;
    // SAFETY: the registers are those of the kernel's ABI; the caller answers for the arguments.
    unsafe {
        core::arch::asm!("svc 0", in("x8") n, inlateout("x0") a[0] as isize => r, in("x1") a[1], in("x2") a[2],
            in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    r
}

/// A system call on behalf of the program, which answers for its arguments.
///
/// # Safety
/// As the kernel's contract for call `n` demands of `a`.
pub unsafe fn raw(n: libc::c_long, a: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    answer(unsafe { call(n, a) })
}

/// Ends the process, with all its threads.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: a number; what other threads were doing ends as with any process.
        let _ = unsafe { call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

fn answer(r: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&r) { Err(Errno::from_raw_os_error(-r as i32)) } else { Ok(r as usize) }
}

/// The kernel's `struct timespec`; none for "wait for ever".
fn timespec(timeout: Option<Duration>) -> Option<[i64; 2]> {
    timeout.map(|t| [t.as_secs().min(i64::MAX as u64) as i64, i64::from(t.subsec_nanos())])
}

fn address<T>(value: Option<&T>) -> usize {
    value.map_or(0, |v| std::ptr::from_ref(v) as usize)
}

/// Size of the kernel's signal mask in bytes.
const MASK_LEN: usize = 8;

/// The timeout in milliseconds for the older calls, rounded up; -1: wait for ever.
fn millis(timeout: Option<Duration>) -> usize {
    timeout.map_or(usize::MAX, |t| t.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as usize)
}

/// `epoll_pwait2`, or `epoll_pwait` in milliseconds where the kernel is older than 5.11 or a seccomp filter may not allow the
/// newer call. A thread that is cancelled sleeps on: [`crate::cancel::epoll_wait`] is for waits of the program.
pub fn epoll_wait(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    let (at, len) = (events.as_mut_ptr() as usize, events.len().min(i32::MAX as usize));
    let fd = epfd as usize;
    if timeout.is_some_and(|t| !t.is_zero()) && may(libc::SYS_epoll_pwait2) {
        let limit = timespec(timeout);
        let a = [fd, at, len, address(limit.as_ref()), address(mask.as_ref()), MASK_LEN];
        // SAFETY: `at` points to `len` writable events; the mask, if any, is 8 bytes long and outlives the call, as the
        // timespec does.
        match answer(unsafe { call(libc::SYS_epoll_pwait2, a) }) {
            Err(Errno::NOSYS) => {}
            other => return other,
        }
    }
    let ms = millis(timeout);
    #[cfg(target_arch = "x86_64")]
    if mask.is_none() && !may(libc::SYS_epoll_pwait) {
        // SAFETY: as above.
        return answer(unsafe { call(libc::SYS_epoll_wait, [fd, at, len, ms, 0, 0]) });
    }
    // SAFETY: as above.
    answer(unsafe { call(libc::SYS_epoll_pwait, [fd, at, len, ms, address(mask.as_ref()), MASK_LEN]) })
}

/// `epoll_ctl`; `event` is none for `EPOLL_CTL_DEL`.
pub fn epoll_ctl(epfd: RawFd, op: i32, fd: RawFd, event: Option<&libc::epoll_event>) -> Result<(), Errno> {
    // SAFETY: the event, if any, outlives the call and is only read.
    let r =
        unsafe { call(libc::SYS_epoll_ctl, [epfd as usize, op as usize, fd as usize, address(event), 0, 0]) };
    answer(r).map(|_| ())
}

/// True when the socket `fd` is at the end of its stream, or has an error.
#[cold]
pub fn is_at_end(fd: RawFd) -> bool {
    let mut byte = [0u8];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(borrow(fd), &mut byte, flags) {
        Ok((_, n)) => n == 0,
        Err(e) => e != Errno::AGAIN && e != Errno::INTR,
    }
}

/// Sleeps for `limit`, or until a signal comes, also in a thread that is being cancelled. Signals that were put off come in here, so the
/// caller must hold no lock.
pub fn pause(limit: Duration) {
    let _ = signal::letting_in(|mask| poll(&mut [], Some(limit), mask));
}

/// `ppoll`, or another call where a seccomp filter forbids it. A thread that is cancelled sleeps on: [`crate::cancel::poll`] is for waits
/// of the program.
///
/// # Errors
/// The kernel's; EPERM when the filter allows none of the calls.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>, mask: Option<u64>) -> Result<usize, Errno> {
    if !may(libc::SYS_ppoll) {
        return poll_otherwise(fds, timeout);
    }
    let limit = timespec(timeout);
    // SAFETY: the array is writable for its length; timespec (the kernel writes the rest of the time into this copy) and
    // mask outlive the call.
    let r = unsafe {
        call(
            libc::SYS_ppoll,
            [
                fds.as_mut_ptr() as usize,
                fds.len(),
                address(limit.as_ref()),
                address(mask.as_ref()),
                MASK_LEN,
                0,
            ],
        )
    };
    answer(r)
}

/// `ppoll` where a filter forbids it: without a signal mask, for the other calls take none.
#[cold]
fn poll_otherwise(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    #[cfg(target_arch = "x86_64")]
    if may(libc::SYS_poll) {
        let a = [fds.as_mut_ptr() as usize, fds.len(), millis(timeout), 0, 0, 0];
        // SAFETY: the array is writable for its length.
        return answer(unsafe { call(libc::SYS_poll, a) });
    }
    match timespec(timeout) {
        Some(limit) if fds.iter().all(|entry| entry.fd < 0) && may(libc::SYS_nanosleep) => {
            fds.iter_mut().for_each(|entry| entry.revents = 0);
            // SAFETY: the timespec outlives the call; the remaining time is not asked for.
            answer(unsafe { call(libc::SYS_nanosleep, [address(Some(&limit)), 0, 0, 0, 0, 0]) })
        }
        _ => Err(Errno::PERM),
    }
}

/// Sleeps on `word` while it is `seen`, until it is woken (`shm::futex::wake`) or `limit` is over. With a time limit the kernel restarts
/// the call after no signal handler. A thread that is cancelled sleeps on: [`crate::cancel::futex_wait`] is for waits of the program.
///
/// # Errors
/// EAGAIN when the word is another, ETIMEDOUT, EINTR.
pub fn futex_wait(word: &AtomicU32, seen: u32, limit: Duration) -> Result<usize, Errno> {
    let limit = timespec(Some(limit));
    let (at, wait) = (word.as_ptr() as usize, libc::FUTEX_WAIT as usize);
    // SAFETY: the word is four aligned bytes that live as long as the call, which only reads them, as the timespec.
    answer(unsafe { call(libc::SYS_futex, [at, wait, seen as usize, address(limit.as_ref()), 0, 0]) })
}

/// Lets another thread run.
pub fn give_way() {
    if may(libc::SYS_sched_yield) {
        rustix::thread::sched_yield();
    } else {
        let _ = poll(&mut [], Some(Duration::from_micros(50)), None);
    }
}

/// The process ID, if the filter allows asking for it.
pub fn pid() -> Option<i32> {
    may(libc::SYS_getpid).then(|| rustix::process::getpid().as_raw_nonzero().get())
}

/// `accept4` without the peer's address.
pub fn accept(fd: RawFd, flags: i32) -> Result<RawFd, Errno> {
    let number = if flags == 0 && !may(libc::SYS_accept4) { libc::SYS_accept } else { libc::SYS_accept4 };
    // SAFETY: null addresses are allowed.
    let r = unsafe { call(number, [fd as usize, 0, 0, flags as usize, 0, 0]) };
    answer(r).map(|fd| fd as RawFd)
}

/// Makes a socket: `socket`.
pub fn socket(domain: i32, kind: i32, protocol: i32) -> Result<RawFd, Errno> {
    // SAFETY: three numbers.
    let r = unsafe { call(libc::SYS_socket, [domain as usize, kind as usize, protocol as usize, 0, 0, 0]) };
    answer(r).map(|fd| fd as RawFd)
}

/// `close` of a descriptor that this library opened, or that the program asked to close.
pub fn close(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: a number; no `OwnedFd` of ours holds it (see `internal`).
    let r = unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
    answer(r).map(|_| ())
}

/// `fcntl` with a number as argument.
pub fn fcntl(fd: RawFd, command: i32, argument: usize) -> Result<usize, Errno> {
    // SAFETY: used only with commands that take a number as argument.
    answer(unsafe { call(libc::SYS_fcntl, [fd as usize, command as usize, argument, 0, 0, 0]) })
}

/// True once the other end of the Unix socket `fd` has read all that was sent (`SIOCOUTQ`), and when that cannot be known.
pub fn is_all_read(fd: RawFd) -> bool {
    if !may(libc::SYS_ioctl) {
        return true;
    }
    let mut unread = 0i32;
    // SAFETY: the kernel writes one number into `unread`.
    let asked = answer(unsafe {
        call(libc::SYS_ioctl, [fd as usize, libc::TIOCOUTQ as usize, &raw mut unread as usize, 0, 0, 0])
    });
    asked.is_err() || unread == 0
}

/// Makes `new` a duplicate of `old`: `dup3`.
pub fn dup3(old: RawFd, new: RawFd, flags: i32) -> Result<(), Errno> {
    // SAFETY: three numbers.
    let r = unsafe { call(libc::SYS_dup3, [old as usize, new as usize, flags as usize, 0, 0, 0]) };
    answer(r).map(|_| ())
}

/// `getsockopt` into `out`; the length the kernel wrote.
pub fn getsockopt(fd: RawFd, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
    let mut len = out.len() as u32;
    let at = [fd as usize, level as usize, name as usize, out.as_mut_ptr() as usize];
    // SAFETY: `out` is writable for `len` bytes, and `len` is a local.
    let r = unsafe {
        call(libc::SYS_getsockopt, [at[0], at[1], at[2], at[3], std::ptr::from_mut(&mut len) as usize, 0])
    };
    answer(r).map(|_| len as usize)
}

/// Sets an option to `value`: `setsockopt`.
pub fn setsockopt(fd: RawFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let a = [fd as usize, level as usize, name as usize, value.as_ptr() as usize, value.len(), 0];
    // SAFETY: `value` is readable for its length.
    answer(unsafe { call(libc::SYS_setsockopt, a) }).map(|_| ())
}

/// `bind` to the address in `name`.
pub fn bind(fd: RawFd, name: &[u8]) -> Result<(), Errno> {
    // SAFETY: `name` is readable for its length.
    let r = unsafe { call(libc::SYS_bind, [fd as usize, name.as_ptr() as usize, name.len(), 0, 0, 0]) };
    answer(r).map(|_| ())
}

/// Makes a socket listen: `listen`.
pub fn listen(fd: RawFd, backlog: i32) -> Result<(), Errno> {
    // SAFETY: two numbers.
    let r = unsafe { call(libc::SYS_listen, [fd as usize, backlog as usize, 0, 0, 0, 0]) };
    answer(r).map(|_| ())
}

/// `getsockname` into `out`; its length.
pub fn getsockname(fd: RawFd, out: &mut [u8]) -> Result<usize, Errno> {
    let mut len = out.len() as u32;
    let at = [fd as usize, out.as_mut_ptr() as usize, std::ptr::from_mut(&mut len) as usize];
    // SAFETY: `out` is writable for `len` bytes, and `len` is a local.
    answer(unsafe { call(libc::SYS_getsockname, [at[0], at[1], at[2], 0, 0, 0]) }).map(|_| len as usize)
}

/// `getpeername` into `out`; its length.
pub fn getpeername(fd: RawFd, out: &mut [u8]) -> Result<usize, Errno> {
    let mut len = out.len() as u32;
    let at = [fd as usize, out.as_mut_ptr() as usize, std::ptr::from_mut(&mut len) as usize];
    // SAFETY: `out` is writable for `len` bytes, and `len` is a local.
    answer(unsafe { call(libc::SYS_getpeername, [at[0], at[1], at[2], 0, 0, 0]) }).map(|_| len as usize)
}

/// A descriptor by number, for one call. The kernel answers EBADF when it is closed.
pub fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: never -1 (callers have looked it up), and used only as the argument of one system call, where a number
    // that was closed meanwhile is an error value and not undefined behaviour.
    unsafe { BorrowedFd::borrow_raw(fd.max(0)) }
}

/// Takes ownership of a descriptor that a system call just returned.
pub fn own(fd: RawFd) -> OwnedFd {
    use rustix::fd::FromRawFd;
    // SAFETY: callers pass a number that the kernel just returned and no other code knows.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The calling thread's `pthread_t`.
pub fn thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

/// The calling thread's ID in the kernel.
pub fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// True when this process has a thread with that ID, or when a filter forbids asking.
pub fn has_thread(tid: u32) -> bool {
    let Some(pid) = pid().filter(|_| may(libc::SYS_tgkill)) else { return true };
    // SAFETY: three numbers; signal 0 is none.
    let asked = unsafe { answer(call(libc::SYS_tgkill, [pid as usize, tid as usize, 0, 0, 0, 0])) };
    asked != Err(Errno::SRCH)
}

/// True when that thread was a child of this process, which has ended and which nothing has waited for yet.
pub fn is_zombie(tid: u32) -> bool {
    if !may(libc::SYS_waitid) {
        return false;
    }
    // SAFETY: all zeros are a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let a = [libc::P_PID as usize, tid as usize, &raw mut info as usize, how as usize, 0, 0];
    // SAFETY: the kernel writes `info` only; WNOWAIT leaves the child as it is. Zero means that the child has not ended.
    unsafe { answer(call(libc::SYS_waitid, a)).is_ok() && info.si_pid() != 0 }
}

unsafe extern "C" {
    /// See pthread_setcancelstate(3); `libc` does not name it.
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// False when the calling thread has disabled cancellation.
pub fn is_cancelable() -> bool {
    // From `pthread.h`; `libc` does not have them.
    const ENABLE: libc::c_int = 0;
    const DISABLE: libc::c_int = 1;
    let mut old = ENABLE;
    // SAFETY: an int, and a pointer to one. Enabling cannot end the thread at once: asynchronous cancellation is excluded (see `cancel`).
    unsafe {
        pthread_setcancelstate(DISABLE, &mut old);
        pthread_setcancelstate(old, std::ptr::null_mut());
    }
    old == ENABLE
}

/// The signal that the C library uses to cancel threads.
const SIGCANCEL: usize = 32;

/// Sends a thread of this process the C library's cancellation signal; the C library ignores it in a thread that is not cancelled.
///
/// # Errors
/// ESRCH when the thread is gone, or the signal has no handler; EPERM when a filter forbids the calls.
pub fn interrupt(tid: u32) -> Result<(), Errno> {
    if !(may(libc::SYS_rt_sigaction) && may(libc::SYS_tgkill)) {
        return Err(Errno::PERM);
    }
    let mut action = [0usize; 8];
    let at = action.as_mut_ptr() as usize;
    let pid = pid().ok_or(Errno::PERM)? as usize;
    // SAFETY: the old action is at most 32 bytes (four words), the array has eight; then three numbers.
    unsafe {
        answer(call(libc::SYS_rt_sigaction, [SIGCANCEL, 0, at, MASK_LEN, 0, 0]))?;
        if action[0] == libc::SIG_DFL {
            return Err(Errno::SRCH);
        }
        answer(call(libc::SYS_tgkill, [pid, tid as usize, SIGCANCEL, 0, 0, 0])).map(|_| ())
    }
}

/// EFAULT when the signal set at `at` cannot be read: the kernel copies the set before it refuses the unknown kind of change.
///
/// # Errors
/// EFAULT.
pub fn check_signals(at: *const u64) -> Result<(), Errno> {
    const NO_KIND: usize = i32::MAX as usize;
    if !may(libc::SYS_rt_sigprocmask) {
        return Ok(());
    }
    // SAFETY: the kernel checks the address; an unknown kind of change changes nothing.
    match answer(unsafe { call(libc::SYS_rt_sigprocmask, [NO_KIND, at as usize, 0, MASK_LEN, 0, 0]) }) {
        Err(Errno::FAULT) => Err(Errno::FAULT),
        _ => Ok(()),
    }
}

/// True when some signal has a handler installed without `SA_RESTART`, or when a filter forbids asking.
pub fn some_handler_interrupts() -> bool {
    if !may(libc::SYS_rt_sigaction) {
        return true;
    }
    // The kernel's layout: handler, flags, restorer (x86-64) or mask, mask.
    let mut action = [0usize; 8];
    // The two signals that the C library uses itself are left out: their handlers do not concern the program.
    (1..=64usize).filter(|signal| !(SIGCANCEL..=SIGCANCEL + 1).contains(signal)).any(|signal| {
        action.fill(0);
        let at = action.as_mut_ptr() as usize;
        // SAFETY: the old action is at most 32 bytes (four words), the array has eight.
        let r = unsafe { call(libc::SYS_rt_sigaction, [signal, 0, at, MASK_LEN, 0, 0]) };
        let caught = r == 0 && action[0] != libc::SIG_DFL && action[0] != libc::SIG_IGN;
        caught && action[1] & libc::SA_RESTART as usize == 0
    })
}

/// The kernel's unique number of a socket's network namespace (`SO_NETNS_COOKIE`); 0 before Linux 5.14.
pub fn namespace(fd: RawFd) -> u64 {
    let mut value = [0; size_of::<u64>()];
    let told = getsockopt(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut value);
    told.map_or(0, |_| u64::from_ne_bytes(value))
}

/// The kernel's unique number (`SO_COOKIE`) of the socket behind a descriptor: the same in every process.
pub fn cookie(fd: RawFd) -> Option<u64> {
    let mut value = [0; size_of::<u64>()];
    let n = getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut value).ok()?;
    (n >= value.len()).then(|| u64::from_ne_bytes(value))
}

/// The longest backlog of a listening socket (`net.core.somaxconn`).
pub fn somaxconn() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    text.trim().parse().unwrap_or(4096)
}

/// True for either end of a pipe.
pub fn is_pipe(fd: RawFd) -> bool {
    let kind = rustix::fs::fstat(borrow(fd)).map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode));
    kind == Ok(rustix::fs::FileType::Fifo)
}

/// Wakes the thread that sleeps on the eventfd `fd`.
pub fn ring(fd: &OwnedFd) {
    let _waking = cycle_account::enter(Section::Wake);
    // EAGAIN (the counter is at its limit) loses no wake-up: the descriptor is readable then.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// The descriptor number of `fd`.
pub fn number(fd: &OwnedFd) -> RawFd {
    fd.as_raw_fd()
}
