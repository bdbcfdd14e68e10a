//! What the service is told: one TOML file, every key also a flag and a `TOWPATH_*` variable; flag before variable
//! before file before default.

use crate::ServiceError;
use base::limits::{RING_MAX, SLOTS_MAX};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// What packets go in and out of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// Nothing: only connections inside this host are accelerated.
    None,
    /// A TAP interface; the kernel is the peer.
    Tap,
}

/// Who may share a pair region with whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// Any two applications.
    Always,
    /// Two applications of one user; others are relayed.
    SameUser,
    /// Nobody: everything is relayed.
    Never,
}

/// An address with its prefix length: `10.9.0.2/24`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    /// The address itself.
    pub address: IpAddr,
    /// Bits of the network's prefix.
    pub prefix: u8,
}

impl std::str::FromStr for Network {
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

impl TryFrom<String> for Network {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(n: Network) -> Self {
        format!("{}/{}", n.address, n.prefix)
    }
}

/// Declares the keys once: as flags, variables, file keys, and how an earlier source overrides a later one.
macro_rules! options {
    ($($(#[doc = $doc:literal])+ $(#[arg($($arg:tt)*)])* $name:ident: $kind:ty,)*) => {
        /// Every key, unset where nobody said anything.
        #[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Options {
            $($(#[doc = $doc])+
            #[arg(long, $($($arg)*)*)]
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $name: Option<$kind>,)*
        }

        impl Options {
            /// These, and where they are silent, `later`'s.
            #[must_use]
            pub fn or(self, later: Self) -> Self {
                Self { $($name: self.$name.or(later.$name),)* }
            }

            /// Names of the keys that are set.
            #[must_use]
            pub fn set(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(if self.$name.is_some() { names.push(stringify!($name)); })*
                names
            }
        }
    };
}

options! {
    /// Control socket [default: /run/towpath/control.sock for root, else below $XDG_RUNTIME_DIR or /tmp/towpath-UID]
    #[arg(env = "TOWPATH_CONTROL", value_name = "PATH")]
    control: PathBuf,
    /// Leave when the last application has left (what `towpath run` starts by itself) [default: false]
    #[arg(env = "TOWPATH_PRIVATE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    private: bool,
    /// Port: none (this host only) or tap [default: none]
    #[arg(env = "TOWPATH_PORT", value_enum, value_name = "KIND")]
    port: PortKind,
    /// Who may share memory: always, same-user (others are relayed through the service) or never [default: same-user]
    #[arg(env = "TOWPATH_SHARING", value_enum, value_name = "WHO")]
    sharing: Sharing,
    /// Users who may register, by number [default: anybody for a service of root, else its own user and root]
    #[arg(env = "TOWPATH_ALLOW_UIDS", value_delimiter = ',', value_name = "UID")]
    allow_uids: Vec<u32>,
    /// Groups whose members (by primary group) may register, by number [default: see --allow-uids]
    #[arg(env = "TOWPATH_ALLOW_GIDS", value_delimiter = ',', value_name = "GID")]
    allow_gids: Vec<u32>,
    /// Applications at once [default: 1024]
    #[arg(env = "TOWPATH_MAX_APPLICATIONS", value_name = "N")]
    max_applications: u32,
    /// Accelerated sockets of one application [default: 65536]
    #[arg(env = "TOWPATH_MAX_SOCKETS", value_name = "N")]
    max_sockets: u32,
    /// Shared memory of one application, MiB, as really used [default: 2048]
    #[arg(env = "TOWPATH_MAX_MEMORY_MIB", value_name = "MIB")]
    max_memory_mib: u64,
    /// Connections one region can hold, a power of two from 64 to 65536 [default: 65536]
    #[arg(env = "TOWPATH_REGION_SLOTS", value_name = "N")]
    region_slots: u32,
    /// Payload space of each side of a region, MiB; reserved, used only as needed [default: 256]
    #[arg(env = "TOWPATH_REGION_MIB", value_name = "MIB")]
    region_mib: u64,
    /// Largest buffer of one direction of one connection, bytes: a power of two from 4096 to 4194304 [default: 4194304]
    #[arg(env = "TOWPATH_RING_MAX", value_name = "BYTES")]
    ring_max: u32,
    /// Spin at most this long before sleeping, microseconds; 0: never [default: 50 with more than two processors, else 0]
    #[arg(env = "TOWPATH_SPIN_US", value_name = "US")]
    spin_us: u64,
    /// Service threads that move bytes [default: 1]
    #[arg(env = "TOWPATH_CORES", value_name = "N")]
    cores: u8,
    /// What is logged: error, warn, info, debug, trace, or a filter like service=debug [default: info]
    #[arg(env = "TOWPATH_LOG_LEVEL", value_name = "LEVEL")]
    log: String,
}

/// What the service runs with: every key has a value.
#[derive(Clone, Debug)]
pub struct Config {
    /// Control socket.
    pub control: PathBuf,
    /// Leave with the last application.
    pub private: bool,
    /// What packets go through.
    pub port: PortKind,
    /// Who may share memory.
    pub sharing: Sharing,
    /// Users who may register; empty with `allow_gids` empty: the default rule.
    pub allow_uids: Vec<u32>,
    /// Groups who may register.
    pub allow_gids: Vec<u32>,
    /// Applications at once.
    pub max_applications: u32,
    /// Sockets of one application.
    pub max_sockets: u32,
    /// Bytes of shared memory of one application.
    pub max_memory: u64,
    /// Slots of a region.
    pub region_slots: u32,
    /// Payload bytes of each side.
    pub region_data: u64,
    /// Largest ring.
    pub ring_max: u32,
    /// Longest spin, nanoseconds.
    pub spin_ns: u64,
    /// Threads that move bytes.
    pub cores: u8,
    /// Log filter.
    pub log: String,
    /// Keys that somebody set, for the banner.
    pub differs: Vec<String>,
}

impl Options {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, or has a key that is none of ours.
    pub fn from_file(path: &Path) -> Result<Self, ServiceError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| ServiceError::ConfigRead { path: path.to_owned(), error: e })?;
        toml::from_str(&text)
            .map_err(|e| ServiceError::ConfigText { path: path.to_owned(), error: e.to_string() })
    }

    /// Fills in the defaults and checks every value.
    ///
    /// # Errors
    /// A value is out of its range; the text says which range.
    pub fn resolve(self) -> Result<Config, ServiceError> {
        let differs = toml::to_string(&self).unwrap_or_default().lines().map(str::to_owned).collect();
        let config = Config {
            control: self.control.unwrap_or_else(control::default_control_path),
            private: self.private.unwrap_or(false),
            port: self.port.unwrap_or(PortKind::None),
            sharing: self.sharing.unwrap_or(Sharing::SameUser),
            allow_uids: self.allow_uids.unwrap_or_default(),
            allow_gids: self.allow_gids.unwrap_or_default(),
            max_applications: self.max_applications.unwrap_or(1024),
            max_sockets: self.max_sockets.unwrap_or(SLOTS_MAX as u32),
            max_memory: self.max_memory_mib.unwrap_or(2048).saturating_mul(1 << 20),
            region_slots: self.region_slots.unwrap_or(SLOTS_MAX as u32),
            region_data: self.region_mib.unwrap_or(256).saturating_mul(1 << 20),
            ring_max: self.ring_max.unwrap_or(RING_MAX),
            spin_ns: self.spin_us.unwrap_or_else(default_spin_us).saturating_mul(1000),
            cores: self.cores.unwrap_or(1),
            log: self.log.unwrap_or_else(|| "info".to_owned()),
            differs,
        };
        config.check()?;
        Ok(config)
    }
}

/// Spinning pays only where nobody else could use the core (ARCHITECTURE.md, the hand-over measurements).
fn default_spin_us() -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if processors > 2 { 50 } else { 0 }
}

impl Config {
    /// The policy: may this user register?
    #[must_use]
    pub fn admits(&self, uid: u32, gid: u32) -> bool {
        if self.allow_uids.is_empty() && self.allow_gids.is_empty() {
            let own = rustix::process::geteuid();
            let open = own.is_root() && !self.private;
            return open || uid == own.as_raw() || uid == 0;
        }
        self.allow_uids.contains(&uid) || self.allow_gids.contains(&gid)
    }

    fn check(&self) -> Result<(), ServiceError> {
        let wrong = |key, must| Err(ServiceError::Value { key, must });
        if !(self.region_slots.is_power_of_two() && (64..=SLOTS_MAX as u32).contains(&self.region_slots)) {
            return wrong("region_slots", "be a power of two from 64 to 65536");
        }
        if !(1 << 20..=64 << 30).contains(&self.region_data) {
            return wrong("region_mib", "be from 1 to 65536");
        }
        if !(self.ring_max.is_power_of_two() && (4096..=RING_MAX).contains(&self.ring_max)) {
            return wrong("ring_max", "be a power of two from 4096 to 4194304");
        }
        if !(1..=CORES_MAX).contains(&self.cores) {
            return wrong("cores", "be from 1 to 14");
        }
        if self.port != PortKind::None {
            return wrong("port", "be none: this build moves no packets");
        }
        if self.max_applications == 0 {
            return wrong("max_applications", "be at least 1");
        }
        Ok(())
    }
}

/// One eventfd per core travels with a region, beside its memfd and the slow path's.
const CORES_MAX: u8 = control::FDS_MAX as u8 - 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_before_file_before_default() {
        let file: Options = toml::from_str("ring_max = 8192\ncores = 2\nsharing = \"never\"").unwrap();
        let flags = Options { cores: Some(3), ..Options::default() };
        let c = flags.or(file).resolve().unwrap();
        assert_eq!((c.cores, c.ring_max, c.sharing, c.region_slots), (3, 8192, Sharing::Never, 65_536));
    }

    #[test]
    fn unknown_keys_and_values_out_of_range_are_errors() {
        assert!(toml::from_str::<Options>("colour = 1").is_err());
        let error = Options { ring_max: Some(5000), ..Options::default() }.resolve().unwrap_err();
        assert!(error.to_string().contains("ring_max"));
        assert!("10.0.0.1/33".parse::<Network>().is_err() && "10.0.0.1/24".parse::<Network>().is_ok());
    }
}
