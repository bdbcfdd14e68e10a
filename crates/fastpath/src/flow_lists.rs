//! Everything that a core lists flows in: timers, turns, debts, news. One place knows all of it, so that a flow can leave its core whole, and
//! another core can take it in. Does nothing with the flows itself.

use crate::backlog::Backlog;
use crate::lists::List;
use crate::wheel::Pacer;
use base::Instant;
use flow::FlowId;

/// Most entries of `told`: news and acknowledgements of as many flows as may have a turn in one round, twice the wake-ups of a round.
pub(crate) const TOLD_MAX: usize = 4096;

/// A slot with news for its application, to be told at the end of the stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) flow: FlowId,
    pub(crate) slot: u32,
    pub(crate) region: u16,
    /// Data, FIN or space has come for the application to see.
    pub(crate) has_news: bool,
    /// Bytes it has sent were acknowledged, and it did not wait for space when that was last checked.
    pub(crate) is_acknowledged: bool,
}

/// The lists of a core. A flow may be in each of them.
#[derive(Debug)]
pub(crate) struct FlowLists {
    /// Flows with a delayed acknowledgement, by its time.
    pub(crate) acks: List,
    /// Flows with something to send that wait for their turn.
    pub(crate) backlog: Backlog,
    /// Flows with an event for the slow path that did not fit in the exception ring.
    pub(crate) owed: List,
    /// One bit per flow: a RST of it was lost, so the core acknowledges to make the peer send it again.
    pub(crate) asked: Box<[u64]>,
    /// Some bit of `asked` is set.
    pub(crate) is_asking: bool,
    /// Flows that hold a receive ring, by the time to check it.
    pub(crate) lent: List,
    /// Flows with a grown receive window, by the time to check whether they are idle.
    pub(crate) grown: List,
    /// Flows with a partial segment held back by the application (`TCP_CORK`, `MSG_MORE`), by the time at which it is sent.
    pub(crate) held: List,
    /// Flows with data in flight, by the time of their loss timer.
    pub(crate) looks: Pacer,
    /// Flows with an expired loss timer.
    pub(crate) due: List,
    /// Flows that the pacer has put off, by the time of their next segment.
    pub(crate) pacer: Pacer,
    /// Flows with a program and something under way, by the time of the program's tick.
    pub(crate) ticks: Pacer,
    /// Flows with a tick that is due.
    pub(crate) ticked: List,
    /// Slots to tell at the end of the stage.
    pub(crate) told: Vec<Told>,
}

/// What one flow had in the lists of the core that it has left. Times in nanoseconds; `None`: it was not in that list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Listed {
    acks: Option<u64>,
    lent: Option<u64>,
    grown: Option<u64>,
    held: Option<u64>,
    looks: Option<Instant>,
    pacer: Option<Instant>,
    ticks: Option<Instant>,
    has_backlog: bool,
    is_owing: bool,
    is_asked: bool,
    is_due: bool,
    is_ticked: bool,
    has_news: bool,
    is_acknowledged: bool,
}

impl FlowLists {
    // SETUP: made with the core.
    pub(crate) fn new(flows: usize, regions: usize) -> Self {
        Self {
            acks: List::new(flows),
            backlog: Backlog::new(flows, regions),
            owed: List::new(flows),
            asked: vec![0; flows.div_ceil(64)].into_boxed_slice(),
            is_asking: false,
            lent: List::new(flows),
            grown: List::new(flows),
            held: List::new(flows),
            looks: Pacer::new(flows),
            due: List::new(flows),
            pacer: Pacer::new(flows),
            ticks: Pacer::new(flows),
            ticked: List::new(flows),
            told: Vec::with_capacity(TOLD_MAX),
        }
    }

    /// What the flow has in the lists.
    fn listed(&self, FlowId(flow): FlowId) -> Listed {
        // Names every list: one that is added is not forgotten here.
        let Self {
            acks,
            backlog,
            owed,
            asked,
            is_asking: _,
            lent,
            grown,
            held,
            looks,
            due,
            pacer,
            ticks,
            ticked,
            told,
        } = self;
        let time = |list: &List| list.contains(flow).then(|| list.at(flow));
        let turn = |wheel: &Pacer| wheel.contains(flow).then(|| wheel.at(flow));
        let (mut has_news, mut is_acknowledged) = (false, false);
        for told in told.iter().filter(|told| told.flow.0 == flow) {
            has_news |= told.has_news;
            is_acknowledged |= told.is_acknowledged;
        }
        Listed {
            acks: time(acks),
            lent: time(lent),
            grown: time(grown),
            held: time(held),
            looks: turn(looks),
            pacer: turn(pacer),
            ticks: turn(ticks),
            has_backlog: backlog.contains(flow),
            is_owing: owed.contains(flow),
            is_asked: asked[flow as usize / 64] & 1 << (flow % 64) != 0,
            is_due: due.contains(flow),
            is_ticked: ticked.contains(flow),
            has_news,
            is_acknowledged,
        }
    }

    /// True when the flow is in some list.
    #[must_use]
    pub(crate) fn contains(&self, flow: FlowId) -> bool {
        self.listed(flow) != Listed::default()
    }

    /// Takes the flow out of all lists. What stayed would act on the next flow with this id, or on a flow that another core serves.
    pub(crate) fn take_out(&mut self, id: FlowId) -> Listed {
        let (listed, FlowId(flow)) = (self.listed(id), id);
        let Self { acks, owed, lent, grown, held, due, ticked, looks, pacer, ticks, .. } = self;
        [acks, owed, lent, grown, held, due, ticked].into_iter().for_each(|list| list.remove(flow));
        [looks, pacer, ticks].into_iter().for_each(|wheel| wheel.remove(flow));
        self.backlog.remove(flow);
        self.asked[flow as usize / 64] &= !(1 << (flow % 64));
        if listed.has_news || listed.is_acknowledged {
            self.told.retain(|told| told.flow.0 != flow);
        }
        debug_assert!(!self.contains(id), "it is taken out of every list that `listed` names");
        listed
    }

    /// Puts a flow into the lists that it was in at another core. `region` and `slot` are its application's.
    ///
    /// It may be in some of them already, and keeps the earlier time there: a core that finds a record busy lists the flow to look again, and
    /// learns only then which core serves it.
    pub(crate) fn put_in(&mut self, flow: FlowId, region: u16, slot: u32, listed: &Listed) {
        let mut insert = |list: fn(&mut Self) -> &mut List, at: Option<u64>| {
            at.into_iter().for_each(|at| list(self).insert(flow.0, at));
        };
        insert(|lists| &mut lists.acks, listed.acks);
        insert(|lists| &mut lists.lent, listed.lent);
        insert(|lists| &mut lists.grown, listed.grown);
        insert(|lists| &mut lists.held, listed.held);
        insert(|lists| &mut lists.owed, listed.is_owing.then_some(0));
        insert(|lists| &mut lists.due, listed.is_due.then_some(0));
        insert(|lists| &mut lists.ticked, listed.is_ticked.then_some(0));
        listed.looks.into_iter().for_each(|at| self.looks.wait(flow.0, at));
        listed.pacer.into_iter().for_each(|at| self.pacer.wait(flow.0, at));
        listed.ticks.into_iter().for_each(|at| self.ticks.wait(flow.0, at));
        if listed.has_backlog {
            self.backlog.push(flow.0, region);
        }
        if listed.is_asked {
            self.ask(flow);
        }
        let Listed { has_news, is_acknowledged, .. } = *listed;
        if (has_news || is_acknowledged) && self.told.len() < TOLD_MAX {
            self.told.push(Told { flow, slot, region, has_news, is_acknowledged });
        }
    }

    /// Marks the flow in `asked`.
    pub(crate) fn ask(&mut self, FlowId(flow): FlowId) {
        self.asked[flow as usize / 64] |= 1 << (flow % 64);
        self.is_asking = true;
    }

    /// When the next program has its tick.
    #[inline]
    pub(crate) fn next_tick(&self) -> Instant {
        if self.ticked.front().is_some() { Instant::ZERO } else { self.ticks.next_deadline() }
    }

    /// The time of the first entry of all lists with times.
    pub(crate) fn next_deadline(&self) -> Instant {
        let at = |list: &List| list.front().map_or(Instant::NEVER, |(_, at)| Instant::from_ns(at));
        let first =
            at(&self.acks).min(at(&self.lent)).min(at(&self.due)).min(at(&self.grown)).min(at(&self.held));
        first
            .min(self.next_tick())
            .min(self.looks.next_deadline())
            .min(self.pacer.next_deadline())
            .min(self.backlog.next_deadline())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seed;

    const FLOWS: u32 = 32;

    /// Puts the flow into each list with a probability of one half, at a time drawn from `rng`.
    fn scatter(lists: &mut FlowLists, rng: &mut Seed, flow: u32) {
        let mut draw = || (rng.below(2) == 0).then(|| rng.below(1 << 30));
        let listed = Listed {
            acks: draw(),
            lent: draw(),
            grown: draw(),
            held: draw(),
            looks: draw().map(Instant::from_ns),
            pacer: draw().map(Instant::from_ns),
            ticks: draw().map(Instant::from_ns),
            has_backlog: draw().is_some(),
            is_owing: draw().is_some(),
            is_asked: draw().is_some(),
            is_due: draw().is_some(),
            is_ticked: draw().is_some(),
            has_news: draw().is_some(),
            is_acknowledged: draw().is_some(),
        };
        lists.put_in(FlowId(flow), 1, flow, &listed);
    }

    #[test]
    fn a_flow_leaves_one_core_whole_and_the_other_has_all_of_it() {
        let mut rng = Seed::new(4);
        let new = || FlowLists::new(FLOWS as usize, 2);
        let (mut from, mut to) = (new(), new());
        (0..FLOWS).for_each(|flow| scatter(&mut from, &mut rng, flow));
        for flow in (0..FLOWS).map(FlowId) {
            let was_in_some = from.contains(flow);
            let listed = from.take_out(flow);
            assert_eq!(was_in_some, listed != Listed::default());
            assert!(!from.contains(flow));
            to.put_in(flow, 1, flow.0, &listed);
            assert_eq!(to.contains(flow), was_in_some);
            // Times that are not the earliest of their list may move to the front's: only then less is left of them.
            let mut again = to.take_out(flow);
            to.put_in(flow, 1, flow.0, &listed);
            let early = |a: Option<u64>, b: Option<u64>| a.is_some() == b.is_some() && a <= b;
            assert!(early(again.acks, listed.acks) && early(again.held, listed.held));
            (again.acks, again.lent, again.grown, again.held) =
                (listed.acks, listed.lent, listed.grown, listed.held);
            assert_eq!(again, listed);
        }
        assert!((0..FLOWS).all(|flow| !from.contains(FlowId(flow))));
        assert_eq!(from.next_deadline(), Instant::NEVER);
    }

    #[test]
    fn a_flow_that_a_core_has_listed_before_it_came_is_there_once_and_by_the_earlier_time() {
        let mut rng = Seed::new(6);
        let mut lists = FlowLists::new(FLOWS as usize, 2);
        for _ in 0..500 {
            let flow = rng.below(u64::from(FLOWS)) as u32;
            lists.acks.push_front(flow, 5);
            scatter(&mut lists, &mut rng, flow);
            assert_eq!(lists.listed(FlowId(flow)).acks, Some(5));
            let listed: Vec<u32> = lists.acks.iter().collect();
            assert_eq!(listed.len(), lists.acks.len() as usize);
            if rng.below(3) == 0 {
                lists.take_out(FlowId(flow));
            }
        }
        (0..FLOWS).for_each(|flow| {
            lists.take_out(FlowId(flow));
        });
        assert_eq!((lists.acks.len(), lists.acks.front()), (0, None));
    }
}
