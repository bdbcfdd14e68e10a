//! Checks that our addresses are free on the link before they are used: RFC 5227 section 2.1 for IPv4, RFC 4862 section 5.4 for IPv6.
//! Frames and `now` go in; probes, an answer and the next deadline come out. Later conflicts are handled by `conflict`.

use crate::link::{multicast_mac, solicited_node};
use base::{Duration, Instant};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{
    ArpOperation, ArpPacket, Body, EtherType, EthernetHeader, Icmpv6Message, IpPacket, IpParameters,
    IpProtocol, MacAddr, Packet, RxChecksum, emit_ip,
};

/// RFC 5227: PROBE_NUM. IPv6 asks for one (RFC 4862: DupAddrDetectTransmits); the same number for both covers the loss of two.
const PROBES: u8 = 3;
/// Time between two probes, and for answers to the last. RFC 5227 waits one to two seconds, for hosts that pick addresses at random and
/// for links with sleeping stations. Here an administrator has chosen the address, a station that is awake answers within a millisecond,
/// and a program may be waiting for the service. A conflict found later is handled as in RFC 5227 section 2.4, which goes on for ever.
const INTERVAL: Duration = Duration::from_ms(25);

/// Another station on the link uses an address, or is about to use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The address that is claimed.
    pub addr: IpAddr,
    /// The Ethernet address of the other station.
    pub by: MacAddr,
}

/// The check whether addresses are free.
#[derive(Debug)]
pub struct Claim {
    mac: MacAddr,
    addresses: Vec<IpAddr>,
    /// Number of probes still to send for each address.
    left: u8,
    /// When the next probes are due; after the last probe, when the time for answers ends.
    due: Instant,
}

impl Claim {
    /// Begins the check at `now`.
    #[must_use]
    pub fn new(mac: MacAddr, addresses: Vec<IpAddr>, now: Instant) -> Self {
        let left = if addresses.is_empty() { 0 } else { PROBES };
        Self { mac, addresses, left, due: now }
    }

    /// The frames that are to be sent at `now`.
    pub fn poll_frames(&mut self, now: Instant) -> Vec<Vec<u8>> {
        if self.left == 0 || now < self.due {
            return Vec::new();
        }
        self.left -= 1;
        self.due = now.plus(INTERVAL);
        self.addresses.iter().filter_map(|addr| probe(self.mac, *addr)).collect()
    }

    /// Checks a frame from the link.
    ///
    /// # Errors
    /// [`Taken`], when the frame shows that another station uses one of the addresses.
    pub fn handle_frame(&self, frame: &[u8]) -> Result<(), Taken> {
        let Ok(packet) = Packet::parse(frame, RxChecksum::Verified) else { return Ok(()) };
        let (addr, by) = match packet.body {
            Body::Arp(arp) => (claimed_by_arp(&arp), arp.sender_mac),
            Body::Icmpv6(ip) => (claimed_by_discovery(&ip, frame), packet.ethernet.src),
            _ => return Ok(()),
        };
        match addr {
            // A probe of ours may come back through a loop in the link.
            Some(addr) if by != self.mac && self.addresses.contains(&addr) => Err(Taken { addr, by }),
            _ => Ok(()),
        }
    }

    /// True when all probes were sent and the time for answers is over: the addresses are ours.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        self.left == 0 && self.due <= now
    }

    /// When to call [`poll_frames`](Self::poll_frames) and [`is_over`](Self::is_over) again.
    #[must_use]
    pub const fn next_deadline(&self) -> Instant {
        self.due
    }
}

/// RFC 5227 section 2.1.1: "any ARP packet (Request *or* Reply) ... where the packet's 'sender IP address' is the address being probed
/// for", or an ARP probe "where the packet's 'target IP address' is the address being probed for".
fn claimed_by_arp(arp: &ArpPacket) -> Option<IpAddr> {
    let is_probe = arp.sender_ip.is_unspecified() && arp.operation == ArpOperation::Request;
    Some(if is_probe { arp.target_ip } else { arp.sender_ip }.into())
}

/// RFC 4862 section 5.4: an advertisement of the address, or a solicitation for it from the unspecified address.
fn claimed_by_discovery(ip: &IpPacket, frame: &[u8]) -> Option<IpAddr> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src, ip.dst) else { return None };
    match Icmpv6Message::parse(&src, &dst, ip.payload.of(frame)) {
        Ok(Icmpv6Message::NeighborAdvertisement { target, .. }) => Some(target.into()),
        Ok(Icmpv6Message::NeighborSolicitation { target, .. }) if src.is_unspecified() => Some(target.into()),
        _ => None,
    }
}

fn probe(mac: MacAddr, addr: IpAddr) -> Option<Vec<u8>> {
    match addr {
        IpAddr::V4(addr) => arp_probe(mac, addr),
        IpAddr::V6(addr) => solicitation(mac, addr),
    }
}

/// "The 'sender IP address' field MUST be set to all zeroes" (RFC 5227 section 2.1.1).
fn arp_probe(mac: MacAddr, addr: Ipv4Addr) -> Option<Vec<u8>> {
    let mut frame = vec![0; EthernetHeader::LEN + ArpPacket::LEN];
    let header = EthernetHeader { dst: MacAddr::BROADCAST, src: mac, ethertype: EtherType::ARP, vlan: None };
    let start = header.emit(&mut frame).ok()?;
    ArpPacket::request(mac, Ipv4Addr::UNSPECIFIED, addr).emit(&mut frame[start..]).ok()?;
    Some(frame)
}

/// From the unspecified address, to the solicited-node group, without the asker's Ethernet address (RFC 4862 section 5.4.2).
fn solicitation(mac: MacAddr, target: Ipv6Addr) -> Option<Vec<u8>> {
    let message = Icmpv6Message::NeighborSolicitation { target, source_link: None };
    let (src, group) = (Ipv6Addr::UNSPECIFIED, solicited_node(target));
    let parameters = IpParameters { hop_limit: 255, ..IpParameters::new(mac, multicast_mac(group)) };
    let len = message.encoded_len();
    let mut frame = vec![0; EthernetHeader::LEN + 40 + len];
    let start = emit_ip(&parameters, src.into(), group.into(), IpProtocol::ICMPV6, len, &mut frame).ok()?;
    message.emit(&src, &group, &mut frame[start..]).ok()?;
    Some(frame)
}
