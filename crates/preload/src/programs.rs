//! Starting programs, and descriptors in messages: connections that go to other processes, or come from them.

use crate::environment::{self, with_ours};
use crate::{next, pointers};
use libc::{
    FILE, c_char, c_int, c_uint, mmsghdr, msghdr, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t,
};
use session::sys;
use socket::file;
use socket::process::{fd_passing, fork};
use socket::socket::placeholder;

/// See _exit(2).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    fork::ending();
    session::sys::exit(status)
}

/// See _Exit(3).
///
/// # Safety
/// None needed.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // C's name.
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: a number.
    unsafe { _exit(status) }
}

/// True when there is no file at `path`, a C string of the program's. Another library may give paths another meaning: its `faccessat` is asked.
fn is_missing(path: *const c_char) -> bool {
    // SAFETY: the kernel checks the address. Errno's address is valid for the calling thread.
    unsafe {
        libc::faccessat(libc::AT_FDCWD, path, libc::F_OK, 0) != 0
            && matches!(*libc::__errno_location(), libc::ENOENT | libc::ENOTDIR)
    }
}

/// See execve(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let gets_sockets = fd_passing::before_exec_of_file(|| is_missing(path));
    // SAFETY: C's contract.
    unsafe { with_ours(gets_sockets, environment, |all| next::execve(path, arguments, all)) }
}

/// See execv(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: C's contract.
    unsafe { execve(path, arguments, environment::environ) }
}

/// See execvp(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: C's contract.
    unsafe { execvpe(file, arguments, environment::environ) }
}

/// See execvpe(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let gets_sockets = fd_passing::before_exec();
    // SAFETY: C's contract.
    unsafe { with_ours(gets_sockets, environment, |all| next::execvpe(file, arguments, all)) }
}

/// Functions with variable arguments, or that return twice: each runs `says` first and then jumps to the next library's function, with its
/// arguments unchanged.
macro_rules! doors {
    ($($name:ident by $door:ident says $what:expr;)*) => { $(
        extern "C" fn $door() -> usize {
            $what;
            next::address(concat!(stringify!($name), "\0"))
        }

        #[doc = concat!("See ", stringify!($name), " in section 2 or 3.")]
        ///
        /// # Safety
        /// As C's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "call {door}",
                "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                door = sym $door
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "bl {door}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                door = sym $door
            );
        }
    )* };
}

doors! {
    execl by before_execl says fd_passing::before_exec();
    execlp by before_execlp says fd_passing::before_exec();
    execle by before_execle says fd_passing::before_exec();
    vfork by before_vfork says placeholder::own_each();
    __vfork by before_vfork_2 says placeholder::own_each();
    clone by before_clone says placeholder::own_each();
    __clone by before_clone_2 says placeholder::own_each();
}

/// See fexecve(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(
    fd: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let gets_sockets = fd_passing::before_exec();
    // SAFETY: C's contract.
    unsafe { with_ours(gets_sockets, environment, |all| next::fexecve(fd, arguments, all)) }
}

/// See execveat(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    flags: c_int,
) -> c_int {
    let gets_sockets = fd_passing::before_exec();
    // SAFETY: C's contract.
    unsafe { with_ours(gets_sockets, environment, |all| next::execveat(folder, path, arguments, all, flags)) }
}

/// Copies the process without the C library's fork handlers: runs those of this library. `pid_in` interprets the result of `copy`, as fork(2)'s.
pub fn forked<T>(copy: impl FnOnce() -> T, pid_in: impl Fn(&T) -> pid_t) -> T {
    crate::before_fork();
    let copied = copy();
    if pid_in(&copied) == 0 {
        crate::in_child();
    } else {
        crate::in_parent();
    }
    copied
}

/// See _Fork(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // C's name.
pub unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: C's contract.
    forked(|| unsafe { next::_Fork() }, |pid| *pid)
}

/// See chroot(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    fd_passing::before_chroot();
    // SAFETY: C's contract.
    unsafe { next::chroot(path) }
}

/// See posix_spawn(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    let gets_sockets = fd_passing::before_exec();
    // SAFETY: C's contract.
    unsafe {
        with_ours(gets_sockets, environment.cast(), |all| {
            next::posix_spawn(pid, path, actions, attributes, arguments, all.cast())
        })
    }
}

/// See posix_spawnp(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    let gets_sockets = fd_passing::before_exec();
    // SAFETY: C's contract.
    unsafe {
        with_ours(gets_sockets, environment.cast(), |all| {
            next::posix_spawnp(pid, file, actions, attributes, arguments, all.cast())
        })
    }
}

/// See system(3): the shell and the programs it starts inherit this program's descriptors.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    fd_passing::before_exec();
    // SAFETY: C's contract.
    unsafe { next::system(command) }
}

/// See popen(3).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, how: *const c_char) -> *mut FILE {
    fd_passing::before_exec();
    // SAFETY: C's contract.
    unsafe { next::popen(command, how) as *mut FILE }
}

/// See posix_spawn_file_actions_adddup2(3): the new program gets the descriptor `old`.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    old: c_int,
    new: c_int,
) -> c_int {
    fd_passing::leaving(old);
    // SAFETY: C's contract.
    unsafe { next::posix_spawn_file_actions_adddup2(actions, old, new) }
}

/// Calls `f` with every descriptor in `message`.
///
/// # Safety
/// `message` is a valid message header.
unsafe fn each_descriptor(message: &msghdr, f: fn(c_int)) {
    if message.msg_control.is_null() {
        return;
    }
    // SAFETY: the walk stays inside the `msg_controllen` bytes at `msg_control`, which the caller answers for.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: it is not NULL, so a whole header is there.
    while let Some(found) = unsafe { header.as_ref() } {
        if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: these macros only compute.
            let (data, empty) = unsafe { (libc::CMSG_DATA(header), libc::CMSG_LEN(0) as usize) };
            let bytes = found.cmsg_len.saturating_sub(empty);
            for i in 0..bytes / size_of::<c_int>() {
                // SAFETY: inside the data of this control message; C does not promise alignment.
                f(unsafe { data.cast::<c_int>().add(i).read_unaligned() });
            }
        }
        // SAFETY: as for the first.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

/// Before a message is sent: prepares the sockets behind its descriptors for leaving this process.
///
/// # Safety
/// `message` is NULL or as sendmsg wants it.
#[inline]
pub unsafe fn sending(message: *const msghdr) {
    // SAFETY: the caller's promise.
    if let Some(message) = unsafe { message.as_ref() }
        && message.msg_controllen > 0
        && file::has_any()
        && sys::pointers::is_readable(message.msg_control as usize, message.msg_controllen)
    {
        // SAFETY: the caller's promise.
        unsafe { each_descriptor(message, fd_passing::leaving) };
    }
}

/// A message has come: connections may have come with it.
///
/// # Safety
/// `message` is NULL or as recvmsg left it.
#[inline]
pub unsafe fn received(message: *const msghdr) {
    // SAFETY: the caller's promise.
    if let Some(message) = unsafe { message.as_ref() }
        && message.msg_controllen > 0
    {
        // SAFETY: the caller's promise.
        unsafe { each_descriptor(message, fd_passing::found) };
    }
}

/// As [`sending`], of `count` messages.
///
/// # Safety
/// `messages` is NULL or as sendmmsg wants it.
pub unsafe fn sending_all(messages: *const mmsghdr, count: c_uint) {
    // SAFETY: the caller's promise.
    unsafe { each(messages, count, |message| sending(message)) };
}

/// As [`received`], of `count` messages.
///
/// # Safety
/// `messages` is NULL or as recvmmsg left it.
pub unsafe fn received_all(messages: *const mmsghdr, count: c_uint) {
    // SAFETY: the caller's promise.
    unsafe { each(messages, count, |message| received(message)) };
}

/// # Safety
/// `messages` is NULL or points to `count` of them.
unsafe fn each(messages: *const mmsghdr, count: c_uint, f: impl Fn(*const msghdr)) {
    if messages.is_null() {
        return;
    }
    for i in 0..count as usize {
        // SAFETY: the caller's promise.
        let at = unsafe { messages.add(i) };
        // A message that cannot be read is left to the kernel, which returns the error.
        if !pointers::is_readable(at, size_of::<mmsghdr>()) {
            return;
        }
        // SAFETY: as above.
        f(unsafe { &raw const (*at).msg_hdr });
    }
}
