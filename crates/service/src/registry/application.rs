//! The service's data about one registered process.

use crate::registry::process::descriptors::Payer;
use crate::registry::report::statistics::Process;
use control::{Itself, KernelReason};
use std::collections::{BTreeSet, VecDeque};

/// A registered process, as the control thread knows it.
#[derive(Debug)]
pub struct Application {
    /// Number of the process in the service: that of its control line; never 0.
    pub id: u32,
    /// Index of its bit in `SockBlock::holders`, below [`HOLDERS`](crate::registry::family::HOLDERS).
    pub holder: u8,
    /// The user that it runs as (`SO_PEERCRED`).
    pub uid: u32,
    /// Its user administers the service: a part of every limit is kept for it.
    pub is_administrator: bool,
    /// That user's primary group (`SO_PEERCRED`).
    pub gid: u32,
    /// Path of its control group; read only while a policy rule names control groups.
    pub cgroup: Option<String>,
    /// Network namespace in which its control line was made (`SO_NETNS_COOKIE`); 0: not known.
    pub namespace: u64,
    /// Ids of its ancestors, the root of the family first.
    pub ancestors: Vec<u32>,
    /// Id of its own application region, once `OpenRegion` was asked.
    pub region: Option<u32>,
    /// It lacks address space for regions of the usual size: all its connections go through its own, smaller region.
    pub is_cramped: bool,
    /// Ids of the pair regions that it has been told of.
    pub pairs: BTreeSet<u32>,
    /// Ids of the accept queues that it has the memory of.
    pub queues: BTreeSet<u32>,
    /// Slots that it uses in all regions.
    pub sockets: u32,
    /// Those of `sockets` that are connections over the port.
    pub flows: u32,
    /// What it says of itself, for [`control::Reply::Look`].
    pub itself: Itself,
    /// Its counts, as `towpath stat` shows them.
    pub process: Process,
    /// Its sockets that the kernel serves, for `towpath explain`.
    pub fallen: Fallen,
}

impl Application {
    /// Its user, who pays for what it has the service open.
    pub const fn payer(&self) -> Payer {
        Payer { uid: self.uid, has_share: !self.is_administrator }
    }
}

/// Sockets of one process that fell back to the kernel, by inode, with the reason; at most [`Fallen::MAX`], the oldest are forgotten.
#[derive(Debug, Default)]
pub struct Fallen {
    sockets: VecDeque<(u64, KernelReason)>,
}

impl Fallen {
    /// Most sockets remembered of one process.
    pub const MAX: usize = 1024;

    /// Adds a socket that fell back. Inode 0 stands for an unknown inode and is ignored.
    pub fn add(&mut self, inode: u64, reason: KernelReason) {
        if inode == 0 {
            return;
        }
        if self.sockets.len() == Self::MAX {
            self.sockets.pop_front();
        }
        self.sockets.push_back((inode, reason));
    }

    /// Removes a socket that is accelerated after all. Returns the reason for which it had fallen back.
    pub fn take(&mut self, inode: u64) -> Option<KernelReason> {
        let at = self.sockets.iter().rposition(|(other, _)| *other == inode)?;
        self.sockets.remove(at).map(|(_, reason)| reason)
    }

    /// Inodes and reasons, the oldest first. Where an inode comes twice, the last entry is the valid one.
    pub fn iter(&self) -> impl Iterator<Item = &(u64, KernelReason)> {
        self.sockets.iter()
    }
}

impl Application {
    /// Id of its family: the id of the family's root.
    pub fn family(&self) -> u32 {
        self.ancestors.first().copied().unwrap_or(self.id)
    }

    /// True when this process is `other` or one of its descendants by fork: it then has `other`'s mappings.
    pub fn descends_from(&self, other: u32) -> bool {
        self.id == other || self.ancestors.contains(&other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_kernel_sockets_the_last_are_known() {
        let mut fallen = Fallen::default();
        (0..5_000).for_each(|inode| fallen.add(inode, KernelReason::Rule(inode as u32)));
        assert_eq!(fallen.iter().count(), Fallen::MAX);
        assert_eq!(fallen.iter().last(), Some(&(4_999, KernelReason::Rule(4_999))));
    }
}
