//! The bells that a flush is going to ring: those of connections with one peer are put together, so that one write tells of up to 64.

use endpoint::region::{Bell, Mapped};
use std::sync::Arc;

/// A bell may be put together with one of so many that were added before it: a process that a flush has news for has most of its slots in a
/// few words.
const NEAR: usize = 8;

/// A bell to be rung for connections of one region.
#[derive(Debug)]
struct Due {
    /// One of the connections.
    index: u32,
    /// The address of its region's description: equal for connections of one region.
    region: usize,
    bell: Bell,
}

/// The bells that a flush is going to ring; empty between flushes.
#[derive(Debug, Default)]
pub(crate) struct Bells(Vec<Due>);

impl Bells {
    /// Adds the bell of connection `index`, in region `mapped`.
    #[inline]
    pub(crate) fn add(&mut self, index: u32, mapped: &Arc<Mapped>, bell: Bell) {
        let region = Arc::as_ptr(mapped).addr();
        let is_same = |due: &&mut Due| {
            (due.region, due.bell.context, due.bell.word) == (region, bell.context, bell.word)
        };
        match self.0.iter_mut().rev().take(NEAR).find(is_same) {
            Some(due) => due.bell.bits |= bell.bits,
            None => self.0.push(Due { index, region, bell }),
        }
    }

    /// Takes a bell, and one of its connections.
    pub(crate) fn pop(&mut self) -> Option<(u32, Bell)> {
        self.0.pop().map(|due| (due.index, due.bell))
    }
}
