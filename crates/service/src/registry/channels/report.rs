//! The data of `towpath channels`, `towpath ss` and `towpath stat` about channels. Changes nothing.

use super::control::Counted;
use super::peers::Standing;
use super::snapshot::{ChannelSeen, SessionSeen, Snapshot, SocketSeen};
use crate::registry::Registry;
use crate::registry::memory::connection::Stage;
use crate::registry::memory::region::Use;
use crate::registry::report::explain::of_shared;
use crate::registry::report::{Socket, Viewer, state};
use crate::registry::tcp::{Carrier, Flow};
use channel::lane::Class;
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// The whole answer to `towpath channels`.
#[derive(Debug, Default, Serialize)]
pub struct Report<'a> {
    /// False: `--channel-peers` names no host, and the rest is empty.
    is_on: bool,
    /// The TCP port of the channel service.
    port: u16,
    /// The rules for connections of this host's programs.
    rules: Vec<String>,
    counted: Totals,
    peers: Vec<Peer>,
    sessions: Vec<Session>,
    sockets: Vec<Virtual<'a>>,
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
struct Virtual<'a> {
    session: String,
    socket: u32,
    local: String,
    remote: String,
    pid: i32,
    process: &'a str,
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

fn channel(registry: &Registry, seen: &ChannelSeen) -> Channel {
    let &ChannelSeen { number, address, slot, core, sockets, unsent, unconfirmed, retransmits } = seen;
    let ends = slot.and_then(|slot| registry.channel_ends(slot));
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

fn session(registry: &Registry, seen: &SessionSeen) -> Session {
    Session {
        session: id(seen.id),
        peer: seen.peer.to_string(),
        class: match seen.class {
            Class::Latency => "latency",
            Class::Throughput => "throughput",
        },
        opener: seen.is_opener,
        uid: seen.user,
        policy: seen.policy,
        policy_why: registry.channels.as_ref().map_or("", |channels| channels.policy_why(seen.class)),
        sockets: seen.sockets,
        channels: seen.channels.iter().map(|seen| channel(registry, seen)).collect(),
        channels_wanted: seen.wanted.map(|(number, _)| number),
        channels_why: seen.wanted.map(|(_, why)| why),
        bytes_again: seen.counters.bytes_again,
        bytes_twice: seen.counters.bytes_twice,
        channels_lost: seen.counters.channels_lost,
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
    /// Answers `Report::Channels`: everything about sessions, and the sockets of processes that `viewer` may see.
    pub fn channels_report(&self, viewer: Viewer) -> Report<'_> {
        let Some(channels) = &self.channels else { return Report::default() };
        let seen = self.channels_seen().unwrap_or_default();
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
        Report {
            is_on: true,
            port: channels.port(),
            rules: channels.rules().iter().map(ToString::to_string).collect(),
            counted: Totals::of(channels.counted, &seen),
            peers,
            sessions: seen.sessions.iter().map(|seen| session(self, seen)).collect(),
            sockets: seen.sockets.iter().filter_map(|socket| self.virtual_socket(socket, viewer)).collect(),
        }
    }

    /// The counts for `towpath stat`; `None`: there are no channels.
    pub fn channel_totals(&self) -> Option<Totals> {
        let counted = self.channels.as_ref()?.counted;
        Some(Totals::of(counted, &self.channels_seen().unwrap_or_default()))
    }

    fn virtual_socket(&self, seen: &SocketSeen, viewer: Viewer) -> Option<Virtual<'_>> {
        let Some(Use::Flow(flow)) = self.regions.get(&seen.region)?.slots.get(seen.slot) else { return None };
        let process = self.applications.get(&flow.application).map(|a| &a.process);
        process.is_none_or(|p| viewer.sees(p.uid)).then(|| Virtual {
            session: id(seen.session),
            socket: seen.socket,
            local: flow.ends[0].to_string(),
            remote: flow.ends[1].to_string(),
            pid: process.map_or(0, |p| p.pid),
            process: process.map_or("-", |p| p.process.as_str()),
            credit: seen.credit,
            queue: seen.queue,
            why: flow.why.map(|why| why.to_string()),
        })
    }

    /// The lines of `towpath ss` for virtual sockets.
    pub fn channel_sockets<'a>(&'a self, all: &mut Vec<Socket<'a>>) {
        for region in self.regions.values().filter(|_| self.channels.is_some()) {
            for (slot, used) in region.slots.iter() {
                let Use::Flow(flow @ Flow { carrier: Carrier::Channel { pending, .. }, .. }) = used else {
                    continue;
                };
                let Some((service, app)) = region.memory.halves(slot) else { continue };
                let is_open = service.flags.load(Relaxed) & shm::half_flags::OPEN != 0 && pending.is_none();
                let stage = if is_open { Stage::Accepted } else { Stage::Pending };
                let queued = |from: &shm::Half, to: &shm::Half| {
                    let bytes = from.tx_head.load(Relaxed).saturating_sub(to.rx_tail.load(Relaxed));
                    bytes.min(self.config.region_data)
                };
                let (unread, unsent) = (queued(service, app), queued(app, service));
                let mut detail = of_shared(stage, app, service, unsent, unread);
                detail.channel = flow.why.map(|why| format!("by channel: {why}"));
                detail.channel.get_or_insert_with(|| "by channel: the peer has opened it".to_owned());
                all.push(Socket {
                    state: state(app, service, stage, flow.why.is_some()),
                    local: flow.ends[0].to_string(),
                    remote: flow.ends[1].to_string(),
                    kind: "channel",
                    recv_queue: unread,
                    send_queue: unsent,
                    bytes_in: app.rx_tail.load(Relaxed),
                    bytes_out: app.tx_head.load(Relaxed),
                    detail: Some(Box::new(detail)),
                    ..self.blank(flow.application)
                });
            }
        }
    }
}
