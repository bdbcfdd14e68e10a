//! The slots of application regions that a report has still to look at.

use crate::registry::Registry;
use crate::registry::memory::slot_key::SlotKey;

/// Regions, and the slots of the last of them from `slot` on.
#[derive(Debug)]
pub struct SlotsLeft {
    regions: Vec<u32>,
    slot: u32,
}

impl SlotsLeft {
    /// All slots of these regions.
    pub const fn of(regions: Vec<u32>) -> Self {
        Self { regions, slot: 0 }
    }

    /// Looks at about `most` slots more, until `see` is true for one. True: no slot is left to look at, or to look for.
    pub fn look(&mut self, registry: &Registry, most: usize, mut see: impl FnMut(SlotKey) -> bool) -> bool {
        let mut left = most;
        while left > 0 {
            let Some(&region) = self.regions.last() else { return true };
            let end = registry.regions.get(&region).map_or(0, |r| r.slots.end_used());
            let upto = end.min(self.slot.saturating_add(left as u32));
            if (self.slot..upto).any(|slot| see(SlotKey { region, slot })) {
                return true;
            }
            left = left.saturating_sub(1 + upto.saturating_sub(self.slot) as usize);
            self.slot = upto;
            if upto >= end {
                self.regions.pop();
                self.slot = 0;
            }
        }
        self.regions.is_empty()
    }
}
