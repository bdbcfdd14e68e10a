//! How many cores serve flows, and which groups of flows each has. The control thread leads: it watches the load, tells the port its table, and
//! has the slow path move groups, one move after another. Decides neither itself: `scaler` says how many cores, `plan` which groups.
//!
//! ```text
//!   a core is busy ─► ticks of 10 ms ─► scaler ─► plan ─► slow path: move ─► Event::Steer ─► the port's table ─► ... ─► Event::MoveOver
//!                          └──────────────── until one core serves and is not busy ◄───────────────────────────────────────┘
//! ```

pub(crate) mod machine;
pub(crate) mod plan;
pub(crate) mod report;
pub(crate) mod scaler;

use crate::config::values::Cores;
use crate::cores::load::Loads;
use crate::scaling::machine::Machine;
use crate::scaling::plan::Step;
use crate::scaling::scaler::{Change, Sample, Scaler, WINDOW, Why};
use base::{Duration, Instant};
use flow::GroupSet;
use port::{Steering, Table};
use slowpath::SlowPath;
use std::collections::VecDeque;
use std::sync::Arc;
use wire::GROUPS;

/// Time between two looks at the load while busy cores get no help: so long the machine's idle time is taken for the same.
const HELD: Duration = Duration::from_ms(100);
/// Time until a move is tried again that a core did not answer to.
const MOVE_AGAIN: Duration = Duration::from_secs(1);
/// Changes that are remembered for `towpath cores`.
const REMEMBERED: usize = 16;

/// How frames come to the cores of their flows.
#[derive(Debug)]
pub struct Way {
    /// The port's table; `None`: there is one core, or the port has none, and cores hand frames on.
    pub steering: Option<Box<dyn Steering>>,
    /// The way in words.
    pub means: String,
}

/// A change of the number of cores, for reports.
#[derive(Clone, Copy, Debug)]
struct Past {
    at: Instant,
    change: Change,
}

/// Counts since the service started.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Moves that are over, and groups that they moved.
    moves: u64,
    groups: u64,
    /// Moves that a core did not answer to in time.
    given_up: u64,
    /// Tables that the port has refused.
    refused: u64,
}

/// The control thread's state of the cores.
#[derive(Debug)]
pub struct Scaling {
    way: Way,
    loads: Arc<Loads>,
    machine: Machine,
    scaler: Scaler,
    /// The number of cores follows the load.
    is_auto: bool,
    /// The move under way, and moves that are still to be made.
    moving: Option<Step>,
    plan: VecDeque<Step>,
    /// The number of cores has changed since the move under way began.
    must_plan: bool,
    /// When to begin a move once more that a core did not answer to.
    again_at: Option<Instant>,
    tick_at: Option<Instant>,
    /// Segments of each group when groups were planned last.
    planned: [u64; GROUPS],
    counts: Counts,
    past: VecDeque<Past>,
}

impl Scaling {
    /// The state for `cores`, of which the port was told by [`first_table`].
    pub fn new(cores: Cores, way: Way, loads: Arc<Loads>, machine: Machine) -> Self {
        let mut scaler = Scaler::new(cores.most);
        scaler.set(cores.serving_first());
        loads.watch(cores.is_auto && cores.most > 1);
        Self {
            way,
            loads,
            machine,
            scaler,
            is_auto: cores.is_auto,
            moving: None,
            plan: VecDeque::new(),
            must_plan: false,
            again_at: None,
            tick_at: None,
            planned: [0; GROUPS],
            counts: Counts::default(),
            past: VecDeque::new(),
        }
    }
}

/// The core of each group at first.
pub fn first_table(cores: Cores) -> Table {
    flow::spread_groups(cores.serving_first())
}

impl Scaling {
    /// Number of cores that are to serve flows.
    pub fn serving(&self) -> u8 {
        self.scaler.serving()
    }

    /// The core that sends the first segments of a flow in that slot: slots are spread over the cores that serve.
    pub fn core_of_slot(&self, slot: u32) -> u8 {
        (slot % u32::from(self.serving())) as u8
    }

    /// When to look at the load, or to begin a move, next.
    pub fn due(&self) -> Option<Instant> {
        [self.tick_at, self.again_at].into_iter().flatten().min()
    }

    /// Looks whether a core has said that it is busy; if so, the load is watched from now on.
    pub fn hear_load(&mut self, now: Instant, slow: &mut SlowPath) {
        if self.loads.take_busy() && self.is_auto && self.tick_at.is_none() {
            self.tick_at = Some(now.plus(WINDOW));
            self.sample(now, slow);
        }
    }

    /// Makes the tick, and begins the move, that are due.
    pub fn handle_timers(&mut self, now: Instant, slow: &mut SlowPath) {
        if self.again_at.is_some_and(|at| at <= now) {
            self.next_move(now, slow);
        }
        if self.tick_at.is_some_and(|at| at <= now) {
            self.sample(now, slow);
            let is_needed = self.is_auto && (self.scaler.must_watch() || self.loads.take_busy());
            // What holds an addition back is looked at less often.
            let pause = if self.scaler.hold().is_some() { HELD } else { WINDOW };
            self.tick_at = is_needed.then(|| now.plus(pause));
        }
    }

    /// Shows the state machine the load, and does what it says.
    fn sample(&mut self, now: Instant, slow: &mut SlowPath) {
        let room = self.machine.look(now);
        let sample = Sample {
            now,
            busy: &self.loads.busy(),
            work: self.loads.work(),
            spare: room.spare,
            pressure: room.pressure,
            allowed: room.allowed,
            is_moving: self.moving.is_some() || !self.plan.is_empty(),
        };
        if let Some(change) = self.scaler.tick(&sample) {
            self.rescale(now, slow, change);
        }
    }

    /// Has so many cores serve flows, from now on always; `None`: as the load says.
    pub fn set_cores(&mut self, now: Instant, slow: &mut SlowPath, cores: Option<u8>) {
        self.is_auto = cores.is_none();
        self.loads.watch(self.is_auto);
        self.tick_at = cores.is_none().then_some(now);
        if let Some(cores) = cores {
            self.scaler.set(cores);
            let cores = self.scaler.serving();
            self.rescale(now, slow, Change { cores, why: Why::Asked });
        }
    }

    /// The number of cores has changed: groups are to move.
    fn rescale(&mut self, now: Instant, slow: &mut SlowPath, change: Change) {
        tracing::info!(cores = change.cores, "the number of cores that serve flows changes: {}", change.why);
        self.past.truncate(REMEMBERED - 1);
        self.past.push_front(Past { at: now, change });
        self.plan.clear();
        self.must_plan = true;
        if self.moving.is_none() {
            self.next_move(now, slow);
        }
    }

    /// Begins the next move, if there is one; makes a plan first if the number of cores has changed.
    fn next_move(&mut self, now: Instant, slow: &mut SlowPath) {
        self.again_at = None;
        if std::mem::take(&mut self.must_plan) {
            let loads = slow.group_loads();
            let lately = std::array::from_fn(|group| loads[group].saturating_sub(self.planned[group]));
            self.planned = loads;
            self.plan = plan::plan(slow.group_cores(), &lately, self.scaler.serving()).into();
        }
        while let Some(step) = self.plan.pop_front() {
            match slow.move_groups(now, &step.groups, step.from, step.to) {
                Ok(()) => {
                    self.moving = Some(step);
                    return;
                }
                Err(error) => tracing::error!("groups of flows cannot move: {error}"),
            }
        }
    }

    /// The slow path wants the frames of these groups to come to another core. Returns when no frame enters by the table before.
    pub fn steer(&mut self, slow: &SlowPath, groups: &GroupSet, core: u8) {
        let Some(steering) = &mut self.way.steering else { return };
        let mut table = *slow.group_cores();
        groups.iter().for_each(|group| table[usize::from(group)] = core);
        if let Err(error) = steering.apply(&table) {
            self.counts.refused += 1;
            if self.counts.refused == 1 {
                tracing::warn!(
                    "the port refuses its table of flow groups ({error}): cores hand packets on instead"
                );
            }
        }
    }

    /// A move is over, of so many groups; 0: a core did not answer, and the move is made later.
    pub fn move_over(&mut self, now: Instant, slow: &mut SlowPath, groups: usize) {
        let step = self.moving.take();
        self.counts.given_up += u64::from(groups == 0);
        self.counts.moves += u64::from(groups > 0);
        self.counts.groups += groups as u64;
        if groups == 0 && !self.must_plan {
            step.into_iter().for_each(|step| self.plan.push_front(step));
            self.again_at = Some(now.plus(MOVE_AGAIN));
        } else {
            self.next_move(now, slow);
        }
    }
}
