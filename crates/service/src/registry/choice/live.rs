//! Changes of congestion control while the service runs: new rules, and live flows that they are to hold for.

use crate::registry::Registry;
use crate::registry::choice::{Choice, Chooser};
use crate::registry::memory::region::{AppRegion, Use};
use crate::registry::memory::slot_key::SlotKey;
use crate::registry::tcp::Flow;
use control::{CongestionName, FlowSelector};
use serde::Serialize;

/// What a change has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Changed {
    /// Rules in force now.
    pub rules: usize,
    /// Live flows that the rule is for.
    pub fitting: usize,
    /// Those of them that got another congestion control now.
    pub changed: usize,
    /// Those of them that keep what their sockets have chosen by `TCP_CONGESTION`.
    pub kept: usize,
}

impl Registry {
    /// Makes or takes away a rule; with `is_live` the live flows that it is for follow at once.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn set_congestion(
        &mut self,
        which: &FlowSelector,
        name: Option<CongestionName>,
        is_live: bool,
    ) -> Result<Changed, String> {
        self.choices.set(which, name)?;
        let listeners: Vec<u32> = self.listeners.all.keys().copied().collect();
        listeners.into_iter().for_each(|id| self.tcp_options(id));
        let mut done = Changed { rules: self.choices.rules().len(), ..Changed::default() };
        for key in self.fitting_flows(which) {
            done.fitting += 1;
            let Some(flow) = self.flow_at(key).copied() else { continue };
            let choice = self.choice_of(flow.application, flow.ends, flow.asked);
            done.kept += usize::from(choice.by == Chooser::Socket);
            if is_live && choice != flow.choice {
                done.changed += usize::from(choice.law != flow.choice.law);
                self.give_law(key, choice);
            }
        }
        Ok(done)
    }

    /// The flow at that slot.
    pub fn flow_at(&self, key: SlotKey) -> Option<&Flow> {
        match self.regions.get(&key.region)?.slots.get(key.slot)? {
            Use::Flow(flow) => Some(flow),
            Use::Relay(..) => None,
        }
    }

    /// All flows with a slot.
    pub fn all_flows(&self) -> Vec<SlotKey> {
        let of_region = |(region, r): (&u32, &AppRegion)| {
            let flows = r.slots.iter().filter(|(_, what)| matches!(what, Use::Flow(_)));
            flows.map(|(slot, _)| SlotKey { region: *region, slot }).collect::<Vec<_>>()
        };
        self.regions.iter().flat_map(of_region).collect()
    }

    fn fitting_flows(&self, which: &FlowSelector) -> Vec<SlotKey> {
        let fits =
            |flow: &Flow| which.fits(&self.flow_subject(flow.application, flow.ends[0], Some(flow.ends[1])));
        let mut all = self.all_flows();
        all.retain(|key| self.flow_at(*key).is_some_and(fits));
        all
    }

    /// From now on the flow is under this law. Its bytes go on.
    pub fn give_law(&mut self, key: SlotKey, choice: Choice) {
        let Some(r) = self.regions.get_mut(&key.region) else { return };
        let index = r.memory.index;
        let Some(Use::Flow(flow)) = r.slots.get_mut(key.slot) else { return };
        let (name, before) = (flow.name, std::mem::replace(&mut flow.choice, choice));
        if before.law == choice.law {
            return;
        }
        let (now, algorithm) = (self.tcp_now(), self.choices.algorithm(choice.law));
        // Outside of `self` while the flow is looked at; there is no way out in between.
        let mut agents = self.agents.take();
        if let (Some(agents), Some(name)) = (&mut agents, name) {
            agents.release(now, &mut self.tcp.slow, name);
        }
        self.tcp.slow.set_slot_algorithm(now, index, key.slot, algorithm);
        if let Some(agents) = &mut agents {
            self.enter(agents, key);
        }
        self.agents = agents;
    }
}
