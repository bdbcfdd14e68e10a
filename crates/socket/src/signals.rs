//! `SIGIO` and `SIGURG`: what the kernel sends of its sockets, for ours a thread of this library sends. It is started when the program
//! first says who is to be told of a socket (`F_SETOWN`) or that somebody is (`O_ASYNC`), and waits in an epoll set of its own. Who is
//! told, of what and by which signal stands with the placeholder, and is asked for there when something has come.

use crate::client::lock;
use crate::epoll::Set;
use crate::internal::Internal;
use crate::sock::{Role, Sock};
use crate::stream::ready;
use crate::sys::signal::{F_GETSIG, Owner, publish, published, without_signals};
use crate::{fds, fork, locked, sys};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// News of each socket is reported once.
const WANTED: u32 = ready::IN | ready::OUT | ready::PRI | ready::RDHUP | libc::EPOLLET as u32;

/// How far a socket had come when its owner was last told.
#[derive(Debug)]
struct Told {
    sock: Weak<Sock>,
    pulse: (u64, u32),
    urgent: u64,
}

impl Told {
    fn now(sock: &Arc<Sock>) -> Self {
        let urgent = sock.stream().map_or(0, |link| link.urgent_mark());
        Self { sock: Arc::downgrade(sock), pulse: sock.pulse(), urgent }
    }
}

/// Of one process: a forked child makes its own, and leaves its parent's sockets to the parent's.
#[derive(Debug)]
struct Teller {
    generation: u32,
    set: Arc<Set>,
    _epfd: Internal,
    told: Mutex<HashMap<RawFd, Told>>,
}

static TELLER: AtomicPtr<Teller> = AtomicPtr::new(ptr::null_mut());

/// This process's, if it has one.
fn present() -> Option<&'static Teller> {
    let known = published(&TELLER)?;
    (known.generation == fork::generation()).then_some(known)
}

fn start() -> Result<&'static Teller, Errno> {
    let before = TELLER.load(Ordering::Acquire);
    let epfd = Internal::epoll()?;
    let fresh = Box::new(Teller {
        generation: fork::generation(),
        set: Set::new(epfd.number()),
        _epfd: epfd,
        told: Mutex::default(),
    });
    // Of several threads that ask at once one starts it.
    let Some(teller) = publish(&TELLER, before, fresh) else { return present().ok_or(Errno::AGAIN) };
    let spawned = without_signals(|| {
        std::thread::Builder::new().name("towpath-signals".to_owned()).spawn(move || teller.run())
    });
    spawned.map(|_| teller).map_err(|_| Errno::AGAIN)
}

/// The program has said of the socket behind `fd` who is to be told, or that somebody is.
pub fn asked(fd: RawFd) {
    let Some(sock) = fds::SOCKS.pin(fd).map(|sock| sock.share()) else { return };
    if fds::is_borrowed() || locked::is_locked() {
        return;
    }
    let Some(teller) = present().or_else(|| start().ok()) else { return };
    {
        let mut told = lock(&teller.told);
        if told.values().any(|told| ptr::eq(told.sock.as_ptr(), Arc::as_ptr(&sock))) {
            return;
        }
        told.retain(|_, told| told.sock.strong_count() > 0);
        told.insert(fd, Told::now(&sock));
    }
    let wanted = libc::epoll_event { events: WANTED, u64: fd as u64 };
    if teller.set.control(libc::EPOLL_CTL_ADD, fd, (&sock, || sock.clone()), Some(wanted)).is_err() {
        lock(&teller.told).remove(&fd);
    }
}

impl Teller {
    fn run(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        loop {
            match self.set.wait(&mut events, None, None) {
                Ok(n) => events[..n].iter().for_each(|event| self.look(event.u64 as RawFd, event.events)),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn look(&self, fd: RawFd, events: u32) {
        let Some(sock) = fds::SOCKS.pin(fd).map(|sock| sock.share()) else { return };
        let is_urgent = {
            let mut all = lock(&self.told);
            let known = all.get_mut(&fd).filter(|told| ptr::eq(told.sock.as_ptr(), Arc::as_ptr(&sock)));
            let Some(told) = known else { return };
            let now = Told::now(&sock);
            if now.pulse == told.pulse && now.urgent == told.urgent && events & ready::ALWAYS == 0 {
                return;
            }
            let is_urgent = now.urgent != told.urgent;
            *told = now;
            is_urgent
        };
        let Some(owner) = Owner::of(fd) else { return };
        if is_urgent {
            owner.tell(libc::SIGURG, None);
        }
        let is_async =
            sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_ASYNC as usize != 0);
        // What comes to a listener by the kernel's queue the kernel tells.
        let is_ours = match sock.decided() {
            Some(Role::Listener(_)) => events & ready::IN != 0 && sock.readiness() & ready::IN != 0,
            Some(Role::Stream(_)) => true,
            None => false,
        };
        if is_async && is_ours {
            let signal = sys::fcntl(fd, F_GETSIG, 0).unwrap_or(0) as i32;
            owner.tell(if signal == 0 { libc::SIGIO } else { signal }, (signal != 0).then_some((fd, events)));
        }
    }
}

/// In a forked child: its parent's sockets are told of by the parent.
pub fn forget() {
    if let Some(teller) = published(&TELLER) {
        fds::SOCKS.each(|fd, sock| sock.leave_set(&teller.set, fd));
    }
}
