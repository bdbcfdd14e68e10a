//! `SIGIO` and `SIGURG`: the kernel sends them for its sockets; a thread of this library sends them for accelerated ones. It is started
//! when the program first sets the owner of a socket (`F_SETOWN`) or asks for signals (`O_ASYNC`), and sleeps in a context of its own. The
//! owner, the condition and the signal number are kept by the placeholder; they are read there when there is news.
//!
//! The C library does not know the thread (`sys/thread.rs` says why), so what it runs neither allocates nor puts signals off.

use crate::fd::tables;
use crate::socket::{Role, Sock};
use endpoint::stream::ready;
use queue::Doorbell;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::accept_queue::Rest;
use session::fork_locks::Held;
use session::sleeper::Context;
use session::sys::signal::{Deferred, F_GETSIG, Owner, publish, published};
use session::sys::{self, thread};
use session::{self, Client, detached, host, lock};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// Interval in milliseconds at which the thread polls while the control socket has an unread message, which may bring the eventfd by
/// which a new peer wakes us.
const LOOK_MS: i32 = 5;

/// The state of a socket when its owner was last sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Far {
    pulse: (u64, u32),
    urgent: u64,
    /// The end of the stream, or an error.
    end: u32,
}

impl Far {
    fn now(sock: &Sock) -> Self {
        let urgent = match sock.decided() {
            Some(Role::Stream(link)) => link.urgent_mark(),
            _ => 0,
        };
        Self { pulse: sock.pulse(), urgent, end: sock.readiness() & (ready::ALWAYS | ready::RDHUP) }
    }
}

/// A socket that signals are sent for.
#[derive(Debug)]
struct Told {
    fd: RawFd,
    sock: Arc<Sock>,
    far: Far,
    /// The thread's place at the accept queue of a listener.
    rest: Option<Rest>,
}

/// Sockets of this process that signals are sent for. A forked child leaves its parent's to the parent's thread.
static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());
/// True while there is a socket that signals are sent for.
static ANY: AtomicBool = AtomicBool::new(false);

/// The thread that sends signals, and its context. It serves one process and one registration.
#[derive(Debug)]
struct Teller {
    generation: u32,
    context: Arc<Context>,
}

static TELLER: AtomicPtr<Teller> = AtomicPtr::new(ptr::null_mut());

/// The thread that serves `client`, if there is one.
fn present(client: &Arc<Client>) -> Option<&'static Teller> {
    let known = published(&TELLER)?;
    (known.generation == host::generation() && Arc::ptr_eq(&known.context.client, client)).then_some(known)
}

fn start(client: &Arc<Client>) -> Result<&'static Teller, Errno> {
    let before = TELLER.load(Ordering::Acquire);
    let fresh = Box::new(Teller { generation: host::generation(), context: Context::take(client)? });
    // Of several threads that come here at once, the one that publishes its object starts the thread.
    let Some(teller) = publish(&TELLER, before, fresh) else { return present(client).ok_or(Errno::AGAIN) };
    thread::start(run, ptr::from_ref(teller).expose_provenance()).map(|()| teller)
}

/// The program has set an owner for the socket behind `fd`, or has asked for signals: from now on signals are sent for it.
pub fn asked(fd: RawFd) {
    let Some(sock) = tables::SOCKS.pin(fd).map(|sock| sock.share()) else { return };
    if tables::is_borrowed() || detached::is_locked() {
        return;
    }
    let _deferred = Deferred::begin();
    let Some(client) = session::current() else { return };
    let Some(teller) = present(&client).or_else(|| start(&client).ok()) else { return };
    {
        let mut told = lock(&TOLD);
        if told.iter().any(|told| Arc::ptr_eq(&told.sock, &sock)) {
            return;
        }
        let far = Far::now(&sock);
        told.push(Told { fd, sock: sock.clone(), far, rest: None });
        ANY.store(true, Ordering::Relaxed);
    }
    // An epoll set that also holds the socket no longer gets its doorbells: it has to look by itself.
    host::dispute();
    sock.enter(&teller.context);
    teller.context.wake();
}

/// The socket is closed: no more signals are sent for it.
pub fn forget(sock: &Sock) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let gone: Vec<Told> = {
        let mut told = lock(&TOLD);
        let gone = told.extract_if(.., |told| ptr::eq(Arc::as_ptr(&told.sock), sock)).collect();
        ANY.store(!told.is_empty(), Ordering::Relaxed);
        gone
    };
    drop(gone);
}

/// Takes the locks of this module before a fork.
pub fn hold(held: &mut Held) {
    held.take_static(&TOLD);
}

/// In a forked child: drops the list, for the parent's thread serves the parent's sockets.
pub fn forget_all() {
    ANY.store(false, Ordering::Relaxed);
    lock(&TOLD).clear();
}

/// Locks the list for the thread: it must not sleep in the C library's lock.
fn told() -> MutexGuard<'static, Vec<Told>> {
    loop {
        match TOLD.try_lock() {
            Ok(told) => return told,
            Err(TryLockError::Poisoned(told)) => return told.into_inner(),
            Err(TryLockError::WouldBlock) => rustix::thread::sched_yield(),
        }
    }
}

extern "C" fn run(teller: usize) {
    thread::renounce();
    // Only a published object lives for ever; if another registration has replaced it, that has a thread of its own.
    let Some(teller) = published(&TELLER).filter(|known| ptr::from_ref(*known).addr() == teller) else {
        return;
    };
    teller.run();
}

impl Teller {
    fn run(&self) {
        let context = &*self.context;
        while !(detached::is_locked() || context.client.dead.load(Ordering::Relaxed)) {
            context.sleeping.announce();
            let is_quiet = self.arm();
            told().iter_mut().for_each(Told::look);
            let wait = match is_quiet {
                true if thread::has_unread(context.client.control()) => LOOK_MS,
                true => -1,
                false => 0,
            };
            // The result does not matter: the list is looked through in any case.
            let _ = thread::sleep(context.epfd(), wait);
        }
        // The end of the registration ends all connections: this is the last news.
        told().iter_mut().for_each(Told::look);
    }

    /// Arms the doorbells of all sockets in the list. False: news came meanwhile.
    fn arm(&self) -> bool {
        let mut is_quiet = true;
        let mut arm = |bell: Option<Doorbell<'_>>| {
            if let Some(bell) = bell {
                // News from before is not lost: the sockets' state is checked after this.
                bell.drain(u32::MAX, |_| ());
                is_quiet &= bell.prepare_sleep();
            }
        };
        let (number, client) = (self.context.number, &self.context.client);
        for Told { sock, rest, .. } in told().iter_mut() {
            match sock.decided() {
                Some(Role::Stream(link)) => arm(link.mapped.own_bell(number)),
                Some(Role::Listener(listener)) => {
                    if rest.is_none() {
                        *rest = Rest::new(&listener.queue, client, number, false);
                    }
                    // The connections that came are counted after this.
                    rest.iter().for_each(Rest::announce_sleep);
                }
                None => {}
            }
        }
        is_quiet
    }
}

impl Told {
    fn look(&mut self) {
        let (fd, sock) = (self.fd, &*self.sock);
        let before = std::mem::replace(&mut self.far, Far::now(sock));
        if before == self.far || !tables::SOCKS.holds(fd, sock) {
            return;
        }
        let Some(owner) = Owner::of(fd) else { return };
        if before.urgent != self.far.urgent {
            owner.tell(libc::SIGURG, None);
        }
        let is_async =
            sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_ASYNC as usize != 0);
        let events = sock.readiness();
        // For connections in the kernel's accept queue the kernel sends the signal itself.
        let is_ours = match sock.decided() {
            Some(Role::Listener(_)) => events & ready::IN != 0,
            Some(Role::Stream(_)) => true,
            None => false,
        };
        if is_async && is_ours {
            let signal = sys::fcntl(fd, F_GETSIG, 0).unwrap_or(0) as i32;
            owner.tell(if signal == 0 { libc::SIGIO } else { signal }, (signal != 0).then_some((fd, events)));
        }
    }
}
