//! The two cache lines of a flow that every packet touches. They contain IPv4 addresses, too.
//!
//! ```text
//!   line 0   0  lock u32 | 4 sequence u32 | 8  ReceiveLine, 56 bytes
//!   line 1   64 SendLine, 64 bytes
//!
//!   receive     rcv_nxt                 rcv_edge               send     snd_una      snd_nxt  snd_max   snd_una + snd_wnd
//!   ---acked------|------- window ---------|-----              ---acked----|--in flight--|--sent--|--------|
//!                 ^ rx_head                                                ^ tx_una
//! ```
//! Sequence numbers count modulo 2^32; stream positions (`rx_head`, `tx_una`) are the same bytes counted by 64 bits from 0.

use base::SeqNumber;
use core::sync::atomic::Ordering::Release;
use queue::Ring;
use queue::stream::Sender;
use shm::Half;

/// Fields that receiving needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveLine {
    /// State of the flow: bits of `state`.
    pub flags: u32,
    /// Next sequence number expected from the peer.
    pub rcv_nxt: SeqNumber,
    /// The right edge of the window advertised: it never moves left (RFC 9293 section 3.8.6).
    pub rcv_edge: SeqNumber,
    /// `rcv_nxt` as last acknowledged.
    pub last_ack: SeqNumber,
    /// Stream position of `rcv_nxt`.
    pub rx_head: u64,
    /// The packed receive ring, 0 when none is held; bit 63: which of the two descriptors it is.
    pub rx_ring: u64,
    /// Low half of the position up to which the application has consumed.
    pub rx_tail: u32,
    /// Low half of the first position that lies in the ring (or of the tail, when that is further).
    pub rx_start: u32,
    /// The owner's region: index into the tables of cores and service.
    pub region: u16,
    /// The core that serves this flow; with [`IN_TRANSIT`](crate::IN_TRANSIT), the core that will.
    pub core: u8,
    /// Bits of `event` not yet handed to the slow path.
    pub events: u8,
    /// The owner's slot in its region.
    pub slot: u32,
    /// The peer's latest timestamp in order (RFC 7323 `TS.Recent`).
    pub ts_recent: u32,
    /// log2 of the receive window's size now.
    pub window_log2: u8,
    /// 1 while data ahead of a gap is stored, which `Cold::ahead` describes; else 0.
    pub has_ahead: u8,
    /// Window shift of our advertised windows.
    pub rcv_shift: u8,
    /// Number of consecutive duplicate acknowledgements.
    pub dup_acks: u8,
}

/// Fields that sending needs.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct SendLine {
    /// The oldest sequence number not acknowledged.
    pub snd_una: SeqNumber,
    /// Equal to `snd_max`; or, after `rewind`, behind it: the range between counts as lost, and the core has not acted on that yet.
    pub snd_nxt: SeqNumber,
    /// The peer's window in bytes, from `snd_una`.
    pub snd_wnd: u32,
    /// The congestion window in bytes.
    pub cwnd: u32,
    /// Stream position of `snd_una`.
    pub tx_una: u64,
    /// Sequence number of the segment that last updated the window (RFC 9293 `SND.WL1`).
    pub snd_wl1: SeqNumber,
    /// One after the highest sequence number ever sent.
    pub snd_max: SeqNumber,
    /// IPv4 address of the peer.
    pub peer_v4: [u8; 4],
    /// IPv4 address of our end.
    pub local_v4: [u8; 4],
    /// TCP port of the peer.
    pub peer_port: u16,
    /// TCP port of our end.
    pub local_port: u16,
    /// Ethernet address of the next hop.
    pub peer_mac: [u8; 6],
    /// Payload bytes of a full segment: options are already subtracted.
    pub mss: u16,
    /// Window shift of the peer's advertised windows.
    pub snd_shift: u8,
    /// log2, rounded down, of the largest window ever seen from the peer; for the avoidance of silly windows.
    pub window_log2_max: u8,
    /// Differentiated services code point of our segments in the lower six bits; above, a bit of [`class`] or none.
    pub traffic: u8,
    /// Routers may fragment our segments over IPv4.
    pub may_fragment: bool,
    /// `snd_max` when recovery began (RFC 6582).
    pub recover: SeqNumber,
    /// End of the last small segment sent (Minshall's form of Nagle's rule).
    pub small_end: SeqNumber,
}

/// What a flow may ask for beside flows that wait for their turn to send, and beside packets that wait in the port. Without a bit of these its
/// behaviour decides.
pub mod class {
    /// It goes before others.
    pub const EXPRESS: u8 = 0x40;
    /// It goes after others.
    pub const BULK: u8 = 0x80;
    /// The bits of the differentiated services code point.
    pub const DSCP: u8 = 0x3F;
}

const _: () = {
    assert!(size_of::<ReceiveLine>() == 56 && align_of::<ReceiveLine>() == 8);
    assert!(size_of::<SendLine>() == 64);
};

const INDEX_BIT: u64 = 1 << 63;

/// What a RST means in a synchronised state (RFC 5961 section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetVerdict {
    /// "If the RST bit is set and the sequence number exactly matches the next expected sequence number (RCV.NXT), then TCP endpoints
    /// MUST reset the connection".
    Exact,
    /// "does not exactly match ..., yet is within the current receive window": to be answered with a challenge ACK.
    Possible,
    /// Outside the window: to be dropped.
    Stray,
}

impl ReceiveLine {
    /// True when all of `bits` are set.
    #[must_use]
    #[inline]
    pub const fn has(&self, bits: u32) -> bool {
        self.flags & bits == bits
    }

    /// Sets `bits`.
    #[inline]
    pub const fn set(&mut self, bits: u32) {
        self.flags |= bits;
    }

    /// Clears `bits`.
    #[inline]
    pub const fn clear(&mut self, bits: u32) {
        self.flags &= !bits;
    }

    /// What a RST with sequence number `seq` means.
    #[must_use]
    pub const fn judge_reset(&self, seq: SeqNumber) -> ResetVerdict {
        if seq.since(self.rcv_nxt) == 0 {
            ResetVerdict::Exact
        } else if seq.is_within(self.rcv_nxt, self.promised()) {
            ResetVerdict::Possible
        } else {
            ResetVerdict::Stray
        }
    }

    /// True when our FIN is in flight.
    #[must_use]
    #[inline]
    pub const fn is_fin_out(&self) -> bool {
        self.flags & (crate::state::FIN_SENT | crate::state::FIN_ACKED) == crate::state::FIN_SENT
    }

    /// Bytes of window that the peer may still use.
    #[must_use]
    #[inline]
    pub const fn promised(&self) -> u32 {
        self.rcv_edge.since(self.rcv_nxt)
    }

    /// Position up to which the application is known to have consumed.
    #[must_use]
    #[inline]
    pub const fn consumed(&self) -> u64 {
        self.rx_head - (self.rx_head as u32).wrapping_sub(self.rx_tail) as u64
    }

    /// Bytes delivered and not yet consumed.
    #[must_use]
    #[inline]
    pub const fn unread(&self) -> u32 {
        (self.rx_head as u32).wrapping_sub(self.rx_tail)
    }

    /// The ring that takes the next byte; `None` when none is held.
    #[must_use]
    #[inline]
    pub fn ring(&self) -> Option<Ring> {
        unpack(self.rx_ring)
    }

    /// Bytes that fit in the ring now: `Sender::space`.
    #[must_use]
    #[inline]
    pub fn space(&self) -> usize {
        let used = self.unread().min((self.rx_head as u32).wrapping_sub(self.rx_start));
        self.ring().map_or(0, |ring| ring.size().saturating_sub(u64::from(used)) as usize)
    }

    /// Notes that the application has consumed up to `tail`: `Sender::acknowledge`, when no earlier ring is being read. False, and
    /// nothing changed, when `tail` went backwards or lies past the head.
    #[must_use]
    #[inline]
    pub const fn consume(&mut self, tail: u64) -> bool {
        let is_good = self.consumed() <= tail && tail <= self.rx_head;
        if is_good {
            self.rx_tail = tail as u32;
            let head = self.rx_head as u32;
            if head.wrapping_sub(self.rx_start) > head.wrapping_sub(self.rx_tail) {
                // Every byte before it is consumed: see `sender`.
                self.rx_start = self.rx_tail;
            }
        }
        is_good
    }

    /// True when everything is consumed and no ring is held.
    #[must_use]
    #[inline]
    pub const fn is_bare(&self) -> bool {
        self.rx_ring & !INDEX_BIT == 0 && self.unread() == 0 && self.rx_start == self.rx_tail
    }

    /// Lends a ring to a stream that [is bare](Self::is_bare): `Sender::lend`. No consumer reads the descriptor at this time.
    #[inline]
    pub fn lend_bare(&mut self, own: &Half, ring: Ring) {
        own.ring[usize::from(self.rx_ring & INDEX_BIT != 0)].store(ring.packed(), Release);
        self.rx_ring = self.rx_ring & INDEX_BIT | ring.packed();
    }

    /// Takes the ring back if everything is consumed: `Sender::give_back`, when no earlier ring is being read.
    #[must_use]
    #[inline]
    pub fn give_back(&mut self) -> Option<Ring> {
        let ring = if self.unread() == 0 { self.ring() } else { None };
        if ring.is_some() {
            self.rx_ring &= INDEX_BIT;
            self.rx_start = self.rx_tail;
        }
        ring
    }

    /// The stream to the application, in the form that `queue` uses. `old` is `Cold::rx_old`.
    ///
    /// The start is kept in 32 bits, so a start behind the consumed position is replaced by that position: every byte
    /// before it is consumed, and the descriptor in shared memory keeps its true start.
    #[must_use]
    #[inline]
    pub fn sender(&self, old: u64) -> Sender {
        let head = self.rx_head;
        let start = head - u64::from((head as u32).wrapping_sub(self.rx_start));
        Sender {
            head,
            tail: self.consumed(),
            ring: unpack(self.rx_ring),
            start,
            old: unpack(old),
            index: u8::from(self.rx_ring & INDEX_BIT != 0),
        }
    }

    /// Stores the stream back and returns the new `Cold::rx_old`.
    #[must_use]
    #[inline]
    pub fn store_sender(&mut self, s: &Sender) -> u64 {
        self.rx_head = s.head;
        self.rx_tail = s.tail as u32;
        self.rx_start = s.start.max(s.tail) as u32;
        self.rx_ring = s.ring.map_or(0, Ring::packed) | if s.index == 0 { 0 } else { INDEX_BIT };
        s.old.map_or(0, Ring::packed)
    }
}

/// Unpacks a ring that this process has packed itself.
#[inline]
fn unpack(word: u64) -> Option<Ring> {
    match word & !INDEX_BIT {
        0 => None,
        packed => Some(Ring::unpacked(packed)),
    }
}

impl SendLine {
    /// Number of sequence numbers in flight, FIN included.
    #[must_use]
    #[inline]
    pub const fn in_flight(&self) -> u32 {
        self.snd_max.since(self.snd_una)
    }

    /// For the slow path: makes everything unacknowledged count as lost, except data that the peer has reported. For a timeout the slow
    /// path sets `Recovery::expired_at` as well. Then it pushes `Command::Transmit`.
    pub const fn rewind(&mut self) {
        self.snd_nxt = self.snd_una;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use shm::{Kind, Params, Region};

    #[test]
    fn a_stream_survives_being_stored_at_any_position() {
        for head in [0u64, 5, (1 << 32) - 3, 1 << 32, (7 << 32) + 12] {
            for unread in [0u64, 3, 4 << 20] {
                let tail = head.saturating_sub(unread);
                let start = tail.saturating_sub(1 << 33);
                let ring = Some(Ring::new(8192, 13));
                let s = Sender { head, tail, ring, start, old: None, index: 0 };
                let mut line = ReceiveLine::default();
                let old = line.store_sender(&s);
                let back = line.sender(old);
                assert_eq!((back.head, back.tail, back.ring, back.index), (head, tail, ring, 0));
                assert_eq!((back.start, back.space()), (start.max(tail), s.space()));
                assert_eq!(line.unread() as u64, head - tail);
            }
        }
    }

    #[test]
    fn a_line_counts_as_the_stream_it_stands_for() {
        for head in [5000u64, (1 << 32) - 3, (1 << 32) + 9, (7 << 32) + 4000] {
            for (unread, begun) in [(0u64, 0u64), (3, 90), (90, 3), (4096, 4096), (4000, 1 << 20)] {
                let start = head.saturating_sub(begun);
                let ring = Some(Ring::new(8192, 12));
                let s = Sender { head, tail: head - unread, ring, start, old: None, index: 0 };
                let mut line = ReceiveLine::default();
                assert_eq!(line.store_sender(&s), 0);
                assert_eq!((line.ring(), line.space()), (ring, s.space()));
                for tail in [head - unread - 1, head - unread, head - unread / 2, head, head + 1] {
                    let (mut line, mut s) = (line, s);
                    assert_eq!(line.consume(tail), s.acknowledge(tail).is_ok());
                    let mut expected = line;
                    assert_eq!(expected.store_sender(&s), 0);
                    assert_eq!((line.rx_tail, line.space()), (expected.rx_tail, s.space()));
                    assert_eq!(line.rx_start, expected.rx_start);
                }
            }
        }
    }

    #[test]
    fn a_ring_comes_and_goes_as_the_stream_says() {
        let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 1 << 20 };
        let region = Region::create(params).expect("memfds can be made").0;
        let own = |slot| &region.slot(slot).expect("slots below 64 exist").half[0];
        let said = |slot| [0, 1].map(|i| (own(slot).ring[i].load(Relaxed), own(slot).start[i].load(Relaxed)));
        let (mut line, mut sender) =
            (ReceiveLine { rx_ring: INDEX_BIT, ..ReceiveLine::default() }, Sender::default());
        for (log2, len) in [(12, 64), (12, 4096), (13, 5000), (12, 1)] {
            let ring = Ring::new(8192, log2);
            assert!(line.is_bare());
            line.lend_bare(own(1), ring);
            assert_eq!(sender.lend(own(2), ring), None);
            assert_eq!((said(1), line.sender(0)), (said(2), sender));
            assert_eq!((line.is_bare(), line.space()), (false, sender.space()));
            line.rx_head += len;
            sender.head += len;
            assert_eq!((line.give_back(), sender.give_back()), (None, None), "it is being read");
            assert!(line.consume(sender.head) && sender.acknowledge(sender.head).is_ok());
            assert_eq!((line.give_back(), sender.give_back()), (Some(ring), Some(ring)));
            // The start is brought up to the tail; the descriptors keep theirs.
            sender = line.sender(0);
        }
    }

    #[test]
    fn an_earlier_ring_keeps_its_border() {
        let (new, old) = (Ring::new(1 << 20, 16), Ring::new(0, 12));
        let s = Sender { head: 9000, tail: 100, ring: Some(new), start: 4000, old: Some(old), index: 1 };
        let mut line = ReceiveLine::default();
        let word = line.store_sender(&s);
        assert_eq!(line.sender(word), s);
    }
}
