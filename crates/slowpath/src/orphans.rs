//! Orphans: connections that their application has let go of. How many there may be, and how long they wait for their peer.

use crate::options::Linger2;
use crate::teardown::State;
use crate::timeouts::Timer;
use crate::{Count, SlowPath};
use base::Instant;
use flow::FlowId;

impl SlowPath {
    /// Makes a connection an orphan. False when there are too many already: as Linux with `tcp_max_orphans`, the caller resets
    /// this one.
    pub(crate) fn make_orphan(&mut self, flow: FlowId) -> bool {
        let Some(connection) = self.connections.get_mut(&flow) else { return true };
        if !std::mem::replace(&mut connection.is_orphan, true) && !connection.is_over {
            self.orphans += 1;
        }
        self.orphans <= self.config.orphans_max
    }

    /// Number of orphans.
    #[must_use]
    pub fn orphans(&self) -> usize {
        self.orphans
    }

    /// Limits the time of an orphan in FIN-WAIT-2: no application would read what the peer still sends.
    pub(crate) fn limit_fin_wait_2(&mut self, now: Instant, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(&flow) else { return };
        if connection.state != State::FinWait2 || !connection.is_orphan || connection.aux.is_some() {
            return;
        }
        let patience = match connection.options.linger2 {
            Some(Linger2::Reset) => {
                self.counters.add(Count::OrphanResets);
                return self.abort(now, flow);
            }
            Some(Linger2::Wait(time)) => time,
            None => self.config.fin_wait_2,
        };
        connection.aux = Some(self.wheel.set(now.plus(patience), Timer::Aux(flow)));
    }
}
