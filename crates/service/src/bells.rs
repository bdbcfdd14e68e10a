//! By which eventfd each context of each application is woken: written by the control thread, read by all threads, and
//! only when somebody sleeps, which costs a system call anyway.

use crate::registry::write_eventfd;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Contexts are numbered within a family; an application region belongs to one.
#[derive(Debug, Default)]
struct Table {
    family_of: HashMap<u16, u32>,
    contexts: HashMap<(u32, u32), Arc<OwnedFd>>,
}

/// The table, shared.
#[derive(Debug, Default)]
pub struct Bells(RwLock<Table>);

impl Bells {
    fn change(&self, f: impl FnOnce(&mut Table)) {
        f(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The region of that index belongs to `family`, or to nobody.
    pub fn set_region(&self, index: u16, family: Option<u32>) {
        self.change(|t| match family {
            Some(family) => drop(t.family_of.insert(index, family)),
            None => drop(t.family_of.remove(&index)),
        });
    }

    /// `context` of `family` sleeps on that eventfd, or is gone.
    pub fn set_context(&self, family: u32, context: u32, eventfd: Option<Arc<OwnedFd>>) {
        self.change(|t| match eventfd {
            Some(eventfd) => drop(t.contexts.insert((family, context), eventfd)),
            None => drop(t.contexts.remove(&(family, context))),
        });
    }

    /// Wakes `context` of `family`.
    pub fn wake_in(&self, family: u32, context: u32) {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(eventfd) = table.contexts.get(&(family, context)) {
            write_eventfd(eventfd.as_fd());
        }
    }

    /// Wakes `context` of the family that owns the region of that index.
    pub fn wake(&self, index: u16, context: u32) {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let family = table.family_of.get(&index);
        if let Some(eventfd) = family.and_then(|f| table.contexts.get(&(*f, context))) {
            write_eventfd(eventfd.as_fd());
        }
    }
}
