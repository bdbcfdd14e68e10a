//! Frames of no flow: the slow path gets what is for us, and nothing that is for other hosts takes the place of that.

use crate::harness::{Host, MAC_A, MAC_B, config};
use base::{Instant, SeqNumber};
use port::{Capabilities, Port};
use port_memory::{LinkOptions, MemoryPort, link};
use std::net::IpAddr;
use wire::{
    ArpPacket, DropReason, Endpoint, EtherType, EthernetHeader, FourTuple, IpParameters, MacAddr, TcpFlags,
    TcpHeader, TcpOptions, TxChecksum, emit_tcp,
};

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const BROADCAST: [u8; 6] = [0xFF; 6];

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

struct Link {
    host: Host,
    port: MemoryPort,
    far: MemoryPort,
}

impl Link {
    /// A host with the address 10.0.0.1.
    fn new() -> Self {
        let capabilities = Capabilities::plain(1500, MAC_A);
        let (port, far) = link(&LinkOptions { capabilities, ..LinkOptions::default() }).unwrap();
        let config = flow::Config { addresses: vec![ip(1)], ..config() };
        Self { host: Host::new(config, capabilities, 4), port, far }
    }

    fn comes(&mut self, frame: &[u8]) {
        assert!(self.far.reserve().unwrap().fill(frame));
        self.far.commit();
        self.far.flush();
        self.host.poll(Instant::from_ns(1), &mut self.port);
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.host.core.counters().dropped(reason)
    }
}

fn segment(to: [u8; 6], dst: u8, flags: TcpFlags, options: &TcpOptions) -> Vec<u8> {
    let tuple = FourTuple::new(Endpoint::new(ip(2), 9), Endpoint::new(ip(dst), 80));
    let (src_port, dst_port) = (9, 80);
    let header =
        TcpHeader { src_port, dst_port, seq: SeqNumber(1), ack: SeqNumber(1), flags, window: 1, urgent: 0 };
    let parameters = IpParameters::new(MacAddr(MAC_B), MacAddr(to));
    let mut frame = vec![0; 200];
    let len = emit_tcp(&parameters, &tuple, &header, options, 0, TxChecksum::Full, &mut frame).unwrap();
    frame.truncate(len);
    frame
}

fn arp(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let (dst, src) = (MacAddr(BROADCAST), MacAddr(MAC_B));
    let mut frame = vec![0; 42];
    EthernetHeader { dst, src, ethertype: EtherType::ARP, vlan: None }.emit(&mut frame).unwrap();
    ArpPacket::request(src, sender.into(), target.into()).emit(&mut frame[14..]).unwrap();
    frame
}

#[test]
fn segments_for_other_hosts_are_dropped_by_name_before_the_slow_path() {
    let mut link = Link::new();
    // A SYN, and a segment that looks like an established connection's.
    for (flags, options) in [(SYN, TcpOptions::NONE), (ACK, TcpOptions::with_timestamps(1, 1))] {
        link.comes(&segment(MAC_B, 1, flags, &options));
        link.comes(&segment(MAC_A, 3, flags, &options));
        link.comes(&segment(BROADCAST, 1, flags, &options));
        assert!(link.host.frames.is_empty());
        link.comes(&segment(MAC_A, 1, flags, &options));
        assert_eq!(std::mem::take(&mut link.host.frames).len(), 1);
    }
    let reasons = [DropReason::ForeignMac, DropReason::ForeignAddress, DropReason::MartianDestination];
    assert_eq!(reasons.map(|reason| link.dropped(reason)), [2, 2, 2]);
}

#[test]
fn of_other_frames_those_about_our_addresses_reach_the_slow_path() {
    let mut link = Link::new();
    link.comes(&arp([10, 0, 0, 2], [10, 0, 0, 3]));
    let mut other = vec![0; 60];
    other[..6].copy_from_slice(&BROADCAST);
    other[12..14].copy_from_slice(&[0x88, 0xCC]);
    link.comes(&other);
    assert!(link.host.frames.is_empty());
    link.comes(&arp([10, 0, 0, 2], [10, 0, 0, 1]));
    assert_eq!(link.host.frames.len(), 1);
    let reasons = [DropReason::ForeignAddress, DropReason::UnknownEtherType];
    assert_eq!(reasons.map(|reason| link.dropped(reason)), [1, 1]);
}
