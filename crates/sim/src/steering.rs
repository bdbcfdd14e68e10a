//! How the interface of a host brings frames to the queues of its cores, and the moves of groups of flows between them.

use crate::host::Host;
use crate::receive_offload::group_of;
use base::{Duration, Instant, Seed};
use flow::{GroupSet, spread_groups};

/// The interface's table of groups.
#[derive(Debug)]
pub(crate) struct Steering {
    /// The queue of each group.
    queues: [u8; wire::GROUPS],
    /// Time from a change to the first frame that goes by it.
    delay: Duration,
    /// The change that is under way, and when it is in force.
    change: Option<(Instant, GroupSet, u8)>,
    /// Number of moves that were given up because a core did not answer in time.
    given_up: u64,
    /// Number of groups that have moved.
    moved: u64,
}

impl Steering {
    pub(crate) fn new(cores: u8, delay: Duration) -> Self {
        Self { queues: spread_groups(cores), delay, change: None, given_up: 0, moved: 0 }
    }

    /// When the change under way is in force.
    pub(crate) fn next_deadline(&self) -> Instant {
        self.change.map_or(Instant::NEVER, |(at, _, _)| at)
    }

    /// The queue for a frame; the first for frames without TCP.
    pub(crate) fn queue_of(&self, frame: &[u8]) -> usize {
        group_of(frame).map_or(0, |group| usize::from(self.queues[usize::from(group)]))
    }

    /// Begins to bring the groups to another queue.
    pub(crate) fn begin(&mut self, now: Instant, groups: GroupSet, core: u8) {
        self.change = Some((now.plus(self.delay), groups, core));
    }

    /// Counts a move that is over, of so many groups; 0: it was given up.
    pub(crate) fn count(&mut self, groups: usize) {
        self.moved += groups as u64;
        self.given_up += u64::from(groups == 0);
    }
}

/// Frames that come to another queue than their flow's.
#[derive(Debug)]
pub(crate) struct Strays {
    every: u32,
    rng: Seed,
}

impl Strays {
    /// One frame in `every` strays; 0: none.
    pub(crate) fn new(every: u32, seed: u64) -> Self {
        Self { every, rng: Seed::new(seed ^ 0x7374_7261_7973) }
    }

    /// The queue, out of `queues`, to which a frame comes that belongs to `queue`.
    pub(crate) fn queue(&mut self, queue: usize, queues: usize) -> usize {
        let strays = self.every > 0 && self.rng.below(u64::from(self.every)) == 0;
        if strays { self.rng.below(queues as u64) as usize } else { queue }
    }
}

impl Host {
    /// Puts a change of steering in force when its time has come. True when it has.
    pub(crate) fn steer(&mut self, now: Instant) -> bool {
        let due = self.steering.as_mut().filter(|steering| steering.next_deadline() <= now);
        let Some(steering) = due else { return false };
        if let Some((_, groups, core)) = steering.change.take() {
            let first = groups.iter().next().map_or(0, |group| steering.queues[usize::from(group)]);
            let from = usize::from(first);
            let old = &self.lanes[from];
            groups.iter().for_each(|group| steering.queues[usize::from(group)] = core);
            if let Some(processors) = &mut self.processors {
                let waiting = port::Port::waiting_most(&old.interface);
                processors.begin_yield(from, old.core.counters(), old.busy_until.max(now), waiting);
            }
            self.stop_if_wanted(true);
            self.slow.steered(now);
        }
        true
    }

    /// Begins the move that `draw` determines: of one group; of a quarter of the groups of the core that has most, to another, as when a core
    /// is added; or of all groups of a core, as when it is removed. Nothing happens while another move is under way.
    pub fn shift(&mut self, draw: u64) {
        let (mut rng, cores) = (Seed::new(draw), self.lanes.len() as u64);
        let table = *self.slow.group_cores();
        let of = |core: u8| (0..=u8::MAX).filter(move |group| table[usize::from(*group)] == core);
        let group = rng.below(wire::GROUPS as u64) as u8;
        let mut groups = GroupSet::default();
        let from = match rng.below(3) {
            0 => {
                groups.insert(group);
                table[usize::from(group)]
            }
            1 => {
                let busiest = (0..cores as u8).max_by_key(|core| of(*core).count()).unwrap_or(0);
                of(busiest).step_by(4).for_each(|group| groups.insert(group));
                busiest
            }
            _ => {
                let leaving = table[usize::from(group)];
                of(leaving).for_each(|group| groups.insert(group));
                leaving
            }
        };
        let to = (u64::from(from) + 1 + rng.below(cores.max(2) - 1)) % cores;
        self.touch();
        // A move that is refused does not begin: one is under way, or the host has one core.
        let _ = self.slow.move_groups(self.now, &groups, from, to as u8);
    }

    /// From now on a core does nothing for `time`.
    pub fn stop_core(&mut self, core: usize, time: Duration) {
        let count = self.lanes.len();
        let until = self.now.plus(time);
        let lane = &mut self.lanes[core % count];
        lane.stopped_until = until;
        // What has come for it meanwhile is looked at then.
        lane.deadline = lane.deadline.min(until);
        self.note_stop();
        self.touch();
    }

    /// Number of segments that came out of order, of frames that the interface or a core lost for lack of room, of moves given up, and of groups
    /// that have moved.
    #[must_use]
    pub fn moves(&self) -> Moves {
        let steering = self.steering.as_ref();
        let mut moves = Moves {
            given_up: steering.map_or(0, |s| s.given_up),
            moved: steering.map_or(0, |s| s.moved),
            changes: self.changes().len() as u64,
            ..Moves::default()
        };
        for lane in &self.lanes {
            let counters = lane.core.counters();
            moves.flows += counters.moved_in;
            moves.out_of_order += counters.out_of_order;
            moves.not_parked += counters.of(fastpath::Cause::CoreFull);
            moves.lost +=
                counters.of(fastpath::Cause::CoreFull) + port::Port::stats(&lane.interface).drops.total();
        }
        moves
    }
}

/// What moves of a host have done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// Groups that have moved.
    pub moved: u64,
    /// Flows that have moved.
    pub flows: u64,
    /// Changes of the number of cores that serve.
    pub changes: u64,
    /// Moves given up because a core did not answer in time.
    pub given_up: u64,
    /// Segments that cores have found out of order.
    pub out_of_order: u64,
    /// Of the lost ones, those for which a core had no room, parked or on their way to it.
    pub not_parked: u64,
    /// Frames lost for lack of room, at the interface or on their way to another core.
    pub lost: u64,
}
