//! How many cores serve flows, and which groups of flows each has. The thread that leads the cores asks it when it is due; it looks at the load, and
//! has the slow path move groups, one move after another. Decides neither itself: `scaler` says how many cores, `plan` which groups. Reads no
//! clock and no file: the service and the simulator run it alike.
//!
//! ```text
//!   a core is busy ─► ticks of 10 ms ─► scaler ─► plan ─► slow path: move ─► Event::Steer ─► the port's table ─► ... ─► Event::MoveOver
//!                          └──────────────── until one core serves and is not busy ◄───────────────────────────────────────┘
//! ```
#![forbid(unsafe_code)]

pub mod load;
pub mod plan;
pub mod scaler;

use crate::load::Loads;
use crate::plan::Step;
use crate::scaler::{Change, Hold, Sample, Scaler, WINDOW, Why};
use base::{Duration, Instant};
use slowpath::{MoveError, SlowPath};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use wire::GROUPS;

/// Time between two looks at the load while busy cores get no help: so long the machine's idle time is taken for the same.
const HELD: Duration = Duration::from_ms(100);
/// Time until a move is tried again that a core did not answer to.
const MOVE_AGAIN: Duration = Duration::from_secs(1);
/// Changes that are remembered.
const REMEMBERED: usize = 16;

/// What the machine can give at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Idle time of the processors that the service may use, thousandths of one processor.
    pub spare: u32,
    /// Share of the time in which a program waited for a processor, percent.
    pub pressure: u32,
    /// Number of processors that the service may use, at least 1.
    pub allowed: u8,
}

/// The machine that the cores run on.
pub trait Machine: Send + Debug {
    /// What it can give now.
    fn look(&mut self, now: Instant) -> Room;
    /// Number of processors that the service may use, as of the last look, or of the beginning.
    fn allowed(&self) -> u8;
}

/// A change of the number of cores, and when it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Past {
    /// When the change was decided.
    pub at: Instant,
    /// How many cores serve since then, and why.
    pub change: Change,
}

/// Counts since the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Moves that are over.
    pub moves: u64,
    /// Groups that they moved.
    pub groups: u64,
    /// Moves that a core did not answer to in time.
    pub given_up: u64,
}

/// How many cores serve, and the moves that make it so.
#[derive(Debug)]
pub struct Elastic {
    loads: Arc<Loads>,
    machine: Box<dyn Machine>,
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
    /// The last change, until it is taken.
    news: Option<Change>,
    /// Why the slow path refused a move, until it is taken.
    refusal: Option<MoveError>,
}

impl Elastic {
    /// `most` cores, of which `serving` serve flows at first; with `is_auto` as many as the load needs from then on.
    pub fn new(most: u8, serving: u8, is_auto: bool, loads: Arc<Loads>, machine: Box<dyn Machine>) -> Self {
        let mut scaler = Scaler::new(most);
        scaler.set(serving);
        loads.watch(is_auto && most > 1);
        Self {
            loads,
            machine,
            scaler,
            is_auto,
            moving: None,
            plan: VecDeque::new(),
            must_plan: false,
            again_at: None,
            tick_at: None,
            planned: [0; GROUPS],
            counts: Counts::default(),
            past: VecDeque::new(),
            news: None,
            refusal: None,
        }
    }

    /// Number of cores that are to serve flows.
    pub fn serving(&self) -> u8 {
        self.scaler.serving()
    }

    /// The number of cores follows the load.
    pub fn is_auto(&self) -> bool {
        self.is_auto
    }

    /// The load is being watched.
    pub fn is_watching(&self) -> bool {
        self.tick_at.is_some()
    }

    /// Idle cores at the last look, thousandths; 0 while nothing looks.
    pub fn idle(&self) -> i64 {
        if self.is_watching() { self.scaler.idle() } else { 0 }
    }

    /// Why busy cores get no help; `None`: they need none, get it, or their number does not follow the load.
    pub fn hold(&self) -> Option<Hold> {
        self.scaler.hold().filter(|_| self.is_auto)
    }

    /// Number of processors that the service may use.
    pub fn allowed(&self) -> u8 {
        self.machine.allowed()
    }

    /// Time that each core has been busy since it started.
    pub fn busy(&self) -> Vec<Duration> {
        self.loads.busy()
    }

    /// Counts of moves since the beginning.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Number of moves that are to be made, with the one under way.
    pub fn moves_left(&self) -> usize {
        self.plan.len() + usize::from(self.moving.is_some())
    }

    /// The move under way.
    pub fn moving(&self) -> Option<&Step> {
        self.moving.as_ref()
    }

    /// The last changes, the latest first.
    pub fn past(&self) -> impl Iterator<Item = &Past> {
        self.past.iter()
    }

    /// Takes the last change, if it has not been taken.
    pub fn take_news(&mut self) -> Option<Change> {
        self.news.take()
    }

    /// Takes the reason for which the slow path refused a move, if there was one.
    pub fn take_refusal(&mut self) -> Option<MoveError> {
        self.refusal.take()
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
        match cores {
            Some(cores) => self.fix(now, slow, cores, Why::Asked),
            None => self.watch_load(Some(now)),
        }
    }

    /// Has one core serve flows from now on, because the port brings packets to no other.
    pub fn lose_steering(&mut self, now: Instant, slow: &mut SlowPath) {
        self.fix(now, slow, 1, Why::Unsteered);
    }

    /// Measures the load from this instant on, and has it decide; `None`: stops that.
    fn watch_load(&mut self, tick_at: Option<Instant>) {
        self.is_auto = tick_at.is_some();
        self.loads.watch(self.is_auto);
        self.tick_at = tick_at;
    }

    fn fix(&mut self, now: Instant, slow: &mut SlowPath, cores: u8, why: Why) {
        self.watch_load(None);
        self.scaler.set(cores);
        let cores = self.scaler.serving();
        self.rescale(now, slow, Change { cores, why });
    }

    /// The number of cores has changed: groups are to move.
    fn rescale(&mut self, now: Instant, slow: &mut SlowPath, change: Change) {
        self.news = Some(change);
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
                Err(error) => self.refusal = Some(error),
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
