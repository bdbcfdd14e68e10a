//! All sockets that the slow path knows, for listings.

use crate::{Owner, SlowPath, State};
use flow::FlowId;
use wire::{Endpoint, FourTuple};

/// One socket, as shown in listings.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    /// TCP state of the socket.
    pub state: State,
    /// Address and port of our end.
    pub local: Endpoint,
    /// Address and port of the peer; `None` for a listener.
    pub remote: Option<Endpoint>,
    /// The flow of an established socket, with its counters.
    pub flow: Option<FlowId>,
    /// Region, slot and core, when it has a slot.
    pub owner: Option<Owner>,
    /// The token of a listener or of an active open.
    pub token: Option<u64>,
}

impl SlowPath {
    /// Calls `see` for every socket, in no order.
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

    /// Numbers of half-open connections, active opens, flows, and connections in TIME-WAIT.
    #[must_use]
    pub fn sizes(&self) -> [usize; 4] {
        let flows = self.connections.len();
        [self.listeners.half_open_len(), self.openings.len(), flows, self.time_wait.len()]
    }
}
