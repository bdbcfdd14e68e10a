//! Configuration of the machine by the tool's `--so_flags` and the kernel's sysctls.
//!
//! Scripts set the sysctls of their network namespace before they begin. The machine is made at the first `socket` call, with the values at
//! that time.

use port::Capabilities;
use sim::HostConfig;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The seed of all secrets, so that every run of a script is the same.
const SEED: u64 = 0x0705_1980;
/// Bytes of each direction's payload area: twice the largest buffer that the sysctls allow. The tool locks all its memory.
const DATA_LEN: u64 = 32 << 20;

/// The parsed flags, such as `--so_flags=mtu=1400,local=192.168.0.1,net.ipv4.tcp_congestion_control=cubic`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// The most bytes of an IP packet on the link.
    pub(crate) mtu: u16,
    /// The tool's `--mss`: longer packets to the machine are cut into segments of this many bytes of payload; see [`crate::cut`].
    pub(crate) mss: Option<u16>,
    /// Addresses of the machine besides those that `bind` and packets name.
    pub(crate) local: Vec<IpAddr>,
    /// Sysctls that override the kernel's values, because a namespace may not set all of them.
    pub(crate) forced: Vec<(String, String)>,
}

impl Settings {
    /// Parses the flags.
    ///
    /// # Errors
    /// A message for the first flag that is unknown or has a wrong value.
    pub(crate) fn parse(flags: &str) -> Result<Self, String> {
        let mut settings = Self { mtu: 1500, mss: None, local: Vec::new(), forced: Vec::new() };
        for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
            let bad = || {
                format!(
                    "--so_flags: {flag}: known are mtu=BYTES, mss=BYTES, local=ADDRESS and net.ipv4.NAME=VALUE"
                )
            };
            let (name, value) = flag.split_once('=').ok_or_else(bad)?;
            match name {
                "mtu" => settings.mtu = value.parse().ok().filter(|n| *n >= 576).ok_or_else(bad)?,
                "mss" => settings.mss = Some(value.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?),
                "local" => settings.local.push(value.parse().map_err(|_| bad())?),
                _ if script::is_sysctl_understood(name, value) => {
                    settings.forced.push((name.to_owned(), value.to_owned()));
                }
                _ => return Err(bad()),
            }
        }
        Ok(settings)
    }

    /// The machine's configuration with `sysctls`. Also returns the sysctls that the stack does not support, if their values differ from
    /// `before`.
    pub(crate) fn host(&self, before: &Sysctls, sysctls: &Sysctls) -> (HostConfig, Vec<String>) {
        let addresses: Vec<_> = self.local.iter().map(|local| (*local, prefix_len(*local))).collect();
        let mut config = HostConfig::new(script::HOST.0, &addresses, SEED);
        config.capabilities = Capabilities::plain(self.mtu, script::HOST.0).with_tso();
        config.slow.mtu = self.mtu;
        config.slow.gateway_v4 = Some(Ipv4Addr::new(192, 168, 255, 254));
        config.slow.gateway_v6 = Some(Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 2));
        config.slots = 64;
        config.data_len = DATA_LEN;
        let mut ignored = Vec::new();
        let forced = self.forced.iter().map(|(name, value)| (name, value));
        for (name, value) in sysctls.iter().chain(forced) {
            if script::is_sysctl_understood(name, value) {
                let name = name.strip_prefix("net.ipv4.").unwrap_or(name);
                script::set_sysctl(&mut config, name, value);
            } else if before.get(name) != Some(value) {
                ignored.push(format!("{name}={value}"));
            }
        }
        (config, ignored)
    }
}

/// Values of sysctls by full name.
pub(crate) type Sysctls = BTreeMap<String, String>;

/// The prefix length of the link on which packetdrill puts its local address.
pub(crate) fn prefix_len(address: IpAddr) -> u8 {
    if address.is_ipv4() { 16 } else { 48 }
}

/// The machine's address if it opens a connection before it was given one.
pub(crate) fn default_local(is_v6: bool) -> IpAddr {
    if is_v6 {
        Ipv6Addr::new(0xFD3D, 0x0A0B, 0x17D6, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(192, 168, 0, 1).into()
    }
}

/// The sysctls of this network namespace that the stack knows.
pub(crate) fn sysctls() -> Sysctls {
    let value = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok()?;
        Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    script::sysctl_names().filter_map(|name| value(&name).map(|value| (name, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn flags_are_read_and_unknown_ones_told() {
        let settings = Settings::parse("mtu=1400,mss=1000,local=192.168.0.9").unwrap();
        assert_eq!((settings.mtu, settings.mss, settings.local.len()), (1400, Some(1000), 1));
        assert_eq!(Settings::parse("").unwrap().mtu, 1500);
        for bad in ["warp=9", "mtu", "mtu=3", "local=here"] {
            assert!(Settings::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn changed_sysctl_that_cannot_be_obeyed_is_told() {
        let sysctls = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| (format!("net.ipv4.{name}"), (*value).to_owned())).collect()
        };
        let settings = Settings::parse("net.ipv4.tcp_sack=0").unwrap();
        let before = sysctls(&[("tcp_comp_sack_nr", "44"), ("tcp_mtu_probing", "0")]);
        let after = sysctls(&[("tcp_comp_sack_nr", "44"), ("tcp_mtu_probing", "2"), ("tcp_timestamps", "0")]);
        let (config, ignored) = settings.host(&before, &after);
        assert!(!config.shared.timestamps && !config.shared.sack);
        assert_eq!(ignored, ["net.ipv4.tcp_mtu_probing=2"]);
    }
}
