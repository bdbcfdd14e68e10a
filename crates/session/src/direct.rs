//! Connections to a listener of the same user without a request to the service (`control::Lent`).

use crate::Client;
use crate::accept_queue::Queue;
use crate::addresses;
use control::Lent;
use endpoint::Endpoint;
use endpoint::region::Mapped;
use endpoint::slot_grant::Granted;
use queue::stream::raise;
use shm::half_flags::{LENT, OPEN, READ_CLOSED, RELEASED, RESET};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock};

/// The listeners to which this process may connect directly, by the address as connectors name it.
pub type Ways = RwLock<HashMap<SocketAddr, Arc<Way>>>;

/// The right to connect to one listener.
#[derive(Debug)]
pub struct Way {
    queue: Arc<Queue>,
    mapped: Arc<Mapped>,
    epoch: u32,
    /// The address that the connections come from.
    source: IpAddr,
}

/// Takes over the grants that came with the service's answer to a `connect` to `remote`.
pub fn learn(client: &Client, remote: SocketAddr, mapped: &Arc<Mapped>, lent: &Lent) {
    let Some(queue) = client.queue(lent.queue).filter(|_| mapped.pair) else { return };
    let granted = |grant: &control::Grant| {
        (grant.slot, Granted { port: grant.port, remote, queue: lent.queue, grant: grant.grant })
    };
    mapped.lease.add(mapped, lent.grants.iter().map(granted), lent.are_free);
    let way = Way { queue, mapped: mapped.clone(), epoch: lent.epoch, source: lent.source };
    // Not under the locks of the regions: a fork takes this lock after those.
    client.ways.write().unwrap_or_else(PoisonError::into_inner).insert(remote, Arc::new(way));
}

/// Forgets a right that was taken back, under all addresses.
fn forget(client: &Client, way: &Arc<Way>) {
    let mut ways = client.ways.write().unwrap_or_else(PoisonError::into_inner);
    ways.retain(|_, other| !Arc::ptr_eq(other, way));
}

/// Forgets the rights to a listener that has ended.
pub fn forget_queue(client: &Client, queue: u32) {
    client.ways.write().unwrap_or_else(PoisonError::into_inner).retain(|_, way| way.queue.id != queue);
}

/// Connects a socket of `family` that is not bound to `remote`, with socket block `index`; `nonblock`: the program has set `O_NONBLOCK`.
/// `None`: the caller has to ask the service.
pub fn connect(
    client: &Client,
    index: u32,
    remote: SocketAddr,
    family: i32,
    nonblock: bool,
) -> Option<Endpoint> {
    // A signal handler's `connect` must not wait for a lock that the interrupted code may hold.
    let way = client.ways.try_read().ok()?.get(&remote)?.clone();
    let Way { queue, mapped, epoch, source } = &*way;
    if queue.epoch() != *epoch {
        forget(client, &way);
        return None;
    }
    if queue.is_full() {
        return None;
    }
    let (slot, Granted { port, grant, .. }) = mapped.lease.take(mapped, remote, queue.id)?;
    let local = SocketAddr::new(*source, port);
    let link = Endpoint::new(mapped.clone(), slot, client.home.clone(), index);
    link.begin(nonblock, false);
    addresses::store(&link, local, remote, family);
    let (own, peer) = link.halves();
    own.flags.store(OPEN, Ordering::Release);
    peer.flags.store(OPEN | LENT, Ordering::Release);
    queue.accepting().note_moment(cycles::moment());
    if !queue.accepting().push(grant) {
        link.block().region.store(0, Ordering::Release);
        mapped.lease.give_back(mapped, slot);
        return None;
    }
    // If the listener has ended meanwhile, the service has found the grant, or it is still there.
    fence(Ordering::SeqCst);
    if queue.is_over() && queue.accepting().withdraw(grant) {
        raise(peer, RESET | READ_CLOSED | RELEASED);
    }
    queue.wake(client);
    client.home.region.header().direct[0].fetch_add(1, Ordering::Relaxed);
    Some(link)
}
