//! The memory in which frames lie: slices of this process, or memory that other threads and processes map, too. So a transport lends its own
//! memory, and no byte is copied on its way between a stream and a channel but once. Knows no frames.

use core::sync::atomic::{AtomicU8, Ordering};

/// Room for frames that a transport lends.
pub trait Room {
    /// Bytes of the room.
    fn size(&self) -> usize;

    /// Copies `bytes` to the place `at` of the room.
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// Copies bytes of shared memory, which may change meanwhile, to the place `at` of the room.
    fn put_shared(&mut self, at: usize, bytes: &[AtomicU8]);
}

impl Room for [u8] {
    fn size(&self) -> usize {
        self.len()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_shared(&mut self, at: usize, bytes: &[AtomicU8]) {
        load(bytes, &mut self[at..at + bytes.len()]);
    }
}

/// Bytes that have come over a channel, where they lie.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// In memory of this thread.
    Own(&'a [u8]),
    /// In shared memory: they may change while they are looked at, so what is judged is copied first.
    Shared(&'a [AtomicU8]),
}

impl<'a> Input<'a> {
    /// Number of bytes that are left in this input.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
        }
    }

    /// True when there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `n` bytes, which are removed from this input.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn take(&mut self, n: usize) -> Self {
        match self {
            Self::Own(bytes) => {
                let (first, rest) = bytes.split_at(n);
                *bytes = rest;
                Self::Own(first)
            }
            Self::Shared(bytes) => {
                let (first, rest) = bytes.split_at(n);
                *bytes = rest;
                Self::Shared(first)
            }
        }
    }

    /// Copies all bytes into `out`, which has the same length.
    pub fn copy_to(&self, out: &mut [u8]) {
        match self {
            Self::Own(bytes) => out.copy_from_slice(bytes),
            Self::Shared(bytes) => load(bytes, out),
        }
    }
}

impl<'a> From<&'a [u8]> for Input<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Own(bytes)
    }
}

/// Copies shared bytes one by one: for headers, and for tests. Bulk bytes are copied by whatever owns the shared memory.
fn load(bytes: &[AtomicU8], out: &mut [u8]) {
    assert_eq!(bytes.len(), out.len());
    for (out, byte) in out.iter_mut().zip(bytes) {
        *out = byte.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_and_own_bytes_are_taken_and_put_alike() {
        let own = [1, 2, 3, 4, 5];
        let shared = own.map(AtomicU8::new);
        for mut input in [Input::Own(&own), Input::Shared(&shared)] {
            let mut first = [0; 2];
            input.take(2).copy_to(&mut first);
            assert_eq!((first, input.len()), ([1, 2], 3));
        }
        let mut room = [0; 6];
        room[..].put(0, &own[..2]);
        room[..].put_shared(3, &shared[2..]);
        assert_eq!((room, room[..].size()), ([1, 2, 0, 3, 4, 5], 6));
    }
}
