//! The data of `towpath explain`: every socket and what it waits for, and each application's kernel sockets by inode.

use crate::registry::application::Application;
use crate::registry::memory::connection::Stage;
use crate::registry::process::number::Number;
use crate::registry::report::Socket;
use crate::registry::report::bottleneck::{self, Limit, Numbers};
use crate::registry::scaling::report::Totals;
use control::{KernelReason, TcpInfo};
use queue::Ring;
use serde::Serialize;
use shm::Half;
use shm::application_flags::{HOLD, NODELAY};
use shm::half_flags::{FIN, WANT_SPACE};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// Fields of a socket in `towpath explain` beyond those of `towpath ss`: what limits the socket, and the numbers behind that.
#[derive(Debug, Serialize)]
pub struct Detail {
    /// The reason why the socket waits.
    pub limited_by: Limit,
    /// Bytes written and not sent.
    pub unsent: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight: u64,
    /// Bytes that the peer's receive window still allows.
    pub peer_window: u64,
    /// Size in bytes of the ring that the program writes into now; 0: it has not written yet.
    pub ring: u64,
    /// Process number of the program at the other end, when it is registered here; `None` where it is not known, too.
    pub peer_pid: Option<i32>,
    /// Inode number of that process's descriptor: see [`Number`].
    pub peer_pidfd_inode: Option<u64>,
    /// Command of the program at the other end.
    pub peer_process: Option<String>,
    /// User of the program at the other end; decides whether the viewer sees it.
    #[serde(skip)]
    pub peer_uid: Option<u32>,
    /// Why a connection over the port goes by channel or by plain TCP; `None`: the service has no channels.
    pub channel: Option<String>,
    /// The class that the socket, or the configuration, asks for, and by what; `None`: its behaviour decides.
    pub class: Option<String>,
    /// The numbers of `TCP_INFO`, for a connection over the port.
    pub info: Option<TcpInfo>,
}

/// One application of `towpath explain`.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// How a reader finds the process.
    #[serde(flatten)]
    pub number: Number,
    process: String,
    uid: u32,
    fallen_back: u64,
    /// Its kernel sockets: the reason by inode.
    kernel: BTreeMap<u64, KernelReason>,
}

impl Explained {
    /// What is known of a process.
    pub fn of(a: &Application) -> Self {
        Self {
            number: a.process.number,
            process: a.process.process.clone(),
            uid: a.uid,
            fallen_back: a.process.fallen_back,
            // The last of several entries with one inode counts.
            kernel: a.fallen.iter().map(|(inode, reason)| (*inode, *reason)).collect(),
        }
    }

    /// Number of its kernel sockets.
    pub fn len(&self) -> usize {
        self.kernel.len()
    }
}

/// The whole answer to `towpath explain`.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The processes that the viewer may see, in order of their numbers.
    pub applications: Vec<Explained>,
    /// The sockets of these processes.
    pub sockets: Vec<Socket>,
    /// Cores, and how packets come to them; `None`: there is one core.
    pub cores: Option<Totals>,
}

impl Detail {
    /// A detail in which only the limit is known.
    pub fn of(limited_by: Limit) -> Self {
        Self {
            limited_by,
            unsent: 0,
            in_flight: 0,
            peer_window: 0,
            ring: 0,
            peer_pid: None,
            peer_pidfd_inode: None,
            peer_process: None,
            peer_uid: None,
            channel: None,
            class: None,
            info: None,
        }
    }
}

/// Size in bytes of the larger ring that this end lends.
fn ring_of(half: &Half) -> u64 {
    let rings = half.ring.iter().filter_map(|word| Ring::parse(word.load(Relaxed), u64::MAX).ok());
    rings.map(Ring::size).max().unwrap_or(0)
}

/// The detail of one end of a connection through shared memory.
pub fn of_shared(stage: Stage, own: &Half, peer: &Half, queued: u64, unread: u64) -> Detail {
    let wants_space = queued > 0 && own.flags.load(Relaxed) & WANT_SPACE != 0;
    let limited_by = match stage {
        Stage::Pending => Limit::Handshake,
        _ if own.flags.load(Relaxed) & peer.flags.load(Relaxed) & FIN != 0 => Limit::Closing,
        _ => bottleneck::of_shared(&Numbers { queued, unread, wants_space, ..Numbers::default() }),
    };
    Detail { in_flight: queued, ring: ring_of(own), ..Detail::of(limited_by) }
}

/// The detail of a connection over the port. `halves` are the service's and the application's.
pub fn of_flow(state: slowpath::State, halves: Option<(&Half, &Half)>, info: Option<TcpInfo>) -> Detail {
    use slowpath::State::{CloseWait, Established, SynReceived, SynSent};
    let (Some((service, app)), Some(info)) = (halves, info) else {
        let opening = matches!(state, SynSent | SynReceived);
        return Detail::of(if opening { Limit::Handshake } else { Limit::Closing });
    };
    let load = |word: &std::sync::atomic::AtomicU64| word.load(Relaxed);
    let (flags, extra) = (app.flags.load(Relaxed), load(&app.extra));
    let numbers = Numbers {
        unread: load(&service.tx_head).saturating_sub(load(&app.rx_tail)),
        queued: load(&app.tx_head).saturating_sub(load(&service.rx_tail)),
        unsent: u64::from(info.notsent_bytes),
        peer_window: u64::from(info.snd_wnd),
        congestion_window: u64::from(info.snd_cwnd) * u64::from(info.snd_mss),
        own_window: u64::from(info.rcv_wnd),
        segment: u64::from(info.snd_mss),
        timeouts: info.retransmits,
        wants_space: flags & WANT_SPACE != 0,
        no_delay: extra & NODELAY != 0,
        is_corked: extra & HOLD != 0,
    };
    let limited_by = match state {
        Established | CloseWait => bottleneck::of_flow(&numbers),
        _ if numbers.queued > 0 || numbers.unread > 0 => bottleneck::of_flow(&numbers),
        _ => Limit::Closing,
    };
    Detail {
        unsent: numbers.unsent,
        in_flight: numbers.queued.saturating_sub(numbers.unsent),
        peer_window: numbers.peer_window,
        ring: ring_of(app),
        info: Some(info),
        ..Detail::of(limited_by)
    }
}
