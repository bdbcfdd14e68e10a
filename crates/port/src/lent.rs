//! Payload that is not copied: the device reads it from, or writes it to, memory that other processes may read and write at the same
//! time. The only file of this crate with unsafe code.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::AtomicU8;

/// The payload of a frame in up to two pieces, in order: for example the end of a ring and its beginning.
///
/// The bytes are sent as they are when the device reads them; the code assumes nothing about their values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lent<'a>(pub [&'a [AtomicU8]; 2]);

impl Lent<'_> {
    /// An empty payload: all bytes of the frame are in its buffer.
    pub const NONE: Self = Self([&[], &[]]);

    /// Total length of both pieces in bytes.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.0[0].len() + self.0[1].len()
    }

    /// True when both pieces are empty.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills both pieces with the first bytes of `bytes`.
    ///
    /// # Panics
    /// When `bytes` is shorter than both pieces together.
    pub fn fill(&self, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in self.0 {
            let (here, after) = rest.split_at(piece.len());
            // SAFETY: both are `piece.len()` bytes long and do not overlap: `here` is an ordinary borrow, and no other reference to the
            // piece exists except as atomics. Other processes may read and write the piece at the same time, which atomics allow.
            unsafe {
                piece.as_ptr().cast::<u8>().cast_mut().copy_from_nonoverlapping(here.as_ptr(), here.len());
            };
            rest = after;
        }
    }

    /// Copies both pieces to the beginning of `place`.
    ///
    /// # Panics
    /// When `place` is shorter than both pieces together.
    pub fn copy_to(&self, place: &mut [u8]) {
        let mut rest = place;
        for piece in self.0 {
            let (here, after) = rest.split_at_mut(piece.len());
            // SAFETY: both are `piece.len()` bytes long and do not overlap: `here` is an exclusive borrow. The piece may change at the same
            // time; its bytes are only copied.
            unsafe { here.as_mut_ptr().copy_from_nonoverlapping(piece.as_ptr().cast(), piece.len()) };
            rest = after;
        }
    }
}

/// Writes `parts` and then `payload` with one system call, as one frame. Returns the number of bytes that the kernel took.
///
/// # Errors
/// The errors of `writev`.
pub fn write(fd: impl AsFd, parts: [&[u8]; 2], payload: Lent<'_>) -> Result<usize, Errno> {
    let entries = entries(parts.map(|part| (part.as_ptr(), part.len())), payload);
    // SAFETY: each entry points to memory that lives as long as its borrow, which outlives the call; the kernel only reads it.
    counted(unsafe { libc::writev(fd.as_fd().as_raw_fd(), entries.as_ptr(), 4) })
}

/// Reads one frame into `parts` and then `payload` with one system call. Returns the number of bytes read; bytes that do not fit are lost.
///
/// # Errors
/// The errors of `readv`.
pub fn read(fd: impl AsFd, mut parts: [&mut [u8]; 2], payload: Lent<'_>) -> Result<usize, Errno> {
    let entries = entries(parts.each_mut().map(|part| (part.as_mut_ptr().cast_const(), part.len())), payload);
    // SAFETY: as in `write`; the kernel writes to `parts`, which are borrowed exclusively, and to atomic bytes, for which every value is
    // valid.
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
