//! The unsafe code of this crate: shared bytes as slices, and what a forked child does.

use endpoint::Endpoint;
use endpoint::in_place::Piece;
use std::sync::Once;

/// Unread bytes of `link` as a slice, where they lie; `piece` is one of its [`endpoint::in_place::Unread`], and the ring that may consume it
/// is borrowed as long as the slice. `None`: another application could change them, and the program does not trust it
/// ([`crate::Options::trusts_local_peers`]).
#[inline]
pub(crate) fn unread(link: &Endpoint, (at, len): Piece, trusts: bool) -> Option<&[u8]> {
    let mapped = &link.mapped;
    if mapped.pair && !trusts {
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
