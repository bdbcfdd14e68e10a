//! epoll over the readiness and the edges that a host tells.

use sim::Errno;

const ET: u32 = 1 << 31;
const ONESHOT: u32 = 1 << 30;
const EXCLUSIVE: u32 = 1 << 28;

/// One epoll descriptor.
#[derive(Debug, Default)]
pub struct Epoll {
    interests: Vec<Interest>,
}

#[derive(Debug)]
struct Interest {
    fd: i32,
    events: u32,
    data: i64,
    /// Edges that were there at the last report; `None` right after `epoll_ctl`.
    reported: Option<u64>,
    is_off: bool,
}

impl Epoll {
    /// `epoll_ctl` for a descriptor that is open.
    ///
    /// # Errors
    /// EEXIST, ENOENT and EINVAL as Linux.
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

    /// The descriptor `fd` was closed.
    pub fn forget(&mut self, fd: i32) {
        self.interests.retain(|interest| interest.fd != fd);
    }

    /// Events and data reported now, at most `most`. `state` says of a descriptor what it is ready for and how many edges it
    /// has had.
    pub fn collect(&mut self, most: usize, state: impl Fn(i32) -> (u32, u64)) -> Vec<(u32, i64)> {
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let mut found = Vec::new();
        for interest in &mut self.interests {
            let (ready, edges) = state(interest.fd);
            let wanted = interest.events & !(ET | ONESHOT | EXCLUSIVE) | always;
            let is_edge = interest.reported.is_none_or(|reported| reported < edges);
            if found.len() >= most
                || interest.is_off
                || ready & wanted == 0
                || (interest.events & ET != 0 && !is_edge)
            {
                continue;
            }
            interest.reported = Some(edges);
            interest.is_off = interest.events & ONESHOT != 0;
            found.push((ready & wanted, interest.data));
        }
        found
    }
}
