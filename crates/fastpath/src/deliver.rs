//! Received payload: copied into the application's ring.

use crate::counters::Cause;
use crate::out_of_order::note_duplicate;
use crate::payload::write;
use crate::setup::{State, Work};
use base::SeqNumber;
use flow::state;
use port::Gso;
use queue::stream;

impl State {
    /// Takes in the payload of an acceptable segment that begins at `seq`; `merged` describes a super-frame, if the port does. False
    /// when the end of the payload was not taken.
    #[must_use]
    pub(crate) fn take_data(
        &mut self,
        w: &mut Work<'_>,
        seq: SeqNumber,
        bytes: &[u8],
        merged: &Option<Gso>,
    ) -> bool {
        if w.f.rx.has(state::FIN_RECEIVED) {
            // Nothing follows a FIN.
            return false;
        }
        if bytes.len() > usize::from(w.f.cold.rcv_mss) {
            // If the port does not tell the segment size of a super-frame, our own is the best estimate.
            let most = merged.as_ref().map_or(w.f.tx.mss, |merged| merged.segment_size);
            w.f.cold.rcv_mss = (bytes.len().min(usize::from(most)) as u16).max(w.f.cold.rcv_mss);
        }
        let is_repeated = seq.is_before(w.f.rx.rcv_nxt) && !bytes.is_empty();
        if is_repeated {
            let right = w.f.rx.rcv_nxt;
            note_duplicate(&mut w.f, seq, right);
            w.f.rx.set(state::ACK_NOW);
        }
        let (seq, bytes) = trim_front(seq, bytes, w.f.rx.rcv_nxt);
        let room = w.f.rx.rcv_edge.since(seq) as usize;
        let kept = &bytes[..bytes.len().min(room)];
        if kept.len() < bytes.len() {
            // More than was offered, such as a window probe's byte: "should ... be trimmed off" and acknowledged.
            w.f.rx.set(state::ACK_NOW);
        }
        if kept.is_empty() {
            return bytes.is_empty();
        }
        if w.f.rx.has_ahead > 0 && !is_repeated {
            self.note_held(&mut w.f, seq, seq.plus(kept.len() as u32));
        }
        let taken =
            if seq == w.f.rx.rcv_nxt { self.take_in_order(w, kept) } else { self.take_ahead(w, seq, kept) };
        taken == bytes.len()
    }

    /// Takes payload that begins at `rcv_nxt`: the common case. Returns how many bytes were taken.
    #[inline]
    fn take_in_order(&mut self, w: &mut Work<'_>, bytes: &[u8]) -> usize {
        let space = self.space_for(w, bytes.len());
        let n = bytes.len().min(space);
        if n < bytes.len() {
            self.counters.count(Cause::NoMemory);
            w.f.rx.set(state::ACK_NOW);
        }
        if n == 0 {
            return 0;
        }
        let Some(ring) = w.f.rx.ring() else { return 0 };
        write(w, ring, w.f.rx.rx_head, &bytes[..n]);
        let mut total = n as u32;
        w.f.rx.rcv_nxt = w.f.rx.rcv_nxt.plus(total);
        if w.f.rx.has_ahead > 0 {
            total += self.close_gap(w);
        }
        w.f.rx.rx_head += u64::from(total);
        stream::note_produced(w.own, w.f.rx.rx_head);
        w.f.rx.set(state::TELL);
        self.counters.bytes_in += u64::from(total);
        n
    }
}

/// Cuts off the bytes before `from`.
#[inline]
fn trim_front(seq: SeqNumber, bytes: &[u8], from: SeqNumber) -> (SeqNumber, &[u8]) {
    if !seq.is_before(from) {
        return (seq, bytes);
    }
    let old = (from.since(seq) as usize).min(bytes.len());
    (seq.plus(old as u32), &bytes[old..])
}
