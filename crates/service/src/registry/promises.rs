//! Promised children. A process that is about to fork takes a holder bit for the child, says so on a line of its own (`Request::Expect`), and sets
//! the bit in its socket blocks. The child inherits the line, and closes it when it has sent its hello.
//!
//! ```text
//!   Expect on line L  -->  promise of the bit  --  a hello with the bit       -->  fulfilled: L means nothing any more
//!                                              --  L ends before such a hello -->  broken: no process can hold what the bit says
//! ```
//! The kernel ends L when the last process that has it is gone or has closed it. So no time decides whether a child that has not said hello
//! still may: a child that is stopped keeps its connections for as long as it is stopped.

use crate::registry::family::{Family, Promise};
use crate::registry::registration::Credentials;
use crate::registry::{Answer, Registry};
use control::Parent;
use std::collections::HashSet;
use std::time::Duration;

/// What a control line stands for on which a child was promised that has not said hello.
#[derive(Clone, Copy, Debug)]
pub struct Promised {
    /// Id of the family that the child will be of.
    family: u32,
    /// The user that has made the line.
    uid: u32,
}

impl Registry {
    /// Answers `Request::Expect` on a line without an application.
    pub fn expect(&mut self, line: u32, who: Credentials, parent: Parent) -> Answer {
        let may_promise = self.admits(who, false);
        // Without a family the parent was detached meanwhile.
        let Some(family_id) = self.family_of(parent.application) else { return Answer::Silent };
        let Some(family) = self.families.get_mut(&family_id) else { return Answer::Silent };
        if !family.is_parent(parent) {
            return Answer::Offence("it promised a child of a process that it is not".to_owned());
        }
        // The child may have been quicker. A user that has as many processes as it may cannot have this child either.
        if may_promise && family.is_free(parent.holder) {
            let before = family.promise(parent.holder, Promise { line, parent: parent.application });
            self.forget_promise(before);
            self.promises.insert(line, Promised { family: family_id, uid: who.uid });
        }
        Answer::Silent
    }

    /// True while the line stands for a child that has not said hello.
    pub fn has_promise(&self, line: u32) -> bool {
        self.promises.contains_key(&line)
    }

    /// True when that child was promised and has not said hello.
    pub fn is_promised(&self, parent: Parent) -> bool {
        let family = self.family_of(parent.application).and_then(|family| self.families.get(&family));
        let has = |family: &Family| family.promises().any(|(holder, _)| holder == parent.holder);
        family.is_some_and(|family| family.is_parent(parent) && has(family))
    }

    /// Number of a user's children that were promised and have not said hello.
    pub fn promised_of(&self, uid: u32) -> usize {
        self.promises.values().filter(|promised| promised.uid == uid).count()
    }

    /// The promise is fulfilled, or another one has taken its place: nothing follows from the end of its line.
    pub fn forget_promise(&mut self, promise: Option<Promise>) {
        if let Some(Promise { line, .. }) = promise {
            self.promises.remove(&line);
        }
    }

    /// The processes that have promised children which may still say hello.
    pub fn promising(&self) -> HashSet<u32> {
        self.families.values().flat_map(Family::promises).map(|(_, promise)| promise.parent).collect()
    }

    /// True when a child that has not said hello is promised by that process or by a descendant of it.
    pub fn expects_heir_of(&self, id: u32) -> bool {
        let family = self.family_of(id).and_then(|family| self.families.get(&family));
        family.is_some_and(|family| family.expects_heir_of(id))
    }

    /// A process has misbehaved: its memory is not kept for children that have not said hello.
    pub fn break_promises_of(&mut self, parent: u32, family: u32) {
        let its = self.families.get(&family).into_iter().flat_map(Family::promises);
        let lines: Vec<u32> = its.filter(|(_, p)| p.parent == parent).map(|(_, p)| p.line).collect();
        lines.into_iter().for_each(|line| self.break_promise(line, true));
    }

    /// That line has ended. If a child was promised on it that has not said hello, no process holds what its bit says.
    pub fn break_promise(&mut self, line: u32, offender: bool) {
        let Some(Promised { family: id, uid }) = self.promises.remove(&line) else { return };
        let Some(family) = self.families.get_mut(&id) else { return };
        let Some((holder, Promise { parent, .. })) = family.take_promise(line) else { return };
        let ancestors: HashSet<u32> = self.line_of(parent).collect();
        self.release_holders(id, |owner| ancestors.contains(&owner), 1 << holder, offender);
        self.give_holder_back(parent, holder);
        // The child may have been the last process that could accept, or that kept the family.
        let all = self.listeners.all.iter();
        let its = all.filter(|(_, l)| l.holders.shown().any(|shown| ancestors.contains(&shown)));
        let queues: Vec<u32> = its.map(|(queue, _)| *queue).collect();
        queues.into_iter().for_each(|queue| self.look_for_acceptors(queue));
        self.trusts.changed = true;
        self.trusts.hurry(uid, self.now, Duration::ZERO);
    }
}
