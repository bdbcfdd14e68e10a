//! The acceptor's side of lines (`control::Lent`). A line is a further accept queue of a listener, filled by one connector. Of a record
//! that the connector writes only the slot is believed, if the service has granted it; the addresses are the grant's.

use crate::connect::listen::{Name, name_of, release_block, take, tell_of_role};
use crate::process::fork_locks::Held;
use crate::session::{self, Client, lock};
use crate::socket::Sock;
use base::limits::SLOTS_MAX;
use control::{AcceptRecord, RECORD_LEN, Reply, Request};
use endpoint::Endpoint;
use endpoint::region::Mapped;
use endpoint::stream::{How, Progress};
use queue::stream::raise;
use shm::half_flags::{FIN, OPEN, READ_CLOSED, RELEASED, RESET, WANT_SPACE};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

type Lines = Arc<[Arc<Endpoint>]>;

static LINES: RwLock<BTreeMap<Name, Lines>> = RwLock::new(BTreeMap::new());
/// Number of listeners that have lines.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The lines of a listener, if it has any.
#[inline]
pub fn of(listener: &Endpoint) -> Option<Lines> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    LINES.read().unwrap_or_else(PoisonError::into_inner).get(&name_of(listener)).cloned()
}

fn change() -> RwLockWriteGuard<'static, BTreeMap<Name, Lines>> {
    LINES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock of `LINES` before a fork.
pub fn hold(held: &mut Held) {
    held.take_whole_static(&LINES);
}

/// Adds the line that a record of the service announces. From here on its connector uses it.
pub fn adopt(sock: &Arc<Sock>, listener: &Endpoint, client: &Arc<Client>, record: &AcceptRecord) {
    let Some(slot) = record.line.checked_sub(1) else { return };
    let mapped = client.region(record.region, record.side).filter(|m| m.pair && m.has(slot));
    let Some((mapped, index)) = mapped.and_then(|m| Some((m, client.take_block()?))) else { return };
    let line = Arc::new(Endpoint::queue(mapped, slot, client.home.clone(), index));
    line.begin(true, true);
    {
        let mut all = change();
        let lines = all.entry(name_of(listener)).or_insert_with(|| Arc::new([]));
        *lines = lines.iter().cloned().chain([line.clone()]).collect();
        COUNT.store(all.len(), Ordering::Relaxed);
    }
    raise(line.halves().0, OPEN);
    tell_of_role(sock);
}

/// True when no more connections come by a line, and all were taken.
fn is_over(line: &Endpoint) -> bool {
    let seen = line.peer_flags();
    (seen & (FIN | RESET | RELEASED) != 0 || line.is_over()) && line.unread() < RECORD_LEN
}

/// Drops the lines that are over.
pub fn tidy(sock: &Sock, listener: &Endpoint, client: &Client) {
    let Some(lines) = of(listener).filter(|lines| lines.iter().any(|line| is_over(line))) else { return };
    for line in lines.iter().filter(|line| is_over(line)) {
        drop_line(sock, listener, client, line);
    }
}

/// Drops a line that is over, or that holds an invalid record.
pub fn drop_line(sock: &Sock, listener: &Endpoint, client: &Client, line: &Arc<Endpoint>) {
    {
        let mut all = change();
        let Some(lines) = all.get_mut(&name_of(listener)) else { return };
        if !lines.iter().any(|other| Arc::ptr_eq(other, line)) {
            // Another thread has dropped it.
            return;
        }
        *lines = lines.iter().filter(|other| !Arc::ptr_eq(other, line)).cloned().collect();
    }
    for (set, _) in sock.sets() {
        set.ignore(&line.mapped, line.slot());
    }
    end(line, client.holder_bit());
}

/// The listener is closed, or its queues are read no more: resets the connections that wait in its lines, unless other processes, forked
/// from this one, hold the lines.
pub fn close(listener: &Endpoint, ours: u64) {
    let lines = {
        let mut all = change();
        let lines = all.remove(&name_of(listener));
        COUNT.store(all.len(), Ordering::Relaxed);
        lines
    };
    lines.iter().flat_map(|lines| lines.iter()).for_each(|line| end(line, ours));
}

/// This process holds a line no more. The last one says that it is closed, and then looks: a connector that sees the flag only after having
/// put a record in resets that connection itself.
fn end(line: &Endpoint, ours: u64) {
    let block = line.block();
    let others = |holders: u64| Some(holders & !ours).filter(|rest| *rest != 0);
    if block.holders.fetch_update(Ordering::AcqRel, Ordering::Acquire, others).is_ok() {
        return;
    }
    raise(line.halves().0, FIN | READ_CLOSED);
    for _ in 0..SLOTS_MAX {
        let Ok(Some(record)) = take(line) else { break };
        reset(&line.mapped, record.slot);
    }
    raise(line.halves().0, RELEASED);
    block.region.store(0, Ordering::Release);
    release_block(&line.home, line.index());
}

/// The addresses of the connection of `record`, ours first. `None`: the service has not granted them to the connector of this line. If the
/// slot was granted again with another port since the service was asked, the port in the record shows it.
pub fn granted(client: &Client, line: &Endpoint, record: &AcceptRecord) -> Option<[SocketAddr; 2]> {
    let slot = record.slot;
    let is_it = |[_, peer]: &[SocketAddr; 2]| peer.port() == record.peer.port();
    let known = || lock(&line.mapped.granted).get(&slot).copied().filter(is_it);
    known().or_else(|| {
        let request = Request::Grants { region: line.mapped.id, line: line.slot(), slot };
        let Ok((Reply::Grants { local, source, grants }, _)) = client.ask(request) else { return None };
        let new = grants.iter().map(|grant| (grant.slot, [local, SocketAddr::new(source, grant.port)]));
        lock(&line.mapped.granted).extend(new);
        known()
    })
}

fn reset(mapped: &Mapped, slot: u32) {
    if !mapped.has(slot) {
        return;
    }
    raise(mapped.halves(slot).0, RESET | READ_CLOSED | RELEASED);
    if let Some(context) = mapped.tell(slot)
        && let Some(client) = session::present()
    {
        client.wake_other(mapped, context);
    }
}

/// The first record of a queue, which stays there.
pub fn head(queue: &Endpoint) -> Option<AcceptRecord> {
    let mut bytes = [0; RECORD_LEN];
    let how = How { peek: true, ..How::default() };
    match queue.pull(&mut [&mut bytes], 0, how) {
        Ok(Progress::Done(RECORD_LEN)) => AcceptRecord::from_bytes(&bytes),
        _ => None,
    }
}

/// The line with the first record that waits longest, by its connector's word, and that record's time. An invalid record comes first.
pub fn oldest(lines: &[Arc<Endpoint>]) -> Option<(&Arc<Endpoint>, u64)> {
    let filled = lines.iter().filter(|line| line.unread() >= RECORD_LEN);
    filled.map(|line| (line, head(line).map_or(0, |record| record.time))).min_by_key(|(_, time)| *time)
}

/// A connection was taken from a line: tells the service, which counts those in lines, too, that there may be room for another.
pub fn make_room(queue: &Endpoint) {
    if queue.halves().1.flags.load(Ordering::Relaxed) & WANT_SPACE != 0 {
        queue.tell();
    }
}
