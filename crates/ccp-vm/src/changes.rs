//! What is set of a flow between two runs of its program. Plain data; [`Machine::change`](crate::Machine::change) carries out its part.

use crate::register::CONTROLS_MAX;

/// What an agent sets of a flow, the last value of each. Window and rate lie within the flow's bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Control variables by their index.
    pub controls: [Option<u64>; CONTROLS_MAX],
    /// The congestion window, bytes.
    pub cwnd: Option<u64>,
    /// The pacing rate, bytes per second.
    pub rate: Option<u64>,
}
