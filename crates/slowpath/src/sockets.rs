//! Every socket the slow path knows, for listings.

use crate::{Owner, SlowPath, State};
use flow::FlowId;
use wire::{Endpoint, FourTuple};

/// One socket.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    /// Its state.
    pub state: State,
    /// Our end.
    pub local: Endpoint,
    /// The peer's; the unspecified address of a listener.
    pub remote: Option<Endpoint>,
    /// Its flow, with counters, when it is established.
    pub flow: Option<FlowId>,
    /// Whose it is, when it has a slot.
    pub owner: Option<Owner>,
    /// The token of a listener or of an active open.
    pub token: Option<u64>,
}

impl SlowPath {
    /// Shows every socket to `see`, in no order.
    pub fn for_each_socket(&self, mut see: impl FnMut(&Socket)) {
        for (at, listener) in self.listeners.iter() {
            let token = Some(listener.token);
            see(&Socket { state: State::Listen, local: *at, remote: None, flow: None, owner: None, token });
        }
        let bare = |state, tuple: &FourTuple, owner, token| {
            let (local, remote) = (tuple.src, Some(tuple.dst));
            Socket { state, local, remote, flow: None, owner, token }
        };
        for half_open in self.listeners.half_open() {
            see(&bare(State::SynReceived, &half_open.tuple, None, None));
        }
        for opening in self.openings.values() {
            let state = if opening.crossed.is_some() { State::SynReceived } else { State::SynSent };
            see(&bare(state, &opening.tuple, Some(opening.owner), Some(opening.token)));
        }
        for (tuple, _) in self.time_wait.iter() {
            see(&bare(State::TimeWait, tuple, None, None));
        }
        for (flow, connection) in self.connections.iter().filter(|(_, c)| !c.is_over) {
            let (flags, closed_first) =
                self.keeper.flows().lock_briefly(flow).map_or((0, false), |mut guard| {
                    let parts = guard.parts();
                    (parts.rx.flags, parts.cold.closed_first)
                });
            let now = connection.state.with_own_fin(flags, closed_first);
            let socket = bare(now, &connection.tuple, Some(connection.owner), None);
            see(&Socket { flow: Some(flow), ..socket });
        }
    }

    /// How many half-open connections, active opens, flows and connections in TIME-WAIT there are.
    #[must_use]
    pub fn sizes(&self) -> [usize; 4] {
        let flows = self.connections.len();
        [self.listeners.half_open_len(), self.openings.len(), flows, self.time_wait.len()]
    }
}
