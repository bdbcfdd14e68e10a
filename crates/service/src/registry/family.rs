//! A process and all its descendants by fork: they share regions, context numbers and holder bits.

use crate::registry::process::descriptors::Charge;
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

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

/// A process of a family: alive, or dead while it may have children that have not said hello.
#[derive(Debug)]
pub struct Member {
    /// Random number that a forked child shows to prove its descent.
    pub secret: u64,
    /// Ids of its ancestors, the root first.
    pub ancestors: Vec<u32>,
    ghost: Option<Ghost>,
}

/// A dead process with holder bits of no known process in its sockets: a forked child may be about to say hello.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    /// The service waits for the child until then.
    until: Instant,
    /// The unknown bits that are left.
    bits: u64,
}

/// What became of a family's dead processes.
#[derive(Debug)]
pub struct Ghosts {
    /// When the first that is waited for has waited long enough.
    pub next: Option<Instant>,
    /// The bits that were waited for in vain.
    pub expired: u64,
}

/// The processes of a family, and what they share.
#[derive(Debug, Default)]
pub struct Family {
    /// Contexts of all its processes, by context number.
    contexts: HashMap<u32, Context>,
    /// Holder bits of its live processes.
    holders: u64,
    /// Live processes, and dead ones with children that may still say hello, by id.
    members: HashMap<u32, Member>,
}

impl Family {
    /// Adds a process with its holder bit.
    pub fn join(&mut self, id: u32, holder: u8, secret: u64, ancestors: Vec<u32>) {
        self.holders |= 1 << holder;
        self.waits_no_more(holder);
        self.members.insert(id, Member { secret, ancestors, ghost: None });
    }

    /// The bit may have been an unknown one that a dead process waited for: now it is known which process has it, or that none has.
    pub fn waits_no_more(&mut self, holder: u8) {
        for ghost in self.members.values_mut().filter_map(|member| member.ghost.as_mut()) {
            ghost.bits &= !(1 << holder);
        }
    }

    /// A process with that holder bit has died.
    pub fn leave(&mut self, holder: u8) {
        self.holders &= !(1 << holder);
    }

    /// The family waits until then for children of a dead process that have these holder bits.
    pub fn wait_for_children(&mut self, id: u32, until: Instant, bits: u64) {
        if let Some(member) = self.members.get_mut(&id).filter(|_| bits != 0) {
            member.ghost = Some(Ghost { until, bits });
        }
    }

    /// Ends the waiting for children that have all said hello, or have not in time.
    pub fn settle_ghosts(&mut self, now: Instant) -> Ghosts {
        let mut all = Ghosts { next: None, expired: 0 };
        for member in self.members.values_mut() {
            match member.ghost {
                Some(Ghost { bits: 0, .. }) => member.ghost = None,
                Some(Ghost { until, bits }) if until <= now => {
                    all.expired |= bits & !self.holders;
                    member.ghost = None;
                }
                Some(Ghost { until, .. }) => all.next = Some(all.next.map_or(until, |next| next.min(until))),
                None => {}
            }
        }
        all
    }

    /// Holder bits of its live processes.
    pub fn holders(&self) -> u64 {
        self.holders
    }

    /// True when no live process has that holder bit.
    pub fn is_free(&self, holder: u8) -> bool {
        holder < HOLDERS && self.holders & (1 << holder) == 0
    }

    /// True when holder bits run short: a forked child without one could not use the connections that its parent accepted.
    pub fn is_crowded(&self) -> bool {
        self.holders.count_ones() + HOLDERS_SPARE >= u32::from(HOLDERS)
    }

    /// A process of the family, dead or alive.
    pub fn member(&self, id: u32) -> Option<&Member> {
        self.members.get(&id)
    }

    /// The ids of its processes, dead or alive.
    pub fn member_ids(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }

    /// The dead processes with children that may still say hello.
    pub fn ghosts(&self) -> impl Iterator<Item = (u32, &Member)> {
        self.members.iter().filter(|(_, member)| member.ghost.is_some()).map(|(id, member)| (*id, member))
    }

    /// Forgets the processes that are not kept and have no children that may still say hello.
    pub fn forget_members(&mut self, is_kept: impl Fn(u32) -> bool) {
        self.members.retain(|id, member| member.ghost.is_some() || is_kept(*id));
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
