//! The report of `towpath cores`: cores, the groups of flows that each serves, moves, and why.

use crate::cores::answers;
use crate::registry::Registry;
use crate::registry::report::job::{Making, Refused};
use crate::registry::report::port_stats::Counted;
use crate::registry::scaling::Scaling;
use base::Instant;
use elastic::scaler::{Hold, Why};
use serde::Serialize;
use slowpath::{Listed, SlowPath};
use std::sync::mpsc::Receiver;

/// One core, as `towpath cores` shows it.
#[derive(Debug, Default, Serialize)]
pub struct CoreLine {
    /// Index of the core.
    pub core: u8,
    /// It is to serve flows.
    pub serves: bool,
    /// It has told its counters. Those of a core that does not answer are 0 here.
    pub answers: bool,
    /// Number of groups of flows that it has, of 256.
    pub groups: usize,
    /// Number of connections that it serves.
    pub flows: usize,
    /// Time that it has been busy since the service started, milliseconds.
    pub busy_ms: u64,
    /// Packets taken from its queue of the port.
    pub packets: u64,
    /// Segments that it has sent.
    pub segments_out: u64,
    /// Flows taken in from other cores, and handed over to them.
    pub moved_in: u64,
    /// Flows handed over to other cores.
    pub moved_out: u64,
    /// Packets lost because another core had no room for them.
    pub lost: u64,
}

/// A change of the number of cores.
#[derive(Debug, Serialize)]
pub struct PastLine {
    /// Milliseconds since the change.
    pub ago_ms: u64,
    /// Number of cores since then.
    pub cores: u8,
    /// The reason as a word, and as a sentence.
    pub why: Why,
    /// What speaks for it.
    pub because: String,
}

/// The numbers of `towpath stat`, and the head of `towpath cores`.
#[derive(Debug, Serialize)]
pub struct Totals {
    /// Number of cores that are to serve flows.
    pub serving: u8,
    /// Number of cores that there are.
    pub most: usize,
    /// Number of processors that the service may use.
    pub processors: u8,
    /// Idle cores at the last look, thousandths; 0 while nothing looks.
    pub idle_milli: i64,
    /// The number of serving cores follows the load.
    pub is_auto: bool,
    /// How packets come to the cores of their flows.
    pub steering: String,
    /// Moves made, and groups of flows that have moved.
    pub moves: u64,
    /// Groups of flows that have moved.
    pub groups_moved: u64,
    /// Moves that a core did not answer to in time; they are made later.
    pub moves_given_up: u64,
    /// Moves that are still to be made.
    pub moves_left: usize,
    /// Tables that the port has refused.
    pub tables_refused: u64,
    /// Why busy cores get no help, as a sentence.
    pub hold: Option<String>,
    /// The same as a word.
    pub held_by: Option<Hold>,
}

/// All that `towpath cores` shows.
#[derive(Debug, Serialize)]
pub struct Cores {
    /// The sums that `towpath stat` shows, too.
    #[serde(flatten)]
    pub totals: Totals,
    /// The cores, by index.
    pub cores: Vec<CoreLine>,
    /// The last changes, the latest first.
    pub changes: Vec<PastLine>,
}

impl Scaling {
    /// The sums, for `towpath stat` and `towpath explain`; `most`: number of cores that there are. `None`: there is one.
    pub fn totals_of_several(&self, most: usize) -> Option<Totals> {
        (most > 1).then(|| self.totals(most))
    }

    fn totals(&self, most: usize) -> Totals {
        let (elastic, counts) = (&self.elastic, self.elastic.counts());
        Totals {
            serving: elastic.serving(),
            most,
            processors: elastic.allowed(),
            idle_milli: elastic.idle(),
            is_auto: elastic.is_auto(),
            steering: self.means(),
            moves: counts.moves,
            groups_moved: counts.groups,
            moves_given_up: counts.given_up,
            moves_left: elastic.moves_left(),
            tables_refused: self.refused,
            hold: elastic.hold().map(|hold| hold.to_string()),
            held_by: elastic.hold(),
        }
    }

    /// The answer to `Report::Cores`, without what the cores count and the numbers of their flows.
    pub fn report(&self, now: Instant, slow: &SlowPath, most: usize) -> Cores {
        let (busy, table) = (self.elastic.busy(), slow.group_cores());
        let line = |index: usize| CoreLine {
            core: index as u8,
            serves: index < usize::from(self.elastic.serving()),
            groups: table.iter().filter(|core| usize::from(**core) == index).count(),
            busy_ms: busy.get(index).map_or(0, |busy| busy.as_ms()),
            ..CoreLine::default()
        };
        let changes = self.elastic.past().map(|past| PastLine {
            ago_ms: now.since(past.at).as_ms(),
            cores: past.change.cores,
            why: past.change.why,
            because: past.change.why.to_string(),
        });
        Cores { totals: self.totals(most), cores: (0..most).map(line).collect(), changes: changes.collect() }
    }
}

impl CoreLine {
    fn count(&mut self, counters: &fastpath::Counters) {
        self.answers = true;
        self.packets = counters.packets;
        self.segments_out = counters.segments_out;
        self.moved_in = counters.moved_in;
        self.moved_out = counters.moved_out;
        self.lost = counters.of(fastpath::Cause::CoreFull);
    }
}

/// The report of `towpath cores` that is being made.
#[derive(Debug)]
pub struct CoresReport {
    cores: Cores,
    counted: Vec<Receiver<Counted>>,
    /// How far the flows have been counted.
    flows: Listed,
}

impl CoresReport {
    /// Begins the report. The cores have been asked for their counters.
    pub fn new(counted: Vec<Receiver<Counted>>, cores: Cores) -> Self {
        Self { cores, counted, flows: Listed::default() }
    }
}

impl Making for CoresReport {
    fn go_on(&mut self, registry: &Registry, most: usize) -> bool {
        let cores = &mut self.cores.cores;
        registry.tcp.slow.list(&mut self.flows, most, |socket| {
            let owner = socket.flow.and(socket.owner);
            let of_core = owner.and_then(|owner| cores.get_mut(usize::from(owner.core)));
            of_core.into_iter().for_each(|line| line.flows += 1);
        })
    }

    fn write(mut self: Box<Self>) -> Result<Vec<u8>, Refused> {
        let counted = answers(&self.counted);
        for (line, counted) in self.cores.cores.iter_mut().zip(&counted) {
            counted.iter().for_each(|counted| line.count(&counted.core));
        }
        Ok(serde_json::to_vec(&self.cores)?)
    }
}
