//! What wakes the threads of applications: the eventfds of their contexts, and the regions where they nap. The control thread writes the table; all threads read it, but only to wake a
//! sleeping context, which costs a system call anyway.

use flow::{AppRegion, News, Sleeper};
use queue::nap;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use shm::{Region, Side, futex};
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

/// How sleeping threads of an application are woken.
#[derive(Debug)]
pub enum Call {
    /// By writing that eventfd.
    Write(Arc<OwnedFd>),
    /// They nap at that slot of the region.
    Rouse(Arc<AppRegion>, u32),
}

/// Wakes the threads of `side` that nap at `slot`, if they do.
#[cold]
pub fn rouse(region: &Region, side: Side, slot: u32) {
    if region.slot(slot).is_some_and(|slot| nap::rouse(&slot.half[side.index()])) {
        rouse_at(region, side, slot);
    }
}

/// Wakes the threads of `side` that sleep on the word of `slot`, whatever it says by now, as far as one call of the kernel's does.
pub fn rouse_at(region: &Region, side: Side, slot: u32) {
    if let Some(slot) = region.slot(slot) {
        futex::wake(&slot.half[side.index()].context);
    }
}

/// Contexts are numbered within a family, and each application region belongs to one family.
#[derive(Debug, Default)]
struct Table {
    regions: HashMap<u16, (u32, Arc<AppRegion>)>,
    contexts: HashMap<(u32, u32), Arc<OwnedFd>>,
}

/// The table, shared by all threads.
#[derive(Debug, Default)]
pub struct Wakers(RwLock<Table>);

impl Wakers {
    fn change(&self, f: impl FnOnce(&mut Table)) {
        f(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes the region with that index and the family that it belongs to; `None`: the region is gone.
    pub fn set_region(&self, index: u16, owned: Option<(u32, Arc<AppRegion>)>) {
        self.change(|t| match owned {
            Some(owned) => drop(t.regions.insert(index, owned)),
            None => drop(t.regions.remove(&index)),
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

    /// Wakes the threads that have news.
    pub fn wake(&self, news: News) {
        match self.of(news) {
            Some(Call::Write(eventfd)) => write_eventfd(eventfd.as_fd()),
            Some(Call::Rouse(region, slot)) => rouse_at(region.region(), Side::One, slot),
            None => {}
        }
    }

    /// How to wake the threads that have news.
    pub fn of(&self, news: News) -> Option<Call> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (family, region) = table.regions.get(&news.region)?;
        match news.sleeper {
            Sleeper::Context(context) => table.contexts.get(&(*family, context)).cloned().map(Call::Write),
            Sleeper::Slot(slot) => Some(Call::Rouse(region.clone(), slot)),
        }
    }
}
