//! Calls that may block: the rest of such a call is kept, and retried whenever the host has run.

use super::{Due, File, Runner, Socket};
use crate::runner::calls::{Answer, Extra};
use crate::syntax::{Call, Expr, Micros, Trouble};
use sim::{Errno, Host, Receiving};
use std::net::SocketAddr;

/// Longest time that a call may block if the script gives no end for it, microseconds.
const SLEEP_MAX: Micros = 10_000_000;

/// The rest of a blocking call.
pub(super) enum Operation {
    Accept(Socket),
    Connect(Socket, SocketAddr),
    Send {
        socket: Socket,
        len: usize,
        flags: i32,
        sent: Option<usize>,
    },
    Receive {
        socket: Socket,
        len: usize,
        flags: i32,
        rest: Option<Receiving>,
    },
    /// A read with NULL as the buffer.
    ReceiveNowhere {
        socket: Socket,
        flags: i32,
    },
    Poll {
        wanted: Vec<(i32, u32)>,
        until: Option<Micros>,
    },
    EpollWait {
        fd: i32,
        most: usize,
        until: Option<Micros>,
    },
    SendFile {
        socket: Socket,
        file: i32,
        len: usize,
        sent: Option<usize>,
    },
}

/// A call that blocks.
pub(crate) struct Pending {
    operation: Operation,
    call: Call,
    line: u32,
    /// When the script says that it returns.
    end: Option<Due>,
}

impl Pending {
    /// When the call's own timeout ends.
    pub(super) fn timeout(&self) -> Option<Micros> {
        match &self.operation {
            Operation::Poll { until, .. } | Operation::EpollWait { until, .. } => *until,
            _ => None,
        }
    }
}

impl Runner {
    /// Starts a call; if it must block, it becomes the pending call.
    pub(super) fn begin(&mut self, call: &Call, mut operation: Operation, due: Due) -> Result<(), Trouble> {
        if let Some(answer) = self.attempt(&mut operation)? {
            self.network.settle();
            if let Some(end) = call.end {
                self.check_end(self.end_of(end, due))?;
            }
            self.check_answer(call, &answer)?;
            return self.after_change();
        }
        let is_told = call.end.is_some();
        let end = call.end.map(|end| self.end_of(end, due));
        self.pending = Some(Pending { operation, call: call.clone(), line: self.line, end });
        self.network.settle();
        self.after_change()?;
        if is_told { Ok(()) } else { self.await_pending() }
    }

    /// When the call must return; a relative end counts from the same time as the start.
    fn end_of(&self, end: Micros, due: Due) -> Due {
        let at = end + due.offset.min(due.from);
        let tolerance = self
            .settings
            .tolerance
            .max((self.settings.tolerance_percent / 100.0 * (at - due.from) as f64) as Micros);
        Due { from: at, to: at, is_any: false, tolerance, offset: due.offset }
    }

    fn check_end(&self, end: Due) -> Result<(), Trouble> {
        self.check_time(end, self.network.now(), "the end of this call")
    }

    /// Retries the pending call.
    pub(super) fn retry_pending(&mut self) -> Result<(), Trouble> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        let line = std::mem::replace(&mut self.line, pending.line);
        let Some(answer) = self.attempt(&mut pending.operation)? else {
            self.pending = Some(pending);
            self.line = line;
            return Ok(());
        };
        if let Some(end) = pending.end {
            self.check_end(end)?;
        }
        self.check_answer(&pending.call, &answer)?;
        self.line = line;
        self.network.settle();
        Ok(())
    }

    /// Lets time pass until no call is pending.
    pub(super) fn await_pending(&mut self) -> Result<(), Trouble> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let limit = pending.end.map_or(self.network.now(), |end| end.to) + SLEEP_MAX;
        let (line, name) = (pending.line, pending.call.name.clone());
        while self.pending.is_some() {
            if !self.step(limit)? && self.pending.is_some() {
                let at = limit as f64 / 1e6;
                return Err(Trouble::syntax(line, format!("{name} is still waiting at {at:.6} s")));
            }
        }
        Ok(())
    }

    /// Tries the operation; `None` if it must still wait.
    fn attempt(&mut self, operation: &mut Operation) -> Result<Option<Answer>, Trouble> {
        let now = self.network.now();
        let host = &mut self.network.host;
        Ok(match operation {
            Operation::Accept(socket) => match host.accept(socket.fd) {
                Err(Errno::AGAIN) if !socket.is_nonblocking => None,
                Ok((fd, peer)) => Some(Answer { result: Ok(0), extra: Extra::Accepted(fd, peer) }),
                Err(errno) => Some(Err(errno).into()),
            },
            Operation::Connect(socket, remote) => match host.connect(socket.fd, *remote) {
                Err(Errno::INPROGRESS) if !socket.is_nonblocking => None,
                Err(Errno::ALREADY) if !socket.is_nonblocking => None,
                done => Some(done.map(|()| 0).into()),
            },
            Operation::Send { socket, len, flags, sent } => send(host, *socket, *len, *flags, sent),
            Operation::Receive { socket, len, flags, rest } => {
                let mut bytes = vec![0; *len];
                let result =
                    host.receive_on(socket.fd, &mut bytes, *flags | at_once(*socket), rest).transpose();
                if matches!(result, Some(Ok(_))) && bytes.iter().any(|byte| *byte != 0) {
                    return Err(self.fail("bytes were read that were never sent"));
                }
                let extra = Extra::Left(host.left(socket.fd));
                result.map(|result| Answer { result: result.map(|n| n as i64), extra })
            }
            Operation::ReceiveNowhere { socket, flags } => {
                match host.receive(socket.fd, &mut [0], *flags & libc::MSG_DONTWAIT | libc::MSG_PEEK) {
                    Err(Errno::AGAIN) if (*flags | at_once(*socket)) & libc::MSG_DONTWAIT == 0 => None,
                    Ok(0) => Some(Ok(0).into()),
                    Ok(_) => Some(Err(Errno::FAULT).into()),
                    Err(errno) => Some(Err(errno).into()),
                }
            }
            Operation::Poll { wanted, until } => {
                let wanted = std::mem::take(wanted);
                let found: Vec<u32> = wanted.iter().map(|(fd, events)| self.poll_one(*fd, *events)).collect();
                let count = found.iter().filter(|events| **events != 0).count();
                let is_over = until.is_some_and(|until| now >= until);
                let answer = (count > 0 || is_over)
                    .then_some(Answer { result: Ok(count as i64), extra: Extra::Events(found) });
                *operation = Operation::Poll { wanted, until: *until };
                answer
            }
            Operation::EpollWait { fd, most, until } => {
                let (fd, most, until) = (*fd, *most, *until);
                let found = self.epoll_collect(fd, most);
                let is_over = until.is_some_and(|until| now >= until);
                (!found.is_empty() || is_over)
                    .then_some(Answer { result: Ok(found.len() as i64), extra: Extra::Epoll(found) })
            }
            Operation::SendFile { socket, file, len, sent } => {
                let Some(File::Zeros { len: size, at }) = self.files.get_mut(file) else {
                    return Ok(Some(Err(Errno::BADF).into()));
                };
                let len = (*len).min(size.saturating_sub(*at));
                let answer = send(host, *socket, len, 0, sent);
                let result = answer.as_ref().map(|answer| answer.result);
                *at += result.and_then(Result::ok).map_or(0, |n| n as usize);
                answer
            }
        })
    }

    /// The result of `poll` for one descriptor.
    fn poll_one(&self, fd: i32, events: u32) -> u32 {
        let always = (libc::POLLERR | libc::POLLHUP) as u32;
        match self.files.get(&fd) {
            Some(File::Socket(socket)) => self.network.host.readiness(socket.fd) & (events | always),
            Some(_) => events & (libc::POLLIN | libc::POLLOUT) as u32,
            None => libc::POLLNVAL as u32,
        }
    }

    /// The end of a timeout of `poll` or `epoll_wait` in milliseconds; negative: none.
    pub(super) fn until(&self, timeout: i32) -> Option<Micros> {
        (timeout >= 0).then(|| self.network.now() + Micros::from(timeout) * 1000)
    }

    pub(super) fn socket(&self, call: &Call, i: usize) -> Result<Socket, Trouble> {
        let fd = self.int(call, i)?;
        match self.files.get(&fd) {
            Some(File::Socket(socket)) => Ok(*socket),
            _ => Err(self.fail(format!("{fd} is no socket"))),
        }
    }

    /// The address given to `connect`: the script's other end for `...`, or a written address.
    pub(super) fn remote(&self, address: &Expr) -> Result<SocketAddr, Trouble> {
        let ends = self.settings.ends();
        let mut remote = SocketAddr::new(ends.remote, self.settings.connect_port);
        if let Some(family) = address.field("sa_family") {
            if self.value(family)? == i64::from(libc::AF_UNSPEC) {
                return Err(self.unsupported("dissolving a connection (AF_UNSPEC)"));
            }
            if let Some(port) = address.field("sin_port") {
                remote.set_port(u16::try_from(self.value(port)?).map_err(|_| self.fail("no such port"))?);
            }
            if let Some(Expr::Apply(name, items)) = address.field("sin_addr")
                && name == "inet_addr"
                && let [Expr::Text(text)] = items.as_slice()
            {
                let text = String::from_utf8_lossy(text);
                remote.set_ip(text.parse().map_err(|_| self.fail(format!("no such address: {text}")))?);
            }
        } else if *address != Expr::Ellipsis {
            return Err(self.unsupported("addresses that are neither `...` nor a sockaddr"));
        }
        Ok(self.as_family(remote))
    }
}

/// Sends `len` zeros.
fn send(host: &mut Host, socket: Socket, len: usize, flags: i32, sent: &mut Option<usize>) -> Option<Answer> {
    let result = host.send_on(socket.fd, &vec![0; len], flags | at_once(socket), sent).transpose()?;
    Some(result.map(|n| n as i64).into())
}

/// The flag with which calls of this socket do not wait, if it is non-blocking.
fn at_once(socket: Socket) -> i32 {
    if socket.is_nonblocking { libc::MSG_DONTWAIT } else { 0 }
}
