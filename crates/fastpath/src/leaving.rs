//! How a flow leaves its core: its rings are freed, it is taken out of every list, and the slow path is told that it is gone.

use crate::lend::give_back;
use crate::setup::{State, Work};
use core::sync::atomic::Ordering::Acquire;
use flow::{FlowId, Flows, rare, state};
use shm::half_flags;

impl State {
    /// Lets go of the flow, unless that has happened already and the record serves another flow.
    pub(crate) fn drop_flow(&mut self, w: &mut Work<'_>) {
        if w.f.rx.has(state::LEAVING) {
            self.leave(w);
        }
    }

    /// Frees the rings of a removed flow and reports `DROPPED`. Waits while its application has unread data: that ring must stay.
    pub(crate) fn leave(&mut self, w: &mut Work<'_>) {
        let is_released =
            w.f.rx.has(state::POISONED) || w.peer.flags.load(Acquire) & half_flags::RELEASED != 0;
        if !is_released && self.refresh(w) && w.f.rx.unread() > 0 {
            self.want_space(w);
            if w.f.rx.unread() > 0 {
                return;
            }
        }
        self.shrink(w);
        let sender = w.f.rx.sender(w.f.cold.rx_old);
        for ring in [sender.ring, sender.old].into_iter().flatten() {
            give_back(w, ring);
        }
        (w.f.rx.rx_ring, w.f.cold.rx_old) = (0, 0);
        self.lists.take_out(w.id);
        self.records.take_back(w.f.cold);
        self.gaps.clear(&mut w.f.cold.ahead);
        w.f.rx.clear(state::LIVE);
        Self::owe_only(&mut w.f, rare::DROPPED);
        self.report(w);
    }

    /// Reports `DROPPED` for a flow without a region, so that its record becomes free again.
    #[cold]
    pub(crate) fn forget(&mut self, flows: &Flows, id: FlowId) {
        let Some(mut guard) = flows.lock_briefly(id) else { return };
        let mut f = guard.parts();
        if !f.rx.has(state::LIVE | state::LEAVING) {
            return;
        }
        f.rx.clear(state::LIVE);
        Self::owe_only(&mut f, rare::DROPPED);
        self.records.take_back(f.cold);
        self.gaps.clear(&mut f.cold.ahead);
        drop(guard);
        self.lists.take_out(id);
        self.lists.owed.push_front(id.0, 0);
    }
}
