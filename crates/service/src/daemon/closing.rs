//! Lines that are to be closed. A line that still holds unread descriptors of the program's is closed by a helper, together with them. A line whose
//! program has not read descriptors of the service's is shut, and kept until the program has read them or is gone: they are in flight until then.
//! Until a line is closed, it and what is in flight to it count as its user's.

use crate::daemon::control_lines::{Peer, UNREAD_LEAST};
use crate::daemon::{SHUT, Service, helpers};
use crate::registry::process::descriptors::Charge;
use crate::registry::registration::User;
use crate::sys;
use control::{Line, ToService};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{Shutdown, shutdown};
use std::sync::Arc;
use std::time::Instant;

/// A line that is to be closed.
#[derive(Debug)]
pub struct Closing {
    line: Arc<Line>,
    user: User,
    /// Descriptors of the service's may lie unread.
    is_unread: bool,
    charge: Charge,
}

impl Closing {
    /// A line without messages of the service's.
    pub fn new(fd: OwnedFd, user: User, charge: Charge) -> Self {
        Self { line: Arc::new(Line::new(fd)), user, is_unread: false, charge }
    }
}

impl From<Peer> for Closing {
    fn from(peer: Peer) -> Self {
        let Peer { line, who, may_have_unread, charge, .. } = peer;
        Self { line, user: who.user(), is_unread: may_have_unread, charge }
    }
}

impl Service {
    /// Closes lines, as far as that can be done now.
    pub(crate) fn close_lines(&mut self, now: Instant) {
        for closing in std::mem::take(&mut self.closing) {
            let Closing { line, user, is_unread, charge } = closing;
            // A helper still uses the line.
            if Arc::strong_count(&line) > 1 {
                self.closing.push(Closing { line, user, is_unread, charge });
                continue;
            }
            // From here on no new message can arrive.
            let _ = shutdown(&line, Shutdown::Both);
            if is_unread && sys::unread_bytes(line.as_fd()) >= UNREAD_LEAST {
                self.keep_shut(Closing { line, user, is_unread, charge });
            } else if let Some(line) = Arc::into_inner(line) {
                self.close_line(line, user, charge, now);
            }
        }
    }

    /// Keeps a line until the program has read what lies there.
    fn keep_shut(&mut self, closing: Closing) {
        let id = self.next_shut;
        self.next_shut = id.wrapping_add(1);
        // The kernel reports each message that is read, and the end of the program.
        let flags = epoll::EventFlags::OUT | epoll::EventFlags::ET;
        if self.watch(closing.line.as_fd(), SHUT | u64::from(id), flags).is_ok() {
            self.shut.insert(id, closing);
        } else {
            self.closing.push(Closing { is_unread: false, ..closing });
        }
    }

    /// Something was read of a line that is shut, or its program is gone.
    pub(crate) fn shut_line_woken(&mut self, id: u32) {
        let is_read = |shut: &Closing| sys::unread_bytes(shut.line.as_fd()) < UNREAD_LEAST;
        if self.shut.get(&id).is_some_and(is_read)
            && let Some(shut) = self.shut.remove(&id)
        {
            let _ = epoll::delete(&self.epoll, shut.line.as_fd());
            self.closing.push(Closing { is_unread: false, ..shut });
        }
    }

    fn close_line(&mut self, line: Line, user: User, charge: Charge, now: Instant) {
        let has_descriptors = loop {
            match line.has_descriptors() {
                Ok(true) => break true,
                Ok(false) => drop(line.receive::<ToService>(false)),
                Err(_) => break false,
            }
        };
        if has_descriptors {
            let _ = self.helpers.ask(user, helpers::Job::Close(line.into(), Some(charge)), now);
        }
    }

    /// At the service's end: closes all control lines, those not yet accepted too.
    pub(crate) fn hang_up_all(&mut self) {
        self.accept_last();
        let ids: Vec<u32> = self.peers.keys().copied().collect();
        for id in ids {
            self.registry.forget(id);
            self.closing
                .extend(self.peers.remove(&id).map(|peer| Closing { is_unread: false, ..peer.into() }));
        }
        let shut = std::mem::take(&mut self.shut).into_values();
        self.closing.extend(shut.map(|shut| Closing { is_unread: false, ..shut }));
        self.close_lines(Instant::now());
        // A helper still uses these lines: the kernel closes them when the process ends.
        std::mem::take(&mut self.closing).into_iter().for_each(std::mem::forget);
    }
}
