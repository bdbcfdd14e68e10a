//! Options of a connection that its socket sets: timeouts, sizes, congestion control. Given with an active open, or with a
//! listener for the connections it accepts; they can be changed at any time.

use crate::patience::Keepalive;
use crate::{Config, SlowPath};
use base::{Duration, Instant};
use congestion::Algorithm;
use control::{AppType, DeferAccept, SocketOptions};
use flow::{FlowId, class};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use wire::FourTuple;

/// Bytes: the smallest bound of a receive window that an application can set: Linux's `SOCK_MIN_RCVBUF`.
pub const RECEIVE_BUFFER_MIN: u32 = 2304;

/// Most seconds that Linux keeps a connection in FIN-WAIT-2 because of `TCP_LINGER2`.
const LINGER2_MAX: u64 = 120;
/// Most keepalive probes (`TCP_KEEPCNT`) and SYNs (`TCP_SYNCNT`) that Linux accepts.
const COUNT_MAX: u8 = 127;

/// Code points of flows that go before others: low delay (RFC 1349), expedited forwarding (RFC 3246), voice (RFC 5865), network control
/// (RFC 2474).
const LOW_DELAY: u8 = 0x10 >> 2;
const EXPEDITED: u8 = 46;
const VOICE_ADMIT: u8 = 44;
const CS6: u8 = 48;
const CS7: u8 = 56;
/// Code points of flows that go after others: lower effort (RFC 8622), and what was used for it before (RFC 3662).
const LOWER_EFFORT: u8 = 1;
const CS1: u8 = 8;

/// Options of one connection. An option that is `None` follows the service's [`Config`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowOptions {
    /// Congestion control algorithm: `TCP_CONGESTION`.
    pub algorithm: Option<Algorithm>,
    /// `SO_KEEPALIVE` with its times.
    pub keepalive: Option<Keepalive>,
    /// `TCP_USER_TIMEOUT`: if data is not acknowledged, or the peer's window stays closed, for this time, the connection ends
    /// with ETIMEDOUT (RFC 5482, RFC 9293 section 3.8.3).
    pub user_timeout: Option<Duration>,
    /// `TCP_MAXSEG`: bytes of the largest segment that is announced, and sent.
    pub max_segment: Option<u16>,
    /// `SO_RCVBUF`: bytes of the largest receive window.
    pub receive_buffer: Option<u32>,
    /// `SO_MAX_PACING_RATE`: most bytes per second.
    pub max_pacing_rate: Option<NonZeroU64>,
    /// `TCP_LINGER2`: how long an abandoned connection waits for the peer's FIN.
    pub linger2: Option<Linger2>,
    /// `TCP_SYNCNT`: SYN repetitions of an active open.
    pub syn_retries: Option<u8>,
    /// `TCP_DEFER_ACCEPT`, of a listener: a connection is offered when its first data comes, or after this time.
    pub defer_accept: Option<DeferAccept>,
    /// From `IP_TOS`: the differentiated services code point over IPv4, six bits.
    pub dscp_v4: u8,
    /// From `IPV6_TCLASS`: the code point over IPv6, six bits.
    pub dscp_v6: u8,
    /// `SO_PRIORITY`: 6 and 7 (interactive, control) go before other flows, 1 and 2 (filler, bulk) after them.
    pub priority: u8,
    /// `TOWPATH_APP_TYPE`: the same, and goes before `SO_PRIORITY`.
    pub app_type: AppType,
    /// `IP_PMTUDISC_DONT`: routers may fragment segments with data over IPv4, and ICMP "too big" is ignored.
    pub may_fragment: bool,
}

/// How long an orphan (its application has let go) stays in FIN-WAIT-2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linger2 {
    /// The orphan waits for the peer's FIN for this time.
    Wait(Duration),
    /// The orphan does not wait: RST at once, as Linux does for negative values.
    Reset,
}

/// What a connection's class was asked for by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AskedBy {
    /// The socket option `TOWPATH_APP_TYPE`.
    AppType,
    /// The socket option `SO_PRIORITY`.
    Priority,
    /// The socket option `IP_TOS` or `IPV6_TCLASS`.
    CodePoint,
    /// The configuration, for one of the connection's ports.
    Port,
}

/// The class that a connection is in because it, or the configuration, asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AskedClass {
    /// It goes before others; else after them.
    pub is_express: bool,
    /// What has asked for the class.
    pub by: AskedBy,
}

impl AskedClass {
    /// The class as a bit of the flow's record.
    const fn bit(self) -> u8 {
        if self.is_express { class::EXPRESS } else { class::BULK }
    }
}

impl fmt::Display for AskedClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = if self.is_express { "latency: before others" } else { "throughput: after others" };
        let by = match self.by {
            AskedBy::AppType => "TOWPATH_APP_TYPE",
            AskedBy::Priority => "SO_PRIORITY",
            AskedBy::CodePoint => "IP_TOS or IPV6_TCLASS",
            AskedBy::Port => "--express-ports",
        };
        write!(f, "{class}, by {by}")
    }
}

/// Options as an application sends them: each number is brought into the range that Linux accepts; 0 stands for an option that is not set.
impl From<&SocketOptions> for FlowOptions {
    fn from(told: &SocketOptions) -> Self {
        let default = Keepalive::default();
        let seconds =
            |s: u16, default: Duration| if s == 0 { default } else { Duration::from_secs(u64::from(s)) };
        let keepalive = Keepalive {
            idle: seconds(told.keep_idle, default.idle),
            interval: seconds(told.keep_interval, default.interval),
            count: if told.keep_count == 0 { default.count } else { told.keep_count.min(COUNT_MAX) },
        };
        Self {
            // A name that is no algorithm's is an agent's: the service knows what the flow gets meanwhile.
            algorithm: told.congestion.and_then(|name| name.as_str().parse().ok()),
            keepalive: told.keep_alive.then_some(keepalive),
            user_timeout: (told.user_timeout > 0).then(|| Duration::from_ms(u64::from(told.user_timeout))),
            max_segment: (told.max_segment > 0).then_some(told.max_segment),
            receive_buffer: (told.receive_buffer > 0).then_some(told.receive_buffer),
            max_pacing_rate: NonZeroU64::new(told.max_pacing_rate),
            linger2: match told.linger2 {
                0 => None,
                ..0 => Some(Linger2::Reset),
                s => Some(Linger2::Wait(Duration::from_secs((s as u64).min(LINGER2_MAX)))),
            },
            syn_retries: (told.syn_count > 0).then_some(told.syn_count.min(COUNT_MAX)),
            defer_accept: DeferAccept::from_seconds(told.defer_accept),
            // The lowest two bits are ECN's: TCP sets them, not the application.
            dscp_v4: told.tos >> 2,
            dscp_v6: told.traffic_class >> 2,
            priority: told.priority,
            app_type: told.app_type,
            may_fragment: told.may_fragment,
        }
    }
}

impl FlowOptions {
    /// The window of our SYN: never scaled, and no larger than the receive buffer. One unit of the window scale is kept in reserve,
    /// because later windows are rounded up to it.
    pub(crate) fn syn_window(&self, shared: &flow::Config) -> u16 {
        let unit = if shared.window_scaling { 1 << shared.window_shift() } else { 0 };
        let own = shared.receive_buffer_initial.min(shared.receive_buffer_max).saturating_sub(unit);
        own.min(self.receive_buffer.unwrap_or(u32::MAX)).clamp(RECEIVE_BUFFER_MIN, 0xFFFF) as u16
    }

    /// MSS to announce, and largest segment to send, bytes; `link`: what the link takes.
    pub(crate) fn mss(&self, link: u16) -> u16 {
        self.max_segment.map_or(link, |asked| asked.clamp(crate::handshake::MSS_MIN, link))
    }

    /// "The application layer MUST be able to specify the Differentiated Services field for segments that are sent on a connection"
    /// (RFC 9293 section 3.9.1.9): its code point towards `peer`.
    pub(crate) fn dscp(&self, peer: IpAddr) -> u8 {
        if peer.is_ipv4() { self.dscp_v4 } else { self.dscp_v6 }
    }

    /// The class that the connection asks for, if it does: by `TOWPATH_APP_TYPE`, else by `SO_PRIORITY`, else by its code point towards `peer`,
    /// else by a port that the configuration names.
    fn class(&self, peer: IpAddr, has_express_port: bool) -> Option<AskedClass> {
        let (is_express, by) = match (self.app_type, self.priority, self.dscp(peer)) {
            (AppType::Latency, ..) => (true, AskedBy::AppType),
            (AppType::Throughput, ..) => (false, AskedBy::AppType),
            (_, 6 | 7, _) => (true, AskedBy::Priority),
            (_, 1 | 2, _) => (false, AskedBy::Priority),
            (.., LOW_DELAY | EXPEDITED | VOICE_ADMIT | CS6 | CS7) => (true, AskedBy::CodePoint),
            (.., LOWER_EFFORT | CS1) => (false, AskedBy::CodePoint),
            _ if has_express_port => (true, AskedBy::Port),
            _ => return None,
        };
        Some(AskedClass { is_express, by })
    }

    pub(crate) fn syn_retries(&self, config: &Config) -> u8 {
        self.syn_retries.unwrap_or(config.syn_retries)
    }
}

impl SlowPath {
    /// Changes the options of a connection. The size of segments, the window of the SYN and its repetitions are settled by
    /// the handshake and stay.
    pub fn set_options(&mut self, now: Instant, flow: FlowId, options: &FlowOptions) {
        let live = self.connections.get_mut(&flow).filter(|c| !c.is_over && !c.is_orphan);
        let Some(connection) = live else { return };
        let (tuple, region) = (connection.tuple, connection.owner.region);
        let before = std::mem::replace(&mut connection.options, *options);
        if before.keepalive != options.keepalive {
            self.keepalive_changed(now, flow);
        }
        if before.receive_buffer != options.receive_buffer {
            let bytes = options.receive_buffer.unwrap_or(0);
            self.with_flow(flow, |parts| parts.cold.limit_receive(bytes, parts.rx.rcv_shift));
        }
        if before.max_pacing_rate != options.max_pacing_rate {
            let allowed = self.region(region).and_then(|region| region.limits().rate());
            let most = options.max_pacing_rate.into_iter().chain(allowed).min().map_or(0, NonZeroU64::get);
            self.with_flow(flow, |parts| parts.cold.limit_pace(most));
        }
        let class = self.class_for(options, &tuple).map_or(0, AskedClass::bit);
        let traffic = options.dscp(tuple.dst.addr) | class;
        self.with_flow(flow, |parts| {
            (parts.tx.traffic, parts.tx.may_fragment) = (traffic, options.may_fragment);
        });
        if before.algorithm != options.algorithm {
            let (algorithm, rates) = (self.algorithm(options), self.flow_config().rates);
            self.with_flow(flow, |parts| parts.choose(now, algorithm, &rates));
        }
    }

    /// The class that a connection with these options and addresses is asked to be in; `None`: its behaviour decides.
    fn class_for(&self, options: &FlowOptions, tuple: &FourTuple) -> Option<AskedClass> {
        let has_port =
            [tuple.src.port, tuple.dst.port].iter().any(|port| self.config.express_ports.contains(port));
        options.class(tuple.dst.addr, has_port)
    }

    /// The class that a connection, or the configuration, asks for; `None`: its behaviour decides.
    #[must_use]
    pub fn asked_class(&self, flow: FlowId) -> Option<AskedClass> {
        let connection = self.connections.get(&flow)?;
        self.class_for(&connection.options, &connection.tuple)
    }

    /// As [`set_options`](Self::set_options), for the connection or active open in a slot. False when there is none.
    pub fn set_slot_options(&mut self, now: Instant, region: u16, slot: u32, options: &FlowOptions) -> bool {
        if let Some(opening) = self.opening_at.get(&(region, slot)).and_then(|id| self.openings.get_mut(id)) {
            opening.options = *options;
            return true;
        }
        let flow = self.region(region).and_then(|r| r.flow_of(slot));
        let is_its = |flow: &FlowId| {
            self.connections.get(flow).is_some_and(|c| (c.owner.region, c.owner.slot) == (region, slot))
        };
        let Some(flow) = flow.filter(is_its) else { return false };
        self.set_options(now, flow, options);
        true
    }

    /// Changes the algorithm alone, of the connection or active open in a slot. False when there is none.
    pub fn set_slot_algorithm(&mut self, now: Instant, region: u16, slot: u32, algorithm: Algorithm) -> bool {
        let opening = self.opening_at.get(&(region, slot)).and_then(|id| self.openings.get(id));
        let options = opening.map(|opening| opening.options).or_else(|| {
            let flow = self.region(region)?.flow_of(slot)?;
            self.options(flow).copied()
        });
        let Some(options) = options else { return false };
        self.set_slot_options(now, region, slot, &FlowOptions { algorithm: Some(algorithm), ..options })
    }

    /// Sets the options of the connections that listener `token` accepts from now on.
    pub fn set_listener_options(&mut self, token: u64, options: &FlowOptions) {
        self.listeners.of_token(token).for_each(|listener| listener.options = *options);
    }

    /// The options of a connection.
    #[must_use]
    pub fn options(&self, flow: FlowId) -> Option<&FlowOptions> {
        self.connections.get(&flow).map(|c| &c.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_asks_for_its_class_by_priority_or_code_point_and_the_configuration_by_port() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        let class = |priority, tos, has_port| {
            let told = SocketOptions { priority, tos, ..SocketOptions::default() };
            FlowOptions::from(&told).class(v4, has_port).map_or(0, AskedClass::bit)
        };
        assert_eq!(class(0, 0, false), 0);
        for (priority, tos, has_port) in
            [(6, 0, false), (7, 0x20, false), (0, 0x10, false), (0, 46 << 2, false), (0, 0, true)]
        {
            assert_eq!(class(priority, tos, has_port), class::EXPRESS, "{priority} {tos} {has_port}");
        }
        for (priority, tos, has_port) in [(1, 0, true), (2, 0x10, false), (0, 0x20, true), (0, 1 << 2, false)]
        {
            assert_eq!(class(priority, tos, has_port), class::BULK, "{priority} {tos} {has_port}");
        }
        let v6 = FlowOptions::from(&SocketOptions { traffic_class: 46 << 2, ..SocketOptions::default() });
        let asked = v6.class(IpAddr::from([0; 16]), false);
        assert_eq!((v6.class(v4, false), asked.map(|asked| asked.by)), (None, Some(AskedBy::CodePoint)));
    }

    #[test]
    fn what_the_program_says_of_its_connection_goes_before_all_else() {
        let v4 = IpAddr::from([10, 0, 0, 1]);
        for (app_type, priority, tos) in [(AppType::Latency, 1, 0x20), (AppType::Throughput, 7, 46 << 2)] {
            let options =
                FlowOptions::from(&SocketOptions { app_type, priority, tos, ..SocketOptions::default() });
            let is_express = app_type == AppType::Latency;
            assert_eq!(options.class(v4, true), Some(AskedClass { is_express, by: AskedBy::AppType }));
        }
        let shown = AskedClass { is_express: true, by: AskedBy::AppType }.to_string();
        assert_eq!(shown, "latency: before others, by TOWPATH_APP_TYPE");
    }

    #[test]
    fn hostile_numbers_stay_within_what_linux_takes() {
        let told = SocketOptions {
            keep_alive: true,
            keep_idle: u16::MAX,
            keep_interval: u16::MAX,
            keep_count: u8::MAX,
            user_timeout: u32::MAX,
            max_segment: 1,
            receive_buffer: 1,
            max_pacing_rate: u64::MAX,
            linger2: i16::MAX,
            syn_count: u8::MAX,
            defer_accept: u16::MAX,
            congestion: control::CongestionName::of_option(b"reno"),
            tos: u8::MAX,
            traffic_class: u8::MAX,
            priority: u8::MAX,
            app_type: AppType::Latency,
            may_fragment: true,
            reuse_address: true,
            channel: control::ChannelWish::Require,
        };
        let options = FlowOptions::from(&told);
        assert_eq!(options.keepalive.map(|k| k.count), Some(127));
        assert_eq!(options.syn_retries, Some(127));
        assert_eq!((options.dscp_v4, options.dscp_v6), (63, 63));
        assert_eq!(options.linger2, Some(Linger2::Wait(Duration::from_secs(120))));
        let reset = FlowOptions::from(&SocketOptions { linger2: i16::MIN, ..told });
        assert_eq!(reset.linger2, Some(Linger2::Reset));
        assert_eq!(FlowOptions::from(&SocketOptions::default()), FlowOptions::default());
    }
}
