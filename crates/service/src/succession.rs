//! What waits in an accept queue that closes while its listening socket lives on: it goes to another queue of that socket. On
//! Linux there is one for all who accept. A connection stays where it was set up, with what its peer has sent already, and
//! is relayed from there.

use crate::listeners::{Incoming, Origin, QueueKey};
use crate::region::Stage;
use crate::registry::Registry;
use control::{AcceptRecord, Left};

impl Registry {
    /// Gives a connection that nobody has accepted to one of `heirs`. False: there is none, or it cannot take it.
    pub fn bequeath(&mut self, (origin, record): Incoming, heirs: &[QueueKey]) -> bool {
        let Some(key) = self.choose_queue(heirs) else { return false };
        let Some(heir) = self.listeners.queues.get(&key).map(|queue| queue.application) else { return false };
        // Who found no room yet is let in over the backlog this once.
        self.establish(origin);
        self.set_stage(origin, Stage::Accepted);
        let AcceptRecord { region, slot, side, local, peer, time, .. } = record;
        let left = Left { region, slot, side, home: 0, sock: 0, local, peer };
        let Some((relay, slot)) = self.carry_unused(left, key.0, heir) else { return false };
        let record = AcceptRecord { region: key.0, slot, side: 1, local, peer, time, line: 0 };
        if let Some(queue) = self.listeners.queues.get_mut(&key) {
            queue.waiting.push_back((Origin::Relay(relay), record));
        }
        self.admit_queue(key);
        true
    }
}
