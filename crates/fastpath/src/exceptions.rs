//! What the slow path must know. Events of flows are never lost: what the ring has no room for stays in the record.

use crate::core::Core;
use crate::counters::Cause;
use crate::setup::{State, TIMERS_MAX, Work};
use flow::{Exception, FlowId, FrameReason, ReceiveLine, event, state};
use queue::Violation;

impl State {
    /// Hands a frame over, as far as the ring has room.
    pub(crate) fn except(&mut self, reason: FrameReason, frame: &[u8]) {
        if self.exceptions.push_frame(reason, frame) {
            self.counters.exceptions += 1;
        } else {
            self.counters.count(Cause::ExceptionLost);
        }
    }

    /// Hands over what the flow owes.
    pub(crate) fn report(&mut self, w: &mut Work<'_>) {
        if w.f.rx.events & event::SENDER != 0 {
            self.tell_sender(w);
        }
        if !self.push_events(w.id, w.f.rx) {
            self.owed.push_back(w.id.0, 0);
        }
    }

    /// The application broke the rules: nothing of the slot is read any more, and nobody else is concerned.
    #[cold]
    pub(crate) fn violation(&mut self, w: &mut Work<'_>, what: Violation) {
        if w.f.rx.has(state::POISONED) {
            return;
        }
        w.f.rx.set(state::POISONED);
        self.counters.violations += 1;
        let (region, slot) = (w.f.rx.region, w.f.rx.slot);
        if self.exceptions.push(Exception::Violation { region, slot, what }).is_err() {
            // No room to say why; that it must go is remembered in the record.
            w.f.rx.events |= event::APP_RESET;
        }
    }

    /// One exception for each event, in the order of their bits; false when some did not fit.
    #[inline]
    fn push_events(&mut self, flow: FlowId, rx: &mut ReceiveLine) -> bool {
        let mut owed = rx.events & !event::SENDER;
        while owed != 0 {
            let bit = owed & owed.wrapping_neg();
            if self.exceptions.push(exception_of(bit, flow)).is_err() {
                break;
            }
            owed &= !bit;
        }
        rx.events = rx.events & event::SENDER | owed;
        owed == 0
    }
}

/// What the slow path is told for a bit of `event`.
#[inline]
const fn exception_of(bit: u8, flow: FlowId) -> Exception {
    match bit {
        event::ACTIVE => Exception::Active { flow },
        event::FIN_RECEIVED => Exception::FinReceived { flow },
        event::FIN_ACKED => Exception::FinAcked { flow },
        event::APP_CLOSED => Exception::AppClosed { flow },
        event::APP_RESET => Exception::AppReset { flow },
        _ => Exception::Dropped { flow },
    }
}

impl Core {
    /// Events that had no room before.
    pub(crate) fn pay_debts(&mut self) {
        let Self { flows, state, .. } = self;
        for _ in 0..TIMERS_MAX {
            let Some(flow) = state.owed.pop_due(0) else { return };
            let id = FlowId(flow);
            let paid = flows.lock_briefly(id).is_some_and(|mut guard| {
                let f = guard.parts();
                state.push_events(id, f.rx)
            });
            if !paid {
                return state.owed.push_front(flow, 0);
            }
        }
    }
}
