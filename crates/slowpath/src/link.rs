//! ARP and neighbour discovery on the wire: sends requests, answers them, learns from answers.

use crate::event::errno;
use crate::icmp::Ends;
use crate::neighbours::{ASK_INTERVAL, Learned, Patience};
use crate::timeouts::Timer;
use crate::{Count, SlowPath};
use base::Instant;
use std::net::{IpAddr, Ipv6Addr};
use wire::{ArpOperation, ArpPacket, EtherType, EthernetHeader, Icmpv6Message, MacAddr};

const ARP_FRAME: usize = EthernetHeader::LEN + ArpPacket::LEN;

/// The all-nodes group "ff02::1".
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// The sender of a neighbour solicitation.
pub(crate) struct Solicitor {
    pub(crate) src: Ipv6Addr,
    pub(crate) dst: Ipv6Addr,
    /// Source Ethernet address of the frame.
    pub(crate) mac: MacAddr,
    /// Ethernet address in the message's source link-layer option.
    pub(crate) link: Option<MacAddr>,
}

impl SlowPath {
    /// Announces our addresses on the link (RFC 5227 section 2.3, RFC 4861 section 7.2.6): call once at start, after a
    /// [`Claim`](crate::Claim) has found that they are free.
    pub fn announce(&mut self, core: u8) {
        for own in self.routes.own().to_vec() {
            self.announce_address(core, own.addr);
        }
    }

    pub(crate) fn announce_address(&mut self, core: u8, addr: IpAddr) {
        match addr {
            IpAddr::V4(addr) => {
                let packet = ArpPacket::request(self.config.mac, addr, addr);
                self.send_arp(core, &packet, MacAddr::BROADCAST);
            }
            IpAddr::V6(addr) => self.advertise(self.now, core, addr, None),
        }
    }

    pub(crate) fn on_arp(&mut self, now: Instant, core: u8, packet: &ArpPacket) {
        let (sender, target) = (IpAddr::V4(packet.sender_ip), IpAddr::V4(packet.target_ip));
        let is_for_us = self.routes.owns(target);
        if self.routes.owns(sender) && packet.sender_mac != self.config.mac {
            return self.on_conflict(now, core, sender, packet.sender_mac);
        }
        // RFC 5227: a probe has no sender address yet; and our own addresses are not a neighbour's.
        let has_sender = !packet.sender_ip.is_unspecified() && !self.routes.owns(sender);
        if has_sender && self.routes.lookup(sender).is_some_and(|route| route.next_hop == sender) {
            let learned = self.neighbours.learn(now, sender, packet.sender_mac, is_for_us);
            self.on_learned(sender, packet.sender_mac, learned);
        }
        if is_for_us && packet.operation == ArpOperation::Request {
            self.send_arp(core, &packet.reply(self.config.mac), packet.sender_mac);
        }
    }

    fn send_arp(&mut self, core: u8, packet: &ArpPacket, to: MacAddr) {
        let mut buffer = [0; ARP_FRAME];
        let header = EthernetHeader { dst: to, src: self.config.mac, ethertype: EtherType::ARP, vlan: None };
        let Ok(start) = header.emit(&mut buffer) else { return };
        if packet.emit(&mut buffer[start..]).is_ok() {
            // An ARP request that is lost is repeated, by the peer as by this host.
            let _ = self.send_frame(core, &buffer);
        }
    }

    /// Another station asks for `target` (RFC 4861 section 7.2.3).
    pub(crate) fn on_solicitation(&mut self, now: Instant, core: u8, from: &Solicitor, target: Ipv6Addr) {
        let is_for_us = self.routes.owns(target.into());
        if from.src.is_unspecified() {
            // "If the IP source address is the unspecified address, the IP destination address is a solicited-node multicast
            // address", and "there is no source link-layer address option in the message" (section 7.1.1): the station checks
            // whether the address is free.
            if is_for_us && from.link.is_none() && from.dst == solicited_node(target) {
                self.advertise(now, core, target, None);
            }
            return;
        }
        let is_on_link =
            self.routes.lookup(from.src.into()).is_some_and(|r| r.next_hop == IpAddr::from(from.src));
        if let (Some(link), true) = (from.link, is_on_link) {
            let learned = self.neighbours.learn(now, from.src.into(), link, is_for_us);
            self.on_learned(from.src.into(), link, learned);
        }
        if is_for_us {
            self.advertise(now, core, target, Some((from.src, from.link.unwrap_or(from.mac))));
        }
    }

    /// Advertises that `target` is ours: to the station that asked, or unasked to all nodes (RFC 4861 section 7.2.4).
    fn advertise(&mut self, now: Instant, core: u8, target: Ipv6Addr, to: Option<(Ipv6Addr, MacAddr)>) {
        let message = Icmpv6Message::NeighborAdvertisement {
            router: false,
            solicited: to.is_some(),
            overrides: true,
            target,
            target_link: Some(self.config.mac),
        };
        let (to, mac) = to.unwrap_or((ALL_NODES, multicast_mac(ALL_NODES)));
        self.send_icmpv6(now, core, Ends { src: target, dst: to }, &message, mac);
    }

    pub(crate) fn on_advertisement(
        &mut self,
        now: Instant,
        core: u8,
        target: Ipv6Addr,
        target_link: Option<MacAddr>,
        overrides: bool,
    ) {
        if self.routes.owns(target.into()) {
            let other = target_link.filter(|link| *link != self.config.mac);
            return other.into_iter().for_each(|by| self.on_conflict(now, core, target.into(), by));
        }
        let known = self.neighbours.known(target.into());
        let Some(link) = target_link.or(known) else { return };
        if !overrides && known.is_some_and(|known| known != link) {
            // "If the Override flag is clear and the supplied link-layer address differs from that in the cache ... it MUST NOT
            // update the cache", but the old one is to be tried (RFC 4861 section 7.2.5).
            return self.doubt_neighbour(now, core, target.into());
        }
        // Without a question there is no entry: "there is no need to create one".
        let learned = self.neighbours.learn(now, target.into(), link, false);
        self.on_learned(target.into(), link, learned);
    }

    /// Sends the frames that waited for the neighbour, and changes the flows through it if its address has changed.
    fn on_learned(&mut self, addr: IpAddr, mac: MacAddr, learned: Learned) {
        if learned.is_refused {
            self.counters.add(Count::NeighbourUnasked);
            return;
        }
        for (core, mut frame) in learned.frames {
            frame[..6].copy_from_slice(&mac.0);
            // It has waited for the neighbour, and is sent again as any frame that is lost.
            let _ = self.send_frame(core, &frame);
        }
        if learned.is_changed {
            let through = self.connections.iter().filter(|(_, c)| c.next_hop == addr && !c.is_over);
            let flows: Vec<_> = through.map(|(flow, _)| flow).collect();
            for flow in flows {
                self.with_flow(flow, |parts| parts.tx.peer_mac = mac.0);
            }
        }
    }

    /// Asks for the Ethernet address of `addr`: the neighbour itself when its address is known, else all stations.
    pub(crate) fn ask_neighbour(&mut self, now: Instant, core: u8, addr: IpAddr, at: Option<MacAddr>) {
        let Some(source) = self.routes.lookup(addr).map(|route| route.source) else { return };
        self.counters.add(Count::NeighbourAsks);
        match (source, addr) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let packet = ArpPacket::request(self.config.mac, source, target);
                self.send_arp(core, &packet, at.unwrap_or(MacAddr::BROADCAST));
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let message =
                    Icmpv6Message::NeighborSolicitation { target, source_link: Some(self.config.mac) };
                let group = solicited_node(target);
                let (to, mac) = at.map_or((group, multicast_mac(group)), |mac| (target, mac));
                self.send_icmpv6(now, core, Ends { src: source, dst: to }, &message, mac);
            }
            _ => {}
        }
        self.wheel.set(now.plus(ASK_INTERVAL), Timer::Neighbour(addr));
    }

    /// A flow through this neighbour gets no answer: asks whether the neighbour is still there (RFC 1122 section 2.3.2.1).
    pub(crate) fn doubt_neighbour(&mut self, now: Instant, core: u8, addr: IpAddr) {
        if let Some(mac) = self.neighbours.doubt(addr) {
            self.ask_neighbour(now, core, addr, Some(mac));
        }
    }

    pub(crate) fn on_neighbour_timer(&mut self, now: Instant, addr: IpAddr) {
        match self.neighbours.wait_is_over(addr) {
            Patience::Answered => {}
            Patience::AskAgain(at) => self.ask_neighbour(now, 0, addr, at),
            Patience::Over(lost) => {
                self.counters.add_many(Count::NeighbourUnresolved, lost);
                let through = self.openings.iter().filter(|(_, opening)| opening.next_hop == addr);
                let failed: Vec<u64> = through.map(|(&id, _)| id).collect();
                failed.into_iter().for_each(|id| self.fail_opening(id, errno::EHOSTUNREACH));
            }
        }
    }
}

/// The solicited-node group of `addr` (RFC 4291 section 2.7.1).
pub(crate) fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let last = addr.octets();
    Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, last[13], last[14], last[15]])
}

/// The Ethernet address of an IPv6 group (RFC 2464 section 7).
pub(crate) fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let last = group.octets();
    MacAddr([0x33, 0x33, last[12], last[13], last[14], last[15]])
}
