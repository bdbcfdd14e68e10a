//! System calls through the C library, as a C program makes them, where the standard library has no safe function. `rustix` bypasses the C
//! library, and so the preloaded library that is measured.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The event structure that `epoll_wait` writes.
pub type Event = libc::epoll_event;

/// An empty event, to initialize arrays.
pub const NO_EVENT: Event = Event { events: 0, u64: 0 };

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    let fd = checked(fd)?;
    // SAFETY: the kernel has just made this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new unconnected TCP socket.
pub fn socket() -> io::Result<OwnedFd> {
    // SAFETY: the call takes three integers and no pointer.
    owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })
}

/// Begins a connection to a port of this host without blocking.
pub fn connect(port: u16) -> io::Result<TcpStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes three integers and no pointer.
    let socket = owned(unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
    let (address, len) = c_address(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
    // SAFETY: the address lives during the call and has `len` bytes.
    match checked(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(TcpStream::from(socket)),
    }
}

/// A new socket bound to this address and a free port.
pub fn bound(to: Ipv4Addr) -> io::Result<OwnedFd> {
    let socket = socket()?;
    let (address, len) = c_address(SocketAddrV4::new(to, 0));
    // SAFETY: the address lives during the call and has `len` bytes.
    checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

fn c_address(address: SocketAddrV4) -> (libc::sockaddr_in, libc::socklen_t) {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    };
    (address, size_of_val(&address) as libc::socklen_t)
}

/// Changes the backlog of a listener.
pub fn listen(listener: &impl AsRawFd, backlog: i32) -> io::Result<()> {
    // SAFETY: the call takes two integers and no pointer.
    checked(unsafe { libc::listen(listener.as_raw_fd(), backlog) }).map(|_| ())
}

/// Waits by `poll` until the descriptor is readable. False after `limit`.
pub fn poll_readable(fd: &impl AsRawFd, limit: Option<Duration>) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one entry, which lives during the call.
    Ok(checked(unsafe { libc::poll(&raw mut entry, 1, milliseconds(limit)) })? > 0)
}

fn milliseconds(limit: Option<Duration>) -> i32 {
    limit.map_or(-1, |limit| limit.as_millis().min(i32::MAX as u128) as i32)
}

/// Makes a new epoll set.
pub fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: the call takes an integer and no pointer.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// The readiness for which an epoll set watches a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// The descriptor is readable.
    Reading,
    /// The descriptor is writable; for a connection being opened: it is open or has failed.
    Writing,
    /// Only errors and hang-ups.
    Nothing,
}

/// Adds `fd` to the set, level-triggered, for reading.
pub fn epoll_add(set: &OwnedFd, fd: &impl AsRawFd, data: u64) -> io::Result<()> {
    epoll_control(set, libc::EPOLL_CTL_ADD, fd, For::Reading, data)
}

/// Adds `fd` to the set, level-triggered, for `what`.
pub fn epoll_watch(set: &OwnedFd, fd: &impl AsRawFd, what: For, data: u64) -> io::Result<()> {
    epoll_control(set, libc::EPOLL_CTL_ADD, fd, what, data)
}

/// Changes what the set watches `fd` for.
pub fn epoll_change(set: &OwnedFd, fd: &impl AsRawFd, what: For, data: u64) -> io::Result<()> {
    epoll_control(set, libc::EPOLL_CTL_MOD, fd, what, data)
}

fn epoll_control(set: &OwnedFd, op: i32, fd: &impl AsRawFd, what: For, data: u64) -> io::Result<()> {
    let events = match what {
        For::Reading => libc::EPOLLIN,
        For::Writing => libc::EPOLLOUT,
        For::Nothing => 0,
    };
    let mut event = Event { events: events as u32, u64: data };
    // SAFETY: the event is alive during the call.
    checked(unsafe { libc::epoll_ctl(set.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) }).map(|_| ())
}

/// Waits for events. Returns their number; 0 after `limit`.
pub fn epoll_wait(set: &OwnedFd, events: &mut [Event], limit: Option<Duration>) -> io::Result<usize> {
    let (at, room) = (events.as_mut_ptr(), events.len() as i32);
    // SAFETY: `at` has room for `room` events during the call.
    Ok(checked(unsafe { libc::epoll_wait(set.as_raw_fd(), at, room, milliseconds(limit)) })? as usize)
}

/// Sets `SO_BUSY_POLL`: the kernel polls the device for `us` microseconds before a receiving call on this socket sleeps.
pub fn busy_poll(fd: &impl AsRawFd, us: u32) -> io::Result<()> {
    set_socket_option(fd, libc::SO_BUSY_POLL, &(us as libc::c_int))
}

/// Sets `TCP_CONGESTION`: the name of the socket's congestion control.
pub fn choose_congestion(fd: &impl AsRawFd, name: &str) -> io::Result<()> {
    let (at, len) = (name.as_ptr().cast(), name.len() as libc::socklen_t);
    // SAFETY: the name lives during the call and has `len` bytes.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, at, len) })
        .map(|_| ())
}

/// Sets `SO_LINGER` to 0: closing the connection sends a reset.
pub fn reset_on_close(fd: &impl AsRawFd) -> io::Result<()> {
    set_socket_option(fd, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 })
}

fn set_socket_option<T: Copy>(fd: &impl AsRawFd, name: i32, value: &T) -> io::Result<()> {
    let (at, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value lives during the call and has `len` bytes.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, at, len) }).map(|_| ())
}

/// Sets busy polling for `epoll_wait` on this set.
pub fn epoll_busy_poll(set: &OwnedFd, us: u32) -> io::Result<()> {
    /// The kernel's `struct epoll_params`.
    #[repr(C)]
    struct Params {
        us: u32,
        budget: u16,
        prefer: u8,
        pad: u8,
    }
    /// The request `EPIOCSPARAMS`, since Linux 6.9.
    const SET_PARAMS: libc::c_ulong = 0x4008_8a01;
    // Budget 8 is the kernel's own default; more needs a privilege.
    let params = Params { us, budget: 8, prefer: 0, pad: 0 };
    // SAFETY: the structure is alive during the call and laid out as the kernel reads it.
    checked(unsafe { libc::ioctl(set.as_raw_fd(), SET_PARAMS, &raw const params) }).map(|_| ())
}

/// Forks. The child runs `child` and exits; the parent gets the child's process id.
pub fn fork(child: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: this process has one thread, so the child may call any function.
    let pid = checked(unsafe { libc::fork() })?;
    if pid == 0 {
        child();
        // SAFETY: the call takes an integer; it ends the child without destructors, which is intended.
        unsafe { libc::_exit(0) };
    }
    Ok(pid)
}
