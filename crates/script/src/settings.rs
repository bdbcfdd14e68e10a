//! Settings of a script before it begins: its options, and the machine state that its shell commands set.

use crate::shell::Shell;
use crate::syntax::{Ends, Micros, OptionLine, Script, Trouble};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP versions of a script's sockets and packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IpVersion {
    /// IPv4 sockets and IPv4 packets.
    #[default]
    V4,
    /// IPv6 sockets with v4-mapped addresses, IPv4 packets.
    Mapped,
    /// IPv6 sockets and IPv6 packets.
    V6,
}

/// Options from the command line and from the top of a script.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// IP version of sockets and packets.
    pub ip_version: IpVersion,
    /// Address of the stack; `None`: the version's default.
    pub local: Option<IpAddr>,
    /// Address of the script's side; `None`: the version's default.
    pub remote: Option<IpAddr>,
    /// Router for addresses that are not on the link.
    pub gateway: Option<IpAddr>,
    /// Port for `bind` with `...` as address.
    pub bind_port: u16,
    /// Port for `connect` with `...` as address.
    pub connect_port: u16,
    /// Bytes of the largest packet on the link.
    pub mtu: u16,
    /// Payload bytes per segment to the stack; longer packets are cut, as a network card would have received them.
    pub mss: Option<u16>,
    /// Allowed deviation of an event from its time, microseconds.
    pub tolerance: Micros,
    /// Allowed deviation in percent of the time since the previous event.
    pub tolerance_percent: f64,
    /// Microseconds per tick of outgoing timestamps; 0: their values are not checked.
    pub timestamp_tick: Micros,
    /// True: an echoed timestamp that no packet carried is converted by the rate of the stack's clock.
    pub is_echo_scaled: bool,
    /// True: each packet of the script is one packet of the stack; segments are not joined.
    pub is_strict: bool,
    /// True: echoes in outgoing timestamps are checked as well (not in packetdrill).
    pub checks_echoes: bool,
    /// Words to replace: `-D NAME=VALUE`.
    pub defines: Vec<(String, String)>,
    /// Settings from shell commands.
    pub(crate) shell: Shell,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ip_version: IpVersion::V4,
            local: None,
            remote: None,
            gateway: None,
            bind_port: 8080,
            connect_port: 8080,
            mtu: 1500,
            mss: None,
            tolerance: 4000,
            tolerance_percent: 12.5,
            timestamp_tick: 0,
            is_echo_scaled: false,
            is_strict: false,
            checks_echoes: false,
            defines: Vec::new(),
            shell: Shell::default(),
        }
    }
}

impl Settings {
    /// The default settings for this IP version.
    #[must_use]
    pub fn for_version(ip_version: IpVersion) -> Self {
        Self { ip_version, ..Self::default() }
    }

    /// These settings, changed by the options at the top of `script`.
    ///
    /// # Errors
    /// An unknown option, or a bad value.
    pub fn with_options_of(mut self, script: &Script) -> Result<Self, Trouble> {
        for option in &script.options {
            self.set(option)?;
        }
        if let Some(start) = &script.start {
            self.shell.run(&start.text, start.line)?;
        }
        Ok(self)
    }

    /// Sets an option `--name=value` from the command line.
    ///
    /// # Errors
    /// The error in the option; its line is 0.
    pub fn set_option(&mut self, text: &str) -> Result<(), Trouble> {
        let text = text.trim_start_matches('-');
        let (name, value) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v.to_owned())));
        self.set(&OptionLine { line: 0, name: name.to_owned(), value })
    }

    fn set(&mut self, option: &OptionLine) -> Result<(), Trouble> {
        let line = option.line;
        let name = option.name.as_str();
        let flag = match name {
            "tcp_ts_ecr_scaled" => Some(&mut self.is_echo_scaled),
            "strict_segments" => Some(&mut self.is_strict),
            "check_ecr" => Some(&mut self.checks_echoes),
            _ => None,
        };
        if let Some(flag) = flag {
            if option.value.is_some() {
                return Err(Trouble::syntax(line, format!("--{name} has no value")));
            }
            *flag = true;
            return Ok(());
        }
        if name == "send_omit_free" {
            // It suppresses a reset at the script's end. Our hosts end with the script and send none.
            return Ok(());
        }
        let value = option.value.as_deref();
        let value = value.ok_or_else(|| Trouble::unsupported(line, format!("--{name} without a value")))?;
        let bad = || Trouble::syntax(line, format!("--{name}={value}: no such value"));
        match name {
            "ip_version" => {
                self.ip_version = match value {
                    "ipv4" => IpVersion::V4,
                    // The lexer splits `ipv4-mapped-ipv6` in a script's options; on the command line it comes whole.
                    "ipv4-mapped-ipv6" => IpVersion::Mapped,
                    "ipv6" => IpVersion::V6,
                    _ => return Err(bad()),
                }
            }
            "bind_port" => self.bind_port = value.parse().map_err(|_| bad())?,
            "connect_port" => self.connect_port = value.parse().map_err(|_| bad())?,
            "remote_ip" => self.remote = Some(address(value).ok_or_else(bad)?),
            "local_ip" => self.local = Some(address(value).ok_or_else(bad)?),
            "gateway_ip" => self.gateway = Some(address(value).ok_or_else(bad)?),
            // Only checked: the prefix length of the stack's link is fixed (`machine::host`).
            "netmask_ip" => drop(address(value).ok_or_else(bad)?),
            "mtu" => self.mtu = value.parse().ok().filter(|n| *n >= 576).ok_or_else(bad)?,
            "mss" => self.mss = Some(value.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?),
            "tolerance_usecs" => self.tolerance = value.parse().map_err(|_| bad())?,
            "tolerance_percent" => self.tolerance_percent = value.parse().map_err(|_| bad())?,
            "tcp_ts_tick_usecs" => self.timestamp_tick = value.parse().map_err(|_| bad())?,
            "define" => {
                let (word, value) = value.split_once('=').ok_or_else(bad)?;
                self.defines.push((word.to_owned(), value.to_owned()));
            }
            "init_scripts" => {
                for file in value.split(',') {
                    self.shell.run(file, line)?;
                }
            }
            _ => return Err(Trouble::unsupported(line, format!("option --{name}"))),
        }
        Ok(())
    }

    /// The addresses of both ends.
    #[must_use]
    pub fn ends(&self) -> Ends {
        let (local, remote) = match self.ip_version {
            IpVersion::V4 | IpVersion::Mapped => {
                (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)))
            }
            IpVersion::V6 => (
                IpAddr::V6(Ipv6Addr::new(0xFD3D, 0xFA7B, 0xD17D, 0, 0, 0, 0, 2)),
                IpAddr::V6(Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 1)),
            ),
        };
        Ends { local: self.local.unwrap_or(local), remote: self.remote.unwrap_or(remote) }
    }
}

/// An address, with or without a prefix length.
fn address(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Settings;
    use crate::parse;

    fn settings(text: &str) -> Settings {
        Settings::default().with_options_of(&parse(text, &[]).unwrap()).unwrap()
    }

    #[test]
    fn options_at_the_top_count() {
        let found = settings(
            "--tolerance_usecs=20000\n--local_ip=192.168.0.3\n--remote_ip=10.0.0.1/24\n--strict_segments\n0 close(3) = 0",
        );
        assert_eq!(found.tolerance, 20_000);
        assert_eq!(found.ends().local.to_string(), "192.168.0.3");
        assert_eq!(found.ends().remote.to_string(), "10.0.0.1");
        assert!(found.is_strict);
    }

    #[test]
    fn unknown_option_is_not_passed_over() {
        let script = parse("--warp=9\n0 close(3) = 0", &[]).unwrap();
        assert!(Settings::default().with_options_of(&script).is_err());
    }
}
