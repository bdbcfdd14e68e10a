//! How congestion control is chosen: names of algorithms, and rules that choose one for the flows that they fit. Text forms and what fits;
//! which names exist, and which of several rules counts, is the service's business.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Bytes of the longest name: Linux's `TCP_CA_NAME_MAX` without the zero at the end.
const NAME_MAX: usize = 15;

/// Name of a congestion control, as `TCP_CONGESTION` has it: from 1 to 15 bytes of letters, digits and `. _ : + -`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CongestionName {
    bytes: [u8; NAME_MAX],
    len: u8,
}

impl CongestionName {
    /// The name in the value of `setsockopt`, read as Linux reads it: up to the first zero, and never more than 15 bytes. `None`: the value
    /// is no name, so that no congestion control has it.
    #[must_use]
    pub fn of_option(value: &[u8]) -> Option<Self> {
        let value = &value[..value.len().min(NAME_MAX)];
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
        Self::of_bytes(&value[..end])
    }

    fn of_bytes(text: &[u8]) -> Option<Self> {
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._:+-".contains(byte);
        let mut bytes = [0; NAME_MAX];
        if text.is_empty() || !text.iter().all(is_allowed) {
            return None;
        }
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self { bytes, len: text.len() as u8 })
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Debug for CongestionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl fmt::Display for CongestionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for CongestionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::of_bytes(text.as_bytes()).ok_or_else(|| {
            format!(
                "`{}` is no name of a congestion control: give 1 to {NAME_MAX} letters, digits or any of . _ : + -",
                text.escape_debug()
            )
        })
    }
}

impl TryFrom<String> for CongestionName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CongestionName> for String {
    fn from(name: CongestionName) -> Self {
        name.as_str().to_owned()
    }
}

/// The two ends of one flow: `10.9.0.2:4000-10.9.0.1:80`, ours first. IPv6 addresses stand in brackets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlowEnds {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
}

impl FromStr for FlowEnds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends = text.split_once('-').and_then(|(local, remote)| {
            Some(Self { local: local.parse().ok()?, remote: remote.parse().ok()? })
        });
        ends.ok_or_else(|| {
            format!(
                "`{}` is no flow: give LOCAL-PEER as `towpath ss` shows both, like 10.9.0.2:4000-10.9.0.1:80",
                text.escape_debug()
            )
        })
    }
}

impl fmt::Display for FlowEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.local, self.remote)
    }
}

/// Destinations of a route: all addresses with the first `length` bits of `address`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Prefix {
    /// The address; bits beyond `length` do not count.
    pub address: IpAddr,
    /// Bits of the prefix: at most 32 for IPv4, 128 for IPv6.
    pub length: u8,
}

impl Prefix {
    /// True when `ip` lies inside. An IPv6 address that maps an IPv4 address counts as that address.
    #[must_use]
    pub fn covers(&self, ip: IpAddr) -> bool {
        let differ = match (self.address, ip.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => u128::from(own.to_bits() ^ ip.to_bits()) << 96,
            (IpAddr::V6(own), IpAddr::V6(ip)) => own.to_bits() ^ ip.to_bits(),
            _ => return false,
        };
        differ.leading_zeros() >= u32::from(self.length)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, length)| (a, Some(length)));
        let prefix = address.parse::<IpAddr>().ok().and_then(|address| {
            let most = if address.is_ipv4() { 32 } else { 128 };
            let length = length.map_or(Some(most), |length| length.parse().ok())?;
            (length <= most).then_some(Self { address, length })
        });
        prefix.ok_or_else(|| {
            format!(
                "`{}` is no prefix of addresses like 10.1.0.0/16, 10.1.2.3 or fd00::/8",
                text.escape_debug()
            )
        })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// The flows that a rule is for: those that fit all parts which are given.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FlowSelector {
    /// Command of the process, as `towpath ss` shows it.
    pub app: Option<String>,
    /// User of the process.
    pub uid: Option<u32>,
    /// Where the peer is.
    pub to: Option<Prefix>,
    /// The port of one of both ends.
    pub port: Option<u16>,
    /// The one flow with these ends.
    pub flow: Option<FlowEnds>,
}

/// A flow as rules see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowSubject<'a> {
    /// Command of its process.
    pub app: &'a str,
    /// User of its process.
    pub uid: u32,
    /// Our address and port. Port 0: not chosen yet.
    pub local: SocketAddr,
    /// The peer's address and port; `None` for the flows of a listener, which may come from any peer.
    pub remote: Option<SocketAddr>,
}

impl FlowSelector {
    /// True when the flow fits all parts that are given.
    #[must_use]
    pub fn fits(&self, flow: &FlowSubject<'_>) -> bool {
        let plain = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
        let (local, remote) = (plain(flow.local), flow.remote.map(plain));
        let has_port = |port: u16| local.port() == port || remote.is_some_and(|at| at.port() == port);
        self.app.as_deref().is_none_or(|app| app == flow.app)
            && self.uid.is_none_or(|uid| uid == flow.uid)
            && self.to.is_none_or(|to| remote.is_some_and(|at| to.covers(at.ip())))
            && self.port.is_none_or(has_port)
            && self.flow.is_none_or(|ends| plain(ends.local) == local && Some(plain(ends.remote)) == remote)
    }
}

impl fmt::Display for FlowSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.app.as_ref().map(|app| format!("app={app}")),
            self.uid.map(|uid| format!("uid={uid}")),
            self.to.map(|to| format!("to={to}")),
            self.port.map(|port| format!("port={port}")),
            self.flow.map(|flow| format!("flow={flow}")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

/// A rule: the flows that fit get this congestion control, unless their sockets have chosen one. As text
/// `app=iperf3 to=10.1.0.0/16 bbr`: parts of the selector in any order, the name last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CongestionRule {
    /// The flows that it is for.
    pub which: FlowSelector,
    /// The congestion control that these flows get.
    pub name: CongestionName,
}

impl FromStr for CongestionRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let name = words
            .pop()
            .ok_or("a rule is empty: give parts and a name like `app=iperf3 to=10.1.0.0/16 bbr`")?;
        let mut which = FlowSelector::default();
        for word in words {
            which.set(word)?;
        }
        if name.contains('=') {
            return Err(format!(
                "the rule `{}` ends without a name of a congestion control",
                text.escape_debug()
            ));
        }
        Ok(Self { which, name: name.parse()? })
    }
}

impl FlowSelector {
    /// Takes one part, `KEY=VALUE`.
    fn set(&mut self, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = |value: &str| format!("`{key}={}` is no number that there can be", value.escape_debug());
        let is_new = match key {
            "app" if !value.is_empty() => self.app.replace(value.to_owned()).is_none(),
            "uid" => self.uid.replace(value.parse().map_err(|_| number(value))?).is_none(),
            "to" => self.to.replace(value.parse()?).is_none(),
            "port" => self.port.replace(value.parse().map_err(|_| number(value))?).is_none(),
            "flow" => self.flow.replace(value.parse()?).is_none(),
            _ => {
                let word = word.escape_debug();
                return Err(format!(
                    "`{word}` is no part of a rule: give app=, uid=, to=, port= or flow= with a value"
                ));
            }
        };
        if is_new { Ok(()) } else { Err(format!("a rule has `{key}=` twice: give it once")) }
    }
}

impl fmt::Display for CongestionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = self.which.to_string();
        let space = if which.is_empty() { "" } else { " " };
        write!(f, "{which}{space}{}", self.name)
    }
}

impl TryFrom<String> for CongestionRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<CongestionRule> for String {
    fn from(rule: CongestionRule) -> Self {
        rule.to_string()
    }
}

/// What the command line asks of the choice of congestion control.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CongestionAsk {
    /// List the names that there are, the rules, and the agents.
    List,
    /// Make a rule, in front of all others; one for the same flows makes room. Only the service's own user or root.
    Set {
        /// The flows that it is for.
        which: FlowSelector,
        /// What they get; `None`: take the rule for these flows away.
        name: Option<CongestionName>,
        /// Live flows change, too.
        is_live: bool,
    },
    /// Show all that decides about one flow.
    Show(FlowEnds),
    /// Keep what agents and the service say to each other, and give what was kept. Only the service's own user or root.
    Transcript {
        /// The number of the first datagram that is wanted, as the last answer said; `None`: keep from now on.
        from: Option<u64>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_linux_reads_it() {
        let read = |value: &[u8]| CongestionName::of_option(value).map(|name| name.to_string());
        assert_eq!(read(b"cubic").as_deref(), Some("cubic"));
        assert_eq!(read(b"reno\0garbage").as_deref(), Some("reno"));
        assert_eq!(read(b"a_name_of_fifteen").as_deref(), Some("a_name_of_fifte"), "Linux cuts longer ones");
        for no_name in [&b""[..], b"\0cubic", b"two words", b"\xff\xfe", b"a/b", b"\x1b[2J"] {
            assert_eq!(read(no_name), None, "{no_name:?}");
        }
    }

    #[test]
    fn names_and_rules_print_as_they_read() {
        assert!("sixteen_letters_".parse::<CongestionName>().is_err(), "text is not cut");
        let texts = [
            "bbr",
            "app=iperf3 to=10.1.0.0/16 bbr",
            "uid=1000 port=443 dctcp",
            "flow=10.9.0.2:4000-10.9.0.1:80 reno",
            "flow=[fd00::1]:4000-[fd00::2]:80 reno",
        ];
        for text in texts {
            assert_eq!(text.parse::<CongestionRule>().map(|rule| rule.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(
            "to=10.1.2.3 x".parse::<CongestionRule>().map(|r| r.to_string()),
            Ok("to=10.1.2.3/32 x".to_owned())
        );
    }

    #[test]
    fn a_mistake_in_a_rule_is_named() {
        for (text, says) in [
            ("", "empty"),
            ("app=x", "ends without a name"),
            ("app= bbr", "no part of a rule"),
            ("pid=7 bbr", "no part of a rule"),
            ("port=70000 bbr", "no number"),
            ("uid=-1 bbr", "no number"),
            ("to=10.0.0.0/33 bbr", "no prefix"),
            ("flow=10.0.0.1:5 bbr", "LOCAL-PEER"),
            ("port=1 port=2 bbr", "twice"),
            ("port=1 no/name", "no name"),
        ] {
            let error = text.parse::<CongestionRule>().expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_flow_fits_when_all_parts_do() {
        let flow = FlowSubject {
            app: "iperf3",
            uid: 1000,
            local: "[::ffff:10.9.0.2]:4000".parse().expect("an address"),
            remote: Some("10.1.2.3:80".parse().expect("an address")),
        };
        let fits = |text: &str| text.parse::<CongestionRule>().expect(text).which.fits(&flow);
        for yes in [
            "x",
            "app=iperf3 x",
            "uid=1000 port=80 x",
            "port=4000 x",
            "to=10.1.0.0/16 x",
            "to=0.0.0.0/0 x",
            "flow=10.9.0.2:4000-10.1.2.3:80 x",
        ] {
            assert!(fits(yes), "{yes}");
        }
        for no in [
            "app=iperf x",
            "uid=0 x",
            "port=81 x",
            "to=10.2.0.0/16 x",
            "to=::/0 x",
            "app=iperf3 uid=0 x",
            "flow=10.1.2.3:80-10.9.0.2:4000 x",
        ] {
            assert!(!fits(no), "{no}");
        }
        let of_listener = FlowSubject { remote: None, ..flow };
        let to_any: CongestionRule = "to=0.0.0.0/0 x".parse().expect("a rule");
        assert!(!to_any.which.fits(&of_listener), "where the peer is, is known later");
    }
}
