//! The configuration of the service. Each key can be given as a flag, as a `TOWPATH_*` variable and in one TOML file; a flag overrides a
//! variable, a variable the file, the file the default.

mod agents;
pub(crate) mod channels;
mod file;
mod in_force;
mod link;
pub(crate) mod values;

pub use agents::AgentSettings;
pub use link::Link;

use crate::config::values::{
    AgentPlace, ChannelCount, Congestion, Cores, CoresChoice, HostAddresses, LogFilter, Mac, Network,
    PortChoice, PortKind, Rate,
};
use crate::privilege::user::User;
use crate::registry::channels::rules::ChannelRule;
use crate::registry::choice::Choices;
use crate::registry::policy::{self, Door, Limits, Policy, Source};
use crate::registry::scaling::machine::Machine;
use crate::{ServiceError, sys};
use base::limits::{RECEIVE_MAX_DEFAULT, RING_MAX, RING_MAX_DEFAULT, SLOTS_MAX};
use clap::{Args, ValueEnum};
use control::CongestionRule;
use elastic::Machine as _;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

/// Which applications may share a pair region with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// Any two applications may share memory.
    Always,
    /// Two applications of the same user; connections between users are relayed.
    SameUser,
    /// No two applications: all connections between them are relayed.
    Never,
}

/// How the bytes of throughput-bound sockets are placed on the channels of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelPolicy {
    /// On the channel with the fewest bytes that the peer has not confirmed.
    Shortest,
    /// On one channel after the other.
    RoundRobin,
    /// A socket stays on one channel.
    Sticky,
}

/// Declares each key once, in the groups of `towpath up --help`: as flag, variable and file key, and how an earlier source overrides a
/// later one. `towpath up -h` fits a screen: only keys with `hide_short_help = false` are in it, with the first paragraph of their text.
macro_rules! options {
    ($([$heading:literal] $($(#[doc = $doc:literal])+ $(#[arg($($arg:tt)*)])* $name:ident: $kind:ty,)*)*) => {
        /// Every key; `None` where no source sets it.
        #[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Options {
            $($($(#[doc = $doc])+
            #[arg(long, help_heading = $heading, hide_short_help = true, hide_env_values = true, $($($arg)*)*)]
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $name: Option<$kind>,)*)*
        }

        impl Options {
            /// These values; `later`'s for the keys that are not set here.
            #[must_use]
            pub fn or(self, later: Self) -> Self {
                Self { $($($name: self.$name.or(later.$name),)*)* }
            }

            /// The names of all keys, in their groups.
            pub const GROUPS: &[(&str, &[&str])] = &[$(($heading, &[$(stringify!($name)),*])),*];

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
    /// Path of the control socket
    ///
    /// [default: /run/towpath/control.sock for root, else below $XDG_RUNTIME_DIR or /tmp/towpath-UID]
    #[arg(env = "TOWPATH_CONTROL", value_name = "PATH", hide_short_help = false)]
    control: PathBuf,
    /// End when the last application has ended (`towpath run` starts such a service by itself) [default: false]
    #[arg(env = "TOWPATH_PRIVATE", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    private: bool,
    ["Port"]
    /// none (this host only), tap[:NAME] or packet:INTERFACE [default: none]
    ///
    /// tap: an interface that the service makes; packet: an existing one that has none of the service's addresses.
    #[arg(env = "TOWPATH_PORT", value_name = "PORT", hide_short_help = false)]
    port: PortChoice,
    /// Name of the TAP interface; the kernel replaces %d by a number [default: towpath%d]
    #[arg(env = "TOWPATH_PORT_NAME", value_name = "NAME")]
    port_name: String,
    /// Network namespace of the interface: a name as in `ip netns`, or a path [default: the service's own]
    #[arg(env = "TOWPATH_NETNS", value_name = "NAME")]
    netns: String,
    /// Addresses of the service on the link, with prefix length: 10.9.0.2/24
    #[arg(env = "TOWPATH_ADDRESS", value_delimiter = ',', value_name = "ADDRESS/PREFIX", hide_short_help = false)]
    address: Vec<Network>,
    /// Addresses of the kernel's side of a TAP, with prefix length: 10.9.0.1/24
    #[arg(env = "TOWPATH_HOST_ADDRESS", value_delimiter = ',', value_name = "ADDRESS/PREFIX", hide_short_help = false)]
    host_address: Vec<Network>,
    /// Gateways, at most one of each address family [default: none, only the link is reached]
    #[arg(env = "TOWPATH_GATEWAY", value_delimiter = ',', value_name = "ADDRESS")]
    gateway: Vec<IpAddr>,
    /// Ethernet address of the service [default: random]
    #[arg(env = "TOWPATH_MAC", value_name = "MAC")]
    mac: Mac,
    /// Bytes of the largest IP packet [default: 1500 for a TAP, else the interface's own]
    #[arg(env = "TOWPATH_MTU", value_name = "BYTES")]
    mtu: u16,
    /// Compute every checksum in software; implies --no-gso [default: false]
    #[arg(env = "TOWPATH_NO_CHECKSUM_OFFLOAD", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    no_checksum_offload: bool,
    /// Cut every segment in software instead of passing super-frames to the port [default: false]
    #[arg(env = "TOWPATH_NO_GSO", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    no_gso: bool,
    ["TCP over the port"]
    /// Congestion control of flows without a choice of their own: reno, cubic, dctcp, dctcp-rate, timely, bbr, constant:BYTES,
    /// rate:KBIT, ccp (any agent), or a name in --cc-agents [default: cubic]
    #[arg(env = "TOWPATH_CONGESTION", value_name = "NAME")]
    congestion: Congestion,
    /// Rules that choose congestion control, the first one that fits counts: `app=iperf3 uid=1000 to=10.1.0.0/16 port=443 NAME` with any of
    /// these parts; TCP_CONGESTION of a socket comes first [default: none]
    #[arg(env = "TOWPATH_CC_RULES", value_delimiter = ',', value_name = "RULE")]
    cc_rules: Vec<CongestionRule>,
    /// Connections with one of these ports go before others, as those with SO_PRIORITY 6 or IP_TOS 16 do [default: none]
    #[arg(env = "TOWPATH_EXPRESS_PORTS", value_delimiter = ',', value_name = "PORT")]
    express_ports: Vec<NonZeroU16>,
    /// Use selective acknowledgements (RFC 2018) [default: true]
    #[arg(env = "TOWPATH_SACK", value_name = "BOOL", action = clap::ArgAction::Set)]
    sack: bool,
    /// Use TCP timestamps (RFC 7323) [default: true]
    #[arg(env = "TOWPATH_TIMESTAMPS", value_name = "BOOL", action = clap::ArgAction::Set)]
    timestamps: bool,
    /// Use window scaling (RFC 7323) [default: true]
    #[arg(env = "TOWPATH_WINDOW_SCALING", value_name = "BOOL", action = clap::ArgAction::Set)]
    window_scaling: bool,
    /// Use explicit congestion notification (RFC 3168) [default: false; true with dctcp]
    #[arg(env = "TOWPATH_ECN", value_name = "BOOL", action = clap::ArgAction::Set)]
    ecn: bool,
    /// Where ECN is used, offer and accept its accurate form, too (RFC 9768); turns --ecn on where it is not given [default: false]
    #[arg(env = "TOWPATH_ACCURATE_ECN", value_name = "BOOL", action = clap::ArgAction::Set)]
    accurate_ecn: bool,
    /// First receive buffer of a connection over the port, bytes, a power of two [default: 131072]
    #[arg(env = "TOWPATH_BUFFER_INITIAL", value_name = "BYTES")]
    buffer_initial: u32,
    /// Bytes that a connection over the port may have unsent or unacknowledged at first; the bound grows with the congestion window, up to
    /// --ring-max [default: no bound but the application's memory]
    #[arg(env = "TOWPATH_SEND_BUFFER", value_name = "BYTES")]
    send_buffer: u32,
    /// Hops that a segment over the port may take, from 1 to 255: TTL or hop limit [default: 64]
    #[arg(env = "TOWPATH_HOP_LIMIT", value_name = "N")]
    hop_limit: u8,
    /// Most connections over the port at once [default: 65536]
    #[arg(env = "TOWPATH_MAX_FLOWS", value_name = "N")]
    max_flows: u32,
    ["Agents of congestion control"]
    /// Absolute path of the UNIX datagram socket that agents answer to, in a folder that only root or the service can write [default:
    /// none, no agents]
    #[arg(env = "TOWPATH_CC_SOCKET", value_name = "PATH")]
    cc_socket: PathBuf,
    /// Paths that agents bind, each perhaps with the name of what it serves: PATH or NAME=PATH; an agent without a name serves `ccp`
    /// [default: /tmp/ccp/portus]
    #[arg(env = "TOWPATH_CC_AGENTS", value_delimiter = ',', value_name = "[NAME=]PATH")]
    cc_agents: Vec<AgentPlace>,
    /// Reports, and announcements of flows, to all agents together, per second; when more are due, reports merge [default: 20000]
    #[arg(env = "TOWPATH_CC_REPORTS", value_name = "N")]
    cc_reports: u32,
    /// Run programs once for each acknowledgement, as the CCP paper has it, instead of once for each flow and batch of packets [default: false]
    #[arg(env = "TOWPATH_CC_EVERY_ACK", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    cc_every_ack: bool,
    /// Users beside root and the service's own whose processes may be agents, by number; they see only flows of their own user [default:
    /// none]
    #[arg(env = "TOWPATH_CC_ALLOW_UIDS", value_delimiter = ',', value_name = "UID")]
    cc_allow_uids: Vec<u32>,
    /// Largest window that an agent may set, bytes [default: 1073741824]
    #[arg(env = "TOWPATH_CC_WINDOW_MAX", value_name = "BYTES")]
    cc_window_max: u64,
    /// Largest rate that an agent may set, bytes per second [default: no limit]
    #[arg(env = "TOWPATH_CC_RATE_MAX", value_name = "BYTES")]
    cc_rate_max: u64,
    ["Channels to other hosts with this service"]
    /// Hosts with which channels are made, with prefix length: 10.9.0.0/24. Without a secret these hosts are trusted [default: none, no
    /// channels]
    #[arg(env = "TOWPATH_CHANNEL_PEERS", value_delimiter = ',', value_name = "ADDRESS/PREFIX")]
    channel_peers: Vec<Network>,
    /// Hosts with several addresses, each as ADDRESS+ADDRESS..: channels go over all addresses of a host, and one that dies moves its bytes to
    /// the others. The list may be the same at all hosts [default: none]
    #[arg(env = "TOWPATH_CHANNEL_ADDRESSES", value_delimiter = ',', value_name = "ADDRESS+ADDRESS")]
    channel_addresses: Vec<HostAddresses>,
    /// TCP port for channels, the same at all hosts [default: 7117]
    #[arg(env = "TOWPATH_CHANNEL_PORT", value_name = "PORT")]
    channel_port: NonZeroU16,
    /// File with the secret that both services prove to each other, 16 to 4096 bytes; only its owner may read it [default: none]
    #[arg(env = "TOWPATH_CHANNEL_SECRET", value_name = "FILE")]
    channel_secret: PathBuf,
    /// Connections that go by channel, as ADDRESS/PREFIX[:PORT[-PORT]][=latency|throughput|never]; the first that fits counts [default:
    /// none but those of programs with TOWPATH_CHANNEL]
    #[arg(env = "TOWPATH_CHANNEL_RULES", value_delimiter = ',', value_name = "RULE")]
    channel_rules: Vec<ChannelRule>,
    /// TCP connections of each session of channels, from 1 to 16, or auto: one for each address of the peer, and more as the load of the cores
    /// asks [default: auto]
    #[arg(env = "TOWPATH_CHANNEL_COUNT", value_name = "N|auto")]
    channel_count: ChannelCount,
    /// How bulk data is placed on the channels of a session [default: shortest]
    #[arg(env = "TOWPATH_CHANNEL_POLICY", value_name = "POLICY")]
    channel_policy: ChannelPolicy,
    ["Faults of the port, for tests"]
    /// For tests: share of packets lost in each direction, like 1% [default: 0%]
    #[arg(env = "TOWPATH_FAULT_LOSS", value_name = "SHARE", hide = true)]
    fault_loss: Rate,
    /// For tests: share of packets that later packets overtake, in each direction [default: 0%]
    #[arg(env = "TOWPATH_FAULT_REORDER", value_name = "SHARE", hide = true)]
    fault_reorder: Rate,
    /// For tests: share of packets that arrive twice, in each direction [default: 0%]
    #[arg(env = "TOWPATH_FAULT_DUPLICATE", value_name = "SHARE", hide = true)]
    fault_duplicate: Rate,
    /// For tests: share of packets with one byte changed, in each direction [default: 0%]
    #[arg(env = "TOWPATH_FAULT_CORRUPT", value_name = "SHARE", hide = true)]
    fault_corrupt: Rate,
    /// For tests: share of packets cut short, in each direction [default: 0%]
    #[arg(env = "TOWPATH_FAULT_TRUNCATE", value_name = "SHARE", hide = true)]
    fault_truncate: Rate,
    /// For tests: seed of the faults; the same seed gives the same faults [default: 1]
    #[arg(env = "TOWPATH_FAULT_SEED", value_name = "N", hide = true)]
    fault_seed: u64,
    ["Users"]
    /// Applications that may share memory: always, same-user (other pairs are relayed through the service) or never [default: same-user]
    #[arg(env = "TOWPATH_SHARING", value_enum, value_name = "WHO")]
    sharing: Sharing,
    /// Users that may register, by number [default: every user at a service of root, else its own user and root]
    #[arg(env = "TOWPATH_ALLOW_UIDS", value_delimiter = ',', value_name = "UID")]
    allow_uids: Vec<u32>,
    /// Groups with members (by primary group) that may register, by number [default: see --allow-uids]
    #[arg(env = "TOWPATH_ALLOW_GIDS", value_delimiter = ',', value_name = "GID")]
    allow_gids: Vec<u32>,
    /// Policy file: what each user may do
    ///
    /// Where each user may listen and connect, and how much it may use. `towpath reload` and SIGHUP read it again [default: /etc/towpath/policy.toml, if that file exists and the service is root's and public]
    #[arg(env = "TOWPATH_POLICY", value_name = "FILE", hide_short_help = false)]
    policy: PathBuf,
    ["Limits"]
    /// Most applications at once [default: 1024]
    #[arg(env = "TOWPATH_MAX_APPLICATIONS", value_name = "N")]
    max_applications: u32,
    /// Most accelerated sockets of one application [default: 65536]
    #[arg(env = "TOWPATH_MAX_SOCKETS", value_name = "N")]
    max_sockets: u32,
    /// Most shared memory of one application, MiB that are really in use [default: 2048]
    #[arg(env = "TOWPATH_MAX_MEMORY_MIB", value_name = "MIB")]
    max_memory_mib: u64,
    /// Connections that one region can hold, a power of two from 64 to 65536 [default: 65536]
    #[arg(env = "TOWPATH_REGION_SLOTS", value_name = "N")]
    region_slots: u32,
    /// Payload space of each side of a region, MiB; memory is used only as needed [default: 256]
    #[arg(env = "TOWPATH_REGION_MIB", value_name = "MIB")]
    region_mib: u64,
    /// Largest buffer of one connection and direction, bytes: a power of two from 4096 to 268435456 [default: 4194304 to send, 33554432 to
    /// receive]
    #[arg(env = "TOWPATH_RING_MAX", value_name = "BYTES")]
    ring_max: u32,
    ["Work and log"]
    /// Poll at most this long before sleeping, microseconds; 0: never poll [default: 20]
    #[arg(env = "TOWPATH_SPIN_US", value_name = "US")]
    spin_us: u64,
    /// Threads that move bytes, from 1 to 14 [default: auto]
    ///
    /// auto: as many as the load needs, at most one for each processor that the service may use; auto:MOST: at most so many.
    #[arg(env = "TOWPATH_CORES", value_name = "N|auto[:MOST]", hide_short_help = false)]
    cores: CoresChoice,
    /// User that root's service becomes: USER[:GROUP]
    ///
    /// Once its port is open. By name or number; the group if it is not that user's own [default: it stays root, without root's capabilities]
    #[arg(env = "TOWPATH_USER", value_name = "USER", hide_short_help = false)]
    user: String,
    /// Refuse system calls that the service never makes [default: true]
    #[arg(env = "TOWPATH_SYSCALL_FILTER", value_name = "BOOL", action = clap::ArgAction::Set)]
    syscall_filter: bool,
    /// off, error, warn, info, debug or trace [default: info]
    ///
    /// The level of the log; or levels of modules, like service=debug or info,service::daemon=trace.
    #[arg(env = "TOWPATH_LOG_LEVEL", value_name = "LEVEL", hide_short_help = false)]
    log: LogFilter,
}

/// The configuration in use: every key has a value.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the control socket.
    pub control: PathBuf,
    /// The service ends when the last application has ended.
    pub private: bool,
    /// Kind of the port.
    pub port: PortKind,
    /// Options of the port's link; without a port they have no effect.
    pub link: Link,
    /// Channels to other hosts; `None`: there are none.
    pub channels: Option<channels::Settings>,
    /// What chooses congestion control at start.
    pub choices: Choices,
    /// Agents of congestion control; `None`: there are none.
    pub agents: Option<AgentSettings>,
    /// Which applications may share pair regions.
    pub sharing: Sharing,
    /// Users that may register. Empty together with `allow_gids`: the default rule, see `door`.
    pub allow_uids: Vec<u32>,
    /// Primary groups that may register.
    pub allow_gids: Vec<u32>,
    /// The policy in force at start.
    pub policy: Policy,
    /// Where the policy's rules are read from.
    pub policy_source: Source,
    /// Most applications at once.
    pub max_applications: u32,
    /// Most accelerated sockets of one application.
    pub max_sockets: u32,
    /// Most bytes of shared memory of one application.
    pub max_memory: u64,
    /// Slots of a region, a power of two.
    pub region_slots: u32,
    /// Payload bytes of each side of a region.
    pub region_data: u64,
    /// Largest ring that an application sends from, bytes.
    pub ring_max: u32,
    /// Largest receive window of a connection over the port, and its ring, bytes.
    pub receive_max: u32,
    /// Longest time to poll before sleeping, nanoseconds.
    pub spin_ns: u64,
    /// Threads that move bytes.
    pub cores: Cores,
    /// The user that the service becomes once its port is open.
    pub user: Option<User>,
    /// The service was started by root: every user may register, unless it is private.
    pub is_of_root: bool,
    /// Whether system calls that the service never makes are refused.
    pub syscall_filter: bool,
    /// Which lines are logged.
    pub log: LogFilter,
    /// Keys that some source sets, as lines of TOML, for the banner.
    pub differs: Vec<String>,
}

impl Options {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or has an unknown key.
    pub fn from_file(path: &Path) -> Result<Self, ServiceError> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| ServiceError::ConfigRead { path: path.to_owned(), error: e })?;
        file::parse(&text).map_err(|error| ServiceError::ConfigText { path: path.to_owned(), error })
    }

    /// The keys that are set, as lines of a file.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        toml::to_string(self).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Refuses keys that mean nothing here.
    ///
    /// # Errors
    /// One of them is set; `must` says what it must go with.
    fn refuse_set(&self, keys: &[&str], must: &'static str) -> Result<(), ServiceError> {
        match self.set().into_iter().find(|key| keys.contains(key)) {
            Some(key) => Err(ServiceError::Value { key, must }),
            None => Ok(()),
        }
    }

    /// Fills in the defaults and checks every value.
    ///
    /// # Errors
    /// A value is out of its range; the error's text names the range.
    pub fn resolve(self) -> Result<Config, ServiceError> {
        let differs = self.lines();
        self.check_port()?;
        let link = self.link();
        let agents = self.agents()?;
        let user = self.user.as_deref().map(user).transpose()?;
        let is_shared = self.sharing == Some(Sharing::Always);
        let channels = channels::settings(&self, is_shared)?;
        let private = self.private.unwrap_or(false);
        let policy_source = source(self.policy, private);
        let (allow_uids, allow_gids) =
            (self.allow_uids.unwrap_or_default(), self.allow_gids.unwrap_or_default());
        // Without a port there are no flows that a second core could serve.
        let has_port = self.port.as_ref().is_some_and(|port| port.kind != PortKind::None);
        let processors = || if has_port { Machine::open().allowed() } else { 1 };
        let max_applications = self.max_applications.unwrap_or(1024);
        let limits =
            Limits { applications: max_applications, unfinished_hellos: UNFINISHED_HELLOS, ..Limits::NONE };
        let rules = policy_source.read(true).map_err(ServiceError::Policy)?;
        let door = door(&allow_uids, &allow_gids, private);
        let config = Config {
            policy: Policy::new(door, rules, sys::own_namespace(), limits),
            policy_source,
            choices: agents::choices(
                &link,
                agents.as_ref(),
                self.cc_rules.unwrap_or_default(),
                user.as_ref(),
            )?,
            link,
            channels,
            agents,
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
            cores: self.cores.unwrap_or(CoresChoice::Auto(None)).resolve(processors),
            user,
            is_of_root: rustix::process::geteuid().is_root(),
            syscall_filter: self.syscall_filter.unwrap_or(true),
            log: self.log.unwrap_or_default(),
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

/// Longest time to poll before sleeping, microseconds, with any number of processors: a polling thread yields its processor. Best, or equal
/// to the best, in every placement measured.
const SPIN_US: u64 = 20;

/// Most control lines of one user at once on which no hello has arrived.
const UNFINISHED_HELLOS: u32 = 64;

/// Where the policy's rules are read from.
fn source(file: Option<PathBuf>, private: bool) -> Source {
    match file {
        Some(file) => Source::File(file),
        None if rustix::process::geteuid().is_root() && !private => Source::Perhaps(policy::DEFAULT.into()),
        None => Source::Nowhere,
    }
}

/// The users that may register. Default: every user at a public service of root, else the service's own user and root.
fn door(users: &[u32], groups: &[u32], private: bool) -> Door {
    let own = rustix::process::geteuid();
    match (users, groups) {
        ([], []) if own.is_root() && !private => Door::Open,
        ([], []) => Door::Only { users: vec![own.as_raw(), 0], groups: Vec::new() },
        (users, groups) => Door::Only { users: users.to_vec(), groups: groups.to_vec() },
    }
}

impl Config {
    /// A sentence about a value that has no effect here, although it is no mistake.
    #[must_use]
    pub fn without_effect(&self) -> Option<String> {
        let most = self.cores.most;
        (self.port == PortKind::None && most > 1).then(|| {
            format!(
                "--cores {most} changes nothing without a port: one core relays, and within this host programs move all other bytes themselves"
            )
        })
    }

    /// True when every user may register unless `allow_uids` or `allow_gids` says otherwise. It tells the state at start: the service may
    /// have become another user since.
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
        if !(1..=values::CORES_MAX).contains(&self.cores.most) {
            return wrong("cores", "be from 1 to 14, auto, or auto:MOST");
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
        if !(1..=1 << 15).contains(&self.max_applications) {
            return wrong("max_applications", "be from 1 to 32768");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
