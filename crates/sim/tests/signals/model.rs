//! What a sender knows, by the segments at its interface alone, as Linux counts.

use super::{MSS, WINDOW};
use base::Instant;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use wire::{Body, Packet, RxChecksum, TcpFlags};

/// The number of the sender's interface in the capture.
pub const SENDER: usize = 1;
const OUTBOUND: u32 = 2;

/// A segment at the sender's interface.
pub struct Segment {
    pub at: Instant,
    pub is_sent: bool,
    pub seq: u32,
    pub ack: u32,
    pub len: u32,
    pub flags: TcpFlags,
    pub sack: Vec<(u32, u32)>,
}

/// The segments of the run, in order.
pub fn segments(capture: &[u8]) -> Vec<Segment> {
    let mut reader = PcapNgReader::new(capture).unwrap();
    let mut all = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        if packet.interface_id as usize != SENDER {
            continue;
        }
        let is_sent = packet
            .options
            .iter()
            .any(|option| matches!(option, EnhancedPacketOption::Flags(flags) if *flags == OUTBOUND));
        let at = Instant::from_ns(packet.timestamp.as_nanos() as u64);
        let Ok(Packet { body: Body::Tcp(tcp), .. }) = Packet::parse(&packet.data, RxChecksum::Verified)
        else {
            continue;
        };
        let sack = tcp.options.sack.as_slice().iter().map(|block| (block.left.0, block.right.0)).collect();
        all.push(Segment {
            at,
            is_sent,
            seq: tcp.header.seq.0,
            ack: tcp.header.ack.0,
            len: tcp.payload.len() as u32,
            flags: tcp.header.flags,
            sack,
        });
    }
    all
}

/// A run of bytes that one segment carried.
#[derive(Clone, Debug)]
struct Piece {
    left: u64,
    right: u64,
    at_us: u64,
    times: u32,
    is_delivered: bool,
    /// Bytes delivered when it was sent, when the last of them were, and when the data delivered last had been sent.
    then: (u64, u64, u64),
    /// The application had too little to send before.
    is_limited: bool,
}

/// What the sender knows by its segments alone, and by what its application has written.
#[derive(Default)]
pub struct Model {
    /// Times of the application's writes, and all bytes by each.
    pub writes: Vec<(Instant, u64)>,
    now: Instant,
    cwnd: u64,
    /// Samples are limited by the application until more than this is delivered.
    limited_until: Option<u64>,
    isn: Option<u32>,
    pieces: Vec<Piece>,
    una: u64,
    pub max: u64,
    delivered: u64,
    delivered_us: u64,
    first_sent_us: u64,
    pub sent_again: u64,
    pub min_rtt_us: u64,
    /// Since the last run.
    pub acked: u64,
    pub misordered: u64,
    marked: u64,
    newest: Option<usize>,
    /// With accurate ECN: the peer's last count, modulo 8. Each acknowledgement here is of less than 8 packets.
    count: Option<u8>,
}

/// What is expected of a run.
pub struct Expected {
    pub acked: u64,
    pub misordered: u64,
    pub marked: u64,
    pub rtt_us: Option<u64>,
    /// Bytes that the newest data of the run stands for, and the microseconds in which they were sent and arrived.
    pub rates: Option<(u64, [u64; 2])>,
    /// Those rates are limited by the application.
    pub is_limited: bool,
    /// Bytes in flight, those that count as lost included.
    pub flight: u64,
}

impl Model {
    /// A sender that has sent nothing; `count` is that of the peer's handshake.
    pub fn new(count: Option<u8>, writes: &[(Instant, u64)]) -> Self {
        Self { count, writes: writes.to_vec(), cwnd: 10 * MSS, ..Self::default() }
    }

    /// Comes to `now`. When the sender had done all that it could at the last instant, and the window was not full, the application limits it: all
    /// that was sent by then is to be delivered, and more, before it does not.
    pub fn pass(&mut self, now: Instant) {
        if self.now < now {
            let written = self.writes.iter().rfind(|(at, _)| *at <= self.now).map_or(0, |(_, total)| *total);
            if self.isn.is_some() && written == self.max && self.max - self.una < self.cwnd {
                self.limited_until = Some(self.max);
            }
            self.now = now;
        }
    }

    fn position(&self, seq: u32) -> u64 {
        let isn = self.isn.unwrap();
        u64::from(seq.wrapping_sub(isn).wrapping_sub(1))
    }

    pub fn send(&mut self, segment: &Segment) {
        if segment.flags.contains(TcpFlags::SYN) {
            self.isn = Some(segment.seq);
            return;
        }
        if segment.len == 0 {
            return;
        }
        let now_us = segment.at.as_us();
        let left = self.position(segment.seq);
        let right = left + u64::from(segment.len);
        if left < self.max {
            self.split(left);
            self.split(right);
            for piece in self.pieces.iter_mut().filter(|piece| left <= piece.left && piece.right <= right) {
                piece.times += 1;
            }
            self.sent_again += u64::from(segment.len);
            return;
        }
        if self.una == self.max {
            (self.first_sent_us, self.delivered_us) = (now_us, now_us);
        }
        let then = (self.delivered, self.delivered_us, self.first_sent_us);
        let is_limited = self.limited_until.is_some();
        self.pieces.push(Piece {
            left,
            right,
            at_us: now_us,
            times: 1,
            is_delivered: false,
            then,
            is_limited,
        });
        self.max = right;
    }

    fn split(&mut self, at: u64) {
        if let Some(i) = self.pieces.iter().position(|piece| piece.left < at && at < piece.right) {
            let piece = self.pieces[i].clone();
            self.pieces[i].right = at;
            self.pieces.insert(i + 1, Piece { left: at, ..piece });
        }
    }

    /// Bytes of a range that were not known to be delivered.
    fn deliver(&mut self, left: u64, right: u64) -> u64 {
        self.split(left);
        self.split(right);
        let mut bytes = 0;
        for (i, piece) in self.pieces.iter_mut().enumerate() {
            if piece.is_delivered || piece.left < left || right < piece.right {
                continue;
            }
            piece.is_delivered = true;
            bytes += piece.right - piece.left;
            if piece.times == 1 {
                self.newest = self.newest.max(Some(i));
            }
        }
        bytes
    }

    pub fn hear(&mut self, segment: &Segment) {
        if segment.flags.contains(TcpFlags::SYN) || !segment.flags.contains(TcpFlags::ACK) {
            return;
        }
        let ack = self.position(segment.ack).min(self.max);
        if ack > self.una {
            let bytes = ack - self.una;
            self.delivered += self.deliver(self.una, ack);
            self.acked += bytes;
            let ace = segment.flags.ace();
            match &mut self.count {
                Some(count) => {
                    self.marked += u64::from(ace.wrapping_sub(std::mem::replace(count, ace)) % 8) * MSS;
                }
                None if segment.flags.contains(TcpFlags::ECE) => self.marked += bytes,
                None => {}
            }
            self.una = ack;
        }
        for (left, right) in &segment.sack {
            let (left, right) = (self.position(*left), self.position(*right));
            if self.una < left && left < right && right <= self.max {
                let bytes = self.deliver(left, right);
                self.misordered += bytes;
                self.delivered += bytes;
            }
        }
    }

    /// The program runs at `now_us`.
    pub fn run(&mut self, now_us: u64) -> Expected {
        let piece = self.newest.take().map(|i| self.pieces[i].clone());
        self.limited_until = self.limited_until.filter(|until| self.delivered <= *until);
        let mut expected = Expected {
            acked: std::mem::take(&mut self.acked),
            misordered: std::mem::take(&mut self.misordered),
            marked: std::mem::take(&mut self.marked),
            rtt_us: None,
            rates: None,
            is_limited: piece.as_ref().is_some_and(|piece| piece.is_limited),
            flight: self.outstanding(),
        };
        if let Some(piece) = &piece {
            let rtt_us = now_us - piece.at_us;
            self.min_rtt_us = if self.min_rtt_us == 0 { rtt_us } else { self.min_rtt_us.min(rtt_us) };
            expected.rtt_us = Some(rtt_us);
            let (delivered, delivered_us, first_sent_us) = piece.then;
            let intervals = [piece.at_us - first_sent_us, now_us - delivered_us];
            expected.rates = Some((self.delivered - delivered, intervals));
            self.first_sent_us = piece.at_us;
        }
        self.cwnd = (self.cwnd + expected.acked).min(u64::from(WINDOW));
        if expected.acked + expected.misordered > 0 {
            self.delivered_us = now_us;
        }
        expected
    }

    fn outstanding(&self) -> u64 {
        self.pieces.iter().filter(|piece| !piece.is_delivered).map(|piece| piece.right - piece.left).sum()
    }
}
