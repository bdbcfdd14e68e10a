//! From a grant that a listener's queue held to the connection: where it lies, and this process's end of it.

use crate::Client;
use crate::accept_queue::Queue;
use crate::addresses;
use control::{AcceptRecord, Reply, Request};
use endpoint::Endpoint;
use endpoint::region::Mapped;
use queue::stream::raise;
use rustix::io::Errno;
use shm::half_flags::{ACCEPTED, LENT, READ_CLOSED, RELEASED, RESET};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most grants that one call takes out of a queue in vain. A hostile holder could put in more without end.
pub const USELESS_MOST: u32 = 4096;

/// Where the connection of a claimed grant lies.
#[derive(Debug)]
pub struct Claimed {
    /// The region in which it lies, as this process sees it.
    pub mapped: Arc<Mapped>,
    /// Its slot in the region.
    pub slot: u32,
    /// The address of this process's end.
    pub local: SocketAddr,
    /// The address of the peer's end.
    pub peer: SocketAddr,
}

/// The connection of a claimed grant; `find` maps the region of an id as a side sees it. `None`: it is gone, or another process has it.
///
/// # Errors
/// As `find`'s.
pub fn locate(
    client: &Client,
    queue: &Queue,
    grant: u32,
    find: impl FnOnce(u32, u8) -> Result<Option<Arc<Mapped>>, Errno>,
) -> Result<Option<Claimed>, Errno> {
    let Some(AcceptRecord { region, slot, side, local, peer }) = queue.record(grant) else {
        return Ok(None);
    };
    let Some(mapped) = find(region, side)? else { return Ok(take(client, queue, grant)) };
    if !mapped.has(slot) {
        return Ok(None);
    }
    // A hostile holder may have put the grant in once more.
    let own = mapped.halves(slot).0;
    let before = own.flags.fetch_or(ACCEPTED, Ordering::AcqRel);
    if before & LENT != 0 {
        client.home.region.header().direct[1].fetch_add(1, Ordering::Relaxed);
    }
    let is_ours = before & (ACCEPTED | RELEASED) == 0;
    Ok(is_ours.then_some(Claimed { mapped, slot, local, peer }))
}

/// The connection lies in a region of another family: the service carries it on to this process's region.
#[cold]
fn take(client: &Client, queue: &Queue, grant: u32) -> Option<Claimed> {
    match client.ask(Request::Take { queue: queue.id, grant }) {
        Ok((Reply::Moved { slot, local, peer, .. }, _)) if client.home.has(slot) => {
            Some(Claimed { mapped: client.home.clone(), slot, local, peer })
        }
        _ => None,
    }
}

/// Begins this end of a claimed connection.
///
/// # Errors
/// ENOBUFS when no socket block is free; then the connection is reset.
pub fn begin(client: &Client, claimed: Claimed, family: i32, nonblock: bool) -> Result<Endpoint, Errno> {
    let Claimed { mapped, slot, local, peer } = claimed;
    // Rings that it lends in an ancestor's region must be found there when this process is gone.
    let ancestors = if mapped.pair { &client.oldest } else { &mapped };
    let there = if mapped.is_own() { None } else { client.take_block_of(ancestors) };
    let own = || Some((client.home.clone(), client.take_block()?));
    let Some((home, index)) = there.map(|index| (ancestors.clone(), index)).or_else(own) else {
        raise(mapped.halves(slot).0, RESET | READ_CLOSED | RELEASED);
        if let Some(context) = mapped.tell(slot) {
            client.wake_other(&mapped, context);
        }
        return Err(Errno::NOBUFS);
    };
    client.expect(&mapped, slot);
    let link = Endpoint::new(mapped, slot, home, index);
    link.begin(nonblock, true);
    addresses::store(&link, local, peer, family);
    Ok(link)
}
