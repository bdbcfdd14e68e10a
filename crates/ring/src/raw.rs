//! The unsafe code of this crate: shared bytes as slices, what a forked child does, and the C library's messages with descriptors, which the
//! preload library sees.

use endpoint::Endpoint;
use endpoint::in_place::Piece;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::mem::zeroed;
use std::sync::Once;

/// Unread bytes of `link` as a slice, where they lie; `piece` is one of its [`endpoint::in_place::Unread`], and the ring that may consume it
/// is borrowed as long as the slice. `None` unless `is_private`: only the service can write these bytes, or an application that the program
/// trusts ([`crate::Options::trusts_local_peers`]).
#[inline]
pub(crate) fn unread(link: &Endpoint, (at, len): Piece, is_private: bool) -> Option<&[u8]> {
    let mapped = &link.mapped;
    if !is_private {
        return None;
    }
    let shared = mapped.region.shared(mapped.side.other(), at, len);
    // SAFETY: the range was checked by `shared` and stays mapped as long as `link`. Nothing writes it while the slice lives: the bytes are
    // published and not consumed, so their writer leaves them alone if it is the service or a process that the program trusts.
    Some(unsafe { std::slice::from_raw_parts(shared.as_ptr().cast(), len) })
}

/// Room of `link` as slices to be written; `pieces` are those of its last reserve, and the ring is borrowed as long as the slices.
/// `None`: the other side is an application, which could write there, too.
#[inline]
pub(crate) fn room(link: &mut Endpoint, pieces: [Piece; 2]) -> Option<[&mut [u8]; 2]> {
    let mapped = &link.mapped;
    let see = |(at, len): Piece| {
        let shared = mapped.region.shared(mapped.side, at, len);
        // SAFETY: the range was checked by `shared` and is mapped to be written. It lies in this process's own ring, behind what was
        // committed: the service reads only what is published, and no other slice of it lives. Both pieces lie apart.
        unsafe { std::slice::from_raw_parts_mut(shared.as_ptr().cast_mut().cast(), len) }
    };
    (!mapped.pair).then(|| pieces.map(see))
}

/// From now on a fork calls these: before it, and after it in the parent and in the child.
pub(crate) fn watch_forks(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: functions of this library, which is never unloaded while they may be called. An error (no memory) means that a forked child
        // does not notice what it is.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    });
}

/// Room for one descriptor beside a message, aligned as the C library wants it.
type Beside = [u64; 4];

/// Calls `then` with a message of one byte that has room for one descriptor.
fn with_message<R>(then: impl FnOnce(&mut libc::msghdr) -> R) -> R {
    let (mut byte, mut beside) = (0u8, Beside::default());
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: zeros are a message without an address.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = beside.as_mut_ptr().cast();
    // SAFETY: this computes a number.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    debug_assert!(message.msg_controllen <= size_of::<Beside>());
    then(&mut message)
}

/// Sends `fd` through a socket by the C library's `sendmsg`.
pub(crate) fn send_by_libc(through: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    with_message(|message| {
        // SAFETY: the message has room for one descriptor, and everything that it points to lives until the call is over.
        let sent = unsafe {
            let head = libc::CMSG_FIRSTHDR(message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
            libc::sendmsg(through.as_raw_fd(), message, libc::MSG_NOSIGNAL)
        };
        if sent < 0 { Err(last_error()) } else { Ok(()) }
    })
}

/// Receives a descriptor from a socket by the C library's `recvmsg`. `None`: it was lost, because no number is free.
pub(crate) fn receive_by_libc(through: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    with_message(|message| {
        // SAFETY: everything that the message points to lives until the call is over.
        if unsafe { libc::recvmsg(through.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) } < 0 {
            return Err(last_error());
        }
        // SAFETY: the call has set how much of the room beside the message is filled.
        let head = unsafe { libc::CMSG_FIRSTHDR(message) };
        if head.is_null() {
            return Ok(None);
        }
        // SAFETY: the other end is this library's and sends one descriptor, which is this process's own from now on.
        Ok(Some(unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned()) }))
    })
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
