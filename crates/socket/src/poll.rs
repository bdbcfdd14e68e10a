//! `poll` and `select` over descriptors of both kinds.

use crate::wait::{self, Party};
use crate::{fds, locked, moving, sys};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Our parties among `fds`, with their places; for listeners the kernel is asked too.
fn split(fds: &[libc::pollfd]) -> (Vec<(usize, Party)>, Vec<libc::pollfd>) {
    let mut ours = Vec::new();
    let mut kernel = fds.to_vec();
    for (i, entry) in fds.iter().enumerate() {
        kernel[i].revents = 0;
        if entry.fd < 0 {
            continue;
        }
        if let Some(sock) = moving::settled(entry.fd) {
            if sock.role().is_none() {
                continue;
            }
            if sock.stream().is_some() {
                kernel[i].fd = -1;
            }
            let sock = sock.share();
            crate::listener::share(&sock);
            ours.push((i, Party::Sock(sock, u32::from(entry.events as u16))));
        } else if let Some(set) = fds::SETS.pin(entry.fd)
            && (set.context_number().is_some() || locked::is_locked())
        {
            ours.push((i, Party::Set(set.share())));
        }
    }
    (ours, kernel)
}

/// How long a call waits, without a limit for ever, and which signals are blocked meanwhile.
pub type Wait = (Option<Duration>, Option<u64>);

/// `ppoll`. `None`: nothing of ours is among them, and `wait`, which says how the program wants to wait, was not asked.
pub fn poll(
    fds: &mut [libc::pollfd],
    wait: impl FnOnce() -> Result<Wait, Errno>,
) -> Option<Result<usize, Errno>> {
    let touches = |e: &libc::pollfd| e.fd >= 0 && fds::is_ours(e.fd);
    if !fds.iter().any(touches) {
        return None;
    }
    let (ours, mut kernel) = split(fds);
    if ours.is_empty() {
        return None;
    }
    Some(wait().and_then(|(timeout, mask)| mixed(fds, &ours, &mut kernel, timeout, mask)))
}

fn mixed(
    fds: &mut [libc::pollfd],
    ours: &[(usize, Party)],
    kernel: &mut [libc::pollfd],
    timeout: Option<Duration>,
    mask: Option<u64>,
) -> Result<usize, Errno> {
    let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
    let has_kernel = kernel.iter().any(|k| k.fd >= 0);
    let mut parties = Vec::with_capacity(ours.len());
    for (_, party) in ours {
        parties.push(match party {
            Party::Sock(sock, wanted) => Party::Sock(sock.clone(), *wanted),
            Party::Set(set) => Party::Set(set.clone()),
        });
    }
    loop {
        if has_kernel {
            sys::poll(kernel, Some(Duration::ZERO), None)?;
        }
        for (entry, k) in fds.iter_mut().zip(kernel.iter()) {
            entry.revents = k.revents;
        }
        for (i, party) in ours {
            // A set is readable or not; a socket knows itself what it was asked.
            let asked = match party {
                Party::Sock(..) => u32::MAX,
                Party::Set(_) => u32::from(fds[*i].events as u16),
            };
            fds[*i].revents |= (party.ready() & asked) as u16 as i16;
        }
        let n = fds.iter().filter(|e| e.revents != 0).count();
        let over = deadline.is_some_and(|d| d <= Instant::now());
        if n > 0 || over {
            return Ok(n);
        }
        wait::sleep(&parties, kernel, deadline, mask)?;
    }
}

/// The three sets of `select` as bit words, changed in place.
#[derive(Debug)]
pub struct Sets<'a> {
    /// Readable.
    pub read: Option<&'a mut [u64]>,
    /// Writable.
    pub write: Option<&'a mut [u64]>,
    /// Exceptional.
    pub except: Option<&'a mut [u64]>,
}

const READ: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM;

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

/// `pselect`. As [`poll`].
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
    let result = poll(&mut list, wait)?;
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
        if asked & READ != 0 && got & (READ | libc::POLLHUP | libc::POLLERR) != 0 {
            n += put(&mut sets.read, entry.fd);
        }
        if asked & WRITE != 0 && got & (WRITE | libc::POLLERR) != 0 {
            n += put(&mut sets.write, entry.fd);
        }
        if asked & libc::POLLPRI != 0 && got & libc::POLLPRI != 0 {
            n += put(&mut sets.except, entry.fd);
        }
    }
    Some(Ok(n))
}
