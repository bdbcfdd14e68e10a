//! Urgent data (RFC 9293 section 3.8.5): receiving and sending the urgent pointer. Positions are stored in a table of the application's
//! region (`queue::urgent`); the socket libraries of both sides interpret them.
//!
//! "The urgent pointer MUST point to the sequence number of the octet following the urgent data" (MUST-62); urgent data "of any length"
//! (MUST-31) is one pointer that moves on.

use crate::segment::Out;
use crate::setup::{NO_FLOW, State, Work};
use core::sync::atomic::Ordering::Relaxed;
use flow::state;
use port::Port;
use queue::urgent;
use shm::{Side, application_flags};
use wire::{TcpFlags, TcpHeader};

impl State {
    /// An acceptable segment says where its sender's urgent data ends: "a TCP receiver MUST process the RST and URG fields of all
    /// incoming segments, even when the receive window is zero" (MUST-66).
    #[cold]
    pub(crate) fn note_urgent(&mut self, w: &mut Work<'_>, header: &TcpHeader) {
        let rx = &mut *w.f.rx;
        // Points to the urgent byte itself, as Linux; a pointer of 0 means the segment's first byte.
        let last = header.seq.plus(u32::from(header.urgent.max(1)) - 1);
        if rx.has(state::FIN_RECEIVED) || last.is_before(rx.rcv_nxt) {
            // The urgent byte was delivered already, as ordinary data.
            return;
        }
        let position = rx.rx_head + u64::from(last.since(rx.rcv_nxt)) + 1;
        let region = w.region.region();
        if urgent::up(region, Side::Zero, rx.slot).is_none_or(|before| before < position) {
            urgent::announce(region, Side::Zero, rx.slot, position);
            // "... inform the application layer asynchronously whenever it receives an urgent pointer" (MUST-32).
            rx.set(state::TELL);
        }
    }

    /// Sets `urgent_of` to this flow if its application has unacknowledged urgent data; `emit` then adds the pointer.
    #[cold]
    pub(crate) fn look_for_urgent(&mut self, w: &Work<'_>, advice: u64) {
        if advice & application_flags::URGENT != 0 {
            self.urgent_of = if pending(w).is_some() { w.id.0 } else { NO_FLOW };
        }
    }

    /// Sends `out`, with the urgent pointer if anything after its first byte is urgent.
    #[cold]
    #[must_use]
    pub(crate) fn emit_urgent<P: Port + ?Sized>(
        &mut self,
        w: &mut Work<'_>,
        port: &mut P,
        out: &Out,
    ) -> bool {
        self.urgent_of = NO_FLOW;
        self.urgent_pointer = pointer(w, out);
        let urg = if self.urgent_pointer > 0 { TcpFlags::URG } else { TcpFlags::NONE };
        let mut flags = out.flags.with(urg);
        if !is_end(w, out) {
            // The segment was cut only because of the pointer: it does not end what was written.
            flags = flags.without(TcpFlags::PSH);
        }
        let is_sent = self.emit(w, port, &Out { flags, ..*out });
        self.urgent_pointer = 0;
        if pending(w).is_some() {
            self.urgent_of = w.id.0;
        }
        is_sent
    }
}

/// Stream position after the last urgent byte of the application, if that byte is not acknowledged.
fn pending(w: &Work<'_>) -> Option<u64> {
    let up = urgent::up(w.region.region(), Side::One, w.f.rx.slot)?;
    (up > w.f.tx.tx_una).then_some(up)
}

/// True when the written data ends with the segment.
fn is_end(w: &Work<'_>, out: &Out) -> bool {
    w.peer.tx_head.load(Relaxed) <= out.position + u64::from(out.len)
}

/// The urgent pointer of a segment; 0: nothing after its first byte is urgent.
///
/// As Linux: if the urgent byte is too far for the field, the pointer is 65535 in segments where that lies beyond all data sent.
fn pointer(w: &Work<'_>, out: &Out) -> u16 {
    let tx = &*w.f.tx;
    // The sequence number of a probe is one before `snd_una`.
    let before = u64::from(out.seq.is_before(tx.snd_una));
    let first = if before > 0 { 0 } else { u64::from(out.seq.since(tx.snd_una)) };
    let ahead = pending(w).map_or(0, |up| (up - tx.tx_una + before).saturating_sub(first));
    let is_near = first + u64::from(u16::MAX) > u64::from(tx.in_flight());
    u16::try_from(ahead).unwrap_or(if is_near { u16::MAX } else { 0 })
}
