//! `towpath_reserve` and `towpath_commit`: room of a connection's ring, held by C as pointers between two calls. In the checked mode the room is
//! memory of this library's own, so that a use of it after its end shows.
//!
//! # Safety
//! As of `calls`.
#![allow(clippy::missing_safety_doc)]

use crate::calls::{Count, invalid, missing, with};
use crate::opaque::{Inner, OpenRing};
use libc::{c_int, c_void, size_t, ssize_t};
use ring::{Error, Handle, check};

/// `struct towpath_room` of the header.
#[repr(C)]
#[derive(Debug)]
pub struct CRoom {
    data: [*mut c_void; 2],
    len: [size_t; 2],
}

impl Inner {
    /// Ends the room of the last reserve, in the checked mode.
    ///
    /// # Errors
    /// [`Error::Misuse`] when an earlier room was written after its end.
    pub(crate) fn end_room(&mut self) -> Result<(), Error> {
        let Some(room) = &mut self.checked else { return Ok(()) };
        let was_over = self.reserved.take().is_none();
        let found = if was_over { check::is_untouched(room, "the room of a reserve") } else { Ok(()) };
        check::poison(room);
        found
    }

    /// The room that the program gets to see.
    fn show(&mut self, room: [(*mut u8, usize); 2]) -> CRoom {
        let [(first, n), (second, m)] = room;
        match &mut self.checked {
            None => CRoom { data: [first.cast(), second.cast()], len: [n, m] },
            Some(own) => {
                own.resize(n + m, check::POISON);
                CRoom { data: [own.as_mut_ptr().cast(), std::ptr::null_mut()], len: [n + m, 0] }
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_reserve(
    ring: *mut OpenRing,
    handle: u64,
    least: size_t,
    most: size_t,
    room: *mut CRoom,
) -> ssize_t {
    if room.is_null() {
        return missing() as ssize_t;
    }
    let handle = Handle::from_bits(handle);
    // SAFETY: the caller's promises; `room` is not null.
    unsafe {
        with(ring, |inner| {
            inner.end_room()?;
            inner.reserved = None;
            let Some(mut write) = inner.ring.conn(handle)?.reserve(least, most)? else {
                return Ok(Count(0));
            };
            let (len, pieces) = (write.len(), write.pointers());
            room.write(inner.show(pieces));
            inner.reserved = Some((handle, len));
            Ok(Count(len as ssize_t))
        })
        .0
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn towpath_commit(ring: *mut OpenRing, handle: u64, n: size_t) -> c_int {
    let handle = Handle::from_bits(handle);
    // SAFETY: the caller's promise.
    unsafe {
        with(ring, |inner| {
            let conn = inner.ring.conn(handle)?;
            if !matches!(inner.reserved, Some((of, most)) if of == handle && n <= most) {
                return Ok(invalid(
                    "towpath_commit: more than the last reserve of this connection, or after its end",
                ));
            }
            if n > 0 {
                // Nothing has changed since: the same room is found again.
                let Some(mut write) = conn.reserve(n, n)? else {
                    return Ok(invalid("towpath_commit: the room is gone"));
                };
                if let Some(own) = &inner.checked {
                    write.put(&own[..n]);
                }
                write.commit(n);
            }
            inner.end_room()?;
            inner.reserved = None;
            Ok(0)
        })
    }
}
