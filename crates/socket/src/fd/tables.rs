//! What this process has behind its descriptors: sockets and epoll sets.

use crate::epoll::Set;
use crate::fd::table::Table;
use crate::socket::Sock;
use rustix::fd::RawFd;
use session::log::{Level, log};
use session::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Sockets that are, or may become, accelerated.
pub static SOCKS: Table<Sock> = Table::new();
/// The program's epoll sets, by descriptor.
pub static SETS: Table<Set> = Table::new();

/// True once anything was put into `SOCKS` or `SETS`.
static USED: AtomicBool = AtomicBool::new(false);
/// Number of this process; 0: [`settle`] was not called yet.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Remembers this process's ID; called again in a forked child.
pub fn settle() {
    PROCESS.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
}

/// [`settle`], unless it was called before.
pub fn settle_first() {
    if PROCESS.load(Ordering::Relaxed) == 0 {
        settle();
    }
}

/// True in a `vfork` child, which shares our memory and must not change it.
pub fn is_borrowed() -> bool {
    let known = PROCESS.load(Ordering::Relaxed);
    // `sys::pid()` is `None` where a seccomp filter forbids `getpid`: such a process is still the one that `settle` saw.
    known != 0 && sys::pid().is_some_and(|pid| pid != known)
}

/// True when `fd` stands in one of our tables.
#[inline]
pub fn is_ours(fd: RawFd) -> bool {
    SOCKS.is_taken(fd) || SETS.is_taken(fd)
}

/// False in a process that never had a socket or an epoll set: nothing of any call is ours.
#[inline]
pub fn has_any() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Puts `object` behind the new descriptor `fd`. Waits while a call on the number's last owner is ending. False: given up.
pub(crate) fn put<T>(table: &Table<T>, fd: RawFd, mut object: Arc<T>) -> bool {
    USED.store(true, Ordering::Relaxed);
    for _ in 0..100_000 {
        match table.insert(fd, object) {
            Ok(()) => return true,
            Err(back) => object = back,
        }
        if fd as usize >= 1 << 20 {
            return false;
        }
        sys::give_way();
    }
    log(Level::Error, format_args!("descriptor {fd} stays with the kernel: its last owner is still busy"));
    false
}

/// Puts `sock`, which came from another process, behind `fd`.
pub fn put_inherited(fd: RawFd, sock: Sock) {
    if !is_borrowed() {
        put(&SOCKS, fd, Arc::new(sock));
    }
}

/// Puts `sock`, which another descriptor stands for already, behind `fd` as well.
pub fn share(sock: &Arc<Sock>, fd: RawFd) {
    sock.add_descriptor();
    if !put(&SOCKS, fd, sock.clone()) {
        sock.drop_descriptor();
    }
}

/// Puts `fresh`, for which one descriptor is counted already, in the place of `old`: behind all its descriptors and in epoll sets.
pub fn exchange(old: &Arc<Sock>, fresh: &Arc<Sock>) {
    let stands_for = |fd: &RawFd| {
        fresh.add_descriptor();
        let done = SOCKS.exchange(*fd, old, fresh.clone());
        if !done {
            fresh.drop_descriptor();
        }
        done
    };
    let n = all_of(old).into_iter().filter(stands_for).count();
    for (set, fd) in old.sets() {
        set.exchange(fd, old, fresh);
    }
    fresh.drop_descriptor();
    old.replace();
    (0..n).for_each(|_| old.drop_descriptor());
}

/// The descriptors of this process that stand for `sock`.
pub fn all_of(sock: &Arc<Sock>) -> Vec<RawFd> {
    let all = SOCKS.all().into_iter();
    all.filter(|(_, other)| Arc::ptr_eq(sock, other)).map(|(fd, _)| fd).collect()
}

/// The objects in `all`, each once: several descriptors may stand for one.
pub fn each_once<T>(all: Vec<(RawFd, Arc<T>)>) -> Vec<Arc<T>> {
    let mut all: Vec<_> = all.into_iter().map(|(_, object)| object).collect();
    all.sort_by_key(Arc::as_ptr);
    all.dedup_by(|a, b| Arc::ptr_eq(a, b));
    all
}
