//! Agents of congestion control: one UNIX datagram socket, and the endpoint (crate `ccp`) that says which datagrams go to which agent. Flows are in `flows`.
//!
//! ```text
//!   agents' sockets <--datagrams--> socket --> Endpoint <-- flow events, reports (slowpath::programs)
//!   agents' processes --pidfds----> processes ----^  '----> programs, changes, the default (slowpath::programs)
//! ```
//! It never waits: not for an agent that does not read, nor for what a descriptor leads to that comes with a datagram.

pub(crate) mod flows;
mod processes;
pub(crate) mod report;
mod socket;
mod transcript;

use crate::ServiceError;
use crate::config::{AgentSettings, Config};
use crate::registry::agents::processes::Processes;
use crate::registry::agents::socket::AgentSocket;
use crate::registry::agents::transcript::{Part, Transcript, Way};
use base::Instant;
use ccp::{Endpoint, FlowId, Sent};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Reports of a flow that are kept, to be shown.
const REPORTS_KEPT: usize = 4;

/// What is kept of a flow that an agent may have.
#[derive(Debug, Default)]
struct Kept {
    /// The last reports, the newest first: when, and the values.
    reports: VecDeque<(Instant, Vec<u64>)>,
    /// Decisions that were moved to a bound, of this program.
    clamps: u64,
    /// The flow could not have a program: as many flows as possible have one.
    is_refused: bool,
}

/// The service's end towards agents.
#[derive(Debug)]
pub struct Agents {
    endpoint: Endpoint,
    socket: AgentSocket,
    /// The socket, and a pidfd for each agent with a process.
    set: OwnedFd,
    processes: Processes,
    /// The names that each agent serves, by its address.
    names: BTreeMap<Vec<u8>, Vec<String>>,
    flows: HashMap<FlowId, Kept>,
    /// Flows that did not get the program that an agent has chosen.
    programs_refused: u64,
    /// Flows that an agent could not have, because there are too many.
    flows_refused: u64,
    /// The last refusal of a program of each agent that is there, by its address.
    refusals: BTreeMap<Vec<u8>, String>,
    transcript: Transcript,
}

impl Agents {
    /// Opens the socket. Agents are looked for from then on.
    pub fn open(settings: &AgentSettings, config: &Config, now: Instant) -> Result<Self, ServiceError> {
        let own = config.user.as_ref().map_or_else(rustix::process::geteuid, |user| user.uid);
        let mut socket = match &config.user {
            Some(user) => user
                .act(|| AgentSocket::open(settings, own))
                .map_err(|error| ServiceError::Os { doing: "act as the user that --user names", error })?,
            None => AgentSocket::open(settings, own),
        }?;
        let os = |error: Errno| ServiceError::Os { doing: "watch agents of congestion control", error };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os)?;
        socket.join(set.as_fd()).map_err(os)?;
        let mut endpoint = Endpoint::new(ccp::Config {
            datapath: std::process::id(),
            own_uid: own.as_raw(),
            allowed_uids: settings.allow_uids.clone(),
            messages_per_second: settings.reports,
            cwnd_max: settings.window_max,
            rate_max: settings.rate_max,
            flows_max: config.link.flows as usize,
        });
        let names = names_by_address(settings);
        for (address, names) in &names {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            endpoint.add_agent(now, address, &names);
        }
        Ok(Self {
            endpoint,
            socket,
            set,
            processes: Processes::default(),
            names,
            flows: HashMap::new(),
            programs_refused: 0,
            flows_refused: 0,
            refusals: BTreeMap::new(),
            transcript: Transcript::default(),
        })
    }

    /// Readable when an agent has said something, or has died.
    pub fn set(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// When there is something to do, if nothing else happens.
    pub fn due(&self) -> Instant {
        self.endpoint.next_deadline()
    }

    /// Takes what agents have sent, as much as one turn is for, and hears of the ends of their processes.
    pub fn hear(&mut self, now: Instant) {
        // What an agent had sent before its end is read first: it would bring the agent back.
        let ended = self.processes.ended(&self.set);
        let Self { endpoint, transcript, names, socket, set, .. } = self;
        socket.receive(set.as_fd(), &mut |sender, datagram| {
            if names.contains_key(sender.address) {
                transcript.note(now, Way::FromAgent, sender.address, datagram);
            }
            endpoint.receive(now, sender, datagram);
        });
        for (address, pid) in ended {
            // Another process may be at that address by now.
            if endpoint.process_of(&address) == Some(pid) {
                endpoint.agent_died(now, &address);
            }
        }
    }

    /// Sends what may go now.
    fn drive(&mut self, now: Instant) {
        let Self { socket, transcript, .. } = self;
        self.endpoint.drive(now, &mut |address, datagram| {
            let sent = socket.send(address, datagram);
            if sent == Sent::Taken {
                transcript.note(now, Way::ToAgent, address, datagram);
            }
            sent
        });
        for address in self.names.keys() {
            let process = self.endpoint.process_of(address);
            if !self.processes.watch(&self.set, address, process) {
                self.endpoint.agent_died(now, address);
            }
        }
    }

    /// What was said since the last question: see [`Transcript::take`]. A recording that begins has first what agents have installed before, as if
    /// they said it now: flows that begin later may run it.
    pub fn take_transcript(&mut self, now: Instant, from: Option<u64>) -> Part {
        let part = self.transcript.take(now, from);
        if from.is_none() {
            for (address, install) in self.endpoint.installs() {
                self.transcript.note(now, Way::FromAgent, address, install);
            }
        }
        part
    }

    /// Writes notices to the log. An agent can cause as many of some kinds as it likes: they are counted, and the first refusal of a program
    /// is told at once, as the agent's flows wait for a program.
    fn log_notices(&mut self) {
        while let Some(notice) = self.endpoint.poll_notice() {
            match &notice {
                ccp::Notice::Clamped { .. } | ccp::Notice::Misunderstood { .. } => {
                    tracing::debug!("{notice}");
                }
                ccp::Notice::ProgramRefused { agent, .. } => {
                    match self.refusals.insert(agent.clone(), notice.to_string()) {
                        None => tracing::info!("{notice}"),
                        Some(_) => tracing::debug!("{notice}"),
                    }
                }
                ccp::Notice::AgentCame { agent, .. } => {
                    self.refusals.remove(agent);
                    tracing::info!("{notice}");
                }
                ccp::Notice::AgentLost { .. } => tracing::info!("{notice}"),
            }
        }
    }
}

/// The names that each agent serves. An agent without a name serves flows without one.
fn names_by_address(settings: &AgentSettings) -> BTreeMap<Vec<u8>, Vec<String>> {
    let mut all: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    for place in &settings.places {
        let address = place.path.as_os_str().as_encoded_bytes().to_vec();
        let name = place.name.filter(|name| name.as_str() != crate::config::values::AgentPlace::ANY);
        all.entry(address).or_default().push(name.map_or_else(String::new, String::from));
    }
    all
}
