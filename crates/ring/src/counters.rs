//! What a ring has done since it was made.

/// Numbers that a ring counts; they never fall.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Connections accepted, from all listeners.
    pub accepted: u64,
    /// Connections of the kernel that came to a listener's port and were reset: their peer does not use the service.
    pub kernel_refused: u64,
    /// Bytes looked at where they lie.
    pub in_place: u64,
    /// Bytes copied to be looked at: another application could have changed them meanwhile, or they lay in several pieces.
    pub copied: u64,
    /// Flushes that had something to publish.
    pub flushes: u64,
    /// Full barriers, one for each flush that publishes.
    pub barriers: u64,
    /// Writes to peers' doorbells, each for up to 64 connections.
    pub bells: u64,
    /// Calls of `wait` and `poll`.
    pub waits: u64,
    /// Sleeps in the kernel.
    pub sleeps: u64,
    /// Events told to the program.
    pub events: u64,
}
