//! All other nodes on the link of one host: answers requests for Ethernet addresses, and builds ICMP frames. Keeps no state.

use std::net::IpAddr;
use wire::{
    ArpOperation, ArpPacket, Body, EtherType, EthernetHeader, Icmpv6Message, IpParameters, IpProtocol,
    MacAddr, Packet, RxChecksum, emit_ip,
};

/// The answer to a request for an Ethernet address: all nodes are at `others`. `None` for any other frame.
#[must_use]
pub fn neighbour(frame: &[u8], others: MacAddr) -> Option<Vec<u8>> {
    let packet = Packet::parse(frame, RxChecksum::Verify).ok()?;
    let asker = packet.ethernet.src;
    match packet.body {
        // An announcement asks for the sender's own address; it gets no answer.
        Body::Arp(arp) if arp.operation == ArpOperation::Request && arp.sender_ip != arp.target_ip => {
            let mut answer = vec![0; EthernetHeader::LEN + ArpPacket::LEN];
            let header = EthernetHeader { dst: asker, src: others, ethertype: EtherType::ARP, vlan: None };
            let start = header.emit(&mut answer).ok()?;
            arp.reply(others).emit(answer.get_mut(start..)?).ok()?;
            Some(answer)
        }
        Body::Icmpv6(ip) => {
            let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src, ip.dst) else { return None };
            let message = Icmpv6Message::parse(&src, &dst, ip.payload.of(frame)).ok()?;
            let Icmpv6Message::NeighborSolicitation { target, .. } = message else { return None };
            // Unspecified source: the host checks whether another node has the address that it wants for itself.
            if src.is_unspecified() {
                return None;
            }
            let advertisement = Icmpv6Message::NeighborAdvertisement {
                router: false,
                solicited: true,
                overrides: true,
                target,
                target_link: Some(others),
            };
            let mut body = [0; 64];
            let len = advertisement.emit(&target, &src, &mut body).ok()?;
            icmp_frame([others, asker], target.into(), src.into(), 255, body.get(..len)?)
        }
        _ => None,
    }
}

/// A frame with a complete ICMP message; `macs` are the sender's and the receiver's Ethernet address.
#[must_use]
pub fn icmp_frame(
    macs: [MacAddr; 2],
    src: IpAddr,
    dst: IpAddr,
    hop_limit: u8,
    message: &[u8],
) -> Option<Vec<u8>> {
    let protocol = if src.is_ipv4() { IpProtocol::ICMP } else { IpProtocol::ICMPV6 };
    let parameters = IpParameters { hop_limit, ..IpParameters::new(macs[0], macs[1]) };
    let mut frame = vec![0; 64 + message.len()];
    let start = emit_ip(&parameters, src, dst, protocol, message.len(), &mut frame).ok()?;
    frame.get_mut(start..start + message.len())?.copy_from_slice(message);
    frame.truncate(start + message.len());
    Some(frame)
}
