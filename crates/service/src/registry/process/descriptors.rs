//! Counts the service's descriptors by the users for which it has opened them. A user that makes the service open ever more is refused
//! while others can still have some.
//!
//! An ordinary user may have three times as many as are free: one user has three quarters at most, two have three sevenths each, and
//! something is left however many users want all. Ports that are held for connections within the host belong to no user: they count as used,
//! and their number is bounded where they are made (`local/port_space.rs`). An administrator is refused by the kernel alone.

use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Descriptors that belong to no user: the service's own, and some for files that it opens for a moment.
const OWN: usize = 128;
/// A user may have so many times what is free.
const SHARE: usize = 3;
/// Most descriptors in flight to a control line by messages that answer no request, as far as its buffer for sending bounds them. One unread answer
/// has no more, but for that with an application region, which pays for itself. The kernel counts what is in flight against the same limit.
pub const IN_FLIGHT: usize = 6;
/// The limit where the kernel names none.
const UNLIMITED: usize = 1 << 20;

/// How many descriptors the service has for each user.
#[derive(Debug)]
pub struct Descriptors {
    most: usize,
    all: Arc<AtomicUsize>,
    /// By whether it has a share, too: root of a container is not the host's.
    users: HashMap<(u32, bool), Arc<AtomicUsize>>,
    /// Users without descriptors are forgotten when there are so many users.
    forget_at: usize,
}

/// The user that a descriptor is counted for.
#[derive(Clone, Copy, Debug)]
pub struct Payer {
    /// Number of the user.
    pub uid: u32,
    /// False for an administrator: it may have all that the kernel gives.
    pub has_share: bool,
}

/// Descriptors that count as a user's until this is dropped.
#[derive(Debug)]
#[must_use = "what is charged counts as long as this lives"]
pub struct Charge {
    count: usize,
    of: [Arc<AtomicUsize>; 2],
}

impl Charge {
    fn new(count: usize, of: [Arc<AtomicUsize>; 2]) -> Self {
        of.iter().for_each(|number| {
            number.fetch_add(count, Relaxed);
        });
        Self { count, of }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.iter().for_each(|number| {
            number.fetch_sub(self.count, Relaxed);
        });
    }
}

impl Descriptors {
    /// None are in use; the limit is this process's.
    pub fn open() -> Self {
        Self::with_most(getrlimit(Resource::Nofile).current.map_or(UNLIMITED, |most| most as usize))
    }

    fn with_most(limit: usize) -> Self {
        // With a very small limit half of it.
        let most = limit.saturating_sub(OWN).max(limit / 2);
        Self { most, all: Arc::default(), users: HashMap::new(), forget_at: 64 }
    }

    /// Charges a user with `count` descriptors, while `others` are used that belong to no user. `None`: it has its share.
    pub fn charge(&mut self, who: Payer, count: usize, others: usize) -> Option<Charge> {
        let used = self.all.load(Relaxed) + others + count;
        if self.users.len() >= self.forget_at {
            self.users.retain(|_, number| number.load(Relaxed) > 0);
            self.forget_at = 64.max(2 * self.users.len());
        }
        let its = self.users.entry((who.uid, who.has_share)).or_default();
        let is_within = |free: usize| its.load(Relaxed) + count <= SHARE * free;
        if who.has_share && !self.most.checked_sub(used).is_some_and(is_within) {
            return None;
        }
        Some(Charge::new(count, [self.all.clone(), its.clone()]))
    }

    /// How many are charged.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.all.load(Relaxed)
    }

    /// Charges a user with one descriptor that the service has whether it will or not.
    pub fn charge_anyway(&mut self, who: Payer) -> Charge {
        let its = self.users.entry((who.uid, who.has_share)).or_default();
        Charge::new(1, [self.all.clone(), its.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Payer = Payer { uid: 0, has_share: false };

    fn user(uid: u32) -> Payer {
        Payer { uid, has_share: true }
    }

    /// Charges a user with single descriptors, as many as it may have.
    fn fill(all: &mut Descriptors, uid: u32) -> Vec<Charge> {
        std::iter::from_fn(|| all.charge(user(uid), 1, 0)).collect()
    }

    #[test]
    fn each_further_user_finds_something_left() {
        let mut all = Descriptors::with_most(4000 + OWN);
        let first = fill(&mut all, 1);
        assert_eq!(first.len(), 3000, "three quarters");
        let mut kept = Vec::new();
        for uid in 2..6 {
            let its = fill(&mut all, uid);
            assert!(!its.is_empty(), "user {uid}");
            kept.push(its);
        }
        assert!(all.charge(ROOT, 1, 0).is_some(), "root has no share");
    }

    #[test]
    fn what_is_dropped_is_free_again() {
        let mut all = Descriptors::with_most(400 + OWN);
        let count = fill(&mut all, 1).len();
        assert_eq!(fill(&mut all, 1).len(), count);
        let kept = fill(&mut all, 1);
        assert!(fill(&mut all, 2).len() < count);
        drop(kept);
        assert_eq!(fill(&mut all, 2).len(), count);
    }

    #[test]
    fn ports_count_as_used() {
        let mut all = Descriptors::with_most(400 + OWN);
        assert!(all.charge(user(1), 30, 361).is_none());
        assert!(all.charge(user(1), 30, 360).is_some());
        let kept = all.charge(ROOT, 30, 20_000);
        assert!(kept.is_some(), "what nobody pays for keeps root out of nothing: the kernel may");
        assert!(all.charge(user(1), 1, 380).is_none(), "what root has is used");
    }

    #[test]
    fn root_of_a_container_does_not_share_with_the_hosts() {
        let mut all = Descriptors::with_most(400 + OWN);
        let _roots = all.charge(ROOT, 200, 0).unwrap();
        assert!(all.charge(user(0), 100, 0).is_some(), "it has nothing yet");
    }

    #[test]
    fn what_is_charged_anyway_counts() {
        let mut all = Descriptors::with_most(400 + OWN);
        let kept: Vec<Charge> = (0..301).map(|_| all.charge_anyway(user(1))).collect();
        assert!(all.charge(user(1), 1, 0).is_none());
        drop(kept);
        assert!(all.charge(user(1), 1, 0).is_some());
    }

    #[test]
    fn users_without_descriptors_are_forgotten() {
        let mut all = Descriptors::with_most(4000);
        let kept = all.charge(user(7), 1, 0);
        (100..10_000).for_each(|uid| drop(all.charge(user(uid), 1, 0)));
        assert!(all.users.len() <= 64);
        drop(kept);
    }
}
