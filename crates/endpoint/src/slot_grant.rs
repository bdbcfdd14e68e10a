//! Slots of a pair region that the service has granted to the connecting process, each for connections to one listener from one port.

use crate::host::Host;
use crate::per_process::PerProcess;
use crate::region::Mapped;
use queue::stream::raise;
use shm::half_flags::{LENT, PUSHING, RELEASED};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Slots of a pair region that the service has granted to this process (not to its children): each is for connections to one listener
/// from a port of its own.
#[derive(Debug)]
pub struct Lease {
    host: &'static Host,
    any: AtomicBool,
    slots: Mutex<PerProcess<Slots>>,
}

#[derive(Debug, Default)]
struct Slots {
    /// All granted slots: the local port and the listener of each.
    granted: HashMap<u32, (u16, SocketAddr)>,
    /// Granted slots without a connection, by the listener.
    idle: HashMap<SocketAddr, Idle>,
}

/// Granted slots for one listener that have no connection.
#[derive(Debug, Default)]
struct Idle {
    free: Vec<u32>,
    /// Slots closed on this side, the oldest first; the other side may not have released them yet.
    closed: VecDeque<u32>,
}

impl Lease {
    /// No slot is granted.
    pub(crate) fn new(host: &'static Host) -> Self {
        Self { host, any: AtomicBool::new(false), slots: Mutex::default() }
    }

    fn locked(&self) -> MutexGuard<'_, PerProcess<Slots>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, to be taken before a fork.
    pub const fn lock(&self) -> &Mutex<impl Sized + use<>> {
        &self.slots
    }

    /// Adds slots for connections to `remote`, each with its local port. Slots that the region lacks are left out.
    pub fn add(&self, mapped: &Mapped, remote: SocketAddr, new: impl Iterator<Item = (u32, u16)>) {
        let mut slots = self.locked();
        let slots = slots.get(self.host.generation());
        for (slot, port) in new.filter(|(slot, _)| mapped.has(*slot)) {
            slots.granted.insert(slot, (port, remote));
            slots.idle.entry(remote).or_default().free.push(slot);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes a slot for a new connection to `remote`, with both halves cleared; returns it and its port.
    pub fn take(&self, mapped: &Mapped, remote: SocketAddr) -> Option<(u32, u16)> {
        // If the lock is taken, its holder may be the code that this signal handler interrupted: the slot is not waited for.
        let mut slots = self.slots.try_lock().ok()?;
        let Slots { granted, idle } = slots.get(self.host.generation());
        let idle = idle.get_mut(&remote)?;
        let slot = loop {
            let Some(slot) = idle.closed.front().copied() else { break idle.free.pop()? };
            let (own, peer) = mapped.halves(slot);
            let flags = peer.flags.load(Ordering::Acquire);
            let is_pushed = (flags | own.flags.load(Ordering::Acquire)) & PUSHING != 0;
            if flags & LENT != 0 && (flags & RELEASED == 0 || is_pushed) {
                break idle.free.pop()?;
            }
            idle.closed.pop_front();
            if flags & LENT != 0 {
                break slot;
            }
            // The service has taken the slot back.
            granted.remove(&slot);
        };
        let (port, _) = *granted.get(&slot)?;
        drop(slots);
        let (own, peer) = mapped.halves(slot);
        own.clear();
        peer.clear();
        Some((slot, port))
    }

    /// True when the slot is granted to this process.
    pub fn has(&self, slot: u32) -> bool {
        self.any.load(Ordering::Relaxed)
            && self.locked().get(self.host.generation()).granted.contains_key(&slot)
    }

    /// Notes that this side has released its connection in a granted slot.
    pub fn closed(&self, slot: u32) {
        let mut slots = self.locked();
        let Slots { granted, idle } = slots.get(self.host.generation());
        if let Some((_, remote)) = granted.get(&slot) {
            idle.entry(*remote).or_default().closed.push_back(slot);
        }
    }

    /// Gives back a slot taken for a connection that was not made after all.
    pub fn give_back(&self, mapped: &Mapped, remote: SocketAddr, slot: u32) {
        let (own, peer) = mapped.halves(slot);
        raise(own, RELEASED);
        raise(peer, RELEASED | LENT);
        self.locked().get(self.host.generation()).idle.entry(remote).or_default().free.push(slot);
    }
}
