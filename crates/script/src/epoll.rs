//! An epoll set for scripts, built on the readiness and the pulse of simulated sockets.

use sim::Errno;

const ET: u32 = 1 << 31;
const ONESHOT: u32 = 1 << 30;
const EXCLUSIVE: u32 = 1 << 28;

/// The set behind one epoll descriptor.
#[derive(Debug, Default)]
pub struct Epoll {
    interests: Vec<Interest>,
}

/// Readiness of a descriptor in epoll's bits, and its pulse (`sim::Host::pulse`).
pub type State = (u32, (u64, u32));

#[derive(Debug)]
struct Interest {
    fd: i32,
    events: u32,
    data: i64,
    /// The state at the last report; `None` directly after `epoll_ctl`.
    reported: Option<State>,
    is_off: bool,
}

impl Epoll {
    /// `epoll_ctl` for an open descriptor.
    ///
    /// # Errors
    /// EEXIST, ENOENT and EINVAL, as on Linux.
    pub fn control(&mut self, operation: i32, fd: i32, events: u32, data: i64) -> Result<(), Errno> {
        let known = self.interests.iter().position(|interest| interest.fd == fd);
        let fresh = Interest { fd, events, data, reported: None, is_off: false };
        match (operation, known) {
            (libc::EPOLL_CTL_ADD, None) => self.interests.push(fresh),
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EXIST),
            (libc::EPOLL_CTL_MOD, Some(at)) => self.interests[at] = fresh,
            (libc::EPOLL_CTL_DEL, Some(at)) => drop(self.interests.remove(at)),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno::NOENT),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    /// Removes the descriptor `fd`, which was closed.
    pub fn forget(&mut self, fd: i32) {
        self.interests.retain(|interest| interest.fd != fd);
    }

    /// Events and data to report now, at most `most`. An edge-triggered descriptor is reported when it has more readiness than at its last
    /// report, or another pulse, as in the socket library.
    pub fn collect(&mut self, most: usize, state: impl Fn(i32) -> State) -> Vec<(u32, i64)> {
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let mut found = Vec::new();
        for interest in &mut self.interests {
            let (ready, pulse) = state(interest.fd);
            let wanted = interest.events & !(ET | ONESHOT | EXCLUSIVE) | always;
            let is_edge = interest.reported.is_none_or(|(was, before)| before != pulse || ready & !was != 0);
            if found.len() >= most
                || interest.is_off
                || ready & wanted == 0
                || (interest.events & ET != 0 && !is_edge)
            {
                continue;
            }
            interest.reported = Some((ready, pulse));
            interest.is_off = interest.events & ONESHOT != 0;
            found.push((ready & wanted, interest.data));
        }
        found
    }
}
