//! Watches the wire of one of our hosts: each segment that the host sends must be allowed by the segments that it has received.
//!
//! ```text
//!   sent to it:    highest byte, right edge of the window   -->  what it may send, and acknowledge
//!   sent by it:    right edge of the window                 -->  never moves left
//!   before the peer has acknowledged our SYN                -->  no more packets out than in, SYNs repeated apart
//! ```

use std::collections::HashMap;
use wire::{Body, FourTuple, Packet, RxChecksum, TcpFlags, TcpPacket};

/// What one end has sent in this incarnation of the connection.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    /// Initial sequence number, once a SYN was seen.
    isn: Option<u32>,
    /// The window scale shift that its SYN offered.
    shift: Option<u8>,
    /// One after the highest sequence number sent.
    top: u32,
    /// The right edge of the window that it offered, once an acknowledgement carried one.
    edge: Option<u32>,
    has_fin: bool,
}

/// A SYN that has arrived; the host's answer shows whether it belongs to the connection.
#[derive(Clone, Copy, Debug)]
struct Offer {
    isn: u32,
    shift: Option<u8>,
    window: u16,
}

/// A segment that the peer sent.
#[derive(Clone, Copy, Debug)]
struct Came {
    seq: u32,
    /// One after its last sequence number.
    end: u32,
    has_fin: bool,
}

/// Largest number of remembered segments beyond the window, per pair of ends.
const EARLY: usize = 64;

/// Largest number of remembered SYNs, per pair of ends.
const OFFERS: usize = 64;

/// Packets that may arrive together with a SYN of a new incarnation and be answered after it.
const TOGETHER: u32 = 4;

/// Largest number of SYNs and SYN-ACKs retransmitted by timers: more than `syn_retries` and `syn_ack_retries`.
const REPETITIONS: u32 = 7;

/// Counts of packets before the peer has shown that it receives ours. The source address may be forged: such a packet must not make the
/// host send more packets to that address than came from it.
#[derive(Clone, Copy, Debug, Default)]
struct Strange {
    /// The peer has acknowledged a sequence number that only our SYN carried.
    is_heard: bool,
    came: u32,
    went: u32,
    repeated: u32,
    /// Packets of `came` that the host had not read when its turn `turn` began.
    unread: u32,
    turn: u64,
}

#[derive(Clone, Debug, Default)]
struct Watched {
    host: Said,
    peer: Said,
    offers: Vec<Offer>,
    /// Segments that reached beyond the window on arrival. The host may read them later, after earlier segments have moved the window.
    early: Vec<Came>,
    /// Acknowledgement number and window of segments that the host has not read yet: its next segment may answer them.
    unread: Vec<(u32, u16)>,
    strange: Strange,
}

/// The oracle for the wire of one host.
#[derive(Debug, Default)]
pub struct WireOracle {
    flows: HashMap<FourTuple, Watched>,
    /// Number of turns that the host has had.
    turns: u64,
    /// Number of frames that the host has sent, and that it has received.
    pub frames: [u64; 2],
    /// Probes of one byte beyond a closed window (RFC 9293 section 3.8.6.1).
    pub probes: u64,
}

/// True when `a` is after `b`, modulo 2^32.
fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

fn later(a: u32, b: u32) -> u32 {
    if is_after(a, b) { a } else { b }
}

impl Said {
    fn begin(isn: u32, shift: Option<u8>) -> Self {
        Self { isn: Some(isn), shift, top: isn.wrapping_add(1), edge: None, has_fin: false }
    }

    /// Takes a segment in, as far as a receiver with the window edge `edge` can accept it. True when all of it was accepted.
    fn take(&mut self, segment: Came, edge: Option<u32>) -> bool {
        let Came { seq, end, has_fin } = segment;
        let fits = edge.is_none_or(|edge| !is_after(end, edge.wrapping_add(1)));
        // A segment that begins within the window and ends beyond it may be accepted up to the edge (RFC 9293 section 3.10.7.4).
        let begins = edge.is_none_or(|edge| is_after(edge, seq));
        if fits || begins {
            let taken = if fits { end } else { edge.unwrap_or(end) };
            self.top = later(self.top, taken);
            self.has_fin |= has_fin && fits;
        }
        fits
    }

    /// Takes in a segment that this end sent to `other`. Returns it when `other` has no room for all of it now.
    fn hear(&mut self, packet: &TcpPacket, other: &Self) -> Option<Came> {
        let header = &packet.header;
        let has_fin = header.flags.contains(TcpFlags::FIN);
        let end = header.seq.0.wrapping_add(packet.payload.len() as u32 + u32::from(has_fin));
        let segment = Came { seq: header.seq.0, end, has_fin };
        // A reset is not part of the stream: a reset that answers an unknown segment carries the number that this segment acknowledged.
        let is_apart = header.flags.contains(TcpFlags::SYN) || header.flags.contains(TcpFlags::RST);
        let is_whole = is_apart || self.take(segment, other.edge);
        // Ignores acknowledgements of data never sent, or of numbers older than any window.
        let is_sane = other.isn.is_none() || other.top.wrapping_sub(header.ack.0) <= 1 << 30;
        if header.flags.contains(TcpFlags::ACK) && !header.flags.contains(TcpFlags::RST) && is_sane {
            let edge = self.edge_of(packet, other.shift);
            self.edge = Some(self.edge.map_or(edge, |old| later(old, edge)));
        }
        (!is_whole).then_some(segment)
    }

    /// The right window edge that an acknowledgement carries. Windows are scaled when both SYNs offered it, and never in a SYN itself
    /// (RFC 7323 section 2.2).
    fn edge_of(&self, packet: &TcpPacket, other_shift: Option<u8>) -> u32 {
        let is_syn = packet.header.flags.contains(TcpFlags::SYN);
        let shift = match (self.shift, other_shift) {
            (Some(own), Some(_)) if !is_syn => own.min(14),
            _ => 0,
        };
        packet.header.ack.0.wrapping_add(u32::from(packet.header.window) << shift)
    }
}

impl Watched {
    /// A segment arrives at the host.
    fn came(&mut self, packet: &TcpPacket, turn: u64) {
        let header = &packet.header;
        let strange = &mut self.strange;
        strange.came += 1;
        if strange.turn != turn {
            (strange.turn, strange.unread) = (turn, 0);
            self.unread.clear();
        }
        strange.unread += 1;
        let has_window = header.flags.contains(TcpFlags::ACK)
            && !header.flags.contains(TcpFlags::SYN)
            && !header.flags.contains(TcpFlags::RST);
        if has_window && self.unread.len() < EARLY {
            self.unread.push((header.ack.0, header.window));
        }
        let is_told = self.host.isn.is_some_and(|isn| {
            let (acked, told) = (header.ack.0.wrapping_sub(isn), self.host.top.wrapping_sub(isn));
            (1..=told).contains(&acked)
        });
        self.strange.is_heard |= header.flags.contains(TcpFlags::ACK) && is_told;
        if header.flags.contains(TcpFlags::SYN) {
            if self.offers.len() == OFFERS {
                self.offers.remove(0);
            }
            let (isn, shift) = (header.seq.0, packet.options.window_scale);
            self.offers.push(Offer { isn, shift, window: header.window });
            let is_answer = header.flags.contains(TcpFlags::ACK)
                && self.host.isn.is_some_and(|isn| header.ack.0 == isn.wrapping_add(1));
            if is_answer && self.peer.isn.is_none() {
                self.peer = Said::begin(isn, shift);
            }
        }
        let early = self.peer.hear(packet, &self.host);
        if self.early.len() < EARLY {
            self.early.extend(early);
        }
    }

    /// The host's window edge is now `edge`: segments that came too early may have been accepted since.
    fn look_again(&mut self, edge: u32) {
        let Self { peer, early, .. } = self;
        early.retain(|segment| !peer.take(*segment, Some(edge)));
    }

    /// Window edges in acknowledgements of the host's SYN `isn` that the host has not read yet.
    fn unread_edges(&self, isn: u32) -> impl Iterator<Item = u32> + '_ {
        let shift = self.peer.shift.filter(|_| self.host.shift.is_some()).unwrap_or(0).min(14);
        let ours = self.unread.iter().filter(move |(ack, _)| *ack == isn.wrapping_add(1));
        ours.map(move |(ack, window)| ack.wrapping_add(u32::from(*window) << shift))
    }

    /// The host sends a segment to a peer that may not receive it. False when it sends more than it was asked for.
    fn went(&mut self, flags: TcpFlags, is_repeated: bool) -> bool {
        let strange = &mut self.strange;
        let is_syn = flags.contains(TcpFlags::SYN);
        if strange.is_heard || is_syn && !flags.contains(TcpFlags::ACK) && !is_repeated {
            return true;
        }
        if is_syn && is_repeated {
            strange.repeated += 1;
        } else {
            strange.went += 1;
        }
        // A half-open connection that ends without a request, because its listener was closed, sends one reset.
        let farewell = u32::from(flags.contains(TcpFlags::RST));
        strange.went <= strange.came + farewell && strange.repeated <= strange.came + REPETITIONS
    }

    /// The host sends a SYN. A new sequence number begins a new incarnation; with ACK it answers a remembered SYN.
    fn begin(&mut self, packet: &TcpPacket) {
        let header = &packet.header;
        let isn = header.seq.0;
        // Two connections that begin within one tick of the ISN clock have the same number (RFC 9293 section 3.4.1).
        let is_other = header.flags.contains(TcpFlags::ACK)
            && self.peer.isn.is_some_and(|peer| peer.wrapping_add(1) != header.ack.0);
        if self.host.isn != Some(isn) || is_other {
            self.host = Said::begin(isn, packet.options.window_scale);
            self.peer = Said::default();
            self.early.clear();
            // Packets that came together with the SYN, or while the host was stopped, may be answered after it. Packets of an earlier
            // connection do not count.
            let Strange { is_heard, came, went, unread, turn, .. } = self.strange;
            let went = if is_heard { came.saturating_sub(unread.max(TOGETHER)) } else { went.min(came) };
            self.strange = Strange { came, went, unread, turn, ..Strange::default() };
        }
        let offer = self.offers.iter().rev().find(|offer| offer.isn.wrapping_add(1) == header.ack.0).copied();
        if let Some(offer) = offer.filter(|_| header.flags.contains(TcpFlags::ACK) && self.peer.isn.is_none())
        {
            self.peer = Said::begin(offer.isn, offer.shift);
            self.peer.edge = Some(isn.wrapping_add(1).wrapping_add(u32::from(offer.window)));
            // A SYN-ACK without the window scale option shows that scaling was not agreed.
            self.host.shift = packet.options.window_scale;
            self.peer.edge = self.unread_edges(isn).chain(self.peer.edge).reduce(later);
        }
    }
}

impl WireOracle {
    /// A frame arrives at the host.
    pub fn received(&mut self, frame: &[u8]) {
        self.frames[1] += 1;
        // TCP has no groups: a segment that damage turned into a multicast is dropped (RFC 9293 section 3.9.2.3, MUST-57).
        if frame.first().is_some_and(|first| first & 1 == 1) {
            return;
        }
        let Ok(Packet { body: Body::Tcp(packet), .. }) = Packet::parse(frame, RxChecksum::Verify) else {
            return;
        };
        self.flows.entry(packet.tuple().reversed()).or_default().came(&packet, self.turns);
    }

    /// The host has had its turn: it has read all that arrived, and has sent its answers.
    pub fn turned(&mut self) {
        self.turns += 1;
    }

    /// The host sends a frame.
    ///
    /// # Errors
    /// A description of what this frame must not contain.
    pub fn sent(&mut self, frame: &[u8], mtu: u16) -> Result<(), String> {
        self.frames[0] += 1;
        if frame.len() > usize::from(mtu) + 18 {
            return Err(format!("a frame of {} bytes on a link of {mtu}", frame.len()));
        }
        let packet = match Packet::parse(frame, RxChecksum::Verify) {
            Ok(Packet { body: Body::Tcp(packet), .. }) => packet,
            Ok(_) => return Ok(()),
            Err(reason) => return Err(format!("a frame that no host takes: {reason:?}: {frame:02x?}")),
        };
        let watched = self.flows.entry(packet.tuple()).or_default();
        let is_repeated = watched.host.isn == Some(packet.header.seq.0);
        if packet.header.flags.contains(TcpFlags::SYN) {
            watched.begin(&packet);
        }
        if packet.header.flags.contains(TcpFlags::ACK) && !packet.header.flags.contains(TcpFlags::RST) {
            let edge = watched.host.edge_of(&packet, watched.peer.shift);
            watched.look_again(watched.host.edge.map_or(edge, |old| later(old, edge)));
        }
        let is_asked = watched.went(packet.header.flags, is_repeated);
        let judged = if is_asked {
            judge(&packet, watched, &mut self.probes)
        } else {
            Err("more packets to a peer that has shown nothing than came from it")
        };
        let peer = watched.peer;
        watched.host.hear(&packet, &peer);
        judged.map_err(|what| format!("{what}: {} {:?} {watched:?}", packet.tuple().src, packet.header))
    }
}

fn judge(packet: &TcpPacket, watched: &Watched, probes: &mut u64) -> Result<(), &'static str> {
    let (header, len) = (&packet.header, packet.payload.len() as u32);
    let flags = header.flags;
    // RFC 9293 section 3.10: only received data may be acknowledged. A reset that answers an unknown segment uses that segment's numbers.
    let is_known = watched.peer.isn.is_some() && watched.host.isn.is_some() && !flags.contains(TcpFlags::SYN);
    if !is_known || flags.contains(TcpFlags::RST) {
        return Ok(());
    }
    if flags.contains(TcpFlags::ACK) && is_after(header.ack.0, watched.peer.top) {
        return Err("acknowledges what never came");
    }
    // RFC 9293 section 3.8.6 (SHLD-14): "a TCP receiver SHOULD NOT shrink the window".
    let edge = watched.host.edge_of(packet, watched.peer.shift);
    // In TIME-WAIT no more data can come, and the window has no meaning.
    let is_ended = watched.host.has_fin && watched.peer.has_fin;
    // A scaled window is rounded down, so its edge may lie up to one unit before the last one (RFC 7323 section 2.4).
    let unit = match (watched.host.shift, watched.peer.shift) {
        (Some(shift), Some(_)) => (1u32 << shift.min(14)) - 1,
        _ => 0,
    };
    let is_left = |old: u32| is_after(old, edge.wrapping_add(unit));
    if flags.contains(TcpFlags::ACK) && !is_ended && watched.host.edge.is_some_and(is_left) {
        return Err("the right edge of the window moves left");
    }
    let end = header.seq.0.wrapping_add(len);
    let Some(limit) = watched.peer.edge.filter(|limit| len > 0 && is_after(end, *limit)) else {
        return Ok(());
    };
    if len == 1 && header.seq.0 == limit {
        *probes += 1;
        return Ok(());
    }
    Err("data beyond the peer's window")
}
