//! What a core owes the slow path while flows move: its answers, until the exception ring has room for them.

use flow::{Exception, ExceptionSender};

/// The answers that are due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answers {
    /// The core parks what comes for the groups; the number of that command.
    pub(crate) expecting: Option<u32>,
    /// The core was asked to yield, by the command of that number. The answer is due when its queue is found empty, or when so many frames have
    /// come out of it in their order since the core started: under a load that never lets the queue be empty, all that waited then.
    pub(crate) yielding: Option<(u32, u64)>,
    /// All frames that waited in the core's queue when it was asked to yield have been handled.
    pub(crate) quiet: Option<u32>,
    /// All flows have come.
    pub(crate) has_taken: bool,
}

impl Answers {
    /// True when an answer is due.
    pub(crate) const fn are_owed(&self) -> bool {
        self.expecting.is_some() || self.quiet.is_some() || self.has_taken
    }

    /// Pushes the answers that are due, as far as the ring has room.
    pub(crate) fn push(&mut self, exceptions: &mut ExceptionSender) {
        let Self { expecting, yielding: _, quiet, has_taken } = self;
        let said = expecting.is_some_and(|number| exceptions.push(Exception::Expecting { number }).is_ok());
        *expecting = expecting.filter(|_| !said);
        let said = quiet.is_some_and(|number| exceptions.push(Exception::Quiet { number }).is_ok());
        *quiet = quiet.filter(|_| !said);
        *has_taken = *has_taken && exceptions.push(Exception::Taken).is_err();
    }
}
