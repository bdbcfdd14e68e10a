//! ICMP messages in scripts, which quote packets of the host.

use crate::machine::{HOST, OTHERS};
use crate::syntax::Icmp;
use std::net::IpAddr;
use wire::{Endpoint, IpProtocol, MacAddr, checksum};

/// Names of ICMP types, their numbers, and the names of their codes from 0 on (RFC 792, RFC 1122, RFC 1812).
const V4: &[(&str, u8, &[&str])] = &[
    (
        "unreachable",
        3,
        &[
            "net_unreachable",
            "host_unreachable",
            "protocol_unreachable",
            "port_unreachable",
            "frag_needed",
            "source_route_failed",
            "net_unknown",
            "host_unknown",
            "source_host_isolated",
            "net_prohibited",
            "host_prohibited",
            "net_unreachable_for_tos",
            "host_unreachable_for_tos",
            "packet_filtered",
            "precedence_violation",
            "precedence_cutoff",
        ],
    ),
    ("source_quench", 4, &[]),
    ("redirect", 5, &[]),
    ("time_exceeded", 11, &["exceeded_ttl", "exceeded_frag_time"]),
    ("parameter_problem", 12, &[]),
];

/// The same table for ICMPv6 (RFC 4443).
const V6: &[(&str, u8, &[&str])] = &[
    (
        "unreachable",
        1,
        &["no_route", "admin_prohibited", "not_neighbour", "address_unreachable", "port_unreachable"],
    ),
    ("packet_too_big", 2, &[]),
    ("time_exceeded", 3, &["exceeded_hop_limit", "exceeded_frag_time"]),
    ("parameter_problem", 4, &["header_field", "unknown_next_header", "unknown_option"]),
];

/// The frame with `message` about a packet from `local` to `remote`; `live` converts the script's sequence number to the wire's.
pub(crate) fn frame(
    message: &Icmp,
    local: Endpoint,
    remote: Endpoint,
    live: impl Fn(u32) -> u32,
) -> Result<Vec<u8>, String> {
    let names = if local.addr.is_ipv4() { V4 } else { V6 };
    let (kind, codes) = match names.iter().find(|(name, ..)| *name == message.kind) {
        Some((_, kind, codes)) => (*kind, *codes),
        None => (number(&message.kind, "type_").ok_or(format!("no ICMP type `{}`", message.kind))?, &[][..]),
    };
    let code = match &message.code {
        None => 0,
        Some(code) => match codes.iter().position(|name| name == code) {
            Some(at) => at as u8,
            None => number(code, "code_").ok_or(format!("no ICMP code `{code}`"))?,
        },
    };
    let (seq, len) = message.quoted.unwrap_or((0, 0));
    let mtu = message.mtu.unwrap_or(0);
    let mut body = vec![kind, code, 0, 0];
    body.extend(mtu.to_be_bytes());
    body.extend(quote(local, remote, live(seq), len).ok_or("addresses of two families")?);
    let pseudo = match local.addr {
        IpAddr::V4(_) => checksum::Sum::ZERO,
        IpAddr::V6(_) => checksum::pseudo(remote.addr, local.addr, IpProtocol::ICMPV6, body.len())
            .ok_or("addresses of two families")?,
    };
    if !checksum::fill(pseudo, &mut body, 2) {
        return Err("an ICMP message without room for its checksum".into());
    }
    sim::icmp_frame([OTHERS, HOST], remote.addr, local.addr, 64, &body)
        .ok_or("an ICMP message that is too long".into())
}

fn number(name: &str, prefix: &str) -> Option<u8> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// The quoted part: the IP header of the host's packet and the first eight bytes of its TCP header (RFC 792: 64 bits).
fn quote(local: Endpoint, remote: Endpoint, seq: u32, len: u32) -> Option<Vec<u8>> {
    let payload = 20 + len as usize;
    let parameters = wire::IpParameters::new(MacAddr::ZERO, MacAddr::ZERO);
    let mut frame = vec![0; 128];
    let start =
        wire::emit_ip(&parameters, local.addr, remote.addr, IpProtocol::TCP, payload, &mut frame).ok()?;
    let mut quoted = frame.get(wire::EthernetHeader::LEN..start)?.to_vec();
    quoted.extend(local.port.to_be_bytes());
    quoted.extend(remote.port.to_be_bytes());
    quoted.extend(seq.to_be_bytes());
    Some(quoted)
}
