//! What the administrator allows the processes of each user: where to listen, where to connect, how much to use and how
//! fast to send. This file only decides: it opens no file, asks the kernel nothing and reads no clock.
//!
//! ```text
//!   door   --allow-uids, --allow-gids: any other user may not register
//!   rules  the rules of the policy file, in order; the first one that fits a process decides everything
//!   else   in the service's own network namespace all that Linux allows, in any other nothing
//! ```

pub(crate) mod buckets;
pub(crate) mod permission;
pub(crate) mod rates;

mod names;
mod parse;
#[cfg(test)]
mod tests;

pub use names::{DEFAULT, Source, SystemNames};
pub use parse::{Mistake, Names, parse, ports};

use control::Prefix;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::ops::RangeInclusive;

/// A process, as the rules see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subject {
    /// The user that it runs as.
    pub uid: u32,
    /// That user's primary group.
    pub gid: u32,
    /// Path of its control group below the mount point, like `/system.slice/nginx.service`; `None`: unknown, and no rule with a `cgroup`
    /// fits.
    pub cgroup: Option<String>,
    /// Number of its network namespace (`SO_NETNS_COOKIE`), as in [`Policy::new`].
    pub namespace: u64,
}

/// The network namespaces that a rule applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Namespace {
    /// The network namespace of the service itself.
    #[default]
    Own,
    /// Every network namespace.
    Any,
    /// The network namespace with this number (`SO_NETNS_COOKIE`).
    Number(u64),
}

/// A range of addresses and a range of ports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Address and prefix length; `None`: all addresses of both families.
    pub network: Option<(IpAddr, u8)>,
    /// Ports, both ends included.
    pub ports: RangeInclusive<u16>,
}

/// Limits for all processes of one user together. The type's largest number means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most registered processes at once.
    pub applications: u32,
    /// Most accelerated connections and listeners.
    pub flows: u32,
    /// Most bytes of shared memory in use.
    pub memory: u64,
    /// Most connections begun per second.
    pub new_connections_per_second: u32,
    /// Most control lines on which no hello has arrived.
    pub unfinished_hellos: u32,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self {
        applications: u32::MAX,
        flows: u32::MAX,
        memory: u64::MAX,
        new_connections_per_second: u32::MAX,
        unfinished_hellos: u32::MAX,
    };
}

/// What bounds the payload that a process sends to other hosts. Rates are in bytes per second; `None`: no bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sending {
    /// Number of the rule, from 1; 0: none fits the process.
    pub rule: usize,
    /// The rate of the process by itself.
    pub per_process: Option<NonZeroU64>,
    /// The rate of all processes of its user that the rule fits, together.
    pub per_user: Option<NonZeroU64>,
    /// The rate of all processes that the rule fits, together.
    pub of_all: Option<NonZeroU64>,
    /// Where processes wait for each other: how many parts it sends where others send one.
    pub share: u16,
}

impl Sending {
    /// No bound, and one part.
    pub const UNBOUNDED: Self = Self { rule: 0, per_process: None, per_user: None, of_all: None, share: 1 };
}

/// One `[[rule]]` of the file. A limit that it does not set is the service's; without `listen` or `connect` all that Linux allows is
/// allowed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rule {
    /// Users that it applies to; `None`: all.
    pub users: Option<Vec<u32>>,
    /// Primary groups that it applies to; `None`: all.
    pub groups: Option<Vec<u32>>,
    /// Control group that it applies to, with all below; `None`: all.
    pub cgroup: Option<String>,
    /// Network namespaces that it applies to.
    pub namespace: Namespace,
    /// Where its processes may listen; `None`: everywhere.
    pub listen: Option<Vec<Place>>,
    /// Where its processes may connect to; `None`: everywhere.
    pub connect: Option<Vec<Place>>,
    /// The key `applications`: see [`Limits::applications`].
    pub applications: Option<u32>,
    /// The key `flows`: see [`Limits::flows`].
    pub flows: Option<u32>,
    /// The key `memory`, in bytes: see [`Limits::memory`].
    pub memory: Option<u64>,
    /// The key `connections_per_second`: see [`Limits::new_connections_per_second`].
    pub connections_per_second: Option<u32>,
    /// The key `rate_per_process`: see [`Sending::per_process`].
    pub rate_per_process: Option<NonZeroU64>,
    /// The key `rate`: see [`Sending::per_user`].
    pub rate: Option<NonZeroU64>,
    /// The key `rate_of_all`: see [`Sending::of_all`].
    pub rate_of_all: Option<NonZeroU64>,
    /// The key `share`: see [`Sending::share`].
    pub share: Option<u16>,
}

/// The users that may register at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Door {
    /// Every user may register.
    Open,
    /// These users, and users with one of these primary groups.
    Only {
        /// Numbers of the users that may register.
        users: Vec<u32>,
        /// Numbers of the primary groups that may register.
        groups: Vec<u32>,
    },
}

/// The act that a refusal concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Listen at an address.
    Listen,
    /// Connect to an address.
    Connect,
}

/// A refusal. It prints as a line of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Number of the rule that refuses, from 1; `None`: no rule fits the process, and its network namespace is not the service's.
    pub rule: Option<usize>,
    uid: u32,
    act: Act,
    address: SocketAddr,
}

/// All rules, and the defaults where no rule fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    door: Door,
    rules: Vec<Rule>,
    own: u64,
    limits: Limits,
}

impl Place {
    /// True when the address and its port are in this place.
    pub fn contains(&self, address: SocketAddr) -> bool {
        let covers = |(address, length), ip| Prefix { address, length }.covers(ip);
        self.network.is_none_or(|network| covers(network, address.ip()))
            && self.ports.contains(&address.port())
    }
}

impl Rule {
    fn fits(&self, subject: &Subject, own: u64) -> bool {
        let is_in = |list: &Option<Vec<u32>>, id| list.as_ref().is_none_or(|list| list.contains(&id));
        let is_there = match self.namespace {
            Namespace::Own => subject.namespace == own,
            Namespace::Any => true,
            Namespace::Number(number) => subject.namespace == number,
        };
        let is_below = |above: &String| {
            let rest =
                subject.cgroup.as_deref().and_then(|path| path.strip_prefix(above.trim_end_matches('/')));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        is_there
            && is_in(&self.users, subject.uid)
            && is_in(&self.groups, subject.gid)
            && self.cgroup.as_ref().is_none_or(is_below)
    }
}

impl Policy {
    /// `own` is the number of the service's own network namespace; `limits` apply where no rule sets others.
    #[must_use]
    pub fn new(door: Door, rules: Vec<Rule>, own: u64, limits: Limits) -> Self {
        Self { door, rules, own, limits }
    }

    /// The same door and limits with other rules.
    #[must_use]
    pub fn with_rules(&self, rules: Vec<Rule>) -> Self {
        Self { rules, ..self.clone() }
    }

    /// Number of rules in force.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True when there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// True when a rule names a control group.
    #[must_use]
    pub fn asks_for_cgroups(&self) -> bool {
        self.rules.iter().any(|rule| rule.cgroup.is_some())
    }

    /// The first rule that fits the process, and its number, from 1.
    fn rule(&self, subject: &Subject) -> Option<(usize, &Rule)> {
        let mut numbered = self.rules.iter().enumerate();
        numbered.find(|(_, rule)| rule.fits(subject, self.own)).map(|(index, rule)| (index + 1, rule))
    }

    /// True when the process may register and ask for reports. The caller checks how many of the user's processes are registered.
    #[must_use]
    pub fn admits(&self, subject: &Subject) -> bool {
        let is_let_in = match &self.door {
            Door::Open => true,
            Door::Only { users, groups } => users.contains(&subject.uid) || groups.contains(&subject.gid),
        };
        is_let_in && self.limits(subject).applications > 0
    }

    fn may(&self, subject: &Subject, act: Act, address: SocketAddr) -> Result<(), Refusal> {
        let refusal = |rule| Err(Refusal { rule, uid: subject.uid, act, address });
        let Some((number, rule)) = self.rule(subject) else {
            return if subject.namespace == self.own { Ok(()) } else { refusal(None) };
        };
        let places = match act {
            Act::Listen => &rule.listen,
            Act::Connect => &rule.connect,
        };
        let canonical = SocketAddr::new(address.ip().to_canonical(), address.port());
        match places {
            Some(places) if !places.iter().any(|place| place.contains(canonical)) => refusal(Some(number)),
            _ => Ok(()),
        }
    }

    /// Whether the process may listen there. The IPv6 wildcard without `IPV6_V6ONLY` must be allowed for both families.
    ///
    /// # Errors
    /// The refusal, with the number of the rule.
    pub fn may_listen(&self, subject: &Subject, address: SocketAddr, v6_only: bool) -> Result<(), Refusal> {
        self.may(subject, Act::Listen, address)?;
        if address.is_ipv6() && address.ip().is_unspecified() && !v6_only {
            let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            self.may(subject, Act::Listen, v4)?;
        }
        Ok(())
    }

    /// Whether the process may connect to that address.
    ///
    /// # Errors
    /// The refusal, with the number of the rule.
    pub fn may_connect(&self, subject: &Subject, address: SocketAddr) -> Result<(), Refusal> {
        self.may(subject, Act::Connect, address)
    }

    /// The limits of the process's user, over all of the user's processes.
    #[must_use]
    pub fn limits(&self, subject: &Subject) -> Limits {
        let all = self.limits;
        let Some((_, rule)) = self.rule(subject) else { return all };
        Limits {
            applications: rule.applications.unwrap_or(all.applications),
            flows: rule.flows.unwrap_or(all.flows),
            memory: rule.memory.unwrap_or(all.memory),
            new_connections_per_second: rule.connections_per_second.unwrap_or(all.new_connections_per_second),
            unfinished_hellos: all.unfinished_hellos,
        }
    }

    /// What bounds the process's sending.
    #[must_use]
    pub fn sending(&self, subject: &Subject) -> Sending {
        self.rule(subject).map_or(Sending::UNBOUNDED, |(number, rule)| Sending {
            rule: number,
            per_process: rule.rate_per_process,
            per_user: rule.rate,
            of_all: rule.rate_of_all,
            share: rule.share.unwrap_or(1),
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, uid, act, address } = self;
        let act = match act {
            Act::Listen => "listen at",
            Act::Connect => "connect to",
        };
        match rule {
            Some(rule) => write!(f, "the policy's rule {rule} does not let user {uid} {act} {address}"),
            None => write!(
                f,
                "its network namespace is not the service's: no rule of the policy lets it {act} {address}"
            ),
        }
    }
}
