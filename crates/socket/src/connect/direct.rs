//! The connector's side of lines (`control::Lent`): direct accept queues of a listener, for connects that need no request to the service.

use crate::connect::listen::release_block;
use crate::connect::store_addresses;
use crate::session::Client;
use crate::socket::Sock;
use control::{AcceptRecord, Lent, RECORD_LEN};
use cycles::now_ns;
use endpoint::Endpoint;
use endpoint::region::Mapped;
use endpoint::stream::{Progress, Said};
use queue::stream::raise;
use shm::half_flags::{FAILED, FIN, LENT, OPEN, READ_CLOSED, RELEASED, RESET};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

/// The lines that this process may use, by the listener's address as connectors name it.
pub type Ways = RwLock<HashMap<SocketAddr, Arc<Way>>>;

/// The connector's end of a line to one listener.
#[derive(Debug)]
pub struct Way {
    line: Endpoint,
    most: u32,
    /// The address that connections made by this line come from.
    source: IpAddr,
}

impl Way {
    /// True while the line accepts further connections.
    fn is_open(&self) -> bool {
        let seen = self.line.peer_flags();
        seen & OPEN != 0 && seen & (FIN | READ_CLOSED | RESET | FAILED) == 0 && !self.line.is_over()
    }

    /// True when the service has revoked the line, or the acceptor has ended it.
    fn is_over(&self) -> bool {
        let seen = self.line.peer_flags();
        seen & (FIN | READ_CLOSED | RESET | FAILED) != 0 || self.line.is_over()
    }

    fn has_room(&self) -> bool {
        let (own, peer) = self.line.halves();
        let unread = own.tx_head.load(Ordering::Relaxed).saturating_sub(peer.rx_tail.load(Ordering::Acquire));
        unread / (RECORD_LEN as u64) < u64::from(self.most)
    }
}

/// Takes over the line and the slots that came with the service's answer to a `connect` to `remote`.
pub fn learn(client: &Client, remote: SocketAddr, mapped: &Arc<Mapped>, lent: &Lent) {
    if !mapped.pair || !mapped.has(lent.line) {
        return;
    }
    mapped.lease.add(mapped, remote, lent.grants.iter().map(|grant| (grant.slot, grant.port)));
    // Not under the lock of `ways`: a fork takes that lock after those of the regions.
    let Some(block) = client.take_block() else { return };
    let home = &client.home;
    let mut ways = client.ways.write().unwrap_or_else(PoisonError::into_inner);
    let is_it = |way: &Arc<Way>| way.line.mapped.id == mapped.id && way.line.slot() == lent.line;
    if ways.get(&remote).is_some_and(is_it) {
        return release_block(home, block);
    }
    let line = Endpoint::queue(mapped.clone(), lent.line, home.clone(), block);
    line.begin(true, false);
    let way = Arc::new(Way { line, most: lent.most, source: lent.source });
    if let Some(before) = ways.insert(remote, way)
        && Arc::strong_count(&before) == 1
    {
        before.end();
    }
}

impl Way {
    /// Ends the connector's side of the line.
    fn end(&self) {
        raise(self.line.halves().0, FIN | READ_CLOSED | RELEASED);
        let (block, sender) = (self.line.block(), self.line.sender());
        self.line.mapped.linger(self.line.slot(), sender);
        block.region.store(0, Ordering::Release);
        release_block(&self.line.home, self.line.index());
    }
}

/// Removes a line that was taken back, under all addresses.
fn forget(client: &Client, way: &Arc<Way>) {
    let mut ways = client.ways.write().unwrap_or_else(PoisonError::into_inner);
    let before = ways.len();
    ways.retain(|_, other| !Arc::ptr_eq(other, way));
    // Not if another thread has removed it first.
    if ways.len() < before {
        way.end();
    }
}

/// Connects `sock`, which is not bound, to `remote` with socket block `index`. `None`: the caller has to ask the service.
pub fn connect(client: &Client, sock: &Sock, index: u32, remote: SocketAddr) -> Option<Endpoint> {
    // A signal handler's `connect` must not wait for a lock that the interrupted code may hold.
    let way = client.ways.try_read().ok()?.get(&remote)?.clone();
    if way.is_over() {
        forget(client, &way);
        return None;
    }
    if !(way.is_open() && way.has_room()) {
        return None;
    }
    let mapped = &way.line.mapped;
    let (slot, port) = mapped.lease.take(mapped, remote)?;
    let local = SocketAddr::new(way.source, port);
    let link = Endpoint::new(mapped.clone(), slot, client.home.clone(), index);
    link.begin(sock.is_nonblocking(), false);
    store_addresses(&link, local, remote, sock.family());
    let (own, peer) = link.halves();
    own.flags.store(OPEN, Ordering::Release);
    peer.flags.store(OPEN | LENT, Ordering::Release);
    let (region, side) = (mapped.id, mapped.side.other() as u8);
    let record = AcceptRecord { region, slot, side, local: remote, peer: local, time: now_ns(), line: 0 };
    if way.line.push(&[&record.to_bytes()], 0, Said::default()) != Ok(Progress::Done(RECORD_LEN)) {
        mapped.lease.give_back(mapped, remote, slot);
        return None;
    }
    // The record is in the line. If the listener is closed meanwhile, the closing side finds the record, or the check below sees it.
    std::sync::atomic::fence(Ordering::SeqCst);
    if way.line.halves().1.flags.load(Ordering::Relaxed) & READ_CLOSED != 0 {
        raise(peer, RESET | READ_CLOSED | RELEASED);
    }
    Some(link)
}
