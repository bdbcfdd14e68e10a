//! What the service knows of one registered process, and of the family that grows from it by fork.

use crate::statistics::Process;
use control::Line;
use rustix::fd::OwnedFd;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Processes that a family may have at once: each has a bit in `SockBlock::holders`, whose last one is `shm::TRUST`.
pub const HOLDERS: u8 = 63;
/// Bits that are kept for the children to which connections belong that wait to be accepted.
const HOLDERS_SPARE: u32 = 15;

/// A registered process.
#[derive(Debug)]
pub struct Application {
    /// Its name here, never 0, never used twice.
    pub id: u32,
    /// Its bit in `SockBlock::holders`.
    pub holder: u8,
    /// By the kernel's word.
    pub uid: u32,
    /// Its user's primary group, by the kernel's word.
    pub gid: u32,
    /// Path of its control group when it registered, where the policy asks for it.
    pub cgroup: Option<String>,
    /// By the kernel's word.
    pub pid: i32,
    /// Network namespace, as the inode of `/proc/PID/ns/net`; the service's own where that cannot be seen.
    pub namespace: u64,
    /// Its ancestors, the root of the family first.
    pub ancestors: Vec<u32>,
    /// The control line.
    pub line: Arc<Line>,
    /// Its own application region, once opened.
    pub region: Option<u32>,
    /// It has no address space for regions of the usual size: all of its connections go by its own one, which is smaller.
    pub is_cramped: bool,
    /// Pair regions it has been told of.
    pub pairs: BTreeSet<u32>,
    /// Slots it uses, in all regions.
    pub sockets: u32,
    /// Of these: connections over the port.
    pub flows: u32,
    /// What is counted.
    pub process: Process,
    /// Its kernel sockets.
    pub fallen: Fallen,
}

/// Kernel sockets that fell back, by inode; the last ones of very many.
#[derive(Debug, Default)]
pub struct Fallen {
    sockets: VecDeque<(u64, String)>,
}

impl Fallen {
    /// So many are remembered.
    pub const MAX: usize = 1024;

    /// One more. 0 is no inode.
    pub fn add(&mut self, inode: u64, reason: String) {
        if inode == 0 {
            return;
        }
        if self.sockets.len() == Self::MAX {
            self.sockets.pop_front();
        }
        self.sockets.push_back((inode, reason));
    }

    /// The socket is accelerated after all. Why it was not.
    pub fn take(&mut self, inode: u64) -> Option<String> {
        let at = self.sockets.iter().rposition(|(other, _)| *other == inode)?;
        self.sockets.remove(at).map(|(_, reason)| reason)
    }

    /// Inodes and reasons, the oldest first: where an inode comes twice, the last is true.
    pub fn iter(&self) -> impl Iterator<Item = &(u64, String)> {
        self.sockets.iter()
    }
}

impl Application {
    /// The root of its family.
    pub fn family(&self) -> u32 {
        self.ancestors.first().copied().unwrap_or(self.id)
    }

    /// True when it is `other` or was forked by it, however indirectly: then it holds what `other` had mapped.
    pub fn descends_from(&self, other: u32) -> bool {
        self.id == other || self.ancestors.contains(&other)
    }
}

/// How to wake one context.
#[derive(Debug)]
pub struct Context {
    /// Which process sleeps on it.
    pub application: u32,
    /// Write this. Never read by the service.
    pub eventfd: Arc<OwnedFd>,
}

/// A member that may yet have children who have not said hello.
#[derive(Debug)]
pub struct Member {
    /// Shown by its forked children.
    pub secret: u64,
    /// Its ancestors, the root first.
    pub ancestors: Vec<u32>,
    /// Set when it is dead and sockets are held by somebody unknown: a child on its way to say hello. Waits for it
    /// until then; these are the unknown holder bits.
    pub ghost: Option<(Instant, u64)>,
}

/// A process and all that were forked from it: they share regions, context numbers and holder bits.
#[derive(Debug, Default)]
pub struct Family {
    /// By number.
    pub contexts: HashMap<u32, Context>,
    /// Bits of live members.
    pub holders: u64,
    /// Live members, and dead ones whose children may still come.
    pub members: HashMap<u32, Member>,
}

impl Family {
    /// True when there may soon be no bit for a forked child, which could not go on with what its parent accepted.
    pub fn is_crowded(&self) -> bool {
        self.holders.count_ones() + HOLDERS_SPARE >= u32::from(HOLDERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_kernel_sockets_the_last_are_known() {
        let mut fallen = Fallen::default();
        (0..5_000).for_each(|inode| fallen.add(inode, format!("reason {inode}")));
        assert_eq!(fallen.iter().count(), Fallen::MAX);
        assert_eq!(fallen.iter().last(), Some(&(4_999, "reason 4999".to_owned())));
    }
}
