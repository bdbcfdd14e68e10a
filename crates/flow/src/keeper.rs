//! The slow path's access to the records: the free ones, installing and removing flows.

use crate::{
    AccurateEcn, Addresses, AppRegion, Cold, FlowGuard, FlowId, Flows, ReceiveLine, SendLine, state,
};
use base::limits::{RING_MAX, RING_MIN};
use base::{Duration, Instant, SeqNumber};
use congestion::{RateLaw, Window};
use core::net::IpAddr;
use core::sync::atomic::Ordering::Release;
use queue::stream;
use std::sync::Arc;
use wire::{FourTuple, MacAddr};

/// An established connection, to be installed as a flow of the fast path.
#[derive(Clone, Debug)]
pub struct Install {
    /// Addresses and ports of packets that we *send*: the source is ours.
    pub tuple: FourTuple,
    /// Ethernet address of the next hop.
    pub peer_mac: MacAddr,
    /// Index of the core that serves the flow.
    pub core: u8,
    /// Index of the owner's region.
    pub region: u16,
    /// The owner's slot; its halves must be zeroed.
    pub slot: u32,
    /// Our next sequence number (our initial one + 1).
    pub snd_nxt: SeqNumber,
    /// The peer's next sequence number (its initial one + 1).
    pub rcv_nxt: SeqNumber,
    /// The window we advertised in our SYN, unscaled.
    pub rcv_wnd: u16,
    /// The peer's window in bytes, from its last segment (in a SYN it is never scaled).
    pub snd_wnd: u32,
    /// Payload bytes of a full segment: the smaller MSS of both ends, less 12 with timestamps.
    pub mss: u16,
    /// Window shifts of the peer and of us: both 0 unless both ends offered window scaling.
    pub shifts: (u8, u8),
    /// `state::{TIMESTAMPS, SACK, ECN}` as negotiated.
    pub features: u32,
    /// Accurate ECN; agreed on only with `state::ECN`.
    pub accurate: AccurateEcn,
    /// The peer's latest timestamp value.
    pub ts_recent: u32,
    /// Offset of our timestamps to the clock.
    pub ts_offset: u32,
    /// Round-trip time of the handshake; `None` if a segment of it was sent twice.
    pub rtt: Option<Duration>,
    /// State of congestion control.
    pub window: Window,
    /// Pacing rate, bytes per second; 0: no pacing.
    pub pace_rate: u64,
}

/// Reason why a flow was not installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstallError {
    /// All flow records are in use.
    NoRecord,
    /// The hash table is full around this flow's hash.
    TableFull,
    /// The tuple mixes address families, or the slot is outside its region.
    Malformed,
}

impl core::fmt::Display for InstallError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NoRecord => "all flow records are in use",
            Self::TableFull => "the flow table is too full",
            Self::Malformed => "the tuple mixes address families, or the slot is outside its region",
        })
    }
}

impl core::error::Error for InstallError {}

/// The list of free records. One per service, used by the slow path only.
#[derive(Debug)]
pub struct Keeper {
    flows: Arc<Flows>,
    free: Vec<u32>,
    live: u32,
    give_way: fn(),
}

impl Keeper {
    /// A keeper of `flows`, all records of which are free.
    // SETUP: called once when the service starts.
    #[must_use]
    pub fn new(flows: Arc<Flows>) -> Self {
        let free = (0..flows.config().flows).rev().collect();
        Self { flows, free, live: 0, give_way: core::hint::spin_loop }
    }

    /// What a thread does again and again that waits for a record: see `SlowPath::set_give_way`.
    pub fn set_give_way(&mut self, give_way: fn()) {
        self.give_way = give_way;
    }

    /// The flow records that it keeps.
    #[must_use]
    pub fn flows(&self) -> &Arc<Flows> {
        &self.flows
    }

    /// Number of flows installed and not yet released.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Installs a flow: from now on its core handles its packets. Afterwards the caller pushes `Command::Transmit`, because the
    /// application may have written already, and raises `OPEN`.
    ///
    /// # Errors
    /// [`InstallError`], with nothing installed.
    // SETUP: per connection, on the slow path.
    pub fn install(
        &mut self,
        now: Instant,
        what: &Install,
        region: &AppRegion,
    ) -> Result<FlowId, InstallError> {
        let same_family = what.tuple.src.addr.is_ipv4() == what.tuple.dst.addr.is_ipv4();
        let (own, _) = region.halves(what.slot).filter(|_| same_family).ok_or(InstallError::Malformed)?;
        let id = FlowId(self.free.pop().ok_or(InstallError::NoRecord)?);
        {
            // A core may still look at this record after a stale lookup: it finds it not LIVE and leaves at once.
            let mut guard = self.lock(id);
            let mut parts = guard.parts();
            (*parts.rx, *parts.tx) = lines(what);
            *parts.cold = side(now, what, self.flows.config());
            parts.cold.peer = self.flows.table().peer(what.tuple.dst.addr);
            let algorithm = parts.cold.window.algorithm();
            parts.cold.law = RateLaw::new(algorithm, &self.flows.config().rates, what.mss, now);
            parts.tx.cwnd = parts.cold.window.cwnd();
            if let Some(rate) = region.limits().rate() {
                parts.cold.limit_pace(rate.get());
            }
            parts.rx.window_log2 = first_window(self.flows.config(), region, what.rcv_wnd).ilog2() as u8;
            if parts.cold.accurate.is_agreed() {
                // Each segment carries a count: none is of the common kind.
                parts.rx.set(state::ECHO_CE);
            }
            if algorithm.wants_exact_echo() {
                parts.rx.set(state::EXACT_ECN);
            }
            *parts.addresses = addresses(what);
            let sending = parts.sending(self.flows.config(), true);
            // Release: before the `OPEN` that follows; the application does not read it earlier.
            own.extra.store(sending.packed(), Release);
        }
        let hash = self.flows.table().hash(&what.tuple.reversed());
        if !self.flows.table().insert(hash, id) {
            self.free.push(id.0);
            return Err(InstallError::TableFull);
        }
        region.set_flow(what.slot, Some(id));
        self.flows.note_slot(id, what.region, what.slot);
        stream::watch(own, Some(u32::from(what.core)));
        self.live += 1;
        Ok(id)
    }

    /// Takes a flow out of the table: from now on its packets are unknown to the cores, and its tuple may be used again. False
    /// when it was removed before. Then the caller pushes `Command::Drop` to its core. The core lets go of the slot and the rings when
    /// the application has read everything or has released the slot, and answers `Exception::Dropped`. Then the caller calls
    /// [`release`](Self::release); only after that may the slot be used again. (For a dead application the service raises `RELEASED` in
    /// the application's half first.)
    pub fn remove(&mut self, id: FlowId) -> bool {
        let mut guard = self.lock(id);
        let parts = guard.parts();
        if !parts.rx.has(state::LIVE) || parts.rx.has(state::LEAVING) {
            return false;
        }
        let tuple = parts.addresses.tuple(parts.rx, parts.tx);
        let hash = self.flows.table().hash(&tuple.reversed());
        self.flows.table().remove(hash, id);
        parts.rx.set(state::LEAVING);
        true
    }

    /// Locks a record. The slow path may wait for the lock: cores never hold a record while they wait for anything.
    ///
    /// # Panics
    /// When `id` is no record's number: a bug of the caller.
    #[must_use]
    pub fn lock(&self, id: FlowId) -> FlowGuard<'_> {
        self.flows.make(id);
        assert!(id.0 < self.flows.config().flows, "flow ids are below the number of records");
        loop {
            for _ in 0..SPINS {
                if let Some(guard) = self.flows.try_lock(id) {
                    return guard;
                }
                core::hint::spin_loop();
            }
            (self.give_way)();
        }
    }

    /// Makes a record free again, after its core has let go of it.
    pub fn release(&mut self, id: FlowId) {
        let mut guard = self.lock(id);
        let parts = guard.parts();
        parts.rx.flags = 0;
        parts.cold.program = None;
        drop(guard);
        self.free.push(id.0);
        self.live -= 1;
    }
}

/// Tries to lock a record before the thread gives its processor away: a few microseconds. A core holds a record for one turn of the flow, in
/// which it may write 64 KiB to the port.
const SPINS: u32 = 64;

/// The first window, a power of two of bytes: what the configuration says; or, while memory is not present for the first windows of all flows of
/// the application, only what our SYN has promised, so that more flows find room for their first bytes.
fn first_window(config: &crate::Config, region: &AppRegion, promised: u16) -> u32 {
    let initial = config.receive_buffer_initial.clamp(RING_MIN, RING_MAX);
    if region.is_backed(initial) {
        initial
    } else {
        u32::from(promised).next_power_of_two().clamp(RING_MIN, initial)
    }
}

fn lines(what: &Install) -> (ReceiveLine, SendLine) {
    let v4 = |addr: IpAddr| match addr {
        IpAddr::V4(a) => a.octets(),
        IpAddr::V6(_) => [0; 4],
    };
    let family = if what.tuple.src.addr.is_ipv4() { 0 } else { state::V6 };
    let features = what.features & (state::TIMESTAMPS | state::SACK | state::ECN);
    let rx = ReceiveLine {
        flags: state::LIVE | family | features,
        rcv_nxt: what.rcv_nxt,
        rcv_edge: what.rcv_nxt.plus(u32::from(what.rcv_wnd)),
        last_ack: what.rcv_nxt,
        // A stream begins with descriptor 1 (see `queue::stream::Sender`).
        rx_ring: 1 << 63,
        region: what.region,
        core: what.core,
        slot: what.slot,
        ts_recent: what.ts_recent,
        rcv_shift: what.shifts.1,
        ..ReceiveLine::default()
    };
    let tx = SendLine {
        snd_una: what.snd_nxt,
        snd_nxt: what.snd_nxt,
        snd_max: what.snd_nxt,
        snd_wnd: what.snd_wnd,
        snd_wl1: what.rcv_nxt.minus(1),
        recover: what.snd_nxt.minus(1),
        small_end: what.snd_nxt,
        peer_v4: v4(what.tuple.dst.addr),
        local_v4: v4(what.tuple.src.addr),
        peer_port: what.tuple.dst.port,
        local_port: what.tuple.src.port,
        peer_mac: what.peer_mac.0,
        mss: what.mss.max(1),
        snd_shift: what.shifts.0,
        window_log2_max: what.snd_wnd.max(1).ilog2() as u8,
        ..SendLine::default()
    };
    (rx, tx)
}

fn side(now: Instant, what: &Install, config: &crate::Config) -> Cold {
    let mut cold = Cold::new(what.window, now);
    (cold.ts_offset, cold.pace_rate) = (what.ts_offset, what.pace_rate);
    cold.window_end = what.rcv_nxt;
    cold.accurate = what.accurate;
    if let Some(rtt) = what.rtt {
        let rtt_us = rtt.as_us().min(u64::from(u32::MAX)) as u32;
        cold.sample_rtt(rtt_us, config);
        cold.sample_least_rtt(rtt_us, now);
    }
    cold
}

fn addresses(what: &Install) -> Addresses {
    match (what.tuple.dst.addr, what.tuple.src.addr) {
        (IpAddr::V6(peer), IpAddr::V6(local)) => Addresses { peer: peer.octets(), local: local.octets() },
        _ => Addresses::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use shm::{Kind, Params, Region};
    use wire::Endpoint;

    fn what(port: u16, slot: u32) -> Install {
        let end = |last: u8, port| Endpoint::new([10, 0, 0, last].into(), port);
        Install {
            tuple: FourTuple::new(end(1, 80), end(2, port)),
            peer_mac: MacAddr([2; 6]),
            core: 1,
            region: 0,
            slot,
            snd_nxt: SeqNumber(1),
            rcv_nxt: SeqNumber(1),
            rcv_wnd: 65_535,
            snd_wnd: 65_535,
            mss: 1448,
            shifts: (7, 7),
            features: state::SACK | state::LEAVING,
            accurate: AccurateEcn::default(),
            ts_recent: 0,
            ts_offset: 0,
            rtt: None,
            window: Window::new(congestion::Algorithm::Dctcp, 1448, Instant::ZERO),
            pace_rate: 0,
        }
    }

    #[test]
    fn records_are_found_while_installed_and_come_back() {
        let flows = Arc::new(Flows::new(Config { flows: 2, ..Config::default() }, [3, 4]));
        let mut keeper = Keeper::new(flows.clone());
        let params = Params { kind: Kind::Application, id: 1, slots: 64, data_len: 1 << 20 };
        let region = AppRegion::new(Region::create(params).expect("memfds can be made").0);
        let find = |port| {
            let tuple = what(port, 0).tuple.reversed();
            flows.table().find(flows.table().hash(&tuple), |_| true)
        };
        let a = keeper.install(Instant::ZERO, &what(1, 7), &region).expect("a free record");
        let b = keeper.install(Instant::ZERO, &what(2, 8), &region).expect("a free record");
        assert_eq!((find(1), find(2), find(3)), (Some(a), Some(b), None));
        assert_eq!(keeper.install(Instant::ZERO, &what(3, 9), &region), Err(InstallError::NoRecord));
        assert_eq!(region.flow_of(7), Some(a));
        let (own, _) = region.halves(7).expect("slot 7 exists");
        assert_eq!(stream::watcher(own), Some(1));
        {
            let mut guard = keeper.lock(a);
            let flags = guard.parts().rx.flags;
            assert!(flags & state::EXACT_ECN != 0 && flags & state::LEAVING == 0);
            assert!(flows.try_lock(a).is_none(), "one holder at a time");
        }
        assert!(keeper.remove(a) && !keeper.remove(a));
        assert_eq!((find(1), keeper.live()), (None, 2));
        keeper.release(a);
        assert_eq!(keeper.install(Instant::ZERO, &what(3, 99), &region), Err(InstallError::Malformed));
        assert!(keeper.install(Instant::ZERO, &what(3, 9), &region).is_ok());
    }
}
