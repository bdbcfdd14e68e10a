//! Payload that stays where it lies until the device takes it, or that the device puts where it is to lie: memory that others may read
//! and write meanwhile. The only file of this crate with unsafe code.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicU8;

/// A frame's payload in up to two pieces, in order: a ring's end and its beginning.
///
/// Whatever the bytes are when they are read is what is sent; nothing is assumed of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lent<'a>(pub [&'a [AtomicU8]; 2]);

impl Lent<'_> {
    /// No payload but what is in the frame.
    pub const NONE: Self = Self([&[], &[]]);

    /// Bytes in both pieces.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.0[0].len() + self.0[1].len()
    }

    /// True without a byte.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills both with the beginning of `bytes`.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn fill(&self, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in self.0 {
            let (here, after) = rest.split_at(piece.len());
            // SAFETY: both are `piece.len()` bytes, and apart: nobody else's bytes are borrowed as plain ones. Others may read and write
            // the piece meanwhile, which atomics allow; no reference to them as anything else exists.
            unsafe {
                piece.as_ptr().cast::<u8>().cast_mut().copy_from_nonoverlapping(here.as_ptr(), here.len());
            };
            rest = after;
        }
    }

    /// Copies both to the beginning of `place`.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn copy_to(&self, place: &mut [u8]) {
        let mut rest = place;
        for piece in self.0 {
            let (here, after) = rest.split_at_mut(piece.len());
            // SAFETY: both are `piece.len()` bytes, and apart: `here` is ours alone. The piece may change meanwhile; its bytes are only
            // copied.
            unsafe { here.as_mut_ptr().copy_from_nonoverlapping(piece.as_ptr().cast(), piece.len()) };
            rest = after;
        }
    }
}

/// Gives `parts` and then `payload` to the kernel with one call, as one frame. How many bytes it took.
///
/// # Errors
/// As `writev`'s.
pub fn write(fd: impl AsFd, parts: [&[u8]; 2], payload: Lent<'_>) -> Result<usize, Errno> {
    let entries = entries(parts.map(|part| (part.as_ptr(), part.len())), payload);
    // SAFETY: each entry is memory that is there as long as its borrow, which outlives the call; the kernel only reads it.
    counted(unsafe { libc::writev(fd.as_fd().as_raw_fd(), entries.as_ptr(), 4) })
}

/// Has the kernel fill `parts` and then `payload` with one call. How many bytes it had; what does not fit is gone.
///
/// # Errors
/// As `readv`'s.
pub fn read(fd: impl AsFd, mut parts: [&mut [u8]; 2], payload: Lent<'_>) -> Result<usize, Errno> {
    let entries = entries(parts.each_mut().map(|part| (part.as_mut_ptr().cast_const(), part.len())), payload);
    // SAFETY: as in `write`; the kernel writes to `parts`, which are ours alone, and to bytes that are atomic, for which any value is
    // one.
    counted(unsafe { libc::readv(fd.as_fd().as_raw_fd(), entries.as_ptr(), 4) })
}

fn entries(own: [(*const u8, usize); 2], payload: Lent<'_>) -> [libc::iovec; 4] {
    let lent = payload.0.map(|piece| (piece.as_ptr().cast(), piece.len()));
    [own[0], own[1], lent[0], lent[1]]
        .map(|(at, len)| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len })
}

fn counted(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(bytes: &[u8]) -> Vec<AtomicU8> {
        bytes.iter().map(|byte| AtomicU8::new(*byte)).collect()
    }

    #[test]
    fn both_pieces_come_one_after_the_other() {
        let (a, b) = (shared(b"abc"), shared(b"de"));
        let lent = Lent([&a, &b]);
        let mut place = [b'-'; 7];
        lent.copy_to(&mut place);
        assert_eq!((&place, lent.len()), (b"abcde--", 5));
        assert!(Lent::NONE.is_empty());
        lent.fill(b"ABCDE");
        lent.copy_to(&mut place);
        assert_eq!(&place, b"ABCDE--");
        lent.fill(b"abcde");
        let (from, to) = rustix::pipe::pipe().unwrap();
        assert_eq!(write(&to, [b"x", b"yz"], lent), Ok(8));
        let mut read = [0; 9];
        assert_eq!(rustix::io::read(&from, &mut read), Ok(8));
        assert_eq!(&read[..8], b"xyzabcde");
        assert_eq!(write(&from, [b"x", b""], lent), Err(Errno::BADF));
        assert_eq!(write(&to, [b"1234", b"567"], Lent::NONE), Ok(7));
        let (mut x, mut y) = ([0; 1], [0; 2]);
        assert_eq!(super::read(&from, [&mut x, &mut y], lent), Ok(7));
        lent.copy_to(&mut place);
        assert_eq!((&x, &y, &place[..4]), (b"1", b"23", b"4567".as_slice()));
    }
}
