//! Requests and answers on the line to the service, one after the other, and the descriptors that come with them.

use crate::log::{Level, log};
use crate::reserved::{self, Internal};
use crate::sys;
use control::{Line, LineError, PROTOCOL, Parent, Push, Received, Reply, Request, ToApplication, ToService};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// The control line, which one thread at a time uses.
#[derive(Debug)]
pub struct Exchange {
    /// The socket to the service.
    pub line: Line,
    /// Number of the last request.
    pub number: u32,
    /// Keeps a descriptor number for what the service may send when no other is free. Given up only during a request that may bring again
    /// what was lost: at any other time the program would get the number.
    spare: Option<Internal>,
    /// A descriptor was lost because no number was free.
    has_lost: bool,
    /// Some descriptors that came since the last request are lost.
    is_short: bool,
}

/// Waits for the service's next message, within the time limit of the line.
fn receive(line: &Line) -> Result<Received<ToApplication>, LineError> {
    line.receive(true).map_err(|e| if matches!(e, LineError::WouldBlock) { LineError::Closed } else { e })
}

impl Exchange {
    /// Takes a line on which `number` was the last request.
    pub const fn new(line: Line, number: u32) -> Self {
        Self { line, number, spare: None, has_lost: false, is_short: false }
    }

    /// Sends a request, and shows `fd`.
    pub fn send(&mut self, request: Request, fd: Option<RawFd>) -> Result<(), LineError> {
        self.is_short = false;
        if self.has_lost {
            self.give_room();
        }
        self.number = self.number.wrapping_add(1).max(1);
        let shown = fd.map(sys::borrow);
        self.line.send(&ToService { number: self.number, request }, shown.as_slice(), true)
    }

    /// Waits for the answer to the last request. Pushes that come first go to `pushed`.
    pub fn answer(
        &mut self,
        pushed: impl FnMut(Push, Vec<OwnedFd>),
    ) -> Result<(Reply, Vec<OwnedFd>), LineError> {
        self.answer_to(self.number, pushed)
    }

    /// As [`Self::answer`], to the request with this number.
    pub fn answer_to(
        &mut self,
        number: u32,
        mut pushed: impl FnMut(Push, Vec<OwnedFd>),
    ) -> Result<(Reply, Vec<OwnedFd>), LineError> {
        loop {
            let got = receive(&self.line)?;
            self.heard(got.is_short);
            match got.message {
                ToApplication::Reply(n, reply) if n == number => return Ok((reply, got.fds)),
                ToApplication::Reply(..) => {}
                ToApplication::Push(push) => pushed(push, got.fds),
            }
        }
    }

    /// Notes whether a message has lost descriptors; then there must be room for one the next time.
    fn heard(&mut self, is_short: bool) {
        self.is_short |= is_short;
        if is_short && !std::mem::replace(&mut self.has_lost, true) {
            log(
                Level::Warn,
                format_args!("no descriptor is left for what the service sends: raise the limit (ulimit -n)"),
            );
        }
    }

    /// False when a descriptor of the service's would be lost. Checks the kept number, too: the limit may have sunk below it.
    pub fn has_room(&mut self) -> bool {
        let limit = reserved::limit();
        if self.spare.as_ref().is_none_or(|spare| spare.number() as u64 >= limit) {
            self.hold_room();
        }
        self.spare.is_some()
    }

    /// The answer's descriptors are in place: keeps a number again, if one is free.
    pub fn end(&mut self) {
        if self.has_lost && self.spare.is_none() {
            self.hold_room();
            self.has_lost = self.is_short;
        }
    }

    /// Frees the kept number.
    pub fn give_room(&mut self) {
        self.spare = None;
    }

    /// True when a descriptor that came since the last request is lost.
    pub const fn is_short(&self) -> bool {
        self.is_short
    }

    /// Keeps a number, if one is free.
    pub fn hold_room(&mut self) {
        self.spare = eventfd(0, EventfdFlags::CLOEXEC).ok().map(Internal::new);
    }

    /// Reads a message that the service has pushed, if there is one.
    pub fn overhear(&mut self) -> Result<Received<ToApplication>, LineError> {
        let got = self.line.receive(false)?;
        self.heard(got.is_short);
        Ok(got)
    }
}

/// Sends the first message on a new line. Returns the line and the message's number.
pub fn say_hello(name: Arc<str>, parent: Option<Parent>) -> Result<(Line, u32), LineError> {
    let fd = control::dial(crate::config::control_path())?;
    let mut exchange = Exchange::new(Line::new(fd), 0);
    exchange.send(Request::Hello { protocol: PROTOCOL, layout: shm::VERSION, name, parent }, None)?;
    Ok((exchange.line, exchange.number))
}
