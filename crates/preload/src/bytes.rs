//! Bytes in and out.

use crate::cancel::point;
use crate::checks::{measured, says_what_a_stream_knows, unsendable};
use crate::readiness::check;
use crate::{fail, next, pointers, programs, status};
use libc::{c_int, c_uint, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use socket::{Errno, file, socket::io};
use std::time::SystemTime;

/// Vectors up to this length need no allocation.
const FEW: usize = 16;

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

/// Most bytes that a call moves, as Linux's `MAX_RW_COUNT`.
const LENGTH_MAX: usize = 0x7fff_f000;
/// Longest address, as Linux's `struct sockaddr_storage`.
const NAME_MAX: usize = size_of::<libc::sockaddr_storage>();

/// From `linux/tcp.h`: type of the control message for `TCP_INQ`.
const TCP_CM_INQ: c_int = 36;
/// From `linux/errqueue.h`: `SO_EE_ORIGIN_ZEROCOPY`, and `SO_EE_CODE_ZEROCOPY_COPIED`.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// True when the parts must be checked before use: the user wants checks, or an address is NULL.
fn is_doubtful(parts: &[iovec]) -> bool {
    pointers::are_checked() || parts.iter().any(|v| v.iov_base.is_null() && v.iov_len > 0)
}

/// How many bytes a read into `parts` may take; `Err`: the result of the call. As on Linux, a bad address is an error only when there is
/// something to write to it; an address in the kernel's half always is one.
fn writable_part(fd: c_int, parts: &[iovec], flags: c_int) -> Option<Result<usize, Result<usize, Errno>>> {
    let total = parts.iter().fold(0usize, |sum, v| sum.saturating_add(v.iov_len));
    if total == 0 || flags & (libc::MSG_TRUNC | libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Some(Ok(total));
    }
    if parts.iter().any(|v| v.iov_len > 0 && (v.iov_base as isize) < 0) {
        return Some(Err(Err(Errno::FAULT)));
    }
    let found = match io::receive(fd, &mut [&mut [0]], flags & libc::MSG_DONTWAIT | libc::MSG_PEEK)? {
        Ok(n) if n > 0 => file::unread(fd).unwrap_or(0).max(n),
        answer => return Some(Err(answer)),
    };
    let wanted = file::low_water(fd).unwrap_or(1);
    let most = if flags & libc::MSG_WAITALL != 0 { total } else { total.min(found.max(wanted)) };
    let mut left = most;
    let good = parts.iter().all(|v| {
        let n = v.iov_len.min(left);
        left -= n;
        pointers::is_writable(v.iov_base, n)
    });
    Some(if good { Ok(most) } else { Err(Err(Errno::FAULT)) })
}

/// # Safety
/// `vector` holds `count` entries, each as for `room`.
pub unsafe fn scatter(
    fd: c_int,
    vector: *const iovec,
    count: usize,
    flags: c_int,
    too_many: Errno,
) -> Option<Result<usize, Errno>> {
    if !file::is_stream(fd) {
        return None;
    }
    // SAFETY: the caller's promise.
    match unsafe { measured(vector, count, too_many) } {
        Ok((total, true)) if flags & libc::MSG_TRUNC != 0 => return io::discard(fd, total, flags),
        Ok(_) => {}
        Err(e) => return Some(Err(e)),
    }
    // SAFETY: the caller's promise.
    let entries: &[iovec] =
        unsafe { if count == 0 { &[] } else { std::slice::from_raw_parts(vector, count) } };
    let mut left = usize::MAX;
    if is_doubtful(entries) {
        match writable_part(fd, entries, flags)? {
            Ok(most) => left = most,
            Err(answer) => return Some(answer),
        }
    }
    let mut part = |v: &iovec| {
        let n = v.iov_len.min(left);
        left -= n;
        // SAFETY: as above.
        unsafe { room(v.iov_base, n) }
    };
    if count <= FEW {
        let mut parts: [&mut [u8]; FEW] = std::array::from_fn(|_| &mut [][..]);
        parts.iter_mut().zip(entries).for_each(|(p, v)| *p = part(v));
        io::receive(fd, &mut parts[..count], flags)
    } else {
        let mut parts: Vec<&mut [u8]> = entries.iter().map(part).collect();
        io::receive(fd, &mut parts, flags)
    }
}

/// # Safety
/// `vector` holds `count` entries, each as for `data`.
pub unsafe fn gather(
    fd: c_int,
    vector: *const iovec,
    count: usize,
    flags: c_int,
    too_many: Errno,
) -> Option<Result<usize, Errno>> {
    if !file::is_stream(fd) {
        return None;
    }
    // SAFETY: the caller's promise.
    if let Err(e) = unsafe { measured(vector, count, too_many) } {
        return Some(Err(e));
    }
    // SAFETY: the caller's promise.
    let entries: &[iovec] =
        unsafe { if count == 0 { &[] } else { std::slice::from_raw_parts(vector, count) } };
    if is_doubtful(entries) && !entries.iter().all(|v| pointers::is_readable(v.iov_base, v.iov_len)) {
        return Some(unsendable(fd, flags, Errno::FAULT));
    }
    // SAFETY: as above.
    let part = |v: &iovec| unsafe { data(v.iov_base, v.iov_len) };
    if count <= FEW {
        let mut parts: [&[u8]; FEW] = [&[]; FEW];
        parts.iter_mut().zip(entries).for_each(|(p, v)| *p = part(v));
        io::send(fd, &parts[..count], flags)
    } else {
        let parts: Vec<&[u8]> = entries.iter().map(part).collect();
        io::send(fd, &parts, flags)
    }
}

/// A read into one buffer.
///
/// # Safety
/// As for `room`.
unsafe fn take(fd: c_int, at: *mut c_void, len: usize, flags: c_int) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's promise.
    unsafe {
        if at.is_null() || pointers::are_checked() {
            return scatter(
                fd,
                &iovec { iov_base: at, iov_len: len.min(LENGTH_MAX) },
                1,
                flags,
                Errno::INVAL,
            );
        }
        io::receive(fd, &mut [room(at, len)], flags)
    }
}

/// A write from one buffer.
///
/// # Safety
/// As for `data`.
unsafe fn give(fd: c_int, at: *const c_void, len: usize, flags: c_int) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's promise.
    unsafe {
        if at.is_null() || pointers::are_checked() {
            let part = iovec { iov_base: at.cast_mut(), iov_len: len.min(LENGTH_MAX) };
            return gather(fd, &part, 1, flags, Errno::INVAL);
        }
        io::send(fd, &[data(at, len)], flags)
    }
}

/// The result of `readv` or `writev` of no bytes: nothing, whatever the state of the connection.
///
/// # Safety
/// As [`measured`]'s.
pub unsafe fn empty(fd: c_int, vector: *const iovec, count: usize) -> Option<Result<usize, Errno>> {
    // SAFETY: the caller's promise.
    let is_empty = unsafe { matches!(measured(vector, count, Errno::INVAL), Ok((0, _))) };
    (is_empty && file::is_stream(fd)).then_some(Ok(0))
}

/// The result of a `read` of no bytes (0), or of more bytes than there is address space (EFAULT).
fn odd_length(len: usize) -> ssize_t {
    if len == 0 { 0 } else { fail(Errno::FAULT) as ssize_t }
}

/// See read(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        if len.wrapping_sub(1) >= isize::MAX as usize && file::is_stream(fd) {
            return odd_length(len);
        }
        match take(fd, buffer, len, 0) {
            Some(result) => status(result),
            None => next::read(fd, buffer, len),
        }
    })
}

/// See write(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        match give(fd, buffer, len, 0) {
            Some(result) => status(result),
            None => next::write(fd, buffer, len),
        }
    })
}

/// See readv(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        match empty(fd, vector, count as usize)
            .or_else(|| scatter(fd, vector, count as usize, 0, Errno::INVAL))
        {
            Some(result) => status(result),
            None => next::readv(fd, vector, count),
        }
    })
}

/// See writev(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        match empty(fd, vector, count as usize)
            .or_else(|| gather(fd, vector, count as usize, 0, Errno::INVAL))
        {
            Some(result) => status(result),
            None => next::writev(fd, vector, count),
        }
    })
}

/// See recv(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        match take(fd, buffer, len, flags) {
            Some(result) => status(result),
            None => next::recv(fd, buffer, len, flags),
        }
    })
}

/// See send(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        match give(fd, buffer, len, flags) {
            Some(result) => status(result),
            None => next::send(fd, buffer, len, flags),
        }
    })
}

/// Reports to `recvfrom` that a stream has no sender's name: a length of 0.
///
/// # Safety
/// `len` is null, or can be written.
unsafe fn names_nobody(name: *const sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
    if name.is_null() {
        return Ok(());
    }
    if !pointers::is_writable(len, size_of::<socklen_t>()) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise, and it is not null.
    unsafe {
        if (*len).cast_signed() < 0 {
            return Err(Errno::INVAL);
        }
        *len = 0;
    }
    Ok(())
}

/// See recvfrom(2). A connected stream reports no sender's address.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        match take(fd, buffer, len, flags) {
            Some(result) => status(result.and_then(|n| names_nobody(name, name_len).map(|()| n))),
            None => next::recvfrom(fd, buffer, len, flags, name, name_len),
        }
    })
}

/// See sendto(2). A connected stream ignores the address.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    name: *const sockaddr,
    name_len: socklen_t,
) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        if !name.is_null() && file::is_stream(fd) {
            if name_len as usize > NAME_MAX {
                return fail(Errno::INVAL) as ssize_t;
            }
            // A stream ignores the address, but it must be readable.
            if !pointers::is_known(name, name_len as usize) {
                return fail(Errno::FAULT) as ssize_t;
            }
        }
        match give(fd, buffer, len, flags) {
            Some(result) => status(result),
            None => next::sendto(fd, buffer, len, flags, name, name_len),
        }
    })
}

/// # Safety
/// `message` is a valid message header.
pub unsafe fn received(fd: c_int, message: &mut msghdr, flags: c_int) -> Option<Result<usize, Errno>> {
    if file::is_stream(fd) && !pointers::is_writable(message, size_of::<msghdr>()) {
        return Some(Err(Errno::FAULT));
    }
    if !message.msg_name.is_null() && message.msg_namelen.cast_signed() < 0 && file::is_stream(fd) {
        return Some(Err(Errno::INVAL));
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        let told = io::notice(fd)?;
        return Some(told.map(|(family, range)| {
            (message.msg_namelen, message.msg_flags) = (0, libc::MSG_ERRQUEUE);
            let (level, kind, bytes) = copied(family, range.0, range.1);
            let mut used = 0;
            // SAFETY: the caller's promise.
            unsafe { tell(message, &mut used, level, kind, &bytes) };
            message.msg_controllen = used;
            0
        }));
    }
    // SAFETY: the caller's promise.
    let result = unsafe { scatter(fd, message.msg_iov, message.msg_iovlen, flags, Errno::MSGSIZE) }?;
    if result.is_ok() {
        if !message.msg_name.is_null() {
            message.msg_namelen = 0;
        }
        message.msg_flags = flags & (libc::MSG_CMSG_CLOEXEC | libc::MSG_OOB);
        let beside = file::beside(fd);
        let is_read = flags & libc::MSG_OOB == 0 && result != Ok(0);
        let mut used = 0;
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(option) = beside.stamp.filter(|_| is_read) {
                tell(message, &mut used, libc::SOL_SOCKET, option, &now_for(option));
            }
            if let Some(left) = beside.left {
                let number = c_int::try_from(left).unwrap_or(c_int::MAX).to_ne_bytes();
                tell(message, &mut used, libc::IPPROTO_TCP, TCP_CM_INQ, &number);
            }
        }
        message.msg_controllen = used;
    }
    Some(result)
}

/// The control message that reports sends with `MSG_ZEROCOPY` as copied: level, type, and `struct sock_extended_err` followed by an
/// empty address.
fn copied(family: c_int, first: u32, last: u32) -> (c_int, c_int, Vec<u8>) {
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

/// The timestamp of bytes that are read now, in the format of that `SO_TIMESTAMP` option: the present time, for none is kept.
fn now_for(option: c_int) -> [u8; 16] {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let is_precise = [libc::SO_TIMESTAMPNS, libc::SO_TIMESTAMPNS_NEW].contains(&option);
    let fraction = if is_precise { now.subsec_nanos() } else { now.subsec_micros() };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&now.as_secs().to_ne_bytes());
    bytes[8..].copy_from_slice(&u64::from(fraction).to_ne_bytes());
    bytes
}

/// Writes a control message behind `used` bytes of others, cut to the room there is.
///
/// # Safety
/// `message` is a valid message header, `msg_controllen` of which are writable.
unsafe fn tell(message: &mut msghdr, used: &mut usize, level: c_int, kind: c_int, bytes: &[u8]) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let room = message.msg_controllen - *used;
    if message.msg_control.is_null() || room < HEADER {
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let len = room.min(HEADER + bytes.len());
    if len < HEADER + bytes.len() {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    let header = libc::cmsghdr { cmsg_len: len as _, cmsg_level: level, cmsg_type: kind };
    // SAFETY: `room` bytes are there, enough for the header and the part of the content that is written; no alignment is needed.
    // `CMSG_SPACE` only computes.
    unsafe {
        let at = message.msg_control.cast::<u8>().add(*used);
        at.cast::<libc::cmsghdr>().write_unaligned(header);
        at.add(HEADER).copy_from_nonoverlapping(bytes.as_ptr(), len - HEADER);
        *used += room.min(libc::CMSG_SPACE(bytes.len() as c_uint) as usize);
    }
}

/// The message header at `at`; `None`: it cannot be read, and the kernel reports that.
///
/// # Safety
/// `at` is null or points to one.
unsafe fn header<'a>(at: *mut msghdr) -> Option<&'a mut msghdr> {
    if !pointers::is_readable(at, size_of::<msghdr>()) {
        return None;
    }
    // SAFETY: the caller's promise, and it is not null.
    unsafe { at.as_mut() }
}

/// See recvmsg(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        match header(message).and_then(|m| received(fd, m, flags)) {
            Some(result) => status(result),
            None => {
                let n = next::recvmsg(fd, message, flags);
                if n >= 0 {
                    programs::received(message);
                }
                n
            }
        }
    })
}

/// # Safety
/// `message` is a valid message header.
unsafe fn gathered(fd: c_int, message: &msghdr, flags: c_int) -> Option<Result<usize, Errno>> {
    if !file::is_stream(fd) {
        return None;
    }
    // Linux ignores a name of valid length, and cuts a longer one.
    if !message.msg_name.is_null() && message.msg_namelen.cast_signed() < 0 {
        return Some(Err(Errno::INVAL));
    }
    // SAFETY: the caller's promise.
    unsafe {
        if message.msg_controllen > 0 {
            // Few messages have control data, so this check is always made.
            if !session::sys::pointers::is_readable(message.msg_control as usize, message.msg_controllen) {
                return Some(Err(Errno::FAULT));
            }
            if !says_what_a_stream_knows(message) {
                return Some(unsendable(fd, flags, Errno::INVAL));
            }
        }
        gather(fd, message.msg_iov, message.msg_iovlen, flags, Errno::MSGSIZE)
    }
}

/// See sendmsg(2).
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: C's contract.
    point(|| unsafe {
        let header = header(message.cast_mut());
        match header.as_deref().and_then(|m| gathered(fd, m, flags)) {
            Some(result) => status(result),
            None => {
                if header.is_some() {
                    programs::sending(message);
                }
                next::sendmsg(fd, message, flags)
            }
        }
    })
}

/// The checked twin of `read` that fortified programs call.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    check(len <= room);
    // SAFETY: C's contract.
    unsafe { read(fd, buffer, len) }
}

/// The checked twin of `recv`.
///
/// # Safety
/// As C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
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
pub unsafe extern "C-unwind" fn __recvfrom_chk(
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
