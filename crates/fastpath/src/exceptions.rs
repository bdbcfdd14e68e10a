//! What the slow path must know. Events of flows are never lost: what the ring has no room for stays in the record.

use crate::core::Core;
use crate::counters::Cause;
use crate::setup::{Home, State, TIMERS_MAX, Work};
use flow::{Exception, FlowId, FlowMut, Flows, FrameReason, event, rare, state};
use port::Port;
use queue::Violation;

impl State {
    /// Hands a frame over. False when the ring has no room for it: a caller that must not lose the frame notes it elsewhere.
    pub(crate) fn except(&mut self, reason: FrameReason, frame: &[u8]) -> bool {
        let is_taken = self.exceptions.push_frame(reason, frame);
        if is_taken {
            self.counters.exceptions += 1;
        } else {
            self.counters.count(Cause::ExceptionLost);
        }
        is_taken
    }

    /// Hands over what the flow owes.
    pub(crate) fn report(&mut self, w: &mut Work<'_>) {
        if w.f.rx.events & event::SENDER != 0 {
            self.tell_sender(w);
        }
        if !self.push_events(w.id, &mut w.f) {
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

    /// The same for events of few flows.
    #[cold]
    fn push_rare(&mut self, flow: FlowId, owed: &mut u8) -> bool {
        while *owed != 0 {
            let bit = *owed & owed.wrapping_neg();
            let exception = match bit {
                rare::CHALLENGE => Exception::Challenge { flow },
                rare::LATE_DATA => Exception::LateData { flow },
                rare::PEER_RESET => Exception::PeerReset { flow },
                _ => Exception::Dropped { flow },
            };
            if self.exceptions.push(exception).is_err() {
                return false;
            }
            *owed &= !bit;
        }
        true
    }

    /// The flow owes one of `rare`.
    pub(crate) fn owe(f: &mut FlowMut<'_>, what: u8) {
        f.rx.events |= event::RARE;
        f.cold.rare_events |= what;
    }

    /// All that the flow owes from now on is this.
    pub(crate) fn owe_only(f: &mut FlowMut<'_>, what: u8) {
        (f.rx.events, f.cold.rare_events) = (event::RARE, what);
    }

    /// A RST of that flow was lost before it was looked at. The core acknowledges: a peer that knows of no connection resets it again
    /// (RFC 9293 section 3.10.7.1).
    #[cold]
    pub(crate) fn ask_peer(&mut self, flow: FlowId) {
        self.asked[flow.0 as usize / 64] |= 1 << (flow.0 % 64);
        self.is_asking = true;
    }

    /// Asks the peers of those flows.
    #[cold]
    pub(crate) fn ask_peers<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
    ) {
        self.is_asking = false;
        for word in 0..self.asked.len() {
            let mut bits = std::mem::take(&mut self.asked[word]);
            while bits != 0 {
                let flow = FlowId(64 * word as u32 + bits.trailing_zeros());
                bits &= bits - 1;
                let done = self.with(flows, homes, flow, |state, w| {
                    if w.f.rx.core == state.index && !w.f.rx.has(state::LEAVING) {
                        w.f.rx.set(state::ACK_NOW);
                        state.finish(w, port);
                    }
                });
                if done == Err(crate::classify::Miss::Busy) {
                    self.ask_peer(flow);
                }
            }
        }
    }
}

/// What the slow path is told for a bit of `event`; `None` for `RARE`.
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
    /// Events that had no room before.
    pub(crate) fn pay_debts(&mut self) {
        let Self { flows, state, .. } = self;
        for _ in 0..TIMERS_MAX {
            let Some(flow) = state.owed.pop_due(0) else { return };
            let id = FlowId(flow);
            let paid =
                flows.lock_briefly(id).is_some_and(|mut guard| state.push_events(id, &mut guard.parts()));
            if !paid {
                return state.owed.push_front(flow, 0);
            }
        }
    }
}
