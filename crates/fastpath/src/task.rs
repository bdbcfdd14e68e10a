//! What remains to be done for a command after it was popped and its frame handled. May go on to another core with the flow that it is about.

use flow::FlowId;

/// See the module; each but the first is one of `flow::Command`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    Done,
    Move(FlowId, u8),
    Moved(u8),
    Transmit(FlowId),
    Probe(FlowId),
    ProbePath(FlowId, u16),
    Ack(FlowId),
    Drop(FlowId),
}
