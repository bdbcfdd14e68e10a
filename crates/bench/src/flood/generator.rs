//! The far end: clients without a stack, and the flood.

use super::{FAR_MAC, FLOWS, SERVICE_MAC};
use crate::clock;
use anyhow::bail;
use base::SeqNumber;
use port::{Batch, Checksum, Port};
use port_memory::MemoryPort;
use std::collections::HashMap;
use std::time::Duration;
use wire::{Endpoint, FourTuple, IpParameters, MacAddr, TcpFlags, TcpHeader, TcpOptions, TxChecksum};

const REQUEST: usize = 64;
/// Ethernet and IPv4.
const TCP_AT: usize = 34;
/// The first port of flows, and of connections opened meanwhile.
const PORTS: [u16; 2] = [2000, 10_000];
/// Frames of the flood at once.
const BURST: u64 = 512;
/// Headers of the largest frame here.
const HEADERS_MAX: usize = 128;

/// What a run is to offer.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub rpcs_per_second: f64,
    pub syns_per_second: u64,
    pub opens_per_second: u64,
}

/// What it saw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub rpcs: u64,
    pub syns: u64,
    /// SYN-ACKs for SYNs of the flood.
    pub answers: u64,
    pub opens: u64,
    /// New connections that got their first reply.
    pub opened: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Self) {
        self.rpcs += other.rpcs;
        self.syns += other.syns;
        self.answers += other.answers;
        self.opens += other.opens;
        self.opened += other.opened;
    }
}

/// One client.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    is_open: bool,
    is_waiting: bool,
    snd_nxt: u32,
    rcv_nxt: u32,
    ts_recent: u32,
}

pub struct Generator {
    port: MemoryPort,
    batch: Batch,
    flows: Vec<Client>,
    /// Connections opened meanwhile, by port.
    young: HashMap<u16, Client>,
    next_young: u16,
    syn: Vec<u8>,
    random: u64,
    seen: Seen,
}

/// What a received segment says.
struct Arrived {
    port: u16,
    seq: u32,
    flags: u8,
    ts_value: u32,
    payload: u32,
}

fn word(frame: &[u8], at: usize) -> Option<u32> {
    frame.get(at..at + 4)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn half(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn parse(frame: &[u8]) -> Option<Arrived> {
    if frame.get(12..14)? != [8, 0] || *frame.get(23)? != 6 {
        return None;
    }
    let (total, header) = (u32::from(half(frame, 16)?), u32::from(*frame.get(TCP_AT + 12)? >> 4) * 4);
    // Timestamps stand where every stack puts them: behind two pads, in a SYN-ACK behind MSS and SACK-permitted.
    let flags = *frame.get(TCP_AT + 13)?;
    let options = frame.get(TCP_AT + 20..TCP_AT + header as usize)?;
    let ts = options.windows(2).position(|pair| pair == [8, 10]);
    let ts_value = ts.and_then(|at| word(options, at + 2)).unwrap_or(0);
    Some(Arrived {
        port: half(frame, TCP_AT + 2)?,
        seq: word(frame, TCP_AT + 4)?,
        flags,
        ts_value,
        payload: total - 20 - header,
    })
}

fn tuple(port: u16) -> FourTuple {
    let end = |last: u8, port| Endpoint::new([10, 0, 0, last].into(), port);
    FourTuple::new(end(2, port), end(1, 80))
}

fn offer() -> TcpOptions {
    TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        ..TcpOptions::with_timestamps(1, 0)
    }
}

impl Generator {
    pub fn new(port: MemoryPort) -> Self {
        let mut syn = vec![0; HEADERS_MAX];
        let header = header(0, 0, TcpFlags::SYN);
        let parameters = IpParameters::new(MacAddr(FAR_MAC), MacAddr(SERVICE_MAC));
        let len = wire::emit_tcp(&parameters, &tuple(1), &header, &offer(), 0, TxChecksum::Partial, &mut syn)
            .expect("headers fit");
        syn.truncate(len);
        Self {
            port,
            batch: Batch::new(),
            flows: vec![Client::default(); usize::from(FLOWS)],
            young: HashMap::new(),
            next_young: PORTS[1],
            syn,
            random: 0x9E37_79B9_7F4A_7C15,
            seen: Seen::default(),
        }
    }

    /// Opens all flows.
    pub fn establish(&mut self) -> anyhow::Result<()> {
        let until = clock::now_ns() + 10_000_000_000;
        let mut again_at = 0;
        while self.flows.iter().any(|flow| !flow.is_open) {
            if clock::now_ns() >= until {
                bail!("the flows could not be opened within 10 s");
            }
            if clock::now_ns() >= again_at {
                again_at = clock::now_ns() + 1_000_000_000;
                let closed = (0..FLOWS).filter(|i| !self.flows[usize::from(*i)].is_open);
                closed.collect::<Vec<_>>().into_iter().for_each(|i| self.open(PORTS[0] + i));
                self.port.flush();
            }
            self.take();
        }
        Ok(())
    }

    /// RPCs a second with one request on each flow at any time.
    pub fn peak(&mut self, time: Duration) -> f64 {
        let start = clock::now_ns();
        let until = start + time.as_nanos() as u64;
        let before = self.seen.rpcs;
        while clock::now_ns() < until {
            for i in 0..FLOWS {
                if !self.flows[usize::from(i)].is_waiting {
                    self.request(PORTS[0] + i);
                }
            }
            self.port.flush();
            self.take();
        }
        (self.seen.rpcs - before) as f64 * 1e9 / (clock::now_ns() - start) as f64
    }

    /// Offers `load` for so long.
    pub fn run(&mut self, time: Duration, load: Load) -> Seen {
        self.seen = Seen::default();
        self.young.clear();
        let start = clock::now_ns();
        let (mut asked, mut turn) = (0u64, 0u16);
        loop {
            let elapsed = clock::now_ns() - start;
            if elapsed >= time.as_nanos() as u64 {
                return self.seen;
            }
            let due = |per_second: f64| (elapsed as f64 * per_second / 1e9) as u64;
            // Each RPC has its time; a flow that still waits then has lost it.
            let owed = due(load.rpcs_per_second).min(asked + u64::from(FLOWS));
            while asked < owed {
                (asked, turn) = (asked + 1, (turn + 1) % FLOWS);
                if !self.flows[usize::from(turn)].is_waiting {
                    self.request(PORTS[0] + turn);
                }
            }
            asked = asked.max(due(load.rpcs_per_second).saturating_sub(u64::from(FLOWS)));
            let syns = due(load.syns_per_second as f64).saturating_sub(self.seen.syns);
            (0..syns.min(BURST)).for_each(|_| self.flood());
            if self.seen.opens < due(load.opens_per_second as f64) {
                self.seen.opens += 1;
                self.next_young = self.next_young.checked_add(1).unwrap_or(PORTS[1]);
                self.open(self.next_young);
            }
            self.port.flush();
            self.take();
        }
    }

    fn flood(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let Some(buf) = self.port.reserve() else { return };
        if !buf.fill(&self.syn) {
            return;
        }
        let frame = buf.frame_mut();
        let random = self.random.to_be_bytes();
        // 10.1-200.x.y, any port below those of the clients, any sequence number. With the header's sum left to the port, so
        // that only the IPv4 header's has to be right.
        let source = [10, 1 + random[0] % 200, random[1], 1 + random[2] % 250];
        frame[26..30].copy_from_slice(&source);
        frame[TCP_AT..TCP_AT + 2].copy_from_slice(&(1 + u16::from(random[3])).to_be_bytes());
        frame[TCP_AT + 4..TCP_AT + 8].copy_from_slice(&random[4..]);
        frame[24..26].copy_from_slice(&[0, 0]);
        let mut sum = (14..34).step_by(2).map(|at| u32::from(half(frame, at).unwrap_or(0))).sum::<u32>();
        sum = (sum & 0xFFFF) + (sum >> 16);
        sum = (sum & 0xFFFF) + (sum >> 16);
        frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        buf.meta.checksum = Checksum::Partial { start: TCP_AT as u16, offset: 16 };
        self.port.commit();
        self.seen.syns += 1;
    }

    fn client(&mut self, port: u16) -> Option<&mut Client> {
        match port.checked_sub(PORTS[0]) {
            Some(i) if i < FLOWS => self.flows.get_mut(usize::from(i)),
            _ => self.young.get_mut(&port),
        }
    }

    fn open(&mut self, port: u16) {
        if port >= PORTS[1] {
            self.young.insert(port, Client::default());
        }
        let isn = u32::from(port) << 8;
        if let Some(client) = self.client(port) {
            client.snd_nxt = isn.wrapping_add(1);
        }
        self.send(port, &header(isn, 0, TcpFlags::SYN), &offer(), 0);
    }

    fn request(&mut self, port: u16) {
        let Some(client) = self.client(port) else { return };
        client.is_waiting = true;
        let (seq, ack, echo) = (client.snd_nxt, client.rcv_nxt, client.ts_recent);
        client.snd_nxt = seq.wrapping_add(REQUEST as u32);
        let options = TcpOptions::with_timestamps((clock::now_ns() / 1_000_000) as u32, echo);
        self.send(port, &header(seq, ack, TcpFlags::ACK.with(TcpFlags::PSH)), &options, REQUEST);
    }

    fn send(&mut self, port: u16, header: &TcpHeader, options: &TcpOptions, payload: usize) {
        let parameters = IpParameters::new(MacAddr(FAR_MAC), MacAddr(SERVICE_MAC));
        let Some(buf) = self.port.reserve() else { return };
        let tuple = tuple(port);
        let start = wire::tcp_headers_len(&parameters, &tuple, options);
        let storage = buf.storage_mut();
        let sum = TxChecksum::Partial;
        if wire::emit_tcp(&parameters, &tuple, header, options, payload, sum, storage).is_ok() {
            buf.set_len(start + payload);
            buf.meta.checksum = Checksum::Partial { start: TCP_AT as u16, offset: 16 };
            self.port.commit();
        }
    }

    /// Takes in what came.
    fn take(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        while self.port.receive(&mut batch) > 0 {
            for packet in batch.packets() {
                if let Some(arrived) = parse(packet.frame()) {
                    self.arrived(&arrived);
                }
            }
        }
        self.batch = batch;
        self.port.flush();
    }

    fn arrived(&mut self, got: &Arrived) {
        let is_syn = got.flags & 2 != 0;
        let Some(client) = self.client(got.port) else {
            self.seen.answers += u64::from(is_syn);
            return;
        };
        client.ts_recent = got.ts_value;
        if is_syn {
            if !std::mem::replace(&mut client.is_open, true) {
                client.rcv_nxt = got.seq.wrapping_add(1);
            }
            // The final acknowledgement, with the first request.
            return self.request(got.port);
        }
        if got.payload == 0 {
            return;
        }
        client.rcv_nxt = got.seq.wrapping_add(got.payload);
        client.is_waiting = false;
        if got.port < PORTS[1] {
            self.seen.rpcs += 1;
            return;
        }
        // It has been served: exactly at its place, a reset ends it.
        let (seq, ack) = (client.snd_nxt, client.rcv_nxt);
        self.young.remove(&got.port);
        self.seen.opened += 1;
        self.send(got.port, &header(seq, ack, TcpFlags::RST), &TcpOptions::NONE, 0);
    }
}

fn header(seq: u32, ack: u32, flags: TcpFlags) -> TcpHeader {
    let (seq, ack) = (SeqNumber(seq), SeqNumber(ack));
    TcpHeader { src_port: 0, dst_port: 0, seq, ack, flags, window: 512, urgent: 0 }
}
