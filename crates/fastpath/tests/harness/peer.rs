//! A peer that speaks packets: the far end of a memory link under a test's hand.

use crate::harness::{MAC_A, MAC_B};
use base::SeqNumber;
use port::{Batch, Gso, GsoKind, PacketBuf, Port};
use port_memory::MemoryPort;
use wire::{
    Ecn, Endpoint, FourTuple, IpParameters, MacAddr, Packet, RxChecksum, TcpFlags, TcpHeader, TcpOptions,
    TcpPacket, TxChecksum,
};

/// Of a segment on a link of 1,500 bytes.
const HEADERS: usize = 66;
const MSS: usize = 1448;

pub struct Peer {
    pub port: MemoryPort,
    pub tuple: FourTuple,
    /// Sequence number of our stream's first byte and of theirs.
    pub iss: u32,
    pub irs: u32,
    pub window: u16,
    /// The urgent pointer of segments with URG.
    pub urgent: u16,
    pub ts: Option<(u32, u32)>,
    pub ecn: Ecn,
    /// Blocks for the segments sent from now on, relative to the host's first number.
    pub sack: Vec<(u32, u32)>,
    batch: Batch,
}

/// A segment that the host sent, relative to the initial numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Got {
    pub seq: u32,
    pub ack: u32,
    pub flags: TcpFlags,
    pub window: u16,
    pub urgent: u16,
    pub payload: Vec<u8>,
    pub sack: Vec<(u32, u32)>,
    pub ecn: Ecn,
    pub options: TcpOptions,
    /// IPv4's TTL.
    pub hops: u8,
}

impl Peer {
    pub fn new(port: MemoryPort, local: Endpoint, peer: Endpoint, iss: u32, irs: u32) -> Self {
        let tuple = FourTuple::new(local, peer);
        Self {
            port,
            tuple,
            iss,
            irs,
            window: 512,
            urgent: 0,
            ts: Some((1, 0)),
            ecn: Ecn::NotEct,
            sack: vec![],
            batch: Batch::new(),
        }
    }

    pub fn frame(&self, seq: u32, ack: u32, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        let mut parameters = IpParameters::new(MacAddr(MAC_B), MacAddr(MAC_A));
        parameters.ecn = self.ecn;
        let mut options = self.ts.map_or(TcpOptions::NONE, |(v, e)| TcpOptions::with_timestamps(v, e));
        for (left, right) in &self.sack {
            let at = |n: u32| SeqNumber(self.irs.wrapping_add(n));
            assert!(options.sack.push(wire::SackBlock { left: at(*left), right: at(*right) }));
        }
        let header = TcpHeader {
            src_port: 0,
            dst_port: 0,
            seq: SeqNumber(self.iss.wrapping_add(seq)),
            ack: SeqNumber(self.irs.wrapping_add(ack)),
            flags,
            window: self.window,
            urgent: self.urgent,
        };
        let start = wire::tcp_headers_len(&parameters, &self.tuple, &options);
        let mut frame = vec![0; start + payload.len()];
        frame[start..].copy_from_slice(payload);
        wire::emit_tcp(
            &parameters,
            &self.tuple,
            &header,
            &options,
            payload.len(),
            TxChecksum::Full,
            &mut frame,
        )
        .unwrap();
        frame
    }

    pub fn inject(&mut self, frame: &[u8]) {
        let buf: &mut PacketBuf = self.port.reserve().unwrap();
        assert!(buf.fill(frame));
        if frame.len() > HEADERS + MSS {
            // A super-frame, as a port with segmentation gives it: IPv4, with timestamps.
            let (header_len, segment_size) = (HEADERS as u16, MSS as u16);
            buf.meta.checksum = port::Checksum::Partial { start: 34, offset: 16 };
            buf.meta.gso = Some(Gso { kind: GsoKind::TcpV4, segment_size, header_len, ecn: false });
        }
        self.port.commit();
        self.port.flush();
    }

    pub fn send(&mut self, seq: u32, ack: u32, flags: TcpFlags, payload: &[u8]) {
        let frame = self.frame(seq, ack, flags, payload);
        self.inject(&frame);
    }

    pub fn data(&mut self, seq: u32, ack: u32, payload: &[u8]) {
        self.send(seq, ack, TcpFlags::ACK.with(TcpFlags::PSH), payload);
    }

    pub fn ack(&mut self, seq: u32, ack: u32) {
        self.send(seq, ack, TcpFlags::ACK, &[]);
    }

    /// Everything the host has sent.
    pub fn take(&mut self) -> Vec<Got> {
        let mut all = Vec::new();
        loop {
            let n = self.port.receive(&mut self.batch);
            if n == 0 {
                return all;
            }
            for packet in self.batch.packets() {
                let rx =
                    if packet.meta.checksum.is_trusted() { RxChecksum::Partial } else { RxChecksum::Verify };
                let parsed = Packet::parse(packet.frame(), rx).unwrap();
                all.push(self.got(parsed.tcp().unwrap(), packet.frame()));
            }
        }
    }

    /// The same, as they came.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while self.port.receive(&mut self.batch) > 0 {
            all.extend(self.batch.packets().iter().map(|packet| packet.frame().to_vec()));
        }
        all
    }

    fn got(&self, tcp: &TcpPacket, frame: &[u8]) -> Got {
        let rel = |n: SeqNumber| n.0.wrapping_sub(self.iss);
        Got {
            seq: tcp.header.seq.0.wrapping_sub(self.irs),
            ack: rel(tcp.header.ack),
            flags: tcp.header.flags,
            window: tcp.header.window,
            urgent: tcp.header.urgent,
            payload: tcp.payload.of(frame).to_vec(),
            sack: tcp.options.sack.as_slice().iter().map(|b| (rel(b.left), rel(b.right))).collect(),
            ecn: tcp.ip.ecn,
            options: tcp.options,
            hops: frame[14 + 8],
        }
    }
}
