//! The end of a flow's turn: the application is told, data is sent, acknowledgements and events go out, each once per batch.

use crate::setup::{Home, Miss, State, TIMERS_MAX, Work};
use flow::{FlowId, Flows, state};
use port::Port;

impl State {
    /// Does what the flow's turn has left to do.
    #[inline]
    pub(crate) fn finish<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        if w.f.rx.has(state::TELL) {
            self.tell(w);
        }
        if w.f.tx.snd_nxt == w.f.tx.snd_max {
            if w.f.cold.runs != 0 {
                self.resend(w, port);
            }
            self.transmit(w, port);
        } else {
            // The slow path counts the data in flight as lost. Carried out when all packets that wait have been handled.
            self.due.push_back(w.id.0, 0);
        }
        self.acknowledge(w, port);
        self.watch_window(w);
        if w.f.rx.has(state::ACK_NOW) {
            // The application consumed before it saw the request to ring: the window moves at once.
            self.acknowledge(w, port);
        }
        if w.f.rx.events != 0 {
            self.report(w);
        }
    }

    /// Gives a turn to each flow that the port or the pacer held back.
    pub(crate) fn retry_ready<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
    ) {
        // Each flow once: a flow that has more to send goes to the end of the list.
        let last = self.ready.back();
        for _ in 0..TIMERS_MAX {
            let Some(flow) = self.ready.pop_due(0) else { return };
            let done = self.with(flows, homes, FlowId(flow), |state, w| state.finish(w, port));
            if done == Err(Miss::Busy) {
                self.ready.push_back(flow, 0);
            }
            if self.is_port_full || last == Some(flow) {
                return;
            }
        }
    }
}
