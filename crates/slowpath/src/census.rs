//! Everything the slow path keeps, counted: what a test finds here after the last connection has gone is a leak.

use crate::SlowPath;

/// How many of each there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Connections in SYN-RECEIVED of listeners.
    pub half_open: usize,
    /// Active opens under way.
    pub openings: usize,
    /// Connections with a record, those that the core has yet to let go of included.
    pub connections: usize,
    /// Address pairs that are taken.
    pub tuples: usize,
    /// Flow records in use.
    pub records: usize,
    /// Connections in TIME-WAIT.
    pub time_wait: usize,
    /// Timers that run, those of neighbours included.
    pub timers: usize,
}

impl SlowPath {
    /// Counts.
    #[must_use]
    pub fn census(&self) -> Census {
        Census {
            half_open: self.listeners.half_open_len(),
            openings: self.openings.len().max(self.opening_of.len()),
            connections: self.connections.len(),
            tuples: self.by_tuple.len(),
            records: self.keeper.live() as usize,
            time_wait: self.time_wait.len(),
            timers: self.wheel.len(),
        }
    }
}
