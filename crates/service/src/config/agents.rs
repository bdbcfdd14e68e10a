//! What is configured of agents of congestion control: every key has a value. Opens nothing.

use crate::ServiceError;
use crate::config::values::AgentPlace;
use crate::config::{Link, Options};
use crate::privilege::user::User;
use crate::registry::choice::Choices;
use control::CongestionRule;
use std::path::PathBuf;

/// Where an agent of Portus listens unless it is told otherwise.
const PORTUS: &str = "/tmp/ccp/portus";
/// Reports per second to all agents: an agent spends 1 to 2 microseconds on each, so this is a few percent of a processor.
const REPORTS_PER_SECOND: u32 = 20_000;

/// The service's end towards agents of congestion control.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentSettings {
    /// Absolute path of the service's socket, which agents answer to.
    pub socket: PathBuf,
    /// The agents. Several may have one path, and serve several names then.
    pub places: Vec<AgentPlace>,
    /// CREATEs and reports per second to all agents together.
    pub reports: u32,
    /// Programs run once for each acknowledgement, not for each batch.
    pub every_ack: bool,
    /// Users beside root and the service's own whose processes may be agents.
    pub allow_uids: Vec<u32>,
    /// The largest window that an agent may set, bytes.
    pub window_max: u64,
    /// The largest rate that an agent may set, bytes per second.
    pub rate_max: u64,
}

impl Options {
    pub(super) fn agents(&self) -> Result<Option<AgentSettings>, ServiceError> {
        const OF_AGENTS: [&str; 6] =
            ["cc_agents", "cc_reports", "cc_every_ack", "cc_allow_uids", "cc_window_max", "cc_rate_max"];
        let wrong = |key, must| Err(ServiceError::Value { key, must });
        let Some(socket) = self.cc_socket.clone() else {
            self.refuse_set(&OF_AGENTS, "be used with --cc-socket, which agents answer to")?;
            return Ok(None);
        };
        if !socket.is_absolute() || socket.as_os_str().len() > AgentPlace::PATH_MAX {
            return wrong(
                "cc_socket",
                "be an absolute path of at most 107 bytes: agents send to it from their own folders",
            );
        }
        let places =
            self.cc_agents.clone().unwrap_or_else(|| vec![AgentPlace { name: None, path: PORTUS.into() }]);
        if places.iter().any(|place| place.path == socket) {
            return wrong("cc_agents", "name other paths than --cc-socket, which is the service's own");
        }
        if self.cc_reports == Some(0) {
            return wrong("cc_reports", "be at least 1");
        }
        if self.cc_window_max == Some(0) || self.cc_rate_max == Some(0) {
            let key = if self.cc_rate_max == Some(0) { "cc_rate_max" } else { "cc_window_max" };
            return wrong(key, "be at least 1; a flow may always have one segment");
        }
        Ok(Some(AgentSettings {
            socket,
            places,
            reports: self.cc_reports.unwrap_or(REPORTS_PER_SECOND),
            every_ack: self.cc_every_ack.unwrap_or(false),
            allow_uids: self.cc_allow_uids.clone().unwrap_or_default(),
            window_max: self.cc_window_max.unwrap_or(u64::from(congestion::CWND_MAX)),
            rate_max: self.cc_rate_max.unwrap_or(u64::MAX),
        }))
    }
}

/// What chooses congestion control; `user` is the one that the service becomes.
pub(super) fn choices(
    link: &Link,
    agents: Option<&AgentSettings>,
    rules: Vec<CongestionRule>,
    user: Option<&User>,
) -> Result<Choices, ServiceError> {
    let places = agents.map_or(&[][..], |agents| &agents.places);
    let own_uid = user.map_or_else(rustix::process::geteuid, |user| user.uid).as_raw();
    Choices::new(link.congestion, places, rules, own_uid).map_err(ServiceError::Congestion)
}
