//! Requests and answers on the line to the service, one after the other, and the descriptors that come with them.

use crate::log::{Level, log};
use crate::reserved::{self, Internal};
use crate::sys;
use control::{Line, LineError, PROTOCOL, Parent, Push, Received, Reply, Request, ToApplication, ToService};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{OwnedFd, RawFd};
use std::collections::VecDeque;
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
    /// The service has not answered, or not read, within the time limit of the line: until it answers nothing waits for it.
    is_silent: bool,
    /// Number of the request whose answer is overdue. Until it comes no other request is sent.
    overdue: Option<u32>,
    /// What a silent service is told when it reads again, in order. It does not answer that.
    unsaid: VecDeque<Request>,
}

/// Most messages that are kept for a silent service. What is lost beyond that it finds out when this process ends.
const UNSAID_MOST: usize = 1024;

impl Exchange {
    /// Takes a line on which `number` was the last request.
    pub const fn new(line: Line, number: u32) -> Self {
        Self {
            line,
            number,
            spare: None,
            has_lost: false,
            is_short: false,
            is_silent: false,
            overdue: None,
            unsaid: VecDeque::new(),
        }
    }

    /// True while the service lives and does not answer.
    pub const fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// The service does not answer, or does not read, within the time limit of the line.
    fn fall_silent(&mut self) {
        let text =
            "the service does not answer: connections go on, new ones are the kernel's until it answers";
        if !std::mem::replace(&mut self.is_silent, true) {
            log(Level::Warn, format_args!("{text}"));
        }
    }

    /// Sends a message that needs no answer. To a silent service it is sent later.
    ///
    /// # Errors
    /// See [`LineError`].
    pub fn say(&mut self, request: Request) -> Result<(), LineError> {
        self.say_unsaid()?;
        let message = ToService { number: 0, request };
        if self.unsaid.is_empty() {
            match self.line.send(&message, &[], !self.is_silent) {
                Err(LineError::WouldBlock) => self.fall_silent(),
                other => return other,
            }
        }
        self.keep(message.request);
        Ok(())
    }

    /// The service could not be told: keeps the message if it is one that the service must get.
    fn keep(&mut self, request: Request) {
        let is_due = matches!(
            request,
            Request::Mapped { .. }
                | Request::Populated { .. }
                | Request::Nonblocking { .. }
                | Request::Unlisten { .. }
                | Request::Accepted { .. }
                | Request::Waker { .. }
                | Request::QueueWaker { .. }
                | Request::SetOptions { .. }
                | Request::Closed { .. }
                | Request::LetGo
        );
        if is_due && self.unsaid.len() < UNSAID_MOST {
            self.unsaid.push_back(request);
        }
    }

    /// Sends what was kept for a silent service, as far as it reads.
    fn say_unsaid(&mut self) -> Result<(), LineError> {
        while let Some(request) = self.unsaid.pop_front() {
            let message = ToService { number: 0, request };
            match self.line.send(&message, &[], false) {
                Ok(()) => {}
                Err(LineError::WouldBlock) => {
                    self.unsaid.push_front(message.request);
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads what a silent service has sent by now. An answer that was overdue goes to `answered`, pushes to `pushed`.
    ///
    /// # Errors
    /// [`LineError::WouldBlock`]: it is silent still.
    pub fn listen(
        &mut self,
        mut answered: impl FnMut(Reply, Vec<OwnedFd>),
        mut pushed: impl FnMut(Push, Vec<OwnedFd>),
    ) -> Result<(), LineError> {
        while self.overdue.is_some() {
            let got = self.overhear()?;
            match got.message {
                ToApplication::Reply(_, reply) => answered(reply, got.fds),
                ToApplication::Push(push) => pushed(push, got.fds),
            }
        }
        Ok(())
    }

    /// Sends a request, and shows `fd`.
    ///
    /// # Errors
    /// See [`LineError`]; [`LineError::WouldBlock`]: the service is silent.
    pub fn send(&mut self, request: Request, fd: Option<RawFd>) -> Result<(), LineError> {
        self.is_short = false;
        if self.has_lost {
            self.give_room();
        }
        self.say_unsaid()?;
        if self.overdue.is_some() || !self.unsaid.is_empty() {
            self.keep(request);
            return Err(LineError::WouldBlock);
        }
        self.number = self.number.wrapping_add(1).max(1);
        let shown = fd.map(sys::borrow);
        let message = ToService { number: self.number, request };
        self.line.send(&message, shown.as_slice(), !self.is_silent).inspect_err(|e| {
            if matches!(e, LineError::WouldBlock) {
                self.fall_silent();
            }
        })
    }

    /// Waits for the answer to the last request. Pushes that come first go to `pushed`.
    ///
    /// # Errors
    /// See [`LineError`]; [`LineError::WouldBlock`]: it is overdue.
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
            let got = self.line.receive(true).inspect_err(|e| {
                if matches!(e, LineError::WouldBlock) {
                    self.fall_silent();
                    self.overdue = Some(number);
                }
            })?;
            self.heard(got.is_short);
            match got.message {
                ToApplication::Reply(n, reply) if n == number => {
                    self.is_silent = false;
                    return Ok((reply, got.fds));
                }
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

    /// Reads a message that the service has sent without being waited for, if there is one.
    pub fn overhear(&mut self) -> Result<Received<ToApplication>, LineError> {
        let got: Received<ToApplication> = self.line.receive(false)?;
        self.heard(got.is_short);
        if let ToApplication::Reply(number, _) = &got.message
            && self.overdue == Some(*number)
        {
            self.overdue = None;
            self.is_silent = false;
            log(Level::Warn, format_args!("the service answers again"));
        }
        Ok(got)
    }
}

/// Sends the first message on a new line. Returns the line and the message's number.
pub fn say_hello(name: Arc<str>, parent: Option<Parent>) -> Result<(Line, u32), LineError> {
    let fd = control::dial(crate::config::control_path())?;
    let mut exchange = Exchange::new(Line::new(fd), 0);
    let itself = crate::pid_namespace::itself();
    exchange.send(Request::Hello { protocol: PROTOCOL, layout: shm::VERSION, name, parent, itself }, None)?;
    Ok((exchange.line, exchange.number))
}

/// Says on a new line that a child of that parent is about to come. Waits for nothing, and fails where it would have to.
pub fn say_expect(parent: Parent) -> Result<OwnedFd, LineError> {
    let line = Line::new(control::dial_at_once(crate::config::control_path())?);
    line.send(&ToService { number: 0, request: Request::Expect(parent) }, &[], false)?;
    Ok(line.into())
}
