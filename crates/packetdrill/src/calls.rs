//! The tool's calls, with slices instead of pointers. A call that would block waits in [`World::call`].

use crate::files::{File, Socket};
use crate::world::{State, World};
use base::Duration;
use rustix::io::Errno;
use script::Epoll;
use std::net::SocketAddr;

/// The two fields of `epoll_event`: events and data.
pub(crate) type Event = (u32, i64);

/// Bytes of `struct tcp_info` in the newest `linux/tcp.h` known here.
const TCP_INFO_BYTES: usize = 288;
/// A constant of `linux/tcp.h`.
const TCP_CC_INFO: i32 = 26;
/// A constant of `asm-generic/socket.h`.
const SO_MEMINFO: i32 = 55;

/// The value of `SO_MEMINFO`: unread bytes, receive buffer, bytes being sent, send buffer, then five counts of Linux's memory; the stack
/// sets the second of these to the bytes in the send queue, and the others to 0.
fn memory(host: &mut sim::Host, fd: sim::Fd) -> Vec<u8> {
    let [unread, unsent] = [libc::FIONREAD, libc::TIOCOUTQ].map(|of| host.told(fd, of).unwrap_or(0) as u32);
    let mut size = |name: i32| {
        let mut value = [0; 4];
        let told = host.option(fd, libc::SOL_SOCKET, name, &mut value);
        told.map_or(0, |_| u32::from_ne_bytes(value))
    };
    let (receive, send) = (size(libc::SO_RCVBUF), size(libc::SO_SNDBUF));
    [unread, receive, 0, send, 0, unsent, 0, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn timeout(ms: i32) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_ms)
}

impl World {
    pub(crate) fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<i32, Errno> {
        let is_v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Errno::AFNOSUPPORT),
        };
        if kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != libc::SOCK_STREAM
            || !matches!(protocol, 0 | libc::IPPROTO_TCP)
        {
            return Err(Errno::PROTONOSUPPORT);
        }
        self.call_at_once(|state| {
            let fd = state.stack.host().socket(is_v6);
            let is_nonblocking = kind & libc::SOCK_NONBLOCK != 0;
            state.files.add(File::Socket(Socket { fd, is_v6, is_nonblocking }))
        })
    }

    /// `bind`. The machine gets the address that the tool names, as the tool's own device would have it.
    pub(crate) fn bind(&self, fd: i32, address: SocketAddr) -> Result<(), Errno> {
        self.call_at_once(|state| {
            let socket = state.files.socket(fd)?;
            state.stack.own(address.ip());
            state.stack.host().bind(socket.fd, address)
        })
    }

    pub(crate) fn listen(&self, fd: i32, backlog: i32) -> Result<(), Errno> {
        self.call_at_once(|state| {
            let socket = state.files.socket(fd)?;
            state.stack.host().listen(socket.fd, backlog.max(0) as usize)
        })
    }

    /// `accept`: returns the descriptor, the peer's address, and whether the socket is an IPv6 socket.
    pub(crate) fn accept(&self, fd: i32) -> Result<(i32, SocketAddr, bool), Errno> {
        self.call(None, |state, _| {
            let socket = match state.files.socket(fd) {
                Ok(socket) => socket,
                Err(errno) => return Some(Err(errno)),
            };
            match state.stack.host().accept(socket.fd) {
                Err(Errno::AGAIN) if !socket.is_nonblocking => None,
                Err(errno) => Some(Err(errno)),
                Ok((new, peer)) => {
                    let file = Socket { fd: new, is_v6: socket.is_v6, is_nonblocking: false };
                    Some(state.files.add(File::Socket(file)).map(|fd| (fd, peer, socket.is_v6)))
                }
            }
        })
    }

    pub(crate) fn connect(&self, fd: i32, remote: SocketAddr) -> Result<(), Errno> {
        self.call(None, |state, _| {
            let socket = match state.files.socket(fd) {
                Ok(socket) => socket,
                Err(errno) => return Some(Err(errno)),
            };
            state.stack.own_any(remote.ip().to_canonical().is_ipv6());
            match state.stack.host().connect(socket.fd, remote) {
                Err(Errno::INPROGRESS | Errno::ALREADY) if !socket.is_nonblocking => None,
                done => Some(done),
            }
        })
    }

    pub(crate) fn receive(&self, fd: i32, out: &mut [u8], flags: i32) -> Result<usize, Errno> {
        let mut rest = None;
        self.call(None, |state, _| match state.files.socket(fd) {
            Ok(socket) => {
                state.stack.host().receive_on(socket.fd, out, flags | at_once(socket), &mut rest).transpose()
            }
            Err(errno) => Some(Err(errno)),
        })
    }

    /// The value of `TCP_INQ`: bytes that are still unread, and 1 for the end of the stream. `None` if the option is off.
    pub(crate) fn inquiry(&self, fd: i32) -> Option<i32> {
        let told = self.call_at_once(|state| {
            let socket = state.files.socket(fd)?;
            Ok(state.stack.host().left(socket.fd))
        });
        told.ok().flatten().map(|left| i32::try_from(left).unwrap_or(i32::MAX))
    }

    pub(crate) fn send(&self, fd: i32, bytes: &[u8], flags: i32) -> Result<usize, Errno> {
        let mut sent = None;
        self.call(None, |state, _| match state.files.socket(fd) {
            Ok(socket) => {
                state.stack.host().send_on(socket.fd, bytes, flags | at_once(socket), &mut sent).transpose()
            }
            Err(errno) => Some(Err(errno)),
        })
    }

    pub(crate) fn shutdown(&self, fd: i32, how: i32) -> Result<(), Errno> {
        self.call_at_once(|state| {
            let socket = state.files.socket(fd)?;
            state.stack.host().shutdown(socket.fd, how)
        })
    }

    pub(crate) fn close(&self, fd: i32) -> Result<(), Errno> {
        self.call_at_once(|state| match state.files.remove(fd)? {
            File::Socket(socket) => state.stack.host().close(socket.fd),
            File::Epoll(_) => Ok(()),
        })
    }

    pub(crate) fn set_option(&self, fd: i32, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.call_at_once(|state| {
            let socket = state.files.socket(fd)?;
            state.stack.host().set_option(socket.fd, level, name, value)
        })
    }

    pub(crate) fn option(&self, fd: i32, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        self.call_at_once(|state| {
            let socket = state.files.socket(fd)?;
            let told = match (level, name) {
                // As on Linux with a congestion control that has no information of its own.
                (libc::IPPROTO_TCP, TCP_CC_INFO) => return Ok(0),
                (libc::SOL_SOCKET, SO_MEMINFO) => memory(state.stack.host(), socket.fd),
                (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                    let n = state.stack.host().option(socket.fd, level, name, out)?;
                    // Newer kernels append AccECN counters, and the tool wants all of them: they are 0 here.
                    out[n..].fill(0);
                    return Ok(out.len().min(TCP_INFO_BYTES));
                }
                _ => return state.stack.host().option(socket.fd, level, name, out),
            };
            let n = told.len().min(out.len());
            out[..n].copy_from_slice(&told[..n]);
            Ok(n)
        })
    }

    /// `fcntl` with the two commands that scripts use.
    pub(crate) fn fcntl(&self, fd: i32, command: i32, argument: i32) -> Result<i32, Errno> {
        self.call_at_once(|state| {
            let socket = state.files.socket_mut(fd)?;
            match command {
                libc::F_GETFL => Ok(libc::O_RDWR | if socket.is_nonblocking { libc::O_NONBLOCK } else { 0 }),
                libc::F_SETFL => {
                    socket.is_nonblocking = argument & libc::O_NONBLOCK != 0;
                    Ok(0)
                }
                _ => Err(Errno::INVAL),
            }
        })
    }

    /// `ioctl` with the requests that return a number.
    pub(crate) fn ioctl(&self, fd: i32, request: u64) -> Result<i32, Errno> {
        self.call_at_once(|state| {
            let socket = state.files.socket(fd)?;
            let number = state.stack.host().told(socket.fd, request).ok_or(Errno::NOTTY)?;
            Ok(i32::try_from(number).unwrap_or(i32::MAX))
        })
    }

    /// `poll`: sets `revents` and returns the number of ready entries.
    pub(crate) fn poll(&self, wanted: &mut [libc::pollfd], timeout_ms: i32) -> Result<usize, Errno> {
        self.call(timeout(timeout_ms), |state, is_over| {
            for one in wanted.iter_mut() {
                one.revents = poll_one(state, one.fd, one.events);
            }
            let count = wanted.iter().filter(|one| one.revents != 0).count();
            (count > 0 || is_over).then_some(Ok(count))
        })
    }

    pub(crate) fn epoll_create(&self, size: i32) -> Result<i32, Errno> {
        if size <= 0 {
            return Err(Errno::INVAL);
        }
        self.call_at_once(|state| state.files.add(File::Epoll(Epoll::default())))
    }

    pub(crate) fn epoll_control(
        &self,
        epfd: i32,
        operation: i32,
        fd: i32,
        event: Event,
    ) -> Result<(), Errno> {
        self.call_at_once(|state| {
            if !state.files.has(fd) {
                return Err(Errno::BADF);
            }
            state.files.epoll_mut(epfd)?.control(operation, fd, event.0, event.1)
        })
    }

    pub(crate) fn epoll_wait(&self, epfd: i32, most: i32, timeout_ms: i32) -> Result<Vec<Event>, Errno> {
        let most = usize::try_from(most).ok().filter(|most| *most > 0).ok_or(Errno::INVAL)?;
        self.call(timeout(timeout_ms), |state, is_over| {
            let mut epoll = match state.files.epoll_mut(epfd) {
                Ok(epoll) => std::mem::take(epoll),
                Err(errno) => return Some(Err(errno)),
            };
            let found = epoll.collect(most, |fd| match state.files.socket(fd) {
                Ok(socket) => state.stack.readiness(socket.fd),
                Err(_) => (0, (0, 0)),
            });
            if let Ok(place) = state.files.epoll_mut(epfd) {
                *place = epoll;
            }
            (!found.is_empty() || is_over).then_some(Ok(found))
        })
    }
}

/// The flag with which calls of this socket do not wait, if it is non-blocking.
fn at_once(socket: Socket) -> i32 {
    if socket.is_nonblocking { libc::MSG_DONTWAIT } else { 0 }
}

fn poll_one(state: &State, fd: i32, events: i16) -> i16 {
    match state.files.get(fd) {
        _ if fd < 0 => 0,
        Some(File::Socket(socket)) => {
            // The bits of `poll` are the lower half of epoll's bits.
            (state.stack.readiness(socket.fd).0 as i16) & (events | libc::POLLERR | libc::POLLHUP)
        }
        Some(File::Epoll(_)) => 0,
        None => libc::POLLNVAL,
    }
}
