//! The system calls of epoll.

use super::{File, Runner};
use crate::syntax::{Call, Expr, Trouble};
use sim::Errno;

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
        Ok(epoll.control(operation, fd, events, data).map(|()| 0))
    }

    /// The data of an event; its field may be `fd`, `ptr`, `u32` or `u64`.
    pub(super) fn event_data(&self, event: &Expr) -> Result<i64, Trouble> {
        let data = ["fd", "ptr", "u32", "u64"].iter().find_map(|name| event.field(name));
        data.map_or(Ok(0), |value| self.value(value))
    }

    /// Events and data to report now, at most `most`.
    pub(super) fn epoll_collect(&mut self, epfd: i32, most: usize) -> Vec<(u32, i64)> {
        let Some(File::Epoll(epoll)) = self.files.get_mut(&epfd) else { return Vec::new() };
        let mut epoll = std::mem::take(epoll);
        let Self { files, network, .. } = &*self;
        let found = epoll.collect(most, |fd| match files.get(&fd) {
            Some(File::Socket(socket)) => (network.host.readiness(socket.fd), network.host.pulse(socket.fd)),
            _ => (0, (0, 0)),
        });
        self.files.insert(epfd, File::Epoll(epoll));
        found
    }
}
