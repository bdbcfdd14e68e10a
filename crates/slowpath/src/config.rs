//! Settings of a slow path, fixed for a service's lifetime. Those shared with the fast path are in `flow::Config`.

use crate::{OwnAddress, SynCookies};
use base::Duration;
use congestion::Algorithm;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use wire::MacAddr;

/// Addresses, limits and timeouts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Ethernet address of our port.
    pub mac: MacAddr,
    /// MTU: bytes of the largest IP packet on the link.
    pub mtu: u16,
    /// Our IP addresses with their prefixes.
    pub addresses: Vec<OwnAddress>,
    /// Next hop of IPv4 packets to destinations beyond the link.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Next hop of IPv6 packets to destinations beyond the link.
    pub gateway_v6: Option<Ipv6Addr>,
    /// 16 random bytes from the kernel: sequence numbers, ports and timestamps depend on them.
    pub secret: [u8; 16],
    /// Local ports of connections that did not choose one. Linux's range.
    pub ephemeral: RangeInclusive<u16>,
    /// Congestion control of connections that did not choose one.
    pub algorithm: Algorithm,
    /// Flows with one of these ports go before others, unless their options say otherwise.
    pub express_ports: Vec<u16>,
    /// The port, or the cores themselves, bring the frames of each group of flows to the core that [`Event::Steer`](crate::Event::Steer) has
    /// named last; at first groups are spread as by `flow::spread_groups`.
    pub is_steered: bool,
    /// Number of cores that have groups at first, from the first on; 0: all.
    pub serving: u8,
    /// First timeout of SYN and SYN-ACK, doubled each time (RFC 6298: 1 s).
    pub syn_timeout: Duration,
    /// SYN repetitions: 6 as Linux, 127 s in all.
    pub syn_retries: u8,
    /// SYN-ACK repetitions: 5 as Linux.
    pub syn_ack_retries: u8,
    /// A connection is given up after the time that so many timeouts in a row take on a short path (15, as Linux: 924.6 s; RFC
    /// 1122's R2, at least 100 s), or after so many window probes without an answer.
    pub retries: u8,
    /// As `retries`, once the application has let go of the connection: 8 as Linux.
    pub orphan_retries: u8,
    /// 2 MSL: 60 s as Linux.
    pub time_wait: Duration,
    /// Most connections in TIME-WAIT.
    pub time_wait_max: usize,
    /// How long an abandoned connection waits for the peer's FIN: 60 s as Linux.
    pub fin_wait_2: Duration,
    /// When SYNs are answered with cookies.
    pub syn_cookies: SynCookies,
    /// Most connections that their applications have let go of; more are reset (Linux's `tcp_max_orphans`).
    pub orphans_max: usize,
    /// Most half-open connections of all listeners together.
    pub half_open_max: usize,
    /// Most half-open connections of one listener, Linux's `somaxconn`; a listener's backlog may allow fewer, as in Linux.
    pub half_open_per_listener: usize,
    /// Most active opens under way.
    pub connecting_max: usize,
    /// Most entries of the neighbour table.
    pub neighbours_max: usize,
    /// If full segments time out again and again, they may be too large for the path: make them smaller (RFC 4821), as Linux with
    /// `tcp_mtu_probing` at 1. If off, only ICMP messages of routers lower the size.
    pub black_hole_detection: bool,
    /// Our SYNs ask for ECN if `flow::Config::ecn` allows it; else ECN is only agreed to when a peer asks, as by Linux with `tcp_ecn`
    /// at 2.
    pub asks_ecn: bool,
    /// Most destinations remembered because their path takes smaller packets than the link.
    pub paths_max: usize,
    /// ICMP "too big" messages obeyed per second about connections to one peer; this and the next two limits are drawn anew each second
    /// for each peer, between half and one and a half of what is named here.
    pub path_changes_per_second: u32,
    /// RSTs sent per second to one peer in answer to segments of no connection.
    pub resets_per_second: u32,
    /// Challenge ACKs sent per second to one peer (RFC 5961 section 7); each connection has a limit of its own, [`flow::Challenged`].
    pub challenges_per_second: u32,
}

impl Default for Config {
    /// Defaults without addresses: the caller fills in addresses, the Ethernet address and the secret.
    fn default() -> Self {
        Self {
            mac: MacAddr::ZERO,
            mtu: 1500,
            addresses: Vec::new(),
            gateway_v4: None,
            gateway_v6: None,
            secret: [0; 16],
            ephemeral: 32_768..=60_999,
            algorithm: Algorithm::default(),
            express_ports: Vec::new(),
            is_steered: false,
            serving: 0,
            syn_timeout: Duration::from_secs(1),
            syn_retries: 6,
            syn_ack_retries: 5,
            retries: 15,
            orphan_retries: 8,
            time_wait: Duration::from_secs(60),
            time_wait_max: 65_536,
            fin_wait_2: Duration::from_secs(60),
            syn_cookies: SynCookies::UnderPressure,
            orphans_max: 65_536,
            half_open_max: 16_384,
            half_open_per_listener: 4096,
            connecting_max: 65_536,
            neighbours_max: 1024,
            black_hole_detection: true,
            asks_ecn: true,
            paths_max: 4096,
            path_changes_per_second: 1000,
            resets_per_second: 1000,
            challenges_per_second: 1000,
        }
    }
}
