//! A process that locks itself in with seccomp: judges the filter, and fetches what is needed before it rules ([`session::detached`]).
//! Peers of this host are told to look for news themselves if this process may lack their eventfds.

use crate::connect::listen;
use crate::epoll;
use crate::fd::tables;
use crate::process::bpf::{self, Call};
use crate::socket::{Role, pending_sockopts, placeholder};
use endpoint::Endpoint;
use libc::c_long;
use queue::stream::raise;
use rustix::io::Errno;
use session::reserved;
use session::{self, config, detached};
use shm::half_flags::MUTE;

pub use crate::process::bpf::Instruction;

/// What restricts this thread's calls from now on.
#[derive(Debug)]
pub enum Lock {
    /// `SECCOMP_MODE_STRICT`: `read`, `write`, `exit` and `sigreturn`.
    Strict,
    /// The program of a filter.
    Filter(Vec<Instruction>),
}

const fn call(number: c_long) -> Call {
    Call { number: number as u32, first: None }
}

/// Calls without which the library cannot talk to the service, sleep on eventfds, or make a descriptor for a connection.
const NEEDED: [Call; 13] = [
    call(libc::SYS_sendmsg),
    call(libc::SYS_recvmsg),
    call(libc::SYS_fcntl),
    call(libc::SYS_eventfd2),
    call(libc::SYS_epoll_create1),
    call(libc::SYS_epoll_ctl),
    call(libc::SYS_epoll_pwait),
    call(libc::SYS_ppoll),
    call(libc::SYS_madvise),
    call(libc::SYS_gettid),
    call(libc::SYS_setsockopt),
    call(libc::SYS_getsockname),
    Call { number: libc::SYS_socket as u32, first: Some(libc::AF_INET as u64) },
];

/// Least limit of descriptors for a registration, which takes some: a program with a lower limit means to have no more.
const DESCRIPTORS: u64 = 256;

impl Lock {
    fn allows(&self, call: Call) -> bool {
        match self {
            Self::Strict => false,
            Self::Filter(program) => bpf::allows(program, call),
        }
    }

    /// True when a call is forbidden that this library needs; and the bits of the optional calls that are forbidden.
    fn judge(&self) -> (bool, u32) {
        let cut_off = NEEDED.iter().any(|needed| !self.allows(*needed));
        let forbidden = detached::OPTIONAL
            .iter()
            .filter(|number| !self.allows(call(**number)))
            .fold(0, |all, number| all | detached::bit(*number));
        (cut_off, forbidden)
    }
}

/// The calling thread is about to lock itself in, by `install`: fetches what is needed before. A thread's lock counts for all threads here:
/// they share locks and memory.
///
/// # Errors
/// As `install`'s. Then what was given up stays so, and everything else goes on as before.
pub fn enter<T>(lock: &Lock, install: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if config::is_disabled() {
        return install();
    }
    // Later the filter may forbid the calls for it.
    placeholder::end();
    let (cut_off, forbidden) = lock.judge();
    let first = cut_off && detached::has_line();
    if first {
        prepare();
    }
    // Preparing may have cut us off.
    let before = detached::restrict(cut_off, forbidden);
    let result = install();
    if result.is_err() {
        detached::undo(before);
    } else if first {
        session::settle_for_parents();
    }
    result
}

/// Prepares for a time when the service cannot be asked.
fn prepare() {
    let _ = endpoint::lock::thread_number();
    let _ = epoll::mark(0);
    tables::SOCKS.each(|fd, sock| {
        let _ = pending_sockopts::tell(sock, fd);
    });
    // A forked child does not begin a registration that it cannot complete: it goes on with its parent's.
    let is_too_late = session::is_announced() && reserved::limit() < DESCRIPTORS;
    let client = if is_too_late { None } else { session::present() };
    // Later the region cannot get more memory.
    client.iter().for_each(|client| client.grow(&client.home));
    for sock in tables::each_once(tables::SOCKS.all()) {
        match (&client, if client.is_some() { sock.role() } else { sock.decided() }) {
            // New connections can come only by the kernel's queue.
            (Some(client), Some(Role::Listener(listener))) => listen::give_up(listener, client),
            (client, Some(Role::Stream(link))) if link.mapped.pair && !link.has_moved() => {
                fall_silent(link, client.is_some());
            }
            _ => {}
        }
    }
}

/// Tells the peer to look for news itself. `may_ask`: the service can be asked for the peer's eventfd.
fn fall_silent(link: &Endpoint, may_ask: bool) {
    if may_ask {
        link.raise(MUTE);
    } else {
        raise(link.halves().0, MUTE);
        let _ = link.mapped.tell(link.slot());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(action: u32) -> Lock {
        Lock::Filter(vec![Instruction { code: 0x06, jt: 0, jf: 0, k: action }])
    }

    #[test]
    fn a_filter_that_allows_everything_changes_nothing() {
        assert_eq!(filter(0x7fff_0000).judge(), (false, 0));
    }

    #[test]
    fn one_that_allows_nothing_forbids_every_call_that_can_be_done_without() {
        for lock in [Lock::Strict, filter(0x0005_0001), filter(0)] {
            let (cut_off, forbidden) = lock.judge();
            assert!(
                cut_off && detached::OPTIONAL.iter().all(|number| forbidden & detached::bit(*number) != 0)
            );
        }
        assert_eq!(detached::bit(libc::SYS_read), 0, "nobody does without reading");
    }
}
