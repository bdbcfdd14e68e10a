//! All sockets that the slow path knows, for listings.

use crate::{Connection, Owner, SlowPath, State};
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

/// How far a list of all connections has come, for one that is made in pieces.
#[derive(Debug, Default)]
pub struct Listed {
    kind: Kind,
    /// The half-open connections, or active opens, that are still to be listed.
    ids: Vec<u64>,
    /// The last connection in TIME-WAIT that was listed.
    last: Option<u32>,
    /// The flows below this number have been listed.
    from: u32,
}

#[derive(Clone, Copy, Default, Debug)]
enum Kind {
    #[default]
    Start,
    HalfOpen,
    Opening,
    TimeWait,
    Flow,
}

impl SlowPath {
    /// Calls `see` for every socket, in no order.
    pub fn for_each_socket(&self, mut see: impl FnMut(&Socket)) {
        for (at, listener) in self.listeners.iter() {
            let token = Some(listener.token);
            see(&Socket { state: State::Listen, local: *at, remote: None, flow: None, owner: None, token });
        }
        let mut listed = Listed::default();
        while !self.list(&mut listed, usize::MAX, &mut see) {}
    }

    /// Lists about `most` connections more. True: all have been listed. Between two calls connections may come and go: each of those is
    /// listed or not; all others are.
    pub fn list(&self, listed: &mut Listed, most: usize, mut see: impl FnMut(&Socket)) -> bool {
        let bare = |state, tuple: &FourTuple, owner, token| {
            let (local, remote) = (tuple.src, Some(tuple.dst));
            Socket { state, local, remote, flow: None, owner, token }
        };
        let mut left = most;
        while left > 0 {
            match listed.kind {
                Kind::Start => {
                    listed.ids = self.listeners.half_open_ids().collect();
                    listed.kind = Kind::HalfOpen;
                }
                Kind::HalfOpen => {
                    let Some(id) = listed.ids.pop() else {
                        listed.ids = self.openings.keys().copied().collect();
                        listed.kind = Kind::Opening;
                        continue;
                    };
                    let half_open = self.listeners.half_open(id);
                    half_open.into_iter().for_each(|h| see(&bare(State::SynReceived, &h.tuple, None, None)));
                }
                Kind::Opening => {
                    let Some(id) = listed.ids.pop() else {
                        listed.kind = Kind::TimeWait;
                        continue;
                    };
                    if let Some(opening) = self.openings.get(&id) {
                        let is_crossed = opening.crossed.is_some();
                        let state = if is_crossed { State::SynReceived } else { State::SynSent };
                        see(&bare(state, &opening.tuple, Some(opening.owner), Some(opening.token)));
                    }
                }
                Kind::TimeWait => match self.time_wait.after(listed.last).next() {
                    Some((place, tuple)) => {
                        listed.last = Some(place);
                        tuple.into_iter().for_each(|tuple| see(&bare(State::TimeWait, tuple, None, None)));
                    }
                    None => listed.kind = Kind::Flow,
                },
                Kind::Flow => {
                    let Some((flow, connection)) = self.connections.from(listed.from).next() else {
                        return true;
                    };
                    listed.from = flow.0 + 1;
                    if !connection.is_over {
                        see(&self.socket_of(flow, connection));
                    }
                }
            }
            left -= 1;
        }
        false
    }

    fn socket_of(&self, flow: FlowId, connection: &Connection) -> Socket {
        let (flags, closed_first) = self.keeper.flows().lock_briefly(flow).map_or((0, false), |mut guard| {
            let parts = guard.parts();
            (parts.rx.flags, parts.cold.closed_first)
        });
        Socket {
            state: connection.state.with_own_fin(flags, closed_first),
            local: connection.tuple.src,
            remote: Some(connection.tuple.dst),
            flow: Some(flow),
            owner: Some(connection.owner),
            token: None,
        }
    }

    /// Numbers of half-open connections, active opens, flows, and connections in TIME-WAIT.
    #[must_use]
    pub fn sizes(&self) -> [usize; 4] {
        let flows = self.connections.len();
        [self.listeners.half_open_len(), self.openings.len(), flows, self.time_wait.len()]
    }
}
