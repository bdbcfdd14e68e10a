//! Which connections go over channels: the configured rules, what a program wishes, and what a socket's options allow. Knows no peers and
//! sends nothing.

use crate::config::values::{Network, as_text};
use crate::registry::policy::ports;
use channel::lane::Class;
use control::{AppType, ChannelWish, SocketOptions};
use serde::{Deserialize, Serialize};
use slowpath::OwnAddress;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A rule for connections to these addresses and ports: `10.9.0.0/24`, `10.9.0.2/32:6379=latency`, `fd00::/64:8000-8099=never`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ChannelRule {
    peers: Network,
    /// Ports of the peer; `None`: every port.
    ports: Option<RangeInclusive<u16>>,
    /// `None`: never by channel.
    class: Option<Class>,
}

impl FromStr for ChannelRule {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no rule like 10.9.0.0/24, 10.9.0.2/32:6379=latency or fd00::/64:80-90=never")
        };
        let (place, class) = text.split_once('=').map_or((text, None), |(place, class)| (place, Some(class)));
        let class = match class {
            None | Some("throughput") => Some(Class::Throughput),
            Some("latency") => Some(Class::Latency),
            Some("never") => None,
            Some(_) => return Err(wrong()),
        };
        // An IPv6 address has colons, a prefix length has none.
        let (address, rest) = place.split_once('/').ok_or_else(wrong)?;
        let (prefix, ports) =
            rest.split_once(':').map_or((rest, None), |(prefix, ports)| (prefix, Some(ports)));
        let peers = format!("{address}/{prefix}").parse().map_err(|_: String| wrong())?;
        let ports = ports.map(|ports| range(ports).ok_or_else(wrong)).transpose()?;
        Ok(Self { peers, ports, class })
    }
}

/// Parses a range of ports. No connection goes to port 0.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    ports(text).filter(|ports| *ports.start() > 0)
}

impl fmt::Display for ChannelRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.peers)?;
        match &self.ports {
            Some(ports) if ports.start() == ports.end() => write!(f, ":{}", ports.start())?,
            Some(ports) => write!(f, ":{}-{}", ports.start(), ports.end())?,
            None => {}
        }
        match self.class {
            Some(Class::Throughput) => Ok(()),
            Some(Class::Latency) => f.write_str("=latency"),
            None => f.write_str("=never"),
        }
    }
}

as_text!(ChannelRule);

impl ChannelRule {
    fn covers(&self, remote: SocketAddr) -> bool {
        is_in(&self.peers, remote) && self.ports.as_ref().is_none_or(|ports| ports.contains(&remote.port()))
    }
}

/// True when the address lies in the network.
pub fn is_in(network: &Network, address: SocketAddr) -> bool {
    OwnAddress { addr: network.address, prefix_len: network.prefix }.covers(address.ip())
}

/// What rules, program and options say about one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// A TCP connection of its own, for this reason.
    Plain(Why),
    /// By channel, if the peer has a channel service. `is_required`: never by plain TCP.
    Channel {
        /// What the socket needs most.
        class: Class,
        /// The program has said `require`.
        is_required: bool,
        /// The rule or wish that says so.
        why: Why,
    },
}

/// Why a connection goes by channel, or by plain TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// No rule covers the destination.
    NoRule,
    /// The rule with that number, from 1, covers the destination.
    Rule(u16),
    /// The program's `TOWPATH_CHANNEL` says so.
    Program,
    /// The socket has this option, which belongs to one connection on the wire.
    Option(&'static str),
    /// The destination is none of `--channel-peers`.
    NotAPeer,
    /// The service has no channels (`--channel-peers`).
    NoChannels,
    /// The peer was asked for a session and has not answered yet.
    NotYet,
    /// The peer has no channel service, or refuses this one; it is asked again after 60 s.
    NoService,
    /// The session ended before the peer had accepted the socket.
    SessionLost,
    /// The policy bounds the rate of the program. Only its own TCP connections obey that; those of channels belong to the service.
    Rate,
    /// The peer takes the socket by TCP only.
    PeerRefuses,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRule => f.write_str("no rule for this destination (--channel-rules)"),
            Self::Rule(number) => write!(f, "rule {number} of --channel-rules"),
            Self::Program => f.write_str("TOWPATH_CHANNEL of the program"),
            Self::Option(name) => write!(f, "the socket has {name}, which needs a connection of its own"),
            Self::NotAPeer => f.write_str("the destination is not in --channel-peers"),
            Self::NoChannels => f.write_str("the service has no channels (--channel-peers)"),
            Self::NotYet => f.write_str("the peer's channel service has not answered yet"),
            Self::NoService => {
                f.write_str("the peer has no channel service for this one; it is asked again after 60 s")
            }
            Self::SessionLost => f.write_str("the session ended before the peer had accepted the socket"),
            Self::Rate => f.write_str(
                "a rule of --policy bounds the program's rate, which needs connections of its own",
            ),
            Self::PeerRefuses => f.write_str("the peer takes this socket by plain TCP only"),
        }
    }
}

/// The option that needs plain TCP, if one of these is set (docs/channels.md).
fn needs_plain(options: &SocketOptions) -> Option<&'static str> {
    match () {
        () if options.congestion.is_some() => Some("TCP_CONGESTION"),
        () if options.max_segment != 0 => Some("TCP_MAXSEG"),
        () if options.max_pacing_rate != 0 => Some("SO_MAX_PACING_RATE"),
        () if options.tos != 0 => Some("IP_TOS"),
        () if options.traffic_class != 0 => Some("IPV6_TCLASS"),
        () if options.user_timeout != 0 => Some("TCP_USER_TIMEOUT"),
        () => None,
    }
}

/// `SO_PRIORITY` of sockets that go before others, as Linux's interactive band has it.
const INTERACTIVE: u8 = 6;

/// Chooses for a connection to `remote`. The first rule that covers the destination counts; the program's wish goes before all rules.
pub fn choose(rules: &[ChannelRule], remote: SocketAddr, options: &SocketOptions) -> Choice {
    let rule = rules.iter().position(|rule| rule.covers(remote));
    let (number, class) = match rule {
        Some(at) => (Why::Rule(at as u16 + 1), rules[at].class),
        None => (Why::NoRule, None),
    };
    let wished = || {
        let latency = match options.app_type {
            AppType::Latency => true,
            AppType::Throughput => false,
            AppType::Unset => options.priority >= INTERACTIVE,
        };
        class.unwrap_or(if latency { Class::Latency } else { Class::Throughput })
    };
    let (class, is_required, why) = match (options.channel, class) {
        (ChannelWish::Never, _) => return Choice::Plain(Why::Program),
        (ChannelWish::Unset, None) => return Choice::Plain(number),
        (ChannelWish::Unset, Some(class)) => (class, false, number),
        (ChannelWish::Prefer, _) => (wished(), false, Why::Program),
        (ChannelWish::Require, _) => (wished(), true, Why::Program),
    };
    match needs_plain(options).filter(|_| !is_required) {
        Some(option) => Choice::Plain(Why::Option(option)),
        None => Choice::Channel { class, is_required, why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(all: &[&str]) -> Vec<ChannelRule> {
        all.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn to(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn wish(channel: ChannelWish) -> SocketOptions {
        SocketOptions { channel, ..SocketOptions::default() }
    }

    #[test]
    fn rules_print_as_they_read_and_nonsense_is_refused() {
        for text in ["10.9.0.0/24", "10.9.0.2/32:6379=latency", "fd00::/64:80-90=never", "0.0.0.0/0:1-65535"]
        {
            assert_eq!(text.parse::<ChannelRule>().unwrap().to_string(), text);
        }
        assert_eq!("10.0.0.0/8=throughput".parse::<ChannelRule>().unwrap().to_string(), "10.0.0.0/8");
        for text in [
            "",
            "10.9.0.0",
            "10.9.0.0/33",
            "10.9.0.0/24:0",
            "10.9.0.0/24:9-8",
            "10.9.0.0/24=fast",
            "10.9.0.0/24:x",
        ] {
            assert!(text.parse::<ChannelRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn first_rule_counts_and_the_program_goes_before_it() {
        let rules = rules(&["10.9.0.0/24:22=never", "10.9.0.0/24:6379=latency", "10.9.0.0/16"]);
        let none = SocketOptions::default();
        let by = |class, is_required, why| Choice::Channel { class, is_required, why };
        assert_eq!(choose(&rules, to("10.9.0.7:22"), &none), Choice::Plain(Why::Rule(1)));
        assert_eq!(choose(&rules, to("10.9.0.7:6379"), &none), by(Class::Latency, false, Why::Rule(2)));
        assert_eq!(choose(&rules, to("10.9.9.9:6379"), &none), by(Class::Throughput, false, Why::Rule(3)));
        assert_eq!(choose(&rules, to("10.8.0.1:6379"), &none), Choice::Plain(Why::NoRule));
        let at = to("10.9.0.7:6379");
        assert_eq!(choose(&rules, at, &wish(ChannelWish::Never)), Choice::Plain(Why::Program));
        assert_eq!(choose(&rules, at, &wish(ChannelWish::Require)), by(Class::Latency, true, Why::Program));
        let elsewhere = choose(&rules, to("10.8.0.1:1"), &wish(ChannelWish::Prefer));
        assert_eq!(elsewhere, by(Class::Throughput, false, Why::Program));
    }

    #[test]
    fn options_of_one_connection_need_plain_tcp_unless_channels_are_required() {
        let rules = rules(&["10.9.0.0/16"]);
        let told = SocketOptions { max_segment: 536, ..SocketOptions::default() };
        assert_eq!(choose(&rules, to("10.9.0.1:1"), &told), Choice::Plain(Why::Option("TCP_MAXSEG")));
        let required = SocketOptions { channel: ChannelWish::Require, ..told };
        assert!(matches!(choose(&rules, to("10.9.0.1:1"), &required), Choice::Channel { .. }));
    }
}
