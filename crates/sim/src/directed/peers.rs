//! The peers: each learns the state of its connection from the host's segments, and makes segments from that state and the fuzzer's bytes.

use super::input::Input;
use super::{HOST, MAC, PORT};
use crate::neighbour::icmp_frame;
use base::SeqNumber;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use wire::{
    Body, Ecn, Endpoint, EthernetHeader, FourTuple, IpParameters, IpProtocol, MacAddr, Packet, RxChecksum,
    SackBlock, Sum, TcpFlags, TcpHeader, TcpOptions, Timestamps, TxChecksum, checksum, emit_tcp,
    tcp_headers_len,
};

/// Ethernet address of all peers.
pub(crate) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Number of peers. The second half connects to the host's listener; the host connects to the first half, from its ports 1000 and up.
const PEERS: usize = 8;
const OPENED: u16 = 1000;

/// Index of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer(usize);

/// What a peer has learned of its connection.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The sequence number that the host expects next.
    next: SeqNumber,
    /// One after the host's last sequence number sent.
    sent: SeqNumber,
    /// The host's initial sequence number, once it has sent a SYN.
    isn: Option<SeqNumber>,
    /// The host's last timestamp value.
    timestamp: u32,
    /// The host's last window field, not scaled.
    window: u16,
    /// The peer has acknowledged something that the host sent.
    is_proven: bool,
}

pub(crate) struct Peers {
    known: [Known; PEERS],
}

/// A segment as the fuzzer's bytes describe it.
pub(crate) struct Step {
    pub(crate) peer: Peer,
    flags: u8,
    seq_kind: u8,
    seq: u32,
    ack_kind: u8,
    ack: u32,
    window: u16,
    urgent: u16,
    options: TcpOptions,
    /// Bytes that replace the encoded options.
    raw: Option<Vec<u8>>,
    payload: usize,
    ecn: Ecn,
    is_damaged: bool,
}

impl Step {
    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        let (peer, form) = (Peer(usize::from(input.byte()) % PEERS), input.byte());
        // A short code for the common flags.
        const USUAL: [u8; 8] = [0x10, 0x02, 0x12, 0x18, 0x11, 0x04, 0x14, 0x10];
        let flags = if form & 0x80 == 0 { USUAL[usize::from(form & 7)] } else { input.byte() };
        let (seq_kind, seq) = relative(input, form >> 3);
        let (ack_kind, ack) = relative(input, form >> 5);
        let what = input.byte();
        let payload = match what & 7 {
            0..3 => 0,
            3 => 1,
            4 => 100,
            5 => 1400,
            6 => usize::from(input.word() % 1448),
            _ => 536,
        };
        let window = if what & 8 == 0 { 0x8000 } else { input.number() as u16 };
        let urgent = if what & 0x80 == 0 { 0 } else { input.word() };
        let (options, raw) = if what & 0x10 == 0 { (usual(flags), None) } else { options(input) };
        let ecn = if what & 0x20 == 0 { Ecn::NotEct } else { Ecn::from_bits(input.byte()) };
        let is_damaged = what & 0x40 != 0 && input.byte() < 16;
        Self {
            peer,
            flags,
            seq_kind,
            seq,
            ack_kind,
            ack,
            window,
            urgent,
            options,
            raw,
            payload,
            ecn,
            is_damaged,
        }
    }
}

/// A kind (0: the expected number, 1: relative to it, 2: absolute) and a number.
fn relative(input: &mut Input<'_>, form: u8) -> (u8, u32) {
    match form & 3 {
        0 | 1 => (0, 0),
        2 => (1, input.number()),
        _ => (2, input.double()),
    }
}

/// The options that a common stack sends.
fn usual(flags: u8) -> TcpOptions {
    if flags & 2 == 0 {
        return TcpOptions::default();
    }
    TcpOptions { mss: Some(1460), window_scale: Some(7), sack_permitted: true, ..TcpOptions::default() }
}

fn options(input: &mut Input<'_>) -> (TcpOptions, Option<Vec<u8>>) {
    let which = input.byte();
    if which & 0x80 != 0 {
        return (TcpOptions::default(), Some(input.bytes(40)));
    }
    let mut found = TcpOptions {
        mss: (which & 1 != 0).then(|| input.number() as u16),
        window_scale: (which & 2 != 0).then(|| input.byte() % 15),
        sack_permitted: which & 4 != 0,
        ..TcpOptions::default()
    };
    if which & 8 != 0 {
        found.timestamps = Some(Timestamps { value: input.number(), echo: input.number() });
    }
    if which & 16 != 0 {
        for _ in 0..1 + input.byte() % 3 {
            // Relative to the host's last sequence number; `relative_to` makes it absolute.
            let (left, len) = (input.number(), input.number());
            found.sack.push(SackBlock { left: SeqNumber(left), right: SeqNumber(left.wrapping_add(len)) });
        }
    }
    (found, None)
}

impl Peers {
    pub(crate) fn new() -> Self {
        Self { known: [Known::default(); PEERS] }
    }

    /// The address of a peer, and the host's port of a connection to it.
    #[allow(clippy::unused_self, reason = "the addresses belong to the peers")]
    pub(crate) fn address(&self, which: usize) -> (SocketAddr, u16) {
        let which = which % (PEERS / 2);
        (SocketAddr::new(ip(which), 2000 + which as u16), OPENED + which as u16)
    }

    /// True until the peer has acknowledged something that the host sent.
    pub(crate) fn is_stranger(&self, peer: Peer) -> bool {
        !self.known[peer.0].is_proven
    }

    /// Learns from a frame that the host sent. Returns the peer it was sent to.
    pub(crate) fn learn(&mut self, frame: &[u8]) -> Option<Peer> {
        let packet = Packet::parse(frame, RxChecksum::Verify).ok()?;
        let Body::Tcp(tcp) = packet.body else { return None };
        let peer = (0..PEERS).find(|i| ip(*i) == tcp.ip.dst && host_port(*i) == tcp.header.src_port)?;
        let known = &mut self.known[peer];
        let header = &tcp.header;
        if header.flags.contains(TcpFlags::RST) {
            return Some(Peer(peer));
        }
        let len = tcp.payload.end - tcp.payload.start;
        let len = header.sequence_len(len as usize);
        if header.flags.contains(TcpFlags::SYN) && known.isn != Some(header.seq) {
            // A new connection: forget the state of the earlier one.
            *known = Known { isn: Some(header.seq), sent: header.seq, ..Known::default() };
        }
        known.sent = known.sent.later_of(header.seq.plus(len));
        if header.flags.contains(TcpFlags::ACK) {
            known.next = header.ack;
        }
        known.window = header.window;
        known.timestamp = tcp.options.timestamps.map_or(known.timestamp, |ts| ts.value);
        Some(Peer(peer))
    }

    /// Builds the frame that `step` describes.
    pub(crate) fn segment(&mut self, step: &Step) -> Vec<u8> {
        let Peer(which) = step.peer;
        let known = &mut self.known[which];
        let seq = resolve(step.seq_kind, step.seq, known.next);
        let ack = resolve(step.ack_kind, step.ack, known.sent);
        let flags = TcpFlags::from_bits(u16::from(step.flags));
        // The acknowledged number proves it: only a receiver of our SYN can know that number.
        known.is_proven |= flags.contains(TcpFlags::ACK)
            && known.isn.is_some_and(|isn| isn.is_before(ack) && ack.is_at_or_before(known.sent));
        let mut options = step.options;
        options.timestamps = options
            .timestamps
            .map(|ts| Timestamps { value: ts.value, echo: known.timestamp.wrapping_add(ts.echo) });
        options.sack = relative_to(known.sent, &step.options);
        if flags.contains(TcpFlags::SYN) {
            options.sack = wire::SackBlocks::EMPTY;
        }
        let header =
            TcpHeader { src_port: 0, dst_port: 0, seq, ack, flags, window: step.window, urgent: step.urgent };
        let port = host_port(which);
        let tuple = FourTuple::new(Endpoint::new(ip(which), 2000 + which as u16), Endpoint::new(HOST, port));
        frame(&tuple, &header, options, step)
    }

    /// Builds an ICMP error about a segment that the host may have sent.
    pub(crate) fn icmp_error(&mut self, input: &mut Input<'_>) -> (Peer, Vec<u8>) {
        let which = usize::from(input.byte()) % PEERS;
        let known = &self.known[which];
        let (kind, code, rest) = (input.byte() % 13, input.byte() % 16, input.number());
        let (seq_kind, seq) = relative(input, input_form(known));
        let seq = resolve(seq_kind, seq, known.sent.minus(1));
        let port = host_port(which);
        let mut message = vec![0; 8 + 20 + 8];
        (message[0], message[1]) = (kind, code);
        message[4..8].copy_from_slice(&rest.to_be_bytes());
        let quoted = wire::Ipv4Header::new(v4(HOST), ip_v4(which), IpProtocol::TCP, 20);
        let _ = quoted.emit(&mut message[8..28]);
        message[28..30].copy_from_slice(&port.to_be_bytes());
        message[30..32].copy_from_slice(&(2000 + which as u16).to_be_bytes());
        message[32..36].copy_from_slice(&seq.0.to_be_bytes());
        let _ = checksum::fill(Sum::ZERO, &mut message, 2);
        (
            Peer(which),
            icmp_frame([PEER_MAC, MacAddr(MAC)], ip(which), HOST, 64, &message)
                .expect("HOST and peers are of one family"),
        )
    }
}

/// The form of the quoted sequence number: the expected number if there is a connection, else the fuzzer's.
fn input_form(known: &Known) -> u8 {
    if known.isn.is_some() { 0 } else { 2 }
}

fn resolve(kind: u8, number: u32, base: SeqNumber) -> SeqNumber {
    match kind {
        0 => base,
        1 => base.plus(number),
        _ => SeqNumber(number),
    }
}

fn relative_to(sent: SeqNumber, options: &TcpOptions) -> wire::SackBlocks {
    let mut blocks = wire::SackBlocks::EMPTY;
    for block in options.sack.as_slice() {
        blocks.push(SackBlock { left: sent.plus(block.left.0), right: sent.plus(block.right.0) });
    }
    blocks
}

/// The host's port in a peer's connection.
fn host_port(which: usize) -> u16 {
    if which < PEERS / 2 { OPENED + which as u16 } else { PORT }
}

fn ip_v4(which: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 10 + which as u8)
}

fn ip(which: usize) -> IpAddr {
    ip_v4(which).into()
}

fn v4(addr: IpAddr) -> Ipv4Addr {
    match addr {
        IpAddr::V4(addr) => addr,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

fn frame(tuple: &FourTuple, header: &TcpHeader, options: TcpOptions, step: &Step) -> Vec<u8> {
    // Space for raw options is part of the payload at first; their length is rounded down to a multiple of four.
    let raw = step.raw.as_deref().map(|raw| &raw[..raw.len() & !3]);
    let options = if options.encoded_len() > TcpOptions::LEN_MAX { TcpOptions::default() } else { options };
    let parameters = IpParameters { ecn: step.ecn, ..IpParameters::new(PEER_MAC, MacAddr(MAC)) };
    let start = tcp_headers_len(&parameters, tuple, &options);
    let extra = raw.map_or(0, <[u8]>::len);
    let mut bytes = vec![0x5A; start + extra + step.payload];
    // Raw options count as payload until the header length is corrected below.
    let payload = extra + step.payload;
    if emit_tcp(&parameters, tuple, header, &options, payload, TxChecksum::Full, &mut bytes).is_err() {
        return bytes;
    }
    if let Some(raw) = raw {
        bytes[start..start + extra].copy_from_slice(raw);
        let tcp = EthernetHeader::LEN + wire::Ipv4Header::LEN;
        let words = (start + extra - tcp) / 4;
        bytes[tcp + 12] = (words.min(15) as u8) << 4 | bytes[tcp + 12] & 0x0F;
        let len = bytes.len() - tcp;
        if let Some(pseudo) = checksum::pseudo(tuple.src.addr, tuple.dst.addr, IpProtocol::TCP, len) {
            let _ = checksum::fill(pseudo, &mut bytes[tcp..], TcpHeader::CHECKSUM_OFFSET);
        }
    }
    if step.is_damaged {
        let last = bytes.len() - 1;
        bytes[last] ^= 0x40;
    }
    bytes
}
