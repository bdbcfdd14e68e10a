//! The configuration of channels: which peers, which port, which secret, which connections.

use super::values::{ChannelCount, HostAddresses, Network, PortKind};
use super::{ChannelPolicy, Options};
use crate::ServiceError;
use crate::registry::channels::PORT;
use crate::registry::channels::rules::{ChannelRule, is_in};
use channel::scheduler::Policy;
use rustix::fs::Mode;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::Path;

/// Least bytes of a secret: what no one can guess by trying.
const SECRET_MIN: usize = 16;
/// Most bytes of a secret.
const SECRET_MAX: u64 = 4_096;

/// The configuration of channels in use.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Hosts with which channels are made.
    pub allowed: Vec<Network>,
    /// Hosts with several addresses.
    pub hosts: Vec<Vec<IpAddr>>,
    /// TCP port at which services make channels to each other.
    pub port: u16,
    /// The secret that both services prove; `None`: peers are known by their addresses.
    pub secret: Option<Vec<u8>>,
    /// Which connections go by channel.
    pub rules: Vec<ChannelRule>,
    /// Sockets of several users may share a channel.
    pub is_shared: bool,
    /// The number of channels of each session; `None`: as the load asks.
    pub channels: Option<usize>,
    /// How bulk data is placed; `None`: as the crate `channel` has it.
    pub policy: Option<Policy>,
}

/// The configuration that the options ask for; `None`: no channels.
pub fn settings(options: &Options, is_shared: bool) -> Result<Option<Settings>, ServiceError> {
    let wrong = |key, must| Err(ServiceError::Value { key, must });
    let Some(allowed) = options.channel_peers.clone().filter(|peers| !peers.is_empty()) else {
        let others = [
            "channel_addresses",
            "channel_port",
            "channel_secret",
            "channel_rules",
            "channel_count",
            "channel_policy",
        ];
        options.refuse_set(&others, "be used with --channel-peers")?;
        return Ok(None);
    };
    if options.port.as_ref().is_none_or(|port| port.kind == PortKind::None) {
        return wrong("channel_peers", "be used with a port (--port tap or packet:INTERFACE)");
    }
    Ok(Some(Settings {
        hosts: hosts(options.channel_addresses.as_deref().unwrap_or_default(), &allowed)?,
        allowed,
        port: options.channel_port.map_or(PORT, NonZeroU16::get),
        secret: options.channel_secret.as_deref().map(secret).transpose()?,
        rules: options.channel_rules.clone().unwrap_or_default(),
        is_shared,
        channels: match options.channel_count {
            Some(ChannelCount::Fixed(number)) => Some(number),
            Some(ChannelCount::Auto) | None => None,
        },
        policy: options.channel_policy.map(|policy| match policy {
            ChannelPolicy::Shortest => Policy::Shortest,
            ChannelPolicy::RoundRobin => Policy::RoundRobin,
            ChannelPolicy::Sticky => Policy::Sticky,
        }),
    }))
}

/// The hosts with several addresses. Each address is a peer's, and one host's only: else two hosts would be taken for one.
fn hosts(asked: &[HostAddresses], allowed: &[Network]) -> Result<Vec<Vec<IpAddr>>, ServiceError> {
    let wrong = |must| Err(ServiceError::Value { key: "channel_addresses", must });
    let all: Vec<IpAddr> = asked.iter().flat_map(|host| host.0.iter().copied()).collect();
    let is_peer = |at: &IpAddr| allowed.iter().any(|network| is_in(network, SocketAddr::new(*at, 0)));
    if !all.iter().all(is_peer) {
        return wrong("name addresses in --channel-peers only");
    }
    if (0..all.len()).any(|at| all[..at].contains(&all[at])) {
        return wrong("name each address once: those of one host are joined by +, as in 10.9.0.2+10.10.0.2");
    }
    Ok(asked.iter().map(|host| host.0.clone()).collect())
}

/// Reads a secret. A file that other users may read is refused: each of them could speak for this host.
fn secret(path: &Path) -> Result<Vec<u8>, ServiceError> {
    let wrong = |must| Err(ServiceError::Value { key: "channel_secret", must });
    let read = |error| ServiceError::ConfigRead { path: path.to_owned(), error };
    let file = std::fs::File::open(path).map_err(read)?;
    let seen = rustix::fs::fstat(&file).map_err(|e| read(e.into()))?;
    if Mode::from_raw_mode(seen.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
        return wrong("name a file that only its owner can read (chmod 600)");
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, SECRET_MAX + 1), &mut bytes).map_err(read)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if !(SECRET_MIN..=SECRET_MAX as usize).contains(&bytes.len()) {
        return wrong("name a file with 16 to 4096 bytes, like those of `head -c 32 /dev/urandom`");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn options(peers: &str) -> Options {
        Options {
            port: "tap".parse().ok(),
            channel_peers: Some(peers.split(' ').filter_map(|text| text.parse().ok()).collect()),
            ..Options::default()
        }
    }

    #[test]
    fn channels_are_off_without_peers() {
        assert!(settings(&Options::default(), false).unwrap().is_none());
        assert!(settings(&options(""), false).unwrap().is_none());
        let port_alone = Options { channel_port: NonZeroU16::new(7), ..Options::default() };
        assert!(settings(&port_alone, false).is_err());
        let no_port = Options { port: None, ..options("10.0.0.0/8") };
        assert!(settings(&no_port, false).is_err());
        let on = settings(&options("10.0.0.0/8"), false).unwrap().unwrap();
        assert_eq!((on.port, on.rules.len(), on.secret, on.channels), (PORT, 0, None, None));
    }

    #[test]
    fn bulk_data_is_placed_as_the_key_says() {
        let policy = |channel_policy| {
            let asked = Options { channel_policy, ..options("10.0.0.0/8") };
            settings(&asked, false).unwrap().unwrap().policy
        };
        assert_eq!(policy(None), None);
        assert_eq!(policy(Some(ChannelPolicy::RoundRobin)), Some(Policy::RoundRobin));
        let alone = Options { channel_policy: Some(ChannelPolicy::Sticky), ..Options::default() };
        assert!(settings(&alone, false).unwrap_err().to_string().contains("--channel-peers"));
    }

    #[test]
    fn the_number_of_channels_follows_the_load_unless_it_is_named() {
        let with = |text: &str| {
            let channel_count = Some(text.parse().unwrap());
            settings(&Options { channel_count, ..options("10.0.0.0/8") }, false).unwrap().unwrap().channels
        };
        assert_eq!((with("auto"), with("1"), with("16")), (None, Some(1), Some(16)));
        assert!(["0", "17", "-1", "", "many"].iter().all(|text| text.parse::<ChannelCount>().is_err()));
    }

    #[test]
    fn a_hosts_addresses_are_peers_and_its_own() {
        let with = |texts: &[&str]| {
            let channel_addresses = Some(texts.iter().map(|text| text.parse().unwrap()).collect());
            let options = Options { channel_addresses, ..options("10.0.0.0/8") };
            settings(&options, false).map(|on| on.unwrap().hosts.len()).map_err(|error| error.to_string())
        };
        assert_eq!(with(&[]), Ok(0));
        assert_eq!(with(&["10.0.0.1+10.1.0.1", "10.0.0.2+10.1.0.2"]), Ok(2));
        let refused = |texts| with(texts).unwrap_err();
        assert!(refused(&["10.0.0.1+11.0.0.1"]).contains("--channel-peers"));
        assert!(refused(&["10.0.0.1+10.1.0.1", "10.0.0.2+10.1.0.1"]).contains("each address once"));
        let alone = Options {
            channel_addresses: "10.0.0.1+10.1.0.1".parse().ok().map(|host| vec![host]),
            ..Options::default()
        };
        assert!(settings(&alone, false).unwrap_err().to_string().contains("--channel-peers"));
    }

    #[test]
    fn a_secret_is_long_and_its_owners_alone() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"0123456789abcdef0123456789abcdef\n").unwrap();
        let with = || {
            let path = Some(file.path().to_owned());
            settings(&Options { channel_secret: path, ..options("10.0.0.0/8") }, false)
        };
        let mode =
            |mode| std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        assert_eq!(with().unwrap().unwrap().secret.unwrap(), b"0123456789abcdef0123456789abcdef");
        mode(0o640);
        assert!(with().is_err());
        mode(0o600);
        file.as_file().set_len(8).unwrap();
        assert!(with().is_err());
    }
}
