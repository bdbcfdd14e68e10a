//! Decides whether a frame is for this host. On a shared link, or on an interface that receives every frame, most frames are for other
//! hosts.

use core::net::{IpAddr, Ipv6Addr};

use crate::{ArpPacket, Body, DropReason, Icmpv6Message, IpPacket, MacAddr, Packet};

/// The addresses of this host.
#[derive(Clone, Copy, Debug)]
pub struct Addressee<F> {
    /// Ethernet address of the host.
    pub mac: MacAddr,
    /// Returns true for an IP address of the host.
    pub owns: F,
}

impl<F: Fn(IpAddr) -> bool> Addressee<F> {
    /// Checks whether `packet`, the result of parsing `frame`, is for this host or about one of its addresses.
    ///
    /// # Errors
    /// `ForeignMac` or `ForeignAddress`: it is for another host. `MartianDestination`: TCP sent to a group (RFC 1122 section
    /// 4.2.3.10). `UnknownProtocol` or `UnknownEtherType`: it is for this host, which does not handle this protocol.
    pub fn admit(&self, packet: &Packet, frame: &[u8]) -> Result<(), DropReason> {
        let to = packet.ethernet.dst;
        self.admit_station(to)?;
        match &packet.body {
            Body::Tcp(tcp) => self.admit_tcp(to, tcp.ip.dst),
            Body::Icmpv4(ip) => self.admit_address(ip.dst),
            Body::Icmpv6(ip) if ip.dst.is_multicast() => self.admit_discovery(ip, frame),
            Body::Icmpv6(ip) => self.admit_address(ip.dst),
            Body::Arp(arp) => self.admit_arp(arp),
            Body::OtherIp(ip) => self.admit_address(ip.dst).and(Err(DropReason::UnknownProtocol)),
            Body::Other => Err(DropReason::UnknownEtherType),
        }
    }

    /// As [`admit`](Self::admit), for a TCP segment with these destination addresses.
    ///
    /// # Errors
    /// The errors of [`admit`](Self::admit).
    pub fn admit_tcp(&self, to: MacAddr, dst: IpAddr) -> Result<(), DropReason> {
        self.admit_station(to)?;
        if to.is_multicast() {
            return Err(DropReason::MartianDestination);
        }
        self.admit_address(dst)
    }

    fn admit_station(&self, to: MacAddr) -> Result<(), DropReason> {
        if to == self.mac || to.is_multicast() { Ok(()) } else { Err(DropReason::ForeignMac) }
    }

    fn admit_address(&self, dst: IpAddr) -> Result<(), DropReason> {
        if (self.owns)(dst) { Ok(()) } else { Err(DropReason::ForeignAddress) }
    }

    /// Admits two kinds of multicast ICMPv6: a neighbor solicitation for an address of ours, and an advertisement to all nodes of the link.
    fn admit_discovery(&self, ip: &IpPacket, frame: &[u8]) -> Result<(), DropReason> {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src, ip.dst) else {
            return Err(DropReason::ForeignAddress);
        };
        match Icmpv6Message::parse(&src, &dst, ip.payload.of(frame))? {
            Icmpv6Message::NeighborSolicitation { target, .. } => self.admit_address(target.into()),
            Icmpv6Message::NeighborAdvertisement { .. } if dst == ALL_NODES => Ok(()),
            _ => Err(DropReason::ForeignAddress),
        }
    }

    /// Admits a packet with an address of ours as target or sender, and a neighbour's announcement, in which both addresses are the
    /// neighbour's.
    fn admit_arp(&self, arp: &ArpPacket) -> Result<(), DropReason> {
        let is_ours = |addr| self.admit_address(IpAddr::V4(addr));
        let is_announcement = arp.sender_ip == arp.target_ip && !arp.sender_ip.is_unspecified();
        if is_announcement { Ok(()) } else { is_ours(arp.target_ip).or_else(|_| is_ours(arp.sender_ip)) }
    }
}

/// The all-nodes address, ff02::1 (RFC 4291 section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

#[cfg(test)]
mod tests {
    use super::{ALL_NODES, Addressee};
    use crate::DropReason::{
        ForeignAddress, ForeignMac, MartianDestination, UnknownEtherType, UnknownProtocol,
    };
    use crate::{
        ArpPacket, DropReason, EtherType, EthernetHeader, Icmpv6Message, IpParameters, IpProtocol, MacAddr,
        Packet, RxChecksum, emit_ip,
    };
    use core::net::{IpAddr, Ipv6Addr};

    const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const GROUP: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn admit(frame: &[u8]) -> Result<(), DropReason> {
        let owns = |addr| [ip("10.0.0.2"), ip("fd00::2")].contains(&addr);
        let packet = Packet::parse(frame, RxChecksum::Verify)?;
        Addressee { mac: OUR_MAC, owns }.admit(&packet, frame)
    }

    fn of_ip(to: MacAddr, dst: &str, protocol: IpProtocol) -> Result<(), DropReason> {
        let src = if dst.contains(':') { "fd00::1" } else { "10.0.0.1" };
        let mut frame = [0; 100];
        let start = emit_ip(&IpParameters::new(PEER_MAC, to), ip(src), ip(dst), protocol, 8, &mut frame);
        admit(&frame[..start.expect("room") + 8])
    }

    fn discovery(to: MacAddr, dst: Ipv6Addr, message: &Icmpv6Message<'_>) -> Result<(), DropReason> {
        let mut frame = [0; 120];
        let src: Ipv6Addr = "fd00::1".parse().expect("an address");
        let parameters = IpParameters { hop_limit: 255, ..IpParameters::new(PEER_MAC, to) };
        let len = message.encoded_len();
        let start =
            emit_ip(&parameters, src.into(), dst.into(), IpProtocol::ICMPV6, len, &mut frame).expect("room");
        let end = start + message.emit(&src, &dst, &mut frame[start..]).expect("room");
        admit(&frame[..end])
    }

    fn arp(to: MacAddr, sender: [u8; 4], target: [u8; 4]) -> Result<(), DropReason> {
        let mut frame = [0; 42];
        let header = EthernetHeader { dst: to, src: PEER_MAC, ethertype: EtherType::ARP, vlan: None };
        header.emit(&mut frame).expect("room");
        ArpPacket::request(PEER_MAC, sender.into(), target.into()).emit(&mut frame[14..]).expect("room");
        admit(&frame)
    }

    #[test]
    fn packets_for_other_stations_and_addresses_are_named() {
        const UDP: IpProtocol = IpProtocol(17);
        assert_eq!(of_ip(OUR_MAC, "10.0.0.2", UDP), Err(UnknownProtocol));
        assert_eq!(of_ip(OUR_MAC, "10.0.0.3", UDP), Err(ForeignAddress));
        assert_eq!(of_ip(PEER_MAC, "10.0.0.2", UDP), Err(ForeignMac));
        assert_eq!(of_ip(MacAddr::BROADCAST, "10.0.0.255", UDP), Err(ForeignAddress));
        assert_eq!(of_ip(OUR_MAC, "fd00::3", UDP), Err(ForeignAddress));
        let mut other = [0; 60];
        other[..6].copy_from_slice(&OUR_MAC.0);
        other[12..14].copy_from_slice(&[0x88, 0xCC]);
        assert_eq!(admit(&other), Err(UnknownEtherType));
    }

    #[test]
    fn tcp_is_for_one_station_and_one_address() {
        let owns = |addr| addr == ip("10.0.0.2");
        let us = Addressee { mac: OUR_MAC, owns };
        assert_eq!(us.admit_tcp(OUR_MAC, ip("10.0.0.2")), Ok(()));
        assert_eq!(us.admit_tcp(OUR_MAC, ip("10.0.0.3")), Err(ForeignAddress));
        assert_eq!(us.admit_tcp(PEER_MAC, ip("10.0.0.2")), Err(ForeignMac));
        assert_eq!(us.admit_tcp(MacAddr::BROADCAST, ip("10.0.0.2")), Err(MartianDestination));
    }

    #[test]
    fn of_groups_only_what_concerns_our_addresses_is_admitted() {
        let ask = |target: &str| Icmpv6Message::NeighborSolicitation {
            target: target.parse().expect("an address"),
            source_link: Some(PEER_MAC),
        };
        let group: Ipv6Addr = "ff02::1:ff00:2".parse().expect("an address");
        assert_eq!(discovery(GROUP, group, &ask("fd00::2")), Ok(()));
        assert_eq!(discovery(GROUP, group, &ask("fd01::2")), Err(ForeignAddress));
        let says = Icmpv6Message::NeighborAdvertisement {
            router: false,
            solicited: false,
            overrides: true,
            target: "fd00::1".parse().expect("an address"),
            target_link: Some(PEER_MAC),
        };
        assert_eq!(discovery(GROUP, ALL_NODES, &says), Ok(()));
        assert_eq!(discovery(GROUP, group, &says), Err(ForeignAddress));
        let echo = Icmpv6Message::EchoRequest { id: 1, seq: 1, payload: &[] };
        assert_eq!(discovery(GROUP, ALL_NODES, &echo), Err(ForeignAddress));
    }

    #[test]
    fn arp_about_our_addresses_and_announcements_are_admitted() {
        let (ours, theirs, others) = ([10, 0, 0, 2], [10, 0, 0, 1], [10, 0, 0, 3]);
        for (sender, target, expected) in [
            (theirs, ours, Ok(())),
            ([0; 4], ours, Ok(())),
            (ours, theirs, Ok(())),
            (theirs, theirs, Ok(())),
            (theirs, others, Err(ForeignAddress)),
            ([0; 4], others, Err(ForeignAddress)),
            ([0; 4], [0; 4], Err(ForeignAddress)),
        ] {
            assert_eq!(arp(MacAddr::BROADCAST, sender, target), expected, "{sender:?} {target:?}");
        }
        assert_eq!(arp(PEER_MAC, theirs, ours), Err(ForeignMac));
    }
}
