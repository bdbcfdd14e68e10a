//! What an endpoint is configured with, and its own limits.

use base::Duration;

/// A flow falls back when its report has found no room at its agent for so long, or for three round trips if those are longer.
pub const GRACE_MIN: Duration = Duration::from_ms(10);
/// Round trips of a flow after which it falls back.
pub const GRACE_ROUND_TRIPS: u64 = 3;
/// A full agent is tried again after so long while flows wait for it.
pub const RETRY: Duration = Duration::from_ms(1);
/// After a datagram with several reports the next ones gather for so long, once for each report but the first, and at most for so long: where
/// thousands come in a second, the system calls for each datagram cost more than the reports. The report of a lone flow never waits.
pub const GATHER: (Duration, Duration) = (Duration::from_us(200), Duration::from_us(500));
/// A full agent without flows, and an agent that is not there, are tried again after so long.
pub const KNOCK: Duration = Duration::from_ms(100);
/// An agent that got a READY and said nothing gets another one after so long.
pub const KNOCK_AGAIN: Duration = Duration::from_secs(1);
/// Programs of one agent at most. One more takes the place of the program that was chosen for a flow the longest time ago.
pub const PROGRAMS_MAX: usize = 128;
/// Notices that wait for [`Endpoint::poll_notice`](crate::Endpoint::poll_notice) at most; more are only counted.
pub const NOTICES_MAX: usize = 64;

/// Configuration of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The number of this datapath, which READY says.
    pub datapath: u32,
    /// The user of this service. Its processes and root's may be agents.
    pub own_uid: u32,
    /// Other users with processes that may be agents.
    pub allowed_uids: Vec<u32>,
    /// CREATEs and reports per second to all agents together; at least 1.
    pub messages_per_second: u32,
    /// The largest window that an agent may set, bytes.
    pub cwnd_max: u64,
    /// The largest rate that an agent may set, bytes per second.
    pub rate_max: u64,
    /// Flows at most. More stay on the default algorithm.
    pub flows_max: usize,
}

impl Config {
    /// True if processes of this user may be agents.
    pub(crate) fn is_allowed(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid || self.allowed_uids.contains(&uid)
    }
}
