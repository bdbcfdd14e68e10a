//! The peers: what each knows of its connection from what the host sent, and segments made of that and of bytes.

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

/// Where all peers are.
pub(crate) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Peers; the second half opens to the host's listener, the first is opened to from the host's ports 1000 and up.
const PEERS: usize = 8;
const OPENED: u16 = 1000;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer(usize);

/// What a peer has learned.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The sequence number that the host expects.
    next: SeqNumber,
    /// One after what the host has sent.
    sent: SeqNumber,
    /// Its initial sequence number, once it has sent a SYN.
    isn: Option<SeqNumber>,
    /// The host's last timestamp.
    timestamp: u32,
    /// The host's last window.
    window: u16,
    /// It has shown that it receives what the host sends.
    is_proven: bool,
}

pub(crate) struct Peers {
    known: [Known; PEERS],
}

/// A segment as bytes describe it.
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
    /// Put in the place of the options as they are.
    raw: Option<Vec<u8>>,
    payload: usize,
    ecn: Ecn,
    is_damaged: bool,
}

impl Step {
    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        let (peer, form) = (Peer(usize::from(input.byte()) % PEERS), input.byte());
        // The likely flags are short to say.
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

/// How a number is meant, and the number.
fn relative(input: &mut Input<'_>, form: u8) -> (u8, u32) {
    match form & 3 {
        0 | 1 => (0, 0),
        2 => (1, input.number()),
        _ => (2, input.double()),
    }
}

/// What a common stack would say.
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
            // Relative to what the host has sent; made absolute when the segment is.
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

    /// True until a peer has acknowledged something that the host sent.
    pub(crate) fn is_stranger(&self, peer: Peer) -> bool {
        !self.known[peer.0].is_proven
    }

    /// Takes in what the host sent, and says to whom.
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
            // A new connection: what was known is of an old one.
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

    /// The frame that `step` describes.
    pub(crate) fn segment(&mut self, step: &Step) -> Vec<u8> {
        let Peer(which) = step.peer;
        let known = &mut self.known[which];
        let seq = resolve(step.seq_kind, step.seq, known.next);
        let ack = resolve(step.ack_kind, step.ack, known.sent);
        let flags = TcpFlags::from_bits(u16::from(step.flags));
        // Proof: it names a number that only who received our SYN can know.
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

    /// An ICMP error about a segment that the host may have sent.
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

/// Errors about a connection are mostly about what it has just sent.
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

/// The host's end of a peer's connection.
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
    // Raw options are written over as many NOPs as they are long.
    let raw = step.raw.as_deref().map(|raw| &raw[..raw.len() & !3]);
    let options = if options.encoded_len() > TcpOptions::LEN_MAX { TcpOptions::default() } else { options };
    let parameters = IpParameters { ecn: step.ecn, ..IpParameters::new(PEER_MAC, MacAddr(MAC)) };
    let start = tcp_headers_len(&parameters, tuple, &options);
    let extra = raw.map_or(0, <[u8]>::len);
    let mut bytes = vec![0x5A; start + extra + step.payload];
    // Raw options count as payload until the header's length is put right.
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
