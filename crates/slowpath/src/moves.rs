//! Groups of flows that move from one core to another while their packets come. Reads no clock and moves nothing itself: it says in which
//! order cores and port act.
//!
//! ```text
//!   slow path        core that gets them (to)        port        core that has them (from)
//!      │── Expect ─────────►│ parks their frames       │                  │
//!      │◄───────── Expecting │                          │                  │
//!      │── Event::Steer ────────────────────────────────►│ brings them to `to`
//!      │◄─────────────────────────────── steered() ─────│                  │
//!      │── Yield ───────────────────────────────────────────────────────────►│ handles all frames that it has
//!      │◄────────────────────────────────────────────────────────────── Quiet │
//!      │── Move, for each flow, and Moved ──────────────────────────────────►│
//!      │                     │◄────────────────── flows, one by one, Moved ──│
//!      │◄──────────── Taken  │ has handled what was parked                 │
//! ```
//! So `from` has handled all frames that came before the port's change when `to` handles the first that came after it.

use crate::timeouts::Timer;
use crate::{Event, SlowPath, TimerId};
use base::{Duration, Instant};
use flow::{Command, FlowId, GroupSet};
use std::fmt;
use wire::GROUPS;

/// Time for a core to say that it expects groups; after it the move is given up.
const PATIENCE: Duration = Duration::from_ms(50);
/// Time for a core to handle what waits in its queue, which may be long where a core is overloaded: 16,384 frames of 10 us. Its flows wait no less
/// where they are when the move is given up.
const QUEUE_PATIENCE: Duration = Duration::from_ms(200);

/// A core's answers to the commands of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Expecting(u32),
    Quiet(u32),
    Taken,
}

/// What a move waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Expecting,
    Steering,
    Quiet,
    Taken,
    /// The port brings the frames to the first core again.
    SteeringBack,
}

/// The move that is under way.
#[derive(Debug)]
struct Move {
    groups: GroupSet,
    from: u8,
    to: u8,
    stage: Stage,
    timer: Option<TimerId>,
}

/// The core of each group, and the move under way.
#[derive(Debug)]
pub(crate) struct Moves {
    /// The core that serves new flows of each group.
    cores: [u8; GROUPS],
    current: Option<Move>,
    /// Number of moves begun, modulo 2^32.
    number: u32,
}

/// Reason why groups do not move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveError {
    /// The port does not bring the frames of a group to a core of our choice.
    NotSteered,
    /// Another move is under way.
    Busy,
    /// No such core, or both are the same.
    NoCore,
    /// The first core has none of the groups.
    Nothing,
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSteered => "the port does not bring the frames of a group to a core of our choice",
            Self::Busy => "another move is under way",
            Self::NoCore => "no such core, or both are the same",
            Self::Nothing => "the first core has none of the groups",
        })
    }
}

impl std::error::Error for MoveError {}

impl Moves {
    /// Groups are spread over the first `serving` of `cores` cores; 0: over all.
    pub(crate) fn new(cores: usize, serving: u8) -> Self {
        let first = if serving == 0 { cores as u8 } else { serving };
        Self { cores: flow::spread_groups(first), current: None, number: 0 }
    }
}

impl SlowPath {
    /// The core that serves a new flow of `tuple`, the handshake of which ended at `core`.
    pub(crate) fn core_for(&self, tuple: &wire::FourTuple, core: u8) -> u8 {
        if self.config.is_steered { self.moves.cores[usize::from(tuple.group())] } else { core }
    }

    /// The core of each group.
    #[must_use]
    pub fn group_cores(&self) -> &[u8; GROUPS] {
        &self.moves.cores
    }

    /// Segments that the live flows of each group have received and sent. A flow that is busy at this moment counts nothing.
    #[must_use]
    pub fn group_loads(&self) -> [u64; GROUPS] {
        let mut loads = [0; GROUPS];
        for (flow, connection) in self.connections.iter() {
            let Some(mut guard) = self.keeper.flows().lock_briefly(flow) else { continue };
            let counters = &guard.parts().cold.counters;
            let load: &mut u64 = &mut loads[usize::from(connection.tuple.group())];
            *load = load.saturating_add(u64::from(counters.segments_in) + u64::from(counters.segments_out));
        }
        loads
    }

    /// Begins to move those of `groups` that core `from` has to core `to`. [`Event::MoveOver`] says when it is over.
    ///
    /// # Errors
    /// [`MoveError`], and nothing moves.
    pub fn move_groups(
        &mut self,
        now: Instant,
        groups: &GroupSet,
        from: u8,
        to: u8,
    ) -> Result<(), MoveError> {
        if !self.config.is_steered {
            return Err(MoveError::NotSteered);
        }
        if self.moves.current.is_some() {
            return Err(MoveError::Busy);
        }
        if usize::from(from.max(to)) >= self.output.cores() || from == to {
            return Err(MoveError::NoCore);
        }
        let mut own = GroupSet::default();
        groups.iter().filter(|g| self.moves.cores[usize::from(*g)] == from).for_each(|g| own.insert(g));
        if own.is_empty() {
            return Err(MoveError::Nothing);
        }
        self.now = now;
        self.moves.number = self.moves.number.wrapping_add(1);
        let timer = Some(self.wheel.set(now.plus(PATIENCE), Timer::Move));
        self.moves.current = Some(Move { groups: own, from, to, stage: Stage::Expecting, timer });
        self.output.command(to, Command::Expect { groups: own, number: self.moves.number });
        Ok(())
    }

    /// The port has done what the last [`Event::Steer`] asked for: no frame of the groups comes to another core's queue any more.
    pub fn steered(&mut self, now: Instant) {
        self.now = now;
        let number = self.moves.number;
        let Some(moving) = &mut self.moves.current else { return };
        match moving.stage {
            Stage::Steering => {
                moving.stage = Stage::Quiet;
                moving.timer = Some(self.wheel.set(now.plus(QUEUE_PATIENCE), Timer::Move));
                self.output.command(moving.from, Command::Yield { number });
            }
            Stage::SteeringBack => {
                self.output.command(moving.to, Command::Expect { groups: GroupSet::default(), number });
                self.end_move(0);
            }
            _ => {}
        }
    }

    /// A core answers. An answer to a move that was given up is late, and ignored.
    pub(crate) fn on_move_answer(&mut self, core: u8, answer: Answer) {
        let number = self.moves.number;
        let Some(moving) = &mut self.moves.current else { return };
        match (answer, moving.stage) {
            (Answer::Expecting(n), Stage::Expecting) if (n, core) == (number, moving.to) => {
                moving.timer.take().and_then(|timer| self.wheel.cancel(timer));
                moving.stage = Stage::Steering;
                self.events.push_back(Event::Steer { groups: moving.groups, core: moving.to });
            }
            (Answer::Quiet(n), Stage::Quiet) if (n, core) == (number, moving.from) => {
                moving.timer.take().and_then(|timer| self.wheel.cancel(timer));
                moving.stage = Stage::Taken;
                self.hand_flows_over();
            }
            (Answer::Taken, Stage::Taken) if core == moving.to => {
                let groups = moving.groups.iter().count();
                self.end_move(groups);
            }
            _ => {}
        }
    }

    /// Has the first core hand over each flow of the groups, and gives new ones to the second.
    fn hand_flows_over(&mut self) {
        let Some(Move { groups, from, to, .. }) = self.moves.current else { return };
        groups.iter().for_each(|group| self.moves.cores[usize::from(group)] = to);
        let of_move = self.connections.iter().filter(|(_, connection)| {
            connection.owner.core == from && groups.contains(connection.tuple.group())
        });
        let flows: Vec<FlowId> = of_move.map(|(flow, _)| flow).collect();
        for flow in flows {
            if let Some(connection) = self.connections.get_mut(&flow) {
                connection.owner.core = to;
            }
            self.output.command(from, Command::Move { flow, to });
        }
        self.output.command(from, Command::Moved { to });
    }

    /// A core has not answered in time: nothing moves, and the port is steered back.
    pub(crate) fn on_move_timer(&mut self) {
        let number = self.moves.number;
        let Some(moving) = &mut self.moves.current else { return };
        moving.timer = None;
        match moving.stage {
            Stage::Expecting => {
                self.output.command(moving.to, Command::Expect { groups: GroupSet::default(), number });
                self.end_move(0);
            }
            Stage::Quiet => {
                moving.stage = Stage::SteeringBack;
                self.events.push_back(Event::Steer { groups: moving.groups, core: moving.from });
            }
            Stage::Steering | Stage::Taken | Stage::SteeringBack => {}
        }
    }

    fn end_move(&mut self, groups: usize) {
        self.moves.current = None;
        self.events.push_back(Event::MoveOver { groups });
    }
}

#[cfg(test)]
mod tests;
