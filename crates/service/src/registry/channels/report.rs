//! The data of `towpath channels`, `towpath ss` and `towpath stat` about channels. Changes nothing.

use super::control::Counted;
use super::peers::Standing;
use super::snapshot::{ChannelSeen, SessionSeen, Snapshot, SocketSeen};
use crate::cores::answers;
use crate::registry::Registry;
use crate::registry::memory::connection::Stage;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::process::number::Number;
use crate::registry::report::explain::of_shared;
use crate::registry::report::job::{Making, Refused};
use crate::registry::report::slots_left::SlotsLeft;
use crate::registry::report::socket_list::channel_flow;
use crate::registry::report::{Socket, Viewer, state};
use channel::lane::Class;
use serde::Serialize;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Receiver;

/// The whole answer to `towpath channels`.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// False: `--channel-peers` names no host, and the rest is empty.
    is_on: bool,
    /// The TCP port of the channel service.
    port: u16,
    /// The rules for connections of this host's programs.
    rules: Vec<String>,
    counted: Totals,
    peers: Vec<Peer>,
    sessions: Vec<Session>,
    sockets: Vec<Virtual>,
}

/// Counts since the service started.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// Sockets that programs of this host have opened over channels.
    pub opened: u64,
    /// Sockets that peers have opened over channels.
    pub accepted: u64,
    /// Sockets that became plain TCP connections after all.
    pub unserved: u64,
    /// Sessions that have ended.
    pub sessions_over: u64,
    /// Sessions that there are now.
    pub sessions: usize,
    /// Channels that there are now.
    pub channels: usize,
    /// Virtual sockets that there are now.
    pub sockets: usize,
    /// Channels refused or given up in their handshake.
    pub greetings_refused: u64,
    /// Sessions ended because the peer broke the rules.
    pub violations: u64,
    /// Writes outside a socket's credit that were left out: an error of this service.
    pub beyond_credit: u64,
}

#[derive(Debug, Serialize)]
struct Peer {
    peer: String,
    /// `asked`, `speaks` or `silent`.
    standing: &'static str,
    /// Why it is silent.
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct Channel {
    number: u32,
    /// Address and port of this host; `None`: the connection has just ended.
    local: Option<String>,
    /// Address and port of the peer; without the port when the connection has just ended.
    remote: String,
    /// The core with the connection.
    core: Option<usize>,
    /// Sockets that sent their latest bytes over this channel.
    sockets: usize,
    unsent: usize,
    unconfirmed: u64,
    /// Segments that the connection has sent again; `None`: there is no connection, or its core uses the record now.
    retransmits: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Session {
    session: String,
    peer: String,
    class: &'static str,
    opener: bool,
    uid: Option<u32>,
    policy: &'static str,
    /// Why that policy places the bytes.
    policy_why: &'static str,
    sockets: usize,
    channels: Vec<Channel>,
    /// The number of channels that the session should have; `None`: the peer has opened it, and decides.
    channels_wanted: Option<usize>,
    /// Why the session should have that number of channels.
    channels_why: Option<&'static str>,
    bytes_again: u64,
    bytes_twice: u64,
    channels_lost: u64,
}

/// One virtual socket of a program of this host.
#[derive(Debug, Serialize)]
struct Virtual {
    session: String,
    socket: u32,
    local: String,
    remote: String,
    #[serde(flatten)]
    number: Number,
    process: String,
    /// Bytes that the peer may still send.
    credit: u64,
    /// Bytes written that the peer's socket does not have.
    queue: u64,
    /// What says that the socket goes by channel; `None`: the peer has opened it.
    why: Option<String>,
}

fn id(session: u128) -> String {
    format!("{session:032x}")
}

/// What the control thread knows of sockets over channels, by region and slot, and of the channels' connections, by slot.
#[derive(Debug, Default)]
struct Known {
    sockets: HashMap<(u32, u32), Virtual>,
    ends: HashMap<u32, [SocketAddr; 2]>,
    /// Why chunks are placed as they are, for sockets that need latency and throughput.
    policy_why: [&'static str; 2],
}

impl Known {
    fn channel(&self, seen: &ChannelSeen) -> Channel {
        let &ChannelSeen { number, address, slot, core, sockets, unsent, unconfirmed, retransmits } = seen;
        let ends = slot.and_then(|slot| self.ends.get(&slot));
        let [local, remote] = [0, 1].map(|end| ends.map(|ends| ends[end].to_string()));
        Channel {
            number,
            local,
            remote: remote.unwrap_or_else(|| address.to_string()),
            core,
            sockets,
            unsent,
            unconfirmed,
            retransmits,
        }
    }

    fn session(&self, seen: &SessionSeen) -> Session {
        let [latency, throughput] = self.policy_why;
        let (class, policy_why) = match seen.class {
            Class::Latency => ("latency", latency),
            Class::Throughput => ("throughput", throughput),
        };
        Session {
            session: id(seen.id),
            peer: seen.peer.to_string(),
            class,
            opener: seen.is_opener,
            uid: seen.user,
            policy: seen.policy,
            policy_why,
            sockets: seen.sockets,
            channels: seen.channels.iter().map(|seen| self.channel(seen)).collect(),
            channels_wanted: seen.wanted.map(|(number, _)| number),
            channels_why: seen.wanted.map(|(_, why)| why),
            bytes_again: seen.counters.bytes_again,
            bytes_twice: seen.counters.bytes_twice,
            channels_lost: seen.counters.channels_lost,
        }
    }

    fn socket(&mut self, seen: &SocketSeen) -> Option<Virtual> {
        let known = self.sockets.remove(&(seen.region, seen.slot))?;
        let (session, socket) = (id(seen.session), seen.socket);
        Some(Virtual { session, socket, credit: seen.credit, queue: seen.queue, ..known })
    }
}

/// The counts of `towpath stat`: the engine is asked for its own, and answers while the report is made.
#[derive(Debug)]
pub struct Counts {
    counted: Counted,
    seen: Receiver<Snapshot>,
}

impl Counts {
    /// Asks the engine; `None`: there are no channels.
    pub fn ask(registry: &Registry) -> Option<Self> {
        let counted = registry.channels.as_ref()?.counted;
        registry.ask_for_channels().map(|seen| Self { counted, seen })
    }

    /// The counts. Waits for the engine's answer.
    pub fn totals(self) -> Totals {
        let seen = answers(&[self.seen]).pop().flatten().unwrap_or_default();
        Totals::of(self.counted, &seen)
    }
}

/// The report of `towpath channels` that is being made.
#[derive(Debug)]
pub struct ChannelsReport {
    viewer: Viewer,
    report: Report,
    counts: Option<Counts>,
    known: Known,
    left: SlotsLeft,
}

impl ChannelsReport {
    /// A report that has looked at nothing yet. Asks the engine for its counts.
    pub fn new(registry: &Registry, viewer: Viewer) -> Self {
        let (report, known) = registry.channels_report();
        let counts = Counts::ask(registry);
        let regions = registry.regions.keys().copied().filter(|_| counts.is_some()).collect();
        Self { viewer, report, counts, known, left: SlotsLeft::of(regions) }
    }
}

impl Making for ChannelsReport {
    fn go_on(&mut self, registry: &Registry, most: usize) -> bool {
        let own = registry.channels.as_ref().map(|channels| channels.own);
        let (known, viewer) = (&mut self.known, self.viewer);
        self.left.look(registry, most, |SlotKey { region, slot }| {
            if own == Some(region) {
                known.ends.extend(registry.channel_ends(slot).map(|ends| (slot, ends)));
            } else {
                let socket = registry.virtual_socket(region, slot, viewer);
                known.sockets.extend(socket.map(|socket| ((region, slot), socket)));
            }
            false
        })
    }

    fn write(self: Box<Self>) -> Result<Vec<u8>, Refused> {
        let Self { mut report, counts, mut known, .. } = *self;
        if let Some(Counts { counted, seen }) = counts {
            let seen = answers(&[seen]).pop().flatten().unwrap_or_default();
            report.counted = Totals::of(counted, &seen);
            report.sessions = seen.sessions.iter().map(|seen| known.session(seen)).collect();
            report.sockets = seen.sockets.iter().filter_map(|socket| known.socket(socket)).collect();
        }
        Ok(serde_json::to_vec(&report)?)
    }
}

impl Totals {
    fn of(counted: Counted, seen: &Snapshot) -> Self {
        Self {
            opened: counted.opened,
            accepted: counted.accepted,
            unserved: counted.unserved,
            sessions_over: counted.over,
            sessions: seen.census.sessions,
            channels: seen.census.channels,
            sockets: seen.census.sockets,
            greetings_refused: seen.refusals.greetings,
            violations: seen.refusals.violations,
            beyond_credit: seen.beyond_credit,
        }
    }
}

impl Registry {
    /// What `Report::Channels` tells of peers and rules, and what is known of classes.
    fn channels_report(&self) -> (Report, Known) {
        let Some(channels) = &self.channels else { return (Report::default(), Known::default()) };
        let standing = |(peer, standing): (std::net::IpAddr, Standing)| {
            let (standing, why) = match standing {
                Standing::Unknown => return None,
                Standing::Asked => ("asked", None),
                Standing::Speaks => ("speaks", None),
                Standing::Silent(why) => ("silent", Some(why.to_string())),
            };
            Some(Peer { peer: peer.to_string(), standing, why })
        };
        let mut peers: Vec<Peer> = channels.peers.iter(self.now).filter_map(standing).collect();
        peers.sort_by(|a, b| a.peer.cmp(&b.peer));
        let report = Report {
            is_on: true,
            port: channels.port(),
            rules: channels.rules().iter().map(ToString::to_string).collect(),
            peers,
            ..Report::default()
        };
        let policy_why = [Class::Latency, Class::Throughput].map(|class| channels.policy_why(class));
        (report, Known { policy_why, ..Known::default() })
    }

    /// What the control thread knows of the virtual socket in a slot, if `viewer` may see its process.
    fn virtual_socket(&self, region: u32, slot: u32, viewer: Viewer) -> Option<Virtual> {
        let (flow, _) = channel_flow(self.regions.get(&region)?.slots.get(slot))?;
        let process = self.applications.get(&flow.application).map(|a| &a.process);
        process.is_none_or(|p| viewer.sees(p.uid)).then(|| Virtual {
            session: String::new(),
            socket: 0,
            local: flow.ends[0].to_string(),
            remote: flow.ends[1].to_string(),
            number: process.map_or_else(Number::default, |p| p.number),
            process: process.map_or_else(|| "-".to_owned(), |p| p.process.clone()),
            credit: 0,
            queue: 0,
            why: flow.why.map(|why| why.to_string()),
        })
    }

    /// The line of `towpath ss` for the virtual socket in a slot; `None`: there is none.
    pub fn channel_line(&self, region: u32, slot: u32) -> Option<Socket> {
        let region = self.regions.get(&region)?;
        let (flow, is_pending) = channel_flow(region.slots.get(slot))?;
        let (service, app) = region.memory.halves(slot)?;
        let is_open = service.flags.load(Relaxed) & shm::half_flags::OPEN != 0 && !is_pending;
        let stage = if is_open { Stage::Accepted } else { Stage::Pending };
        let queued = |from: &shm::Half, to: &shm::Half| {
            let bytes = from.tx_head.load(Relaxed).saturating_sub(to.rx_tail.load(Relaxed));
            bytes.min(self.config.region_data)
        };
        let (unread, unsent) = (queued(service, app), queued(app, service));
        let mut detail = of_shared(stage, app, service, unsent, unread);
        detail.channel = flow.why.map(|why| format!("by channel: {why}"));
        detail.channel.get_or_insert_with(|| "by channel: the peer has opened it".to_owned());
        Some(Socket {
            state: state(app, service, stage, flow.why.is_some()),
            local: flow.ends[0],
            remote: Some(flow.ends[1]),
            kind: "channel",
            recv_queue: unread,
            send_queue: unsent,
            bytes_in: app.rx_tail.load(Relaxed),
            bytes_out: app.tx_head.load(Relaxed),
            detail: Some(Box::new(detail)),
            ..self.blank(flow.application)
        })
    }
}
