//! A peer that breaks the rules of TCP: it makes odd handshakes, acknowledges data that was never sent, sends beyond the window, sends
//! again with other bytes, sends false SACK blocks, shrinks its window, sends SYN, RST and FIN at random, and forges ICMP errors.
//!
//! Enough of its answers are correct that connections open and make progress. IPv4 only.

use crate::machine::{Machine, Stack};
use base::{Duration, Instant, Seed};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use wire::{
    ArpOperation, ArpPacket, Body, EtherType, EthernetHeader, IpProtocol, Ipv4Header, MacAddr, Packet,
    RxChecksum, TcpFlags, TcpPacket, checksum,
};

/// Largest number of connections that the peer remembers.
const CONNECTIONS: usize = 32;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// The peer's knowledge of a connection, from which it makes plausible segments.
#[derive(Clone, Copy, Debug)]
struct Aim {
    local: u16,
    remote: u16,
    /// The peer's next sequence number.
    snd_nxt: u32,
    /// The victim's highest sequence number seen.
    rcv_nxt: u32,
    window: u16,
    /// The victim's last timestamp value, if it sends timestamps.
    timestamp: Option<u32>,
    is_open: bool,
}

/// A segment to send; fields not set are those of a normal ACK.
#[derive(Clone, Debug)]
struct Shot {
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
    urgent: u16,
}

/// The hostile peer; see the module.
#[derive(Debug)]
pub struct Hostile {
    mac: [u8; 6],
    own: Ipv4Addr,
    victim: (Ipv4Addr, u16),
    victim_mac: [u8; 6],
    rng: Seed,
    aims: Vec<Aim>,
    /// The start of the victim's last packet, from its IP header on; forged ICMP errors quote it.
    quoted: Vec<u8>,
    sent: VecDeque<Vec<u8>>,
    received: VecDeque<Vec<u8>>,
    now: Instant,
    shoot_at: Instant,
    /// After `calm`: true: it is silent; false: it still acknowledges, with a closed window.
    ending: Option<bool>,
}

fn first_v4(addresses: &[(IpAddr, u8)]) -> Ipv4Addr {
    let v4 = addresses.iter().find_map(|(addr, _)| if let IpAddr::V4(v4) = addr { Some(*v4) } else { None });
    v4.unwrap_or(Ipv4Addr::LOCALHOST)
}

impl Hostile {
    /// A peer with the first IPv4 address of `addresses`, hostile to `victim`.
    #[must_use]
    pub fn new(mac: [u8; 6], addresses: &[(IpAddr, u8)], victim: SocketAddr, seed: u64) -> Self {
        Self {
            mac,
            own: first_v4(addresses),
            victim: (first_v4(&[(victim.ip(), 0)]), victim.port()),
            victim_mac: [0xFF; 6],
            rng: Seed::new(seed),
            aims: Vec::new(),
            quoted: Vec::new(),
            sent: VecDeque::new(),
            received: VecDeque::new(),
            now: Instant::ZERO,
            shoot_at: Instant::ZERO,
            ending: None,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// A number at or near `at`, on either side, or a random one.
    fn near(&mut self, at: u32) -> u32 {
        match self.below(4) {
            0 => at,
            1 => at.wrapping_add(self.below(3000) as u32),
            2 => at.wrapping_sub(self.below(3000) as u32),
            _ => self.rng.next_u32(),
        }
    }

    fn hear(&mut self, frame: &[u8]) {
        let Ok(Packet { body, .. }) = Packet::parse(frame, RxChecksum::Verify) else { return };
        match body {
            Body::Arp(packet)
                if packet.operation == ArpOperation::Request && packet.target_ip == self.own =>
            {
                self.victim_mac = packet.sender_mac.0;
                self.send_arp(&packet.reply(MacAddr(self.mac)));
            }
            Body::Arp(packet) => self.victim_mac = packet.sender_mac.0,
            Body::Tcp(packet) if packet.ip.dst == IpAddr::V4(self.own) => {
                self.quoted = frame.get(14..).unwrap_or(&[]).to_vec();
                self.quoted.truncate(28);
                self.answer(&packet);
            }
            _ => {}
        }
    }

    fn send_arp(&mut self, packet: &ArpPacket) {
        let mut frame = vec![0; EthernetHeader::LEN + ArpPacket::LEN];
        let dst = MacAddr(self.victim_mac);
        let header = EthernetHeader { dst, src: MacAddr(self.mac), ethertype: EtherType::ARP, vlan: None };
        if let Ok(start) = header.emit(&mut frame)
            && packet.emit(&mut frame[start..]).is_ok()
        {
            self.sent.push_back(frame);
        }
    }

    /// Updates its knowledge of the connection, and answers correctly in most cases.
    fn answer(&mut self, packet: &TcpPacket) {
        let header = packet.header;
        let (local, remote) = (header.dst_port, header.src_port);
        let flags = header.flags;
        let end = header.seq.0.wrapping_add(header.sequence_len(packet.payload.len()));
        let found = self.aims.iter().position(|aim| (aim.local, aim.remote) == (local, remote));
        let index = found.unwrap_or_else(|| {
            if self.aims.len() == CONNECTIONS {
                self.aims.remove(0);
            }
            let snd_nxt = self.rng.next_u32();
            self.aims.push(Aim {
                local,
                remote,
                snd_nxt,
                rcv_nxt: end,
                window: 0,
                timestamp: None,
                is_open: false,
            });
            self.aims.len() - 1
        });
        let aim = &mut self.aims[index];
        aim.rcv_nxt = if flags.contains(TcpFlags::SYN) || (end.wrapping_sub(aim.rcv_nxt) as i32) > 0 {
            end
        } else {
            aim.rcv_nxt
        };
        aim.window = header.window;
        aim.timestamp = packet.options.timestamps.map(|t| t.value);
        let aim = *aim;
        if flags.contains(TcpFlags::SYN) {
            return self.shake_hands(index, aim, flags.contains(TcpFlags::ACK));
        }
        if flags.contains(TcpFlags::RST) {
            self.aims.remove(index);
            return;
        }
        if header.sequence_len(packet.payload.len()) > 0 && (self.ending.is_some() || self.below(4) > 0) {
            let window = if self.ending.is_some() { 0 } else { 8000 };
            let mut shot = self.plain(aim);
            shot.window = window;
            self.fire(aim, &shot);
        }
    }

    fn shake_hands(&mut self, index: usize, aim: Aim, is_answer: bool) {
        let isn = aim.snd_nxt;
        self.aims[index].is_open = true;
        if is_answer {
            // The last segment of the handshake, in most cases.
            if self.below(8) > 0 {
                let shot = self.plain(aim);
                self.fire(aim, &shot);
            }
            return;
        }
        self.aims[index].snd_nxt = isn.wrapping_add(1);
        let options = self.syn_options();
        let syn_ack = Shot { seq: isn, flags: SYN | ACK, options, ..self.plain(aim) };
        match self.below(8) {
            // A split handshake: the acknowledgement alone, then a SYN without ACK (the victim sees a simultaneous open).
            0 => {
                let ack = self.plain(aim);
                self.fire(aim, &ack);
                self.fire(aim, &Shot { flags: SYN, ack: 0, ..syn_ack });
            }
            1 => {
                let wrong =
                    Shot { ack: aim.rcv_nxt.wrapping_add(1 + self.below(9) as u32), ..syn_ack.clone() };
                self.fire(aim, &wrong);
                self.fire(aim, &syn_ack);
            }
            2 => {
                let again = Shot { seq: self.rng.next_u32(), ..syn_ack.clone() };
                self.fire(aim, &syn_ack);
                self.fire(aim, &again);
            }
            _ => self.fire(aim, &syn_ack),
        }
    }

    fn syn_options(&mut self) -> Vec<u8> {
        let mss = [0u16, 1, 64, 536, 1460, 1460, 65_535][self.below(7) as usize].to_be_bytes();
        let shift = self.below(20) as u8;
        match self.below(6) {
            0 => Vec::new(),
            1 => self.garbage(),
            2 => vec![2, 4, mss[0], mss[1]],
            3 => vec![2, 4, mss[0], mss[1], 1, 3, 3, shift],
            _ => {
                let mut all = vec![2, 4, mss[0], mss[1], 4, 2, 8, 10];
                all.extend_from_slice(&self.rng.next_u32().to_be_bytes());
                all.extend_from_slice(&[0, 0, 0, 0, 1, 3, 3, shift]);
                all
            }
        }
    }

    /// Random bytes as options; the length is a multiple of four.
    fn garbage(&mut self) -> Vec<u8> {
        let len = 4 * self.below(11) as usize;
        (0..len).map(|_| self.rng.next_u64() as u8).collect()
    }

    fn plain(&mut self, aim: Aim) -> Shot {
        let mut options = Vec::new();
        if let Some(echo) = aim.timestamp {
            options.extend_from_slice(&[1, 1, 8, 10]);
            options.extend_from_slice(&(self.now.as_ms() as u32).to_be_bytes());
            options.extend_from_slice(&echo.to_be_bytes());
        }
        Shot {
            seq: aim.snd_nxt,
            ack: aim.rcv_nxt,
            flags: ACK,
            window: 8000,
            options,
            payload: Vec::new(),
            urgent: 0,
        }
    }

    /// Sends one wrong or unusual segment.
    fn shoot(&mut self) {
        if self.aims.is_empty() || self.below(12) == 0 {
            return self.knock();
        }
        let index = self.below(self.aims.len() as u64) as usize;
        let aim = self.aims[index];
        let mut shot = self.plain(aim);
        let len = 1 + self.below(1400) as usize;
        match self.below(16) {
            0..=3 => {
                // In-order data, so that the stream makes progress.
                shot.payload = vec![self.rng.next_u64() as u8; len];
                self.aims[index].snd_nxt = aim.snd_nxt.wrapping_add(len as u32);
            }
            4 => (shot.seq, shot.payload) = (self.near(aim.snd_nxt), vec![0xAA; len]),
            // A retransmission with other bytes that overlaps data sent before and data not yet sent.
            5 => {
                shot.seq = aim.snd_nxt.wrapping_sub(self.below(2000) as u32);
                shot.payload = vec![self.rng.next_u64() as u8; len];
            }
            6 => shot.ack = self.near(aim.rcv_nxt),
            7 => shot.window = [0, 1, 100, 65_535][self.below(4) as usize],
            8 => (shot.flags, shot.seq) = (SYN | (self.rng.next_u64() as u8 & ACK), self.near(aim.snd_nxt)),
            9 => {
                // Rarely an RST with the exact sequence number, which ends the connection.
                let is_exact = self.below(20) == 0;
                shot.flags = RST;
                shot.seq = if is_exact { aim.snd_nxt } else { aim.snd_nxt.wrapping_add(1 + len as u32) };
            }
            10 => shot.options = self.lying_sack(aim),
            11 => shot.options = self.garbage(),
            12 => {
                shot.flags |= FIN;
                shot.seq = self.near(aim.snd_nxt);
            }
            13 => return (0..4).for_each(|_| self.fire(aim, &shot)),
            14 => (shot.flags, shot.urgent) = (self.rng.next_u64() as u8 & !RST, self.rng.next_u64() as u16),
            _ => return self.forge_icmp(),
        }
        self.fire(aim, &shot);
    }

    /// SACK blocks that overlap, run backwards, or cover data that was never sent.
    fn lying_sack(&mut self, aim: Aim) -> Vec<u8> {
        let count = 1 + self.below(4) as usize;
        let mut options = vec![1, 1, 5, 2 + 8 * count as u8];
        for _ in 0..2 * count {
            let edge = self.near(aim.rcv_nxt);
            options.extend_from_slice(&edge.to_be_bytes());
        }
        options
    }

    /// Opens a new connection.
    fn knock(&mut self) {
        let aim = Aim {
            local: 1024 + self.below(60_000) as u16,
            remote: self.victim.1,
            snd_nxt: self.rng.next_u32(),
            rcv_nxt: 0,
            window: 0,
            timestamp: None,
            is_open: false,
        };
        let options = self.syn_options();
        let shot = Shot { flags: SYN, ack: 0, options, ..self.plain(aim) };
        self.fire(aim, &shot);
        if self.aims.len() == CONNECTIONS {
            self.aims.remove(0);
        }
        self.aims.push(Aim { snd_nxt: aim.snd_nxt.wrapping_add(1), ..aim });
    }

    /// Forges an ICMP error (unreachable or too big) about the victim's last packet, or about one that it never sent.
    fn forge_icmp(&mut self) {
        let mut message = vec![3, self.below(6) as u8, 0, 0, 0, 0];
        message.extend_from_slice(&(self.below(2000) as u16).to_be_bytes());
        message.extend_from_slice(&self.quoted);
        if message.len() == 36 && self.below(2) == 0 {
            // The quoted sequence number.
            message[32..36].copy_from_slice(&self.rng.next_u32().to_be_bytes());
        }
        let sum = checksum::of(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.emit(IpProtocol::ICMP, &message);
    }

    fn fire(&mut self, aim: Aim, shot: &Shot) {
        let options = &shot.options[..shot.options.len().min(40) / 4 * 4];
        let mut segment = vec![0; 20];
        segment[0..2].copy_from_slice(&aim.local.to_be_bytes());
        segment[2..4].copy_from_slice(&aim.remote.to_be_bytes());
        segment[4..8].copy_from_slice(&shot.seq.to_be_bytes());
        segment[8..12].copy_from_slice(&shot.ack.to_be_bytes());
        segment[12] = ((20 + options.len()) as u8 / 4) << 4;
        segment[13] = shot.flags;
        segment[14..16].copy_from_slice(&shot.window.to_be_bytes());
        segment[18..20].copy_from_slice(&shot.urgent.to_be_bytes());
        segment.extend_from_slice(options);
        segment.extend_from_slice(&shot.payload);
        let len = segment.len() as u16;
        let pseudo = checksum::pseudo_v4(self.own, self.victim.0, IpProtocol::TCP, len);
        if !checksum::fill(pseudo, &mut segment, 16) {
            return;
        }
        self.emit(IpProtocol::TCP, &segment);
    }

    fn emit(&mut self, protocol: IpProtocol, payload: &[u8]) {
        let mut frame = vec![0; EthernetHeader::LEN + Ipv4Header::LEN];
        let (dst, src) = (MacAddr(self.victim_mac), MacAddr(self.mac));
        let ethernet = EthernetHeader { dst, src, ethertype: EtherType::IPV4, vlan: None };
        let ip = Ipv4Header::new(self.own, self.victim.0, protocol, payload.len());
        let Ok(start) = ethernet.emit(&mut frame) else { return };
        if ip.emit(&mut frame[start..]).is_ok() {
            frame.extend_from_slice(payload);
            self.sent.push_back(frame);
        }
    }
}

impl Machine for Hostile {
    fn inject(&mut self, frame: &[u8]) {
        self.received.push_back(frame.to_vec());
    }

    fn run(&mut self, now: Instant) {
        self.now = now;
        while let Some(frame) = self.received.pop_front() {
            if self.ending != Some(true) {
                self.hear(&frame);
            }
        }
        if self.shoot_at <= now && self.ending.is_none() {
            if self.victim_mac == [0xFF; 6] {
                self.send_arp(&ArpPacket::request(MacAddr(self.mac), self.own, self.victim.0));
            } else {
                self.shoot();
            }
            self.shoot_at = now.plus(Duration::from_us(100 + self.below(30_000)));
        }
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.sent.pop_front()
    }

    fn next_deadline(&self) -> Instant {
        match self.ending {
            _ if !self.received.is_empty() => self.now,
            None => self.shoot_at,
            Some(_) => Instant::NEVER,
        }
    }

    fn stack(&mut self) -> Option<&mut dyn Stack> {
        None
    }

    fn calm(&mut self) {
        self.ending = Some(self.below(2) == 0);
    }
}
