//! What a service decides once for its slow path. What it shares with the fast path stands in `flow::Config`.

use crate::{OwnAddress, SynCookies};
use base::Duration;
use congestion::Algorithm;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use wire::MacAddr;

/// Addresses, limits and patience.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our Ethernet address.
    pub mac: MacAddr,
    /// Bytes of the largest IP packet on the link.
    pub mtu: u16,
    /// Our addresses.
    pub addresses: Vec<OwnAddress>,
    /// Where IPv4 packets beyond the link go.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Where IPv6 packets beyond the link go.
    pub gateway_v6: Option<Ipv6Addr>,
    /// 16 random bytes from the kernel: sequence numbers, ports and timestamps depend on them.
    pub secret: [u8; 16],
    /// Local ports of connections that did not choose one. Linux's range.
    pub ephemeral: RangeInclusive<u16>,
    /// Congestion control of connections that did not choose one.
    pub algorithm: Algorithm,
    /// First timeout of SYN and SYN-ACK, doubled each time (RFC 6298: 1 s).
    pub syn_timeout: Duration,
    /// SYN repetitions: 6 as Linux, 127 s in all.
    pub syn_retries: u8,
    /// SYN-ACK repetitions: 5 as Linux.
    pub syn_ack_retries: u8,
    /// A connection is given up after the time that so many timeouts in a row take on a short path, 924.6 s for 15 as Linux (RFC
    /// 1122's R2, at least 100 s), or after so many window probes without an answer.
    pub retries: u8,
    /// The same once the application has let go: 8 as Linux.
    pub orphan_retries: u8,
    /// 2 MSL: 60 s as Linux.
    pub time_wait: Duration,
    /// Connections in TIME-WAIT at most.
    pub time_wait_max: usize,
    /// How long an abandoned connection waits for the peer's FIN: 60 s as Linux.
    pub fin_wait_2: Duration,
    /// When SYNs are answered with cookies.
    pub syn_cookies: SynCookies,
    /// Connections whose application has let go, at most; more are reset (Linux's `tcp_max_orphans`).
    pub orphans_max: usize,
    /// Half-open connections in all.
    pub half_open_max: usize,
    /// Half-open connections of one listener at most, Linux's `somaxconn`; it has no more than its backlog, as Linux.
    pub half_open_per_listener: usize,
    /// Active opens under way at most.
    pub connecting_max: usize,
    /// Neighbours known at most.
    pub neighbours_max: usize,
    /// Full segments that time out again and again may be too large for the path, and are made smaller (RFC 4821): Linux's
    /// `tcp_mtu_probing` at 1. Off, only what routers say counts.
    pub black_hole_detection: bool,
    /// Connections that we open ask for congestion notification where it is offered at all; else it is only agreed to when a
    /// peer asks, as by Linux with `tcp_ecn` at 2.
    pub asks_ecn: bool,
    /// Destinations remembered whose path takes smaller packets than the link.
    pub paths_max: usize,
    /// ICMP "too big" obeyed, per second.
    pub path_changes_per_second: u32,
    /// RST sent to segments that belong to nothing, per second.
    pub resets_per_second: u32,
    /// Challenge acknowledgements per second of the whole service (RFC 5961 section 7).
    pub challenges_per_second: u32,
}

impl Default for Config {
    /// Without addresses: those, the Ethernet address and the secret are the caller's to fill in.
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
