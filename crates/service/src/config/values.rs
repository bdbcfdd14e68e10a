//! Values of configuration keys that are more than a number or a word. Each type parses and prints its text form.

use channel::limits::CHANNELS_MAX;
use control::CongestionName;
use control::known::nearest;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// `Reply::Region` carries the region's memfd, the slow path's eventfd and one eventfd per core.
pub(crate) const CORES_MAX: u8 = control::FDS_MAX as u8 - 2;

/// Kinds of ports: what packets go through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortKind {
    /// No port: only connections inside this host are accelerated.
    None,
    /// A TAP interface that the service makes; the kernel is the peer.
    Tap,
    /// An existing interface; the station at the other end of its link is the peer.
    Packet,
}

/// A kind of port, and its interface if it needs one: `none`, `tap`, `tap:tp0`, `packet:eth1`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortChoice {
    /// The kind of the port.
    pub kind: PortKind,
    /// Name of the interface; `None`: not given.
    pub name: Option<String>,
}

impl FromStr for PortChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once(':').map_or((text, None), |(kind, name)| (kind, Some(name)));
        let name = name.map(str::to_owned);
        match (kind, name.as_deref()) {
            ("none", None) => Ok(Self { kind: PortKind::None, name }),
            ("tap", name_given) if name_given != Some("") => Ok(Self { kind: PortKind::Tap, name }),
            ("packet", Some(interface)) if !interface.is_empty() => Ok(Self { kind: PortKind::Packet, name }),
            _ => Err(format!("`{text}` is no port: give none, tap, tap:NAME or packet:INTERFACE")),
        }
    }
}

impl fmt::Display for PortChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            PortKind::None => "none",
            PortKind::Tap => "tap",
            PortKind::Packet => "packet",
        })?;
        self.name.iter().try_for_each(|name| write!(f, ":{name}"))
    }
}

/// The threads of the service that move bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cores {
    /// Number of threads that there are; those that serve no flow sleep.
    pub most: u8,
    /// The number of threads that serve flows follows the load.
    pub is_auto: bool,
}

impl Cores {
    /// Number of threads that serve flows at first.
    pub(crate) fn serving_first(self) -> u8 {
        if self.is_auto { 1 } else { self.most }
    }
}

/// The key `cores`: a number, `auto`, or `auto:MOST`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "NumberOrWord", into = "NumberOrWord")]
pub enum CoresChoice {
    /// So many threads, always.
    Fixed(u8),
    /// As many as the load needs, at most so many; `None`: at most one for each processor.
    Auto(Option<u8>),
}

/// A value of a configuration file that may be written without quotes when it is a number.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrWord {
    Number(u8),
    Word(String),
}

impl CoresChoice {
    /// The threads, where the service may use so many `processors`: counted only if the choice does not say how many threads.
    pub(crate) fn resolve(self, processors: impl FnOnce() -> u8) -> Cores {
        let by_machine = || processors().clamp(1, CORES_MAX);
        match self {
            Self::Fixed(most) => Cores { most, is_auto: false },
            Self::Auto(most) => Cores { most: most.unwrap_or_else(by_machine), is_auto: true },
        }
    }
}

impl FromStr for CoresChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither a number of cores nor auto or auto:MOST");
        let number = |text: &str| text.parse::<u8>().map_err(|_| wrong());
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto(None)),
            None => number(text).map(Self::Fixed),
            Some(("auto", most)) => Ok(Self::Auto(Some(number(most)?))),
            Some(_) => Err(wrong()),
        }
    }
}

impl fmt::Display for CoresChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(cores) => write!(f, "{cores}"),
            Self::Auto(None) => f.write_str("auto"),
            Self::Auto(Some(most)) => write!(f, "auto:{most}"),
        }
    }
}

impl TryFrom<NumberOrWord> for CoresChoice {
    type Error = String;
    fn try_from(value: NumberOrWord) -> Result<Self, String> {
        match value {
            NumberOrWord::Number(cores) => Ok(Self::Fixed(cores)),
            NumberOrWord::Word(word) => word.parse(),
        }
    }
}

impl From<CoresChoice> for NumberOrWord {
    fn from(choice: CoresChoice) -> Self {
        match choice {
            CoresChoice::Fixed(cores) => Self::Number(cores),
            CoresChoice::Auto(_) => Self::Word(choice.to_string()),
        }
    }
}

/// An address with its prefix length: `10.9.0.2/24`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    /// The address, with its host bits.
    pub address: IpAddr,
    /// Length of the network's prefix, bits.
    pub prefix: u8,
}

impl FromStr for Network {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no address with prefix length like 10.9.0.2/24");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let (address, prefix): (IpAddr, u8) =
            (address.parse().map_err(|_| wrong())?, prefix.parse().map_err(|_| wrong())?);
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if prefix <= longest { Ok(Self { address, prefix }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Most addresses of one host.
const ADDRESSES_MAX: usize = 8;

/// Several addresses of one host: `10.9.0.2+10.10.0.2`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostAddresses(pub Vec<IpAddr>);

impl FromStr for HostAddresses {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "`{text}` {why}: give 2 to {ADDRESSES_MAX} addresses of one host, like 10.9.0.2+10.10.0.2"
            )
        };
        let parsed: Result<Vec<IpAddr>, _> = text.split('+').map(str::parse::<IpAddr>).collect();
        let all = parsed.map_err(|_| wrong("has something that is no address"))?;
        let is_twice = |at: usize| all[..at].contains(&all[at]);
        match () {
            () if !(2..=ADDRESSES_MAX).contains(&all.len()) => {
                Err(wrong("has too few addresses or too many"))
            }
            () if all.iter().any(|address| address.is_unspecified() || address.is_multicast()) => {
                Err(wrong("has an address that no host has"))
            }
            () if (0..all.len()).any(is_twice) => Err(wrong("has an address twice")),
            () => Ok(Self(all)),
        }
    }
}

impl fmt::Display for HostAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("+"))
    }
}

/// An Ethernet address: `02:00:00:00:00:01`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mac: wire::MacAddr =
            text.parse().map_err(|_| format!("`{text}` is no Ethernet address like 02:00:00:00:00:01"))?;
        Ok(Self(mac.0))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.map(|byte| format!("{byte:02x}")).join(":"))
    }
}

/// A share in millionths; as text a percentage: `1%`, `0.05%`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(pub u32);

impl FromStr for Rate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|n| n.parse::<f64>().ok());
        let inside = number.filter(|n| (0.0..=100.0).contains(n));
        let percent = inside.ok_or_else(|| format!("`{text}` is no share like 0.5%"))?;
        Ok(Self((percent * 10_000.0).round() as u32))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 10_000.0)
    }
}

/// The number of channels of a session: `auto`, or from 1 to 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ChannelCount {
    /// As many channels as the load asks for.
    Auto,
    /// So many for each session.
    Fixed(usize),
}

impl FromStr for ChannelCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse().ok().filter(|number| (1..=CHANNELS_MAX).contains(number));
        match number {
            _ if text == "auto" => Ok(Self::Auto),
            Some(number) => Ok(Self::Fixed(number)),
            None => Err(format!("must be auto, or from 1 to {CHANNELS_MAX}")),
        }
    }
}

impl fmt::Display for ChannelCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(number) => number.fmt(f),
        }
    }
}

/// What decides about the windows and rates of flows, by name: an algorithm of ours like `cubic`, or one of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Congestion {
    /// An algorithm of the crate `congestion`.
    BuiltIn(congestion::Algorithm),
    /// What an agent serves under this name.
    Agent(CongestionName),
}

impl Default for Congestion {
    fn default() -> Self {
        Self::BuiltIn(congestion::Algorithm::default())
    }
}

impl FromStr for Congestion {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self::BuiltIn).or_else(|_| text.parse().map(Self::Agent))
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(algorithm) => algorithm.fmt(f),
            Self::Agent(name) => name.fmt(f),
        }
    }
}

/// The address of an agent of congestion control, perhaps with the name that it serves: `/tmp/ccp/portus`, `copa=/run/copa.sock`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentPlace {
    /// The name by which flows ask for it; `None`: it serves [`AgentPlace::ANY`].
    pub name: Option<CongestionName>,
    /// The path that the agent binds.
    pub path: PathBuf,
}

impl AgentPlace {
    /// Flows that ask for this name get whatever an agent has as its default.
    pub const ANY: &str = "ccp";
    /// Bytes of the longest path of a UNIX socket.
    pub const PATH_MAX: usize = 107;
}

impl FromStr for AgentPlace {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = match text.split_once('=') {
            Some((name, path)) => (Some(name.parse()?), path),
            None => (None, text),
        };
        let is_path = path.starts_with('/') && path.len() <= Self::PATH_MAX && !path.contains('\0');
        if !is_path {
            let text = text.escape_debug();
            return Err(format!(
                "`{text}` is no agent: give PATH or NAME=PATH with an absolute path of at most 107 bytes"
            ));
        }
        Ok(Self { name, path: path.into() })
    }
}

impl fmt::Display for AgentPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.iter().try_for_each(|name| write!(f, "{name}="))?;
        write!(f, "{}", self.path.display())
    }
}

/// Which lines are logged, as a list of levels and of modules with a level: `warn`, `info,service::daemon=trace`. Everything else is refused: the
/// crate that filters the log takes an unknown word as the name of a module, and logs nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LogFilter(String);

impl LogFilter {
    /// The words that are levels.
    pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    /// The crate that writes to the log.
    const CRATE: &str = "service";

    /// The filter as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for LogFilter {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let is_module = |name: &str| name.split("::").next() == Some(Self::CRATE);
        let is_level = |word: &str| Self::LEVELS.contains(&word.to_lowercase().as_str());
        let wrong = text.split(',').find(|part| match part.split_once('=') {
            Some((module, level)) => !(is_module(module) && is_level(level)),
            None => !is_level(part),
        });
        let Some(wrong) = wrong else { return Ok(Self(text.to_owned())) };
        let word = wrong.split_once('=').map_or(wrong, |(_, level)| level);
        let near = nearest(word, Self::LEVELS).filter(|near| *near != word);
        let meant = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
        let (levels, own) = (Self::LEVELS.join(", "), Self::CRATE);
        Err(format!(
            "`{}`{meant}: give a level ({levels}), or levels of modules like {own}=debug or info,{own}::daemon=trace",
            wrong.escape_debug()
        ))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Conversions from and to text for types that parse and print, for serde's `try_from` and `into`.
macro_rules! as_text {
    ($($name:ident)+) => {$(
        impl TryFrom<String> for $name {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    )+};
}
pub(crate) use as_text;
as_text!(PortChoice Network Mac Rate HostAddresses ChannelCount Congestion AgentPlace LogFilter);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_print_as_they_read() {
        assert_eq!("10.0.0.1/24".parse::<Network>().unwrap().to_string(), "10.0.0.1/24");
        assert_eq!("fd00::1/64".parse::<Network>().unwrap().to_string(), "fd00::1/64");
        assert_eq!("10.9.0.2+fd00::2".parse::<HostAddresses>().unwrap().to_string(), "10.9.0.2+fd00::2");
        assert_eq!("02:00:00:00:00:ff".parse::<Mac>().unwrap().to_string(), "02:00:00:00:00:ff");
        assert_eq!("0.05%".parse::<Rate>().unwrap(), Rate(500));
        assert_eq!(Rate(10_000).to_string(), "1%");
        for text in ["none", "tap", "tap:tp0", "packet:eth1"] {
            assert_eq!(text.parse::<PortChoice>().unwrap().to_string(), text);
        }
        for text in ["dctcp", "copa", "constant:1000000000"] {
            assert_eq!(text.parse::<Congestion>().unwrap().to_string(), text);
        }
        for text in ["/tmp/ccp/portus", "copa=/run/copa.sock"] {
            assert_eq!(text.parse::<AgentPlace>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_log_takes_levels_and_levels_of_modules_and_says_which() {
        for text in ["warn", "off", "DEBUG", "service=debug", "info,service::daemon=trace"] {
            assert_eq!(text.parse::<LogFilter>().unwrap().to_string(), text);
        }
        for (text, words) in [
            ("warning", &["`warning`", "did you mean warn?", "off, error, warn, info, debug, trace"][..]),
            ("service=loud", &["`service=loud`", "service=debug"]),
            ("servce=debug", &["`servce=debug`"]),
            ("info,verbose", &["`verbose`"]),
            ("", &["``", "off, error"]),
            ("info,", &["``"]),
            ("3", &["`3`"]),
            ("service[span]=info", &["service[span]"]),
        ] {
            let told = text.parse::<LogFilter>().unwrap_err();
            assert!(words.iter().all(|word| told.contains(word)), "{text}: {told}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["10.0.0.1/33", "10.0.0.300/24", "10.0.0.1", "::1/129"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        for (text, why) in [
            ("", "no address"),
            ("10.9.0.2+", "no address"),
            ("10.9.0.2/24+10.10.0.2", "no address"),
            ("10.9.0.2", "too few"),
            ("1.0.0.1+1.0.0.2+1.0.0.3+1.0.0.4+1.0.0.5+1.0.0.6+1.0.0.7+1.0.0.8+1.0.0.9", "too many"),
            ("10.9.0.2+0.0.0.0", "no host"),
            ("10.9.0.2+ff02::1", "no host"),
            ("10.9.0.2+10.9.0.3+10.9.0.2", "twice"),
        ] {
            assert!(text.parse::<HostAddresses>().unwrap_err().contains(why), "{text}");
        }
        for text in ["", "none:x", "tap:", "packet", "packet:", "xdp:eth0"] {
            assert!(text.parse::<PortChoice>().unwrap_err().contains("packet:INTERFACE"), "{text}");
        }
        assert!("200%".parse::<Rate>().is_err() && "1".parse::<Rate>().is_err());
        assert!("02:00".parse::<Mac>().is_err() && "no name".parse::<Congestion>().is_err());
        for text in ["portus", "copa=", "two words=/a", "", "relative/path"] {
            assert!(text.parse::<AgentPlace>().is_err(), "{text}");
        }
    }
}
