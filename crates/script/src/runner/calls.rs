//! The system calls of applications.

use super::waiting::Operation;
use super::{Due, File, Runner, Socket};
use crate::connection::{Connection, Stage};
use crate::epoll::Epoll;
use crate::settings::IpVersion;
use crate::symbols::{errno, errno_name, event_names};
use crate::syntax::{Call, Expr, Trouble};
use sim::{Errno, Fd};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use wire::Endpoint;

/// The result of a call.
pub(super) struct Answer {
    pub(super) result: Result<i64, Errno>,
    pub(super) extra: Extra,
}

/// What a call returned through pointers, or the accepted connection.
pub(super) enum Extra {
    Nothing,
    Accepted(Fd, SocketAddr),
    /// `revents` of each descriptor of `poll`.
    Events(Vec<u32>),
    /// Events and data of `epoll_wait`.
    Epoll(Vec<(u32, i64)>),
    /// A number written through a pointer: the index of the argument, and the number.
    Number(usize, i64),
    /// The bytes of a socket option.
    Bytes(Vec<u8>),
    /// The `TCP_INQ` value of a `recvmsg`.
    Left(Option<usize>),
}

impl From<Result<i64, Errno>> for Answer {
    fn from(result: Result<i64, Errno>) -> Self {
        Self { result, extra: Extra::Nothing }
    }
}

impl Runner {
    pub(super) fn call(&mut self, call: &Call, due: Due) -> Result<(), Trouble> {
        match self.waiting_call(call)? {
            Some(operation) => self.begin(call, operation, due),
            None => {
                let answer = self.plain_call(call)?;
                self.network.settle();
                self.check_answer(call, &answer)?;
                self.after_change()
            }
        }
    }

    /// The operation of a call that may block; `None` for other calls.
    fn waiting_call(&mut self, call: &Call) -> Result<Option<Operation>, Trouble> {
        let operation = match call.name.as_str() {
            "accept" => Operation::Accept(self.socket(call, 0)?),
            "connect" => {
                let remote = self.remote(self.arg(call, 1)?)?;
                let socket = self.socket(call, 0)?;
                self.note_connect(self.int(call, 0)?, remote);
                Operation::Connect(socket, remote)
            }
            "read" | "recv" | "recvfrom" => {
                let flags = if call.name == "read" { 0 } else { self.int(call, 3)? };
                let len = self.len(self.arg(call, 2)?)?;
                if !self.buffer(call, 1)? && len > 0 {
                    let socket = self.socket(call, 0)?;
                    Operation::ReceiveNowhere { socket, flags }
                } else {
                    self.receive(call, len, flags)?
                }
            }
            "readv" => self.receive(call, self.vector_len(self.arg(call, 1)?)?, 0)?,
            "recvmsg" => {
                let len = self.message_len(call)?;
                self.receive(call, len, self.int(call, 2)?)?
            }
            "write" | "send" | "sendto" => {
                let flags = if call.name == "write" { 0 } else { self.int(call, 3)? };
                let len = self.len(self.arg(call, 2)?)?;
                if !self.buffer(call, 1)? && len > 0 {
                    return Ok(None);
                }
                self.send(call, len, flags)?
            }
            "writev" => self.send(call, self.vector_len(self.arg(call, 1)?)?, 0)?,
            "sendmsg" => {
                let len = self.message_len(call)?;
                self.send(call, len, self.int(call, 2)?)?
            }
            "sendfile" => Operation::SendFile {
                socket: self.socket(call, 0)?,
                file: self.int(call, 1)?,
                len: self.len(self.arg(call, 3)?)?,
                sent: None,
            },
            "poll" => {
                Operation::Poll { wanted: self.poll_wanted(call)?, until: self.until(self.int(call, 2)?) }
            }
            "epoll_wait" => Operation::EpollWait {
                fd: self.int(call, 0)?,
                most: self.len(self.arg(call, 2)?)?,
                until: self.until(self.int(call, 3)?),
            },
            _ => return Ok(None),
        };
        Ok(Some(operation))
    }

    fn receive(&self, call: &Call, len: usize, flags: i32) -> Result<Operation, Trouble> {
        Ok(Operation::Receive { socket: self.socket(call, 0)?, len, flags, rest: None })
    }

    fn send(&self, call: &Call, len: usize, flags: i32) -> Result<Operation, Trouble> {
        Ok(Operation::Send { socket: self.socket(call, 0)?, len, flags, sent: None })
    }

    /// Total length of the buffers of a `msghdr`, bytes.
    fn message_len(&self, call: &Call) -> Result<usize, Trouble> {
        let message = self.arg(call, 1)?;
        self.wanted_left(message)?;
        match message.field("msg_iov") {
            Some(vector) => self.vector_len(vector),
            None => Err(self.fail("a message has a msg_iov")),
        }
    }

    /// The number in a message's only control message, which must be a `TCP_CM_INQ`.
    fn wanted_left(&self, message: &Expr) -> Result<Option<i64>, Trouble> {
        let Some(control) = message.field("msg_control") else { return Ok(None) };
        let is_inq = |item: &Expr| {
            let is = |name, word: &str| matches!(item.field(name), Some(Expr::Word(w)) if w == word);
            (is("cmsg_level", "SOL_TCP") || is("cmsg_level", "IPPROTO_TCP")) && is("cmsg_type", "TCP_CM_INQ")
        };
        match control {
            Expr::List(items) if items.is_empty() => Ok(None),
            Expr::List(items) if items.len() == 1 && is_inq(&items[0]) => {
                items[0].field("cmsg_data").map(|data| self.value(data)).transpose()
            }
            _ => Err(self.unsupported("control messages other than TCP_CM_INQ")),
        }
    }

    fn poll_wanted(&self, call: &Call) -> Result<Vec<(i32, u32)>, Trouble> {
        let Expr::List(items) = self.arg(call, 0)? else {
            return Err(self.fail("a list of pollfd expected"));
        };
        let one = |item: &Expr| {
            let field = |name: &str| match item.field(name) {
                Some(value) => self.value(value),
                None => Err(self.fail(format!("a pollfd has {name}"))),
            };
            Ok((field("fd")? as i32, field("events")? as u32))
        };
        items.iter().map(one).collect()
    }

    /// Runs a call that never blocks.
    fn plain_call(&mut self, call: &Call) -> Result<Answer, Trouble> {
        let done = match call.name.as_str() {
            "socket" => return self.make_socket(call),
            "bind" => {
                let address = self.bind_address(self.arg(call, 1)?)?;
                let socket = self.socket(call, 0)?;
                self.network.host.bind(socket.fd, address).map(|()| 0)
            }
            "listen" => {
                let (socket, backlog) = (self.socket(call, 0)?, self.int(call, 1)?);
                let done = self.network.host.listen(socket.fd, backlog.max(0) as usize);
                let fd = self.int(call, 0)?;
                if let Some(connection) = self.connection.as_mut().filter(|c| c.fd == Some(fd)) {
                    connection.stage = Stage::Listening;
                }
                // `listen` is called again while a connection waits in the queue: the next SYN belongs to a new connection.
                if self.connection.as_ref().is_some_and(|c| c.fd.is_none() && c.stage == Stage::Open) {
                    let remote = self.connection.as_ref().map(|c| c.remote);
                    self.connection =
                        remote.map(|remote| Connection::new(Some(fd), remote, Stage::Listening));
                }
                done.map(|()| 0)
            }
            "shutdown" => {
                let (socket, how) = (self.socket(call, 0)?, self.int(call, 1)?);
                self.network.host.shutdown(socket.fd, how).map(|()| 0)
            }
            "close" => self.close(call)?,
            "fcntl" => self.fcntl(call)?,
            "ioctl" => return self.ioctl(call),
            "setsockopt" => return self.set_option(call).map(Answer::from),
            "getsockopt" => return self.option(call),
            "epoll_create" => {
                let fd = self.script_fd(call)?;
                self.files.insert(fd, File::Epoll(Epoll::default()));
                Ok(i64::from(fd))
            }
            "epoll_ctl" => self.epoll_ctl(call)?,
            // The data to send is at NULL.
            "write" | "send" | "sendto" => Err(Errno::FAULT),
            "open" => self.open(call)?,
            other => return Err(self.unsupported(format!("the call {other}"))),
        };
        Ok(done.into())
    }

    /// The number that the script gives to a new descriptor; it must be unused.
    fn script_fd(&self, call: &Call) -> Result<i32, Trouble> {
        let fd = self.value(&call.result)?;
        match i32::try_from(fd) {
            Ok(fd) if fd >= 0 && !self.files.contains_key(&fd) => Ok(fd),
            _ => Err(self.fail(format!("{fd} cannot be a new descriptor"))),
        }
    }

    fn make_socket(&mut self, call: &Call) -> Result<Answer, Trouble> {
        let is_v6 = match self.arg(call, 0)? {
            Expr::Ellipsis => self.settings.ip_version != IpVersion::V4,
            family => match self.value(family)? as i32 {
                libc::AF_INET => false,
                libc::AF_INET6 => true,
                _ => return Err(self.unsupported("sockets of this family")),
            },
        };
        let kind = self.int(call, 1)?;
        let plain = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let protocol = self.int(call, 2)?;
        if plain != libc::SOCK_STREAM || !matches!(protocol, 0 | libc::IPPROTO_TCP) {
            return Err(self.unsupported("sockets that are not TCP's"));
        }
        let fd = self.script_fd(call)?;
        let socket = Socket {
            fd: self.network.host.socket(is_v6),
            is_nonblocking: kind != plain && kind & libc::SOCK_NONBLOCK != 0,
        };
        self.files.insert(fd, File::Socket(socket));
        let remote = Endpoint::new(self.settings.ends().remote, self.settings.connect_port);
        self.connection = Some(Connection::new(Some(fd), remote, Stage::Fresh));
        Ok(Ok(i64::from(fd)).into())
    }

    /// The address in the family of the script's sockets.
    pub(super) fn as_family(&self, address: SocketAddr) -> SocketAddr {
        match (self.settings.ip_version, address.ip()) {
            (IpVersion::Mapped, IpAddr::V4(v4)) => {
                SocketAddr::new(v4.to_ipv6_mapped().into(), address.port())
            }
            _ => address,
        }
    }

    fn bind_address(&self, address: &Expr) -> Result<SocketAddr, Trouble> {
        if *address == Expr::Ellipsis {
            let local = SocketAddr::new(self.settings.ends().local, self.settings.bind_port);
            // A dual-stack socket binds both wildcards.
            return Ok(match self.settings.ip_version {
                IpVersion::Mapped => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), local.port()),
                _ => local,
            });
        }
        self.remote(address)
    }

    /// Notes `connect` for the socket of the script's connection.
    fn note_connect(&mut self, fd: i32, remote: SocketAddr) {
        let remote = Endpoint::new(remote.ip().to_canonical(), remote.port());
        if let Some(connection) =
            self.connection.as_mut().filter(|c| c.fd == Some(fd) && c.stage == Stage::Fresh)
        {
            connection.stage = Stage::Connecting;
            connection.remote = remote;
        }
    }

    fn close(&mut self, call: &Call) -> Result<Result<i64, Errno>, Trouble> {
        let fd = self.int(call, 0)?;
        let file = self.files.remove(&fd).ok_or_else(|| self.fail(format!("{fd} is not open")))?;
        for other in self.files.values_mut() {
            if let File::Epoll(epoll) = other {
                epoll.forget(fd);
            }
        }
        Ok(match file {
            File::Socket(socket) => self.network.host.close(socket.fd).map(|()| 0),
            File::Epoll(_) | File::Zeros { .. } => Ok(0),
        })
    }

    fn fcntl(&mut self, call: &Call) -> Result<Result<i64, Errno>, Trouble> {
        let fd = self.int(call, 0)?;
        let command = self.int(call, 1)?;
        let argument = if call.args.len() > 2 { self.int(call, 2)? } else { 0 };
        let Some(File::Socket(socket)) = self.files.get_mut(&fd) else {
            return Err(self.fail(format!("{fd} is no socket")));
        };
        Ok(match command {
            libc::F_GETFL => {
                Ok(i64::from(libc::O_RDWR | if socket.is_nonblocking { libc::O_NONBLOCK } else { 0 }))
            }
            libc::F_SETFL => {
                socket.is_nonblocking = argument & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            _ => return Err(self.unsupported("this command of fcntl")),
        })
    }

    fn ioctl(&mut self, call: &Call) -> Result<Answer, Trouble> {
        let socket = self.socket(call, 0)?;
        let request = self.number(call, 1)? as u64;
        let told = self.network.host.told(socket.fd, request);
        let Some(number) = told else { return Err(self.unsupported("this request of ioctl")) };
        Ok(Answer { result: Ok(0), extra: Extra::Number(2, number as i64) })
    }

    fn open(&mut self, call: &Call) -> Result<Result<i64, Errno>, Trouble> {
        let Expr::Text(path) = self.arg(call, 0)? else { return Err(self.fail("a path in quotes expected")) };
        let path = String::from_utf8_lossy(path).into_owned();
        let Some(len) = self.settings.shell.files.get(&path).copied() else {
            return Err(self.unsupported(format!("the file {path}, which no command of the script made")));
        };
        let fd = self.script_fd(call)?;
        self.files.insert(fd, File::Zeros { len, at: 0 });
        Ok(Ok(i64::from(fd)))
    }

    /// Compares what a call returned with the script.
    pub(super) fn check_answer(&mut self, call: &Call, answer: &Answer) -> Result<(), Trouble> {
        let expected = self.value(&call.result)?;
        let now = self.network.now();
        let shown = match answer.result {
            Ok(n) => n.to_string(),
            Err(errno) => format!("-1 {}", errno_name(errno.raw_os_error())),
        };
        self.trace.push(format!("{:>10}.{:06} {}() = {shown}", now / 1_000_000, now % 1_000_000, call.name));
        if let (Ok(_), Extra::Accepted(fd, peer)) = (&answer.result, &answer.extra) {
            return self.accepted(call, *fd, *peer);
        }
        let actual = answer.result.unwrap_or(-1);
        if actual != expected {
            return Err(self.fail(format!("{} returned {shown}, not {expected}", call.name)));
        }
        if let (Some(name), Err(actual)) = (&call.errno, answer.result) {
            let number = errno(name).ok_or_else(|| self.unsupported(format!("the error {name}")))?;
            if number != actual.raw_os_error() {
                return Err(self.fail(format!("{} returned {shown}, not -1 {name}", call.name)));
            }
        }
        if answer.result.is_ok() { self.check_extra(call, &answer.extra) } else { Ok(()) }
    }

    /// Gives the script's connection the accepted descriptor.
    fn accepted(&mut self, call: &Call, fd: Fd, peer: SocketAddr) -> Result<(), Trouble> {
        if self.value(&call.result)? < 0 {
            return Err(self.fail("accept returned a connection, not an error"));
        }
        // A script may reuse a number; the socket that had it before stays open.
        let script_fd = self.value(&call.result)? as i32;
        self.files.insert(script_fd, File::Socket(Socket { fd, is_nonblocking: false }));
        let peer = Endpoint::new(peer.ip().to_canonical(), peer.port());
        if let Some(connection) = self.connection.as_mut().filter(|c| c.remote == peer) {
            connection.fd = Some(script_fd);
        }
        Ok(())
    }

    fn check_extra(&self, call: &Call, extra: &Extra) -> Result<(), Trouble> {
        match extra {
            Extra::Nothing | Extra::Accepted(..) => Ok(()),
            Extra::Number(at, actual) => {
                let expected = self.number(call, *at)?;
                if *actual == expected {
                    Ok(())
                } else {
                    Err(self.fail(format!("{} told {actual}, not {expected}", call.name)))
                }
            }
            Extra::Bytes(bytes) => self.check_option(call, bytes),
            Extra::Left(actual) => {
                let expected = call.args.get(1).map_or(Ok(None), |message| self.wanted_left(message))?;
                match (expected, actual.map(|n| n as i64)) {
                    (Some(expected), actual) if actual != Some(expected) => {
                        Err(self.fail(format!("TCP_CM_INQ told {actual:?}, not {expected}")))
                    }
                    _ => Ok(()),
                }
            }
            Extra::Events(found) => {
                let Expr::List(items) = self.arg(call, 0)? else { return Ok(()) };
                for (i, (item, actual)) in items.iter().zip(found).enumerate() {
                    let expected = item.field("revents").map_or(Ok(0), |value| self.value(value))? as u32;
                    self.same_events(&format!("revents of pollfd {i}"), expected, *actual)?;
                }
                Ok(())
            }
            Extra::Epoll(found) => {
                let event = self.arg(call, 1)?;
                let (actual, data) = found.first().copied().unwrap_or((0, 0));
                let expected = event.field("events").map_or(Ok(0), |value| self.value(value))? as u32;
                self.same_events("the event", expected, actual)?;
                let expected = self.event_data(event)?;
                if expected == data {
                    Ok(())
                } else {
                    Err(self.fail(format!("the event's data is {data}, not {expected}")))
                }
            }
        }
    }

    fn same_events(&self, what: &str, expected: u32, actual: u32) -> Result<(), Trouble> {
        if expected == actual {
            return Ok(());
        }
        Err(self.fail(format!("{what}: {} and not {}", event_names(actual), event_names(expected))))
    }
}
