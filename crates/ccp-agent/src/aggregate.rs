//! Aggregates (CCP paper, section 6.3): flows that are decided about together. An aggregate is an [`Algorithm`] like any other to the agent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::algorithm::{Algorithm, Failure, Flow, FlowInfo, FlowKey, Outcome};
use crate::datapath::Datapath;
use crate::report::Report;

/// An algorithm for groups of flows.
pub trait Aggregate: Send {
    /// What flows of one group have in common: a source address, a peer, a network.
    type Key: Ord + Clone + Send;
    /// The state of one group.
    type Group: Group;

    /// The name by which flows choose it, as [`Algorithm::name`].
    fn name(&self) -> &str;

    /// All programs that its flows may run, as [`Algorithm::programs`].
    fn programs(&self) -> Vec<(String, String)>;

    /// The group of a new flow (the paper's `aggregateBy`).
    fn aggregate_by(&self, info: &FlowInfo) -> Self::Key;

    /// The first flow of a group has begun (the paper's `create`); [`Group::create_subflow`] follows for it, too.
    fn create(&mut self, key: &Self::Key) -> Self::Group;

    /// The flow's weight in its group.
    fn weight(&self, _info: &FlowInfo) -> u32 {
        1
    }
}

/// The state of one group of flows, and what it decides.
pub trait Group: Send {
    /// A flow joins the group with this weight.
    ///
    /// # Errors
    /// If the group cannot take it.
    fn create_subflow(&mut self, datapath: Datapath, info: &FlowInfo, weight: u32) -> Outcome;

    /// One flow of the group has reported.
    ///
    /// # Errors
    /// If this flow cannot go on; the others do.
    fn on_report(&mut self, flow: FlowKey, report: &Report) -> Outcome;

    /// The timer of one flow's [`Datapath`] is due.
    ///
    /// # Errors
    /// If this flow cannot go on.
    fn on_timer(&mut self, _flow: FlowKey) -> Outcome {
        Ok(())
    }

    /// A flow has left the group. Nothing can be sent to it any more.
    fn close_subflow(&mut self, flow: FlowKey);
}

type Groups<A> = Arc<Mutex<BTreeMap<<A as Aggregate>::Key, Membership<<A as Aggregate>::Group>>>>;

/// A group, and how many flows it has.
struct Membership<G> {
    group: Arc<Mutex<G>>,
    members: usize,
}

/// A panic in a handler ends one flow; the state that it left is the group's.
fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an algorithm of an aggregate. A group lives as long as it has flows.
pub struct Aggregated<A: Aggregate> {
    aggregate: A,
    groups: Groups<A>,
}

impl<A: Aggregate> Aggregated<A> {
    /// The aggregate without flows.
    pub fn new(aggregate: A) -> Self {
        Self { aggregate, groups: Arc::default() }
    }
}

impl<A> Algorithm for Aggregated<A>
where
    A: Aggregate + 'static,
    A::Key: 'static,
    A::Group: 'static,
{
    fn name(&self) -> &str {
        self.aggregate.name()
    }

    fn programs(&self) -> Vec<(String, String)> {
        self.aggregate.programs()
    }

    fn new_flow(&mut self, datapath: Datapath, info: &FlowInfo) -> Result<Box<dyn Flow>, Failure> {
        let key = self.aggregate.aggregate_by(info);
        let known = locked(&self.groups).get(&key).map(|known| Arc::clone(&known.group));
        let group = known.unwrap_or_else(|| Arc::new(Mutex::new(self.aggregate.create(&key))));
        let weight = self.aggregate.weight(info);
        locked(&group).create_subflow(datapath, info, weight)?;
        let mut groups = locked(&self.groups);
        let membership = Membership { group: Arc::clone(&group), members: 0 };
        groups.entry(key.clone()).or_insert(membership).members += 1;
        drop(groups);
        Ok(Box::new(Subflow::<A> { key, flow: info.flow, group, groups: Arc::clone(&self.groups) }))
    }
}

/// One flow of a group, as the agent sees it.
struct Subflow<A: Aggregate> {
    key: A::Key,
    flow: FlowKey,
    group: Arc<Mutex<A::Group>>,
    groups: Groups<A>,
}

impl<A: Aggregate> Flow for Subflow<A> {
    fn on_report(&mut self, report: &Report) -> Outcome {
        locked(&self.group).on_report(self.flow, report)
    }

    fn on_timer(&mut self) -> Outcome {
        locked(&self.group).on_timer(self.flow)
    }

    fn close(&mut self) {
        let mut groups = locked(&self.groups);
        let is_last = groups.get_mut(&self.key).is_some_and(|membership| {
            membership.members -= 1;
            membership.members == 0
        });
        if is_last {
            groups.remove(&self.key);
        }
        drop(groups);
        locked(&self.group).close_subflow(self.flow);
    }
}

/// Divides `total` by weights, to the last unit: parts differ from their exact share by less than 1. Without any weight, all parts are 0.
#[must_use]
pub fn apportion(total: u64, weights: &[u32]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let mut passed = 0_u128;
    let mut given = 0_u64;
    let part = |weight: &u32| {
        passed += u128::from(*weight);
        // At most `total`, since `passed` is at most `sum`.
        let until_here = (u128::from(total) * passed / sum) as u64;
        until_here - std::mem::replace(&mut given, until_here)
    };
    weights.iter().map(part).collect()
}
