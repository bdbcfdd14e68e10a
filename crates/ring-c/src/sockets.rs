//! `towpath_attach` and `towpath_detach`: connections from sockets to a ring and back.
//!
//! # Safety
//! As of `calls`.
#![allow(clippy::missing_safety_doc)]

use crate::calls::{missing, with};
use crate::opaque::OpenRing;
use libc::c_int;
use ring::Handle;
use std::os::fd::{BorrowedFd, IntoRawFd};

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_attach(
    ring: *mut OpenRing,
    fd: c_int,
    token: u64,
    connection: *mut u64,
) -> c_int {
    if connection.is_null() {
        return missing();
    }
    if fd < 0 {
        return crate::why::failed(libc::EBADF, "towpath_attach: a negative descriptor");
    }
    // SAFETY: the number is not negative. A descriptor that is not open makes the first call with it fail, and nothing else.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // SAFETY: the caller's promises; `connection` is not null.
    unsafe {
        with(ring, |inner| {
            connection.write(inner.ring.attach(fd, token)?.to_bits());
            Ok(0)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_detach(ring: *mut OpenRing, connection: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with(ring, |inner| Ok(inner.ring.conn(Handle::from_bits(connection))?.detach()?.into_raw_fd())) }
}
