//! The law of repetition, watched at one host: between two packets from the peer, each firing of a timer lets a flow send each byte at most
//! once, whatever came before.
//!
//! ```text
//!   events of a flow:   packet read      packet read                  timer fired
//!   sendings of a byte:             once             once  --silence--            once  --silence: never again
//! ```
//! A packet counts when a core reads it, not when it arrives; one that belongs to no flow, such as an ICMP error, counts for all flows, and so
//! does a loss timer of any flow of the host. An event that was followed by a sending of the byte is used up at the end of the core's round.
//!
//! That alone would let a timer that always comes again repeat for ever. Therefore, second law, while nothing is read of a flow its peer is
//! tried ever more seldom ([`least_time`]); third, a segment that carries no data and says what the last one said
//! comes once for an event, or for each [`REST`]; of events that have waited for the slow path there are few ([`BARE_MAX`]).

use base::{Duration, Instant, SeqNumber};
use std::collections::HashMap;
use wire::{Body, FourTuple, Packet, RxChecksum, SackBlock, TcpFlags, TcpHeader, TcpPacket};

/// A packet that a core has read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// A segment of the host's flow `of` that acknowledges `ack`.
    Segment {
        of: FourTuple,
        ack: Option<SeqNumber>,
    },
    Other,
}

/// Repetitions of a byte to a silent peer that may come at any time: a fast retransmission, one more when that counts as lost, a probe of the
/// tail, and those for silence in recovery.
const SOON_MAX: u32 = 6;
/// The least timeout, and the longest; each one in a row takes twice as long as that before.
const TIMEOUT_MIN: Duration = Duration::from_ms(200);
const TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// Mean time between segments without data that say the same, if nothing happens: shorter than any timer that sends such.
const REST: Duration = Duration::from_ms(100);

/// Segments that came before the first of several that say the same, and are answered by later ones.
const BARE_MAX: u64 = 64;
/// Flows that are remembered in any case.
const FLOWS: usize = 256;
/// With more flows than these the last segments without data of flows that have nothing in flight are forgotten.
const QUIET_FLOWS: usize = 2048;

/// Least time from the first repetition of a byte to the `copies`-th when nothing was read between: repetitions above [`SOON_MAX`] are for
/// timeouts.
fn least_time(copies: u32) -> Duration {
    let waits =
        (1..copies.saturating_sub(SOON_MAX)).map(|n| TIMEOUT_MIN.times(1 << n.min(20)).min(TIMEOUT_MAX));
    waits.fold(Duration::ZERO, Duration::plus)
}

/// Sequence numbers `[left, right)`, sent last when the flow had had `paid` events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    left: SeqNumber,
    right: SeqNumber,
    paid: u64,
    silence: Silence,
}

/// How often bytes were sent again since something was last read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Silence {
    /// Packets that had been read by then, of the flow or of none.
    read: u64,
    copies: u32,
    /// When the first of these copies was sent.
    since: Instant,
}

impl Silence {
    /// One more copy is sent.
    fn again(self, read: u64, now: Instant) -> Self {
        if self.copies > 0 && self.read == read {
            Self { copies: self.copies + 1, ..self }
        } else {
            Self { read, copies: 1, since: now }
        }
    }
}

/// What one flow has in flight, in order and without gaps.
#[derive(Clone, Debug, Default)]
struct Sent {
    /// Packets read of this flow.
    packets: u64,
    pieces: Vec<Piece>,
    /// The last segment without data.
    bare: Option<Bare>,
    /// A reset was sent.
    is_over: bool,
}

/// Segments without data that all say the same.
#[derive(Clone, Debug)]
struct Bare {
    header: TcpHeader,
    reports: Vec<SackBlock>,
    count: u64,
    /// When the first of them was sent, and how many events the flow had had.
    at: Instant,
    events: u64,
}

/// The oracle; see the module.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    flows: HashMap<FourTuple, Sent>,
    /// Events of all flows: timers that have fired, and packets of no flow; and these packets alone.
    common: u64,
    others: u64,
    now: Instant,
    /// So many flows are remembered before those are forgotten of which nothing is in flight.
    most: usize,
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
                Self::Segment { of: packet.tuple().reversed(), ack }
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

    /// Gives all of `[left, right)` that is in flight to `change`, which notes another sending.
    fn repay(&mut self, left: SeqNumber, right: SeqNumber, mut change: impl FnMut(&mut Piece)) {
        let old = std::mem::take(&mut self.pieces);
        for piece in old {
            let (from, to) =
                (piece.left.later_of(left), if piece.right.is_before(right) { piece.right } else { right });
            if !from.is_before(to) {
                self.push(piece);
                continue;
            }
            self.push(Piece { right: from, ..piece });
            let mut part = Piece { left: from, right: to, ..piece };
            change(&mut part);
            self.push(part);
            self.push(Piece { left: to, ..piece });
        }
    }

    fn push(&mut self, piece: Piece) {
        match self.pieces.last_mut() {
            _ if piece.left == piece.right => {}
            Some(last) if (last.paid, last.silence) == (piece.paid, piece.silence) => {
                last.right = piece.right;
            }
            _ => self.pieces.push(piece),
        }
    }
}

impl Sent {
    /// Notes a segment without data. True when it says what the last ones said, and more often than something has happened.
    fn says_again(&mut self, packet: &TcpPacket, at: Instant, before: u64, now: u64) -> bool {
        let (header, reports) = (packet.header, packet.options.sack.as_slice());
        let same = self.bare.as_mut().filter(|last| last.header == header && last.reports == reports);
        let Some(last) = same else {
            self.bare = Some(Bare { header, reports: reports.to_vec(), events: before, count: 1, at });
            return false;
        };
        last.count += 1;
        last.count > now - last.events + BARE_MAX + at.since(last.at).as_ns() / REST.as_ns()
    }
}

impl Repeats {
    /// A core has read these packets in its round at `now`, and `fired` loss timers of flows have come due in it; after that, or meanwhile, it has sent
    /// these frames.
    pub(crate) fn round<'a>(
        &mut self,
        now: Instant,
        heard: impl Iterator<Item = Heard>,
        fired: u64,
        sent: impl Iterator<Item = &'a [u8]>,
    ) {
        // What had happened before this round, of each flow that something happens to in it.
        let (common, mut packets) = (self.common, HashMap::new());
        self.common += fired;
        self.now = now;
        for heard in heard {
            let Heard::Segment { of, ack } = heard else {
                self.common += 1;
                self.others += 1;
                continue;
            };
            let flow = self.flows.entry(of).or_default();
            packets.entry(of).or_insert(flow.packets);
            flow.packets += 1;
            ack.into_iter().for_each(|ack| flow.acknowledge(ack));
        }
        for frame in sent {
            self.sent(frame, common, &mut packets);
        }
        for (of, left, right) in std::mem::take(&mut self.again) {
            if let Some(flow) = self.flows.get_mut(&of) {
                let now = self.common + flow.packets;
                flow.repay(left, right, |piece| piece.paid = now);
            }
        }
        if self.flows.len() > self.most {
            let is_quiet = |flow: &Sent| flow.bare.as_ref().is_none_or(|bare| bare.at.plus(REST) <= now);
            let is_in_flight = |flow: &Sent| !flow.is_over && !flow.pieces.is_empty();
            self.flows.retain(|_, flow| !is_quiet(flow) || is_in_flight(flow));
            if self.flows.len() > QUIET_FLOWS {
                // The memory of the host is measured beside thousands of short connections, this oracle's included.
                self.flows.retain(|_, flow| is_in_flight(flow));
            }
            self.most = 2 * self.flows.len() + FLOWS;
        }
    }

    fn sent(&mut self, frame: &[u8], common: u64, packets: &mut HashMap<FourTuple, u64>) {
        let Ok(Packet { body: Body::Tcp(packet), .. }) = Packet::parse(frame, RxChecksum::Verified) else {
            return;
        };
        let (header, of) = (&packet.header, packet.tuple());
        let (flags, len) = (header.flags, packet.payload.len() as u32);
        let (left, right) = (header.seq, header.seq.plus(len + u32::from(flags.contains(TcpFlags::FIN))));
        let flow = self.flows.entry(of).or_default();
        let before = common + *packets.entry(of).or_insert(flow.packets);
        let (now, read) = (self.common + flow.packets, self.others + flow.packets);
        if flags.contains(TcpFlags::SYN) {
            flow.pieces.clear();
        }
        flow.is_over = flags.contains(TcpFlags::RST);
        if left == right || flags.contains(TcpFlags::SYN) {
            if flow.says_again(&packet, self.now, before, now) {
                self.breach
                    .get_or_insert_with(|| format!("says again {header:?}, and nothing has come: {of:?}"));
            }
            return;
        }
        let end = flow.pieces.last().map_or(left, |last| last.right);
        if left.is_before(end) {
            let (mut breach, at) = (None, self.now);
            flow.repay(left, right, |piece| {
                piece.silence = piece.silence.again(read, at);
                let Silence { copies, since, .. } = piece.silence;
                if now <= piece.paid {
                    breach = Some((*piece, "nothing has come or come due"));
                } else if at.since(since) < least_time(copies) {
                    breach = Some((*piece, "too often for a peer that is silent"));
                }
                piece.paid = (piece.paid + 1).max(before);
            });
            self.again.push((of, left, right));
            if let Some((piece, why)) = breach {
                self.breach.get_or_insert_with(|| format!("sends again {piece:?}, {why}: {of:?}"));
            }
        }
        if end.is_before(right) {
            // An event of an earlier round may have caused it, and those of this round come after it.
            flow.push(Piece { left: end, right, paid: before, silence: Silence::default() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use wire::{Endpoint, IpParameters, MacAddr, TcpOptions, TxChecksum, emit_tcp, tcp_headers_len};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn tuple() -> FourTuple {
        let end = |last| Endpoint::new(Ipv4Addr::new(10, 0, 0, last).into(), 80);
        FourTuple::new(end(1), end(2))
    }

    fn frame(flags: TcpFlags, seq: u32, len: usize) -> Vec<u8> {
        let (seq, ack) = (SeqNumber(seq), SeqNumber(1));
        let header = TcpHeader { src_port: 80, dst_port: 80, seq, ack, flags, window: 1, urgent: 0 };
        let (parameters, options) = (IpParameters::new(MAC, MAC), TcpOptions::default());
        let mut frame = vec![0; tcp_headers_len(&parameters, &tuple(), &options) + len];
        emit_tcp(&parameters, &tuple(), &header, &options, len, TxChecksum::Full, &mut frame).unwrap();
        frame
    }

    fn data() -> Vec<u8> {
        frame(TcpFlags::ACK, 1000, 100)
    }

    /// An oracle, its clock in milliseconds, and what a host does that it watches.
    #[derive(Default)]
    struct Watch(Repeats, u64);

    impl Watch {
        fn round(&mut self, packets: usize, fired: u64, sent: &[Vec<u8>]) -> bool {
            let heard = (0..packets).map(|_| Heard::Segment { of: tuple(), ack: None });
            let now = Instant::ZERO.plus(Duration::from_ms(self.1));
            self.0.round(now, heard, fired, sent.iter().map(Vec::as_slice));
            self.0.breach.is_none()
        }
    }

    #[test]
    fn a_byte_goes_once_for_each_event() {
        let mut watch = Watch::default();
        assert!(watch.round(1, 0, &[data()]) && watch.round(1, 0, &[data()]) && watch.round(0, 1, &[data()]));
        assert!(!watch.round(0, 0, &[data()]));
        let mut watch = Watch::default();
        assert!(watch.round(1, 0, &[data()]));
        assert!(watch.round(0, 0, &[data()]) && !watch.round(0, 0, &[data()]), "the packet has paid once");
    }

    #[test]
    fn a_timer_that_comes_in_each_round_trip_is_no_excuse() {
        let mut watch = Watch::default();
        assert!(watch.round(1, 0, &[data()]));
        let sent = (0..100).take_while(|n| {
            watch.1 = 10 * n;
            watch.round(0, 1, &[data()])
        });
        assert_eq!(sent.count(), SOON_MAX as usize + 1);
        // As often as timeouts that double.
        let mut watch = Watch::default();
        assert!(watch.round(1, 0, &[data()]));
        for n in 0..12 {
            watch.1 += TIMEOUT_MIN.times(1 << n).min(TIMEOUT_MAX).as_ms();
            assert!(watch.round(0, 1, &[data()]));
        }
        // What is read begins the count anew.
        let heard = (0..100).all(|_| watch.round(1, 0, &[data()]));
        assert!(heard);
    }

    #[test]
    fn a_reset_hides_nothing() {
        let mut watch = Watch::default();
        assert!(watch.round(0, 0, &[data(), frame(TcpFlags::RST, 1100, 0)]));
        assert!(!watch.round(0, 0, &[data()]));
    }

    #[test]
    fn segments_without_data_are_counted() {
        for flags in [TcpFlags::ACK, TcpFlags::SYN, TcpFlags::SYN.with(TcpFlags::ACK), TcpFlags::RST] {
            let bare = || frame(flags, 1000, 0);
            let mut watch = Watch::default();
            assert!((0..1000).all(|_| watch.round(1, 0, &[bare()])), "each answers a packet");
            assert!((0..1000).all(|_| {
                watch.1 += REST.as_ms();
                watch.round(0, 0, &[bare()])
            }));
            let mut watch = Watch::default();
            assert!((0..BARE_MAX + 10).any(|_| !watch.round(0, 0, &[bare()])));
            let mut watch = Watch::default();
            let seqs = (0..1000).all(|seq| watch.round(0, 0, &[frame(flags, seq, 0)]));
            assert!(seqs, "each says something else");
        }
    }
}
