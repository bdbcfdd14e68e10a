//! Numbers of all objects that the slow path keeps: a test that finds any left after its last connection has found a leak.

use crate::SlowPath;

/// The number of objects of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Connections in SYN-RECEIVED of listeners.
    pub half_open: usize,
    /// Active opens under way.
    pub openings: usize,
    /// Connections with a record, including those of which the core has not yet let go.
    pub connections: usize,
    /// Address pairs in use by connections.
    pub tuples: usize,
    /// Flow records in use, including those of which the core has not yet let go.
    pub records: usize,
    /// Connections in state TIME-WAIT.
    pub time_wait: usize,
    /// Flows with a program.
    pub programs: usize,
    /// Timers that run, including those of neighbours.
    pub timers: usize,
}

impl SlowPath {
    /// Counts the objects of each kind.
    #[must_use]
    pub fn census(&self) -> Census {
        Census {
            half_open: self.listeners.half_open_len(),
            openings: self.openings.len().max(self.opening_of.len()),
            connections: self.connections.len(),
            tuples: self.by_tuple.len(),
            records: self.keeper.live() as usize,
            time_wait: self.time_wait.len(),
            programs: self.programs_running(),
            timers: self.wheel.len(),
        }
    }
}
