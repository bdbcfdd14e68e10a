//! What a blocking call waits for: exactly what it can act on. `poll` reports more: a notice in the error queue, for one, ends no call. A
//! call that waited for it would find nothing to do, and wait again without a sleep.

use crate::low_water::SoFar;
use crate::stream::ready;
use crate::{Endpoint, state};
use std::sync::atomic::Ordering;

/// A call that waits for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocked {
    /// `connect`: for the end of the handshake.
    Connect,
    /// A receive that has come so far: for more.
    Receive(SoFar),
    /// A send: for space.
    Send,
}

impl Endpoint {
    /// True when the call, made once more, does something or ends.
    #[inline]
    pub fn can_go_on(&self, call: Blocked) -> bool {
        match call {
            Blocked::Connect => !self.is_connecting(),
            Blocked::Receive(so_far) => self.has_more(so_far),
            Blocked::Send => self.can_send(),
        }
    }

    /// True when a blocking receive can go on, or waits in vain. With bytes in hand it does not wait past urgent data.
    pub fn has_more(&self, so_far: SoFar) -> bool {
        let now = self.readiness_from(1);
        let ends = ready::RDHUP | if so_far.done > 0 { ready::PRI } else { 0 };
        let more = if so_far.peeked > 0 { self.unread() > so_far.peeked } else { now & ready::IN != 0 };
        more || now & ends != 0 || self.is_over() || self.block().error.load(Ordering::Relaxed) != 0
    }

    /// True when a blocking send can go on, or waits in vain.
    fn can_send(&self) -> bool {
        // First, for it notes an end of the connection.
        let now = self.stream_readiness();
        now & ready::OUT != 0 || self.state() & state::INTO_THE_VOID != 0
    }
}

#[cfg(test)]
#[path = "blocked_tests.rs"]
pub(crate) mod tests;
