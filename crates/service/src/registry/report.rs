//! Reports for the command line: sockets and counters, as JSON in a memfd.

pub(crate) mod bottleneck;
pub(crate) mod explain;
pub(crate) mod job;
pub(crate) mod port_stats;
pub(crate) mod profile;
pub(crate) mod profile_switch;
pub(crate) mod slots_left;
pub(crate) mod socket_list;
pub(crate) mod statistics;
mod summary;
pub mod text;

use crate::config::values::{CORES_MAX, PortKind};
use crate::cores::Core;
use crate::registry::channels::OWNER;
use crate::registry::channels::report::ChannelsReport;
use crate::registry::choice::Governed;
use crate::registry::memory::connection::{Connection, Stage};
use crate::registry::memory::region::Use;
use crate::registry::process::number::{Number, known};
use crate::registry::registration::Credentials;
use crate::registry::report::explain::Detail;
use crate::registry::report::job::Job;
use crate::registry::report::socket_list::SocketList;
use crate::registry::report::summary::StatisticsReport;
use crate::registry::scaling::report::CoresReport;
use crate::registry::tcp::Flow;
use crate::registry::{Answer, Registry};
use control::{CoresWish, Reply, Report};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use serde::{Serialize, Serializer};
use shm::Half;
use shm::half_flags::{FIN, RELEASED, RESET};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One line of `towpath ss`.
#[derive(Debug, Serialize)]
pub struct Socket {
    pub(crate) proto: &'static str,
    pub(crate) state: &'static str,
    pub(crate) local: SocketAddr,
    /// `None`: it listens.
    #[serde(serialize_with = "address_or_star")]
    pub(crate) remote: Option<SocketAddr>,
    #[serde(flatten)]
    pub(crate) number: Number,
    /// Empty: the viewer may not see it.
    #[serde(serialize_with = "known")]
    pub(crate) process: String,
    /// User of its process, shown to every user, as by the kernel's `ss`.
    pub uid: u32,
    pub(crate) kind: &'static str,
    pub(crate) recv_queue: u64,
    pub(crate) send_queue: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) retransmits: u64,
    /// Smoothed round-trip time, microseconds; 0: unknown.
    #[serde(serialize_with = "known")]
    pub(crate) rtt_us: u32,
    /// Congestion window, segments; 0: unknown.
    #[serde(serialize_with = "known")]
    pub(crate) cwnd: u32,
    /// Payload bytes of a full segment; 0: unknown.
    #[serde(serialize_with = "known")]
    pub(crate) mss: u32,
    /// What decides about window and rate; `None`: within the host nothing does.
    pub(crate) congestion: Option<Governed>,
    /// Pacing rate, bytes per second; 0: unknown, all ones: there is no limit.
    #[serde(serialize_with = "known_rate")]
    pub(crate) pacing_rate: u64,
    /// Time since data was last sent, or a segment last received, ms; `None`: unknown, as of all connections within the host.
    pub(crate) idle_ms: Option<u32>,
    /// The core that serves it, where there are several; `None`: no core does.
    pub(crate) core: Option<u8>,
    /// The group of its addresses, which moves between cores as a whole.
    pub(crate) group: Option<u8>,
    /// The further fields of `towpath explain`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Box<Detail>>,
}

/// A rate, or null where it is unknown or has no limit.
fn known_rate<S: Serializer>(rate: &u64, to: S) -> Result<S::Ok, S::Error> {
    Some(rate).filter(|rate| !matches!(**rate, 0 | u64::MAX)).serialize(to)
}

/// An address, or `*` for a listener's other end.
fn address_or_star<S: Serializer>(address: &Option<SocketAddr>, to: S) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => to.collect_str(address),
        None => to.serialize_str("*"),
    }
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

impl Socket {
    /// Removes the fields that `viewer` may not see.
    fn hide_from(&mut self, viewer: Viewer) {
        if !viewer.sees(self.uid) {
            (self.number, self.process) = (Number::default(), String::new());
            (self.detail, self.congestion) = (None, None);
        }
        if let Some(detail) = self.detail.as_mut().filter(|d| d.peer_uid.is_some_and(|uid| !viewer.sees(uid)))
        {
            (detail.peer_pid, detail.peer_pidfd_inode, detail.peer_process) = (None, None, None);
        }
    }
}

/// The address of a line that says nothing of one.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

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
pub fn name_of(state: slowpath::State) -> &'static str {
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

/// A report is made in pieces, or its whole answer is known at once.
#[derive(Debug)]
pub enum Begun {
    /// To be gone on with until it is complete.
    Job(Job),
    /// The report was short, and is answered at once.
    Answer(Answer),
}

impl From<Answer> for Begun {
    fn from(answer: Answer) -> Self {
        Self::Answer(answer)
    }
}

impl Registry {
    /// Begins to answer `Request::Report`; the control loop handles shutdown and reload.
    pub fn begin_report(&mut self, report: Report, viewer: Viewer) -> Begun {
        let job = match report {
            Report::Sockets => Job::new(SocketList::new(self, false, viewer)),
            Report::Explain => Job::new(SocketList::new(self, true, viewer)),
            Report::Statistics => {
                self.count_direct();
                let relayed = self.cores.iter().map(|core| core.relayed.load(Relaxed));
                self.statistics.relayed_bytes = relayed.sum();
                self.statistics.held_ports = self.ports.held();
                Job::new(StatisticsReport::new(self, viewer))
            }
            Report::Cycles(wish) => self.whose_time(wish, viewer),
            Report::Channels => Job::new(ChannelsReport::new(self, viewer)),
            Report::Cores(wish) => {
                if let Some(why) = self.why_not(wish) {
                    return Answer::refused(Errno::INVAL, &why).into();
                }
                let now = self.tcp_now();
                let (scaling, slow) = (&mut self.scaling, &mut self.tcp.slow);
                match wish {
                    CoresWish::AsItIs => {}
                    CoresWish::Fixed(cores) => scaling.set_cores(now, slow, Some(cores)),
                    CoresWish::Auto => scaling.set_cores(now, slow, None),
                }
                let counted = self.cores.iter().map(Core::ask_count).collect();
                Job::new(CoresReport::new(
                    counted,
                    self.scaling.report(now, &self.tcp.slow, self.cores.len()),
                ))
            }
            Report::Congestion(ask) => return self.congestion(*ask, viewer),
            Report::Shutdown | Report::Reload => {
                return Answer::refused(Errno::PERM, "not to be had this way").into();
            }
        };
        Begun::Job(job)
    }

    /// Why so many cores cannot serve flows, with what to do; `None`: they can.
    fn why_not(&self, wish: CoresWish) -> Option<String> {
        let most = self.cores.len();
        match wish {
            CoresWish::AsItIs => None,
            _ if self.config.port == PortKind::None => Some(
                "it has no port, and within this host no core serves flows: programs move their bytes themselves; start the service with \
                 --port to have flows"
                    .to_owned(),
            ),
            CoresWish::Fixed(cores) if usize::from(cores) > most => Some(format!(
                "it has {most} of the {cores} cores: start it with --cores {} (at most {CORES_MAX} are possible)",
                cores.min(CORES_MAX)
            )),
            CoresWish::Fixed(_) | CoresWish::Auto => None,
        }
    }

    /// Why that connection does not go by channel; `None`: the service has no channels, or the peer has opened it.
    pub fn why_plain(&self, index: u16, slot: u32) -> Option<String> {
        let region = self.regions.get(self.indices.get(u32::from(index))?)?;
        match region.slots.get(slot)? {
            Use::Flow(Flow { application: OWNER, .. }) => Some("a channel to another service".to_owned()),
            Use::Flow(flow) => flow.why.map(|why| format!("plain TCP: {why}")),
            Use::Relay(..) => None,
        }
    }

    /// The line of one end of a connection, unless it is closed.
    pub fn end_line(
        &self,
        kind: &'static str,
        connection: &Connection,
        side: usize,
        own: &Half,
        peer: &Half,
    ) -> Option<Socket> {
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
            peer_pid: other.map(|p| p.number.pid).filter(|pid| *pid != 0),
            peer_pidfd_inode: other.map(|p| p.number.inode).filter(|inode| *inode != 0),
            peer_process: other.map(|p| p.process.clone()),
            peer_uid: other.map(|p| p.uid),
            ..explain::of_shared(connection.stage, own, peer, queued(own, peer), queued(peer, own))
        };
        Some(Socket {
            state: state(own, peer, connection.stage, side == 0),
            detail: Some(Box::new(detail)),
            local: connection.addresses[side],
            remote: Some(connection.addresses[side ^ 1]),
            kind,
            recv_queue: queued(peer, own),
            send_queue: queued(own, peer),
            bytes_in: own.rx_tail.load(Relaxed),
            bytes_out: own.tx_head.load(Relaxed),
            ..self.blank(connection.applications[side])
        })
    }

    /// A line with the process alone.
    pub fn blank(&self, application: u32) -> Socket {
        let process = self.applications.get(&application).map(|a| &a.process);
        Socket {
            proto: "tcp",
            state: "",
            local: NOWHERE,
            remote: None,
            number: process.map_or_else(Number::default, |p| p.number),
            process: process.map_or_else(String::new, |p| p.process.clone()),
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
            idle_ms: None,
            core: None,
            group: None,
            detail: None,
        }
    }
}

/// The reply with a short report's memfd, or a refusal if it could not be written.
pub fn answer_of(json: serde_json::Result<Vec<u8>>) -> Answer {
    match json.map_err(|_| Errno::INVAL).and_then(|text| memfd_of(&text)) {
        Ok(fd) => Answer::Reply(Reply::Text, vec![Arc::new(fd)]),
        Err(e) => Answer::refused(e, UNWRITTEN),
    }
}

/// Why a report is refused that could not be written.
pub const UNWRITTEN: &str = "the report could not be written";

/// A memfd for a report's text. Its file is empty, and no seal can keep it from being emptied again.
pub fn new_memfd() -> Result<OwnedFd, Errno> {
    memfd_create(c"towpath-report", MemfdFlags::CLOEXEC)
}

/// Writes a report's text.
pub fn fill(fd: BorrowedFd<'_>, text: &[u8]) -> Result<(), Errno> {
    let mut at = 0;
    while at < text.len() {
        at += rustix::io::pwrite(fd, &text[at..], at as u64)?;
    }
    Ok(())
}

fn memfd_of(text: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = new_memfd()?;
    fill(fd.as_fd(), text)?;
    Ok(fd)
}
