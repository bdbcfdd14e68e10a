//! Bytes in and out.

use crate::readiness::check;
use crate::{fail, next, status};
use libc::{
    c_int, c_uint, c_void, iovec, loff_t, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec,
};
use socket::{Errno, fds};

/// Vectors up to this length need no allocation.
const FEW: usize = 16;
/// Bytes that sendfile and splice move at once.
const CHUNK: usize = 64 << 10;

/// # Safety
/// `at` is writable for `len` bytes, or `len` is 0.
unsafe fn room<'a>(at: *mut c_void, len: usize) -> &'a mut [u8] {
    if at.is_null() {
        return &mut [];
    }
    // SAFETY: the caller's promise; the bytes are only written.
    unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len.min(isize::MAX as usize)) }
}

/// # Safety
/// `at` is readable for `len` bytes, or `len` is 0.
unsafe fn data<'a>(at: *const c_void, len: usize) -> &'a [u8] {
    if at.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len.min(isize::MAX as usize)) }
}

/// `linux/tcp.h`: what `TCP_INQ` has recvmsg tell.
const TCP_CM_INQ: c_int = 36;
/// `linux/errqueue.h`: `SO_EE_ORIGIN_ZEROCOPY`, `SO_EE_CODE_ZEROCOPY_COPIED`.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// A read of `len` bytes to NULL: as Linux, EFAULT once there is something to write there. `None`: not so, or not ours.
fn unreadable(fd: c_int, at: *const c_void, len: usize, flags: c_int) -> Option<Result<usize, Errno>> {
    if !at.is_null() || len == 0 {
        return None;
    }
    let looked = fds::receive(fd, &mut [&mut [0]], flags & libc::MSG_DONTWAIT | libc::MSG_PEEK)?;
    Some(looked.and_then(|n| if n > 0 { Err(Errno::FAULT) } else { Ok(0) }))
}

/// A write of `len` bytes from NULL.
fn unwritable(fd: c_int, at: *const c_void, len: usize) -> Option<Result<usize, Errno>> {
    (at.is_null() && len > 0 && fds::is_stream(fd)).then_some(Err(Errno::FAULT))
}

/// # Safety
/// `vector` holds `count` entries, each as for `room`.
unsafe fn scatter(
    fd: c_int,
    vector: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<Result<usize, Errno>> {
    if !fds::is_stream(fd) {
        return None;
    }
    // SAFETY: the caller's promise.
    let entries: &[iovec] =
        unsafe { if count == 0 { &[] } else { std::slice::from_raw_parts(vector, count) } };
    // SAFETY: as above.
    let part = |v: &iovec| unsafe { room(v.iov_base, v.iov_len) };
    if count <= FEW {
        let mut parts: [&mut [u8]; FEW] = std::array::from_fn(|_| &mut [][..]);
        parts.iter_mut().zip(entries).for_each(|(p, v)| *p = part(v));
        fds::receive(fd, &mut parts[..count], flags)
    } else {
        let mut parts: Vec<&mut [u8]> = entries.iter().map(part).collect();
        fds::receive(fd, &mut parts, flags)
    }
}

/// # Safety
/// `vector` holds `count` entries, each as for `data`.
unsafe fn gather(
    fd: c_int,
    vector: *const iovec,
    count: usize,
    flags: c_int,
) -> Option<Result<usize, Errno>> {
    if !fds::is_stream(fd) {
        return None;
    }
    // SAFETY: the caller's promise.
    let entries: &[iovec] =
        unsafe { if count == 0 { &[] } else { std::slice::from_raw_parts(vector, count) } };
    // SAFETY: as above.
    let part = |v: &iovec| unsafe { data(v.iov_base, v.iov_len) };
    if count <= FEW {
        let mut parts: [&[u8]; FEW] = [&[]; FEW];
        parts.iter_mut().zip(entries).for_each(|(p, v)| *p = part(v));
        fds::send(fd, &parts[..count], flags)
    } else {
        let parts: Vec<&[u8]> = entries.iter().map(part).collect();
        fds::send(fd, &parts, flags)
    }
}

/// See read(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match unreadable(fd, buffer, len, 0).or_else(|| fds::receive(fd, &mut [room(buffer, len)], 0)) {
            Some(result) => status(result),
            None => next::read(fd, buffer, len),
        }
    }
}

/// See write(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match unwritable(fd, buffer, len).or_else(|| fds::send(fd, &[data(buffer, len)], 0)) {
            Some(result) => status(result),
            None => next::write(fd, buffer, len),
        }
    }
}

/// See readv(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match scatter(fd, vector, count.max(0) as usize, 0) {
            Some(result) => status(result),
            None => next::readv(fd, vector, count),
        }
    }
}

/// See writev(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match gather(fd, vector, count.max(0) as usize, 0) {
            Some(result) => status(result),
            None => next::writev(fd, vector, count),
        }
    }
}

/// See recv(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match unreadable(fd, buffer, len, flags).or_else(|| fds::receive(fd, &mut [room(buffer, len)], flags))
        {
            Some(result) => status(result),
            None => next::recv(fd, buffer, len, flags),
        }
    }
}

/// See send(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match unwritable(fd, buffer, len).or_else(|| fds::send(fd, &[data(buffer, len)], flags)) {
            Some(result) => status(result),
            None => next::send(fd, buffer, len, flags),
        }
    }
}

/// See recvfrom(2). A connected stream names nobody.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match unreadable(fd, buffer, len, flags).or_else(|| fds::receive(fd, &mut [room(buffer, len)], flags))
        {
            Some(result) => {
                if let (Ok(_), Some(name_len)) = (&result, name_len.as_mut()) {
                    *name_len = 0;
                }
                status(result)
            }
            None => next::recvfrom(fd, buffer, len, flags, name, name_len),
        }
    }
}

/// See sendto(2). A connected stream goes where it is connected to.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    name: *const sockaddr,
    name_len: socklen_t,
) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match unwritable(fd, buffer, len).or_else(|| fds::send(fd, &[data(buffer, len)], flags)) {
            Some(result) => status(result),
            None => next::sendto(fd, buffer, len, flags, name, name_len),
        }
    }
}

/// # Safety
/// `message` is a valid message header.
unsafe fn received(fd: c_int, message: &mut msghdr, flags: c_int) -> Option<Result<usize, Errno>> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        let told = fds::notice(fd)?;
        return Some(told.map(|(family, range)| {
            (message.msg_namelen, message.msg_flags) = (0, libc::MSG_ERRQUEUE);
            let (level, kind, bytes) = copied(family, range);
            // SAFETY: the caller's promise.
            unsafe { tell(message, level, kind, &bytes) };
            0
        }));
    }
    // SAFETY: the caller's promise.
    let result = unsafe { scatter(fd, message.msg_iov, message.msg_iovlen, flags) }?;
    if result.is_ok() {
        (message.msg_namelen, message.msg_flags) = (0, 0);
        match fds::left(fd) {
            Some(left) => {
                let number = c_int::try_from(left).unwrap_or(c_int::MAX).to_ne_bytes();
                // SAFETY: the caller's promise.
                unsafe { tell(message, libc::IPPROTO_TCP, TCP_CM_INQ, &number) };
            }
            None => message.msg_controllen = 0,
        }
    }
    Some(result)
}

/// The control message that says of some sends with `MSG_ZEROCOPY` that their bytes were copied: level, type, and
/// `struct sock_extended_err` with an address behind it, which is empty.
fn copied(family: c_int, (first, last): (u32, u32)) -> (c_int, c_int, Vec<u8>) {
    let (level, kind, address) = match family {
        libc::AF_INET6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, size_of::<libc::sockaddr_in6>()),
        _ => (libc::IPPROTO_IP, libc::IP_RECVERR, size_of::<libc::sockaddr_in>()),
    };
    let words =
        [0u32.to_ne_bytes(), [ORIGIN_ZEROCOPY, 0, CODE_COPIED, 0], first.to_ne_bytes(), last.to_ne_bytes()];
    let mut bytes = words.concat();
    bytes.resize(bytes.len() + address, 0);
    (level, kind, bytes)
}

/// A control message, if there is room for it.
///
/// # Safety
/// `message` is a valid message header.
unsafe fn tell(message: &mut msghdr, level: c_int, kind: c_int, bytes: &[u8]) {
    // SAFETY: these only compute; CMSG_FIRSTHDR is NULL, or at the beginning of `msg_controllen` writable bytes.
    let (whole, first) =
        unsafe { (libc::CMSG_SPACE(bytes.len() as c_uint) as usize, libc::CMSG_FIRSTHDR(message)) };
    if first.is_null() || message.msg_controllen < whole {
        message.msg_controllen = 0;
        if !message.msg_control.is_null() {
            message.msg_flags |= libc::MSG_CTRUNC;
        }
        return;
    }
    // SAFETY: `whole` bytes are there, a header and behind it the content; neither need be aligned for this.
    unsafe {
        let header = libc::cmsghdr {
            cmsg_len: libc::CMSG_LEN(bytes.len() as c_uint) as _,
            cmsg_level: level,
            cmsg_type: kind,
        };
        first.write_unaligned(header);
        libc::CMSG_DATA(first).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
    message.msg_controllen = whole;
}

/// See recvmsg(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match message.as_mut().and_then(|m| received(fd, m, flags)) {
            Some(result) => status(result),
            None => next::recvmsg(fd, message, flags),
        }
    }
}

/// See sendmsg(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: C's contract.
    unsafe {
        match message.as_ref().and_then(|m| gather(fd, m.msg_iov, m.msg_iovlen, flags)) {
            Some(result) => status(result),
            None => next::sendmsg(fd, message, flags),
        }
    }
}

/// See recvmmsg(2): for a stream, as many calls of recvmsg as yield bytes without waiting after the first.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !fds::is_stream(fd) {
        // SAFETY: C's contract.
        return unsafe { next::recvmmsg(fd, messages, count, flags, timeout) };
    }
    let mut done = 0;
    while done < count {
        let wait = if done == 0 { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: C's contract: `count` headers.
        let (header, result) = unsafe {
            let header = &mut *messages.add(done as usize);
            let result = received(fd, &mut header.msg_hdr, flags | wait);
            (header, result)
        };
        match result.unwrap_or(Err(Errno::BADF)) {
            Ok(n) => header.msg_len = n as c_uint,
            Err(e) if done == 0 => return fail(e),
            Err(_) => break,
        }
        done += 1;
        if header.msg_len == 0 {
            break;
        }
    }
    done as c_int
}

/// See sendmmsg(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if !fds::is_stream(fd) {
        // SAFETY: C's contract.
        return unsafe { next::sendmmsg(fd, messages, count, flags) };
    }
    for done in 0..count {
        // SAFETY: C's contract: `count` headers.
        let n = unsafe {
            let header = &mut *messages.add(done as usize);
            let n = sendmsg(fd, &header.msg_hdr, flags);
            header.msg_len = n.max(0) as c_uint;
            n
        };
        if n < 0 {
            return if done == 0 { -1 } else { done as c_int };
        }
    }
    count as c_int
}

/// See sendfile(2): for an accelerated socket the file is read and sent in pieces.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if !fds::is_stream(out) {
        // SAFETY: C's contract.
        return unsafe { next::sendfile(out, from, offset, count) };
    }
    // SAFETY: C's contract.
    unsafe {
        let given = offset.as_ref().copied();
        let mut at = given.unwrap_or_else(|| next::lseek(from, 0, libc::SEEK_CUR));
        if at < 0 {
            return fail(Errno::INVAL) as ssize_t;
        }
        let mut buffer = vec![0u8; CHUNK.min(count)];
        let mut done = 0;
        while done < count {
            let want = (count - done).min(buffer.len());
            let n = next::pread(from, buffer.as_mut_ptr().cast(), want, at);
            if n <= 0 {
                if n < 0 && done == 0 {
                    return -1;
                }
                // The file is shorter than was said: nothing more to come after all.
                let _ = fds::send(out, &[], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                break;
            }
            let more = if done + (n as usize) < count { libc::MSG_MORE } else { 0 };
            match fds::send(out, &[&buffer[..n as usize]], more) {
                Some(Ok(sent)) => {
                    done += sent;
                    at += sent as off_t;
                    if sent < n as usize {
                        break;
                    }
                }
                Some(Err(e)) if done == 0 => return fail(e) as ssize_t,
                _ => break,
            }
        }
        match offset.as_mut() {
            Some(offset) => *offset = at,
            None => {
                let _ = next::lseek(from, at, libc::SEEK_SET);
            }
        }
        done as ssize_t
    }
}

/// See sendfile(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the same function on 64-bit machines.
    unsafe { sendfile(out, from, offset, count) }
}

/// See splice(2): between a pipe and an accelerated socket the bytes are copied.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let patience = if flags & libc::SPLICE_F_NONBLOCK == 0 { 0 } else { libc::MSG_DONTWAIT };
    let mut buffer = [0u8; 4096];
    let want = len.min(buffer.len());
    // SAFETY: C's contract; the buffer is a local.
    unsafe {
        if fds::is_stream(from) {
            let peeked = fds::receive(from, &mut [&mut buffer[..want]], patience | libc::MSG_PEEK);
            return match peeked {
                Some(Ok(n)) if n > 0 => {
                    let written = next::write(to, buffer.as_ptr().cast(), n);
                    if written > 0 {
                        // The bytes are there: they were just seen, and one reader at a time is the caller's contract.
                        let _ =
                            fds::receive(from, &mut [&mut buffer[..written as usize]], libc::MSG_DONTWAIT);
                    }
                    written
                }
                other => status(other.unwrap_or(Err(Errno::BADF))),
            };
        }
        if fds::is_stream(to) {
            if fds::has_space(to) == Some(false) {
                return fail(Errno::AGAIN) as ssize_t;
            }
            let n = next::read(from, buffer.as_mut_ptr().cast(), want);
            if n <= 0 {
                return n;
            }
            return status(fds::send_all(to, &buffer[..n as usize], flags & libc::SPLICE_F_MORE != 0));
        }
        next::splice(from, from_at, to, to_at, len, flags)
    }
}

/// The checked twin of `read` that fortified programs call.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    check(len <= room);
    // SAFETY: C's contract.
    unsafe { read(fd, buffer, len) }
}

/// The checked twin of `recv`.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(len <= room);
    // SAFETY: C's contract.
    unsafe { recv(fd, buffer, len, flags) }
}

/// The checked twin of `recvfrom`.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut socklen_t,
) -> ssize_t {
    check(len <= room);
    // SAFETY: C's contract.
    unsafe { recvfrom(fd, buffer, len, flags, name, name_len) }
}
