//! Virtual time around one host: what it sends is stamped and kept, and whoever it asks for an Ethernet address answers.

use crate::machine::OTHERS;
use crate::segment::Segment;
use crate::syntax::Micros;
use base::{Duration, Instant};
use sim::Host;
use std::collections::VecDeque;
use std::net::IpAddr;
use wire::{
    ArpOperation, ArpPacket, Body, EtherType, EthernetHeader, Icmpv6Message, IpParameters, IpProtocol,
    MacAddr, Packet, RxChecksum, emit_ip,
};

/// Where script time 0 lies: a host of some age, so that nothing begins at zero.
const EPOCH: Instant = Instant::from_ns(1_000_000_000_000);
/// Exchanges at one instant after which host and network count as running in circles.
const ROUNDS_MAX: u32 = 10_000;

/// A frame that passed, for captures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Script time.
    pub at: Micros,
    /// True from the host, false to it.
    pub is_sent: bool,
    /// The frame.
    pub frame: Vec<u8>,
}

/// A segment that the host has sent and no event has asked for yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Micros,
    pub(crate) segment: Segment,
}

pub(crate) struct Network {
    pub(crate) host: Host,
    now: Instant,
    pub(crate) sent: VecDeque<Sent>,
    /// Every frame, when somebody wants them.
    pub(crate) capture: Option<Vec<Passed>>,
}

impl Network {
    pub(crate) fn new(host: impl FnOnce(Instant) -> Host, captures: bool) -> Self {
        let mut network =
            Self { host: host(EPOCH), now: EPOCH, sent: VecDeque::new(), capture: captures.then(Vec::new) };
        network.settle();
        network
    }

    /// Script time.
    pub(crate) fn now(&self) -> Micros {
        (self.now.since(EPOCH).as_ns() / 1000) as Micros
    }

    /// A frame reaches the host; it will look at it at the next [`settle`](Self::settle).
    pub(crate) fn inject(&mut self, frame: &[u8]) {
        self.note(false, frame);
        self.host.inject(frame);
    }

    /// Runs the host until nothing more happens at this instant.
    pub(crate) fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.host.run(self.now);
            let mut is_quiet = true;
            while let Some(frame) = self.host.next_frame() {
                is_quiet = false;
                self.take(&frame);
            }
            if is_quiet && self.host.next_deadline() > self.now {
                return;
            }
        }
        // A host that is never done at one instant gets the next one.
        self.now = self.now.plus(Duration::from_us(1));
    }

    /// Goes on to whatever happens next, at `until` at the latest. False when `until` is reached.
    pub(crate) fn step(&mut self, until: Micros) -> bool {
        let until = EPOCH.plus(Duration::from_us(until.max(0) as u64));
        if self.now >= until {
            return false;
        }
        let next = self.host.next_deadline().min(until);
        // A clock in nanoseconds may be due between two microseconds of the script.
        self.now = next.max(self.now.plus(Duration::from_ns(1)));
        self.settle();
        true
    }

    fn note(&mut self, is_sent: bool, frame: &[u8]) {
        let at = self.now();
        if let Some(capture) = &mut self.capture {
            capture.push(Passed { at, is_sent, frame: frame.to_vec() });
        }
    }

    fn take(&mut self, frame: &[u8]) {
        self.note(true, frame);
        if let Some(segment) = Segment::parse(frame) {
            self.sent.push_back(Sent { at: self.now(), segment });
        } else if let Some(answer) = neighbour(frame) {
            self.note(false, &answer);
            self.host.inject(&answer);
        }
    }
}

/// The answer to a question for an Ethernet address: everybody is behind the same one. `None` for any other frame.
#[must_use]
pub fn neighbour(frame: &[u8]) -> Option<Vec<u8>> {
    let packet = Packet::parse(frame, RxChecksum::Verify).ok()?;
    let asker = packet.ethernet.src;
    match packet.body {
        // An announcement asks for the sender's own address, and nobody answers it.
        Body::Arp(arp) if arp.operation == ArpOperation::Request && arp.sender_ip != arp.target_ip => {
            let mut answer = vec![0; EthernetHeader::LEN + ArpPacket::LEN];
            let header = EthernetHeader { dst: asker, src: OTHERS, ethertype: EtherType::ARP, vlan: None };
            let start = header.emit(&mut answer).ok()?;
            arp.reply(OTHERS).emit(answer.get_mut(start..)?).ok()?;
            Some(answer)
        }
        Body::Icmpv6(ip) => {
            let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src, ip.dst) else { return None };
            let message = Icmpv6Message::parse(&src, &dst, ip.payload.of(frame)).ok()?;
            let Icmpv6Message::NeighborSolicitation { target, .. } = message else { return None };
            // Unspecified: the host asks whether anybody has the address that it wants itself.
            if src.is_unspecified() {
                return None;
            }
            let advertisement = Icmpv6Message::NeighborAdvertisement {
                router: false,
                solicited: true,
                overrides: true,
                target,
                target_link: Some(OTHERS),
            };
            let mut body = [0; 64];
            let len = advertisement.emit(&target, &src, &mut body).ok()?;
            icmp_frame(target.into(), src.into(), asker, 255, body.get(..len)?)
        }
        _ => None,
    }
}

/// A frame from `OTHERS` with an ICMP message that is complete.
pub(crate) fn icmp_frame(
    src: IpAddr,
    dst: IpAddr,
    dst_mac: MacAddr,
    hop_limit: u8,
    message: &[u8],
) -> Option<Vec<u8>> {
    let protocol = if src.is_ipv4() { IpProtocol::ICMP } else { IpProtocol::ICMPV6 };
    let parameters = IpParameters { hop_limit, ..IpParameters::new(OTHERS, dst_mac) };
    let mut frame = vec![0; 64 + message.len()];
    let start = emit_ip(&parameters, src, dst, protocol, message.len(), &mut frame).ok()?;
    frame.get_mut(start..start + message.len())?.copy_from_slice(message);
    frame.truncate(start + message.len());
    Some(frame)
}
