//! The floor of `bulk` over veth: processes that replace a service and its application, and move the same bytes with the same copies
//! between a packet socket, shared memory and a program's own buffer. They do only as much TCP as keeps the other end sending: they
//! acknowledge every segment, with a constant window. They check nothing and retransmit nothing.
//!
//! ```text
//!   sink     packet socket --> area --> program's buffer        source     program's buffer --> area --> packet socket
//!                carrier thread   program thread                        program thread    carrier thread
//! ```

mod area;

use super::sink::{Ask, Count, Each, TOLD_MAX};
use super::source::Open;
use crate::tap::link::{INTERFACE, Link};
use crate::tap::reflector::resolve;
use anyhow::{Context, bail};
use area::Area;
use base::SeqNumber;
use control::{Line, LineError};
use port::{Batch, Checksum, Gso, GsoKind, Lent, PacketBuf, Port, Ticket};
use port_packet::{PacketOptions, PacketQueue};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::sched_yield;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{
    Body, Endpoint, EthernetHeader, FourTuple, IpParameters, MacAddr, Packet, RxChecksum, TcpFlags,
    TcpHeader, TcpOptions, TcpPacket, TxChecksum, emit_tcp,
};

/// Role names of these processes.
pub const SINK: &str = "bulk-carrier-sink";
pub const SOURCE: &str = "bulk-carrier-source";

const MSS: u16 = 1460;
/// Payload bytes of a super-frame.
const BURST: usize = 44 * MSS as usize;
/// The receive window of a flow in bytes: all windows together fit into a packet socket's buffer.
const WINDOW: u32 = 256 * 1024;
const WINDOW_SCALE: u8 = 7;
/// The first sequence number of a sink and of a source's flows, and the acknowledgement number in all segments of a source.
const FIRST: SeqNumber = SeqNumber(1_000);
/// The local port of a source's first flow; the next flows use the next ports.
const PORTS: u16 = 20_000;
/// How long a carrier polls before it sleeps: as long as a service does.
const SPIN: Duration = Duration::from_micros(20);
/// A busy carrier looks at its control socket once in `LOOK` turns; a source sends up to `TURN` frames in a turn.
const LOOK: u64 = 64;
const TURN: usize = 4;
/// Offset of the TCP header in an IPv4 frame.
const TCP_AT: u16 = 14 + 20;

/// The network place of a carrier, sent to it first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The network namespace's name.
    pub namespace: String,
    /// The carrier's address in that namespace, which no other socket uses.
    pub own: Ipv4Addr,
    /// The address of the sink.
    pub to: SocketAddr,
    /// Flows that a source opens; 0 for a sink.
    pub flows: u16,
}

impl Orders {
    /// Orders for the process at that end of the link; `to` is the address of the sink.
    pub fn new(link: &Link, end: usize, to: SocketAddr, flows: u16) -> Self {
        Self { namespace: link.namespaces[end].name().to_owned(), own: link.addresses[end], to, flows }
    }
}

/// State that a sink and a source both have.
struct Carrier {
    port: PacketQueue,
    mac: MacAddr,
    area: Arc<Area>,
}

impl Carrier {
    fn new(namespace: String) -> anyhow::Result<Self> {
        let options = PacketOptions { namespace: Some(namespace), ..PacketOptions::new(INTERFACE) };
        let mut interface = port_packet::open(&options).context("cannot open a packet socket")?;
        let port = interface.queues.pop().context("an interface has a queue")?;
        Ok(Self { port, mac: MacAddr(interface.mac), area: Arc::new(Area::new()) })
    }

    /// Sends a segment with the area's oldest `payload` bytes as data. False if the port has no room.
    fn send(
        &mut self,
        to: MacAddr,
        tuple: &FourTuple,
        header: &TcpHeader,
        options: &TcpOptions,
        payload: usize,
    ) -> bool {
        let Some(buf) = self.port.reserve() else { return false };
        let ip = IpParameters::new(self.mac, to);
        let storage = buf.storage_mut();
        let Ok(len) = emit_tcp(&ip, tuple, header, options, payload, TxChecksum::Partial, storage) else {
            return true;
        };
        buf.set_len(len);
        buf.meta.checksum = Checksum::Partial { start: TCP_AT, offset: TcpHeader::CHECKSUM_OFFSET as u16 };
        if payload > usize::from(MSS) {
            let kind = GsoKind::TcpV4;
            buf.meta.gso = Some(Gso { kind, segment_size: MSS, header_len: len as u16, ecn: false });
        }
        self.port.commit_with(self.area.filled(payload));
        self.area.consume(payload);
        true
    }
}

/// A sink or a source.
trait End {
    fn carrier(&self) -> &Carrier;
    /// Handles the packets that are there. Returns 0 if there was nothing to do.
    fn turn(&mut self) -> usize;
    /// Answers a request from the control socket.
    fn answer(&mut self, ask: Ask, line: &Line) -> anyhow::Result<()>;
    fn is_over(&self) -> bool;
}

/// Calls `turn` until the end is over or the control socket is closed. Sleeps after as long without work as a service polls.
fn run(end: &mut impl End, line: &Line) -> anyhow::Result<()> {
    let mut quiet_since = None;
    for turns in 0_u64.. {
        let is_busy = end.turn() > 0;
        if is_busy {
            quiet_since = None;
        } else if quiet_since.get_or_insert_with(Instant::now).elapsed() < SPIN {
            sched_yield();
        } else {
            let port = end.carrier().port.wait_fd().context("a packet socket is a descriptor")?;
            let mut waits = [PollFd::new(&port, PollFlags::IN), PollFd::new(line, PollFlags::IN)];
            poll(&mut waits, None)?;
            quiet_since = None;
        }
        if turns.is_multiple_of(LOOK) || !is_busy {
            match line.receive::<Ask>(false) {
                Ok(asked) => end.answer(asked.message, line)?,
                Err(LineError::WouldBlock) => {}
                // The benchmark has closed the control socket: the measurement is over.
                Err(_) => return Ok(()),
            }
        }
        if end.is_over() {
            return Ok(());
        }
    }
    Ok(())
}

fn header(tuple: &FourTuple, seq: SeqNumber, ack: SeqNumber, flags: TcpFlags) -> TcpHeader {
    let window = (WINDOW >> WINDOW_SCALE) as u16;
    TcpHeader { src_port: tuple.src.port, dst_port: tuple.dst.port, seq, ack, flags, window, urgent: 0 }
}

/// The receiving end of the flows.
struct Sink {
    carrier: Carrier,
    /// `None` while the frames of the batch are handled.
    batch: Option<Batch>,
    /// The index into `bytes` of each flow, by the source's port.
    flows: HashMap<u16, usize>,
    bytes: Vec<u64>,
    /// If true, every segment with payload or SYN is answered by a reset.
    is_reset: bool,
}

/// The main function of a sink. It returns when the control socket is closed.
pub fn sink(line: &Line) -> anyhow::Result<()> {
    let orders = line.receive::<Orders>(true)?.message;
    let carrier = Carrier::new(orders.namespace)?;
    let area = carrier.area.clone();
    std::thread::spawn(move || area.drain());
    let (flows, bytes) = (HashMap::new(), Vec::new());
    let mut sink = Sink { carrier, batch: Some(Batch::new()), flows, bytes, is_reset: false };
    line.send(&sink.count(), &[], true)?;
    run(&mut sink, line)
}

impl Sink {
    fn count(&self) -> Count {
        let bytes = self.bytes.iter().sum();
        Count { connections: self.bytes.len() as u64, bytes, at_ns: crate::clock::now_ns() }
    }

    fn frame(&mut self, packet: &PacketBuf) {
        match Packet::parse(packet.frame(), RxChecksum::Partial) {
            Ok(Packet { body: Body::Arp(_), .. }) => {
                let Some(buf) = self.carrier.port.reserve() else { return };
                if buf.fill(packet.frame()) && resolve(buf.frame_mut(), self.carrier.mac.0).is_some() {
                    self.carrier.port.commit();
                }
            }
            Ok(Packet { ethernet, body: Body::Tcp(tcp) }) => {
                self.segment(&ethernet, &tcp, packet.frame(), packet.ticket());
            }
            _ => {}
        }
    }

    fn segment(&mut self, ethernet: &EthernetHeader, tcp: &TcpPacket, frame: &[u8], ticket: Option<Ticket>) {
        let (from, len) = (tcp.header.src_port, tcp.payload.len());
        let is_syn = tcp.header.flags.contains(TcpFlags::SYN);
        if len == 0 && !is_syn {
            return;
        }
        let flow = *self.flows.entry(from).or_insert(self.bytes.len());
        if flow == self.bytes.len() {
            self.bytes.push(0);
        }
        let Carrier { port, area, .. } = &mut self.carrier;
        let place = |into: Lent<'_>| match ticket {
            Some(ticket) => port.take(frame, ticket, tcp.payload.start as usize, into),
            None => {
                into.fill(tcp.payload.of(frame));
                true
            }
        };
        if !self.is_reset && area.put(len, place) {
            self.bytes[flow] += len as u64;
        }
        let tuple = tcp.tuple().reversed();
        let ack = tcp.header.seq.plus(len as u32 + u32::from(is_syn));
        let answer = |seq, flags| header(&tuple, seq, ack, TcpFlags::ACK.with(flags));
        let (answer, options) = if self.is_reset {
            (answer(tcp.header.ack, TcpFlags::RST), TcpOptions::NONE)
        } else if is_syn {
            let (mss, window_scale) = (Some(MSS), Some(WINDOW_SCALE));
            (answer(FIRST, TcpFlags::SYN), TcpOptions { mss, window_scale, ..TcpOptions::NONE })
        } else {
            (answer(tcp.header.ack, TcpFlags::NONE), TcpOptions::NONE)
        };
        // If the port has no room, this acknowledgement is lost; a later one covers the same bytes.
        self.carrier.send(ethernet.src, &tuple, &answer, &options, 0);
    }
}

impl End for Sink {
    fn carrier(&self) -> &Carrier {
        &self.carrier
    }

    fn turn(&mut self) -> usize {
        let Some(mut batch) = self.batch.take() else { return 0 };
        let count = self.carrier.port.receive_heads(&mut batch);
        batch.packets().iter().for_each(|packet| self.frame(packet));
        self.batch = Some(batch);
        self.carrier.port.flush();
        self.carrier.area.wake();
        count
    }

    fn answer(&mut self, ask: Ask, line: &Line) -> anyhow::Result<()> {
        self.is_reset |= ask == Ask::Reset;
        if ask == Ask::Each {
            let bytes = self.bytes.iter().copied().take(TOLD_MAX).collect();
            let total = self.bytes.iter().sum();
            line.send(&Each { bytes, total, at_ns: crate::clock::now_ns() }, &[], true)?;
        } else {
            line.send(&self.count(), &[], true)?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        false
    }
}

/// The sending end of the flows.
struct Source {
    carrier: Carrier,
    /// `None` while the frames of the batch are handled.
    batch: Option<Batch>,
    tuples: Vec<FourTuple>,
    /// The next sequence number to send, and the highest one acknowledged, by flow.
    sent: Vec<SeqNumber>,
    acknowledged: Vec<SeqNumber>,
    next: usize,
    is_reset: bool,
}

/// The main function of a source. It returns when a reset arrives or the control socket is closed.
pub fn source(line: &Line) -> anyhow::Result<()> {
    let orders = line.receive::<Orders>(true)?.message;
    let carrier = Carrier::new(orders.namespace)?;
    let to = Endpoint::new(orders.to.ip(), orders.to.port());
    let tuple = |i| FourTuple { src: Endpoint::new(orders.own.into(), PORTS + i), dst: to };
    line.send(&Open(orders.flows), &[], true)?;
    line.receive::<Open>(true)?;
    let area = carrier.area.clone();
    std::thread::spawn(move || area.fill());
    let mut source = Source {
        carrier,
        batch: Some(Batch::new()),
        tuples: (0..orders.flows).map(tuple).collect(),
        sent: vec![FIRST; orders.flows.into()],
        acknowledged: vec![FIRST; orders.flows.into()],
        next: 0,
        is_reset: false,
    };
    run(&mut source, line)
}

impl Source {
    /// Takes the acknowledgement number of a segment, or notes a reset.
    fn frame(&mut self, packet: &PacketBuf) {
        let Ok(Packet { body: Body::Tcp(tcp), .. }) = Packet::parse(packet.frame(), RxChecksum::Partial)
        else {
            return;
        };
        self.is_reset |= tcp.header.flags.contains(TcpFlags::RST);
        let flow = usize::from(tcp.header.dst_port.wrapping_sub(PORTS));
        if let Some(acknowledged) = self.acknowledged.get_mut(flow) {
            *acknowledged = tcp.header.ack;
        }
    }

    /// Sends a super-frame of the next flow that has enough window. False if no flow has, the area has too few bytes or the port is full.
    fn send(&mut self) -> bool {
        if self.carrier.area.len() < BURST {
            return false;
        }
        let flows = self.tuples.len();
        let may = |flow: &usize| self.sent[*flow].since(self.acknowledged[*flow]) + BURST as u32 <= WINDOW;
        let Some(flow) = (0..flows).map(|i| (self.next + i) % flows).find(may) else { return false };
        let tuple = self.tuples[flow];
        let header = header(&tuple, self.sent[flow], FIRST, TcpFlags::ACK.with(TcpFlags::PSH));
        if !self.carrier.send(MacAddr::BROADCAST, &tuple, &header, &TcpOptions::NONE, BURST) {
            return false;
        }
        self.sent[flow] = self.sent[flow].plus(BURST as u32);
        self.next = flow + 1;
        true
    }
}

impl End for Source {
    fn carrier(&self) -> &Carrier {
        &self.carrier
    }

    fn turn(&mut self) -> usize {
        let Some(mut batch) = self.batch.take() else { return 0 };
        let heard = self.carrier.port.receive(&mut batch);
        batch.packets().iter().for_each(|packet| self.frame(packet));
        self.batch = Some(batch);
        let sent = (0..TURN).take_while(|_| self.send()).count();
        self.carrier.port.flush();
        self.carrier.area.wake();
        // The program's thread cannot wake this thread through a descriptor: while the area has too few bytes, do not sleep.
        heard + sent + usize::from(self.carrier.area.len() < BURST)
    }

    fn answer(&mut self, _ask: Ask, _line: &Line) -> anyhow::Result<()> {
        bail!("a source is asked nothing")
    }

    fn is_over(&self) -> bool {
        self.is_reset
    }
}
