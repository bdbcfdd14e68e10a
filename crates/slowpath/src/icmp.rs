//! ICMP: echo requests are answered; errors are believed only if they quote a segment in flight (RFC 5927).

use crate::event::errno;
use crate::handshake::Via;
use crate::link::Solicitor;
use crate::{Count, SlowPath, source_mac};
use base::Instant;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{
    Icmpv4Message, Icmpv6Message, IpPacket, IpParameters, IpProtocol, MacAddr, QuotedFlow, code, emit_ip,
};

/// Bytes of the longest echo that is answered whole; a core copies no more of a frame.
const ECHO_MAX: usize = flow::FRAME_COPY_MAX;

/// What an ICMP error reports about a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The destination cannot be reached, with the errno. A socket that is connecting fails; a connection goes on.
    Unreachable(u16),
    /// The path takes packets of this many bytes only.
    TooBig(u32),
}

/// The addresses of an ICMP message that is sent.
#[derive(Clone, Copy)]
pub(crate) struct Ends<A> {
    /// Our address.
    pub(crate) src: A,
    /// Address of the receiver.
    pub(crate) dst: A,
}

impl SlowPath {
    pub(crate) fn on_icmpv4(&mut self, now: Instant, core: u8, ip: &IpPacket, frame: &[u8]) {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (ip.src, ip.dst) else { return };
        let Ok(message) = Icmpv4Message::parse(ip.payload.of(frame)) else { return };
        let (fault, quoted) = match message {
            Icmpv4Message::EchoRequest { id, seq, payload } => {
                let reply = Icmpv4Message::EchoReply { id, seq, payload };
                return self.echo_v4(now, core, Ends { src: dst, dst: src }, &reply, source_mac(frame));
            }
            Icmpv4Message::DestinationUnreachable { code, next_hop_mtu, quoted } => {
                (fault_v4(code, next_hop_mtu), quoted)
            }
            Icmpv4Message::TimeExceeded { quoted, .. } => {
                (Some(Fault::Unreachable(errno::EHOSTUNREACH)), quoted)
            }
            Icmpv4Message::EchoReply { .. } | Icmpv4Message::Other { .. } => (None, &[][..]),
        };
        let Some(fault) = fault else { return self.counters.add(Count::OtherIcmp) };
        match QuotedFlow::parse_v4(quoted) {
            Ok(quoted) => self.on_icmp_error(now, &quoted, fault),
            Err(_) => self.counters.add(Count::StrayIcmp),
        }
    }

    pub(crate) fn on_icmpv6(&mut self, now: Instant, core: u8, ip: &IpPacket, frame: &[u8]) {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src, ip.dst) else { return };
        let Ok(message) = Icmpv6Message::parse(&src, &dst, ip.payload.of(frame)) else { return };
        let (fault, quoted) = match message {
            // To a group: an answer "SHOULD" come from one of our addresses (RFC 4443 section 4.2); we send no answer.
            Icmpv6Message::EchoRequest { .. } if dst.is_multicast() => {
                return self.counters.add(Count::OtherIcmp);
            }
            Icmpv6Message::EchoRequest { id, seq, payload } => {
                let reply = Icmpv6Message::EchoReply { id, seq, payload };
                return self.echo_v6(now, core, Ends { src: dst, dst: src }, &reply, source_mac(frame));
            }
            Icmpv6Message::NeighborSolicitation { target, source_link } => {
                let from = Solicitor { src, dst, mac: source_mac(frame), link: source_link };
                return self.on_solicitation(now, core, &from, target);
            }
            Icmpv6Message::NeighborAdvertisement { target, target_link, solicited, overrides, .. } => {
                // "If the IP Destination Address is a multicast address the Solicited flag is zero" (RFC 4861 section 7.1.2).
                if solicited && dst.is_multicast() {
                    return self.counters.add(Count::NeighbourUnasked);
                }
                return self.on_advertisement(now, core, target, target_link, overrides);
            }
            Icmpv6Message::PacketTooBig { mtu, quoted } => (Some(Fault::TooBig(mtu)), quoted),
            // RFC 4443 section 3.1: 0 no route, 1 prohibited, 3 address, 4 port unreachable.
            Icmpv6Message::DestinationUnreachable { code, quoted } => {
                let errno = match code {
                    0 => errno::ENETUNREACH,
                    4 => errno::ECONNREFUSED,
                    _ => errno::EHOSTUNREACH,
                };
                (Some(Fault::Unreachable(errno)), quoted)
            }
            Icmpv6Message::TimeExceeded { quoted, .. } => {
                (Some(Fault::Unreachable(errno::EHOSTUNREACH)), quoted)
            }
            Icmpv6Message::EchoReply { .. } | Icmpv6Message::Other { .. } => (None, &[][..]),
        };
        let Some(fault) = fault else { return self.counters.add(Count::OtherIcmp) };
        match QuotedFlow::parse_v6(quoted) {
            Ok(quoted) => self.on_icmp_error(now, &quoted, fault),
            Err(_) => self.counters.add(Count::StrayIcmp),
        }
    }

    /// Handles an ICMP error. As in Linux, any of them fails an open in SYN-SENT (RFC 5461 tells why); for an established connection
    /// it is "soft" (RFC 5461 section 2, RFC 1122 section 4.2.3.9).
    fn on_icmp_error(&mut self, now: Instant, quoted: &QuotedFlow, fault: Fault) {
        if let Some(&id) = self.opening_of.get(&quoted.tuple) {
            let Some(opening) = self.openings.get_mut(&id).filter(|o| o.iss == quoted.seq) else {
                return self.counters.add(Count::StrayIcmp);
            };
            if let Fault::Unreachable(errno) = fault {
                if opening.crossed.is_some() {
                    opening.soft_error = Some(errno);
                } else {
                    self.fail_opening(id, errno);
                }
            }
            return;
        }
        let Some(&flow) = self.by_tuple.get(&quoted.tuple) else {
            return self.counters.add(Count::StrayIcmp);
        };
        match fault {
            Fault::Unreachable(errno) => {
                let is_ours = self.with_flow(flow, |parts| {
                    let in_flight = parts.tx.snd_max.since(parts.tx.snd_una);
                    let is_ours = quoted.seq.is_within(parts.tx.snd_una, in_flight);
                    if is_ours {
                        parts.cold.soft_error = errno;
                    }
                    is_ours
                });
                if !is_ours {
                    self.counters.add(Count::StrayIcmp);
                }
            }
            Fault::TooBig(mtu) => self.on_too_big(now, flow, quoted, mtu),
        }
    }

    fn echo_v4(
        &mut self,
        now: Instant,
        core: u8,
        Ends { src, dst }: Ends<Ipv4Addr>,
        reply: &Icmpv4Message<'_>,
        mac: MacAddr,
    ) {
        let mut buffer = [0; ECHO_MAX];
        let parameters = IpParameters::new(self.config.mac, MacAddr::ZERO);
        let len = reply.encoded_len();
        let start = emit_ip(&parameters, src.into(), dst.into(), IpProtocol::ICMP, len, &mut buffer);
        let Ok(start) = start else { return };
        let Ok(len) = reply.emit(&mut buffer[start..]) else { return };
        if self.send_ip(now, core, dst.into(), &mut buffer[..start + len], Via::Reply(mac)) {
            self.counters.add(Count::Echoes);
        }
    }

    fn echo_v6(
        &mut self,
        now: Instant,
        core: u8,
        ends: Ends<Ipv6Addr>,
        reply: &Icmpv6Message<'_>,
        mac: MacAddr,
    ) {
        if self.send_icmpv6(now, core, ends, reply, mac) {
            self.counters.add(Count::Echoes);
        }
    }

    /// Sends an ICMPv6 message to where a frame came from. Neighbour discovery needs hop limit 255.
    pub(crate) fn send_icmpv6(
        &mut self,
        now: Instant,
        core: u8,
        Ends { src, dst }: Ends<Ipv6Addr>,
        message: &Icmpv6Message<'_>,
        mac: MacAddr,
    ) -> bool {
        let mut buffer = [0; ECHO_MAX];
        let is_neighbour = message.is_neighbor_discovery();
        let hop_limit = if is_neighbour { 255 } else { 64 };
        let parameters = IpParameters { hop_limit, ..IpParameters::new(self.config.mac, mac) };
        let len = message.encoded_len();
        let start = emit_ip(&parameters, src.into(), dst.into(), IpProtocol::ICMPV6, len, &mut buffer);
        let Ok(start) = start else { return false };
        let Ok(len) = message.emit(&src, &dst, &mut buffer[start..]) else { return false };
        let frame = &mut buffer[..start + len];
        if is_neighbour {
            self.send_frame(core, frame)
        } else {
            self.send_ip(now, core, dst.into(), frame, Via::Reply(mac))
        }
    }
}

/// The errno of an IPv4 "destination unreachable": Linux's `icmp_err_convert`.
fn fault_v4(code: u8, next_hop_mtu: u16) -> Option<Fault> {
    Some(match code {
        code::FRAGMENTATION_NEEDED => Fault::TooBig(u32::from(next_hop_mtu)),
        code::NETWORK_UNREACHABLE | 6 | 9 | 11 => Fault::Unreachable(errno::ENETUNREACH),
        code::PROTOCOL_UNREACHABLE => Fault::Unreachable(errno::ENOPROTOOPT),
        code::PORT_UNREACHABLE => Fault::Unreachable(errno::ECONNREFUSED),
        0..=15 => Fault::Unreachable(errno::EHOSTUNREACH),
        _ => return None,
    })
}
