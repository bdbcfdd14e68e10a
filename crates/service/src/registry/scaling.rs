//! The port's table of flow groups, and the log of changes, around crate `elastic`, which says how many cores serve flows and which groups of
//! flows each has. The control thread asks it. A thread of its own gives the port its table: the kernel may take milliseconds for that.

pub(crate) mod machine;
pub(crate) mod report;
mod steerer;

use crate::config::values::Cores;
use crate::registry::scaling::machine::Machine;
use crate::registry::scaling::steerer::Steerer;
use base::Instant;
use elastic::Elastic;
use elastic::load::Loads;
use flow::GroupSet;
use port::{Steering, Table};
use rustix::fd::OwnedFd;
use slowpath::SlowPath;
use std::io;
use std::sync::Arc;

/// How frames come to the cores of their flows.
#[derive(Debug)]
pub struct Way {
    /// The port's table; `None`: there is one core, or the port has none, and cores hand frames on.
    pub steering: Option<Box<dyn Steering>>,
    /// The way in words.
    pub means: String,
}

/// The control thread's state of the cores.
#[derive(Debug)]
pub struct Scaling {
    elastic: Elastic,
    /// The thread that gives the port its table; `None`: see [`Way`].
    steerer: Option<Steerer>,
    /// How frames come to the cores of their flows, in words.
    means: String,
    /// Tables that the port has refused.
    refused: u64,
}

impl Scaling {
    /// The state for `cores`, of which the port was told by [`first_table`]. `told` wakes the control thread.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn new(
        cores: Cores,
        way: Way,
        loads: Arc<Loads>,
        machine: Machine,
        told: Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let machine = Box::new(machine);
        let elastic = Elastic::new(cores.most, cores.serving_first(), cores.is_auto, loads, machine);
        let steerer = way.steering.map(|steering| Steerer::start(steering, told)).transpose()?;
        Ok(Self { elastic, steerer, means: way.means, refused: 0 })
    }
}

/// The core of each group at first.
pub fn first_table(cores: Cores) -> Table {
    flow::spread_groups(cores.serving_first())
}

impl Scaling {
    /// The core that sends the first segments of a flow in that slot: slots are spread over the cores that serve.
    pub fn core_of_slot(&self, slot: u32) -> u8 {
        (slot % u32::from(self.elastic.serving())) as u8
    }

    /// When to look at the load, or to begin a move, next.
    pub fn due(&self) -> Option<Instant> {
        self.elastic.due()
    }

    /// Looks whether a core has said that it is busy; if so, the load is watched from now on.
    pub fn hear_load(&mut self, now: Instant, slow: &mut SlowPath) {
        self.elastic.hear_load(now, slow);
        self.log();
    }

    /// Makes the tick, and begins the move, that are due.
    pub fn handle_timers(&mut self, now: Instant, slow: &mut SlowPath) {
        self.elastic.handle_timers(now, slow);
        self.log();
    }

    /// Has so many cores serve flows, from now on always; `None`: as the load says.
    pub fn set_cores(&mut self, now: Instant, slow: &mut SlowPath, cores: Option<u8>) {
        self.elastic.set_cores(now, slow, cores);
        self.log();
    }

    /// A move is over, of so many groups; 0: a core did not answer, and the move is made later.
    pub fn move_over(&mut self, now: Instant, slow: &mut SlowPath, groups: usize) {
        self.elastic.move_over(now, slow, groups);
        self.log();
    }

    /// The slow path wants the frames of these groups to come to another core. When no frame enters by the table before, the slow path is told:
    /// here, if nothing is to be done for that; else by [`hear_steered`](Self::hear_steered).
    pub fn steer(&mut self, now: Instant, slow: &mut SlowPath, groups: &GroupSet, core: u8) {
        let mut table = *slow.group_cores();
        groups.iter().for_each(|group| table[usize::from(group)] = core);
        let is_ordered = self.steerer.as_ref().is_some_and(|steerer| steerer.order(table));
        if !is_ordered {
            slow.steered(now);
        }
    }

    /// Hears whether the port has its new table.
    pub fn hear_steered(&mut self, now: Instant, slow: &mut SlowPath) {
        let Some(result) = self.steerer.as_ref().and_then(Steerer::result) else { return };
        if let Err(error) = result {
            self.refused += 1;
            if self.refused == 1 {
                tracing::warn!(
                    "the port refuses its table of flow groups ({error}): cores hand packets on instead"
                );
            }
        }
        slow.steered(now);
    }

    fn log(&mut self) {
        if let Some(change) = self.elastic.take_news() {
            let cores = change.cores;
            tracing::info!(cores, "the number of cores that serve flows changes: {}", change.why);
        }
        if let Some(error) = self.elastic.take_refusal() {
            tracing::error!("groups of flows cannot move: {error}");
        }
    }
}
