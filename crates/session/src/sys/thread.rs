//! A thread that the C library does not know, so that it takes no part in what the C library does for all threads: glibc makes each of its
//! threads repeat a `setuid`, and aborts if one fails where another succeeded (as in a program that has kept a capability in one thread).
//!
//! Such a thread has no thread-local memory, except what the C library itself reads and writes relative to the thread register (`errno`).
//! So it calls nothing that uses such memory: no allocation, no [`super::signal::Deferred`], no account, nothing that may panic.

use super::{MASK_LEN, answer, call};
use crate::sys::signal::Deferred;
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::ptr;

/// Bytes around the thread register, above the stack, in place of the C library's: thread-local variables below it, `struct pthread`
/// above it. Both are larger than glibc's (static thread-local memory and its surplus: some 4 KiB; `struct pthread`: 2304 bytes).
const BELOW: usize = 32 << 10;
const ABOVE: usize = 8 << 10;
const STACK: usize = 128 << 10;
const GUARD: usize = 16 << 10;
const LEN: usize = GUARD + STACK + BELOW + ABOVE;

/// The flags of `pthread_create`, without those that tell the C library of the thread's end.
const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS;

/// Starts a thread that calls `run` with `argument`, all signals blocked, and then ends. Its stack is never freed.
///
/// # Errors
/// Those of `mmap` and `clone`.
pub fn start(run: extern "C" fn(usize), argument: usize) -> Result<(), Errno> {
    // Signals are blocked before the thread is made: it keeps the mask that it is made with.
    let _deferred = Deferred::begin();
    let memory = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
    // SAFETY: new memory that no other code knows; its lowest part is made inaccessible.
    let at = unsafe {
        let at = answer(call(libc::SYS_mmap, [0, LEN, memory as usize, flags as usize, usize::MAX, 0]))?;
        answer(call(libc::SYS_mprotect, [at, GUARD, libc::PROT_NONE as usize, 0, 0, 0]))?;
        at
    };
    let (stack, block) = (at + GUARD + STACK, at + GUARD + STACK + BELOW);
    // SAFETY: `block` lies in the new memory with `ABOVE` bytes behind it; the stack ends below, aligned to 16 bytes.
    let started = unsafe {
        prepare(block as *mut usize);
        answer(clone(stack, block, run, argument))
    };
    started.map(|_| ()).inspect_err(|_| {
        // SAFETY: the memory made above, which no thread uses.
        let _ = unsafe { call(libc::SYS_munmap, [at, LEN, 0, 0, 0, 0]) };
    })
}

/// Fills the words that the C library reads at a thread's register: the block's own address twice, the DTV, and two secrets of its checks.
///
/// # Safety
/// `block` points to memory that nothing else uses.
#[cfg(target_arch = "x86_64")]
unsafe fn prepare(block: *mut usize) {
    let (list, guard, secret): (usize, usize, usize);
    // SAFETY: reads three words of the calling thread's block, which glibc's ABI has there (`tcbhead_t`); writes them into the new one.
    unsafe {
        core::arch::asm!("mov {}, fs:[0x8]", "mov {}, fs:[0x28]", "mov {}, fs:[0x30]",
            out(reg) list, out(reg) guard, out(reg) secret, options(nostack, readonly));
        for (word, value) in [(0, block as usize), (1, list), (2, block as usize), (5, guard), (6, secret)] {
            block.add(word).write(value);
        }
    }
}

/// Fills the word that the C library reads at a thread's register: the DTV, its list of thread-local memory.
///
/// # Safety
/// `block` points to memory that nothing else uses.
#[cfg(target_arch = "aarch64")]
unsafe fn prepare(block: *mut usize) {
    let own: *const usize;
    // SAFETY: reads the first word at the calling thread's register, which the ABI defines.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) own, options(nostack, nomem));
        block.write(own.read());
    }
}

/// # Safety
/// As the kernel's contract for `clone`; the new thread has the stack below `stack` for itself, and `block` at its register.
#[cfg(target_arch = "x86_64")]
unsafe fn clone(stack: usize, block: usize, run: extern "C" fn(usize), argument: usize) -> isize {
    let r: isize;
    // SAFETY: the caller's promise. The new thread never leaves this text: it calls `run` and exits.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => r,
            in("rdi") FLAGS, in("rsi") stack, in("rdx") 0, in("r10") 0, in("r8") block,
            in("r12") argument, in("r13") run, lateout("rcx") _, lateout("r11") _);
    }
    r
}

/// # Safety
/// As the kernel's contract for `clone`; the new thread has the stack below `stack` for itself, and `block` at its register.
#[cfg(target_arch = "aarch64")]
unsafe fn clone(stack: usize, block: usize, run: extern "C" fn(usize), argument: usize) -> isize {
    let r: isize;
    // SAFETY: the caller's promise. The new thread never leaves this text: it calls `run` and exits.
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x10",
            "blr x11",
            "mov x8, {exit}",
            "mov x0, xzr",
            "svc 0",
            "brk 1",
            "2:",
            exit = const libc::SYS_exit,
            in("x8") libc::SYS_clone, inlateout("x0") FLAGS as isize => r, in("x1") stack, in("x2") 0, in("x3") block,
            in("x4") 0, in("x10") argument, in("x11") run, lateout("x30") _);
    }
    r
}

/// Drops the thread's special rights: users, groups and capabilities that the process may give up later, while this thread would keep
/// them. It needs none to send signals to its own process.
pub fn renounce() {
    /// From `linux/capability.h`: version 3, the calling thread.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    const NONE: [u32; 6] = [0; 6];
    /// The default of `kernel.overflowuid`.
    const NOBODY: usize = 65_534;
    let user = match rustix::process::geteuid().as_raw() as usize {
        0 => NOBODY,
        uid => uid,
    };
    let group = match rustix::process::getegid().as_raw() as usize {
        0 => NOBODY,
        gid => gid,
    };
    // SAFETY: numbers, and two structures that the kernel reads. A call that it refuses (a namespace without such a user) changes nothing.
    // After a change of identity the kernel hides the process from its own user; the last call undoes that.
    unsafe {
        let shown = call(libc::SYS_prctl, [libc::PR_GET_DUMPABLE as usize, 0, 0, 0, 0, 0]);
        let _ = call(libc::SYS_setgroups, [0, 0, 0, 0, 0, 0]);
        let _ = call(libc::SYS_setresgid, [group, group, group, 0, 0, 0]);
        let _ = call(libc::SYS_setresuid, [user, user, user, 0, 0, 0]);
        let _ = call(
            libc::SYS_capset,
            [ptr::from_ref(&HEADER) as usize, ptr::from_ref(&NONE) as usize, 0, 0, 0, 0],
        );
        if shown == 1 {
            let _ = call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0, 0]);
        }
    }
}

/// Waits on an epoll descriptor for `ms` milliseconds at most (negative: for ever); returns how many events it took off, 8 at most.
///
/// # Errors
/// The kernel's errno.
pub fn sleep(epfd: RawFd, ms: i32) -> Result<usize, Errno> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    let at = events.as_mut_ptr() as usize;
    // SAFETY: `at` points to eight writable events; no mask.
    answer(unsafe {
        call(libc::SYS_epoll_pwait, [epfd as usize, at, events.len(), ms as usize, 0, MASK_LEN])
    })
}

/// True when `fd` has something to read.
pub fn has_unread(fd: RawFd) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let now = [0i64; 2];
    let (at, now) = (ptr::from_mut(&mut entry) as usize, ptr::from_ref(&now) as usize);
    // SAFETY: one writable entry, and a time that outlives the call.
    answer(unsafe { call(libc::SYS_ppoll, [at, 1, now, 0, MASK_LEN, 0]) }) == Ok(1)
}
