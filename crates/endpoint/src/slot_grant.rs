//! Slots of a pair region that the service has granted to the connecting process, each for connections to one listener from one port.

use crate::host::Host;
use crate::per_process::PerProcess;
use crate::region::Mapped;
use queue::stream::raise;
use shm::half_flags::{LENT, PUSHING, RELEASED};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU16;
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
    /// What each slot is granted for, by its number.
    granted: Vec<Option<Entry>>,
    /// Each address of a listener for which a slot was ever granted.
    listeners: Vec<Listener>,
    /// The index of an address in `listeners`.
    by_address: HashMap<SocketAddr, u16>,
}

/// A [`Granted`] with its address by number: a program may have very many connections.
#[derive(Clone, Copy, Debug)]
struct Entry {
    port: NonZeroU16,
    listener: u16,
    queue: u32,
    grant: u32,
}

const _: () = assert!(size_of::<Option<Entry>>() == 12);

/// The granted slots for one address that have no connection.
#[derive(Debug)]
struct Listener {
    free: Vec<u32>,
    /// Slots closed on this side, the oldest first; the other side may not have released them yet.
    closed: VecDeque<u32>,
}

impl Listener {
    /// The slot is in neither list any more.
    fn forget(&mut self, slot: u32) {
        self.free.retain(|free| *free != slot);
        self.closed.retain(|closed| *closed != slot);
    }
}

impl Slots {
    fn entry(&self, slot: u32) -> Option<Entry> {
        *self.granted.get(slot as usize)?
    }

    fn listener(&mut self, slot: u32) -> Option<&mut Listener> {
        let entry = self.entry(slot)?;
        Some(&mut self.listeners[usize::from(entry.listener)])
    }

    /// The number of the address; `None`: there are more addresses than numbers.
    fn number_of(&mut self, remote: SocketAddr) -> Option<u16> {
        if let Some(number) = self.by_address.get(&remote) {
            return Some(*number);
        }
        let number = u16::try_from(self.listeners.len()).ok()?;
        self.listeners.push(Listener { free: Vec::new(), closed: VecDeque::new() });
        self.by_address.insert(remote, number);
        Some(number)
    }

    /// Notes a grant; `is_free`: the slot has no connection. Without a port, or with one address too many, the slot is left out: connections
    /// then ask the service.
    fn note(&mut self, slot: u32, granted: Granted, is_free: bool) {
        let (Some(port), Some(listener)) = (NonZeroU16::new(granted.port), self.number_of(granted.remote))
        else {
            return;
        };
        let at = slot as usize;
        if self.granted.len() <= at {
            self.granted.resize(at + 1, None);
        }
        let entry = Entry { port, listener, queue: granted.queue, grant: granted.grant };
        let before = self.granted[at].replace(entry);
        if let Some(before) = before.filter(|_| is_free) {
            self.listeners[usize::from(before.listener)].forget(slot);
        }
        if before.is_none() || is_free {
            self.listeners[usize::from(listener)].free.push(slot);
        }
    }
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

    /// Adds granted slots; of one that is granted already the grant changes: another listener has the address now, or (`are_free`) its
    /// connection has gone to another process and has ended there. Slots that the region lacks are left out.
    pub fn add(&self, mapped: &Mapped, new: impl Iterator<Item = (u32, Granted)>, are_free: bool) {
        let mut slots = self.locked();
        let slots = slots.get(self.host.generation());
        for (slot, granted) in new.filter(|(slot, _)| mapped.has(*slot)) {
            slots.note(slot, granted, are_free);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes a slot for a new connection to `remote` through accept queue `queue`, with both halves cleared.
    pub fn take(&self, mapped: &Mapped, remote: SocketAddr, queue: u32) -> Option<(u32, Granted)> {
        // If the lock is taken, its holder may be the code that this signal handler interrupted: the slot is not waited for.
        let mut slots = self.slots.try_lock().ok()?;
        let Slots { granted, listeners, by_address } = slots.get(self.host.generation());
        let listener = &mut listeners[usize::from(*by_address.get(&remote)?)];
        let slot = loop {
            let Some(slot) = listener.closed.front().copied() else { break listener.free.pop()? };
            let (own, peer) = mapped.halves(slot);
            let (flags, ours) = (peer.flags.load(Ordering::Acquire), own.flags.load(Ordering::Acquire));
            let is_pushed = (flags | ours) & PUSHING != 0;
            if flags & LENT != 0 && (flags & ours & RELEASED == 0 || is_pushed) {
                break listener.free.pop()?;
            }
            listener.closed.pop_front();
            if flags & LENT != 0 {
                break slot;
            }
            // The service has taken the slot back.
            granted[slot as usize] = None;
        };
        let found = granted[slot as usize]?;
        if found.queue != queue {
            // It was granted for an earlier listener at this address: the service must grant it again.
            listener.free.insert(0, slot);
            return None;
        }
        drop(slots);
        let (own, peer) = mapped.halves(slot);
        own.clear();
        peer.clear();
        Some((slot, Granted { port: found.port.get(), remote, queue: found.queue, grant: found.grant }))
    }

    /// True when the slot is granted to this process.
    pub fn has(&self, slot: u32) -> bool {
        self.any.load(Ordering::Relaxed) && self.locked().get(self.host.generation()).entry(slot).is_some()
    }

    /// Notes that this side has released its connection in a granted slot.
    pub fn closed(&self, mapped: &Mapped, slot: u32) {
        let mut slots = self.locked();
        let (own, peer) = mapped.halves(slot);
        if peer.flags.load(Ordering::Acquire) & LENT == 0 || own.flags.load(Ordering::Acquire) & RELEASED == 0
        {
            // The service has taken the slot back meanwhile, and may have lent it again.
            return;
        }
        if let Some(listener) = slots.get(self.host.generation()).listener(slot) {
            listener.closed.push_back(slot);
        }
    }

    /// Gives back a slot taken for a connection that was not made after all.
    pub fn give_back(&self, mapped: &Mapped, slot: u32) {
        let (own, peer) = mapped.halves(slot);
        raise(own, RELEASED);
        raise(peer, RELEASED | LENT);
        if let Some(listener) = self.locked().get(self.host.generation()).listener(slot) {
            listener.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Solitary;
    use shm::{Kind, Params, Region, Side};
    use std::sync::Arc;

    static HOST: Host = Host::new(&Solitary);
    const LISTENER: u32 = 7;

    fn granted(port: u16) -> Granted {
        Granted {
            port,
            remote: SocketAddr::from(([127, 0, 0, 1], 80)),
            queue: LISTENER,
            grant: u32::from(port),
        }
    }

    /// The service lends slot 3, which has no connection.
    fn lend(mapped: &Mapped, port: u16) {
        let (own, peer) = mapped.halves(3);
        [own, peer].iter().for_each(|half| half.flags.store(RELEASED, Ordering::Release));
        mapped.lease.add(mapped, [(3, granted(port))].into_iter(), true);
    }

    /// The slot and port of a new connection.
    fn take(mapped: &Mapped) -> Option<(u32, u16)> {
        let (slot, granted) = mapped.lease.take(mapped, granted(1).remote, LISTENER)?;
        mapped.halves(slot).1.flags.store(LENT, Ordering::Release);
        Some((slot, granted.port))
    }

    /// Both sides close the connection in slot 3.
    fn close(mapped: &Mapped) {
        let (own, peer) = mapped.halves(3);
        [own, peer].iter().for_each(|half| raise(half, RELEASED));
        mapped.lease.closed(mapped, 3);
    }

    /// The connection in slot 3 is left with the service, which takes the slot back.
    fn leave(mapped: &Mapped) {
        mapped.halves(3).1.flags.fetch_and(!LENT, Ordering::AcqRel);
    }

    fn mapped() -> Mapped {
        let params = Params { kind: Kind::Pair, id: 2, slots: 64, data_len: 1 << 20 };
        Mapped::new(&HOST, Side::Zero, Arc::new(Region::create(params).unwrap().0), 0)
    }

    #[test]
    fn a_slot_is_used_again_when_both_sides_have_closed_its_connection() {
        let m = mapped();
        lend(&m, 1000);
        assert_eq!((take(&m), take(&m)), (Some((3, 1000)), None));
        close(&m);
        assert_eq!((take(&m), take(&m)), (Some((3, 1000)), None));
        // Another listener has the address: the connection that is there keeps the slot.
        m.lease.add(&m, [(3, granted(1001))].into_iter(), false);
        assert_eq!(take(&m), None);
        close(&m);
        assert_eq!(take(&m), Some((3, 1001)));
    }

    #[test]
    fn a_slot_that_the_service_has_taken_back_is_used_once_when_it_is_lent_again() {
        let m = mapped();
        // The connection goes to another process; this side hears nothing of its end.
        lend(&m, 1000);
        assert_eq!(take(&m), Some((3, 1000)));
        leave(&m);
        close(&m);
        assert_eq!(take(&m), None);
        lend(&m, 1001);
        assert_eq!((take(&m), take(&m)), (Some((3, 1001)), None));
        // This side had closed it before, and connects while the slot is being lent again.
        close(&m);
        leave(&m);
        m.halves(3).1.flags.store(RELEASED, Ordering::Release);
        assert_eq!(take(&m), None);
        lend(&m, 1002);
        assert_eq!((take(&m), take(&m)), (Some((3, 1002)), None));
        // The same, without a connect in between.
        close(&m);
        leave(&m);
        lend(&m, 1003);
        assert_eq!((take(&m), take(&m)), (Some((3, 1003)), None));
    }
}
