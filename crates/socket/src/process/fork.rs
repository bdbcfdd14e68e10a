//! `fork`: the child holds every socket its parent holds, registers for itself, and sleeps on nothing of its parent's.

use crate::fd::tables;
use crate::process::io_uring::rings;
use crate::process::{fd_passing, io_uring, rlimit_as};
use crate::socket::{self, Role, Sock, flag, pending_sockopts, placeholder};
use crate::wait::sigio;
use rustix::fd::RawFd;
use session::cancel;
use session::fork_locks::Held;
use session::host::{self, HOST};
use session::log::{Level, log};
use session::promise::{Promise, Unpromised};
use session::sys::cycle_account;
use session::sys::only_thread::{self, Alone};
use session::sys::signal::Deferred;
use session::{Client, detached, pid_namespace, reserved};
use shm::TRUST;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bit by which this process, a forked child, holds what its parent holds; 0 in any other.
static HELD_AS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// True when the forking process has no other thread.
    static ALONE: Cell<bool> = const { Cell::new(false) };
    /// What is promised to the child that is about to be forked.
    static PROMISED: Cell<Option<Promise>> = const { Cell::new(None) };
    /// The library's locks, between `prepare` and `parent` or `child`.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
    /// Puts off signals meanwhile: a handler would wait for these locks.
    static DEFERRED: Cell<Option<ManuallyDrop<Deferred>>> = const { Cell::new(None) };
}

/// In the parent, before the fork: promises the child with a holder bit, then takes every lock, so that none is held by a thread that the child
/// does not have.
pub fn prepare() {
    PROMISED.set(None);
    DEFERRED.set(Deferred::begin().map(ManuallyDrop::new));
    io_uring::connect_each();
    // Without other threads no other thread holds a lock. What a call holds that a signal handler interrupted to fork, that call releases,
    // in the child as here.
    let alone = Alone::new();
    ALONE.set(alone.is_some());
    tables::SETS.each(|_, set| set.before_fork());
    placeholder::before_fork(alone.as_ref());
    // Completes this process's own registration.
    let _ = session::present();
    let mut held = alone.is_none().then(Held::new);
    if let Some(held) = &mut held {
        fd_passing::hold_reclaim(held);
        placeholder::hold(held);
        rlimit_as::hold(held);
        // From here on no thread registers: the child must find the registration that promised its bits.
        session::hold_attempts(held);
    }
    let client = session::present();
    if let Some(client) = &client {
        promise(client, alone.as_ref());
    }
    if let Some(held) = &mut held {
        hold(client.as_ref(), held);
    }
    // Set even to `None`: a child that used this first would have to allocate.
    HELD.set(held);
}

fn hold(client: Option<&Arc<Client>>, held: &mut Held) {
    let socks = tables::each_once(tables::SOCKS.all());
    let sets = tables::each_once(tables::SETS.all());
    sets.iter().for_each(|set| set.hold_context(held));
    socks.iter().for_each(|sock| sock.hold(held));
    sets.iter().for_each(|set| set.hold_interest(held));
    sigio::hold(held);
    if let Some(client) = client {
        client.hold(held);
    }
    session::hold_current(held);
    cancel::hold(held);
}

impl Sock {
    /// True for a socket that a child without a holder bit has inherited: only the parent closes it and accepts from it.
    pub fn is_parents(&self) -> bool {
        self.has(flag::PARENTS)
    }

    /// Makes [`Self::is_parents`] true for a socket with a link.
    pub fn leave_to_parent(&self) {
        if self.decided().is_some() {
            self.mark(flag::PARENTS, true);
        }
    }
}

/// Sets the child's holder bit on every socket; promises the child when the first one is found.
fn promise(client: &Client, alone: Option<&Alone>) {
    // A child that cannot say hello cannot hold anything.
    if client.dead.load(Ordering::Relaxed) || detached::is_locked() {
        return;
    }
    let mut made = None;
    let mut give = |fd: RawFd, sock: &Sock| {
        if sock.decided().is_none() {
            return;
        }
        // The service is told before any bit is set: what it was not told of it could not take back.
        let promise = made.get_or_insert_with(|| match pid_namespace::has_children() {
            true => Promise::make(client),
            false => Err(Unpromised::Elsewhere),
        });
        // Of a listener no holder is counted: the child may accept as its parent may.
        if let (Ok(promise), Some(link)) = (promise, sock.link()) {
            link.block().holders.fetch_or(1 << promise.holder, Ordering::SeqCst);
            pending_sockopts::tell_switches(sock, fd);
        }
    };
    match alone {
        Some(alone) => tables::SOCKS.each_alone(alone, &mut give),
        None => tables::SOCKS.each(|fd, sock| give(fd, sock)),
    }
    let Some(made) = made else { return };
    host::dispute();
    match made {
        Ok(promise) => PROMISED.set(Some(promise)),
        Err(why) => {
            log(Level::Info, format_args!("the child gets connections by their descriptors: {why}"));
            fd_passing::leave_all(client);
        }
    }
}

/// In the parent, after the fork, even if it has failed.
pub fn parent() {
    drop(HELD.take());
    if let Some(promise) = PROMISED.take() {
        promise.end_in_parent(session::present().as_deref());
    }
    placeholder::after_fork();
    end();
}

fn end() {
    drop(DEFERRED.take().map(ManuallyDrop::into_inner));
}

/// In the child, after the fork: another thread ID, no contexts, a registration of its own.
pub fn child() {
    let promised = PROMISED.take();
    become_child(promised.map(|promise| promise.holder));
    // Only now: the hello was sent, or will never be.
    if let Some(promise) = promised {
        promise.end();
    }
    end();
}

fn become_child(holder: Option<u8>) {
    if !ALONE.get() {
        tables::SOCKS.forget_pins();
        tables::SETS.forget_pins();
        rings::forget_pins();
    }
    drop(HELD.take());
    if !ALONE.get() {
        forget_stuck_sets();
    }
    placeholder::in_child();
    cycle_account::child();
    endpoint::lock::forget_thread_number();
    HOST.forks.fetch_add(1, Ordering::AcqRel);
    sigio::forget_all();
    reserved::settle();
    rings::forked();
    let Some(parent) = session::present() else { return };
    // The parent's registration is never dropped here: its descriptors and locks are copies of the parent's.
    std::mem::forget(parent.clone());
    if !(ALONE.get() && socket::none_decides()) {
        let mut stuck = Vec::new();
        tables::SOCKS.each(|fd, sock| {
            placeholder::forget_threads(sock);
            if !sock.forget_threads() {
                stuck.push(fd);
            }
        });
        // Not dropped: that would take the stuck lock.
        stuck.into_iter().filter_map(|fd| tables::SOCKS.remove(fd)).for_each(std::mem::forget);
        socket::nobody_decides();
    }
    HELD_AS.store(holder.map_or(0, |holder| 1 << holder), Ordering::Relaxed);
    let Some(holder) = holder else {
        // No bit says that this child holds the sockets, too: if it closed one, the parent would lose it.
        tables::SOCKS.each(|_, sock| sock.leave_to_parent());
        parent.hang_up();
        session::replace(None);
        fd_passing::inherit_from_parent();
        return;
    };
    session::announce(parent, holder);
}

/// In the child: forgets the sets that another thread had locked, before anything is closed. The kernel copies descriptors before memory, so the
/// number of a set that was made meanwhile may be free here, and the next file's.
fn forget_stuck_sets() {
    let mut stuck = Vec::new();
    tables::SETS.each(|fd, set| stuck.extend((!set.is_usable()).then_some(fd)));
    // Not dropped: that would take the stuck lock.
    stuck.into_iter().filter_map(|fd| tables::SETS.remove(fd)).for_each(std::mem::forget);
}

/// This process is about to end. A forked child lets go of what others hold, too: a process that has waited for its end then holds it
/// alone, even if the service, which closes for the dead, has not heard yet. Takes no lock and makes no call: a signal handler may end the
/// process, and a sandbox may forbid the call.
pub fn ending() {
    let ours = HELD_AS.load(Ordering::Relaxed);
    // Another thread might be in the middle of a call.
    if ours == 0 || tables::is_borrowed() || !only_thread::is_certain() {
        return;
    }
    tables::SOCKS.each(|_, sock| {
        let Some(Role::Stream(link)) = sock.decided() else { return };
        let others = |holders: u64| {
            let rest = holders & !ours;
            (holders & ours != 0 && rest != 0 && rest & TRUST == 0).then_some(rest)
        };
        // A socket that this process holds alone stays the service's to close.
        let _ = link.block().holders.fetch_update(Ordering::AcqRel, Ordering::Relaxed, others);
    });
}
