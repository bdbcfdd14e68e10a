//! The calls of `towpath.h`. Each checks its pointers for null, takes the ring for this thread, and returns a number.
//!
//! # Safety
//! Of every call: pointers are null or point to what the header says, alive and of the said length; a pointer to an opaque object came from
//! this library and was not freed.
#![allow(clippy::missing_safety_doc)]

use crate::opaque::{Inner, OpenRing, OpenService, RingWaker, Turn};
use crate::{address, why};
use libc::{c_char, c_int, c_uint, c_void, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t};
use ring::{Conn, ConnectOptions, Error, Event, Handle, Kind, ListenOptions, Options, Service, Setting};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{self, null};
use std::slice;
use std::time::{Duration, Instant};

const TRUST_LOCAL_PEERS: c_uint = 1;
const REUSE_PORT: c_uint = 1;
const DELAY: c_uint = 2;

/// `struct towpath_event` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CEvent {
    handle: u64,
    listener: u64,
    token: u64,
    kind: u32,
    error: i32,
}

/// `struct towpath_connection_info` of the header.
#[repr(C)]
pub struct CInfo {
    local: sockaddr_storage,
    peer: sockaddr_storage,
    unread: u64,
    unsent: u64,
    is_pair: i32,
    is_accepted: i32,
}

impl CEvent {
    fn of(Event { handle, token, kind }: Event) -> Self {
        let (number, error, listener) = match kind {
            Kind::Accepted { listener, .. } => (1, 0, listener.to_bits()),
            Kind::Connected => (2, 0, 0),
            Kind::Failed(e) => (3, e.raw_os_error(), 0),
            Kind::Readable => (4, 0, 0),
            Kind::Writable => (5, 0, 0),
            Kind::Finished => (6, 0, 0),
            Kind::Closed(e) => (7, e.raw_os_error(), 0),
            Kind::Timer => (8, 0, 0),
            Kind::Woken => (9, 0, 0),
            // A kind that this header does not know yet.
            _ => (0, 0, 0),
        };
        Self { handle: handle.to_bits(), listener, token, kind: number, error }
    }
}

pub(crate) fn missing() -> c_int {
    why::failed(libc::EFAULT, "a pointer is null")
}

pub(crate) fn invalid(text: &str) -> c_int {
    why::failed(libc::EINVAL, text)
}

/// Runs a call with the ring at `ring`.
pub(crate) unsafe fn with<R: From<c_int>>(
    ring: *mut OpenRing,
    call: impl FnOnce(&mut Inner) -> Result<R, Error>,
) -> R {
    if ring.is_null() {
        return missing().into();
    }
    // SAFETY: the ring is alive. Only the flag is borrowed: another thread may have the only reference to the other part.
    let is_used = unsafe { &(*ring).is_used };
    let _turn = match Turn::begin(is_used) {
        Ok(turn) => turn,
        Err(busy) => return busy.into(),
    };
    // SAFETY: the flag says that no other thread is in a call, so this is the only reference to this part.
    let inner = unsafe { &mut (*ring).inner };
    call(inner).unwrap_or_else(|e| why::error(&e).into())
}

/// As [`with`] for one connection.
unsafe fn on<R: From<c_int>>(
    ring: *mut OpenRing,
    handle: u64,
    call: impl FnOnce(Conn<'_>) -> Result<R, Error>,
) -> R {
    // SAFETY: the caller's promise.
    unsafe { with(ring, |inner| call(inner.ring.conn(Handle::from_bits(handle))?)) }
}

/// Gives `object` to the program.
unsafe fn give<T>(place: *mut *mut T, object: T) -> c_int {
    // SAFETY: the caller has checked that there is a place for it.
    unsafe { place.write(Box::into_raw(Box::new(object))) };
    0
}

/// Frees an object of the program's.
unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: it came from `give` and was not freed.
        drop(unsafe { Box::from_raw(object) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_open(control: *const c_char, flags: c_uint, to: *mut *mut OpenService) -> c_int {
    if to.is_null() {
        return missing();
    }
    if flags & !TRUST_LOCAL_PEERS != 0 {
        return invalid("towpath_open: an unknown flag");
    }
    // SAFETY: a text that ends in 0.
    let path = (!control.is_null()).then(|| unsafe { CStr::from_ptr(control) });
    let options = Options {
        control: path.map(|path| OsStr::from_bytes(path.to_bytes()).into()),
        trusts_local_peers: flags & TRUST_LOCAL_PEERS != 0,
        ..Options::default()
    };
    match Service::open(options) {
        // SAFETY: `to` is not null.
        Ok(service) => unsafe { give(to, OpenService(service)) },
        Err(e) => why::error(&e),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_service_free(service: *mut OpenService) {
    // SAFETY: the caller's promise.
    unsafe { free(service) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_ring_new(service: *mut OpenService, to: *mut *mut OpenRing) -> c_int {
    if service.is_null() || to.is_null() {
        return missing();
    }
    // SAFETY: alive, and only read by any number of threads.
    match unsafe { (*service).0.ring() } {
        // SAFETY: `to` is not null.
        Ok(ring) => unsafe { give(to, OpenRing::new(ring)) },
        Err(e) => why::error(&e),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_ring_free(ring: *mut OpenRing) {
    // SAFETY: the caller's promise.
    unsafe { free(ring) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_listen(
    ring: *mut OpenRing,
    at: *const sockaddr,
    len: socklen_t,
    flags: c_uint,
    backlog: c_int,
    token: u64,
    listener: *mut u64,
) -> c_int {
    // SAFETY: readable for `len` bytes.
    let Some(address) = (unsafe { address::read(at, len) }) else { return invalid("not an address") };
    if listener.is_null() || flags & !(REUSE_PORT | DELAY) != 0 {
        return invalid("towpath_listen: no place for the handle, or an unknown flag");
    }
    let options = ListenOptions {
        backlog: backlog.max(0).cast_unsigned(),
        reuse_port: flags & REUSE_PORT != 0,
        no_delay: flags & DELAY == 0,
        ..ListenOptions::default()
    };
    // SAFETY: the caller's promises; `listener` is not null.
    unsafe {
        with(ring, |inner| {
            listener.write(inner.ring.listen(address, options, token)?.to_bits());
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_local_address(
    ring: *mut OpenRing,
    listener: u64,
    to: *mut sockaddr_storage,
) -> c_int {
    if to.is_null() {
        return missing();
    }
    // SAFETY: the caller's promises; `to` is not null.
    unsafe {
        with(ring, |inner| {
            to.write(address::storage(inner.ring.local_address(Handle::from_bits(listener))?));
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_connect(
    ring: *mut OpenRing,
    to: *const sockaddr,
    len: socklen_t,
    flags: c_uint,
    token: u64,
    connection: *mut u64,
) -> c_int {
    // SAFETY: readable for `len` bytes.
    let Some(address) = (unsafe { address::read(to, len) }) else { return invalid("not an address") };
    if connection.is_null() || flags & !DELAY != 0 {
        return invalid("towpath_connect: no place for the handle, or an unknown flag");
    }
    let options = ConnectOptions { no_delay: flags & DELAY == 0 };
    // SAFETY: the caller's promises; `connection` is not null.
    unsafe {
        with(ring, |inner| {
            connection.write(inner.ring.connect(address, options, token)?.to_bits());
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_wait(
    ring: *mut OpenRing,
    to: *mut CEvent,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    if to.is_null() || most <= 0 {
        return invalid("towpath_wait: no room for events");
    }
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    // SAFETY: the caller's promises: `to` has room for `most` events.
    unsafe {
        with(ring, |inner| {
            inner.end_room()?;
            let Inner { ring, events, told, .. } = inner;
            if *told == events.len() {
                *told = 0;
                ring.wait(timeout, events)?;
            } else {
                // The last wait has found more than there was room for.
                ring.flush();
            }
            let n = (events.len() - *told).min(most as usize);
            for (i, event) in events[*told..*told + n].iter().enumerate() {
                to.add(i).write(CEvent::of(*event));
            }
            *told += n;
            Ok(n as c_int)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_flush(ring: *mut OpenRing) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(ring, |inner| {
            inner.ring.check()?;
            inner.end_room()?;
            inner.ring.flush();
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_arm(ring: *mut OpenRing) -> c_int {
    let has_told = |inner: &Inner| inner.told == inner.events.len();
    // SAFETY: the caller's promise.
    unsafe { with(ring, |inner| Ok(c_int::from(has_told(inner) && inner.ring.arm()?))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_fd(ring: *mut OpenRing) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(ring, |inner| Ok(inner.ring.fd())) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_timer(ring: *mut OpenRing, milliseconds: u64, token: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with(ring, |inner| {
            let Some(at) = Instant::now().checked_add(Duration::from_millis(milliseconds)) else {
                return Ok(invalid("towpath_timer: no such time"));
            };
            inner.ring.timer(at, token);
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_view(
    ring: *mut OpenRing,
    handle: u64,
    most: size_t,
    data: *mut *const c_void,
) -> ssize_t {
    if data.is_null() {
        return missing() as ssize_t;
    }
    // SAFETY: the caller's promises; `data` is not null.
    unsafe {
        on(ring, handle, |conn| {
            let mut read = conn.read()?;
            let bytes = read.contiguous(most);
            data.write(if bytes.is_empty() { null() } else { bytes.as_ptr().cast() });
            Ok(Count(bytes.len() as ssize_t))
        })
        .0
    }
}

/// A count of bytes, or an error, as `ssize_t`.
pub(crate) struct Count(pub(crate) ssize_t);

impl From<c_int> for Count {
    fn from(number: c_int) -> Self {
        Self(number as ssize_t)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_copy(
    ring: *mut OpenRing,
    handle: u64,
    to: *mut c_void,
    most: size_t,
) -> ssize_t {
    if to.is_null() {
        return missing() as ssize_t;
    }
    // SAFETY: the caller's promises: `to` may be written for `most` bytes, which need not have values yet.
    unsafe {
        on(ring, handle, |conn| {
            let mut read = conn.read()?;
            let n = most.min(read.len());
            ptr::write_bytes(to.cast::<u8>(), 0, n);
            Ok(Count(read.copy_to(slice::from_raw_parts_mut(to.cast(), n)) as ssize_t))
        })
        .0
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_consume(ring: *mut OpenRing, handle: u64, n: size_t) -> c_int {
    let refuse = || invalid("towpath_consume: more than is unread");
    // SAFETY: the caller's promise.
    unsafe { on(ring, handle, |conn| Ok(if conn.consume(n)? { 0 } else { refuse() })) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_again(ring: *mut OpenRing, handle: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on(ring, handle, |conn| conn.again().map(|()| 0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_is_finished(ring: *mut OpenRing, handle: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on(ring, handle, |mut conn| Ok(c_int::from(conn.is_finished()))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_write(
    ring: *mut OpenRing,
    handle: u64,
    bytes: *const c_void,
    n: size_t,
) -> ssize_t {
    if bytes.is_null() {
        return missing() as ssize_t;
    }
    // SAFETY: the caller's promises: `bytes` is readable for `n` bytes.
    unsafe {
        let bytes = slice::from_raw_parts(bytes.cast::<u8>(), n.min(isize::MAX as usize));
        on(ring, handle, |conn| Ok(Count(conn.write(bytes)? as ssize_t))).0
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_finish(ring: *mut OpenRing, handle: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { on(ring, handle, |conn| conn.finish().map(|()| 0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_close(ring: *mut OpenRing, handle: u64) -> c_int {
    let handle = Handle::from_bits(handle);
    // SAFETY: the caller's promise.
    unsafe {
        with(ring, |inner| match inner.ring.conn(handle) {
            Ok(conn) => {
                conn.close();
                Ok(0)
            }
            Err(Error::WrongKind) => inner.ring.close_listener(handle).map(|()| 0),
            Err(e) => Err(e),
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_reset(ring: *mut OpenRing, handle: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on(ring, handle, |conn| {
            conn.reset();
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_set_token(ring: *mut OpenRing, handle: u64, token: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        on(ring, handle, |mut conn| {
            conn.set_token(token);
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_set(ring: *mut OpenRing, handle: u64, setting: c_int, value: c_int) -> c_int {
    let setting = match setting {
        1 => Setting::NoDelay(value != 0),
        2 => Setting::QuickAck(value != 0),
        3 => Setting::NotSentLowWater(value.max(0).cast_unsigned()),
        4 => Setting::SendBuffer(value.max(0).cast_unsigned()),
        _ => return invalid("towpath_set: no such setting"),
    };
    // SAFETY: the caller's promise.
    unsafe { on(ring, handle, |conn| conn.set(setting).map(|()| 0)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_info(ring: *mut OpenRing, handle: u64, to: *mut CInfo) -> c_int {
    if to.is_null() {
        return missing();
    }
    // SAFETY: the caller's promises; `to` is not null.
    unsafe {
        on(ring, handle, |conn| {
            let info = conn.info()?;
            to.write(CInfo {
                local: address::storage(info.local),
                peer: address::storage(info.peer),
                unread: info.unread as u64,
                unsent: info.unsent as u64,
                is_pair: info.is_pair.into(),
                is_accepted: info.is_accepted.into(),
            });
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_count(ring: *mut OpenRing, to: *mut [u64; 10]) -> c_int {
    if to.is_null() {
        return missing();
    }
    // SAFETY: the caller's promises: a `towpath_counters` is ten numbers of 64 bits.
    unsafe {
        with(ring, |inner| {
            let c = inner.ring.counters();
            to.write([
                c.accepted,
                c.kernel_refused,
                c.in_place,
                c.copied,
                c.flushes,
                c.barriers,
                c.bells,
                c.waits,
                c.sleeps,
                c.events,
            ]);
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_waker_new(ring: *mut OpenRing, to: *mut *mut RingWaker) -> c_int {
    if to.is_null() {
        return missing();
    }
    // SAFETY: the caller's promises; `to` is not null.
    unsafe { with(ring, |inner| Ok(give(to, RingWaker(inner.ring.waker())))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_wake(waker: *mut RingWaker) {
    if !waker.is_null() {
        // SAFETY: alive; any number of threads may use it at once.
        unsafe { (*waker).0.wake() };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_waker_free(waker: *mut RingWaker) {
    // SAFETY: the caller's promise.
    unsafe { free(waker) };
}

#[unsafe(no_mangle)]
extern "C" fn towpath_why() -> *const c_char {
    why::text()
}
