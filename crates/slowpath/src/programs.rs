//! Flows with a program, which decides in place of an algorithm: the way of programs to flows, and of their reports back. Knows no agents,
//! and decides nothing.
//!
//! # Use by the service
//! ```text
//! watch_flows(true)                         once there is an agent: live flows are told of, then each that begins
//! poll_flow_event  -> Opened(name)          flow_facts(name), then ccp::Endpoint::open, if the flow's algorithm is an agent's
//!                  -> ReportDue(name)       offer_report(name, ..)
//!                  -> Closed(name)          offer_report(name, ..) once more, then ccp::Endpoint::close
//! ccp::Command::Program -> begin_program    ccp::Command::Change  -> change_program
//! ccp::Command::Accept  -> offer_report     ccp::Command::Default -> end_program
//! ```
//! ([`FlowName::number`] is `ccp::FlowId`, and [`FlowName::from_number`] the way back.) Call `poll_flow_event` until `None` after every input, like
//! [`poll_event`](SlowPath::poll_event); after `begin_program`, `change_program` and `end_program` wake the cores as after any other call
//! ([`must_wake`](SlowPath::must_wake)).
//!
//! [`offer_report`](SlowPath::offer_report) hands the report to a closure; if that says that it has no room (`ccp::NotTaken::Busy`), the report
//! stays with the flow, further ones are merged with it, and no new `ReportDue` comes: offer it again at `ccp::Command::Accept`. So no report is lost or
//! sent twice.
//!
//! All calls act on the flow's record under its lock, between two runs of its program, and take effect at once, whole or not at all.

use crate::SlowPath;
use base::{Duration, Instant};
use ccp_vm::Changes;
use flow::{Command, FlowId, FlowMut, FlowProgram, Start};
use std::num::NonZeroU64;
use wire::FourTuple;

/// Names a connection; no other connection of this service ever has the same name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowName(u64);

impl FlowName {
    /// The name of the connection that was made as number `birth`, in the record `flow`.
    pub(crate) const fn new(birth: u32, flow: FlowId) -> Self {
        Self((birth as u64) << 32 | flow.0 as u64)
    }

    /// The name as a number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The name with this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The flow's record, as long as the connection lives.
    #[must_use]
    pub const fn flow(self) -> FlowId {
        FlowId(self.0 as u32)
    }
}

/// An event of a flow for the service's endpoint towards agents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowEvent {
    /// A connection was established, or lives already when [`SlowPath::watch_flows`] is called.
    Opened(FlowName),
    /// A report of the flow's program is due: see [`SlowPath::offer_report`].
    ReportDue(FlowName),
    /// The connection is over. Its last report can be offered until the next input to the slow path.
    Closed(FlowName),
}

/// What an agent is told of a flow at its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowFacts {
    /// Addresses and ports; our end is `src`.
    pub tuple: FourTuple,
    /// Index of the application's region, and its slot there.
    pub owner: (u16, u32),
    /// The congestion window, bytes.
    pub cwnd: u32,
    /// Payload bytes of a full segment.
    pub mss: u16,
    /// The smoothed round-trip time so far.
    pub rtt: Duration,
    /// `SO_MAX_PACING_RATE`, bytes per second.
    pub rate_max: Option<NonZeroU64>,
    /// The flow's program was given to it already.
    pub has_program: bool,
}

/// A report of a flow's program.
#[derive(Clone, Copy, Debug)]
pub struct FlowReport<'a> {
    /// The number that came with the program.
    pub number: u32,
    /// The smoothed round-trip time now.
    pub rtt: Duration,
    /// The program's report variables, in the order of their registers.
    pub values: &'a [u64],
    /// Decisions that were moved to a bound since the program was given to the flow.
    pub clamps: u64,
}

/// The state of a flow's program, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramState {
    /// The number that came with the program.
    pub number: u32,
    /// The congestion window, bytes.
    pub cwnd: u32,
    /// The pacing rate that the program or its agent has decided on, bytes per second; 0: none.
    pub rate: u64,
    /// The control variables, and behind them the report variables.
    pub variables: Vec<u64>,
    /// Number of runs, of runs that a fault has stopped, and of decisions that were moved to a bound.
    pub totals: (u64, u32, u64),
    /// A report waits to be taken.
    pub is_report_due: bool,
}

/// Why a flow did not get a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotBegun {
    /// The connection is over.
    NoFlow,
    /// As many flows as allowed have a program: this one stays on its algorithm.
    TooMany,
}

impl SlowPath {
    /// On: tells of each live flow now, and of each that begins from now on. Off: tells of none; programs go on.
    pub fn watch_flows(&mut self, is_on: bool) {
        let was_on = std::mem::replace(&mut self.programs.is_watching, is_on);
        if is_on && !was_on {
            let live = self.connections.iter().filter(|(_, c)| !c.is_over);
            let names: Vec<FlowName> = live.map(|(flow, c)| FlowName::new(c.birth, flow)).collect();
            self.programs.events.extend(names.into_iter().map(FlowEvent::Opened));
        }
    }

    /// The next event of a flow.
    pub fn poll_flow_event(&mut self) -> Option<FlowEvent> {
        self.programs.events.pop_front()
    }

    /// The name of a live connection.
    #[must_use]
    pub fn flow_name(&self, flow: FlowId) -> Option<FlowName> {
        self.connections.get(&flow).filter(|c| !c.is_over).map(|c| FlowName::new(c.birth, flow))
    }

    /// What an agent is told of a live flow; `None` if the connection is over.
    #[must_use]
    pub fn flow_facts(&self, name: FlowName) -> Option<FlowFacts> {
        let connection = self.connections.get(&self.live(name)?)?;
        let (cwnd, mss, srtt_us, has_program) = self.with_flow(name.flow(), |parts| {
            (parts.tx.cwnd, parts.tx.mss, parts.cold.srtt_us, parts.cold.program.is_some())
        });
        Some(FlowFacts {
            tuple: connection.tuple,
            owner: (connection.owner.region, connection.owner.slot),
            cwnd,
            mss,
            rtt: Duration::from_us(u64::from(srtt_us)),
            rate_max: connection.options.max_pacing_rate,
            has_program,
        })
    }

    /// A program begins to steer the flow, or takes the place of the one before; changes that come with it are made at the same time.
    ///
    /// # Errors
    /// If the flow is over, or too many flows have programs: nothing was done.
    pub fn begin_program(&mut self, now: Instant, name: FlowName, start: &Start) -> Result<(), NotBegun> {
        let flow = self.live(name).ok_or(NotBegun::NoFlow)?;
        let is_new = self.with_flow(flow, |parts| parts.cold.program.is_none());
        if is_new && self.programs.running >= self.programs_max() {
            return Err(NotBegun::TooMany);
        }
        self.programs.running += usize::from(is_new);
        self.with_flow(flow, |parts| {
            let at = parts.situation(now, parts.pipe(), 0);
            parts.begin_program(start, &at);
        });
        self.go_on(flow);
        Ok(())
    }

    /// Makes changes of the flow's program between two runs. False if the flow is over or has no program: nothing was done.
    pub fn change_program(&mut self, name: FlowName, changes: &Changes) -> bool {
        let Some(flow) = self.live(name) else { return false };
        let is_done = self.with_flow(flow, |parts| parts.change_program(changes));
        if is_done {
            self.go_on(flow);
        }
        is_done
    }

    /// The flow goes back to its algorithm at once, with a window no larger than what is in flight, or than a new connection's. A report
    /// that was not taken is lost with the program. False if the flow is over or has no program.
    pub fn end_program(&mut self, now: Instant, name: FlowName) -> bool {
        let Some(flow) = self.live(name) else { return false };
        let rates = &self.flow_config().rates;
        let ended: Option<Box<FlowProgram>> = self.with_flow(flow, |parts| {
            let pipe = parts.pipe();
            parts.end_program(now, pipe, rates)
        });
        if ended.is_some() {
            self.programs.running -= 1;
            self.go_on(flow);
        }
        ended.is_some()
    }

    /// Offers the report of the flow that is due to `take`, which says whether it has taken it. Otherwise the report stays due, and later
    /// ones are merged with it. True if it was taken.
    ///
    /// `take` runs while the flow is locked: it must be short, and must not wait.
    pub fn offer_report(&mut self, name: FlowName, take: impl FnOnce(&FlowReport<'_>) -> bool) -> bool {
        let is_known =
            self.connections.get(&name.flow()).is_some_and(|c| name == FlowName::new(c.birth, name.flow()));
        is_known && self.with_flow(name.flow(), |parts| offer(parts, take))
    }

    /// The state of a flow's program; `None` if the flow has none.
    #[must_use]
    pub fn program(&self, name: FlowName) -> Option<ProgramState> {
        self.with_flow(self.live(name)?, |parts| {
            let program = parts.cold.program.as_ref()?;
            Some(ProgramState {
                number: program.number(),
                cwnd: parts.tx.cwnd,
                rate: program.rate(),
                variables: program.variables().to_vec(),
                totals: program.totals(),
                is_report_due: program.report().is_some(),
            })
        })
    }

    /// Number of flows with a program.
    #[must_use]
    pub const fn programs_running(&self) -> usize {
        self.programs.running
    }

    /// The core says that a report is due.
    pub(crate) fn on_report(&mut self, flow: FlowId) {
        if let Some(name) = self.flow_name(flow) {
            self.programs.events.push_back(FlowEvent::ReportDue(name));
        }
    }

    /// A connection begins: its number among all, which makes its name.
    pub(crate) fn note_birth(&mut self, flow: FlowId) -> u32 {
        self.programs.births = self.programs.births.wrapping_add(1);
        if self.programs.is_watching {
            self.programs.events.push_back(FlowEvent::Opened(FlowName::new(self.programs.births, flow)));
        }
        self.programs.births
    }

    /// A connection is over: its program, if it has one, runs no more. The record owns it until it is released.
    pub(crate) fn note_end(&mut self, birth: u32, flow: FlowId) {
        let had_program = self.with_flow(flow, |parts| parts.cold.program.is_some());
        self.programs.running -= usize::from(had_program);
        if self.programs.is_watching || had_program {
            self.programs.events.push_back(FlowEvent::Closed(FlowName::new(birth, flow)));
        }
    }

    /// The record of a connection that is not over.
    fn live(&self, name: FlowName) -> Option<FlowId> {
        self.flow_name(name.flow()).filter(|own| *own == name).map(FlowName::flow)
    }

    /// The flow may send more now, or has to pace itself: its core looks at it.
    fn go_on(&mut self, flow: FlowId) {
        if let Some(core) = self.connections.get(&flow).map(|c| c.owner.core) {
            self.output.command(core, Command::Transmit { flow });
        }
    }

    /// Flows with a program at most.
    fn programs_max(&self) -> usize {
        (self.flow_config().flows as usize).min(PROGRAMS_MAX)
    }
}

/// Flows with a program at most, whatever the number of flows: each takes 5.4 KiB of registers and marks, all together 350 MiB.
const PROGRAMS_MAX: usize = 65_536;

/// What the slow path keeps for flows with programs. The programs themselves are in the flows' records.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    is_watching: bool,
    events: std::collections::VecDeque<FlowEvent>,
    /// Number of connections made so far.
    births: u32,
    running: usize,
}

fn offer(parts: &mut FlowMut<'_>, take: impl FnOnce(&FlowReport<'_>) -> bool) -> bool {
    let rtt = Duration::from_us(u64::from(parts.cold.srtt_us));
    let Some(program) = &mut parts.cold.program else { return false };
    let Some(values) = program.report() else { return false };
    let is_taken = take(&FlowReport { number: program.number(), rtt, values, clamps: program.totals().2 });
    if is_taken {
        program.report_taken();
    }
    is_taken
}
