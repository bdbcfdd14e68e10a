//! Sets of flow groups, and the core of each group at first. Moves nothing itself: the slow path says where groups go, and a flow's record names
//! the core that serves it.

use wire::GROUPS;

/// In `ReceiveLine::core`: the flow has left its core, and the core named by the other bits has not taken it in yet.
pub const IN_TRANSIT: u8 = 0x80;
/// Most cores of a service.
pub const CORES_MAX: usize = IN_TRANSIT as usize;

/// A set of groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupSet([u64; GROUPS / 64]);

impl GroupSet {
    /// The set with the group `group` only.
    #[must_use]
    pub fn of(group: u8) -> Self {
        let mut set = Self::default();
        set.insert(group);
        set
    }

    /// Adds a group, if it is not in the set.
    pub fn insert(&mut self, group: u8) {
        self.0[usize::from(group) / 64] |= 1 << (group % 64);
    }

    /// True when the group is in the set.
    #[must_use]
    pub fn contains(&self, group: u8) -> bool {
        self.0[usize::from(group) / 64] & 1 << (group % 64) != 0
    }

    /// True when no group is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; GROUPS / 64]
    }

    /// The groups of the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|group| self.contains(*group))
    }
}

/// The core of each group at first: the groups are spread evenly over `cores` cores.
#[must_use]
pub fn spread_groups(cores: u8) -> [u8; GROUPS] {
    core::array::from_fn(|group| (group % usize::from(cores.max(1))) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_groups_that_were_added() {
        let mut groups = GroupSet::of(255);
        assert!(GroupSet::default().is_empty() && !groups.is_empty());
        groups.insert(64);
        assert!(groups.iter().eq([64, 255]) && groups.contains(64) && !groups.contains(63));
    }

    #[test]
    fn groups_are_spread_evenly() {
        for cores in 1..=14u8 {
            let table = spread_groups(cores);
            let of = |core| table.iter().filter(|c| **c == core).count();
            let counts: Vec<usize> = (0..cores).map(of).collect();
            assert_eq!(counts.iter().sum::<usize>(), GROUPS);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        }
    }
}
