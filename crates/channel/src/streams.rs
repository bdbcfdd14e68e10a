//! The bytes of virtual sockets, which stay with the caller of a session: in rings of shared memory, or in a test's vectors.

/// Access to the streams' bytes by position. The session calls it only within what the caller has promised.
pub trait Streams {
    /// Copies the bytes from `position` on into `out`. The caller has announced them by `written`, and no event has confirmed them yet.
    fn read(&mut self, tag: u64, position: u64, out: &mut [u8]);

    /// Stores bytes at `position`, before the edge of the credit that the caller has given. Later bytes may come before earlier ones;
    /// the same bytes ahead of what is readable may come twice.
    fn write(&mut self, tag: u64, position: u64, bytes: &[u8]);
}
