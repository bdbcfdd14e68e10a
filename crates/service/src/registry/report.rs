//! Reports for the command line: sockets and counters, as JSON in a memfd.

pub(crate) mod bottleneck;
pub(crate) mod explain;
pub(crate) mod port_stats;
pub(crate) mod profile;
pub(crate) mod profile_switch;
pub(crate) mod statistics;
mod summary;
pub mod text;

use crate::cores::Core;
use crate::registry::agents::Agents;
use crate::registry::channels::OWNER;
use crate::registry::choice::Governed;
use crate::registry::listen::direct::InUse;
use crate::registry::memory::connection::{Connection, Relay, Stage};
use crate::registry::memory::pairs::PairRegion;
use crate::registry::memory::region::Use;
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::registration::Credentials;
use crate::registry::report::bottleneck::Limit;
use crate::registry::report::explain::Detail;
use crate::registry::report::port_stats::Traffic;
use crate::registry::report::summary::Summary;
use crate::registry::tcp::Flow;
use crate::registry::{Answer, Registry};
use control::{CoresWish, Reply, Report};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use serde::Serialize;
use shm::half_flags::{FIN, RELEASED, RESET};
use shm::{Half, Slot};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One line of `towpath ss`.
#[derive(Debug, Serialize)]
pub struct Socket<'a> {
    pub(crate) proto: &'static str,
    pub(crate) state: &'static str,
    pub(crate) local: String,
    pub(crate) remote: String,
    pub(crate) pid: i32,
    pub(crate) process: &'a str,
    /// User of its process, shown to every user, as by the kernel's `ss`.
    pub uid: u32,
    pub(crate) kind: &'static str,
    pub(crate) recv_queue: u64,
    pub(crate) send_queue: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) retransmits: u64,
    /// Smoothed round-trip time, microseconds; 0: unknown.
    pub(crate) rtt_us: u32,
    /// Congestion window, segments; 0: unknown.
    pub(crate) cwnd: u32,
    /// Payload bytes of a full segment; 0: unknown.
    pub(crate) mss: u32,
    /// What decides about window and rate; `None`: within the host nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) congestion: Option<Governed>,
    /// Pacing rate, bytes per second; 0: unknown.
    pub(crate) pacing_rate: u64,
    /// The core that serves it, where there are several; `None`: no core does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) core: Option<u8>,
    /// The group of its addresses, which moves between cores as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<u8>,
    /// The further fields of `towpath explain`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Box<Detail<'a>>>,
}

/// The processes that a user may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Viewer {
    /// All processes: for root and the service's own user.
    All,
    /// Processes of this user. Other users' sockets show what Linux's `ss` shows: addresses, states, queues, user number.
    User(u32),
}

impl Viewer {
    /// The viewer at a control line.
    pub fn of(who: Credentials) -> Self {
        if who.is_administrator { Self::All } else { Self::User(who.uid) }
    }

    /// True when processes of user `uid` may be seen.
    pub fn sees(self, uid: u32) -> bool {
        self == Self::All || self == Self::User(uid)
    }
}

impl Socket<'_> {
    /// Removes the fields that `viewer` may not see.
    fn hide_from(&mut self, viewer: Viewer) {
        if !viewer.sees(self.uid) {
            (self.pid, self.process, self.detail, self.congestion) = (0, "-", None, None);
        }
        if let Some(detail) = self.detail.as_mut().filter(|d| d.peer_uid.is_some_and(|uid| !viewer.sees(uid)))
        {
            (detail.peer_pid, detail.peer_process) = (None, None);
        }
    }
}

/// Linux's name for the state of the end that `own` describes.
pub fn state(own: &Half, peer: &Half, stage: Stage, connector: bool) -> &'static str {
    let (own, peer) = (own.flags.load(Relaxed), peer.flags.load(Relaxed));
    match (own & FIN != 0, peer & FIN != 0) {
        _ if (own | peer) & RESET != 0 => "CLOSED",
        (true, true) => "CLOSED",
        (true, false) => "FIN-WAIT-2",
        (false, true) => "CLOSE-WAIT",
        _ if stage == Stage::Pending => {
            if connector {
                "SYN-SENT"
            } else {
                "SYN-RECV"
            }
        }
        _ => "ESTABLISHED",
    }
}

/// The name of a TCP state, as in Linux's `ss`.
fn name_of(state: slowpath::State) -> &'static str {
    use slowpath::State;
    match state {
        State::Listen => "LISTEN",
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECV",
        State::Established => "ESTABLISHED",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
        State::Closed => "CLOSED",
    }
}

impl Registry {
    /// Answers `Request::Report`; the control loop handles shutdown and reload.
    pub fn report(&mut self, report: Report, viewer: Viewer) -> Answer {
        let json = match report {
            Report::Sockets => {
                self.sweep();
                serde_json::to_vec(&self.sockets(false, viewer))
            }
            Report::Statistics => {
                self.count_direct();
                let relayed = self.cores.iter().map(|core| core.relayed.load(Relaxed));
                self.statistics.relayed_bytes = relayed.sum();
                self.statistics.held_ports = self.ports.held();
                let alive = self.applications.values().map(|a| &a.process);
                let counted: Vec<_> = self.cores.iter().filter_map(Core::count).collect();
                let traffic = Traffic::sum(&counted, &self.tcp.slow);
                let channels = self.channel_totals();
                let agents = self.agents.as_ref().map(Agents::counters).unwrap_or_default();
                let summary = self.statistics.summary(alive, traffic, viewer);
                serde_json::to_vec(&Summary {
                    channels,
                    agents,
                    cores: self.scaling.totals_of_several(self.cores.len()),
                    ..summary
                })
            }
            Report::Explain => {
                self.sweep();
                serde_json::to_vec(&self.explanation(viewer))
            }
            Report::Cycles(wish) => self.whose_time(wish, viewer),
            Report::Channels => serde_json::to_vec(&self.channels_report(viewer)),
            Report::Cores(wish) => {
                let now = self.tcp_now();
                let (scaling, slow) = (&mut self.scaling, &mut self.tcp.slow);
                match wish {
                    CoresWish::AsItIs => {}
                    CoresWish::Fixed(cores) => scaling.set_cores(now, slow, Some(cores)),
                    CoresWish::Auto => scaling.set_cores(now, slow, None),
                }
                let counted: Vec<_> = self.cores.iter().map(Core::count).collect();
                serde_json::to_vec(&self.scaling.report(now, &self.tcp.slow, &counted))
            }
            Report::Congestion(ask) => return self.congestion(&ask, viewer),
            Report::Shutdown | Report::Reload => {
                return Answer::refused(Errno::PERM, "not to be had this way");
            }
        };
        answer_of(json)
    }

    /// All sockets, with the fields that `viewer` may see.
    pub fn sockets(&self, detailed: bool, viewer: Viewer) -> Vec<Socket<'_>> {
        let mut all = Vec::new();
        for listener in self.listeners.all.values() {
            let listening = if listener.grants.free() == 0 { Limit::Accept } else { Limit::Connections };
            let holder = self.acceptors(listener).map(|a| a.id).min().unwrap_or(listener.home.application);
            all.push(Socket {
                state: "LISTEN",
                local: listener.local.to_string(),
                remote: "*".to_owned(),
                kind: "listener",
                recv_queue: listener.grants.waiting() as u64,
                send_queue: u64::from(listener.grants.backlog()),
                detail: Some(Box::new(Detail::of(listening))),
                ..self.blank(holder)
            });
        }
        let in_use = self.all_lent_in_use();
        for (id, pair) in self.pairs.iter() {
            self.pair_sockets(id, pair, &in_use, &mut all);
        }
        self.relays.values().for_each(|relay| self.relay_sockets(relay, &mut all));
        self.flow_sockets(&mut all);
        self.channel_sockets(&mut all);
        all.iter_mut().for_each(|socket| socket.hide_from(viewer));
        all.sort_by(|a, b| (a.kind, a.pid, &a.local, &a.remote).cmp(&(b.kind, b.pid, &b.local, &b.remote)));
        if !detailed {
            all.iter_mut().for_each(|socket| socket.detail = None);
        }
        all
    }

    fn pair_sockets<'a>(&'a self, id: u32, pair: &PairRegion, in_use: &InUse, all: &mut Vec<Socket<'a>>) {
        for (slot, &Connection { addresses, applications, stage, grant }) in pair.connections() {
            let Some(Slot { half }) = pair.region.slot(slot) else { continue };
            let is_unused = stage == Stage::Lent && !in_use.contains(&SlotKey { region: id, slot });
            if is_unused {
                continue;
            }
            let connection = Connection { addresses, applications, stage, grant };
            for side in 0..2 {
                all.extend(self.end("pair", &connection, side, &half[side], &half[side ^ 1]));
            }
        }
    }

    fn relay_sockets<'a>(&'a self, relay: &Relay, all: &mut Vec<Socket<'a>>) {
        for (side, SlotKey { region, slot }) in relay.places() {
            let halves = self.regions.get(&region).and_then(|r| r.memory.halves(slot));
            let Some((service, application)) = halves else { continue };
            all.extend(self.end("relay", &relay.connection, side, application, service));
        }
    }

    fn flow_sockets<'a>(&'a self, all: &mut Vec<Socket<'a>>) {
        self.tcp.slow.for_each_socket(|s| {
            // Listeners were listed with their accept queues.
            let Some(remote) = s.remote else { return };
            let slot = s.owner.and_then(|owner| {
                let region = self.regions.get(self.indices.get(u32::from(owner.region))?)?;
                let (service, app) = region.memory.halves(owner.slot)?;
                let key = SlotKey { region: region.memory.id, slot: owner.slot };
                Some((region.owner, service, app, key))
            });
            let info = s.flow.and_then(|flow| self.tcp.slow.info(self.tcp_now(), flow));
            let load = |word: &std::sync::atomic::AtomicU64| word.load(Relaxed);
            let owner = s.owner.filter(|_| self.cores.len() > 1);
            let group = owner.map(|_| wire::FourTuple::new(s.local, remote).group());
            let mut line = self.blank(slot.map_or(0, |(owner, ..)| owner));
            let halves = slot.as_ref().map(|(_, service, app, _)| (*service, *app));
            let mut detail = explain::of_flow(s.state, halves, info.clone());
            detail.channel = s.owner.and_then(|owner| self.why_plain(owner.region, owner.slot));
            detail.class =
                s.flow.and_then(|flow| self.tcp.slow.asked_class(flow)).map(|class| class.to_string());
            line.detail = Some(Box::new(detail));
            if let Some((_, service, app, key)) = slot {
                line.congestion = self.governed(key, info.as_ref());
                line.recv_queue = load(&service.tx_head).saturating_sub(load(&app.rx_tail));
                line.send_queue = load(&app.tx_head).saturating_sub(load(&service.rx_tail));
                (line.bytes_in, line.bytes_out) = (load(&app.rx_tail), load(&app.tx_head));
            }
            all.push(Socket {
                state: name_of(s.state),
                local: SocketAddr::from(s.local).to_string(),
                remote: SocketAddr::from(remote).to_string(),
                kind: "flow",
                retransmits: info.as_ref().map_or(0, |i| u64::from(i.total_retrans)),
                rtt_us: info.as_ref().map_or(0, |i| i.rtt),
                cwnd: info.as_ref().map_or(0, |i| i.snd_cwnd),
                mss: info.as_ref().map_or(0, |i| i.snd_mss),
                pacing_rate: info.as_ref().map_or(0, |i| i.pacing_rate),
                core: owner.map(|owner| owner.core),
                group,
                ..line
            });
        });
    }

    /// Why that connection does not go by channel; `None`: the service has no channels, or the peer has opened it.
    fn why_plain(&self, index: u16, slot: u32) -> Option<String> {
        let region = self.regions.get(self.indices.get(u32::from(index))?)?;
        match region.slots.get(slot)? {
            Use::Flow(Flow { application: OWNER, .. }) => Some("a channel to another service".to_owned()),
            Use::Flow(flow) => flow.why.map(|why| format!("plain TCP: {why}")),
            Use::Relay(..) => None,
        }
    }

    /// The line of one end of a connection, unless it is closed.
    fn end(
        &self,
        kind: &'static str,
        connection: &Connection,
        side: usize,
        own: &Half,
        peer: &Half,
    ) -> Option<Socket<'_>> {
        if own.flags.load(Relaxed) & RELEASED != 0 {
            return None;
        }
        // Programs write both positions: the difference is bounded by a region's size.
        let most = self.usual_size().data_len;
        let queued = |from: &Half, to: &Half| {
            from.tx_head.load(Relaxed).saturating_sub(to.rx_tail.load(Relaxed)).min(most)
        };
        let other = self.applications.get(&connection.applications[side ^ 1]).map(|a| &a.process);
        let detail = Detail {
            peer_pid: other.map(|p| p.pid),
            peer_process: other.map(|p| p.process.as_str()),
            peer_uid: other.map(|p| p.uid),
            ..explain::of_shared(connection.stage, own, peer, queued(own, peer), queued(peer, own))
        };
        Some(Socket {
            state: state(own, peer, connection.stage, side == 0),
            detail: Some(Box::new(detail)),
            local: connection.addresses[side].to_string(),
            remote: connection.addresses[side ^ 1].to_string(),
            kind,
            recv_queue: queued(peer, own),
            send_queue: queued(own, peer),
            bytes_in: own.rx_tail.load(Relaxed),
            bytes_out: own.tx_head.load(Relaxed),
            ..self.blank(connection.applications[side])
        })
    }

    /// A line with the process alone.
    pub fn blank(&self, application: u32) -> Socket<'_> {
        let process = self.applications.get(&application).map(|a| &a.process);
        Socket {
            proto: "tcp",
            state: "",
            local: String::new(),
            remote: String::new(),
            pid: process.map_or(0, |p| p.pid),
            process: process.map_or("-", |p| p.process.as_str()),
            uid: process.map_or(0, |p| p.uid),
            kind: "",
            recv_queue: 0,
            send_queue: 0,
            bytes_in: 0,
            bytes_out: 0,
            retransmits: 0,
            rtt_us: 0,
            cwnd: 0,
            mss: 0,
            congestion: None,
            pacing_rate: 0,
            core: None,
            group: None,
            detail: None,
        }
    }
}

/// The reply with a report's memfd, or a refusal if it could not be written.
pub fn answer_of(json: serde_json::Result<Vec<u8>>) -> Answer {
    match json.map_err(|_| Errno::INVAL).and_then(|text| memfd_of(&text)) {
        Ok(fd) => Answer::Reply(Reply::Text, vec![Arc::new(fd)]),
        Err(e) => Answer::refused(e, "the report could not be written"),
    }
}

fn memfd_of(text: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(c"towpath-report", MemfdFlags::CLOEXEC)?;
    let mut at = 0;
    while at < text.len() {
        at += rustix::io::pwrite(&fd, &text[at..], at as u64)?;
    }
    Ok(fd)
}
