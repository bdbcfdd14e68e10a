//! A process and all its descendants by fork: they share regions, context numbers and holder bits.

use crate::registry::process::descriptors::Charge;
use control::Parent;
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Most processes of a family at once: each has one bit in `SockBlock::holders`; the last bit is `shm::TRUST`.
pub const HOLDERS: u8 = 63;
/// Holder bits kept free for children that a server forks to serve connections that wait to be accepted.
const HOLDERS_SPARE: u32 = 15;

/// A context (one place where a thread sleeps) of an application, and the eventfd that wakes it.
#[derive(Debug)]
pub struct Context {
    /// Id of the process that sleeps there.
    pub application: u32,
    /// The service writes it to wake the process, and never reads it.
    pub eventfd: Arc<OwnedFd>,
    /// Counts the eventfd as its user's.
    _charge: Charge,
}

impl Context {
    /// A context of a process, with its eventfd.
    pub const fn new(application: u32, eventfd: Arc<OwnedFd>, charge: Charge) -> Self {
        Self { application, eventfd, _charge: charge }
    }
}

/// A process of a family: alive, or dead while something still refers to it.
#[derive(Debug)]
pub struct Member {
    /// Random number that a forked child shows to prove its descent.
    pub secret: u64,
    /// Ids of its ancestors, the root first.
    pub ancestors: Vec<u32>,
}

/// A child that a process is about to fork, or has forked, and that has not said hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// Number of the control line that ends when no process can be that child any more.
    pub line: u32,
    /// Id of the process that promises the child. It may have ended since.
    pub parent: u32,
}

/// The processes of a family, and what they share.
#[derive(Debug, Default)]
pub struct Family {
    /// Contexts of all its processes, by context number.
    contexts: HashMap<u32, Context>,
    /// Holder bits of its live processes.
    holders: u64,
    /// Live processes, and dead ones to which something still refers, by id.
    members: HashMap<u32, Member>,
    /// Promised children, by their holder bits: none of a live process.
    promises: BTreeMap<u8, Promise>,
}

impl Family {
    /// Adds a process with its holder bit. Returns the promise that this fulfils.
    pub fn join(&mut self, id: u32, holder: u8, secret: u64, ancestors: Vec<u32>) -> Option<Promise> {
        self.holders |= 1 << holder;
        self.members.insert(id, Member { secret, ancestors });
        self.promises.remove(&holder)
    }

    /// A process with that holder bit has died.
    pub fn leave(&mut self, holder: u8) {
        self.holders &= !(1 << holder);
    }

    /// A child is promised that holder bit, which is free. Returns the promise of the same bit that this one replaces.
    pub fn promise(&mut self, holder: u8, promise: Promise) -> Option<Promise> {
        self.promises.insert(holder, promise)
    }

    /// No process can fulfil the promise on that line any more. Returns its holder bit, and the promise.
    pub fn take_promise(&mut self, line: u32) -> Option<(u8, Promise)> {
        let holder = self.promises().find(|(_, promise)| promise.line == line)?.0;
        self.promises.remove_entry(&holder)
    }

    /// The promised children that have not said hello.
    pub fn promises(&self) -> impl Iterator<Item = (u8, Promise)> {
        self.promises.iter().map(|(holder, promise)| (*holder, *promise))
    }

    /// True when `parent` is a process of the family, as its secret shows, and the number is that of a holder bit.
    pub fn is_parent(&self, parent: Parent) -> bool {
        let is_its = |member: &Member| member.secret == parent.secret;
        self.members.get(&parent.application).is_some_and(is_its) && parent.holder < HOLDERS
    }

    /// True when a child that has not said hello is promised by that process or by a descendant of it.
    pub fn expects_heir_of(&self, id: u32) -> bool {
        let descends = |parent: u32| {
            parent == id || self.members.get(&parent).is_some_and(|member| member.ancestors.contains(&id))
        };
        self.promises.values().any(|promise| descends(promise.parent))
    }

    /// True when a process of the family lives, or a child of one may still say hello.
    pub fn has_life(&self) -> bool {
        self.holders != 0 || !self.promises.is_empty()
    }

    /// Holder bits of its live processes.
    #[cfg(test)]
    pub fn holders(&self) -> u64 {
        self.holders
    }

    /// True when no live process has that holder bit.
    pub fn is_free(&self, holder: u8) -> bool {
        holder < HOLDERS && self.holders & (1 << holder) == 0
    }

    /// True when holder bits run short: a forked child without one could not use the connections that its parent accepted.
    pub fn is_crowded(&self) -> bool {
        self.holders.count_ones() + self.promises.len() as u32 + HOLDERS_SPARE >= u32::from(HOLDERS)
    }

    /// A process of the family, dead or alive.
    pub fn member(&self, id: u32) -> Option<&Member> {
        self.members.get(&id)
    }

    /// The ids of its processes, dead or alive.
    pub fn member_ids(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }

    /// Forgets the processes that are not kept and have promised no child that may still say hello.
    pub fn forget_members(&mut self, is_kept: impl Fn(u32) -> bool) {
        let Self { members, promises, .. } = self;
        let has_promised = |id: u32| promises.values().any(|promise| promise.parent == id);
        members.retain(|id, _| is_kept(*id) || has_promised(*id));
    }

    /// The context of that number.
    pub fn context(&self, number: u32) -> Option<&Context> {
        self.contexts.get(&number)
    }

    /// The numbers of all contexts.
    pub fn contexts(&self) -> impl Iterator<Item = u32> {
        self.contexts.keys().copied()
    }

    /// The numbers of a process's contexts.
    pub fn contexts_of(&self, application: u32) -> impl Iterator<Item = u32> {
        let all = self.contexts.iter();
        all.filter(move |(_, context)| context.application == application).map(|(number, _)| *number)
    }

    /// Adds a context. False: another process has that number.
    pub fn add_context(&mut self, number: u32, context: Context) -> bool {
        if self.contexts.get(&number).is_some_and(|known| known.application != context.application) {
            return false;
        }
        self.contexts.insert(number, context);
        true
    }

    /// Removes a process's contexts, and returns their numbers.
    pub fn remove_contexts_of(&mut self, application: u32) -> Vec<u32> {
        let its: Vec<u32> = self.contexts_of(application).collect();
        its.iter().for_each(|number| drop(self.contexts.remove(number)));
        its
    }
}
