//! The port's link and TCP over it, as configured: every key has a value. Checks only what one key says of another.

use crate::config::values::{Congestion, Mac, Network, Rate};
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
    /// Whether SACK, timestamps, window scaling and ECN are used, in this order.
    pub switches: [bool; 4],
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
