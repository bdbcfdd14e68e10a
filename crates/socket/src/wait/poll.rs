//! `poll` and `select` over descriptors of both kinds.

use crate::fd::tables;
use crate::process::fd_passing;
use crate::socket::InUse;
use crate::wait::{self, Parties, Party, with_entries};
use cycles::Section;
use rustix::fd::RawFd;
use rustix::io::Errno;
use session::detached;
use session::sys::small_vec::Few;
use session::sys::{self, cycle_account};
use std::time::{Duration, Instant};

/// The accelerated objects among the entries of a `poll`, and the index of each entry.
#[derive(Default)]
struct Ours {
    places: Few<usize, 4>,
    parties: Parties,
}

impl Ours {
    /// `told`: the bits of a socket that end the call, by those that the entry asks for.
    fn among(fds: &[libc::pollfd], told: fn(i16) -> i16) -> Self {
        let mut ours = Self::default();
        for (i, entry) in fds.iter().enumerate().filter(|(_, entry)| entry.fd >= 0) {
            if let Some(party) = party(entry, told(entry.events)) {
                ours.places.push(i);
                ours.parties.push(party);
            }
        }
        ours
    }

    fn each(&self) -> impl Iterator<Item = (usize, &Party)> {
        self.places.iter().copied().zip(self.parties.iter())
    }

    /// Fills `kernel` with the entries that the kernel is asked for: all but connections. Returns their number.
    fn leave(&self, fds: &[libc::pollfd], kernel: &mut [libc::pollfd]) -> usize {
        for (entry, asked) in kernel.iter_mut().zip(fds) {
            *entry = libc::pollfd { revents: 0, ..*asked };
        }
        for (i, party) in self.each() {
            if matches!(party, Party::Sock(sock, _) if sock.stream().is_some()) {
                kernel[i].fd = -1;
            }
        }
        kernel.iter().filter(|k| k.fd >= 0).count()
    }
}

/// The accelerated socket or epoll set behind a descriptor; `None` also for a set of which no more is asked than what it never has.
fn party(entry: &libc::pollfd, told: i16) -> Option<Party> {
    if let Some(sock) = fd_passing::settled(entry.fd) {
        if sock.role().is_none() && sock.is_put_off() {
            crate::process::io_uring::wanted(&sock.share(), entry.fd);
        }
        sock.role()?;
        let sock = sock.share();
        crate::connect::listen::await_by_call(&sock);
        return Some(Party::Sock(sock, u32::from(told as u16)));
    }
    let set = tables::SETS.pin(entry.fd)?;
    (entry.events & READ != 0 && (set.is_polled() || detached::is_locked())).then(|| Party::Set(set.share()))
}

/// How long a call waits (`None`: for ever), and which signals are blocked meanwhile.
pub type Wait = (Option<Duration>, Option<u64>);

/// `ppoll`. `None`: none of the descriptors is accelerated; then `wait`, which returns the timeout and mask, was not called.
pub fn poll(
    fds: &mut [libc::pollfd],
    wait: impl FnOnce() -> Result<Wait, Errno>,
) -> Option<Result<usize, Errno>> {
    poll_for(fds, |events| events | libc::POLLERR | libc::POLLHUP, wait)
}

/// As [`poll`]; `told`: as for [`Ours::among`].
fn poll_for(
    fds: &mut [libc::pollfd],
    told: fn(i16) -> i16,
    wait: impl FnOnce() -> Result<Wait, Errno>,
) -> Option<Result<usize, Errno>> {
    let _waiting = cycle_account::enter(Section::Wait);
    let touches = |e: &libc::pollfd| e.fd >= 0 && tables::is_ours(e.fd);
    if !fds.iter().any(touches) {
        return None;
    }
    let ours = Ours::among(fds, told);
    if ours.places.is_empty() {
        return None;
    }
    Some(wait().and_then(|wait| {
        with_entries(fds.len(), |kernel| {
            let count = ours.leave(fds, kernel);
            mixed(fds, &ours, if count > 0 { kernel } else { &mut [] }, wait)
        })
    }))
}

fn mixed(
    fds: &mut [libc::pollfd],
    ours: &Ours,
    kernel: &mut [libc::pollfd],
    (timeout, mask): Wait,
) -> Result<usize, Errno> {
    let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
    let mut open: Few<InUse, 4> = Few::default();
    loop {
        if !kernel.is_empty() {
            sys::poll(kernel, Some(Duration::ZERO), None)?;
        }
        fds.iter_mut().for_each(|entry| entry.revents = 0);
        for (entry, k) in fds.iter_mut().zip(kernel.iter()) {
            entry.revents = k.revents;
        }
        for (i, party) in ours.each() {
            // A set is only readable or not, so it is filtered here; a socket filters by its own wanted bits.
            let asked = match party {
                Party::Sock(..) | Party::Acceptor(_) | Party::Caller(..) => u32::MAX,
                Party::Set(_) => u32::from(fds[i].events as u16),
            };
            fds[i].revents |= (party.ready() & asked) as u16 as i16;
        }
        let n = fds.iter().filter(|e| e.revents != 0).count();
        let over = deadline.is_some_and(|d| d <= Instant::now());
        if n > 0 || over {
            return Ok(n);
        }
        if open.is_empty() {
            // A socket that is closed at this moment is reported in the next round.
            open = ours.parties.iter().filter_map(Party::begin_use).collect();
        }
        wait::sleep(&ours.parties, kernel, deadline, mask)?;
    }
}

/// The three sets of `select` as bit words, changed in place.
#[derive(Debug)]
pub struct Sets<'a> {
    /// Descriptors to check for reading.
    pub read: Option<&'a mut [u64]>,
    /// Descriptors to check for writing.
    pub write: Option<&'a mut [u64]>,
    /// Descriptors to check for exceptional conditions.
    pub except: Option<&'a mut [u64]>,
}

const READ: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// The bits that end a `select` which asks for `events`.
fn selected(events: i16) -> i16 {
    let with = |asked, also| if events & asked != 0 { asked | also } else { 0 };
    with(READ, libc::POLLHUP | libc::POLLERR) | with(WRITE, libc::POLLERR) | with(libc::POLLPRI, 0)
}

fn has(set: &Option<&mut [u64]>, fd: RawFd) -> bool {
    let i = fd as usize;
    set.as_ref().is_some_and(|words| words.get(i / 64).is_some_and(|w| w & (1 << (i % 64)) != 0))
}

fn put(set: &mut Option<&mut [u64]>, fd: RawFd) -> usize {
    let i = fd as usize;
    match set.as_mut().and_then(|words| words.get_mut(i / 64)) {
        Some(word) => {
            *word |= 1 << (i % 64);
            1
        }
        None => 0,
    }
}

/// `pselect` of the descriptors below `most`. `None` as for [`poll`].
pub fn select(
    most: RawFd,
    mut sets: Sets<'_>,
    wait: impl FnOnce() -> Result<Wait, Errno>,
) -> Option<Result<usize, Errno>> {
    let wanted = |fd: RawFd| {
        let bits = [(&sets.read, READ), (&sets.write, WRITE), (&sets.except, libc::POLLPRI)];
        bits.iter().filter(|(set, _)| has(set, fd)).fold(0, |all, (_, bit)| all | bit)
    };
    let mut list: Vec<libc::pollfd> = (0..most)
        .map(|fd| libc::pollfd { fd, events: wanted(fd), revents: 0 })
        .filter(|e| e.events != 0)
        .collect();
    let asked: Vec<i16> = list.iter().map(|e| e.events).collect();
    let result = poll_for(&mut list, selected, wait)?;
    if let Err(e) = result {
        return Some(Err(e));
    }
    if list.iter().any(|e| e.revents & libc::POLLNVAL != 0) {
        return Some(Err(Errno::BADF));
    }
    for set in [&mut sets.read, &mut sets.write, &mut sets.except].into_iter().flatten() {
        let words = set.len().min((most as usize).div_ceil(64));
        set[..words].fill(0);
    }
    let mut n = 0;
    for (entry, asked) in list.iter().zip(asked) {
        let got = entry.revents;
        if got & selected(asked & READ) != 0 {
            n += put(&mut sets.read, entry.fd);
        }
        if got & selected(asked & WRITE) != 0 {
            n += put(&mut sets.write, entry.fd);
        }
        if got & selected(asked & libc::POLLPRI) != 0 {
            n += put(&mut sets.except, entry.fd);
        }
    }
    Some(Ok(n))
}
