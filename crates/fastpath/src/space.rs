//! Applications that wait for space in their send buffer, or for bytes to be sent: told at the end of a flow's turn, when it is
//! known what was sent in it. Rare: an application that has space is not told.

use crate::setup::{State, Work};
use base::Instant;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use flow::{event, state};
use shm::{application_flags, half_flags};

impl State {
    /// Publishes how far the flow has sent and the bound of its send buffer; tells the application if it waits for either.
    #[cold]
    pub(crate) fn tell_sender(&mut self, w: &mut Work<'_>) {
        let events = w.f.rx.events & event::SENDER;
        w.f.rx.events &= !event::SENDER;
        let (own, peer) = (w.own, w.peer);
        let wanted = peer.flags.load(Relaxed) & half_flags::WANT_SPACE != 0;
        let sending = w.f.sending(&self.config, wanted);
        let (sent, word) = (sending.sent, sending.packed());
        let is_new = own.extra.load(Relaxed) != word;
        if is_new {
            // Release pairs with the Acquire with which the socket library loads this word to bound a send; it publishes nothing else.
            own.extra.store(word, Release);
            // Pairs with the fence in `Sender::want_space`: either this core sees WANT_SPACE, or the application sees the word.
            fence(SeqCst);
        }
        let wants = peer.flags.load(Relaxed) & half_flags::WANT_SPACE != 0;
        let asks = peer.extra.load(Relaxed) & application_flags::WATCH != 0;
        // The application has no space, and all its data is in flight: sending is limited by the send buffer.
        let delays = &mut w.f.cold.delays;
        delays.add_buffer(self.now);
        let is_starved = wants && w.f.tx.in_flight() > 0 && peer.tx_head.load(Relaxed) as u32 == sent;
        delays.buffer_since = if is_starved { self.now } else { Instant::ZERO };
        if wants && (events & event::SPACE != 0 || is_new && asks) {
            w.f.rx.set(state::TELL);
            self.tell(w);
        }
    }
}
