//! The tool's interface in C: `packetdrill_interface_init` and the functions that it returns.
//!
//! The tool passes pointers that are valid as the C function of the same name requires; every `SAFETY` note here relies on that. Bytes are
//! copied, because the tool's buffers may be uninitialized or NULL.

use crate::address;
use crate::calls::Event;
use crate::settings::Settings;
use crate::world::World;
use base::Duration;
use libc::{
    c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void, epoll_event, iovec, loff_t, msghdr, nfds_t,
    pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval, timezone, useconds_t,
};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

/// The most bytes of one call; more is a mistake of the script.
const BYTES_MAX: usize = 256 << 20;
/// A constant of `linux/tcp.h`.
const TCP_CM_INQ: c_int = 36;
/// The most bytes that one `splice` moves: a pipe of Linux's default size holds no more.
const PIPE_BYTES: usize = 64 << 10;

macro_rules! interface {
    ($($name:ident($($a:ident: $t:ty),*) -> $r:ty;)*) => {
        /// `struct packetdrill_interface`: a pointer for the tool and one function for each call, in the tool's order.
        #[repr(C)]
        pub struct Interface {
            userdata: *mut c_void,
            free: Option<unsafe extern "C" fn(*mut c_void)>,
            $($name: Option<unsafe extern "C" fn(*mut c_void, $($t),*) -> $r>,)*
        }

        const INTERFACE: Interface = Interface {
            userdata: std::ptr::null_mut(),
            free: Some(free),
            $($name: Some($name),)*
        };
    };
}

// `fcntl` and `ioctl` are variadic in C. On x86-64 and AArch64 Linux the third argument of a variadic call is passed as that of a function
// with three parameters. If the caller passed none, the functions here do not use it.
interface! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, at: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, at: *mut sockaddr, len: *mut socklen_t) -> c_int;
    connect(fd: c_int, at: *const sockaddr, len: socklen_t) -> c_int;
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, at: *mut sockaddr, at_len: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, at: *const sockaddr, at_len: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int;
    close(fd: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    poll(wanted: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    netdev_send(packet: *const c_void, len: size_t) -> c_int;
    netdev_receive(packet: *mut c_void, len: *mut size_t, at_us: *mut c_longlong) -> c_int;
    usleep(us: useconds_t) -> c_int;
    time_of_day(time: *mut timeval, zone: *mut timezone) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    pipe(fds: *mut c_int) -> c_int;
    splice(from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, len: size_t, flags: c_uint) -> ssize_t;
}

/// Makes a world and returns its functions to the tool. The calling thread becomes the world's driver.
///
/// # Safety
/// `flags` is NULL or a string; `interface` is valid for a write of the tool's struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, interface: *mut Interface) {
    let text = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: the caller passes a string.
        unsafe { std::ffi::CStr::from_ptr(flags) }.to_string_lossy().into_owned()
    };
    let settings = Settings::parse(&text).unwrap_or_else(|what| {
        eprintln!("towpath: {what}");
        std::process::exit(2);
    });
    crate::set_world(Some(Arc::new(World::new(settings))));
    crate::interpose::install();
    // SAFETY: the caller passes a pointer that is valid for the write.
    unsafe { interface.write(INTERFACE) };
}

unsafe extern "C" fn free(_: *mut c_void) {
    crate::set_world(None);
}

fn world() -> Result<Arc<World>, Errno> {
    crate::world().ok_or(Errno::BADF)
}

/// A result in C's form: -1 and errno for an error.
pub(crate) fn status<T: TryInto<isize>>(result: Result<T, Errno>) -> ssize_t {
    match result {
        Ok(n) => n.try_into().unwrap_or(isize::MAX),
        Err(errno) => {
            // SAFETY: errno's address is valid for the calling thread.
            unsafe { *libc::__errno_location() = errno.raw_os_error() };
            -1
        }
    }
}

fn int<T: TryInto<isize>>(result: Result<T, Errno>) -> c_int {
    status(result) as c_int
}

fn done(result: Result<(), Errno>) -> c_int {
    int(result.map(|()| 0_isize))
}

/// Copies the `len` bytes at `at`.
///
/// # Safety
/// `at` is NULL or valid for reads of `len` bytes.
unsafe fn bytes(at: *const c_void, len: usize) -> Result<Vec<u8>, Errno> {
    if len == 0 {
        return Ok(Vec::new());
    }
    if at.is_null() || len > BYTES_MAX {
        return Err(Errno::FAULT);
    }
    // SAFETY: `at` is valid for reads of `len` bytes, as the caller guarantees.
    Ok(unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec())
}

/// Copies `bytes` to `at`, which is not used if there are none.
///
/// # Safety
/// `at` is valid for writes of `bytes.len()` bytes.
unsafe fn put(at: *mut c_void, bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: `at` is valid for the write, as the caller guarantees; `bytes` is a fresh copy, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast(), bytes.len()) };
    }
}

/// # Safety
/// `at` is NULL or valid for reads of `len` bytes.
unsafe fn address_at(at: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Errno> {
    // SAFETY: `at` is NULL or valid for reads of `len` bytes, as the caller guarantees.
    address::parse(&unsafe { bytes(at.cast(), (len as usize).min(address::LEN_MAX)) }?)
}

/// # Safety
/// As `accept`: both NULL, or `at` valid for writes of `*len` bytes.
unsafe fn put_address(at: *mut sockaddr, len: *mut socklen_t, peer: SocketAddr, is_v6: bool) {
    if at.is_null() || len.is_null() {
        return;
    }
    let told = address::emit(peer, is_v6);
    // SAFETY: `at` is valid for writes of `*len` bytes, as the caller guarantees.
    unsafe {
        put(at.cast(), &told[..told.len().min(*len as usize)]);
        *len = told.len() as socklen_t;
    }
}

/// Copies the elements of a vector.
///
/// # Safety
/// `vector` is NULL or valid for reads of `count` elements.
unsafe fn pieces(vector: *const iovec, count: usize) -> Result<Vec<iovec>, Errno> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if vector.is_null() {
        return Err(Errno::FAULT);
    }
    if count > 1024 {
        return Err(Errno::INVAL);
    }
    // SAFETY: `vector` is valid for reads of `count` elements, as the caller guarantees.
    Ok(unsafe { std::slice::from_raw_parts(vector, count) }.to_vec())
}

/// # Safety
/// Every piece is valid for writes of its length.
unsafe fn receive(fd: c_int, to: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let total = to.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.iov_len));
    let is_counted = flags & libc::MSG_TRUNC != 0;
    if total > BYTES_MAX {
        return Err(Errno::INVAL);
    }
    if !is_counted && to.iter().any(|piece| piece.iov_base.is_null() && piece.iov_len > 0) {
        return Err(Errno::FAULT);
    }
    let mut buffer = vec![0; total];
    let n = world()?.receive(fd, &mut buffer, flags)?;
    let mut rest = if is_counted { &[] } else { &buffer[..n] };
    for piece in to {
        let (now, later) = rest.split_at(rest.len().min(piece.iov_len));
        // SAFETY: every piece is valid for writes of its length, as the caller guarantees.
        unsafe { put(piece.iov_base, now) };
        rest = later;
    }
    Ok(n)
}

/// # Safety
/// Every piece is valid for reads of its length.
unsafe fn transmit(fd: c_int, from: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let mut all = Vec::new();
    for piece in from {
        // SAFETY: every piece is valid for reads of its length, as the caller guarantees.
        all.extend(unsafe { bytes(piece.iov_base, piece.iov_len) }?);
    }
    world()?.send(fd, &all, flags)
}

unsafe extern "C" fn socket(_: *mut c_void, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    int(world().and_then(|world| world.socket(domain, kind, protocol)).map(|fd| fd as isize))
}

unsafe extern "C" fn bind(_: *mut c_void, fd: c_int, at: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as `bind`.
    let at = unsafe { address_at(at, len) };
    done(at.and_then(|at| world()?.bind(fd, at)))
}

unsafe extern "C" fn listen(_: *mut c_void, fd: c_int, backlog: c_int) -> c_int {
    done(world().and_then(|world| world.listen(fd, backlog)))
}

unsafe extern "C" fn accept(_: *mut c_void, fd: c_int, at: *mut sockaddr, len: *mut socklen_t) -> c_int {
    int(world().and_then(|world| world.accept(fd)).map(|(fd, peer, is_v6)| {
        // SAFETY: as `accept`.
        unsafe { put_address(at, len, peer, is_v6) };
        fd as isize
    }))
}

unsafe extern "C" fn connect(_: *mut c_void, fd: c_int, at: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as `connect`.
    let at = unsafe { address_at(at, len) };
    done(at.and_then(|at| world()?.connect(fd, at)))
}

unsafe extern "C" fn read(_: *mut c_void, fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as `read`.
    status(unsafe { receive(fd, &[iovec { iov_base: buffer, iov_len: len }], 0) })
}

unsafe extern "C" fn readv(_: *mut c_void, fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as `readv`.
    status(unsafe { pieces(vector, count.max(0) as usize).and_then(|to| receive(fd, &to, 0)) })
}

unsafe extern "C" fn recv(
    _: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as `recv`.
    status(unsafe { receive(fd, &[iovec { iov_base: buffer, iov_len: len }], flags) })
}

unsafe extern "C" fn recvfrom(
    _: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    _at: *mut sockaddr,
    at_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as `recvfrom`.
    status(unsafe {
        receive(fd, &[iovec { iov_base: buffer, iov_len: len }], flags).inspect(|_| {
            // TCP reports no address here.
            if !at_len.is_null() {
                *at_len = 0;
            }
        })
    })
}

unsafe extern "C" fn recvmsg(_: *mut c_void, fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if message.is_null() {
        return status::<usize>(Err(Errno::FAULT));
    }
    // SAFETY: as `recvmsg`.
    status(unsafe {
        pieces((*message).msg_iov, (*message).msg_iovlen).and_then(|to| receive(fd, &to, flags)).inspect(
            |_| {
                (*message).msg_namelen = 0;
                (*message).msg_flags = 0;
                put_inquiry(&mut *message, world().ok().and_then(|world| world.inquiry(fd)));
            },
        )
    })
}

/// Writes the only control message that the stack supports, that of `TCP_INQ`.
///
/// # Safety
/// `msg_control` is NULL or valid for writes of `msg_controllen` bytes.
unsafe fn put_inquiry(message: &mut msghdr, left: Option<c_int>) {
    let bytes = size_of::<c_int>() as c_uint;
    // SAFETY: both macros only compute sizes.
    let (room, len) = unsafe { (libc::CMSG_SPACE(bytes) as usize, libc::CMSG_LEN(bytes) as usize) };
    let Some(left) = left.filter(|_| !message.msg_control.is_null() && message.msg_controllen >= room) else {
        message.msg_controllen = 0;
        return;
    };
    // SAFETY: `msg_control` has room for one message, and this is the first.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(message);
        (*control).cmsg_level = libc::IPPROTO_TCP;
        (*control).cmsg_type = TCP_CM_INQ;
        (*control).cmsg_len = len;
        libc::CMSG_DATA(control).cast::<c_int>().write_unaligned(left);
    }
    message.msg_controllen = room;
}

unsafe extern "C" fn write(_: *mut c_void, fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as `write`.
    status(unsafe { transmit(fd, &[iovec { iov_base: buffer.cast_mut(), iov_len: len }], 0) })
}

unsafe extern "C" fn writev(_: *mut c_void, fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as `writev`.
    status(unsafe { pieces(vector, count.max(0) as usize).and_then(|from| transmit(fd, &from, 0)) })
}

unsafe extern "C" fn send(
    _: *mut c_void,
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as `send`.
    status(unsafe { transmit(fd, &[iovec { iov_base: buffer.cast_mut(), iov_len: len }], flags) })
}

unsafe extern "C" fn sendto(
    userdata: *mut c_void,
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    _at: *const sockaddr,
    _at_len: socklen_t,
) -> ssize_t {
    // SAFETY: as `sendto`. TCP ignores the address except for fast open, and the stack refuses that flag.
    unsafe { send(userdata, fd, buffer, len, flags) }
}

unsafe extern "C" fn sendmsg(_: *mut c_void, fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if message.is_null() {
        return status::<usize>(Err(Errno::FAULT));
    }
    // SAFETY: as `sendmsg`.
    status(unsafe {
        pieces((*message).msg_iov, (*message).msg_iovlen).and_then(|from| transmit(fd, &from, flags))
    })
}

unsafe extern "C" fn fcntl(_: *mut c_void, fd: c_int, command: c_int, argument: c_long) -> c_int {
    int(world().and_then(|world| world.fcntl(fd, command, argument as c_int)).map(|n| n as isize))
}

unsafe extern "C" fn ioctl(_: *mut c_void, fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int {
    done(world().and_then(|world| world.ioctl(fd, request)).and_then(|n| {
        if argument.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: both requests take a pointer to an int.
        unsafe { argument.write(n) };
        Ok(())
    }))
}

unsafe extern "C" fn close(_: *mut c_void, fd: c_int) -> c_int {
    // Pipes are real descriptors, which packetdrill closes through this function too.
    match world() {
        Ok(world) if world.has(fd) => done(world.close(fd)),
        // SAFETY: the tool closes its own descriptor.
        _ => unsafe { libc::close(fd) },
    }
}

unsafe extern "C" fn shutdown(_: *mut c_void, fd: c_int, how: c_int) -> c_int {
    done(world().and_then(|world| world.shutdown(fd, how)))
}

pub(crate) unsafe extern "C" fn getsockopt(
    _: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if len.is_null() || value.is_null() {
        return int::<usize>(Err(Errno::FAULT));
    }
    // SAFETY: as `getsockopt`.
    let room = unsafe { *len } as usize;
    let mut buffer = vec![0; room.min(4096)];
    done(world().and_then(|world| world.option(fd, level, name, &mut buffer)).map(|n| {
        // SAFETY: `n` is at most the length of the caller's buffer.
        unsafe {
            put(value, &buffer[..n]);
            *len = n as socklen_t;
        }
    }))
}

unsafe extern "C" fn setsockopt(
    _: *mut c_void,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: as `setsockopt`.
    let value = unsafe { bytes(value, len as usize) };
    done(value.and_then(|value| world()?.set_option(fd, level, name, &value)))
}

unsafe extern "C" fn poll(_: *mut c_void, wanted: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let wanted = if count == 0 {
        &mut []
    } else if wanted.is_null() || count > 1024 {
        return int::<usize>(Err(Errno::FAULT));
    } else {
        // SAFETY: as `poll`; the tool has initialized all entries.
        unsafe { std::slice::from_raw_parts_mut(wanted, count as usize) }
    };
    int(world().and_then(|world| world.poll(wanted, timeout)))
}

unsafe extern "C" fn netdev_send(_: *mut c_void, packet: *const c_void, len: size_t) -> c_int {
    // SAFETY: the interface passes a packet of this length.
    let packet = unsafe { bytes(packet, len) };
    done(packet.and_then(|packet| if world()?.inject(&packet) { Ok(()) } else { Err(Errno::INVAL) }))
}

unsafe extern "C" fn netdev_receive(
    _: *mut c_void,
    packet: *mut c_void,
    len: *mut size_t,
    at_us: *mut c_longlong,
) -> c_int {
    let sent = world().map(|world| world.next_sent());
    done(sent.map(|sent| {
        // SAFETY: the interface passes `*len` bytes for the packet, and valid pointers for both results.
        unsafe {
            let n = sent.as_ref().map_or(0, |sent| sent.packet.len().min(*len));
            if let Some(sent) = &sent {
                put(packet, &sent.packet[..n]);
                *at_us = (sent.at.as_ns() / 1000) as c_longlong;
            }
            *len = n;
        }
    }))
}

unsafe extern "C" fn usleep(_: *mut c_void, us: useconds_t) -> c_int {
    done(world().map(|world| world.sleep_for(Duration::from_us(u64::from(us)))))
}

unsafe extern "C" fn time_of_day(_: *mut c_void, time: *mut timeval, _zone: *mut timezone) -> c_int {
    done(world().map(|world| {
        let us = world.clock().as_ns() / 1000;
        let now = timeval { tv_sec: (us / 1_000_000) as i64, tv_usec: (us % 1_000_000) as i64 };
        if !time.is_null() {
            // SAFETY: NULL or valid for the write, as in C.
            unsafe { time.write(now) };
        }
    }))
}

unsafe extern "C" fn epoll_create(_: *mut c_void, size: c_int) -> c_int {
    int(world().and_then(|world| world.epoll_create(size)).map(|fd| fd as isize))
}

unsafe extern "C" fn epoll_ctl(
    _: *mut c_void,
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let told: Event = if event.is_null() {
        (0, 0)
    } else {
        // SAFETY: as `epoll_ctl`. The struct is packed, so its fields are copied.
        unsafe { ((*event).events, (*event).u64 as i64) }
    };
    done(world().and_then(|world| world.epoll_control(epfd, operation, fd, told)))
}

unsafe extern "C" fn epoll_wait(
    _: *mut c_void,
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    int(world().and_then(|world| world.epoll_wait(epfd, most, timeout)).map(|found| {
        for (i, (bits, data)) in found.iter().enumerate() {
            // SAFETY: as `epoll_wait`: there is room for `most` events, and at most that many were found.
            unsafe { events.add(i).write(epoll_event { events: *bits, u64: *data as u64 }) };
        }
        found.len()
    }))
}

unsafe extern "C" fn pipe(_: *mut c_void, fds: *mut c_int) -> c_int {
    // A pipe of the kernel. It must not block: virtual time would stand still while the thread waits.
    // SAFETY: as `pipe`.
    unsafe { libc::pipe2(fds, libc::O_CLOEXEC | libc::O_NONBLOCK) }
}

/// `splice` between a socket of the stack and a pipe of the kernel.
unsafe extern "C" fn splice(
    _: *mut c_void,
    from: c_int,
    _from_at: *mut loff_t,
    to: c_int,
    _to_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let moved = world().and_then(|world| {
        let dontwait = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
        let mut buffer = vec![0; len.min(PIPE_BYTES)];
        if world.has(from) {
            if world.ioctl(from, sim::SIOCATMARK)? != 0 {
                // As on Linux, `splice` does not pass the urgent mark.
                return Ok(0);
            }
            let n = world.receive(from, &mut buffer, dontwait)?;
            // SAFETY: the bytes are in a buffer of this function; the tool says that the descriptor is open.
            let written = unsafe { libc::write(to, buffer.as_ptr().cast(), n) };
            return usize::try_from(written).map_err(|_| last_error());
        }
        // SAFETY: as for `write` above.
        let n = unsafe { libc::read(from, buffer.as_mut_ptr().cast(), buffer.len()) };
        let n = usize::try_from(n).map_err(|_| last_error())?;
        world.send(to, &buffer[..n], dontwait)
    });
    status(moved)
}

fn last_error() -> Errno {
    // SAFETY: errno's address is valid for the calling thread.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}
