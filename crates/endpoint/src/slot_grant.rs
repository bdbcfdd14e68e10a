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

/// A slot granted to this process for connections to one listener.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// The local port of the connections.
    pub port: u16,
    /// The listener's address, as connectors name it.
    pub remote: SocketAddr,
    /// Id of the listener's accept queue.
    pub queue: u32,
    /// Number of the grant in that queue.
    pub grant: u32,
}

#[derive(Debug, Default)]
struct Slots {
    /// All slots that the service has granted, by number.
    granted: HashMap<u32, Granted>,
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

    /// Adds granted slots; of one that is granted already the grant changes, because another listener has the address now. Slots that the
    /// region lacks are left out.
    pub fn add(&self, mapped: &Mapped, new: impl Iterator<Item = (u32, Granted)>) {
        let mut slots = self.locked();
        let slots = slots.get(self.host.generation());
        for (slot, granted) in new.filter(|(slot, _)| mapped.has(*slot)) {
            if slots.granted.insert(slot, granted).is_none() {
                slots.idle.entry(granted.remote).or_default().free.push(slot);
            }
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes a slot for a new connection to `remote` through accept queue `queue`, with both halves cleared.
    pub fn take(&self, mapped: &Mapped, remote: SocketAddr, queue: u32) -> Option<(u32, Granted)> {
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
        let found = *granted.get(&slot)?;
        if found.queue != queue {
            // It was granted for an earlier listener at this address: the service must grant it again.
            idle.free.insert(0, slot);
            return None;
        }
        drop(slots);
        let (own, peer) = mapped.halves(slot);
        own.clear();
        peer.clear();
        Some((slot, found))
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
        if let Some(Granted { remote, .. }) = granted.get(&slot) {
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
