//! The law of repetition, watched at one host: between two packets from the peer, each firing of a timer lets a flow send each byte at most
//! once, whatever came before.
//!
//! ```text
//!   events of a flow:   packet read      packet read                  timer fired
//!   sendings of a byte:             once             once  --silence--            once  --silence: never again
//! ```
//! A packet counts when a core reads it, not when it arrives; one that belongs to no flow, such as an ICMP error, counts for all flows, and so
//! does a loss timer of any flow of the host. An event that was followed by a sending of the byte is used up at the end of the core's round.

use base::SeqNumber;
use std::collections::HashMap;
use wire::{Body, FourTuple, Packet, RxChecksum, TcpFlags};

/// A packet that a core has read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// A segment of the host's flow `of` that acknowledges `ack`.
    Segment {
        of: FourTuple,
        ack: Option<SeqNumber>,
        is_syn: bool,
    },
    Other,
}

/// Sequence numbers `[left, right)`, sent last when the flow had had `paid` events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    left: SeqNumber,
    right: SeqNumber,
    paid: u64,
}

/// What one flow has in flight, in order and without gaps.
#[derive(Clone, Debug, Default)]
struct Sent {
    /// Packets read of this flow.
    packets: u64,
    pieces: Vec<Piece>,
}

/// The oracle; see the module.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    flows: HashMap<FourTuple, Sent>,
    /// Events of all flows: timers that have fired, and packets of no flow.
    common: u64,
    /// What this round has sent again, to be marked as used up.
    again: Vec<(FourTuple, SeqNumber, SeqNumber)>,
    /// The first breach, in words.
    pub(crate) breach: Option<String>,
}

impl Heard {
    pub(crate) fn of(frame: &[u8]) -> Self {
        match Packet::parse(frame, RxChecksum::Verified) {
            Ok(Packet { body: Body::Tcp(packet), .. }) => {
                let flags = packet.header.flags;
                let ack = flags.contains(TcpFlags::ACK).then_some(packet.header.ack);
                Self::Segment { of: packet.tuple().reversed(), ack, is_syn: flags.contains(TcpFlags::SYN) }
            }
            _ => Self::Other,
        }
    }
}

impl Sent {
    /// Forgets what is acknowledged.
    fn acknowledge(&mut self, ack: SeqNumber) {
        let acked = self.pieces.iter().take_while(|piece| piece.right.is_at_or_before(ack)).count();
        self.pieces.drain(..acked);
        if let Some(first) = self.pieces.first_mut().filter(|piece| piece.left.is_before(ack)) {
            first.left = ack;
        }
    }

    /// Gives all of `[left, right)` that is in flight to `change`, which says how many events its last sending has paid.
    fn repay(&mut self, left: SeqNumber, right: SeqNumber, mut change: impl FnMut(Piece) -> u64) {
        let old = std::mem::take(&mut self.pieces);
        for piece in old {
            let (from, to) =
                (piece.left.later_of(left), if piece.right.is_before(right) { piece.right } else { right });
            if !from.is_before(to) {
                self.push(piece);
                continue;
            }
            self.push(Piece { right: from, ..piece });
            let part = Piece { left: from, right: to, ..piece };
            self.push(Piece { paid: change(part), ..part });
            self.push(Piece { left: to, ..piece });
        }
    }

    fn push(&mut self, piece: Piece) {
        match self.pieces.last_mut() {
            _ if piece.left == piece.right => {}
            Some(last) if last.paid == piece.paid => last.right = piece.right,
            _ => self.pieces.push(piece),
        }
    }
}

impl Repeats {
    /// A core has read these packets in its round, and `fired` loss timers of flows have come due in it; after that, or meanwhile, it has sent
    /// these frames.
    pub(crate) fn round<'a>(
        &mut self,
        heard: impl Iterator<Item = Heard>,
        fired: u64,
        sent: impl Iterator<Item = &'a [u8]>,
    ) {
        // What had happened before this round, of each flow that something happens to in it.
        let (common, mut packets) = (self.common, HashMap::new());
        self.common += fired;
        for heard in heard {
            let Heard::Segment { of, ack, is_syn } = heard else {
                self.common += 1;
                continue;
            };
            let flow = self.flows.entry(of).or_default();
            packets.entry(of).or_insert(flow.packets);
            flow.packets += 1;
            ack.into_iter().for_each(|ack| flow.acknowledge(ack));
            if is_syn {
                flow.pieces.clear();
            }
        }
        for frame in sent {
            self.sent(frame, common, &mut packets);
        }
        for (of, left, right) in std::mem::take(&mut self.again) {
            if let Some(flow) = self.flows.get_mut(&of) {
                let now = self.common + flow.packets;
                flow.repay(left, right, |_| now);
            }
        }
        // Packets count from here on when there is something in flight again.
        for of in packets.into_keys() {
            if self.flows.get(&of).is_some_and(|flow| flow.pieces.is_empty()) {
                self.flows.remove(&of);
            }
        }
    }

    fn sent(&mut self, frame: &[u8], common: u64, packets: &mut HashMap<FourTuple, u64>) {
        let Ok(Packet { body: Body::Tcp(packet), .. }) = Packet::parse(frame, RxChecksum::Verified) else {
            return;
        };
        let (header, of) = (&packet.header, packet.tuple());
        let (flags, len) = (header.flags, packet.payload.len() as u32);
        let is_new = flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::RST);
        let (left, right) = (header.seq, header.seq.plus(len + u32::from(flags.contains(TcpFlags::FIN))));
        if left == right && !is_new {
            return;
        }
        let flow = self.flows.entry(of).or_default();
        let before = common + *packets.entry(of).or_insert(flow.packets);
        if is_new {
            return flow.pieces.clear();
        }
        let now = self.common + flow.packets;
        let end = flow.pieces.last().map_or(left, |last| last.right);
        if left.is_before(end) {
            let mut breach = None;
            flow.repay(left, right, |piece| {
                if now <= piece.paid {
                    breach = Some(piece);
                }
                (piece.paid + 1).max(before)
            });
            self.again.push((of, left, right));
            if let Some(Piece { left, right, .. }) = breach {
                let what =
                    || format!("sends {left:?} to {right:?} again, and nothing has come or come due: {of:?}");
                self.breach.get_or_insert_with(what);
            }
        }
        if end.is_before(right) {
            flow.push(Piece { left: end, right, paid: before });
        }
    }
}
