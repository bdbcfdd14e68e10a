//! What a program says of a socket by its options, as far as the service obeys it.

use crate::CongestionName;
use serde::{Deserialize, Serialize};

/// Options of a socket that the service's TCP obeys. 0 means: the default of the service's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SocketOptions {
    /// `SO_KEEPALIVE`: keepalive probes are sent.
    pub keep_alive: bool,
    /// `TCP_KEEPIDLE`: silence before the first probe, seconds.
    pub keep_idle: u16,
    /// `TCP_KEEPINTVL`: time between probes, seconds.
    pub keep_interval: u16,
    /// `TCP_KEEPCNT`: unanswered probes before the connection fails.
    pub keep_count: u8,
    /// `TCP_USER_TIMEOUT`: longest time without acknowledgement, milliseconds.
    pub user_timeout: u32,
    /// `TCP_MAXSEG`: largest segment, payload bytes.
    pub max_segment: u16,
    /// `SO_RCVBUF`: receive buffer, bytes.
    pub receive_buffer: u32,
    /// `SO_MAX_PACING_RATE`, bytes per second; 0: no limit.
    pub max_pacing_rate: u64,
    /// `TCP_LINGER2`, seconds; negative: after `close` the connection does not wait for its peer's FIN.
    pub linger2: i16,
    /// `TCP_SYNCNT`, retransmissions of a SYN.
    pub syn_count: u8,
    /// `TCP_DEFER_ACCEPT`: time to wait for first bytes, seconds.
    pub defer_accept: u16,
    /// `TCP_CONGESTION`: the congestion control; `None`: the socket has chosen none.
    pub congestion: Option<CongestionName>,
    /// `IP_TOS`, the whole byte.
    pub tos: u8,
    /// `IPV6_TCLASS`, the whole byte.
    pub traffic_class: u8,
    /// `SO_PRIORITY`, at most 255.
    pub priority: u8,
    /// `TOWPATH_APP_TYPE`: what matters to the program on this connection.
    pub app_type: AppType,
    /// True when `IP_MTU_DISCOVER` is `IP_PMTUDISC_DONT`.
    pub may_fragment: bool,
    /// `SO_REUSEADDR`: a port that the service gives the socket may be shared with other such sockets.
    pub reuse_address: bool,
    /// Whether the connection may go over channels (`TOWPATH_CHANNEL`).
    pub channel: ChannelWish,
}

/// What a program says of a connection by the socket option `TOWPATH_APP_TYPE`, as NetChannel's programs do (SIGCOMM 2022, section 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum AppType {
    /// Nothing: the connection's class is found by how it behaves.
    #[default]
    Unset,
    /// Short answers: it goes before others.
    Latency,
    /// Many bytes: it goes after others.
    Throughput,
}

impl AppType {
    /// The type with that number, as the option's value has it; any other number is none.
    #[must_use]
    pub const fn of(number: i32) -> Self {
        match number {
            1 => Self::Latency,
            2 => Self::Throughput,
            _ => Self::Unset,
        }
    }
}

/// What a program's `TOWPATH_CHANNEL` says about connections over channels to another service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ChannelWish {
    /// Nothing: the service's rules decide.
    #[default]
    Unset,
    /// Each connection is a TCP connection of its own.
    Never,
    /// By channel where the peer has a channel service, else plain TCP.
    Prefer,
    /// By channel, or not at all.
    Require,
}

impl ChannelWish {
    /// The values of the variable.
    pub const NAMES: [(&'static str, Self); 3] =
        [("never", Self::Never), ("prefer", Self::Prefer), ("require", Self::Require)];

    /// The wish with this name in [`Self::NAMES`].
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, wish)| *wish)
    }
}
