//! epoll over the readiness and the edges that a host tells.

use super::{File, Runner};
use crate::syntax::{Call, Expr, Trouble};
use sim::Errno;

const ET: u32 = 1 << 31;
const ONESHOT: u32 = 1 << 30;
const EXCLUSIVE: u32 = 1 << 28;

/// One epoll descriptor.
#[derive(Default)]
pub(crate) struct Epoll {
    interests: Vec<Interest>,
}

struct Interest {
    fd: i32,
    events: u32,
    data: i64,
    /// Edges that were there at the last report; `None` right after `epoll_ctl`.
    reported: Option<u64>,
    is_off: bool,
}

impl Epoll {
    pub(super) fn forget(&mut self, fd: i32) {
        self.interests.retain(|interest| interest.fd != fd);
    }
}

impl Runner {
    pub(super) fn epoll_ctl(&mut self, call: &Call) -> Result<Result<i64, Errno>, Trouble> {
        let (epfd, operation, fd) = (self.int(call, 0)?, self.int(call, 1)?, self.int(call, 2)?);
        let (events, data) = match call.args.get(3) {
            Some(event @ Expr::Struct(_)) => {
                let events = event.field("events").map_or(Ok(0), |value| self.value(value))?;
                (events as u32, self.event_data(event)?)
            }
            _ => (0, 0),
        };
        if !self.files.contains_key(&fd) {
            return Ok(Err(Errno::BADF));
        }
        let Some(File::Epoll(epoll)) = self.files.get_mut(&epfd) else {
            return Err(self.fail(format!("{epfd} is no epoll descriptor")));
        };
        let known = epoll.interests.iter().position(|interest| interest.fd == fd);
        let fresh = Interest { fd, events, data, reported: None, is_off: false };
        Ok(match (operation, known) {
            (libc::EPOLL_CTL_ADD, None) => {
                epoll.interests.push(fresh);
                Ok(0)
            }
            (libc::EPOLL_CTL_ADD, Some(_)) => Err(Errno::EXIST),
            (libc::EPOLL_CTL_MOD, Some(at)) => {
                epoll.interests[at] = fresh;
                Ok(0)
            }
            (libc::EPOLL_CTL_DEL, Some(at)) => {
                epoll.interests.remove(at);
                Ok(0)
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => Err(Errno::NOENT),
            _ => Err(Errno::INVAL),
        })
    }

    /// The data of an event, however it is called.
    pub(super) fn event_data(&self, event: &Expr) -> Result<i64, Trouble> {
        let data = ["fd", "ptr", "u32", "u64"].iter().find_map(|name| event.field(name));
        data.map_or(Ok(0), |value| self.value(value))
    }

    /// What is reported now, at most `most`.
    pub(super) fn epoll_collect(&mut self, epfd: i32, most: usize) -> Vec<(u32, i64)> {
        let Self { files, network, edges, .. } = self;
        let state = |fd: i32| match files.get(&fd) {
            Some(File::Socket(socket)) => {
                (network.host.readiness(socket.fd), edges.get(&socket.fd).copied().unwrap_or(0))
            }
            _ => (0, 0),
        };
        let Some(File::Epoll(epoll)) = files.get(&epfd) else { return Vec::new() };
        let states: Vec<_> = epoll.interests.iter().map(|interest| state(interest.fd)).collect();
        let Some(File::Epoll(epoll)) = files.get_mut(&epfd) else { return Vec::new() };
        let mut found = Vec::new();
        for (interest, (ready, edges)) in epoll.interests.iter_mut().zip(states) {
            let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
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
