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
    /// How frames come to the cores of their flows, in words, while the port takes its tables.
    means: String,
    /// Tables that the port has refused.
    refused: u64,
    /// Why it has refused the last one; `None`: it has that table.
    refusal: Option<String>,
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
        Ok(Self { elastic, steerer, means: way.means, refused: 0, refusal: None })
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
        let is_alone = result.is_err() && self.elastic.is_auto();
        self.refusal = result.as_ref().err().map(ToString::to_string);
        if let Err(error) = result {
            self.refused += 1;
            let instead = if is_alone {
                "one core serves all flows from now on (`towpath cores --set auto` tries again)"
            } else {
                "cores hand packets on instead"
            };
            if self.refused == 1 || is_alone {
                tracing::warn!("the port refuses its table of flow groups ({error}): {instead}");
            }
        }
        slow.steered(now);
        if is_alone {
            // As with a port that cannot be steered from the start.
            self.elastic.lose_steering(now, slow);
            self.log();
        }
    }

    /// How frames come to the cores of their flows, in words.
    fn means(&self) -> String {
        match &self.refusal {
            None => self.means.clone(),
            Some(error) => {
                format!("an older table, and cores hand packets on: the port refuses the new one ({error})")
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::wakers::new_eventfd;
    use elastic::scaler::Why;
    use flow::Flows;
    use rustix::event::{PollFd, PollFlags, poll};

    /// A port that refuses every table.
    #[derive(Debug)]
    struct Refuses;

    impl Steering for Refuses {
        fn apply(&mut self, _: &Table) -> io::Result<()> {
            Err(io::Error::other("no"))
        }
        fn means(&self) -> &'static str {
            "nothing"
        }
    }

    #[test]
    fn where_the_load_decides_a_refused_table_leaves_one_core_until_it_is_asked_for_more() {
        for is_auto in [true, false] {
            let (told, loads) = (new_eventfd().unwrap(), Arc::new(Loads::new(2)));
            let flows = Arc::new(Flows::new(flow::Config::default(), [1, 2]));
            let (commands, _ends): (Vec<_>, Vec<_>) = (0..2).map(|_| flow::commands(64)).unzip();
            let config = slowpath::Config { is_steered: true, serving: 1, ..slowpath::Config::default() };
            let mut slow = SlowPath::new(config, flows, commands, Instant::ZERO);
            let way = Way { steering: Some(Box::new(Refuses)), means: String::new() };
            let cores = Cores { most: 2, is_auto };
            let mut scaling = Scaling::new(cores, way, loads, Machine::open(), told.clone()).unwrap();
            let serving = cores.serving_first();
            scaling.steer(Instant::ZERO, &mut slow, &GroupSet::of(7), 1);
            poll(&mut [PollFd::new(&told, PollFlags::IN)], None).unwrap();
            scaling.hear_steered(Instant::ZERO, &mut slow);
            assert_eq!((scaling.refused, scaling.elastic.is_auto()), (1, false));
            assert_eq!(
                scaling.means(),
                "an older table, and cores hand packets on: the port refuses the new one (no)"
            );
            let why = scaling.elastic.past().next().map(|past| past.change.why);
            assert_eq!(why, is_auto.then_some(Why::Unsteered));
            assert_eq!(scaling.elastic.serving(), if is_auto { 1 } else { serving });
            scaling.set_cores(Instant::ZERO, &mut slow, None);
            assert!(scaling.elastic.is_auto());
        }
    }
}
