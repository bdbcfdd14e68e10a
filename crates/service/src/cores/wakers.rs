//! The eventfds that wake the contexts of applications. The control thread writes the table; all threads read it, but only to wake a
//! sleeping context, which costs a system call anyway.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// A non-blocking eventfd with counter 0.
pub fn new_eventfd() -> rustix::io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
}

/// Adds one to an eventfd's counter. A full counter loses nothing: its reader has not looked yet.
pub fn write_eventfd(fd: BorrowedFd<'_>) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Contexts are numbered within a family, and each application region belongs to one family.
#[derive(Debug, Default)]
struct Table {
    family_of: HashMap<u16, u32>,
    contexts: HashMap<(u32, u32), Arc<OwnedFd>>,
}

/// The table, shared by all threads.
#[derive(Debug, Default)]
pub struct Wakers(RwLock<Table>);

impl Wakers {
    fn change(&self, f: impl FnOnce(&mut Table)) {
        f(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes that the region with that index belongs to `family`; `None`: the region is gone.
    pub fn set_region(&self, index: u16, family: Option<u32>) {
        self.change(|t| match family {
            Some(family) => drop(t.family_of.insert(index, family)),
            None => drop(t.family_of.remove(&index)),
        });
    }

    /// Notes the eventfd that wakes `context` of `family`; `None`: the context is gone.
    pub fn set_context(&self, family: u32, context: u32, eventfd: Option<Arc<OwnedFd>>) {
        self.change(|t| match eventfd {
            Some(eventfd) => drop(t.contexts.insert((family, context), eventfd)),
            None => drop(t.contexts.remove(&(family, context))),
        });
    }

    /// Wakes the context number `context` of `family`.
    pub fn wake_in(&self, family: u32, context: u32) {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(eventfd) = table.contexts.get(&(family, context)) {
            write_eventfd(eventfd.as_fd());
        }
    }

    /// Wakes `context` of the family that owns the region with that index.
    pub fn wake(&self, index: u16, context: u32) {
        if let Some(eventfd) = self.of(index, context) {
            write_eventfd(eventfd.as_fd());
        }
    }

    /// The eventfd that wakes `context` of the family that owns the region with that index.
    pub fn of(&self, index: u16, context: u32) -> Option<Arc<OwnedFd>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let family = table.family_of.get(&index)?;
        table.contexts.get(&(*family, context)).cloned()
    }
}
