//! Shared by fast path and slow path: flow records, the flow table, and the rings between the two.
//!
//! ```text
//!   slow path                        flow                              fast-path core
//!   Keeper --install, remove-->  Flows: records, table  <--try_lock--  packets, doorbells
//!   CommandSender  ------------> [ bounded ring, one per core ] ------> CommandReceiver
//!   ExceptionReceiver <--------- [ bounded ring, one per core ] <------ ExceptionSender
//! ```
//!
//! A record is changed only under its lock, which a core tries and never waits for: both paths hold it for a few hundred
//! nanoseconds. Nothing here reads a clock, does I/O, or allocates after set-up.

mod accurate_ecn;
mod address;
mod ahead;
mod bulk;
mod cell;
mod challenged;
mod cold;
mod config;
mod flags;
mod groups;
#[cfg(not(loom))]
mod keeper;
mod limit;
#[cfg(not(loom))]
mod message;
#[cfg(not(loom))]
mod owner;
mod program;
mod programmed;
mod rate_sample;
mod record;
mod recovery;
mod ring;
mod sending;
mod steering;
mod table;

pub use accurate_ecn::AccurateEcn;
pub use address::Addresses;
pub use ahead::{Ahead, INTERVALS, INTERVALS_MAX, Intervals, sack_order};
pub use bulk::{BulkFlows, Receivers};
pub use cell::{FlowGuard, FlowMut, Flows, prefetch, prefetch_all, prefetch_frame};
pub use challenged::{CHALLENGE_INTERVAL, Challenged};
pub use cold::{Cold, Counters, Interval, PathProbe, QUICK_SEGMENTS};
pub use config::Config;
pub use congestion::{Decision, Event, Signals};
pub use flags::{event, rare, state};
pub use groups::{CORES_MAX, GroupSet, IN_TRANSIT, spread_groups};
#[cfg(not(loom))]
pub use keeper::{Install, InstallError, Keeper};
pub use limit::{Limits, RateLimit};
#[cfg(not(loom))]
pub use message::{
    Command, CommandReceiver, CommandSender, Exception, ExceptionReceiver, ExceptionSender, FRAME_COPY_MAX,
    FrameReason, commands, exceptions,
};
#[cfg(not(loom))]
pub use owner::{AppRegion, News, Sleeper, raise, ring, tell};
pub use program::{Echo, FlowProgram, Situation, Start};
pub use rate_sample::{Delivery, Sample, Sampler, Sending};
pub use record::{ReceiveLine, ResetVerdict, SendLine, class};
pub use recovery::{Episode, Kind, RUNS, Recovery, Run, Timeouts};
pub use ring::{Consumer, Producer, ring as frame_ring};
pub use sending::Delays;
pub use table::{FlowTable, PEERS};

/// Identifies a flow record: its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct FlowId(pub u32);
