//! ARP and neighbour discovery on the wire: asking, answering, learning.

use crate::event::errno;
use crate::neighbours::{ASK_INTERVAL, Learned, Patience};
use crate::timeouts::Timer;
use crate::{Count, SlowPath};
use base::Instant;
use std::net::{IpAddr, Ipv6Addr};
use wire::{ArpOperation, ArpPacket, EtherType, EthernetHeader, Icmpv6Message, MacAddr};

const ARP_FRAME: usize = EthernetHeader::LEN + ArpPacket::LEN;

impl SlowPath {
    /// Says on the link that our IPv4 addresses are here (RFC 5227 section 2.3): call once at start.
    pub fn announce(&mut self, core: u8) {
        for own in self.routes.own().to_vec() {
            if let IpAddr::V4(addr) = own.addr {
                let packet = ArpPacket::request(self.config.mac, addr, addr);
                self.send_arp(core, &packet, MacAddr::BROADCAST);
            }
        }
    }

    pub(crate) fn on_arp(&mut self, now: Instant, core: u8, packet: &ArpPacket) {
        let (sender, target) = (IpAddr::V4(packet.sender_ip), IpAddr::V4(packet.target_ip));
        let is_for_us = self.routes.owns(target);
        // RFC 5227: a probe has no sender address yet; and nobody else is us.
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
            self.send_frame(core, &buffer);
        }
    }

    pub(crate) fn on_solicitation(
        &mut self,
        now: Instant,
        core: u8,
        src: Ipv6Addr,
        target: Ipv6Addr,
        source_link: Option<MacAddr>,
    ) {
        let is_for_us = self.routes.owns(target.into());
        let Some(link) = source_link.filter(|_| !src.is_unspecified()) else { return };
        let learned = self.neighbours.learn(now, src.into(), link, is_for_us);
        self.on_learned(src.into(), link, learned);
        if is_for_us {
            let reply = Icmpv6Message::NeighborAdvertisement {
                router: false,
                solicited: true,
                overrides: true,
                target,
                target_link: Some(self.config.mac),
            };
            self.send_icmpv6(now, core, (target, src), &reply, link);
        }
    }

    pub(crate) fn on_advertisement(&mut self, now: Instant, target: Ipv6Addr, target_link: Option<MacAddr>) {
        let known = self.neighbours.known(target.into());
        let Some(link) = target_link.or(known) else { return };
        // Only what somebody asked for has an entry; for others the advertisement is of no use (RFC 4861 section 7.2.5).
        let learned = self.neighbours.learn(now, target.into(), link, false);
        self.on_learned(target.into(), link, learned);
    }

    /// Sends what waited, and tells the flows of a neighbour that has moved.
    fn on_learned(&mut self, addr: IpAddr, mac: MacAddr, learned: Learned) {
        if learned.is_refused {
            self.counters.add(Count::NeighbourUnasked);
            return;
        }
        for (core, mut frame) in learned.frames {
            frame[..6].copy_from_slice(&mac.0);
            self.send_frame(core, &frame);
        }
        if learned.is_changed {
            let through = self.connections.iter().filter(|(_, c)| c.next_hop == addr && !c.is_over);
            let flows: Vec<_> = through.map(|(&flow, _)| flow).collect();
            for flow in flows {
                self.with_flow(flow, |parts| parts.tx.peer_mac = mac.0);
            }
        }
    }

    /// Asks who has `addr`: the neighbour itself when it is known, else everybody.
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
                let (source, message) = ((source, to), &message);
                self.send_icmpv6(now, core, source, message, mac);
            }
            _ => {}
        }
        self.wheel.set(now.plus(ASK_INTERVAL), Timer::Neighbour(addr));
    }

    /// Something through this neighbour gets no answer: ask whether it is still there (RFC 1122 section 2.3.2.1).
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

/// RFC 4291 section 2.7.1.
fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let last = addr.octets();
    Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, last[13], last[14], last[15]])
}

/// RFC 2464 section 7.
fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let last = group.octets();
    MacAddr([0x33, 0x33, last[12], last[13], last[14], last[15]])
}
