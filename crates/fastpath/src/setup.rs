//! The data structures that a core owns, made once.

use crate::answers::Answers;
use crate::board::Records;
use crate::counters::Counters;
use crate::flow_lists::{FlowLists, TOLD_MAX};
use crate::gaps::Gaps;
use crate::late::Late;
use crate::others::Senders;
use crate::task::Task;
use base::Instant;
use base::limits::BATCH;
use flow::{AppRegion, Config, ExceptionSender, FlowId, FlowMut, News, Receivers};
use port::Capabilities;
use queue::pages::Pool;
use shm::Half;
use std::sync::Arc;
use wire::MacAddr;

/// Most doorbell bits handled in one round; the others are handled in the next.
pub(crate) const NEWS_MAX: usize = 1024;
/// Most wake-ups of applications in one round: every packet and every command may cause one.
pub(crate) const WAKES_MAX: usize = 2048;
/// Most commands handled in one round.
pub(crate) const COMMANDS_MAX: usize = 256;
/// Most flows handled for one kind of timer in one round.
pub(crate) const TIMERS_MAX: usize = 256;
/// Most lost segments of one flow sent again in one turn.
pub(crate) const TURN: usize = 16;
/// Bytes of payload after which a round gives no further flow a turn: a packet or doorbell that comes meanwhile waits for this time. A
/// request or answer of one segment does not count, and is sent in any case.
pub(crate) const ROUND: u32 = 64 << 10;
/// Bytes that a flow which asks for no class may have to send and still go before the flows that wait for their turn.
pub(crate) const EXPRESS: u32 = 16 << 10;

/// Value of `urgent_of` for no flow.
pub(crate) const NO_FLOW: u32 = u32::MAX;

const _: () = assert!(BATCH + COMMANDS_MAX + 6 * TIMERS_MAX <= WAKES_MAX && TOLD_MAX == 2 * WAKES_MAX);

/// An application region as this core uses it.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) region: Arc<AppRegion>,
    /// The core's cache of rings given back, most recent first.
    pub(crate) pool: Box<Pool>,
    /// When the application last had or rang news.
    pub(crate) heard_at: Instant,
    /// The core does not look at the application's doorbell: the next ring is followed by a write to the core's eventfd for it.
    pub(crate) is_resting: bool,
}

/// A locked flow with its owner's region.
pub(crate) struct Work<'a> {
    pub(crate) id: FlowId,
    pub(crate) f: FlowMut<'a>,
    pub(crate) region: &'a AppRegion,
    /// The core's cache of the region's rings.
    pub(crate) pool: &'a mut Pool,
    /// The service's half of the flow's slot.
    pub(crate) own: &'a Half,
    /// The application's half of the flow's slot.
    pub(crate) peer: &'a Half,
}

impl<'a> Work<'a> {
    /// Joins a locked flow with its region. `None` when the region is gone.
    #[inline]
    pub(crate) fn new(id: FlowId, f: FlowMut<'a>, homes: &'a mut [Option<Home>]) -> Option<Self> {
        let Home { region, pool, .. } = homes.get_mut(usize::from(f.rx.region))?.as_mut()?;
        let region: &'a AppRegion = region;
        let (own, peer) = region.halves(f.rx.slot)?;
        Some(Self { id, f, region, pool, own, peer })
    }
}

/// Why a flow could not be worked on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Miss {
    /// The slow path holds the record's lock: try again soon.
    Busy,
    /// The record is free, or the flow's region is gone.
    Gone,
    /// Another core serves the flow; with `flow::IN_TRANSIT`, the core that will, which may be this one.
    Elsewhere(u8),
}

/// The state of a core except flows, regions and batch, which are borrowed separately.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) now: Instant,
    /// `now` in microseconds, modulo 2^32: computed once a round.
    pub(crate) now_us: u32,
    /// The core's index. Lists and borrowed loss records belong to this core only: it touches no flow that another core serves.
    pub(crate) index: u8,
    pub(crate) config: Config,
    pub(crate) capabilities: Capabilities,
    pub(crate) mac: MacAddr,
    /// Payload bytes of the largest IPv4 super-frame; 0 without segmentation offload. `burst_v6`: the same for IPv6.
    pub(crate) burst_v4: u32,
    pub(crate) burst_v6: u32,
    pub(crate) exceptions: ExceptionSender,
    /// The rings to the other cores.
    pub(crate) others: Senders,
    /// A command to hand a flow over that cannot be carried out yet; those behind it wait.
    pub(crate) stalled: Option<Task>,
    /// Flows have come: what is parked is to be looked at.
    pub(crate) has_arrivals: bool,
    /// What the core is to tell the slow path of flows that move.
    pub(crate) answers: Answers,
    /// One bit for each other core that has a doorbell bit set for it and sleeps.
    pub(crate) wakes_cores: u32,
    /// Everything that this core lists flows in.
    pub(crate) lists: FlowLists,
    /// True while a flow of the backlog has its turn.
    pub(crate) is_turn: bool,
    /// Bytes that are left of this round's.
    pub(crate) left: u32,
    /// True while a doorbell of the flow's application is being handled.
    pub(crate) is_rung: bool,
    /// True while a segment is sent that was held back.
    pub(crate) is_pushing: bool,
    /// The last batch was full: packets may still wait in the port.
    pub(crate) is_crowded: bool,
    /// Number of packets that were taken out of the port before others.
    pub(crate) taken_ahead: u64,
    /// The last round handled express packets, and left the others in the port.
    pub(crate) is_short: bool,
    /// Consecutive rounds with full batches, after which packets may still wait in the port.
    pub(crate) rounds_full: u32,
    /// Loss records, borrowed by flows with losses or long windows.
    pub(crate) records: Records,
    /// Gap records, borrowed by flows with many gaps before data that has come.
    pub(crate) gaps: Gaps,
    pub(crate) counters: Counters,
    /// The number of applications that receive in bulk.
    pub(crate) receivers: Receivers,
    pub(crate) wakes: Vec<News>,
    /// Number of applications that rest, and the regions of those that rested until now.
    pub(crate) resting: u32,
    pub(crate) roused: Vec<u16>,
    /// IPv4 identification of the next packet.
    pub(crate) identification: u16,
    /// A segment could not be sent in this round because the port was full.
    pub(crate) is_port_full: bool,
    /// Frames of the slow path that wait for the port.
    pub(crate) late: Late,
    /// Number of segments sent in this round.
    pub(crate) sent: u32,
    /// Id of the flow that had unacknowledged urgent data to send when last checked; [`NO_FLOW`]: none.
    pub(crate) urgent_of: u32,
    /// Urgent pointer of the segment that is being built; 0: none.
    pub(crate) urgent_pointer: u16,
}

impl State {
    pub(crate) fn new(
        index: u8,
        config: &Config,
        receivers: Receivers,
        exceptions: ExceptionSender,
        capabilities: Capabilities,
        records: Records,
        gaps: Gaps,
    ) -> Self {
        let flows = config.flows as usize;
        // An IP packet holds 65535 bytes with its headers; leave room for the longest of them.
        let room = capabilities.frame_max.min(65_535).saturating_sub(14 + 40 + 60) as u32;
        Self {
            index,
            now: Instant::ZERO,
            now_us: 0,
            config: config.clone(),
            capabilities,
            mac: MacAddr(capabilities.mac),
            burst_v4: if capabilities.tso_v4 { room } else { 0 },
            burst_v6: if capabilities.tso_v6 { room } else { 0 },
            exceptions,
            others: Senders::default(),
            stalled: None,
            has_arrivals: false,
            answers: Answers::default(),
            wakes_cores: 0,
            lists: FlowLists::new(flows, usize::from(config.regions)),
            is_turn: false,
            left: 0,
            is_rung: false,
            is_pushing: false,
            is_crowded: false,
            taken_ahead: 0,
            is_short: false,
            rounds_full: 0,
            records,
            gaps,
            counters: Counters::default(),
            receivers,
            wakes: Vec::with_capacity(WAKES_MAX),
            resting: 0,
            roused: Vec::with_capacity(usize::from(config.regions)),
            identification: 0,
            is_port_full: false,
            late: Late::new(),
            sent: 0,
            urgent_of: NO_FLOW,
            urgent_pointer: 0,
        }
    }
}

/// An empty table of regions, indexed by region.
pub(crate) fn homes(config: &Config) -> Box<[Option<Home>]> {
    (0..config.regions).map(|_| None).collect()
}
