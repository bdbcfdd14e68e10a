//! Asking processes to make more of an application region present.

use crate::registry::Registry;
use crate::registry::channels::OWNER;
use crate::registry::memory::region::AppRegion;
use control::Push;

impl Registry {
    /// Asks all processes that use an application region to populate more of it, once at a time. The owner alone might not answer: it may
    /// be gone, or wait for children that serve its connections.
    pub fn grow(&mut self, region: u32) {
        let Some(r) = self.regions.get_mut(&region).filter(|r| r.growing.is_none()) else { return };
        let present = r.memory.area.lendable();
        let bytes = control::grown(present, r.memory.region().layout().params.data_len);
        if bytes <= present {
            return;
        }
        if r.owner == OWNER {
            return self.grow_own(region, bytes);
        }
        r.growing = Some(bytes);
        let owner = r.owner;
        let users = self.applications.values().filter(|a| a.descends_from(owner)).map(|a| a.id);
        for user in users.collect::<Vec<_>>() {
            self.push(user, Push::Grow { region, bytes });
        }
    }

    /// Asks a new process to populate regions of its ancestors that were asked in vain: they may be waiting for this process.
    pub fn ask_to_grow(&mut self, id: u32) {
        let Some(a) = self.applications.get(&id) else { return };
        let wanted = |r: &AppRegion| r.growing.filter(|_| r.owner != id && a.descends_from(r.owner));
        let all = self.regions.iter().filter_map(|(region, r)| Some((*region, wanted(r)?)));
        for (region, bytes) in all.collect::<Vec<_>>() {
            self.push(id, Push::Grow { region, bytes });
        }
    }
}
