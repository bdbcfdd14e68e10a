//! Events and frames for the slow path. Events of flows are never lost: those that do not fit in the ring stay in the record.

use crate::core::Core;
use crate::counters::Cause;
use crate::setup::{Home, Miss, State, TIMERS_MAX, Work};
use flow::{Exception, FlowId, FlowMut, Flows, FrameReason, event, rare, state};
use port::Port;
use queue::Violation;

impl State {
    /// Hands a frame to the slow path. False when the ring has no room: a caller that must not lose the frame notes it elsewhere.
    #[must_use]
    pub(crate) fn except(&mut self, reason: FrameReason, frame: &[u8]) -> bool {
        let is_taken = self.exceptions.push_frame(reason, frame);
        if is_taken {
            self.counters.exceptions += 1;
        } else {
            self.counters.count(Cause::ExceptionLost);
        }
        is_taken
    }

    /// Pushes the events that the flow owes the slow path, and tells its application of events that concern it.
    pub(crate) fn report(&mut self, w: &mut Work<'_>) {
        if w.f.rx.events & event::SENDER != 0 {
            self.tell_sender(w);
        }
        if !self.push_events(w.id, &mut w.f) {
            self.lists.owed.push_back(w.id.0, 0);
        }
    }

    /// The application broke the rules: nothing of this slot is read any more; other slots and applications are not affected.
    #[cold]
    pub(crate) fn violation(&mut self, w: &mut Work<'_>, what: Violation) {
        if w.f.rx.has(state::POISONED) {
            return;
        }
        w.f.rx.set(state::POISONED);
        self.counters.violations += 1;
        let (region, slot) = (w.f.rx.region, w.f.rx.slot);
        if self.exceptions.push(Exception::Violation { region, slot, what }).is_err() {
            // The ring has no room for the reason; the event makes the slow path reset the flow all the same.
            w.f.rx.events |= event::APP_RESET;
        }
    }

    /// Pushes one exception for each event, in the order of their bits; false when some did not fit.
    #[inline]
    fn push_events(&mut self, flow: FlowId, f: &mut FlowMut<'_>) -> bool {
        let mut owed = f.rx.events & !event::SENDER;
        while owed != 0 {
            let bit = owed & owed.wrapping_neg();
            let is_told = match exception_of(bit, flow) {
                Some(exception) => self.exceptions.push(exception).is_ok(),
                None => self.push_rare(flow, &mut f.cold.rare_events),
            };
            if !is_told {
                break;
            }
            owed &= !bit;
        }
        f.rx.events = f.rx.events & event::SENDER | owed;
        owed == 0
    }

    /// Pushes one exception for each bit of `rare_events`; false when some did not fit.
    #[cold]
    fn push_rare(&mut self, flow: FlowId, owed: &mut u8) -> bool {
        while *owed != 0 {
            let bit = *owed & owed.wrapping_neg();
            let exception = match bit {
                rare::CHALLENGE => Exception::Challenge { flow },
                rare::LATE_DATA => Exception::LateData { flow },
                rare::PEER_RESET => Exception::PeerReset { flow },
                rare::REPORT => Exception::Report { flow },
                _ => Exception::Dropped { flow },
            };
            if self.exceptions.push(exception).is_err() {
                return false;
            }
            *owed &= !bit;
        }
        true
    }

    /// Adds the event `what`, a bit of `rare`, to those that the flow owes the slow path.
    pub(crate) fn owe(f: &mut FlowMut<'_>, what: u8) {
        f.rx.events |= event::RARE;
        f.cold.rare_events |= what;
    }

    /// Replaces all events that the flow owes by `what`, a bit of `rare`.
    pub(crate) fn owe_only(f: &mut FlowMut<'_>, what: u8) {
        (f.rx.events, f.cold.rare_events) = (event::RARE, what);
    }

    /// A RST of this flow was lost before the core looked at it. The core sends an acknowledgement: a peer that has no such connection
    /// answers with another RST (RFC 9293 section 3.10.7.1).
    #[cold]
    pub(crate) fn ask_peer(&mut self, flow: FlowId) {
        self.lists.ask(flow);
    }

    /// Sends an acknowledgement on each flow marked by `ask_peer`.
    #[cold]
    pub(crate) fn ask_peers<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
    ) {
        self.lists.is_asking = false;
        for word in 0..self.lists.asked.len() {
            let mut bits = std::mem::take(&mut self.lists.asked[word]);
            while bits != 0 {
                let flow = FlowId(64 * word as u32 + bits.trailing_zeros());
                bits &= bits - 1;
                let done = self.with(flows, homes, flow, |state, w| {
                    if !w.f.rx.has(state::LEAVING) {
                        w.f.rx.set(state::ACK_NOW);
                        state.finish(w, port);
                    }
                });
                if done == Err(Miss::Busy) {
                    self.ask_peer(flow);
                }
            }
        }
    }
}

/// The exception for a bit of `event`; `None` for `RARE`.
#[inline]
const fn exception_of(bit: u8, flow: FlowId) -> Option<Exception> {
    Some(match bit {
        event::ACTIVE => Exception::Active { flow },
        event::FIN_RECEIVED => Exception::FinReceived { flow },
        event::FIN_ACKED => Exception::FinAcked { flow },
        event::APP_CLOSED => Exception::AppClosed { flow },
        event::APP_RESET => Exception::AppReset { flow },
        _ => return None,
    })
}

impl Core {
    /// Pushes the events that did not fit in the exception ring before.
    pub(crate) fn pay_debts(&mut self) {
        let Self { flows, state, .. } = self;
        for _ in 0..TIMERS_MAX {
            let Some(flow) = state.lists.owed.pop_due(0) else { return };
            let id = FlowId(flow);
            let paid =
                flows.lock_briefly(id).is_some_and(|mut guard| state.push_events(id, &mut guard.parts()));
            if !paid {
                return state.lists.owed.push_front(flow, 0);
            }
        }
    }
}
