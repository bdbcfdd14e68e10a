//! The peer: knows from the host's segments what is in flight, and says of it what it is told to say.

use super::{HOST, MAC as HOST_MAC, PORT, Terms};
use base::{Instant, SeqNumber};
use std::net::{IpAddr, Ipv4Addr};
use wire::{
    Body, Endpoint, FourTuple, IpParameters, MacAddr, Packet, RxChecksum, SackBlock, TcpFlags, TcpHeader,
    TcpOptions, Timestamps, TxChecksum, emit_tcp, tcp_headers_len,
};

/// Ethernet address of the peer.
pub(crate) const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OWN: Endpoint = Endpoint { addr: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), port: 2000 };
/// The peer's initial sequence number.
const ISN: SeqNumber = SeqNumber(5_000);
/// Blocks of one segment: as many as there is room for beside a timestamp.
const BLOCKS: usize = 3;

/// A segment with data that the host has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Got {
    /// When it came.
    pub at: Instant,
    /// Its first byte, counted from the first of the connection.
    pub from: u32,
    /// Number of its bytes.
    pub len: u32,
}

/// What the peer says in one segment. Numbers of bytes are counted from what it has acknowledged before.
#[derive(Clone, Copy, Debug)]
pub struct Saying {
    /// Acknowledges so many bytes more.
    pub ack: u32,
    /// Reports these ranges, each from its first byte to before its last; empty ones are left out.
    pub blocks: [(u32, u32); 3],
    /// The window, not scaled.
    pub window: u16,
    /// Bytes of data.
    pub payload: u16,
    /// Reports that bytes already acknowledged came again: so many, the last of them just acknowledged.
    pub duplicate: u32,
    /// Echoes an older timestamp, as if the first sending had arrived.
    pub is_early: bool,
}

impl Default for Saying {
    fn default() -> Self {
        Self { ack: 0, blocks: [(0, 0); 3], window: u16::MAX, payload: 0, duplicate: 0, is_early: false }
    }
}

/// The peer; see the module.
#[derive(Debug)]
pub(crate) struct Receiver {
    tuple: FourTuple,
    mss: u16,
    sack: bool,
    timestamps: bool,
    next: SeqNumber,
    /// The host's initial sequence number, what of its stream is acknowledged, and the end of what has come.
    isn: SeqNumber,
    una: SeqNumber,
    top: SeqNumber,
    /// The first timestamp and the last that the host has sent.
    stamps: (u32, u32),
    /// The peer's clock of timestamps: one for each segment.
    clock: u32,
}

impl Receiver {
    pub(crate) fn new(terms: &Terms) -> Self {
        let zero = SeqNumber(0);
        Self {
            tuple: FourTuple::new(OWN, Endpoint::new(HOST, PORT)),
            mss: terms.mss,
            sack: terms.sack,
            timestamps: terms.timestamps,
            next: ISN,
            isn: zero,
            una: zero,
            top: zero,
            stamps: (0, 0),
            clock: 1,
        }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.top.since(self.una)
    }

    /// The host has sent a frame. What data it carries.
    pub(crate) fn read(&mut self, at: Instant, frame: &[u8]) -> Option<Got> {
        let Ok(Packet { body: Body::Tcp(tcp), .. }) = Packet::parse(frame, RxChecksum::Verify) else {
            return None;
        };
        let header = &tcp.header;
        let flags = header.flags;
        if flags.contains(TcpFlags::RST) {
            return None;
        }
        let stamp = tcp.options.timestamps.map_or(0, |ts| ts.value);
        if flags.contains(TcpFlags::SYN) {
            (self.isn, self.una, self.top) = (header.seq, header.seq.plus(1), header.seq.plus(1));
            self.stamps.0 = stamp;
        }
        self.stamps.1 = stamp;
        let len = tcp.payload.len() as u32;
        let end = header.seq.plus(len + u32::from(flags.contains(TcpFlags::FIN)));
        self.top = self.top.later_of(end);
        (len > 0).then(|| Got { at, from: header.seq.since(self.isn.plus(1)), len })
    }

    pub(crate) fn syn(&mut self) -> Vec<u8> {
        let options = TcpOptions {
            mss: Some(self.mss),
            window_scale: Some(7),
            sack_permitted: self.sack,
            ..TcpOptions::default()
        };
        self.frame(TcpFlags::SYN, ISN, SeqNumber(0), u16::MAX, options, 0)
    }

    /// The third segment of the handshake.
    pub(crate) fn open(&mut self) -> Vec<u8> {
        self.next = ISN.plus(1);
        self.say(&Saying::default())
    }

    pub(crate) fn say(&mut self, saying: &Saying) -> Vec<u8> {
        let before = self.una;
        self.una = self.una.plus(saying.ack.min(self.in_flight()));
        let mut options = TcpOptions::default();
        if self.sack {
            let left = self.una.minus(saying.duplicate);
            if saying.duplicate > 0 {
                options.sack.push(SackBlock { left, right: self.una });
            }
            let room = BLOCKS - options.sack.as_slice().len();
            for (from, to) in saying.blocks.into_iter().filter(|(from, to)| from < to).take(room) {
                options.sack.push(SackBlock { left: before.plus(from), right: before.plus(to) });
            }
        }
        let echo = if saying.is_early { self.stamps.0 } else { self.stamps.1 };
        if self.timestamps {
            options.timestamps = Some(Timestamps { value: 0, echo });
        }
        let seq = self.next;
        self.next = self.next.plus(u32::from(saying.payload));
        self.frame(TcpFlags::ACK, seq, self.una, saying.window, options, usize::from(saying.payload))
    }

    fn frame(
        &mut self,
        flags: TcpFlags,
        seq: SeqNumber,
        ack: SeqNumber,
        window: u16,
        options: TcpOptions,
        payload: usize,
    ) -> Vec<u8> {
        self.clock += 1;
        let mut options = options;
        if self.timestamps {
            let echo = options.timestamps.map_or(0, |ts| ts.echo);
            options.timestamps = Some(Timestamps { value: self.clock, echo });
        }
        let header = TcpHeader { src_port: 0, dst_port: 0, seq, ack, flags, window, urgent: 0 };
        let parameters = IpParameters::new(MAC, MacAddr(HOST_MAC));
        let start = tcp_headers_len(&parameters, &self.tuple, &options);
        let mut frame = vec![0x5A; start + payload];
        emit_tcp(&parameters, &self.tuple, &header, &options, payload, TxChecksum::Full, &mut frame)
            .expect("three blocks and a timestamp fit");
        frame
    }
}
