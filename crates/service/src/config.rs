//! What the service is told: one TOML file, every key also a flag and a `TOWPATH_*` variable; flag before variable
//! before file before default.

use crate::ServiceError;
use crate::policy::{self, Door, Limits, Policy, Source};
use crate::privilege::User;
use crate::sys;
use crate::values::{Congestion, Mac, Network, PortChoice, PortKind, Rate};
use base::limits::{BUFFER_INITIAL_DEFAULT, RECEIVE_MAX_DEFAULT, RING_MAX, RING_MAX_DEFAULT, SLOTS_MAX};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use slowpath::{OwnAddress, Routes};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

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

/// Declares the keys once, in the groups of `towpath up --help`: as flags, variables, file keys, and how an earlier source overrides a later one.
macro_rules! options {
    ($([$heading:literal] $($(#[doc = $doc:literal])+ $(#[arg($($arg:tt)*)])* $name:ident: $kind:ty,)*)*) => {
        /// Every key, unset where nobody said anything.
        #[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Options {
            $($($(#[doc = $doc])+
            #[arg(long, help_heading = $heading, $($($arg)*)*)]
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $name: Option<$kind>,)*)*
        }

        impl Options {
            /// These, and where they are silent, `later`'s.
            #[must_use]
            pub fn or(self, later: Self) -> Self {
                Self { $($($name: self.$name.or(later.$name),)*)* }
            }

            /// Names of the keys that are set.
            #[must_use]
            pub fn set(&self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $($(if self.$name.is_some() { names.push(stringify!($name)); })*)*
                names
            }
        }
    };
}

options! {
    ["Control socket"]
    /// Control socket [default: /run/towpath/control.sock for root, else below $XDG_RUNTIME_DIR or /tmp/towpath-UID]
    #[arg(env = "TOWPATH_CONTROL", value_name = "PATH")]
    control: PathBuf,
    /// Leave when the last application has left (what `towpath run` starts by itself) [default: false]
    #[arg(env = "TOWPATH_PRIVATE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    private: bool,
    ["Port"]
    /// Port: none (this host only), tap[:NAME] (an interface made for it) or packet:INTERFACE (one that exists, without
    /// addresses of the service) [default: none]
    #[arg(env = "TOWPATH_PORT", value_name = "PORT")]
    port: PortChoice,
    /// Name of the TAP interface; %d is numbered by the kernel [default: towpath%d]
    #[arg(env = "TOWPATH_PORT_NAME", value_name = "NAME")]
    port_name: String,
    /// Network namespace of the interface: a name as in `ip netns`, or a path [default: the service's own]
    #[arg(env = "TOWPATH_NETNS", value_name = "NAME")]
    netns: String,
    /// Addresses of the service on the link, with prefix length: 10.9.0.2/24
    #[arg(env = "TOWPATH_ADDRESS", value_delimiter = ',', value_name = "ADDRESS/PREFIX")]
    address: Vec<Network>,
    /// Addresses of the kernel's side of a TAP, with prefix length: 10.9.0.1/24
    #[arg(env = "TOWPATH_HOST_ADDRESS", value_delimiter = ',', value_name = "ADDRESS/PREFIX")]
    host_address: Vec<Network>,
    /// Gateways, one of each family at most [default: none, only the link is reached]
    #[arg(env = "TOWPATH_GATEWAY", value_delimiter = ',', value_name = "ADDRESS")]
    gateway: Vec<IpAddr>,
    /// Ethernet address of the service [default: random]
    #[arg(env = "TOWPATH_MAC", value_name = "MAC")]
    mac: Mac,
    /// Bytes of the largest IP packet [default: 1500 for a TAP, else the interface's own]
    #[arg(env = "TOWPATH_MTU", value_name = "BYTES")]
    mtu: u16,
    /// Compute every checksum; implies --no-gso [default: false]
    #[arg(env = "TOWPATH_NO_CHECKSUM_OFFLOAD", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    no_checksum_offload: bool,
    /// Cut every segment [default: false]
    #[arg(env = "TOWPATH_NO_GSO", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    no_gso: bool,
    ["TCP over the port"]
    /// Congestion control: reno, cubic, dctcp or constant:BYTES [default: cubic]
    #[arg(env = "TOWPATH_CONGESTION", value_name = "NAME")]
    congestion: Congestion,
    /// Selective acknowledgements [default: true]
    #[arg(env = "TOWPATH_SACK", value_name = "BOOL", action = clap::ArgAction::Set)]
    sack: bool,
    /// Timestamps [default: true]
    #[arg(env = "TOWPATH_TIMESTAMPS", value_name = "BOOL", action = clap::ArgAction::Set)]
    timestamps: bool,
    /// Window scaling [default: true]
    #[arg(env = "TOWPATH_WINDOW_SCALING", value_name = "BOOL", action = clap::ArgAction::Set)]
    window_scaling: bool,
    /// Explicit congestion notification [default: false; true with dctcp]
    #[arg(env = "TOWPATH_ECN", value_name = "BOOL", action = clap::ArgAction::Set)]
    ecn: bool,
    /// First receive buffer of a connection over the port, bytes, a power of two [default: 131072]
    #[arg(env = "TOWPATH_BUFFER_INITIAL", value_name = "BYTES")]
    buffer_initial: u32,
    /// What a connection over the port may have unsent or unacknowledged at first, bytes; it grows with the congestion window, up to
    /// --ring-max [default: no bound but the application's memory]
    #[arg(env = "TOWPATH_SEND_BUFFER", value_name = "BYTES")]
    send_buffer: u32,
    /// Hops that a segment over the port may take, from 1 to 255: TTL, hop limit [default: 64]
    #[arg(env = "TOWPATH_HOP_LIMIT", value_name = "N")]
    hop_limit: u8,
    /// Connections over the port at once [default: 65536]
    #[arg(env = "TOWPATH_MAX_FLOWS", value_name = "N")]
    max_flows: u32,
    ["Faults of the port, for tests"]
    /// For tests: share of packets lost in each direction, like 1% [default: 0%]
    #[arg(env = "TOWPATH_FAULT_LOSS", value_name = "SHARE", hide = true)]
    fault_loss: Rate,
    /// For tests: share of packets that others overtake [default: 0%]
    #[arg(env = "TOWPATH_FAULT_REORDER", value_name = "SHARE", hide = true)]
    fault_reorder: Rate,
    /// For tests: share of packets that come twice [default: 0%]
    #[arg(env = "TOWPATH_FAULT_DUPLICATE", value_name = "SHARE", hide = true)]
    fault_duplicate: Rate,
    /// For tests: share of packets with one byte changed [default: 0%]
    #[arg(env = "TOWPATH_FAULT_CORRUPT", value_name = "SHARE", hide = true)]
    fault_corrupt: Rate,
    /// For tests: share of packets cut short [default: 0%]
    #[arg(env = "TOWPATH_FAULT_TRUNCATE", value_name = "SHARE", hide = true)]
    fault_truncate: Rate,
    /// For tests: the same seed gives the same faults [default: 1]
    #[arg(env = "TOWPATH_FAULT_SEED", value_name = "N", hide = true)]
    fault_seed: u64,
    ["Users"]
    /// Who may share memory: always, same-user (others are relayed through the service) or never [default: same-user]
    #[arg(env = "TOWPATH_SHARING", value_enum, value_name = "WHO")]
    sharing: Sharing,
    /// Users who may register, by number [default: anybody for a service of root, else its own user and root]
    #[arg(env = "TOWPATH_ALLOW_UIDS", value_delimiter = ',', value_name = "UID")]
    allow_uids: Vec<u32>,
    /// Groups whose members (by primary group) may register, by number [default: see --allow-uids]
    #[arg(env = "TOWPATH_ALLOW_GIDS", value_delimiter = ',', value_name = "GID")]
    allow_gids: Vec<u32>,
    /// Policy file: which users may listen and connect where, and how much they may have; read anew by `towpath reload` and SIGHUP
    /// [default: /etc/towpath/policy.toml, where there is one and the service is root's and public]
    #[arg(env = "TOWPATH_POLICY", value_name = "FILE")]
    policy: PathBuf,
    ["Limits"]
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
    /// Largest buffer of one direction of one connection, bytes: a power of two from 4096 to 268435456 [default: 4194304 to send,
    /// 33554432 to receive]
    #[arg(env = "TOWPATH_RING_MAX", value_name = "BYTES")]
    ring_max: u32,
    ["Work and log"]
    /// Spin at most this long before sleeping, microseconds; 0: never [default: 20]
    #[arg(env = "TOWPATH_SPIN_US", value_name = "US")]
    spin_us: u64,
    /// Service threads that move bytes [default: 1]
    #[arg(env = "TOWPATH_CORES", value_name = "N")]
    cores: u8,
    /// User, and group if not that user's own, that a service of root's becomes once its port is open, by name or number: USER[:GROUP]
    /// [default: it stays root, without root's capabilities]
    #[arg(env = "TOWPATH_USER", value_name = "USER")]
    user: String,
    /// Refuse system calls that the service does not make [default: true]
    #[arg(env = "TOWPATH_SYSCALL_FILTER", value_name = "BOOL", action = clap::ArgAction::Set)]
    syscall_filter: bool,
    /// What is logged: error, warn, info, debug, trace, or a filter like service=debug [default: info]
    #[arg(env = "TOWPATH_LOG_LEVEL", value_name = "LEVEL")]
    log: String,
}

/// The link of a port, and TCP over it.
#[derive(Clone, Debug)]
pub struct Link {
    /// Interface name.
    pub name: String,
    /// Its network namespace.
    pub namespace: Option<String>,
    /// The service's addresses.
    pub own: Vec<Network>,
    /// The kernel's side.
    pub host: Vec<Network>,
    /// Gateways.
    pub gateways: Vec<IpAddr>,
    /// Ethernet address.
    pub mac: Option<Mac>,
    /// Largest packet, where somebody said.
    pub mtu: Option<u16>,
    /// Checksum offload.
    pub checksum: bool,
    /// Segmentation offload.
    pub gso: bool,
    /// Congestion control.
    pub congestion: Congestion,
    /// SACK, timestamps, window scaling, ECN.
    pub switches: [bool; 4],
    /// First receive buffer.
    pub buffer_initial: u32,
    /// Hops of a segment.
    pub hop_limit: u8,
    /// First bound of a send buffer, bytes; 0: none.
    pub send_buffer: u32,
    /// Flow records.
    pub flows: u32,
    /// Injected loss.
    pub loss: Rate,
    /// Injected reordering.
    pub reorder: Rate,
    /// Injected duplication.
    pub duplicate: Rate,
    /// Injected corruption.
    pub corrupt: Rate,
    /// Injected truncation.
    pub truncate: Rate,
    /// Seed of the faults.
    pub seed: u64,
}

impl Link {
    /// True when the station `gateway` is on the link of one of our addresses. Link-local addresses are on every link of their family
    /// (RFC 4291 section 2.5.6), and routers of IPv6 mostly name themselves so.
    fn reaches(&self, gateway: IpAddr) -> bool {
        let own = || self.own.iter().map(|n| OwnAddress { addr: n.address, prefix_len: n.prefix });
        let is_link_local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let is_covered = |own: OwnAddress| own.covers(gateway) || is_link_local && own.addr.is_ipv6();
        let routes = Routes::new(own().collect(), None, None);
        own().any(is_covered) && !routes.owns(gateway) && !routes.is_group(gateway)
    }
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
    /// How the port is, where there is one.
    pub link: Link,
    /// Who may share memory.
    pub sharing: Sharing,
    /// Users who may register; empty with `allow_gids` empty: the default rule.
    pub allow_uids: Vec<u32>,
    /// Groups who may register.
    pub allow_gids: Vec<u32>,
    /// What each user may, as it was read at start.
    pub policy: Policy,
    /// Where its rules come from.
    pub policy_source: Source,
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
    /// Largest ring of an application to send from.
    pub ring_max: u32,
    /// Largest receive window of a connection over the port, and its ring.
    pub receive_max: u32,
    /// Longest spin, nanoseconds.
    pub spin_ns: u64,
    /// Threads that move bytes.
    pub cores: u8,
    /// The user it becomes once it is open.
    pub user: Option<User>,
    /// Started by root: it is every user's, unless private.
    pub is_of_root: bool,
    /// Whether other system calls than those of the table are refused.
    pub syscall_filter: bool,
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

    /// Keys that mean something only with a port.
    fn check_port(&self) -> Result<(), ServiceError> {
        const OF_PORT: &[&str] = &[
            "port_name",
            "netns",
            "address",
            "host_address",
            "gateway",
            "mac",
            "mtu",
            "no_checksum_offload",
            "no_gso",
            "congestion",
            "sack",
            "timestamps",
            "window_scaling",
            "ecn",
            "buffer_initial",
            "send_buffer",
            "max_flows",
            "fault_loss",
            "fault_reorder",
            "fault_duplicate",
            "fault_corrupt",
            "fault_truncate",
            "fault_seed",
        ];
        let wrong = |key, must| Err(ServiceError::Value { key, must });
        match self.port.as_ref().map_or(PortKind::None, |port| port.kind) {
            PortKind::None => {}
            PortKind::Tap
                if self.port_name.is_some() && self.port.as_ref().is_some_and(|p| p.name.is_some()) =>
            {
                return wrong("port_name", "not be given beside the name in --port");
            }
            PortKind::Tap => return Ok(()),
            PortKind::Packet if self.port_name.is_some() => {
                return wrong("port_name", "be given in --port: packet:INTERFACE");
            }
            PortKind::Packet if self.host_address.is_some() => {
                return wrong(
                    "host_address",
                    "be used with a TAP (--port tap); other interfaces have their own",
                );
            }
            PortKind::Packet => return Ok(()),
        }
        match self.set().into_iter().find(|key| OF_PORT.contains(key)) {
            Some(key) => {
                Err(ServiceError::Value { key, must: "be used with a port (--port tap or packet:INTERFACE)" })
            }
            None => Ok(()),
        }
    }

    fn link(&self) -> Link {
        let checksum = !self.no_checksum_offload.unwrap_or(false);
        let congestion = self.congestion.unwrap_or_default();
        let ecn = self.ecn.unwrap_or(congestion.0 == congestion::Algorithm::Dctcp);
        let on = |switch: Option<bool>| switch.unwrap_or(true);
        Link {
            name: self
                .port
                .as_ref()
                .and_then(|port| port.name.clone())
                .or_else(|| self.port_name.clone())
                .unwrap_or_else(|| "towpath%d".to_owned()),
            namespace: self.netns.clone(),
            own: self.address.clone().unwrap_or_default(),
            host: self.host_address.clone().unwrap_or_default(),
            gateways: self.gateway.clone().unwrap_or_default(),
            mac: self.mac,
            mtu: self.mtu,
            checksum,
            gso: checksum && !self.no_gso.unwrap_or(false),
            congestion,
            switches: [on(self.sack), on(self.timestamps), on(self.window_scaling), ecn],
            buffer_initial: self.buffer_initial.unwrap_or(
                self.ring_max.map_or(BUFFER_INITIAL_DEFAULT, |max| max.min(BUFFER_INITIAL_DEFAULT)),
            ),
            hop_limit: self.hop_limit.unwrap_or(64),
            send_buffer: self.send_buffer.unwrap_or(0),
            flows: self.max_flows.unwrap_or(65_536),
            loss: self.fault_loss.unwrap_or_default(),
            reorder: self.fault_reorder.unwrap_or_default(),
            duplicate: self.fault_duplicate.unwrap_or_default(),
            corrupt: self.fault_corrupt.unwrap_or_default(),
            truncate: self.fault_truncate.unwrap_or_default(),
            seed: self.fault_seed.unwrap_or(1),
        }
    }

    /// Fills in the defaults and checks every value.
    ///
    /// # Errors
    /// A value is out of its range; the text says which range.
    pub fn resolve(self) -> Result<Config, ServiceError> {
        let differs = toml::to_string(&self).unwrap_or_default().lines().map(str::to_owned).collect();
        self.check_port()?;
        let link = self.link();
        let private = self.private.unwrap_or(false);
        let policy_source = source(self.policy, private);
        let (allow_uids, allow_gids) =
            (self.allow_uids.unwrap_or_default(), self.allow_gids.unwrap_or_default());
        let max_applications = self.max_applications.unwrap_or(1024);
        let limits =
            Limits { applications: max_applications, unfinished_hellos: UNFINISHED_HELLOS, ..Limits::NONE };
        let rules = policy_source.read(true).map_err(ServiceError::Policy)?;
        let door = door(&allow_uids, &allow_gids, private);
        let config = Config {
            policy: Policy::new(door, rules, sys::own_namespace(), limits),
            policy_source,
            link,
            control: self.control.unwrap_or_else(control::default_control_path),
            private,
            port: self.port.map_or(PortKind::None, |port| port.kind),
            sharing: self.sharing.unwrap_or(Sharing::SameUser),
            allow_uids,
            allow_gids,
            max_applications,
            max_sockets: self.max_sockets.unwrap_or(SLOTS_MAX as u32),
            max_memory: self.max_memory_mib.unwrap_or(2048).saturating_mul(1 << 20),
            region_slots: self.region_slots.unwrap_or(SLOTS_MAX as u32),
            region_data: self.region_mib.unwrap_or(256).saturating_mul(1 << 20),
            ring_max: self.ring_max.unwrap_or(RING_MAX_DEFAULT),
            receive_max: self.ring_max.unwrap_or(RECEIVE_MAX_DEFAULT),
            spin_ns: self.spin_us.unwrap_or(SPIN_US).saturating_mul(1000),
            cores: self.cores.unwrap_or(1),
            user: self.user.as_deref().map(user).transpose()?,
            is_of_root: rustix::process::geteuid().is_root(),
            syscall_filter: self.syscall_filter.unwrap_or(true),
            log: self.log.unwrap_or_else(|| "info".to_owned()),
            differs,
        };
        config.check()?;
        Ok(config)
    }
}

fn user(text: &str) -> Result<User, ServiceError> {
    let wrong = |must| ServiceError::Value { key: "user", must };
    if !rustix::process::geteuid().is_root() {
        return Err(wrong("be used by root: the service of another user has nothing to give up"));
    }
    User::find(text).ok_or_else(|| {
        wrong("name a user and group of this host other than root: USER, USER:GROUP or UID:GID")
    })
}

/// Longest spin before sleeping, microseconds, whatever the number of processors: whoever spins yields meanwhile, so that
/// it takes the core from nobody. Best or level with the best in every placement measured.
const SPIN_US: u64 = 20;

/// Control lines of one user at once over which no hello has come yet.
const UNFINISHED_HELLOS: u32 = 64;

/// Where the policy's rules come from.
fn source(file: Option<PathBuf>, private: bool) -> Source {
    match file {
        Some(file) => Source::File(file),
        None if rustix::process::geteuid().is_root() && !private => Source::Perhaps(policy::DEFAULT.into()),
        None => Source::Nowhere,
    }
}

/// The users that may register at all: by default every user at a public service of root, else the service's own user and root.
fn door(users: &[u32], groups: &[u32], private: bool) -> Door {
    let own = rustix::process::geteuid();
    match (users, groups) {
        ([], []) if own.is_root() && !private => Door::Open,
        ([], []) => Door::Only { users: vec![own.as_raw(), 0], groups: Vec::new() },
        (users, groups) => Door::Only { users: users.to_vec(), groups: groups.to_vec() },
    }
}

impl Config {
    /// Values that no port could be opened with.
    fn check_link(&self) -> Result<(), ServiceError> {
        let wrong = |key, must| Err(ServiceError::Value { key, must });
        let link = &self.link;
        if link.mac.is_some_and(|mac| mac.0[0] & 1 == 1 || mac.0 == [0; 6]) {
            return wrong("mac", "be the address of one station, like 02:00:00:00:00:01");
        }
        if link.mtu.is_some_and(|mtu| !MTU_RANGE.contains(&mtu)) {
            return wrong("mtu", "be from 576 to 65521");
        }
        let mut all = link.own.iter().chain(&link.host);
        if all.clone().any(|n| n.address.is_ipv6()) && link.mtu.is_some_and(|mtu| mtu < MTU_V6_MIN) {
            return wrong("mtu", "be at least 1280 with an IPv6 address (RFC 8200 section 5)");
        }
        if all.any(|n| n.address.is_multicast() || n.address.is_unspecified()) {
            return wrong("address", "name addresses of one host each, as --host-address must");
        }
        let count = |v4: bool| link.host.iter().filter(|n| n.address.is_ipv4() == v4).count();
        if count(true) > 1 || count(false) > 1 {
            return wrong("host_address", "name one address of each family at most");
        }
        Ok(())
    }

    /// Whether every user may register where nothing is said of users and groups. As of the start: the service may have become another
    /// user since.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_of_root && !self.private
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
            return wrong("ring_max", "be a power of two from 4096 to 268435456");
        }
        if !(1..=CORES_MAX).contains(&self.cores) {
            return wrong("cores", "be from 1 to 14");
        }
        let link = &self.link;
        if self.port != PortKind::None && link.own.is_empty() {
            return wrong("address", "name at least one address of the service, like 10.9.0.2/24");
        }
        if link.own.iter().any(|own| link.host.iter().any(|host| host.address == own.address)) {
            return wrong("address", "differ from --host-address: the two are the ends of one link");
        }
        self.check_link()?;
        if !(link.buffer_initial.is_power_of_two() && (4096..=self.ring_max).contains(&link.buffer_initial)) {
            return wrong("buffer_initial", "be a power of two from 4096 to --ring-max");
        }
        if link.send_buffer != 0 && !(4096..=self.ring_max).contains(&link.send_buffer) {
            return wrong("send_buffer", "be from 4096 to --ring-max, or 0");
        }
        if link.hop_limit == 0 {
            return wrong("hop_limit", "be from 1 to 255");
        }
        if !(1..=1 << 22).contains(&link.flows) {
            return wrong("max_flows", "be from 1 to 4194304");
        }
        let both = |v4: bool| link.gateways.iter().filter(|g| g.is_ipv4() == v4).count() <= 1;
        if !(both(true) && both(false)) {
            return wrong("gateway", "name one gateway of each family at most");
        }
        if let Some(gateway) = link.gateways.iter().find(|gateway| !link.reaches(**gateway)) {
            return Err(ServiceError::Port(format!(
                "--gateway {gateway} is on no link of the service: name a router inside the prefix of an --address, as 10.9.0.1 is of \
                 10.9.0.2/24, or give the service an address on the gateway's link"
            )));
        }
        if self.max_applications > 1 << 15 {
            return wrong("max_applications", "be at most 32768");
        }
        if self.max_applications == 0 {
            return wrong("max_applications", "be at least 1");
        }
        Ok(())
    }
}

/// Longest IP packet of an interface: what IPv4 asks of every link (RFC 791), and the most that Linux takes.
const MTU_RANGE: std::ops::RangeInclusive<u16> = 576..=65_521;

/// What IPv6 asks of every link (RFC 8200 section 5).
const MTU_V6_MIN: u16 = 1280;

/// One eventfd per core travels with a region, beside its memfd and the slow path's.
const CORES_MAX: u8 = control::FDS_MAX as u8 - 2;

#[cfg(test)]
mod tests;
