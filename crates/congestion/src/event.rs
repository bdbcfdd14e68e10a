//! Events of a flow that congestion control is told of, each with [`Signals`](crate::Signals).

use crate::Window;
use base::Duration;

/// What has happened to a flow.
///
/// If the peer reports by SACK which data it holds, the flow itself counts in fast recovery how many bytes have left the network. Congestion
/// control is then told of no `Duplicate` and no `Partial`: the window right after `Lost` is its target. Other flows inflate and deflate
/// the window by these two events (RFC 6582).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// Data was acknowledged, outside fast recovery. An echo of congestion is part of it: `Signals::marked_bytes`.
    Ack,
    /// In fast recovery: duplicate acknowledgements came, so that segments have left the network.
    Duplicate {
        /// Number of segments that have left the network.
        segments: u32,
    },
    /// In fast recovery: an acknowledgement that does not end it; `Signals::acked_bytes` are new.
    Partial,
    /// The recovery from a loss or a timeout is over: all data sent before it is acknowledged.
    Recovered {
        /// `Duplicate` and `Partial` have changed the window during the recovery.
        is_inflated: bool,
    },
    /// Data was lost, without a timeout. Once per recovery; `Signals::in_flight` is the flight at the loss.
    Lost,
    /// The retransmission timer expired; `Signals::in_flight` is the flight at that time.
    Timeout {
        /// A fast recovery that this timeout interrupts has lowered the threshold for losses of the same window.
        is_reduced: bool,
    },
    /// The flow is about to send after a pause: see [`Window::is_restart_due`].
    Idle {
        /// The retransmission timeout in force: a longer pause is a restart.
        rto: Duration,
    },
    /// Nothing was lost: the reductions since `before` were needless.
    Undo {
        /// The window before the loss or the timeout.
        before: &'a Window,
    },
    /// The payload of a full segment changes.
    Mtu {
        /// Bytes of payload; 0 counts as 1.
        mss: u16,
    },
}
