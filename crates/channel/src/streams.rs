//! The bytes of virtual sockets, which stay with the caller of a session: in rings of shared memory, or in a test's vectors.

use crate::bytes::{Input, Room};

/// Access to the streams' bytes by position. The session calls it only within what the caller has promised.
pub trait Streams {
    /// Copies `len` bytes from `position` on to the place `at` of `room`. The caller has announced them by `written`, and no event has
    /// confirmed them yet.
    fn read<R: Room + ?Sized>(&mut self, tag: u64, position: u64, len: usize, room: &mut R, at: usize);

    /// Stores bytes at `position`, before the edge of the credit that the caller has given. Later bytes may come before earlier ones;
    /// the same bytes ahead of what is readable may come twice.
    fn write(&mut self, tag: u64, position: u64, bytes: Input<'_>);
}
