//! Input from the cores: events of flows, and frames of no flow.

use crate::moves::Answer;
use crate::teardown::Step;
use crate::time_wait::Verdict;
use crate::{Count, Event, SlowPath, source_mac};
use base::Instant;
use flow::{Exception, FRAME_COPY_MAX};
use std::net::IpAddr;
use wire::{
    Addressee, Body, DropReason, Packet, RxChecksum, TcpFlags, TcpPacket, check_addresses,
    check_tcp_addresses,
};

impl SlowPath {
    /// Takes in an exception of `core`; `frame` is the frame that comes with [`Exception::Frame`].
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
            Exception::Report { flow } => self.on_report(flow),
            Exception::Dropped { flow } => self.on_dropped(now, flow),
            Exception::Violation { region, slot, what } => {
                self.events.push_back(Event::Violation { region, slot, what });
            }
            Exception::MemoryShort { region } => self.events.push_back(Event::MemoryShort { region }),
            Exception::Expecting { number } => self.on_move_answer(core, Answer::Expecting(number)),
            Exception::Quiet { number } => self.on_move_answer(core, Answer::Quiet(number)),
            Exception::Taken => self.on_move_answer(core, Answer::Taken),
            Exception::Drained { index, region, .. } => self.on_drained(index, &region),
        }
        self.output.flush();
    }

    /// Handles a frame. Of a super-frame the core hands over only the beginning: it is treated as a shorter segment.
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
        if let Err(reason) = self.admit_ethernet(&packet, frame) {
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
                Err(DropReason::LandAttack) if ip.dst.is_multicast() => {
                    self.on_own_address(now, core, &ip, frame);
                }
                Err(reason) => self.counters.drop(reason),
            },
            // Not admitted above.
            Body::OtherIp(_) | Body::Other => {}
        }
    }

    /// Checks that a frame is for us and from a single station, because answers go to its source. Cores have made the same check, as far
    /// as they know our addresses.
    fn admit_ethernet(&self, packet: &Packet, frame: &[u8]) -> Result<(), DropReason> {
        if !packet.ethernet.src.is_unicast() {
            return Err(DropReason::MartianSource);
        }
        let owns = |addr| self.routes.owns(addr);
        Addressee { mac: self.config.mac, owns }.admit(packet, frame)
    }

    /// Checks that a packet to us may come from address `src`.
    fn admit(&self, src: &IpAddr, dst: &IpAddr, is_tcp: bool) -> Result<(), DropReason> {
        let check = if is_tcp { check_tcp_addresses } else { check_addresses };
        check(*src, *dst)?;
        if self.routes.is_group(*src) {
            return Err(DropReason::MartianSource);
        }
        if self.routes.owns(*src) { Err(DropReason::LandAttack) } else { Ok(()) }
    }

    /// Handles a segment for which the core found no flow, or found its record locked.
    fn on_tcp(&mut self, now: Instant, core: u8, packet: &TcpPacket, frame: &[u8]) {
        let tuple = packet.tuple().reversed();
        if let Some(&flow) = self.by_tuple.get(&tuple) {
            // The flow was installed while the frame was on its way here.
            let core = self.connections.get(&flow).map_or(core, |c| c.owner.core);
            if !self.return_frame(core, frame) && packet.header.flags.contains(TcpFlags::RST) {
                // The peer does not repeat a RST, so handle it here.
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
                return self.acknowledge_remains(now, core, tuple, &remains, source_mac(frame));
            }
            Some(Verdict::Challenge(_)) if !self.time_wait.take_challenge(now, &tuple) => {
                return self.counters.add(Count::ChallengeLimited);
            }
            Some(Verdict::Challenge(remains)) => {
                if self.may_challenge(now, tuple.dst.addr) {
                    self.acknowledge_remains(now, core, tuple, &remains, source_mac(frame));
                }
                return;
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
        if flags.contains(TcpFlags::RST) {
            return self.counters.add(Count::UnacceptableReset);
        }
        // "Any other control or data-bearing segment (not containing SYN) must have an ACK and thus would have been discarded by the
        // ACK processing ... the segment should be dropped". SYN with FIN comes from scanners: dropped, as on Linux.
        let is_acknowledgement = flags.contains(TcpFlags::ACK);
        if !is_acknowledgement && self.listeners.find(&tuple.src).is_some() {
            return self.counters.add(Count::UnacceptableSegment);
        }
        self.counters.add(Count::NoListener);
        self.answer_with_reset(now, core, packet, frame);
    }

    /// Returns a frame to the core that has its flow by now. False when the core's ring is full.
    #[must_use]
    pub(crate) fn return_frame(&mut self, core: u8, frame: &[u8]) -> bool {
        let is_taken = self.output.receive(core, frame);
        self.counters.add(if is_taken { Count::Returned } else { Count::CoreBusy });
        is_taken
    }
}
