//! The far end: clients without a TCP stack. They make handshakes, send requests, read replies and reset. Frames are copies of a template;
//! no frame is lost or retransmitted.

use super::{FAR_MAC, NEAR, NEAR_MAC};
use crate::clock;
use anyhow::bail;
use base::SeqNumber;
use port::{Batch, Checksum, Port};
use port_memory::MemoryPort;
use std::collections::VecDeque;
use wire::{Endpoint, FourTuple, IpParameters, MacAddr, TcpFlags, TcpHeader, TcpOptions, TxChecksum};

/// Offset of the TCP header, after the Ethernet and IPv4 headers.
pub const TCP_AT: usize = 34;
/// Payload bytes of the largest segment.
const SEGMENT_MAX: usize = 1448;
/// Offset of the two timestamps in all frames but SYN: after the TCP header, two NOPs, kind and length.
const TIMESTAMPS_AT: usize = TCP_AT + 24;
/// Number of clients per address.
const PER_HOST: u32 = 50_000;
const FIRST_PORT: u16 = 1024;
/// The third byte of the first clients' address.
const FIRST_HOST: u8 = 1;
/// The most handshakes under way at once, fewer than the service's backlog.
const OPENING: usize = 64;
/// Nanoseconds without progress after which open handshakes send their SYN again.
const AGAIN_NS: u64 = 1_000_000_000;
/// Nanoseconds until all connections must be open.
const PATIENCE_NS: u64 = 30_000_000_000;

/// An event for a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// The SYN-ACK has arrived; the first request carries the client's acknowledgement.
    Opened(u32),
    /// That many bytes arrived in order.
    Bytes { client: u32, len: u32 },
    /// A SYN-ACK that belongs to no client.
    Stranger,
}

/// The connection of a client.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    is_open: bool,
    snd_nxt: u32,
    rcv_nxt: u32,
    ts_recent: u32,
}

/// Kinds of frames that a client sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Frame {
    Syn,
    Request,
    Reset,
}

#[derive(Debug)]
struct Host {
    address: [u8; 4],
    /// The IPv4 header checksum of each kind of frame from this address.
    sums: [[u8; 2]; 3],
}

pub struct Far {
    port: MemoryPort,
    batch: Batch,
    clients: Vec<Client>,
    /// The third byte of the first clients' address.
    first_host: u8,
    hosts: Vec<Host>,
    /// The template of each kind of [`Frame`].
    frames: [Vec<u8>; 3],
    request_len: u32,
    /// Frames for which the port had no room yet, oldest first.
    unsent: VecDeque<(u32, Frame)>,
    began_ns: u64,
    now_ms: u32,
    /// Frames sent and received so far.
    pub frames_seen: u64,
    /// Value of `frames_seen` at the end of the last round.
    frames_before: u64,
}

impl Far {
    /// `clients` clients, none connected, that send requests of `request_len` bytes.
    pub fn new(port: MemoryPort, clients: u32, request_len: usize) -> Self {
        Self::at(port, FIRST_HOST, clients, request_len)
    }

    /// The same, from addresses of which `first_host` is the third byte of the first.
    pub fn at(port: MemoryPort, first_host: u8, clients: u32, request_len: usize) -> Self {
        assert!(request_len <= SEGMENT_MAX, "a request is one segment");
        let hosts: Vec<[u8; 4]> =
            (0..=clients / PER_HOST).map(|i| [10, 0, first_host + i as u8, 2]).collect();
        let segment = TcpOptions::with_timestamps(0, 0);
        let push = TcpFlags::ACK.with(TcpFlags::PSH);
        let frame = |address, frame: Frame| match frame {
            Frame::Syn => emit(address, TcpFlags::SYN, &offer(), 0),
            Frame::Request => emit(address, push, &segment, request_len),
            Frame::Reset => emit(address, TcpFlags::RST, &segment, 0),
        };
        let of = |address| [Frame::Syn, Frame::Request, Frame::Reset].map(|kind| frame(address, kind));
        let sums = |frames: [Vec<u8>; 3]| frames.map(|frame| [frame[24], frame[25]]);
        Self {
            batch: Batch::with_capacity(port.capabilities().frame_max),
            clients: vec![Client::default(); clients as usize],
            frames: of(hosts[0]),
            hosts: hosts.into_iter().map(|address| Host { address, sums: sums(of(address)) }).collect(),
            first_host,
            request_len: request_len as u32,
            unsent: VecDeque::with_capacity(clients as usize + 1),
            began_ns: clock::now_ns(),
            now_ms: 1,
            frames_seen: 0,
            frames_before: 0,
            port,
        }
    }

    /// Begins a client's handshake; any earlier connection of the client is forgotten.
    pub fn open(&mut self, client: u32) {
        // The new sequence numbers are beyond those of the earlier connection from the same port.
        let snd_nxt = self.clients[client as usize].snd_nxt.wrapping_add(1 << 20);
        self.clients[client as usize] = Client { snd_nxt, ..Client::default() };
        self.put(client, Frame::Syn);
    }

    /// Sends a request from a client.
    pub fn request(&mut self, client: u32) {
        self.put(client, Frame::Request);
    }

    /// Resets a connection. The sequence number is exactly the expected one, so the service accepts the reset at once.
    pub fn reset(&mut self, client: u32) {
        self.clients[client as usize].is_open = false;
        self.put(client, Frame::Reset);
    }

    /// Opens the first `count` clients, each with one request and its reply. Calls `beside` repeatedly meanwhile.
    ///
    /// # Errors
    /// When that takes longer than [`PATIENCE_NS`].
    pub fn establish(&mut self, count: u32, mut beside: impl FnMut()) -> anyhow::Result<()> {
        let until = clock::now_ns() + PATIENCE_NS;
        let (mut next, mut opening, mut heard) = (0, Vec::new(), Vec::new());
        let mut again_at = 0;
        while next < count || !opening.is_empty() {
            let now = clock::now_ns();
            if now >= until {
                bail!("of {count} connections {next} were opened within {} s", PATIENCE_NS / 1_000_000_000);
            }
            if now >= again_at {
                again_at = now + AGAIN_NS;
                opening.iter().for_each(|&client| self.put(client, Frame::Syn));
            }
            while opening.len() < OPENING && next < count {
                self.open(next);
                opening.push(next);
                next += 1;
            }
            self.round(&mut heard);
            for heard in heard.drain(..) {
                match heard {
                    Heard::Opened(client) => self.request(client),
                    Heard::Bytes { client, .. } => {
                        opening.retain(|&other| other != client);
                        again_at = now + AGAIN_NS;
                    }
                    Heard::Stranger => {}
                }
            }
            beside();
        }
        Ok(())
    }

    /// Sends pending frames and handles received ones. True if frames were sent or received since the last round.
    pub fn round(&mut self, heard: &mut Vec<Heard>) -> bool {
        self.now_ms = 1 + ((clock::now_ns() - self.began_ns) / 1_000_000) as u32;
        while let Some(&(client, frame)) = self.unsent.front() {
            if !self.emit(client, frame) {
                break;
            }
            self.unsent.pop_front();
        }
        self.port.flush();
        let first = self.first_host;
        let Self { port, batch, clients, .. } = self;
        while port.receive(batch) > 0 {
            self.frames_seen += batch.len() as u64;
            let whose = batch.packets().iter().filter_map(|packet| client_at(first, packet.frame()));
            whose.filter_map(|at| clients.get(at as usize)).for_each(flow::prefetch);
            heard.extend(batch.packets().iter().filter_map(|packet| arrived(clients, first, packet.frame())));
        }
        std::mem::replace(&mut self.frames_before, self.frames_seen) != self.frames_seen
    }

    /// Sends a copy of `frame` after `change` has modified it. False if the port has no room.
    pub fn inject(&mut self, frame: &[u8], change: impl FnOnce(&mut [u8])) -> bool {
        send(&mut self.port, frame, change)
    }

    /// A template of a SYN, for [`inject`](Self::inject).
    pub fn syn(&self) -> Vec<u8> {
        self.frames[Frame::Syn as usize].clone()
    }

    fn put(&mut self, client: u32, frame: Frame) {
        if !self.unsent.is_empty() || !self.emit(client, frame) {
            self.unsent.push_back((client, frame));
        }
    }

    /// Sends a frame of a client. False if the port has no room.
    fn emit(&mut self, client: u32, kind: Frame) -> bool {
        let Self { port, clients, hosts, frames, request_len, now_ms, .. } = self;
        let (host, sender) = (&hosts[(client / PER_HOST) as usize], &mut clients[client as usize]);
        let is_sent = send(port, &frames[kind as usize], |frame| {
            frame[24..26].copy_from_slice(&host.sums[kind as usize]);
            frame[26..30].copy_from_slice(&host.address);
            frame[TCP_AT..TCP_AT + 2].copy_from_slice(&port_of(client).to_be_bytes());
            frame[TCP_AT + 4..TCP_AT + 8].copy_from_slice(&sender.snd_nxt.to_be_bytes());
            if kind != Frame::Syn {
                frame[TCP_AT + 8..TCP_AT + 12].copy_from_slice(&sender.rcv_nxt.to_be_bytes());
                frame[TIMESTAMPS_AT..TIMESTAMPS_AT + 4].copy_from_slice(&now_ms.to_be_bytes());
                frame[TIMESTAMPS_AT + 4..TIMESTAMPS_AT + 8].copy_from_slice(&sender.ts_recent.to_be_bytes());
            }
        });
        if !is_sent {
            return false;
        }
        sender.snd_nxt = sender.snd_nxt.wrapping_add(match kind {
            Frame::Request => *request_len,
            // The SYN-ACK tells the next sequence number.
            Frame::Syn | Frame::Reset => 0,
        });
        self.frames_seen += 1;
        true
    }
}

/// Sends a copy of `frame` after `change` has modified it. False if the port has no room.
fn send(port: &mut MemoryPort, frame: &[u8], change: impl FnOnce(&mut [u8])) -> bool {
    let Some(buf) = port.reserve() else { return false };
    if !buf.fill(frame) {
        return false;
    }
    change(buf.frame_mut());
    buf.meta.checksum = Checksum::Partial { start: TCP_AT as u16, offset: 16 };
    port.commit();
    true
}

/// Handles a received frame; returns the event for a client, if any.
fn arrived(clients: &mut [Client], first_host: u8, frame: &[u8]) -> Option<Heard> {
    if frame.get(12..14)? != [8, 0] || *frame.get(23)? != 6 {
        return None;
    }
    let is_syn = frame.get(TCP_AT + 13)? & 2 != 0;
    let at = client_at(first_host, frame).filter(|&at| (at as usize) < clients.len());
    let Some(at) = at else { return is_syn.then_some(Heard::Stranger) };
    let client = &mut clients[at as usize];
    let (seq, header) = (word(frame, TCP_AT + 4)?, u32::from(*frame.get(TCP_AT + 12)? >> 4) * 4);
    if is_syn {
        // The timestamps follow the MSS and SACK-permitted options.
        let options = frame.get(TCP_AT + 20..TCP_AT + header as usize)?;
        let stands = options.windows(2).position(|pair| pair == [8, 10])?;
        *client = Client {
            is_open: true,
            // A second SYN-ACK acknowledges the SYN only: what was sent since has not been received.
            snd_nxt: word(frame, TCP_AT + 8)?,
            rcv_nxt: seq.wrapping_add(1),
            ts_recent: word(options, stands + 2)?,
        };
        return Some(Heard::Opened(at));
    }
    let len = u32::from(half(frame, 16)?).checked_sub(20 + header)?;
    if !client.is_open || seq != client.rcv_nxt || len == 0 {
        return None;
    }
    client.ts_recent = word(frame, TIMESTAMPS_AT)?;
    client.rcv_nxt = seq.wrapping_add(len);
    Some(Heard::Bytes { client: at, len })
}

/// The client to which the frame is addressed; `None` if there is none. The result may be beyond the last client.
fn client_at(first_host: u8, frame: &[u8]) -> Option<u32> {
    let &[10, 0, host, 2] = frame.get(30..34)? else { return None };
    let port = u32::from(half(frame, TCP_AT + 2)?.checked_sub(FIRST_PORT)?);
    (port < PER_HOST).then_some(u32::from(host.checked_sub(first_host)?) * PER_HOST + port)
}

fn port_of(client: u32) -> u16 {
    FIRST_PORT + (client % PER_HOST) as u16
}

fn word(frame: &[u8], at: usize) -> Option<u32> {
    frame.get(at..at + 4)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn half(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn offer() -> TcpOptions {
    TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        ..TcpOptions::with_timestamps(1, 0)
    }
}

/// A frame to the service. The TCP checksum is left to the port; the service does not check it.
fn emit(address: [u8; 4], flags: TcpFlags, options: &TcpOptions, payload: usize) -> Vec<u8> {
    let parameters = IpParameters::new(MacAddr(FAR_MAC), MacAddr(NEAR_MAC));
    let header = TcpHeader {
        src_port: 0,
        dst_port: 0,
        seq: SeqNumber(0),
        ack: SeqNumber(0),
        flags,
        window: 512,
        urgent: 0,
    };
    let tuple =
        FourTuple::new(Endpoint::new(address.into(), FIRST_PORT), Endpoint::new(NEAR.0.into(), NEAR.1));
    let mut frame = vec![0; wire::tcp_headers_len(&parameters, &tuple, options) + payload];
    wire::emit_tcp(&parameters, &tuple, &header, options, payload, TxChecksum::Partial, &mut frame)
        .expect("headers fit");
    frame
}
