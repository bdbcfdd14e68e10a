//! What comes from the cores: events of flows, and frames that are no flow's business.

use crate::teardown::Step;
use crate::time_wait::Verdict;
use crate::{Count, Event, SlowPath, source_mac};
use base::Instant;
use flow::{Exception, FRAME_COPY_MAX};
use std::net::IpAddr;
use wire::{Body, DropReason, Packet, RxChecksum, TcpFlags, TcpPacket, check_addresses, check_tcp_addresses};

impl SlowPath {
    /// Takes in an exception of `core`; `frame` is the frame beside it, for [`Exception::Frame`].
    pub fn handle_exception(&mut self, now: Instant, core: u8, exception: Exception, frame: &[u8]) {
        self.now = now;
        match exception {
            Exception::Frame { .. } => self.on_frame(now, core, frame),
            Exception::FinReceived { flow } => self.on_fin(now, flow, Step::FinReceived),
            Exception::FinAcked { flow } => self.on_fin(now, flow, Step::FinAcked),
            Exception::AppClosed { flow } => self.on_app_closed(now, flow),
            Exception::AppReset { flow } => self.on_app_reset(now, flow),
            Exception::PeerReset { flow } => self.on_peer_reset(now, flow),
            Exception::Challenge { flow } => self.on_challenge(now, flow),
            Exception::LateData { flow } => self.on_late_data(now, flow),
            Exception::Active { flow } => self.on_active(now, flow),
            Exception::Dropped { flow } => self.on_dropped(now, flow),
            Exception::Violation { region, slot, what } => {
                self.events.push_back(Event::Violation { region, slot, what });
            }
            Exception::MemoryShort { region } => self.events.push_back(Event::MemoryShort { region }),
            Exception::Drained { index, region, .. } => self.on_drained(index, &region),
        }
        self.output.flush();
    }

    /// Of a super-frame the core hands over the beginning: it is treated as a shorter segment.
    fn on_frame(&mut self, now: Instant, core: u8, frame: &[u8]) {
        if frame.len() < FRAME_COPY_MAX {
            return self.on_whole_frame(now, core, frame);
        }
        let mut frame = frame.to_vec();
        wire::shorten(&mut frame);
        self.on_whole_frame(now, core, &frame);
    }

    fn on_whole_frame(&mut self, now: Instant, core: u8, frame: &[u8]) {
        let packet = match Packet::parse(frame, RxChecksum::Verified) {
            Ok(packet) => packet,
            Err(reason) => return self.counters.drop(reason),
        };
        if let Err(reason) = self.admit_ethernet(&packet) {
            return self.counters.drop(reason);
        }
        match packet.body {
            Body::Arp(arp) => self.on_arp(now, core, &arp),
            Body::Tcp(tcp) => match self.admit(&tcp.ip.src, &tcp.ip.dst, true) {
                Ok(()) => self.on_tcp(now, core, &tcp, frame),
                Err(reason) => self.counters.drop(reason),
            },
            Body::Icmpv4(ip) => match self.admit(&ip.src, &ip.dst, false) {
                Ok(()) => self.on_icmpv4(now, core, &ip, frame),
                Err(reason) => self.counters.drop(reason),
            },
            Body::Icmpv6(ip) => match self.admit(&ip.src, &ip.dst, false) {
                Ok(()) => self.on_icmpv6(now, core, &ip, frame),
                Err(reason) => self.counters.drop(reason),
            },
            Body::OtherIp(_) => self.counters.drop(DropReason::UnknownProtocol),
            Body::Other => self.counters.drop(DropReason::UnknownEtherType),
        }
    }

    /// Frames for other hosts, from groups, and TCP for groups (RFC 1122 section 4.2.3.10) go no further: they are answered to where
    /// they came from.
    fn admit_ethernet(&self, packet: &Packet) -> Result<(), DropReason> {
        let (src, dst) = (packet.ethernet.src, packet.ethernet.dst);
        if !src.is_unicast() {
            return Err(DropReason::MartianSource);
        }
        if dst == self.config.mac {
            return Ok(());
        }
        match packet.body {
            _ if !dst.is_multicast() => Err(DropReason::ForeignMac),
            Body::Tcp(_) => Err(DropReason::MartianDestination),
            _ => Ok(()),
        }
    }

    /// Whether a packet may be from there, and is for us.
    fn admit(&self, src: &IpAddr, dst: &IpAddr, is_tcp: bool) -> Result<(), DropReason> {
        let check = if is_tcp { check_tcp_addresses } else { check_addresses };
        check(*src, *dst)?;
        if self.routes.is_group(*src) {
            return Err(DropReason::MartianSource);
        }
        if self.routes.owns(*src) {
            return Err(DropReason::LandAttack);
        }
        // Neighbour solicitations go to a group; nothing else is answered there (RFC 1122 section 3.2.2.6 permits).
        let is_solicitation = !is_tcp && matches!(dst, IpAddr::V6(v6) if v6.is_multicast());
        if self.routes.owns(*dst) || is_solicitation { Ok(()) } else { Err(DropReason::ForeignAddress) }
    }

    /// A segment for which the core found no flow, or whose flow was busy.
    fn on_tcp(&mut self, now: Instant, core: u8, packet: &TcpPacket, frame: &[u8]) {
        let tuple = packet.tuple().reversed();
        if let Some(&flow) = self.by_tuple.get(&tuple) {
            // Set up while the frame was on its way here.
            let core = self.connections.get(&flow).map_or(core, |c| c.owner.core);
            if !self.return_frame(core, frame) && packet.header.flags.contains(TcpFlags::RST) {
                // Its sender does not repeat it.
                self.on_flow_rst(now, flow, packet);
            }
            return;
        }
        if let Some(&id) = self.opening_of.get(&tuple) {
            return self.on_opening_segment(now, core, id, packet, frame);
        }
        if let Some(id) = self.listeners.id_of(&tuple) {
            return self.on_half_open_segment(now, core, id, packet, frame);
        }
        let verdict =
            self.time_wait.judge(now, &tuple, &packet.header, &packet.options, packet.payload.len());
        let before = match verdict {
            None => None,
            Some(Verdict::Ignore) => return self.counters.add(Count::TimeWaitIgnored),
            Some(Verdict::Acknowledge(remains)) => {
                // A repeated FIN is answered always: each answer may be the one that was lost.
                if !packet.header.flags.contains(TcpFlags::FIN) && !self.may_challenge(now) {
                    return;
                }
                return self.acknowledge_remains(now, core, tuple, &remains, source_mac(frame));
            }
            Some(Verdict::Reuse(remains)) => {
                self.counters.add(Count::TimeWaitReuses);
                Some(remains)
            }
        };
        // LISTEN (RFC 9293 section 3.10.7.2): "first, check for an RST ... second, check for an ACK ... third, a SYN".
        let flags = packet.header.flags;
        let is_plain_syn = flags.contains(TcpFlags::SYN)
            && !flags.intersects(TcpFlags::ACK.with(TcpFlags::RST).with(TcpFlags::FIN));
        if is_plain_syn {
            return self.on_syn(now, core, packet, frame, before);
        }
        let is_ack = flags.contains(TcpFlags::ACK) && !flags.intersects(TcpFlags::SYN.with(TcpFlags::RST));
        if is_ack && self.take_cookie(now, core, packet, frame) {
            return;
        }
        let count = if flags.contains(TcpFlags::RST) { Count::UnacceptableReset } else { Count::NoListener };
        self.counters.add(count);
        self.answer_with_reset(now, core, packet, frame);
    }

    /// Gives a frame to a core that has its flow by now.
    pub(crate) fn return_frame(&mut self, core: u8, frame: &[u8]) -> bool {
        let is_taken = self.output.receive(core, frame);
        self.counters.add(if is_taken { Count::Returned } else { Count::CoreBusy });
        is_taken
    }
}
