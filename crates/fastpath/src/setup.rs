//! What a core owns, made once.

use crate::board::Records;
use crate::counters::Counters;
use crate::lists::List;
use crate::news::{TOLD_MAX, Told};
use crate::urgent::NOBODY;
use crate::wheel::Pacer;
use base::Instant;
use base::limits::BATCH;
use flow::{AppRegion, Config, ExceptionSender, FlowId, FlowMut, News};
use port::Capabilities;
use queue::pages::Pool;
use shm::Half;
use std::sync::Arc;
use wire::MacAddr;

/// Doorbell bits handled in one round; more wait for the next.
pub(crate) const NEWS_MAX: usize = 1024;
/// Wake-ups of applications in one round: every packet and every command may cause one.
pub(crate) const WAKES_MAX: usize = 2048;
/// Commands handled in one round.
pub(crate) const COMMANDS_MAX: usize = 256;
/// Flows looked at for one kind of timer in one round.
pub(crate) const TIMERS_MAX: usize = 256;

const _: () = assert!(BATCH + COMMANDS_MAX + 5 * TIMERS_MAX <= WAKES_MAX);

/// An application region as this core uses it.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) region: Arc<AppRegion>,
    /// Rings given back last.
    pub(crate) pool: Box<Pool>,
}

/// A locked flow with its owner's region.
pub(crate) struct Work<'a> {
    pub(crate) id: FlowId,
    pub(crate) f: FlowMut<'a>,
    pub(crate) region: &'a AppRegion,
    /// Rings of the region given back last.
    pub(crate) pool: &'a mut Pool,
    /// The service's half of its slot.
    pub(crate) own: &'a Half,
    /// The application's.
    pub(crate) peer: &'a Half,
}

impl<'a> Work<'a> {
    /// `None` when its region is gone.
    #[inline]
    pub(crate) fn new(id: FlowId, f: FlowMut<'a>, homes: &'a mut [Option<Home>]) -> Option<Self> {
        let Home { region, pool } = homes.get_mut(usize::from(f.rx.region))?.as_mut()?;
        let region: &'a AppRegion = region;
        let (own, peer) = region.halves(f.rx.slot)?;
        Some(Self { id, f, region, pool, own, peer })
    }
}

/// Everything of a core but the flows, the regions and the batch, which are borrowed beside it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) now: Instant,
    /// The same in microseconds, modulo 2^32: divided once a round.
    pub(crate) now_us: u32,
    /// The core's index. Lists and loss records are its own: it touches no flow that another serves.
    pub(crate) index: u8,
    pub(crate) config: Config,
    pub(crate) capabilities: Capabilities,
    pub(crate) mac: MacAddr,
    /// Payload bytes of the largest super-frame; 0 without segmentation offload.
    pub(crate) burst_v4: u32,
    pub(crate) burst_v6: u32,
    pub(crate) exceptions: ExceptionSender,
    /// Acknowledgements that wait for data to carry them.
    pub(crate) acks: List,
    /// Flows with something to send that the port or the pacer held back.
    pub(crate) ready: List,
    /// Flows that owe the slow path an event it had no room for.
    pub(crate) owed: List,
    /// One bit for each flow: the core asks its peer whether there still is a connection, because a RST was lost.
    pub(crate) asked: Box<[u64]>,
    /// Some of them are set.
    pub(crate) is_asking: bool,
    /// Flows that hold a receive ring.
    pub(crate) lent: List,
    /// Flows whose window has grown.
    pub(crate) grown: List,
    /// Flows whose application holds a partial segment back.
    pub(crate) held: List,
    /// An application's doorbell is being answered.
    pub(crate) is_rung: bool,
    /// What was held back goes now.
    pub(crate) is_pushing: bool,
    /// Flows with something in flight, by the time to look at them.
    pub(crate) looks: Pacer,
    /// Flows to look at now.
    pub(crate) due: List,
    /// Rounds in a row that left input waiting.
    pub(crate) rounds_full: u32,
    /// What flows with losses or long windows borrow.
    pub(crate) records: Records,
    pub(crate) pacer: Pacer,
    pub(crate) counters: Counters,
    pub(crate) wakes: Vec<News>,
    /// Whom to tell at the end of the stage.
    pub(crate) told: Vec<Told>,
    /// The IPv4 identification of the next packet.
    pub(crate) identification: u16,
    /// The port had no room in this round.
    pub(crate) is_port_full: bool,
    /// Segments sent in this round.
    pub(crate) sent: u32,
    /// The flow whose application had urgent data out when last looked at, or `NOBODY`.
    pub(crate) urgent_of: u32,
    /// The urgent pointer of the segment that is being built.
    pub(crate) urgent_pointer: u16,
}

impl State {
    pub(crate) fn new(
        index: u8,
        config: &Config,
        exceptions: ExceptionSender,
        capabilities: Capabilities,
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
            acks: List::new(flows),
            ready: List::new(flows),
            owed: List::new(flows),
            asked: vec![0; flows.div_ceil(64)].into_boxed_slice(),
            is_asking: false,
            lent: List::new(flows),
            grown: List::new(flows),
            held: List::new(flows),
            is_rung: false,
            is_pushing: false,
            looks: Pacer::new(flows),
            due: List::new(flows),
            rounds_full: 0,
            records: Records::new(flows),
            pacer: Pacer::new(flows),
            counters: Counters::default(),
            wakes: Vec::with_capacity(WAKES_MAX),
            told: Vec::with_capacity(TOLD_MAX),
            identification: 0,
            is_port_full: false,
            sent: 0,
            urgent_of: NOBODY,
            urgent_pointer: 0,
        }
    }
}

/// An empty table of regions.
pub(crate) fn homes(config: &Config) -> Box<[Option<Home>]> {
    (0..config.regions).map(|_| None).collect()
}
