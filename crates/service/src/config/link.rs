//! The port's part of the configuration: which keys need a port, their values, and what a link makes impossible.

use super::{Config, Options};
use crate::ServiceError;
use crate::config::values::{Congestion, Mac, Network, PortKind, Rate};
use base::limits::BUFFER_INITIAL_DEFAULT;
use slowpath::{OwnAddress, Routes};
use std::net::IpAddr;
use std::num::NonZeroU16;

/// Options of the port's link, and of TCP over it.
#[derive(Clone, Debug)]
pub struct Link {
    /// Name of the interface; for a TAP it may contain `%d`.
    pub name: String,
    /// Network namespace of the interface, by name or path; `None`: the service's own.
    pub namespace: Option<String>,
    /// The service's addresses on the link, with prefix lengths.
    pub own: Vec<Network>,
    /// Addresses of the kernel's side of a TAP, with prefix lengths.
    pub host: Vec<Network>,
    /// Gateways, at most one of each address family.
    pub gateways: Vec<IpAddr>,
    /// Ethernet address of the service; `None`: a random one.
    pub mac: Option<Mac>,
    /// Bytes of the largest IP packet; `None`: the port's default.
    pub mtu: Option<u16>,
    /// The port computes checksums.
    pub checksum: bool,
    /// The port cuts super-frames into segments.
    pub gso: bool,
    /// Congestion control of new connections, unless a socket chooses another.
    pub congestion: Congestion,
    /// TCP ports of connections that go before others.
    pub express_ports: Vec<NonZeroU16>,
    /// Whether SACK, timestamps, window scaling, ECN and its accurate form are used, in this order.
    pub switches: [bool; 5],
    /// First receive buffer of a connection, bytes, a power of two.
    pub buffer_initial: u32,
    /// TTL or hop limit of sent segments, from 1.
    pub hop_limit: u8,
    /// First bound of a connection's unsent and unacknowledged bytes; 0: no bound.
    pub send_buffer: u32,
    /// Number of flow records: most connections over the port.
    pub flows: u32,
    /// Share of packets lost, for tests.
    pub loss: Rate,
    /// Share of packets reordered, for tests.
    pub reorder: Rate,
    /// Share of packets duplicated, for tests.
    pub duplicate: Rate,
    /// Share of packets with a changed byte, for tests.
    pub corrupt: Rate,
    /// Share of packets cut short, for tests.
    pub truncate: Rate,
    /// Seed of the injected faults.
    pub seed: u64,
}

impl Link {
    /// True when `gateway` is on the link of one of the service's addresses. Link-local addresses are on every link of their family (RFC
    /// 4291 section 2.5.6), and IPv6 routers mostly announce themselves by them.
    pub(crate) fn reaches(&self, gateway: IpAddr) -> bool {
        let own = || self.own.iter().map(|n| OwnAddress { addr: n.address, prefix_len: n.prefix });
        let is_link_local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let is_covered = |own: OwnAddress| own.covers(gateway) || is_link_local && own.addr.is_ipv6();
        let routes = Routes::new(own().collect(), None, None);
        own().any(is_covered) && !routes.owns(gateway) && !routes.is_group(gateway)
    }
}

impl Options {
    /// Refuses keys that have an effect only with a port, or not with this kind of port.
    pub(super) fn check_port(&self) -> Result<(), ServiceError> {
        const OF_PORT: &[&str] = &[
            "port_name",
            "netns",
            "address",
            "host_address",
            "gateway",
            "mac",
            "mtu",
            "no_checksum_offload",
            "no_gso",
            "congestion",
            "cc_rules",
            "cc_socket",
            "cc_agents",
            "cc_reports",
            "cc_every_ack",
            "cc_allow_uids",
            "cc_window_max",
            "cc_rate_max",
            "express_ports",
            "sack",
            "timestamps",
            "window_scaling",
            "ecn",
            "accurate_ecn",
            "buffer_initial",
            "send_buffer",
            "hop_limit",
            "max_flows",
            "fault_loss",
            "fault_reorder",
            "fault_duplicate",
            "fault_corrupt",
            "fault_truncate",
            "fault_seed",
        ];
        let wrong = |key, must| Err(ServiceError::Value { key, must });
        match self.port.as_ref().map_or(PortKind::None, |port| port.kind) {
            PortKind::None => {}
            PortKind::Tap
                if self.port_name.is_some() && self.port.as_ref().is_some_and(|p| p.name.is_some()) =>
            {
                return wrong("port_name", "not be given beside the name in --port");
            }
            PortKind::Tap => return Ok(()),
            PortKind::Packet if self.port_name.is_some() => {
                return wrong("port_name", "be given in --port: packet:INTERFACE");
            }
            PortKind::Packet if self.host_address.is_some() => {
                return wrong(
                    "host_address",
                    "be used with a TAP (--port tap); other interfaces have their own",
                );
            }
            PortKind::Packet => return Ok(()),
        }
        self.refuse_set(OF_PORT, "be used with a port (--port tap or packet:INTERFACE)")
    }

    pub(super) fn link(&self) -> Link {
        let checksum = !self.no_checksum_offload.unwrap_or(false);
        let congestion = self.congestion.unwrap_or_default();
        let needs_ecn = matches!(congestion, Congestion::BuiltIn(algorithm) if algorithm.needs_ecn());
        let accurate_ecn = self.accurate_ecn.unwrap_or(false);
        let ecn = self.ecn.unwrap_or(needs_ecn || accurate_ecn);
        let on = |switch: Option<bool>| switch.unwrap_or(true);
        Link {
            name: self
                .port
                .as_ref()
                .and_then(|port| port.name.clone())
                .or_else(|| self.port_name.clone())
                .unwrap_or_else(|| "towpath%d".to_owned()),
            namespace: self.netns.clone(),
            own: self.address.clone().unwrap_or_default(),
            host: self.host_address.clone().unwrap_or_default(),
            gateways: self.gateway.clone().unwrap_or_default(),
            mac: self.mac,
            mtu: self.mtu,
            checksum,
            gso: checksum && !self.no_gso.unwrap_or(false),
            congestion,
            express_ports: self.express_ports.clone().unwrap_or_default(),
            switches: [on(self.sack), on(self.timestamps), on(self.window_scaling), ecn, accurate_ecn],
            buffer_initial: self.buffer_initial.unwrap_or(
                self.ring_max.map_or(BUFFER_INITIAL_DEFAULT, |max| max.min(BUFFER_INITIAL_DEFAULT)),
            ),
            hop_limit: self.hop_limit.unwrap_or(64),
            send_buffer: self.send_buffer.unwrap_or(0),
            flows: self.max_flows.unwrap_or(65_536),
            loss: self.fault_loss.unwrap_or_default(),
            reorder: self.fault_reorder.unwrap_or_default(),
            duplicate: self.fault_duplicate.unwrap_or_default(),
            corrupt: self.fault_corrupt.unwrap_or_default(),
            truncate: self.fault_truncate.unwrap_or_default(),
            seed: self.fault_seed.unwrap_or(1),
        }
    }
}

impl Config {
    /// Refuses values with which no port could be opened.
    pub(super) fn check_link(&self) -> Result<(), ServiceError> {
        let wrong = |key, must| Err(ServiceError::Value { key, must });
        let link = &self.link;
        if link.mac.is_some_and(|mac| mac.0[0] & 1 == 1 || mac.0 == [0; 6]) {
            return wrong("mac", "be the address of one station, like 02:00:00:00:00:01");
        }
        if link.mtu.is_some_and(|mtu| !MTU_RANGE.contains(&mtu)) {
            return wrong("mtu", "be from 576 to 65521");
        }
        let mut all = link.own.iter().chain(&link.host);
        if all.clone().any(|n| n.address.is_ipv6()) && link.mtu.is_some_and(|mtu| mtu < MTU_V6_MIN) {
            return wrong("mtu", "be at least 1280 with an IPv6 address (RFC 8200 section 5)");
        }
        if all.any(|n| n.address.is_multicast() || n.address.is_unspecified()) {
            return wrong("address", "name addresses of one host each, as --host-address must");
        }
        let count = |v4: bool| link.host.iter().filter(|n| n.address.is_ipv4() == v4).count();
        if count(true) > 1 || count(false) > 1 {
            return wrong("host_address", "name one address of each family at most");
        }
        Ok(())
    }
}

/// Largest IP packet, bytes: from the least that IPv4 requires of hosts (RFC 791) to the most that Linux allows.
const MTU_RANGE: std::ops::RangeInclusive<u16> = 576..=65_521;

/// Least MTU of an IPv6 link (RFC 8200 section 5).
const MTU_V6_MIN: u16 = 1280;
