//! The end of a flow's turn: the application is told, data is sent, acknowledgements and events go out, each once per batch.

use crate::backlog::Turn;
use crate::setup::{Home, Miss, ROUND, State, TIMERS_MAX, Work};
use flow::{FlowId, Flows, state};
use port::Port;

impl State {
    /// Does what the flow's turn has left to do.
    #[inline]
    pub(crate) fn finish<P: Port + ?Sized>(&mut self, w: &mut Work<'_>, port: &mut P) {
        if w.f.rx.has(state::TELL) {
            self.tell(w);
        }
        let is_programmed = w.f.cold.window.is_programmed();
        if is_programmed {
            self.run_program(w);
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
        if is_programmed {
            self.end_programmed_turn(w);
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

    /// Gives turns to flows of the backlog until half of the round's bytes are sent: at least one, and each flow at most one.
    pub(crate) fn take_turns<P: Port + ?Sized>(
        &mut self,
        flows: &Flows,
        homes: &mut [Option<Home>],
        port: &mut P,
    ) {
        for _ in 0..self.backlog.len().min(TIMERS_MAX as u32) {
            let Some(Turn { flow, region }) = self.backlog.next() else { return };
            let before = self.counters.bytes_out;
            self.is_turn = true;
            let done = self.with(flows, homes, FlowId(flow), |state, w| state.finish(w, port));
            self.is_turn = false;
            if done == Err(Miss::Busy) {
                self.backlog.push(flow, region);
            }
            self.backlog.charge(region, (self.counters.bytes_out - before) as u32);
            if self.is_port_full || self.left < ROUND / 2 {
                return;
            }
        }
    }
}
